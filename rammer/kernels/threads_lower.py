"""Lowering for rTasks of many threads: digits over several axes at once, guards that leave a Sync to all threads.

A loop whose axis is written "*a*b*c" walks the number that is left of these axes, row-major: thread digits need not
know how large each axis is. Numbers past the end wrap around, so that only stores (and sums) are guarded, never a Sync.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from rammer.errors import LoweringError
from rammer.ir.expr import REDUCERS, Call, Const, Load, Range, Scalar, Stage, TensorExpr, loads
from rammer.ir.index import Index, bounds, simplify, substitute, var, variables
from rammer.ir.instruction import Instruction
from rammer.ir.tensor import Digit
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
    TileProgram,
    meets,
)
from rammer.kernels.lower import Guards, Values, _Band, _Lowering, _Nest, _strides, _without_padding
from rammer.kernels.normal import identity
from rammer.kernels.schedule import Loop, Schedule

WAYS = 8  # partial results that a thread combines between two syncs: a sync costs more than some loads
ANYWHERE = 1 << 62  # a box that holds whatever its readers touch


def group(axes: tuple[str, ...] | list[str]) -> str:
    """The name of the number that counts the points of several axes, the last one fastest."""
    return "*" + "*".join(axes)


def lower_threads(expr: TensorExpr, schedule: Schedule) -> TileProgram:
    """The tile program of `expr` with `schedule.threads` threads. Raises LoweringError if they do not fit."""
    program = _ThreadLowering(expr, schedule).program()
    if _stray_sync(program.body, False):
        raise LoweringError(f"{expr.name}: a Sync would stand under a condition", hint="compute the stage further out")
    return program


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What makes the values of a nest's axes: their own digits, numbers over groups of them, and the groups' blocks."""

    own: Values
    lines: Values
    blocks: dict[str, int]


class _ThreadLowering(_Lowering):
    def __init__(self, expr: TensorExpr, schedule: Schedule) -> None:
        super().__init__(expr, schedule)
        self.tails: dict[str, list[Range]] = {}  # per stage: what keeps wrapped numbers from being stored twice
        self.whole: set[tuple[str, int]] = set()  # (stage, dimension) whose box holds whatever is read
        self.numbers = _Numbers({}, {}, {})  # of the root

    def bands(
        self, stage: Stage, loops: tuple[Loop, ...], origin: Values, extent: dict[str, int], prefix: str
    ) -> _Nest:
        """As the base; blocks are never cut to an extent, so the number of threads is what the schedule says."""
        own = {**extent, **dict(stage.reduce)}
        left = dict(own)
        number: Values = {**origin, **{a: Index() for a, _ in stage.reduce}}
        guards: dict[str, list[tuple[Index, int]]] = {a: [] for a in own}
        tails: dict[str, Range] = {}
        bands: dict[int, _Band] = {}
        order = sorted(enumerate(loops), key=lambda item: (item[1].axis.startswith("*"), -item[1].step))
        totals: dict[str, int] = {}
        for depth, loop in order:
            axis = loop.axis
            if axis.startswith("*") and axis not in left:
                totals[axis] = left[axis] = prod(left[a] for a in members(axis))
                number[axis] = Index()
            if axis not in left:
                raise self.fail(stage, f"no axis {axis!r}; it has {', '.join(own)}")
            size = left[axis]
            count = -(-size // loop.step)
            name = f"{prefix}{'lin' if axis not in own else axis}{depth}"
            offset = var(name) * loop.step if count > 1 else Index()
            if axis in own:
                if size % loop.step:
                    guards[axis].append((Index(), size))
                guards[axis] = [(ix + offset, size) for ix, size in guards[axis]]
            number[axis] += offset
            self.env[name] = (0, max(count - 1, 0))
            bands[depth] = _Band(name, count, loop)
            left[axis] = loop.step
        reduce = dict(stage.reduce)
        lines = {axis: number.pop(axis) for axis in totals}
        values = self.counted(number, lines, left)
        for axis, total in totals.items():
            line, names = lines[axis], members(axis)
            over = bounds(line, self.env)[1] >= total
            for a in names:
                digit = values[a] - number[a]
                guards[a] = [(ix + digit, size) for ix, size in guards[a]]
            if over and names and names[0] in reduce:
                guards[names[0]].append((line, total))
            elif over:
                tails[axis] = Range(line, 0, total)
        if stage.name not in self.at:
            self.numbers = _Numbers(number, lines, dict(left))
        for axis in totals:
            left |= dict.fromkeys((axis, *members(axis)), 1)
        for axis, rest in left.items():
            if rest > 1:
                raise self.fail(stage, f"axis {axis!r} is walked in steps of {rest}", hint=f"add Loop({axis!r})")
        nest = [bands[depth] for depth in range(len(loops))]
        for kind in (Kind.TASK, Kind.THREAD):  # innermost digit of the id runs fastest
            stride = 1
            for band in reversed([b for b in nest if b.loop.kind is kind]):
                band.stride, stride = stride, stride * band.extent
        if stride != self.schedule.threads:
            raise self.fail(stage, f"thread loops make {stride} threads, not {self.schedule.threads}")
        self.tails[stage.name] = list(tails.values())
        ranges = {a: tuple(Range(ix, 0, n) for ix, n in g) for a, g in guards.items()}
        return _Nest(nest, {a: values[a] for a in own}, ranges)

    def counted(self, number: Values, lines: Values, left: dict[str, int]) -> Values:
        """The axes, with their part of the numbers that count through several of them; `left` are their blocks."""
        values = dict(number)
        for axis, line in lines.items():
            names, inner = members(axis), 1
            over = bounds(line, self.env)[1] >= prod(left[a] for a in names)
            for n, a in reversed(list(enumerate(names))):
                digit = line // inner
                values[a] += simplify(digit % left[a] if n or over else digit, self.env)
                inner *= left[a]
        return values

    def hull(
        self, stage: Stage, p: int, reads: list[tuple[list[Index], set[int]]], fixed: set[str]
    ) -> tuple[Index, int]:
        """As the base, but the box of a tile that hangs over the edge is a whole box."""
        full = stage.axes[p][1]
        bases, lows, highs = set(), [], []
        for index, dynamic in reads:
            base = Index(0, tuple(t for t in index[p].terms if variables(Index(0, (t,))) <= fixed))
            rest = index[p] - base
            if variables(rest) & fixed or p in dynamic:  # a box that moves with Div, or with data: take all of it
                return Index(), full
            low, high = bounds(rest, self.env)
            bases.add(base)
            lows.append(low)
            highs.append(high)
        if len(bases) != 1:
            return Index(), full
        self.whole.add((stage.name, p))
        return bases.pop() + min(lows), max(highs) - min(lows) + 1

    def _room(self, load: Load, axis: str) -> int:
        if not self.home[load.tensor].corner:
            return super()._room(load, axis)
        dims = [d for d, ix in enumerate(load.index) if axis in variables(ix)]
        return ANYWHERE if all((load.tensor, d) in self.whole for d in dims) and not load.dynamic else 0

    def nest(self, stage: Stage, nest: _Nest, host: str) -> Body:
        """The loops of one stage. Thread digits of a reduction leave partial results for a tree in scratch."""
        bands, values, guards = nest.bands, nest.values, nest.guards
        reduce = {a for a, _ in stage.reduce}
        across = [b for b in bands if b.loop.kind is Kind.THREAD and b.extent > 1 and _walks(b.loop, reduce)]
        first = next(
            (n for n, b in enumerate(bands) if b.loop.kind is not Kind.THREAD and _walks(b.loop, reduce)), len(bands)
        )
        if late := [b.loop.axis for b in bands[first:] if b.loop.kind is Kind.THREAD]:
            raise self.fail(stage, f"thread digits of {', '.join(late)} inside the reduction")
        if stage.name in self.at:  # a box may reach past the tensor's edge
            edge = {a: Range(values[a], 0, e) for a, e in stage.axes}
            guards = {a: (*g, edge[a]) if a in edge else g for a, g in guards.items()}
        place = self.flatten(stage.name, [values[a] for a, _ in stage.axes])
        outer = {b.var for b in bands[:first]}
        inside = tuple(_of_vectors(r, bands) for r in self._outside(stage, guards))

        def out(value: Scalar, *more: Range) -> Body:
            store = Store(stage.name, place, value)
            return (If((*inside, *more), (store,)),) if (*inside, *more) else (store,)

        if not reduce:
            return self.wrap(bands, out(self.resolve(stage.body, values)), 0, host)
        staged = any(self.at[n].inside == host and self.at[n].depth >= first for n in self.nests)
        everywhere: tuple[Range, ...] = ()
        needed = tuple(r for rs in self.relaxed(stage, guards).values() for r in rs)
        if not across and not staged:  # nobody waits inside: threads without a point may skip everything
            everywhere = tuple(r for r in inside if variables(r.index) <= outer)
            inside = tuple(r for r in inside if r not in everywhere)
            needed = tuple(r for r in needed if not variables(r.index) <= outer)
        kept = [b for b in bands[first:] if not _walks(b.loop, reduce) and b.extent > 1]
        strides = _strides(tuple(b.extent for b in kept))
        dtype = self.reduced_dtype(stage).accumulator
        acc = Buffer(f"{stage.name}_acc", prod(b.extent for b in kept), Scope.REGISTER, dtype)
        at = sum((var(b.var) * s for b, s in zip(kept, strides, strict=True)), Index())
        combine, _ = REDUCERS[stage.combine]
        block = {b.loop.axis for b in bands if b.loop.kind is Kind.UNROLLED}
        term, skipped = _without_padding(stage, {a for name in block for a in (members(name) or (name,))})
        needed += tuple(Range(substitute(r.index, values), r.low, r.high) for r in skipped)
        start = Const(identity(stage.combine, dtype), dtype)
        result: Scalar = Load(acc.name, (at,))
        if (unit := self.schedule.instruction) and not host:
            if needed or across or everywhere:
                raise self.fail(stage, "threads of a wave cannot multiply together under a condition")
            value = result if stage.epilogue is None else self.resolve(stage.epilogue, values, result)
            steps = self.multiply(unit, bands, first, term, acc, at, host)
            body = (*self.wrap(kept, (Store(acc.name, at, start),)), *steps, *self.wrap(kept, out(value)))
            return self.wrap(bands[:first], (Alloc(acc, body),), 0, host)
        update: Body = (Store(acc.name, at, Call(combine, (Load(acc.name, (at,)), self.resolve(term, values)))),)
        update = (If(needed, update),) if needed else update
        fold: Body = ()
        lane = sum((var(b.var) * b.stride for b in across), Index())
        if across:
            fold, result = self._tree(stage, bands, across, kept, acc, at, combine)
        value = result if stage.epilogue is None else self.resolve(stage.epilogue, values, result)
        leader = (Range(lane, 0, 1),) if across else ()
        body = (
            *self.wrap(kept, (Store(acc.name, at, start),)),
            *self.wrap(bands[first:], update, first, host),
            *fold,
            *self.wrap(kept, out(value, *leader)),
        )
        body = (Alloc(acc, body),)
        return self.wrap(bands[:first], (If(everywhere, body),) if everywhere else body, 0, host)

    def multiply(
        self, unit: Instruction, bands: list[_Band], first: int, term: Scalar, acc: Buffer, at: Index, host: str
    ) -> Body:
        """The loops of a sum by a wave's instruction: both operands into registers of the threads, then all products.

        The innermost loops are those of `threads_tensor`: blocks of rows, blocks of columns, the sums of a thread, and
        digits of the terms. Digits of the thread's number are the same ones in all operands. The operand that is
        copied first has the rows.
        """
        assert isinstance(term, Call)
        (sums, _), (rows, _), (columns, _) = unit.tensors
        across, own = unit.digits(sums)
        deep = [d for digits in unit.digits(rows) for d in digits if d.dim == 1]
        down, along, *inner = bands[-2 - len(own) - len(deep) :]
        threads = [b for b in bands if b.loop.kind is Kind.THREAD][-len(across) :]
        still = {b.var: Index() for b in (*threads, *inner[: len(own)])}
        lines = self.numbers.lines
        copied = self.schedule.stages[0].stage
        args = sorted(term.args, key=lambda a: not any(ld.tensor in (copied, f"{copied}_s") for ld, _ in loads(a)))
        held: list[Buffer] = []
        copies: list[Stmt] = []
        places = [Operand(acc.name, substitute(at, {b.var: Index() for b in inner}))]
        for name, dim, block, arg in zip((rows, columns), (0, 1), (down, along), args, strict=True):

            def band(digit: Digit, dim: int = dim, block: _Band = block) -> _Band:
                axis = block.loop.axis if digit.dim == dim else inner[-1].loop.axis
                return next(b for b in inner if (b.loop.axis, b.loop.step) == (axis, digit.div))

            spread, kept = unit.digits(name)
            mine = [band(digit) for digit in kept]
            point = sum((var(b.var) * d.div for d, b in zip(kept, mine, strict=True) if d.dim == dim), Index())
            neighbours: Values = {}
            for digit, thread in zip(spread, threads, strict=True):
                if digit.dim == dim:
                    point += var(thread.var) * digit.div
                else:
                    neighbours[band(digit).var] = var(thread.var)
            axis = block.loop.axis  # a tile lies where the other operand stands still
            moved = {**lines, down.loop.axis: Index(), along.loop.axis: Index()}
            moved[axis] = substitute(lines[axis], still) + point
            values = self.counted(self.numbers.own, moved, self.numbers.blocks)
            side = self.resolve(arg, {a: substitute(ix, neighbours) for a, ix in values.items()})
            size, kind = unit.registers(name), dict(unit.tensors)[name]
            registers = Buffer(f"{acc.name}_{name}", block.extent * size, Scope.REGISTER, kind.dtype)
            start = var(block.var) * size if block.extent > 1 else Index()
            strides = _strides(kind.physical_shape[len(spread) :])
            slot = sum((var(b.var) * s for b, s in zip(mine, strides, strict=True)), start)
            loops = [block, *(b for b in inner if b in mine)]
            copies += self.wrap(loops, (Store(registers.name, slot, side),))
            held.append(registers)
            places.append(Operand(registers.name, start))
        apply = Apply(unit, tuple(places), tuple(extent for _, extent in unit.axes))
        body: Body = (*copies, *self.wrap([down, along], (apply,)))
        for registers in reversed(held):
            body = (Alloc(registers, body),)
        return self.wrap(bands[first : -2 - len(inner)], body, first, host)

    def _outside(self, stage: Stage, guards: Guards) -> tuple[Range, ...]:
        """What must hold where a result is stored."""
        wide = self.relaxed(stage, guards, outputs=True)
        return (*(r for a, _ in stage.axes for r in wide[a]), *self.tails[stage.name])

    def _tree(
        self, stage: Stage, bands: list[_Band], across: list[_Band], kept: list[_Band], acc: Buffer, at: Index, fn: str
    ) -> tuple[Body, Scalar]:
        """Partial results in scratch, fewer with every sync, until one is left: with the first thread of each row."""
        if len(across) != 1 or across[0].extent & (across[0].extent - 1):
            raise self.fail(stage, "a reduction over threads needs one digit, a power of two")
        band, threads = across[0], self.schedule.threads
        tree = Buffer(f"{stage.name}_tree", threads * acc.size, Scope.LOCAL, acc.dtype)
        self.scratch.append(tree)
        mine = sum((var(b.var) * b.stride for b in bands if b.loop.kind is Kind.THREAD and b.extent > 1), Index())
        slot = at * threads + mine
        body: list[Stmt] = [*self.wrap(kept, (Store(tree.name, slot, Load(acc.name, (at,))),)), Sync()]
        left = band.extent
        while left > 1:
            ways = min(left, WAYS)
            left //= ways
            parts: list[Scalar] = [Load(tree.name, (slot + n * left * band.stride,)) for n in range(ways)]
            while len(parts) > 1:
                parts = [Call(fn, (x, y)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
            step = self.wrap(kept, (Store(tree.name, slot, parts[0]),))
            body += [If((Range(var(band.var), 0, left),), step), Sync()]
        return tuple(body), Load(tree.name, (slot,))


def members(axis: str) -> tuple[str, ...]:
    """The axes of a group's name; none for a plain axis, and for the group of no axes."""
    return tuple(a for a in axis.split("*") if a) if axis.startswith("*") else ()


def _of_vectors(r: Range, bands: list[_Band]) -> Range:
    """The condition without the lane, if it holds for all lanes of a vector or for none."""
    for b in bands:
        if b.loop.kind is Kind.VECTOR and r.index.coef(b.var) == 1:
            rest = r.index - var(b.var)
            steps = (rest.const, r.low, r.high, *(c for _, c in rest.terms))
            if all(n % b.extent == 0 for n in steps) and b.var not in variables(rest):
                return Range(rest, r.low, r.high)
    return r


def _walks(loop: Loop, reduce: set[str]) -> bool:
    """Whether the loop is a digit of a reduction axis."""
    return bool({*(members(loop.axis) or (loop.axis,))} & reduce)


def _stray_sync(body: Body, conditional: bool) -> bool:
    """Whether some threads could miss a Sync, or a product that their wave makes together."""
    return any(
        (meets(s) and conditional)
        or (isinstance(s, For | Alloc) and _stray_sync(s.body, conditional))
        or (isinstance(s, If) and _stray_sync(s.then, True))
        for s in body
    )
