"""Lower reductions: partial results per thread in registers, then combining lanes and threads.

Known as: tree reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import NamedTuple

from rammer.ir.expr import REDUCERS, Call, Const, Dynamic, Load, Range, Scalar, Select, Stage
from rammer.ir.index import Index, substitute, var, variables
from rammer.ir.instruction import Instruction
from rammer.ir.semantics.evaluate import identity
from rammer.ir.tensor import DType
from rammer.ir.tile import Alloc, Apply, Body, Buffer, For, If, Kind, Operand, Scope, Stmt, Store, Sync
from rammer.kernels.lower.bands import LoopLevel, Nest, looped, under
from rammer.kernels.lower.context import Context, strides

WAYS = 8  # partial results that a thread combines between two syncs: a sync costs more than some loads
SIDE_BY_SIDE = (Kind.UNROLLED, Kind.VECTOR)  # loops of a register block


class Target(NamedTuple):
    """Where the values of a stage are stored, and under which conditions."""

    name: str
    place: Index
    where: tuple[Range, ...]
    dynamic: tuple[Dynamic, ...] = ()  # of an update: offsets that data add to the place

    @staticmethod
    def of(ctx: Context, stage: Stage, nest: Nest) -> Target:
        """Return the target of a stage's own nest."""
        where = (*ctx.relaxed(stage, nest.guards, outputs=True), *nest.once)
        if ctx.threads > 1:  # whole vectors, or none; loops of a single thread are split where a guard changes
            where = tuple(_of_vectors(r, nest.bands) for r in where)
        if ctx.expr.into and stage is ctx.root:
            place = ctx.resolve(replace(ctx.expr.into, tensor=stage.name), nest.values)
            assert isinstance(place, Load)
            return Target(stage.name, place.index[0], where, place.dynamic)
        return Target(stage.name, ctx.flatten(stage.name, [nest.values[a] for a, _ in stage.axes]), where)

    def stored(self, value: Scalar, *more: Range) -> Body:
        """Return the store of a value, under these conditions and `more`."""
        return under((*self.where, *more), (Store(self.name, self.place, value),))


class Reduction:
    """The nest of a reduction, split at the first loop over terms.

    Outside of that loop, everything is done once per result. Inside, a thread holds sums (`acc`): one for each inner
    digit of the output (`kept`), and for each lane `across` which terms are spread. `sharing`: the digits of the
    thread's number that are terms.
    """

    def __init__(self, ctx: Context, stage: Stage, nest: Nest) -> None:
        self.ctx, self.stage, self.nest, self.values = ctx, stage, nest, nest.values
        bands, terms = nest.bands, {a for a, _ in stage.reduce}
        walking = [b for b in bands if not terms.isdisjoint(b.loop.axes)]
        self.threads = [b for b in bands if b.loop.kind is Kind.THREAD and b.extent > 1]
        self.sharing = [b for b in self.threads if b in walking]
        inside = (n for n, b in enumerate(bands) if b in walking and b.loop.kind is not Kind.THREAD)
        self.first = next(inside, len(bands))
        self.outer, self.inner = bands[: self.first], bands[self.first :]
        if late := [b.loop.axis for b in self.inner if b.loop.kind is Kind.THREAD]:
            raise ctx.fail(stage, f"thread digits of {', '.join(late)} inside the reduction")
        lanes = {b.loop.axis for b in bands if b.loop.kind is Kind.VECTOR}
        self.kept = [b for b in self.inner if b not in walking and b.extent > 1]
        self.across = [b for b in self.inner if b in walking and b.loop.axis in lanes and b.loop.kind in SIDE_BY_SIDE]
        self.private = [b for b in self.inner if b in self.kept or (b in self.across and b.extent > 1)]
        # A partial vector takes the space of a whole one: compilers keep overlapping rows in memory, and take long.
        alone = len(self.private) == 1
        room = tuple(b.extent if alone or b.loop.kind is not Kind.VECTOR else _room(b, bands) for b in self.private)
        self.acc = Buffer(f"{stage.name}_acc", prod(room), Scope.REGISTER, ctx.reduced_dtype(stage).accumulator)
        self.at = sum((var(b.var) * s for b, s in zip(self.private, strides(room), strict=True)), Index())
        self.fn, _ = REDUCERS[stage.combine]
        self.own = stage.name in ctx.at and ctx.at[stage.name].scope is Scope.REGISTER  # each thread stores its result
        self._conditions()

    def _conditions(self) -> None:
        """Split the conditions: those `everywhere`, of a term (`needed`), and of storing a result (`target`)."""
        ctx, stage, nest, outer = self.ctx, self.stage, self.nest, {b.var for b in self.outer}
        self.target = Target.of(ctx, stage, nest)
        self.everywhere: tuple[Range, ...] = ()
        needed = ctx.relaxed(stage, nest.guards)
        host = ctx.host(stage)
        staged = any(at.inside == host and at.depth >= self.first for at in ctx.at.values())
        if not (self.sharing or (staged and ctx.threads > 1)):  # else others wait inside for all threads
            self.everywhere = tuple(r for r in self.target.where if variables(r.index) <= outer)
            rest = tuple(r for r in self.target.where if r not in self.everywhere)
            self.target = self.target._replace(where=rest)
            needed = tuple(r for r in needed if not variables(r.index) <= outer)
        block = {a for b in nest.bands if b.loop.kind in SIDE_BY_SIDE for a in b.loop.axes}
        self.term, skipped = _without_padding(stage, block)
        if ctx.threads > 1:
            needed = tuple(_of_vectors(r, nest.bands) for r in needed)
        self.needed = (*needed, *(Range(substitute(r.index, self.values), r.low, r.high) for r in skipped))

    def result(self, reduced: Scalar) -> Scalar:
        """Return the value to store, from the finished sum."""
        epilogue = self.stage.epilogue
        return reduced if epilogue is None else self.ctx.resolve(epilogue, self.values, reduced)

    def started(self) -> Body:
        """Return stores of the neutral element to the accumulators."""
        start = Const(identity(self.stage.combine, self.acc.dtype), self.acc.dtype)
        return looped(self.private, (Store(self.acc.name, self.at, start),))

    def lowered(self, before: Callable[[int], Body]) -> Body:
        """Return the loops. `before(n)` is computed inside loop number n."""
        acc = self.acc
        added = Call(self.fn, (Load(acc.name, (self.at,)), self.ctx.resolve(self.term, self.values)))
        update = under(self.needed, (Store(acc.name, self.at, added),))
        fold, at = self._folded()
        first = (Range(sum((var(b.var) * b.stride for b in self.sharing), Index()), 0, 1),)
        leader = first if self.sharing and not self.own else ()

        def stored(total: Scalar) -> Body:
            return looped(self.kept, self.target.stored(self.result(total), *leader))

        body: Body = (
            *self.started(),
            *looped(self.inner, update, lambda n: before(self.first + n)),
            *fold,
            *(self._together(at, stored) if self.sharing else stored(Load(acc.name, (at,)))),
        )
        return looped(self.outer, under(self.everywhere, (Alloc(acc, body),)), before)

    def _folded(self) -> tuple[Body, Index]:
        """Combine partial results of unrolled digits and lanes. Return that body, and the place of the result."""
        at, acc = self.at, self.acc.name
        body: list[Stmt] = []
        vectors = [b for b in self.across if b.loop.kind is Kind.VECTOR]
        unrolled = [b for b in self.across if b.loop.kind is Kind.UNROLLED]
        for band in (*unrolled, *vectors):  # whole vectors first; then lane 0 collects
            zero = substitute(at, {band.var: Index()})
            add: Body = (Store(acc, zero, Call(self.fn, (Load(acc, (zero,)), Load(acc, (at,))))),)
            if band in unrolled:
                add = looped(vectors, add)
            body += looped(self.kept, (For(band.var, 1, band.extent, Kind.UNROLLED, add),))
            at = zero
        return tuple(body), at

    def _together(self, at: Index, stored: Callable[[Scalar], Body]) -> Body:
        """Combine and store the threads' sums: in a subgroup by an instruction, the rest in scratch."""
        if len(self.sharing) != 1 or self.sharing[0].extent & (self.sharing[0].extent - 1):
            raise self.ctx.fail(self.stage, "a reduction over threads needs one digit, a power of two")
        (band,), own = self.sharing, Load(self.acc.name, (at,))
        unit = self._unit(band)
        count = unit.extent("term") if unit else 1
        if unit is None:
            return self._tree(band, own, at, count, stored)
        held, whole = (replace(self.acc, name=f"{self.stage.name}_{n}") for n in ("held", "whole"))
        apply = Apply(unit, (Operand(whole.name, at), Operand(held.name, at)), tuple(n for _, n in unit.axes))
        total = Load(whole.name, (at,))
        rest = self._tree(band, total, at, count, stored) if count < band.extent else stored(total)
        body = (*looped(self.kept, (Store(held.name, at, own), apply)), *rest)
        return (Alloc(held, (Alloc(whole, body),)),)

    def _unit(self, band: LoopLevel) -> Instruction | None:
        """Return the instruction that combines the most threads of a sum, for whole subgroups of float32; or None."""
        fits = [
            unit
            for unit in self.ctx.folds
            if unit.meaning.root.combine == self.stage.combine and self.ctx.threads % unit.threads == 0
            if unit.extent("at") == band.stride and unit.extent("term") <= band.extent
        ]
        return max(fits, key=lambda unit: unit.extent("term"), default=None) if self.acc.dtype is DType.F32 else None

    def _tree(self, band: LoopLevel, own: Scalar, at: Index, count: int, stored: Callable[[Scalar], Body]) -> Body:
        """Combine partial results in scratch, up to WAYS at a time between two syncs.

        In the end the first threads of each row have the sum. `count` neighbours have the same `own` value.
        """
        threads = self.ctx.threads
        tree = Buffer(f"{self.stage.name}_tree", threads * self.acc.size, Scope.LOCAL, self.acc.dtype)
        self.ctx.scratch.append(tree)
        slot = at * threads + sum((var(b.var) * b.stride for b in self.threads), Index())
        body: list[Stmt] = [*looped(self.kept, (Store(tree.name, slot, own),)), Sync()]
        left = band.extent
        while left > count:
            ways = min(left // count, WAYS)
            left //= ways
            parts: list[Scalar] = [Load(tree.name, (slot + n * left * band.stride,)) for n in range(ways)]
            while len(parts) > 1:
                parts = [Call(self.fn, (x, y)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
            step = looped(self.kept, (Store(tree.name, slot, parts[0]),))
            body += [If((Range(var(band.var), 0, left),), step), Sync()]
        return (*body, *stored(Load(tree.name, (slot,))))


def _without_padding(stage: Stage, block: set[str]) -> tuple[Scalar, tuple[Range, ...]]:
    """Return the term of a reduction without the padding conditions that a register block shares, and these conditions.

    Outside of them the term is neutral.
    """

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


def _of_vectors(r: Range, bands: list[LoopLevel]) -> Range:
    """Return the condition without the lane, if it holds for all lanes of a vector or for none."""
    for b in bands:
        if b.loop.kind is Kind.VECTOR and r.index.coef(b.var) == 1:
            rest = r.index - var(b.var)
            steps = (rest.const, r.low, r.high, *(c for _, c in rest.terms))
            if all(n % b.extent == 0 for n in steps) and b.var not in variables(rest):
                return Range(rest, r.low, r.high)
    return r


def _room(vector: LoopLevel, bands: list[LoopLevel]) -> int:
    """Return the elements of a whole vector: the next larger step of its axis, or a power of two."""
    steps = [b.loop.step for b in bands if b.loop.axis == vector.loop.axis and b.loop.step > 1]
    return max(1 << (vector.extent - 1).bit_length(), min(steps, default=1))
