"""Build a schedule loop by loop, from the outermost one inwards. Known as: a schedule, as in Halide, TVM and Exo.

s = Sched(problem).tasks([(row, 64, 4), (lane, 512, 32)], want=8)
s = s.reorder("n").split(row, 4).compute_at("exp", nest).reorder("k").unroll(row).vectorize(lane)
schedule = s.pack(weights, panels).build("4x16")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any

from rammer.ir.expr import Stage
from rammer.ir.instruction import Instruction
from rammer.ir.tensor import Layout
from rammer.ir.tile import Kind
from rammer.kernels.problem import KernelProblem
from rammer.kernels.schedule import At, Loop, Packing, Schedule, copied
from rammer.kernels.tiling import cut, place_one, task_counts

NO_NESTS: Mapping[str, Any] = MappingProxyType({})
Cut = tuple[str, int, int]  # an axis, its extent, and the granularity of each task's part


@dataclass(frozen=True)
class Sched:
    """The nest of a stage (by default, the root), and the stages computed inside of it.

    Immutable: verbs return a new one. Each verb that makes a loop puts it inside of all loops before it. `compute_at`
    refers to the innermost loop so far.
    """

    problem: KernelProblem
    stage: Stage | None = None
    loops: tuple[Loop, ...] = ()
    stages: tuple[At, ...] = ()
    packing: Packing = ()
    threads: int = 1
    instruction: Instruction | None = None

    @property
    def extents(self) -> dict[str, int]:
        """Extents of the stage's axes and of its reduction axes."""
        stage = self.stage or self.problem.root
        return dict((*stage.axes, *stage.reduce))

    @property
    def steps(self) -> dict[str, int]:
        """Points per iteration of each axis that the loops so far cut."""
        return {loop.axis: loop.step for loop in self.loops}

    def left(self, axis: str) -> int:
        """Return the points of an axis that one iteration of the loops so far computes."""
        return min(self.extents[axis], self.steps.get(axis, self.extents[axis]))

    @property
    def num_tasks(self) -> int:
        """Number of rTasks."""
        return prod(-(-self.extents[loop.axis] // loop.step) for loop in self.loops if loop.kind is Kind.TASK)

    def tasks(self, axes: Sequence[Cut], want: int) -> Sched:
        """Cut axes into about `want` rTasks that keep all vEUs equally busy."""
        return self.nest(cut(axes, want, self.problem.spec.num_veus))

    def nest(self, loops: Iterable[Loop]) -> Sched:
        """Add loops as they are."""
        return replace(self, loops=(*self.loops, *loops))

    def split(self, axis: str | None, size: int, kind: Kind = Kind.SERIAL) -> Sched:
        """Loop over parts of `size` points of an axis. All verbs ignore an axis that is None."""
        return self.nest([Loop(axis, size, kind)] if axis is not None else ())

    def reorder(self, *axes: str | None) -> Sched:
        """Loop point by point over the rest of some axes, in this order."""
        return self.nest(Loop(axis) for axis in axes if axis is not None)

    def unroll(self, *axes: str | None, size: int = 1) -> Sched:
        """Unroll the rest of some axes, in parts of `size` points."""
        return self.nest(Loop(axis, size, Kind.UNROLLED) for axis in axes if axis is not None)

    def vectorize(self, axis: str, width: int = 1) -> Sched:
        """Make the rest of an axis a vector. With `width`, unroll over vectors of that many points."""
        return (self.unroll(axis, size=width) if width > 1 else self).split(axis, 1, Kind.VECTOR)

    def bind(self, axis: str | None, size: int = 1) -> Sched:
        """Distribute parts of `size` points over the threads of a task."""
        return self.split(axis, size, Kind.THREAD)

    def on_threads(self, count: int) -> Sched:
        """Set the number of threads of each task."""
        return replace(self, threads=count)

    def tensorize(self, instruction: Instruction | None) -> Sched:
        """Let an instruction compute the inner loops."""
        return replace(self, instruction=instruction)

    def compute_at(
        self, name: str, nest: Sched | Iterable[Loop] = (), *, depth: int | None = None, **how: Any
    ) -> Sched:
        """Compute a stage, or copy an input, by its own nest.

        It is inside of loop number `depth`, by default the innermost one so far. `how`: see `At`. What the nest
        computes inside of its own loops comes along.
        """
        loops, instruction = (nest.loops, nest.instruction) if isinstance(nest, Sched) else (tuple(nest), None)
        inner = (replace(at, inside=name) for at in (nest.stages if isinstance(nest, Sched) else ()))
        here = len(self.loops) - 1 if depth is None else depth
        at = At(name, here, loops, **{"instruction": instruction, **how})
        return replace(self, stages=(*self.stages, at, *inner))

    def place(self, stages: Iterable[Stage], nests: Mapping[str, Sched | tuple[Loop, ...]] = NO_NESTS) -> Sched:
        """Compute stages inside the innermost loop so far, by their `nests` or by generic ones."""
        s, depth = self, len(self.loops) - 1
        for stage in stages:
            if stage.name in nests:
                s = s.compute_at(stage.name, nests[stage.name])
            else:
                s = replace(s, stages=(*s.stages, place_one(s.problem, stage, s.loops, depth)))
        return s

    def pack(self, packing: Iterable[tuple[str, Layout]]) -> Sched:
        """Pack static inputs at compile time. If a tensor gets several layouts, the first one counts."""
        known = dict(self.packing)
        return replace(self, packing=tuple((known | {t: lay for t, lay in packing if t not in known}).items()))

    def build(self, detail: str, kind: str = "") -> Schedule:
        """Return the schedule. Its name holds the operation (or `kind`), `detail` and the number of rTasks."""
        name = f"{kind or self.problem.operation.kind}_{detail}_t{self.num_tasks}"
        return Schedule(name, self.loops, self.stages, self.packing, self.threads, self.instruction)


def begun(problem: KernelProblem, axes: Sequence[Cut]) -> Iterator[Sched]:
    """Yield schedules with nothing but tasks: one for each useful number of tasks, without duplicates."""
    found = (Sched(problem).tasks(axes, want) for want in task_counts(problem))
    return iter({s.loops: s for s in found}.values())


def cuts(problem: KernelProblem, axes: Iterable[str], multiple: int = 1) -> list[Cut]:
    """Return axes of the root as cuts. Granularity: a multiple of `multiple` and of the span of a merged axis."""
    extents = dict(problem.root.axes)
    return [(axis, extents[axis], problem.grain(axis, multiple, exact=True)) for axis in axes]


def copy_axes(problem: KernelProblem, tensor: str) -> list[str]:
    """Return the axes of a stage, or of the stage that copies an input: one for each of its dimensions."""
    stage = problem.stages.get(tensor) or copied(tensor, problem.expr.type_of(tensor))
    return [a for a, _ in stage.axes]
