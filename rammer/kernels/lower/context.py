"""Hold the state of a lowering: stages under their schedule, the buffer of every tensor, and how far axes may run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from rammer.errors import LoweringError
from rammer.ir.analysis.simplify import simplify_index
from rammer.ir.expr import Load, Range, Scalar, Stage, TensorExpr, loads, rename_tensors, rewrite
from rammer.ir.index import Index, bounds, substitute, var, variables
from rammer.ir.instruction import Instruction
from rammer.ir.tensor import DType, Layout
from rammer.ir.tile import Buffer, Scope
from rammer.kernels.normal import indices
from rammer.kernels.schedule import Schedule, copied

Guards: TypeAlias = "dict[str, tuple[Range, ...]]"
Values: TypeAlias = "dict[str, Index]"

ANYWHERE = 1 << 62  # how far an axis may run in a box that holds everything that its readers touch


@dataclass(frozen=True, slots=True)
class Home:
    """Where a tensor lives: its buffer, the low corner of the box held there, a stride per dimension or a layout.

    `whole`: dimensions along which the box holds everything that is read.
    """

    buffer: Buffer
    corner: tuple[Index, ...]
    strides: tuple[int, ...]
    layout: Layout | None = None
    whole: frozenset[int] = frozenset()


class Context:
    """The fused `stages` of an expression, the input copies that `schedule` wants, and the buffers made so far.

    Raises LoweringError if the schedule places other stages than there are.
    """

    def __init__(
        self, expr: TensorExpr, schedule: Schedule, stages: Iterable[Stage], folds: Iterable[Instruction] = ()
    ) -> None:
        self.expr, self.schedule, self.threads, self.folds = expr, schedule, schedule.threads, tuple(folds)
        self.outputs = dict(expr.outputs)
        inputs = dict(expr.inputs)
        made = [at for at in schedule.stages if at.stage in inputs or (at.instruction and at.instruction.copies)]
        copies = [copied(at.stage, expr.type_of(at.stage)) for at in made]
        copy_of = {at.stage: copy.name for at, copy in zip(made, copies, strict=True)}
        self.at = {copy.name: at for at, copy in zip(made, copies, strict=True)}
        self.at |= {at.stage: at for at in schedule.stages if at not in made}
        self.copied = {copy.name: at.stage for at, copy in zip(made, copies, strict=True) if at.stage not in inputs}
        whole = {name: copy for name, copy in copy_of.items() if name in inputs}  # other readers read the stage itself
        self.stages = {s.name: s for s in copies}
        for s in stages:
            unit = self.at[s.name].instruction if s.name in self.at else schedule.instruction
            self.stages[s.name] = _reading(s, copy_of if s.reduce and unit else whole)
        self.root = self.stages[expr.root.name]
        if homeless := [n for n in self.stages if n not in self.at and n != self.root.name]:
            raise LoweringError(f"{expr.name}: stages {homeless} are read at other positions", hint="give each an At")
        if unknown := self.at.keys() - self.stages.keys():
            raise LoweringError(f"{expr.name}: no stages {sorted(unknown)}", hint=f"it has {', '.join(self.stages)}")
        self.env: dict[str, tuple[int, int]] = {}  # loop variables
        self.scratch: list[Buffer] = []
        self.registers: list[Buffer] = []  # boxes that each thread has to itself
        self.home: dict[str, Home] = {}
        packed = dict(schedule.packing)
        for name, kind in (*expr.outputs, *expr.inputs):
            layout = packed.get(name, kind.layout)
            own = replace(kind, layout=layout)
            self.home[name] = Home(Buffer(name, own.span, Scope.ARGUMENT, kind.dtype), (), tuple(own.strides), layout)

    def fail(self, stage: Stage, what: str, hint: str = "") -> LoweringError:
        return LoweringError(f"{self.expr.name}.{stage.name}: {what}", hint=hint)

    def host(self, stage: Stage) -> str:
        """Return the name by which schedules refer to this stage as a host; "" for the root."""
        return stage.name if stage.name in self.at else ""

    def reduced_dtype(self, stage: Stage) -> DType:
        """Return the type of the value before the epilogue."""
        if stage.epilogue is None:
            return stage.dtype
        reduced = [ld.tensor for ld, _ in loads(stage.epilogue) if ld.tensor not in self.home]
        if not reduced:
            raise self.fail(stage, "its epilogue reads no sum", hint="two tensors may have one name")
        return self.expr.type_of(reduced[0]).dtype

    def flatten(self, tensor: str, index: list[Index]) -> Index:
        """Return the position of an element in its buffer."""
        home = self.home[tensor]
        if home.corner:
            index = [ix - low for ix, low in zip(index, home.corner, strict=True)]
        if home.layout is not None:
            digits = home.layout.digits
            index = [index[d.dim] // d.div % d.mod if d.mod else index[d.dim] // d.div for d in digits]
            index = [simplify_index(ix, self.env) for ix in index]
        return sum((ix * s for ix, s in zip(index, home.strides, strict=True)), Index())

    def resolve(self, body: Scalar, values: Mapping[str, Index], result: Scalar | None = None) -> Scalar:
        """Replace axes by loop variables, tensors by flat positions, and the fused reduction by its accumulator."""

        def place(index: Index) -> Index:
            return simplify_index(substitute(index, values), self.env)

        def leaf(load: Load) -> Scalar:
            if load.tensor not in self.home:
                assert result is not None, load
                return result
            flat = simplify_index(self.flatten(load.tensor, [substitute(ix, values) for ix in load.index]), self.env)
            dynamic = tuple(replace(d, dim=0, stride=self._stride(load.tensor, d.dim)) for d in load.dynamic)
            return Load(load.tensor, (flat,), dynamic)

        return rewrite(body, leaf, place)

    def _stride(self, tensor: str, dim: int) -> int:
        """Return how far one step along dimension `dim` moves the flat position."""
        home = self.home[tensor]
        if home.layout is None:
            return home.strides[dim]
        places = [p for p, d in enumerate(home.layout.digits) if d.dim == dim]
        if len(places) != 1 or home.layout.digits[places[0]].div != 1:
            raise LoweringError(
                f"{self.expr.name}: {tensor} is gathered along dimension {dim}, which its layout splits",
                hint="keep gathered tensors row-major",
            )
        return home.strides[places[0]]

    def relaxed(self, stage: Stage, guards: Guards, outputs: bool = False) -> tuple[Range, ...]:
        """Return guards, moved from a tensor's edge to the edge of the padded blocks of everything that is touched.

        With `outputs`: the guards of stores, which are those of the output's axes.
        """
        result = []
        for axis, ranges in guards.items():
            full = dict(stage.axes).get(axis)  # None: an axis of the reduction
            if not ranges or (outputs and full is None):
                continue
            spans = [(r, *bounds(r.index, self.env)) for r in ranges]
            crossed = [(r, low, top) for r, low, top in spans if low < 0 or top >= r.high]
            room = self._room(stage, axis, outputs) if crossed and full is not None else 0
            for r, low, top in crossed:
                overhangs = not outputs and full is not None and r.high > full  # the box, and what is read there, too
                high = max(room, r.high) if r.high == full or overhangs else r.high
                if low < 0 or top >= high:
                    result.append(replace(r, high=high))
        return tuple(result)

    def fills(self, stage: Stage, axis: str, step: int) -> bool:
        """Check whether an axis shorter than a block may be walked to the block's end, in every operand's padding."""
        read = {ld.tensor for body in (stage.body, stage.epilogue) if body is not None for ld, _ in loads(body)}
        return not (read & self.stages.keys() - self.home.keys()) and step <= self._room(stage, axis, outputs=True)

    def _room(self, stage: Stage, axis: str, outputs: bool) -> int:
        """Return how far `axis` may run with every access inside its buffer: past the edge, if layouts pad it."""
        full = dict(stage.axes)[axis]
        touched = [ld for ld, _ in loads(stage.body)]
        bodies = [stage.body]
        if outputs:
            touched.append(Load(stage.name, tuple(var(a) for a, _ in stage.axes)))
            if stage.epilogue is not None:
                bodies.append(stage.epilogue)
                touched += [ld for ld, _ in loads(stage.epilogue) if ld.tensor in self.home]
        if any(axis in variables(ix) for body in bodies for ix in indices(body)):
            return full
        rooms = [self._reach(ld, axis) for ld in touched if any(axis in variables(ix) for ix in ld.index) or ld.dynamic]
        return max(full, min(rooms, default=full))

    def _reach(self, load: Load, axis: str) -> int:
        """Return how far `axis` may run in a load's tensor; 0 if only the tensor's own extent is known."""
        home = self.home[load.tensor]
        dims = [d for d, ix in enumerate(load.index) if axis in variables(ix)]
        if home.corner and not load.dynamic and home.whole.issuperset(dims):
            return ANYWHERE
        layout = home.layout
        if layout is None or home.corner or load.dynamic or any(load.index[d] != var(axis) for d in dims):
            return 0
        shape = self.expr.type_of(load.tensor).shape
        return min(
            -(-shape[g.dim] // g.mod) * g.mod if g.mod else shape[g.dim]
            for d in dims
            for g in layout.digits
            if g.dim == d and (g.mod or g.div == 1)
        )


def _reading(stage: Stage, copies: Mapping[str, str]) -> Stage:
    """Return the stage with inputs replaced by their copies."""
    epilogue = stage.epilogue and rename_tensors(stage.epilogue, copies)
    return replace(stage, body=rename_tensors(stage.body, copies), epilogue=epilogue)


def strides(shape: tuple[int, ...], gap: int = 0, pad: int = 0) -> tuple[int, ...]:
    """Return row-major strides, with `pad` unused elements after each row and `gap` after each 2-D plane."""
    found, size = [], 1
    for n, extent in enumerate(reversed(shape)):
        found.append(size)
        size = size * extent + (pad if n == 0 else gap if n == 1 else 0)
    return tuple(reversed(found))
