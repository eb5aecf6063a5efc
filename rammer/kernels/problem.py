"""Collect what candidate generators need of an operation: its stages after fusion, and the stride of every access."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm, prod
from typing import TYPE_CHECKING, NamedTuple

from rammer.cost.estimate import arithmetic_us, counted_us
from rammer.cost.functions import slots_of
from rammer.errors import LoweringError
from rammer.ir.analysis.simplify import simplify_index
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.expr import Load, Stage, TensorExpr, inline, loads
from rammer.ir.index import Index, substitute, var, variables
from rammer.ir.kernel import USUAL, RKernel, Tuning
from rammer.ir.operator import Operation
from rammer.ir.remembered import memoized
from rammer.ir.tensor import DType
from rammer.ir.tile import TileProgram
from rammer.kernels.lower import draft, finished
from rammer.kernels.normal import aligned, cleaned, flattened, fused, live
from rammer.kernels.packing import unmerged
from rammer.kernels.schedule import Packing, Schedule

if TYPE_CHECKING:
    from rammer.kernels.match import Matched

WORD = DType.F32.itemsize
TASK_MULTIPLE = 4  # times as many tasks as vEUs, for policies that cut operators
USUAL_GBPS = 50.0  # of the nearest memory, if a spec has no rates
SCALARS = 4  # sums that share an operand on devices without vectors
COSTLY = 12  # slots of the cheapest function worth keeping: more than storing and loading its result


class OfVector(NamedTuple):
    """Instructions of one vector of a stage along an axis: arithmetic of a term, its loads, and the result's store."""

    arithmetic: float
    fetched: float
    stored: float


@dataclass(frozen=True)
class KernelProblem:
    """An operation to schedule. `keep`: point-wise stages that are computed once into scratch instead of inlined."""

    operation: Operation
    spec: VDeviceSpec
    expr: TensorExpr
    spans: dict[str, int]  # merged axis -> points per step of the original axis
    keep: frozenset[str]
    tuning: Tuning = USUAL

    @staticmethod
    def of(
        operation: Operation,
        spec: VDeviceSpec,
        tuning: Tuning = USUAL,
        *,
        keep: frozenset[str] | None = None,
        flat: bool = True,
    ) -> KernelProblem:
        expr = cleaned(operation.expr)
        if keep is None:
            keep = worth_keeping(expr)
        expr = aligned(replace(expr, stages=tuple(live(inline(expr, keep), expr))))
        spans: dict[str, int] = {}
        if flat:
            expr, spans = flattened(expr, TASK_MULTIPLE * (tuning.tasks or spec.num_veus))
        return KernelProblem(operation, spec, expr, spans, keep, tuning)

    def keeping(self, keep: frozenset[str]) -> KernelProblem:
        """Return the same operation with other stages kept."""
        return KernelProblem.of(self.operation, self.spec, self.tuning, keep=keep)

    @cached_property
    def unmerged(self) -> KernelProblem:
        """The same operation with all of its axes, as before adjacent ones are merged."""
        return KernelProblem.of(self.operation, self.spec, self.tuning, keep=self.keep, flat=False)

    @property
    def rtasks(self) -> int:
        """The number of rTasks to aim for first."""
        return self.tuning.tasks or self.spec.num_veus

    @property
    def lanes(self) -> int:
        """Elements that innermost loops compute at once: lanes of a vector, or SCALARS single ones that share loads."""
        return self.spec.lanes if self.spec.lanes > 1 else SCALARS

    @cached_property
    def stages(self) -> dict[str, Stage]:
        outputs = {n for n, _ in self.expr.outputs}
        return {s.name: s for s in fused(self.expr, {*self.keep, *outputs})}

    @cached_property
    def root(self) -> Stage:
        return self.stages[self.expr.root.name]

    @cached_property
    def placed(self) -> list[Stage]:
        """The stages besides the root. A schedule places each one by an At."""
        return [s for s in self.stages.values() if s.name != self.expr.root.name]

    @cached_property
    def matched(self) -> Matched:
        """Matches of the operation, shared by all generators."""
        from rammer.kernels.match import Matched  # it imports this module

        return Matched(self)

    @cached_property
    def static(self) -> set[str]:
        return {n for (n, _), s in zip(self.expr.inputs, self.operation.static, strict=True) if s}

    @cached_property
    def of_vectors(self) -> dict[tuple[int, str], tuple[Stage, OfVector]]:
        """A cache of `OfVector` by the stage's identity and axis. All tilings share it."""
        return {}

    @cached_property
    def microseconds(self) -> float:
        """A lower bound of the time on one vEU: arithmetic, and bytes at the rate of the nearest memory."""
        read, stored = (sum(t.filled_bytes for _, t in some) for some in (self.expr.inputs, self.expr.outputs))
        level = next((m for m in self.spec.memory if m.read_gbps), MemoryLevel("usual", 0, "veu", USUAL_GBPS))
        moving_us = read * self.spec.byte_us(level, 1) + stored * self.spec.byte_us(level, 1, stores=True)
        return arithmetic_us(self.stages.values(), self.spec) + moving_us

    def span(self, axis: str) -> int:
        """Return the points of a merged axis in one step of the original one; 1 for other axes."""
        return max(self.spans.get(axis, 1), 1)  # an axis of a tensor without elements spans 0

    def grain(self, axis: str, width: int = 1, *, exact: bool = False) -> int:
        """Return the granularity of tasks along an axis: at least `width` points, or an `exact` multiple of them."""
        span = self.span(axis)
        return lcm(width, span) if exact else -(-width // span) * span

    def lane_stride(self, tensor: str, index: tuple[Index, ...], axis: str, stage: Stage) -> int | None:
        """Return the address step from lane to lane along `axis`, in elements:

        0, 1, another constant, or None if it varies.
        """
        if not any(axis in variables(ix) for ix in index):
            return 0
        known = dict((*self.expr.inputs, *self.expr.outputs))
        if tensor not in known:  # scratch: its order can follow
            return 1 if index[-1] == var(axis) else None
        kind = known[tensor]
        extents = {**dict(stage.axes), **dict(stage.reduce)}
        env = {a: (0, max(e - 1, 0)) for a, e in extents.items()}
        env |= {"_block": (0, max(-(-extents[axis] // self.lanes) - 1, 0)), "_lane": (0, self.lanes - 1)}
        value = {axis: var("_block") * self.lanes + var("_lane")}
        at = [substitute(ix, value) for ix in index]
        if kind.layout is not None:
            at = [at[d.dim] // d.div % d.mod if d.mod else at[d.dim] // d.div for d in kind.layout.digits]
        flat = sum((simplify_index(ix, env) * s for ix, s in zip(at, kind.strides, strict=True)), Index())
        step = flat.coef("_lane")
        return None if "_lane" in variables(flat - var("_lane") * step) else step

    def is_known(self, tensor: str) -> bool:
        """Check whether a tensor is an input, an output or a stage. The reduced value of an epilogue is neither."""
        return tensor in self.stages or any(tensor == n for n, _ in (*self.expr.inputs, *self.expr.outputs))

    def packable(self, load: Load, axis: str) -> bool:
        """Check whether the load is of a static input whose layout may be chosen so that `axis` is innermost."""
        return (
            load.tensor in self.static
            and not load.dynamic
            and dict(self.expr.inputs)[load.tensor].layout is None
            and any(ix == var(axis) for ix in load.index)
            and all(ix == var(axis) or axis not in variables(ix) for ix in load.index)
        )

    def kernel(self, schedule: Schedule) -> RKernel:
        """Lower a schedule to an rKernel whose tasks and packing refer to the operation's own axes.

        Raises LoweringError if a packing cuts merged axes where they do not meet.
        """
        packing = self.own_packing(schedule)
        if packing is None:
            raise LoweringError(
                f"{schedule.name}: a packing cuts merged axes of {self.operation.kind} where they do not meet",
                hint="schedule the operation with its axes apart: Problem.of(operation, spec, flat=False)",
            )
        program = finished(self._draft(schedule))
        digits = tuple(replace(d, step=max(d.step // self.span(d.axis), 1)) for d in program.digits)
        return RKernel(schedule.name, self.operation, replace(program, digits=digits), packing, str(schedule))

    def unshared_us(self, schedule: Schedule, num_veus: int) -> float:
        """Return the microseconds on `num_veus` vEUs without other work, by the counted work of a draft."""
        program = self._draft(schedule)
        nbytes = sum(t.filled_bytes for _, t in (*self.expr.inputs, *self.expr.outputs))
        return counted_us(program, self.spec, nbytes) * -(-program.num_rtasks // num_veus)

    @memoized
    def _draft(self, schedule: Schedule) -> TileProgram:
        """Return a draft of a schedule. It is cached: a schedule is priced first, and may become a kernel later."""
        return draft(self.expr, schedule, self.stages.values(), self.spec.folds)

    def own_packing(self, schedule: Schedule) -> Packing | None:
        """Return the schedule's packing in terms of the operation's own dimensions; None if these cannot express it."""
        merged, own = dict(self.expr.inputs), dict(self.operation.expr.inputs)
        found = []
        for name, layout in schedule.packing:
            known = unmerged(layout, merged[name].shape, own[name].shape)
            if known is None:
                return None
            found.append((name, known))
        return tuple(found)


def worth_keeping(expr: TensorExpr) -> frozenset[str]:
    """Return point-wise stages with costly functions that several readers, or a reduction, would recompute."""
    keep = set()
    outputs = {n for n, _ in expr.outputs}
    for stage in expr.stages:
        if stage.reduce or stage.name in outputs or slots_of(stage.body) < COSTLY:
            continue
        readers = [s for s in expr.stages if any(ld.tensor == stage.name for ld, _ in loads(s.body))]
        own = prod(e for _, e in stage.axes)
        again = sum(prod(e for _, e in (*s.axes, *s.reduce)) for s in readers)
        if again > own:
            keep.add(stage.name)
    return frozenset(keep)


def all_loads(stage: Stage) -> Iterable[tuple[Load, object]]:
    """Yield the loads of a stage, its epilogue included."""
    yield from loads(stage.body)
    if stage.epilogue is not None:
        yield from loads(stage.epilogue)
