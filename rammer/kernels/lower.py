"""Tensor expression + schedule -> tile program: tiling, register blocks, staging, reductions, by one nest builder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from rammer.errors import LoweringError
from rammer.ir.expr import (
    REDUCERS,
    Call,
    Const,
    Dynamic,
    Load,
    Range,
    Scalar,
    Select,
    Stage,
    TensorExpr,
    loads,
    rewrite,
)
from rammer.ir.index import Index, bounds, simplify, substitute, var, variables
from rammer.ir.instruction import Instruction, place
from rammer.ir.simplify import simplify_body, simplify_index
from rammer.ir.tensor import DType, Layout, TensorType
from rammer.ir.tile import (
    Alloc,
    Apply,
    Body,
    Buffer,
    For,
    If,
    Kind,
    Operand,
    Scope,
    Stmt,
    Store,
    Sync,
    TaskDigit,
    TileProgram,
)
from rammer.kernels.normal import fused, identity
from rammer.kernels.schedule import Loop, Schedule

Guards: TypeAlias = "dict[str, tuple[Range, ...]]"
Values: TypeAlias = "dict[str, Index]"


def lower(expr: TensorExpr, schedule: Schedule) -> TileProgram:
    """The tile program of `expr` under `schedule`, which has one thread. Raises LoweringError if they do not fit."""
    return _Lowering(expr, schedule).program()


@dataclass(slots=True)
class _Band:
    """A loop of the nest; `stride` is its digit's weight in the task or thread id."""

    var: str
    extent: int
    loop: Loop
    stride: int = 1


@dataclass(slots=True)
class _Nest:
    """The loops of one stage, and what its axes are in terms of them."""

    bands: list[_Band]
    values: Values
    guards: Guards


@dataclass(slots=True)
class _Home:
    """Where a tensor lives: its buffer, the low corner of the box held there, a stride per dimension or a layout."""

    buffer: Buffer
    corner: tuple[Index, ...]
    strides: tuple[int, ...]
    layout: Layout | None = None


class _Lowering:
    def __init__(self, expr: TensorExpr, schedule: Schedule) -> None:
        inputs = dict(expr.inputs)
        copies = tuple(_copy(at.stage, inputs[at.stage]) for at in schedule.stages if at.stage in inputs)
        renamed = {s.name[:-2]: s.name for s in copies}
        if copies:  # staging an input = an identity stage in front of its readers

            def leaf(load: Load) -> Scalar:
                return replace(load, tensor=renamed.get(load.tensor, load.tensor))

            expr = replace(expr, stages=(*copies, *(replace(s, body=rewrite(s.body, leaf)) for s in expr.stages)))
        self.expr, self.schedule = expr, schedule
        self.at = {renamed.get(at.stage, at.stage): at for at in schedule.stages}
        outputs = {name for name, _ in expr.outputs}
        stages = fused(expr, {*self.at, *outputs})
        self.stages = {s.name: s for s in stages}
        self.dtypes = {n: t.dtype for n, t in expr.inputs} | {s.name: s.dtype for s in expr.stages}
        self.env: dict[str, tuple[int, int]] = {}
        self.scratch: list[Buffer] = []
        self.nests: dict[str, _Nest] = {}
        self.copies: dict[str, Body] = {}  # input -> what copies it by an instruction
        self.home: dict[str, _Home] = {}
        packed = dict(schedule.packing)
        for name, kind in (*expr.outputs, *expr.inputs):
            layout = packed.get(name, kind.layout)
            shape = layout.physical_shape(kind.shape) if layout else kind.shape
            self.home[name] = _Home(Buffer(name, prod(shape), Scope.ARGUMENT, kind.dtype), (), _strides(shape), layout)

    def program(self) -> TileProgram:
        root = self.stages[self.expr.root.name]
        outputs = {name for name, _ in self.expr.outputs}
        if homeless := [n for n in self.stages if n not in self.at and n != root.name]:
            raise LoweringError(
                f"{self.expr.name}: stages {homeless} are read away from their own position", hint="give each one an At"
            )
        nest = self.bands(root, self.schedule.loops, {a: Index() for a, _ in root.axes}, dict(root.axes), "")
        own = tuple(var(a) for a, _ in root.axes)
        readers = [(body, nest.values) for body in (root.body, root.epilogue) if body is not None]
        readers += [(Load(name, own), nest.values) for name in outputs]
        self.place_stages(readers, nest.bands)
        body: Body = ()
        if all(extent for _, extent in root.axes):
            body = self.attach("", -1) + self.nest(root, nest, "")
        arguments = tuple(
            self.home[n].buffer for n in (*(n for n, _ in self.expr.outputs), *(n for n, _ in self.expr.inputs))
        )
        digits = tuple(
            TaskDigit(b.loop.axis, b.loop.step, b.extent, b.stride)
            for b in nest.bands
            if b.loop.kind is Kind.TASK and b.extent > 0
        )
        body = simplify_body(body, {}, self.schedule.split_padding)
        return TileProgram(
            self.schedule.name,
            arguments,
            len(self.expr.outputs),
            body,
            digits,
            self.schedule.threads,
            tuple(self.scratch),
            _count_syncs(body),
        )

    def fail(self, stage: Stage, what: str, hint: str = "") -> LoweringError:
        return LoweringError(f"{self.expr.name}.{stage.name}: {what}", hint=hint)

    def bands(
        self, stage: Stage, loops: tuple[Loop, ...], origin: Values, extent: dict[str, int], prefix: str
    ) -> _Nest:
        """Name the loops; the value of every axis in loop variables; guards where a step does not divide its block."""
        block = {**extent, **dict(stage.reduce)}
        values = {**origin, **{a: Index() for a, _ in stage.reduce}}
        bands: dict[int, _Band] = {}
        guards: dict[str, list[tuple[Index, int]]] = {a: [] for a in block}
        for depth, loop in sorted(enumerate(loops), key=lambda item: -item[1].step):  # digits of an axis, largest first
            if loop.axis not in block:
                raise self.fail(stage, f"no axis {loop.axis!r}; it has {', '.join(block)}")
            if loop.kind is Kind.TASK and any(
                b.loop.axis == loop.axis and b.loop.kind is not Kind.TASK for b in bands.values()
            ):
                raise self.fail(stage, f"a task digit of {loop.axis!r} is smaller than a digit inside the task")
            name, size = f"{prefix}{loop.axis}{depth}", block[loop.axis]
            count = -(-size // loop.step)
            if size % loop.step:
                guards[loop.axis].append((Index(), size))
            offset = var(name) * loop.step if count > 1 else Index()
            guards[loop.axis] = [(ix + offset, size) for ix, size in guards[loop.axis]]
            values[loop.axis] += offset
            self.env[name] = (0, max(count - 1, 0))
            bands[depth] = _Band(name, count, loop)
            whole = size == dict(stage.axes).get(loop.axis)  # of a part, what follows is no padding
            padded = loop.step > size and whole and self.fills(stage, loop.axis, loop.step)
            block[loop.axis] = loop.step if padded else min(loop.step, size)
        for axis, left in block.items():
            if left > 1:
                raise self.fail(stage, f"axis {axis!r} is walked in steps of {left}", hint=f"add Loop({axis!r})")
        nest = [bands[depth] for depth in range(len(loops))]
        stride = 1
        for band in reversed([b for b in nest if b.loop.kind is Kind.TASK]):  # innermost digit of the id runs fastest
            band.stride, stride = stride, stride * band.extent
        if any(b.loop.kind is Kind.THREAD for b in nest):
            raise self.fail(stage, "thread loops in a schedule of one thread")
        return _Nest(nest, values, {a: tuple(Range(ix, 0, n) for ix, n in g) for a, g in guards.items()})

    def place_stages(self, readers: list[tuple[Scalar, Values]], bands: list[_Band]) -> None:
        """Interval analysis, consumers before producers: which box of each kept stage is read, and where it lives."""
        outputs = {name for name, _ in self.expr.outputs}
        for stage in reversed([s for s in self.stages.values() if s.name in self.at]):
            at = self.at[stage.name]
            shared = at.scope is not Scope.REGISTER  # other threads fill it too: their variables range
            fixed = {b.var for b in self.around(stage, bands) if not (shared and b.loop.kind is Kind.THREAD)}
            reads: list[tuple[list[Index], set[int]]] = [
                ([simplify(substitute(ix, vals), self.env) for ix in ld.index], {d.dim for d in ld.dynamic})
                for body, vals in readers
                for ld, _ in loads(body)
                if ld.tensor == stage.name
            ]
            hulls = [self.hull(stage, p, reads, fixed) for p in range(len(stage.axes))]
            corner, extents = tuple(c for c, _ in hulls), tuple(e for _, e in hulls)
            if stage.name not in outputs:
                if at.instruction and isinstance(stage.body, Load) and at.instruction.copies:
                    self.home[stage.name] = self.encoded_home(stage, at.instruction, corner, extents)
                    continue
                order = at.order or tuple(range(len(extents)))
                natural = _strides(tuple(extents[p] for p in order), at.gap, at.pad)
                strides = tuple(natural[order.index(p)] for p in range(len(order)))
                size = natural[0] * extents[order[0]] if extents else 1
                buffer = Buffer(stage.name, size, at.scope, stage.dtype)
                self.home[stage.name] = _Home(buffer, corner, strides)
                if at.scope is Scope.LOCAL:
                    self.scratch.append(buffer)
            names = [a for a, _ in stage.axes]
            origin, extent = dict(zip(names, corner, strict=True)), dict(zip(names, extents, strict=True))
            nest = self.nests[stage.name] = self.bands(stage, at.loops, origin, extent, stage.name + "_")
            readers += [(b, nest.values) for b in (stage.body, stage.epilogue) if b is not None]

    def encoded_home(
        self, stage: Stage, instruction: Instruction, corner: tuple[Index, ...], extents: tuple[int, ...]
    ) -> _Home:
        """A place for the box of an input that an instruction copies; the order of its At names rows and columns.

        Strides hold from one block of the copy's layout to the next.
        """
        assert isinstance(stage.body, Load)
        row, column = self.at[stage.name].order
        if any(e > 1 for d, e in enumerate(extents) if d not in (row, column)):
            raise self.fail(stage, "a copy for a unit holds rows of one dimension", hint="place it inside other loops")
        used = (self.schedule.instruction, *(at.instruction for at in self.at.values()))
        size = max((i.block_of(instruction) for i in used if i and i.multiplies), default=1)  # the last one is whole
        shape = -(-extents[row] // size) * size, extents[column]
        (_, source_kind), ((_, kind),) = instruction.meaning.inputs[0], instruction.meaning.outputs
        assert kind.layout is not None
        strides = [0] * len(extents)
        for n, dim in enumerate((row, column)):
            block = max(d.div for d in kind.layout.digits if d.dim == n)
            strides[dim] = place(kind.layout, shape, [Index(block * (m == n)) for m in (0, 1)]).const // block
        size = prod(kind.layout.physical_shape(shape))
        buffer = Buffer(stage.name, size, Scope.LOCAL, stage.dtype, kind.layout.encoding)
        self.scratch.append(buffer)
        source = stage.body.tensor

        def at(dim: int, steps: int) -> Index:
            return self.flatten(source, [ix + steps * (d == dim) for d, ix in enumerate(corner)])

        start = at(row, 0)
        neighbours = source_kind.physical_shape[-1]
        steps = [simplify_index(at(*moved) - start, self.env).const for moved in ((row, 1), (column, neighbours))]
        exists = Range(corner[row] + var(instruction.axes[0][0]), 0, stage.axes[row][1])
        given = Operand(source, simplify_index(start, self.env), (*steps, 1), (exists,))
        copy = Apply(instruction, (Operand(buffer.name, Index()), given), shape)
        others = tuple(Range(corner[d], 0, stage.axes[d][1]) for d in range(len(extents)) if d not in (row, column))
        self.copies[stage.name] = (If(others, (copy,)),) if others else (copy,)
        return _Home(buffer, corner, tuple(strides))

    def around(self, stage: Stage, bands: list[_Band]) -> list[_Band]:
        """The loops inside of which a stage is computed; `bands` are the root's."""
        at = self.at[stage.name]
        if not at.inside:
            return bands[: at.depth + 1]
        if at.inside not in self.nests:
            raise self.fail(stage, f"it is computed inside {at.inside!r}, which does not come after it")
        return [*self.around(self.stages[at.inside], bands), *self.nests[at.inside].bands[: at.depth + 1]]

    def hull(
        self, stage: Stage, p: int, reads: list[tuple[list[Index], set[int]]], fixed: set[str]
    ) -> tuple[Index, int]:
        """Low corner and extent of what is read of dimension `p`, as long as the variables in `fixed` stand still."""
        full = stage.axes[p][1]
        bases, lows, highs = set(), [], []
        for index, dynamic in reads:
            ix = index[p]
            base = Index(0, tuple(t for t in ix.terms if variables(Index(0, (t,))) <= fixed))
            rest = ix - base
            if variables(rest) & fixed or p in dynamic:  # a box that moves with Div, or with data: take all of it
                return Index(), full
            low, high = bounds(rest, self.env)
            if base == Index() and low <= 0 and high >= full - 1:
                return Index(), full
            bases.add(base)
            lows.append(low)
            highs.append(high)
        if len(bases) != 1:
            return Index(), full
        extent = max(highs) - min(lows) + 1
        return (Index(), full) if extent >= full else (bases.pop() + min(lows), extent)

    def nest(self, stage: Stage, nest: _Nest, host: str) -> Body:
        """The loops of one stage; a reduction has accumulators for the output loops inside its first reduction loop."""
        bands, values, guards = nest.bands, nest.values, nest.guards
        reduce = dict(stage.reduce)
        first = next((n for n, b in enumerate(bands) if b.loop.axis in reduce), len(bands))
        if stage.name in self.at:  # a box may reach past the tensor's edge
            edge = {a: Range(values[a], 0, e) for a, e in stage.axes}
            guards = {a: (*g, edge[a]) if a in edge else g for a, g in guards.items()}
        place = self.flatten(stage.name, [values[a] for a, _ in stage.axes])
        outer = {b.var for b in bands[:first]}
        wide = self.relaxed(stage, guards, outputs=True)
        inside = tuple(r for a, _ in stage.axes for r in wide[a])

        def out(value: Scalar) -> Body:
            store = Store(stage.name, place, value)
            return (If(inside, (store,)),) if inside else (store,)

        if not reduce:
            return self.wrap(bands, out(self.resolve(stage.body, values)), 0, host)
        everywhere = tuple(r for r in inside if variables(r.index) <= outer)
        inside = tuple(r for r in inside if r not in everywhere)
        needed = tuple(r for rs in self.relaxed(stage, guards).values() for r in rs if not variables(r.index) <= outer)
        lanes = {b.loop.axis for b in bands if b.loop.kind is Kind.VECTOR}
        across = [
            b
            for b in bands[first:]
            if b.loop.axis in reduce
            and (b.loop.kind is Kind.VECTOR or (b.loop.kind is Kind.UNROLLED and b.loop.axis in lanes))
        ]
        private = [b for b in bands[first:] if b.loop.axis not in reduce or b in across]
        private = [b for b in private if b.extent > 1]
        kept = [b for b in private if b.loop.axis not in reduce]
        # Part of a vector takes the room of a whole one: compilers keep rows that overlap in memory, and take long.
        room = tuple(_room(b, bands) if b.loop.kind is Kind.VECTOR and len(private) > 1 else b.extent for b in private)
        strides = _strides(room)
        dtype = self.reduced_dtype(stage).accumulator
        acc = Buffer(f"{stage.name}_acc", prod(room), Scope.REGISTER, dtype)
        at = sum((var(b.var) * s for b, s in zip(private, strides, strict=True)), Index())
        combine, _ = REDUCERS[stage.combine]
        shared = {b.loop.axis for b in bands if b.loop.kind in (Kind.UNROLLED, Kind.VECTOR)}
        term, skipped = _without_padding(stage, shared)
        needed += tuple(Range(substitute(r.index, values), r.low, r.high) for r in skipped)
        update: Body = (Store(acc.name, at, Call(combine, (Load(acc.name, (at,)), self.resolve(term, values)))),)
        update = (If(needed, update),) if needed else update
        own = self.at[stage.name].instruction if stage.name in self.at else self.schedule.instruction
        if own:
            inner = {b.var: Index() for b in bands[first:]}
            product = self.applied(stage, own, values, inner, kept)
            sums: Scalar = Load(product.operands[0].buffer, (at,))
            value = sums if stage.epilogue is None else self.resolve(stage.epilogue, values, sums)
            begun = tuple(Range(substitute(r.index, inner), r.low, r.high) for r in (*everywhere, *inside))
            block: Body = (product, *self.wrap(kept, out(value)))
            return self.wrap(bands[:first], (If(begun, block),) if begun else block, 0, host)
        fold, result = self.fold(stage, across, kept, acc, at, combine)
        value = result if stage.epilogue is None else self.resolve(stage.epilogue, values, result)
        start = Const(identity(stage.combine, dtype), dtype)
        body: Body = (
            *self.wrap(private, (Store(acc.name, at, start),)),
            *self.wrap(bands[first:], update, first, host),
            *fold,
            *self.wrap(kept, out(value)),
        )
        body = (Alloc(acc, body),)
        return self.wrap(bands[:first], (If(everywhere, body),) if everywhere else body, 0, host)

    def applied(
        self, stage: Stage, instruction: Instruction, values: Values, inner: Values, kept: list[_Band]
    ) -> Apply:
        """The block of a product by an instruction, its sums in scratch; `inner`: the block's loops at 0."""
        a, b = (ld for ld, _ in loads(stage.body))
        lanes = {band.loop.axis for band in kept if band.loop.kind is Kind.VECTOR}
        if any(variables(ix) & lanes for ix in a.index):  # columns are vectors
            a, b = b, a
        a_at, b_at = (
            simplify_index(
                substitute(self.flatten(ld.tensor, [substitute(ix, values) for ix in ld.index]), inner), self.env
            )
            for ld in (a, b)
        )
        columns = prod(band.extent for band in kept if band.loop.axis in lanes)
        rows = prod(band.extent for band in kept if band.loop.axis not in lanes)
        ((_, depth),) = stage.reduce
        extents = rows, columns, depth
        sizes = {axis: n for (axis, _), n in zip(instruction.axes, extents, strict=True)}
        (_, sums), *_ = instruction.types(sizes)
        acc = Buffer(f"{stage.name}_acc", prod(sums.physical_shape), Scope.LOCAL, sums.dtype)
        self.scratch.append(acc)
        operands = Operand(acc.name, Index()), Operand(a.tensor, a_at), Operand(b.tensor, b_at)
        return Apply(instruction, operands, extents)

    def reduced_dtype(self, stage: Stage) -> DType:
        """The type of the value before the epilogue."""
        if stage.epilogue is None:
            return stage.dtype
        return next(self.dtypes[ld.tensor] for ld, _ in loads(stage.epilogue) if ld.tensor not in self.home)

    def fold(
        self, stage: Stage, across: list[_Band], kept: list[_Band], acc: Buffer, at: Index, combine: str
    ) -> tuple[Body, Scalar]:
        """Combine partial results that unrolled digits or lanes hold."""
        result: Scalar = Load(acc.name, (at,))
        body: list[Stmt] = []
        vectors = [b for b in across if b.loop.kind is Kind.VECTOR]
        unrolled = [b for b in across if b.loop.kind is Kind.UNROLLED]
        for band in (*unrolled, *vectors):  # whole vectors first; then lane 0 collects
            zero = substitute(at, {band.var: Index()})
            add: Body = (Store(acc.name, zero, Call(combine, (Load(acc.name, (zero,)), Load(acc.name, (at,))))),)
            if band in unrolled:
                add = self.wrap(vectors, add)
            body += self.wrap(kept, (For(band.var, 1, band.extent, Kind.UNROLLED, add),))
            result, at = Load(acc.name, (zero,)), zero
        return tuple(body), result

    def wrap(self, bands: list[_Band], body: Body, depth: int = 0, host: str | None = None) -> Body:
        """Put `body` into the loops, with what the host computes inside them; guards move out as far as possible."""
        for n in reversed(range(len(bands))):
            band = bands[n]
            if host is not None:
                body = self.attach(host, depth + n) + body
            if band.extent == 1:
                continue
            match body:
                case (If(where, then),) if free := tuple(r for r in where if band.var not in variables(r.index)):
                    tied = tuple(r for r in where if r not in free)
                    inner: Body = (If(tied, then),) if tied else then
                    body = (If(free, (For(band.var, 0, band.extent, band.loop.kind, inner, band.stride),)),)
                case _:
                    body = (For(band.var, 0, band.extent, band.loop.kind, body, band.stride),)
        return body

    def attach(self, host: str, depth: int) -> Body:
        """The stages computed inside a host's loop; a sync before the first, between writer and reader, at the end."""
        sync: Body = (Sync(),) if self.schedule.threads > 1 else ()
        body: Body = ()
        fresh: set[str] = set()
        here = (host, depth)
        for name in [n for n in self.copies if (self.at[n].inside, self.at[n].depth) == here]:
            body += self.copies[name]
        for name in [n for n in self.stages if n in self.nests and (self.at[n].inside, self.at[n].depth) == here]:
            if not fresh or fresh & {ld.tensor for ld, _ in loads(self.stages[name].body)}:
                body, fresh = body + sync, set()
            body, fresh = body + self.nest(self.stages[name], self.nests[name], name), fresh | {name}
        return body + sync if body else ()

    def relaxed(self, stage: Stage, guards: Guards, outputs: bool = False) -> Guards:
        """Guards at the tensor's edge moved out to the edge of the padded blocks of everything that is touched."""
        extents = dict(stage.axes)
        result: Guards = {}
        for axis, ranges in guards.items():
            if ranges and axis in extents:
                full, room = extents[axis], self.room(stage, axis, outputs)
                ranges = tuple(Range(r.index, 0, room) if r.high == full else r for r in ranges)
            result[axis] = tuple(
                r for r in ranges if bounds(r.index, self.env)[0] < 0 or bounds(r.index, self.env)[1] >= r.high
            )
        return result

    def fills(self, stage: Stage, axis: str, step: int) -> bool:
        """Whether an axis shorter than a block may be walked to the block's end, in the padding of every operand."""
        read = {ld.tensor for body in (stage.body, stage.epilogue) if body is not None for ld, _ in loads(body)}
        placed = read & self.stages.keys() - self.home.keys()
        return not placed and step <= self.room(stage, axis, outputs=True)

    def room(self, stage: Stage, axis: str, outputs: bool) -> int:
        """How far `axis` may run with every access inside its buffer: past the edge, if layouts pad it."""
        full = dict(stage.axes)[axis]
        touched = [ld for ld, _ in loads(stage.body)]
        bodies = [stage.body]
        if outputs:
            touched.append(Load(stage.name, tuple(var(a) for a, _ in stage.axes)))
            if stage.epilogue is not None:
                bodies.append(stage.epilogue)
                touched += [ld for ld, _ in loads(stage.epilogue) if ld.tensor in self.home]
        if any(axis in variables(ix) for body in bodies for ix in _iotas(body)):
            return full
        rooms = [self._room(ld, axis) for ld in touched if any(axis in variables(ix) for ix in ld.index) or ld.dynamic]
        return max(full, min(rooms, default=full))

    def _room(self, load: Load, axis: str) -> int:
        layout = self.home[load.tensor].layout
        dims = [d for d, ix in enumerate(load.index) if axis in variables(ix)]
        if layout is None or load.dynamic or any(load.index[d] != var(axis) for d in dims):
            return 0
        shape = self.expr.type_of(load.tensor).shape
        return min(
            -(-shape[g.dim] // g.mod) * g.mod if g.mod else shape[g.dim]
            for d in dims
            for g in layout.digits
            if g.dim == d and (g.mod or g.div == 1)
        )

    def flatten(self, tensor: str, index: list[Index]) -> Index:
        """The position in the buffer of an element."""
        home = self.home[tensor]
        if home.corner:
            index = [ix - low for ix, low in zip(index, home.corner, strict=True)]
        if home.layout is not None:
            digits = home.layout.digits
            index = [index[d.dim] // d.div % d.mod if d.mod else index[d.dim] // d.div for d in digits]
            index = [simplify_index(ix, self.env) for ix in index]
        return sum((ix * s for ix, s in zip(index, home.strides, strict=True)), Index())

    def resolve(self, body: Scalar, values: Mapping[str, Index], result: Scalar | None = None) -> Scalar:
        """Axes -> loop variables, tensors -> flat buffer positions, the fused reduction -> its accumulator."""

        def place(index: Index) -> Index:
            return simplify_index(substitute(index, values), self.env)

        def leaf(load: Load) -> Scalar:
            if load.tensor not in self.home:
                assert result is not None, load
                return result
            flat = self.flatten(load.tensor, [substitute(ix, values) for ix in load.index])
            dynamic = tuple(Dynamic(0, d.value, d.extent, self.stride(load.tensor, d.dim)) for d in load.dynamic)
            return Load(load.tensor, (flat,), dynamic)

        return rewrite(body, leaf, place)

    def stride(self, tensor: str, dim: int) -> int:
        """What one step of dimension `dim` adds to the flat position."""
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


def _copy(name: str, kind: TensorType) -> Stage:
    axes = tuple((f"{name}{p}", e) for p, e in enumerate(kind.shape))
    return Stage(f"{name}_s", axes, Load(name, tuple(var(a) for a, _ in axes)), dtype=kind.dtype)


def _without_padding(stage: Stage, block: set[str]) -> tuple[Scalar, tuple[Range, ...]]:
    """The term of a reduction, and conditions outside of which it is neutral: those that a register block shares."""

    def split(value: Scalar, neutral: object) -> tuple[Scalar, tuple[Range, ...]]:
        if not isinstance(value, Select) or not isinstance(value.other, Const) or value.other.value != neutral:
            return value, ()
        shared = tuple(r for r in value.where if not variables(r.index) & block)
        rest = tuple(r for r in value.where if r not in shared)
        return (Select(rest, value.then, value.other) if rest else value.then), shared

    match stage.body:
        case Call("mul", (a, b)) if stage.combine == "sum":
            (a, first), (b, second) = split(a, 0), split(b, 0)
            return Call("mul", (a, b)), (*first, *second)
    return split(stage.body, identity(stage.combine, stage.dtype))


def _iotas(body: Scalar) -> list[Index]:
    """Indices used as numbers or in conditions."""
    found: list[Index] = []

    def note(index: Index) -> Index:
        found.append(index)
        return index

    rewrite(body, lambda ld: ld, note)
    return found


def _count_syncs(body: Body) -> int:
    total = 0
    for s in body:
        match s:
            case Sync():
                total += 1
            case For():
                total += _count_syncs(s.body) * (s.stop - s.start if s.kind not in (Kind.THREAD, Kind.TASK) else 1)
            case Alloc():
                total += _count_syncs(s.body)
            case If(_, then):
                total += _count_syncs(then)
    return total


def _room(vector: _Band, bands: list[_Band]) -> int:
    """Elements of a whole vector: the next larger step of its axis, or a power of two."""
    steps = [b.loop.step for b in bands if b.loop.axis == vector.loop.axis and b.loop.step > 1]
    return max(1 << (vector.extent - 1).bit_length(), min(steps, default=1))


def _strides(shape: tuple[int, ...], gap: int = 0, pad: int = 0) -> tuple[int, ...]:
    """Row-major strides, with `pad` free elements after each row and `gap` after each plane of two dimensions."""
    strides, size = [], 1
    for n, extent in enumerate(reversed(shape)):
        strides.append(size)
        size = size * extent + (pad if n == 0 else gap if n == 1 else 0)
    return tuple(reversed(strides))
