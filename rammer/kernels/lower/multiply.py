"""Lower reductions whose products an instruction makes: on blocks in memory, or in registers of a subgroup.

Known as: tensorize.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import NamedTuple

from rammer.errors import LoweringError
from rammer.ir.analysis.simplify import simplify_index
from rammer.ir.expr import Call, Load, Range, Scalar, loads
from rammer.ir.index import Index, substitute, var, variables
from rammer.ir.instruction import Instruction
from rammer.ir.tensor import Digit
from rammer.ir.tile import Alloc, Apply, Body, Buffer, Kind, Operand, Scope, Stmt, Store
from rammer.kernels.lower.bands import LoopLevel, looped, under
from rammer.kernels.lower.context import Values, strides
from rammer.kernels.lower.reduce import Reduction


def block(sums: Reduction, unit: Instruction, before: Callable[[int], Body]) -> Body:
    """Return the nest of a sum by an instruction of one thread, which leaves a block of sums in scratch.

    If terms come in k-blocks, each for all register blocks, the sums of a task wait there, and the next one adds to
    them.
    """
    terms = {a for a, _ in sums.stage.reduce}
    *pieces, last = [n for n, band in enumerate(sums.inner) if not terms.isdisjoint(band.loop.axes)]
    own = [band for band in sums.inner[last:] if band in sums.kept]
    start = {b.var: Index() for b in (*own, sums.inner[last])}
    product = _of_block(sums, unit, start, own, sums.inner[last].extent)
    begun = (*sums.everywhere, *sums.target.where)
    begun = tuple(Range(substitute(r.index, start), r.low, r.high) for r in begun)
    stored = looped(sums.kept, sums.target.stored(sums.result(Load(product.operands[0].buffer, (sums.at,)))))
    if not pieces:
        return looped(sums.outer, under(begun, (product, *stored)), before)
    product = replace(product, instruction=replace(unit, accumulates=True))
    added = looped(sums.inner[:last], under(begun, (product,)), lambda n: before(sums.first + n))
    return looped(sums.outer, (*sums.started(), *added, *stored), before)


def _of_block(sums: Reduction, unit: Instruction, start: Values, own: list[LoopLevel], depth: int) -> Apply:
    """Return the product of a block of `depth` terms: into a block of its own, or into its place in a task's sums."""
    ctx, stage = sums.ctx, sums.stage
    a, b = (ld for ld, _ in loads(stage.body))
    lanes = {band.loop.axis for band in sums.kept if band.loop.kind is Kind.VECTOR}
    if any(variables(ix) & lanes for ix in a.index):  # columns are vectors
        a, b = b, a
    values = {axis: substitute(ix, start) for axis, ix in sums.values.items()}
    flat = (ctx.flatten(ld.tensor, [substitute(ix, values) for ix in ld.index]) for ld in (a, b))
    operands = (Operand(ld.tensor, simplify_index(at, ctx.env)) for ld, at in zip((a, b), flat, strict=True))
    columns = prod(band.extent for band in own if band.loop.axis in lanes)
    rows = prod(band.extent for band in own if band.loop.axis not in lanes)
    ((_, whole),) = stage.reduce
    extents, waiting = (rows, columns, depth), depth < whole
    sizes = {axis: n for (axis, _), n in zip(unit.axes, extents, strict=True)}
    (_, kind), *_ = unit.types(sizes)
    size = prod(kind.physical_shape)
    if waiting and size != rows * columns:
        raise ctx.fail(stage, f"blocks of {rows} x {columns} sums cannot wait side by side for more terms")
    acc = Buffer(sums.acc.name, sums.acc.size if waiting else size, Scope.LOCAL, kind.dtype)
    ctx.scratch.append(acc)
    return Apply(unit, (Operand(acc.name, substitute(sums.at, start)), *operands), extents)


def of_subgroup(sums: Reduction, unit: Instruction, before: Callable[[int], Body]) -> Body:
    """Return the nest of a sum by a subgroup's instruction. Raises LoweringError unless all its threads reach it."""
    return _together(sums, _subgroup_nest(sums, unit, before), before)


def staged(sums: Reduction, unit: Instruction, before: Callable[[int], Body]) -> Body:
    """Return the nest of a sum by an instruction of subgroups that reads scratch: all terms of a chunk at once.

    Raises LoweringError unless all its threads reach it.
    """
    loops, ctx = _Loops.of(sums, unit), sums.ctx
    *_, terms = loops.inner
    still = {**loops.still, terms.var: Index()}
    values = {axis: simplify_index(substitute(ix, still), ctx.env) for axis, ix in sums.values.items()}
    places = [Operand(sums.acc.name, substitute(sums.at, {b.var: Index() for b in loops.inner}))]
    for arg in _rows_first(sums):
        ((load, _),) = loads(arg)
        at = ctx.flatten(load.tensor, [substitute(ix, values) for ix in load.index])
        places.append(Operand(load.tensor, simplify_index(at, ctx.env), ctx.home[load.tensor].strides))
    (_, rows), (_, columns), _ = unit.axes
    body = looped(list(loops.blocks), (Apply(unit, tuple(places), (rows, columns, terms.extent)),))
    first = sums.inner[: -2 - len(loops.inner)]
    return _together(sums, looped(first, body, lambda n: before(sums.first + n)), before)


def _together(sums: Reduction, products: Body, before: Callable[[int], Body]) -> Body:
    """Return the nest around products that threads make together."""
    if sums.needed or sums.sharing or sums.everywhere:
        raise sums.ctx.fail(sums.stage, "threads of a wave cannot multiply together under a condition")
    total = Load(sums.acc.name, (sums.at,))
    body = (*sums.started(), *products, *looped(sums.kept, sums.target.stored(sums.result(total))))
    return looped(sums.outer, (Alloc(sums.acc, body),), before)


def _rows_first(sums: Reduction) -> list[Scalar]:
    """Return the factors. The operand that is copied first has the rows."""
    assert isinstance(sums.term, Call)
    copied = next(iter(sums.ctx.at))
    return sorted(sums.term.args, key=lambda arg: all(ld.tensor != copied for ld, _ in loads(arg)))


class _Loops(NamedTuple):
    """The innermost loops of a subgroup's tile: row blocks, column blocks, a thread's sums, digits of the terms.

    `threads.tensor` makes them. Digits of the thread's number are the same in all operands.
    """

    blocks: tuple[LoopLevel, LoopLevel]
    inner: list[LoopLevel]
    threads: list[LoopLevel]
    still: Values  # a thread's place in a block at 0

    @staticmethod
    def of(sums: Reduction, unit: Instruction) -> _Loops:
        (out, _), (rows, _), _ = unit.tensors
        across, own = unit.digits(out)
        held = () if unit.staged else unit.digits(rows)
        deep = sorted((d.div for digits in held for d in digits if d.dim == 1), reverse=True) or [1]
        steps = [*(extent for _, extent in unit.axes[:2]), *(d.div for d in own), *deep]
        bands = sums.inner[-len(steps) :]
        threads = [b for b in sums.nest.bands if b.loop.kind is Kind.THREAD][-len(across) :]
        for needed, found in (steps, bands), ([d.div for d in across], threads):
            if [b.loop.step for b in found] != needed:
                raise _mismatch(sums, unit, f"steps of {needed}", found)
        down, along, *inner = bands
        return _Loops((down, along), inner, threads, {b.var: Index() for b in (*threads, *inner[: len(own)])})


def _mismatch(sums: Reduction, unit: Instruction, needs: str, loops: list[LoopLevel]) -> LoweringError:
    what = f"{unit.name} needs {needs}, but the loops are {' '.join(str(b.loop) for b in loops)}"
    return sums.ctx.fail(sums.stage, what, hint="the innermost loops are the digits of the instruction's layouts")


def _subgroup_nest(sums: Reduction, unit: Instruction, before: Callable[[int], Body]) -> Body:
    """Load both operands into registers of the threads, then make all products."""
    loops = _Loops.of(sums, unit)
    held: list[Buffer] = []
    copies: list[Stmt] = []
    places = [Operand(sums.acc.name, substitute(sums.at, {b.var: Index() for b in loops.inner}))]
    for dim, arg in enumerate(_rows_first(sums)):
        name, kind = unit.meaning.inputs[dim]
        block, size = loops.blocks[dim], unit.registers(name)
        registers = Buffer(f"{sums.acc.name}_{name}", block.extent * size, Scope.REGISTER, kind.dtype)
        start = var(block.var) * size if block.extent > 1 else Index()
        copies += _into_registers(sums, unit, loops, dim, arg, registers, start)
        held.append(registers)
        places.append(Operand(registers.name, start))
    apply = Apply(unit, tuple(places), tuple(extent for _, extent in unit.axes))
    body: Body = (*copies, *looped(list(loops.blocks), (apply,)))
    for registers in reversed(held):
        body = (Alloc(registers, body),)
    return looped(sums.inner[: -2 - len(loops.inner)], body, lambda n: before(sums.first + n))


def _into_registers(
    sums: Reduction, unit: Instruction, loops: _Loops, dim: int, arg: Scalar, registers: Buffer, start: Index
) -> Body:
    """Copy the threads' part of operand number `dim`. Its dimension `dim` is the rows' or the columns'."""
    ctx, numbers, block = sums.ctx, sums.nest.numbers, loops.blocks[dim]
    name, kind = unit.meaning.inputs[dim]
    spread, kept = unit.digits(name)

    def band(digit: Digit) -> LoopLevel:
        axis = block.loop.axis if digit.dim == dim else loops.inner[-1].loop.axis
        found = {(b.loop.axis, b.loop.step): b for b in loops.inner}
        if (axis, digit.div) not in found:
            raise _mismatch(sums, unit, f"steps of {digit.div} along {axis}", loops.inner)
        return found[axis, digit.div]

    mine = [band(digit) for digit in kept]
    point = sum((var(b.var) * d.div for d, b in zip(kept, mine, strict=True) if d.dim == dim), Index())
    neighbours: Values = {}
    for digit, thread in zip(spread, loops.threads, strict=True):
        if digit.dim == dim:
            point += var(thread.var) * digit.div
        else:
            neighbours[band(digit).var] = var(thread.var)
    axis = block.loop.axis  # the tile's position does not depend on the other operand's axes
    groups = {**numbers.groups, **{b.loop.axis: Index() for b in loops.blocks}}
    groups[axis] = substitute(numbers.groups[axis], loops.still) + point
    values = replace(numbers, groups=groups).values(ctx.env)
    value = ctx.resolve(arg, {a: substitute(ix, neighbours) for a, ix in values.items()})
    steps = strides(kind.physical_shape[len(spread) :])
    slot = sum((var(b.var) * s for b, s in zip(mine, steps, strict=True)), start)
    return looped([block, *(b for b in loops.inner if b in mine)], (Store(registers.name, slot, value),))
