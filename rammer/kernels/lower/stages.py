"""Place the stages besides the root, and decide which box of each is held: in scratch, in registers, or encoded.

Known as: bounds inference, compute_at.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import NamedTuple, TypeAlias

from rammer.ir.analysis.simplify import simplify_index
from rammer.ir.expr import Load, Range, Scalar, Stage, loads
from rammer.ir.index import Index, bounds, simplify, substitute, var, variables
from rammer.ir.instruction import Instruction, place
from rammer.ir.tile import Apply, Body, Buffer, Kind, Operand, Scope
from rammer.kernels.lower.bands import LoopLevel, Nest, cut, under
from rammer.kernels.lower.context import Context, Home, Values, strides

Reads: TypeAlias = "list[tuple[list[Index], set[int]]]"  # indices, and the dimensions that data move


class Hull(NamedTuple):
    """The low corner and extent of what is read along a dimension. `whole`: it holds everything that is read."""

    corner: Index
    extent: int
    whole: bool = False


class PlacedStages:
    """All stages but the root with their places. The root's nest is given.

    Instructions make `copies`; all others have a nest.
    """

    def __init__(self, ctx: Context, root: Nest) -> None:
        self.ctx, self.bands, self.root = ctx, root.bands, root
        self.stored = _stored(ctx)
        self.nests: dict[str, Nest] = {}
        self.copies: dict[str, Body] = {}
        stage = ctx.root
        self.readers: list[tuple[Scalar, Values]] = [(b, root.values) for b in _bodies(stage)]
        self.readers += [(Load(name, tuple(var(a) for a, _ in stage.axes)), root.values) for name in ctx.outputs]
        for stage in reversed([s for s in ctx.stages.values() if s.name in ctx.at]):  # readers first
            self._place(stage)

    def _place(self, stage: Stage) -> None:
        ctx, at = self.ctx, self.ctx.at[stage.name]
        shared = at.scope is not Scope.REGISTER  # other threads fill it, too: their variables are not fixed
        fixed = {b.var for b in self._around(stage) if not (shared and b.loop.kind is Kind.THREAD)}
        reads: Reads = [
            ([simplify(substitute(ix, vals), ctx.env) for ix in ld.index], {d.dim for d in ld.dynamic})
            for body, vals in self.readers
            for ld, _ in loads(body)
            if ld.tensor == stage.name
        ]
        box = [self._hull(stage, p, reads, fixed) for p in range(len(stage.axes))]
        if stage.name not in ctx.outputs:
            if at.instruction and isinstance(stage.body, Load) and at.instruction.copies:
                ctx.home[stage.name] = self._encoded(stage, stage.body.tensor, at.instruction, box)
                return
            ctx.home[stage.name] = self._kept(stage, box)
        origin = {a: hull.corner for (a, _), hull in zip(stage.axes, box, strict=True)}
        extent = {a: hull.extent for (a, _), hull in zip(stage.axes, box, strict=True)}
        strides = [] if shared else [b.stride for b in self._around(stage) if b.loop.kind is Kind.THREAD]
        threads = min(strides, default=ctx.threads)
        nest = cut(ctx, stage, at.loops, origin, extent, stage.name + "_", threads)
        self.nests[stage.name] = nest = self._inside(stage, nest) if stage.name in self.stored else nest
        self.readers += [(b, nest.values) for b in _bodies(stage)]

    def _inside(self, stage: Stage, nest: Nest) -> Nest:
        """Return the nest with the conditions that end the root's pieces.

        Beyond them lies another piece, or another rTask.
        """
        around, guards = {b.var for b in self._around(stage)}, dict(nest.guards)
        names = {a: a for a, _ in self.ctx.root.axes}
        if stage.name in self.ctx.outputs:  # it has the root's shape, but maybe other names
            names = {a: b for (a, _), (b, _) in zip(stage.axes, self.ctx.root.axes, strict=True)}
        for axis in [a for a, _ in stage.axes if a in names]:
            for r in self.root.guards[names[axis]]:
                outer = self.root.values[names[axis]] - r.index  # the digits outside of the pieces
                if outer != Index() and variables(outer) <= around:
                    guards[axis] = (*guards[axis], replace(r, index=nest.values[axis] - outer))
        return replace(nest, guards=guards)

    def _around(self, stage: Stage) -> list[LoopLevel]:
        """Return the loops inside of which a stage is computed."""
        at = self.ctx.at[stage.name]
        if not at.inside:
            return self.bands[: at.depth + 1]
        if at.inside not in self.nests:
            raise self.ctx.fail(stage, f"it is computed inside {at.inside!r}, which does not come after it")
        return [*self._around(self.ctx.stages[at.inside]), *self.nests[at.inside].bands[: at.depth + 1]]

    def _hull(self, stage: Stage, p: int, reads: Reads, fixed: set[str]) -> Hull:
        """Return what is read of dimension `p`, by interval analysis, with the variables in `fixed` held constant.

        With several threads, a tile that overhangs the edge has a whole box, so that readers need no conditions.
        """
        full = stage.axes[p][1]
        bases, lows, highs = set(), [], []
        for index, dynamic in reads:
            base = Index(0, tuple(t for t in index[p].terms if variables(Index(0, (t,))) <= fixed))
            rest = index[p] - base
            if variables(rest) & fixed or p in dynamic:  # the box moves with Div, or with data: take everything
                return Hull(Index(), full)
            low, high = bounds(rest, self.ctx.env)
            bases.add(base)
            lows.append(low)
            highs.append(high)
        if len(bases) != 1:
            return Hull(Index(), full)
        corner, extent = bases.pop() + min(lows), max(highs) - min(lows) + 1
        if self.ctx.threads > 1:
            return Hull(corner, extent, whole=True)
        return Hull(corner, extent) if extent < full else Hull(Index(), full)

    def _kept(self, stage: Stage, box: list[Hull]) -> Home:
        """Make a buffer for a box, and return the stage's home there."""
        at = self.ctx.at[stage.name]
        whole = frozenset(p for p, hull in enumerate(box) if hull.whole)
        corner = tuple(hull.corner for hull in box)
        if at.layout is not None:
            shape = at.layout.physical_shape(tuple(hull.extent for hull in box))
            buffer = Buffer(stage.name, prod(shape), at.scope, stage.dtype, at.layout.encoding)
            self.ctx.scratch.append(buffer)
            return Home(buffer, corner, strides(shape), at.layout, whole)
        order = at.order or tuple(range(len(box)))
        natural = strides(tuple(box[p].extent for p in order), at.gap, at.pad)
        size = natural[0] * box[order[0]].extent if box else 1
        buffer = Buffer(stage.name, size, at.scope, stage.dtype)
        (self.ctx.registers if at.scope is Scope.REGISTER else self.ctx.scratch).append(buffer)
        return Home(buffer, corner, tuple(natural[order.index(p)] for p in range(len(order))), whole=whole)

    def _encoded(self, stage: Stage, source: str, instruction: Instruction, box: list[Hull]) -> Home:
        """Make a place for the box that an instruction copies. The order of its At names rows and columns.

        Strides go from one block of the copy's layout to the next.
        """
        ctx = self.ctx
        row, column = ctx.at[stage.name].order
        if any(hull.extent > 1 for d, hull in enumerate(box) if d not in (row, column)):
            raise ctx.fail(stage, "a copy for a unit holds rows of one dimension", hint="place it inside other loops")
        used = (ctx.schedule.instruction, *(at.instruction for at in ctx.at.values()))
        size = max((i.block_of(instruction) for i in used if i and i.multiplies), default=1)  # the last one is whole
        corner, shape = tuple(hull.corner for hull in box), (-(-box[row].extent // size) * size, box[column].extent)
        (_, source_kind), ((_, kind),) = instruction.meaning.inputs[0], instruction.meaning.outputs
        assert kind.layout is not None
        outer_steps = [0] * len(box)
        for n, dim in enumerate((row, column)):
            block = max(d.div for d in kind.layout.digits if d.dim == n)
            outer_steps[dim] = place(kind.layout, shape, [Index(block * (m == n)) for m in (0, 1)]).const // block
        size = prod(kind.layout.physical_shape(shape))
        buffer = Buffer(stage.name, size, Scope.LOCAL, stage.dtype, kind.layout.encoding)
        ctx.scratch.append(buffer)

        def at(dim: int, steps: int) -> Index:
            return ctx.flatten(source, [ix + steps * (d == dim) for d, ix in enumerate(corner)])

        start, steps = at(row, 0), tuple[int, ...]()
        if not instruction.encodes:
            moved = (row, 1), (column, source_kind.physical_shape[-1])
            steps = (*(simplify_index(at(*one) - start, ctx.env).const for one in moved), 1)
        elif shape[0] != instruction.extent("row"):
            raise ctx.fail(stage, f"{instruction.name} copies {instruction.extent('row')} lines, and not {shape[0]}")
        exists = Range(corner[row] + var(instruction.axes[0][0]), 0, stage.axes[row][1])
        given = Operand(source, simplify_index(start, ctx.env), steps, (exists,))
        copy = Apply(instruction, (Operand(buffer.name, Index()), given), shape)
        others = tuple(Range(corner[d], 0, stage.axes[d][1]) for d in range(len(box)) if d not in (row, column))
        self.copies[stage.name] = under(others, (copy,))
        return Home(buffer, corner, tuple(outer_steps))


def _stored(ctx: Context) -> set[str]:
    """Return the stages that are stored as outputs, and their readers."""
    found = set(ctx.outputs)
    for stage in ctx.stages.values():
        if any(ld.tensor in found for body in _bodies(stage) for ld, _ in loads(body)):
            found.add(stage.name)
    return found


def _bodies(stage: Stage) -> list[Scalar]:
    """Return the body of a stage and its epilogue, if it has one."""
    return [body for body in (stage.body, stage.epilogue) if body is not None]
