"""Lower a tensor expression and a schedule to a tile program: tiling, register blocks, staging, reductions.

One nest builder serves tasks of one thread and of many. Guards do not enclose a Sync, which all threads must reach:
numbers past the end wrap around, and only stores (and sums) are guarded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from rammer.errors import LoweringError
from rammer.ir.analysis.simplify import simplify_body
from rammer.ir.expr import Stage, TensorExpr, loads
from rammer.ir.index import Index
from rammer.ir.instruction import Instruction
from rammer.ir.tile import (
    Alloc,
    Body,
    If,
    Kind,
    Scope,
    Store,
    Sync,
    TaskDigit,
    TileProgram,
    block_syncs,
    children,
    meets,
)
from rammer.kernels.lower import multiply
from rammer.kernels.lower.bands import Nest, cut, looped, under
from rammer.kernels.lower.context import Context
from rammer.kernels.lower.reduce import Reduction, Target
from rammer.kernels.lower.stages import PlacedStages
from rammer.kernels.schedule import Schedule


def finished(program: TileProgram) -> TileProgram:
    """Return a draft's tile program with its conditions decided. Raises LoweringError if threads would miss a Sync."""
    body = simplify_body(program.body, {})
    if _misses(body, False):
        raise LoweringError(f"{program.name}: a Sync would stand under a condition", hint="compute it further out")
    return replace(program, body=body, num_block_syncs=block_syncs(body))


def draft(
    expr: TensorExpr, schedule: Schedule, stages: Iterable[Stage], folds: Iterable[Instruction] = ()
) -> TileProgram:
    """Return the tile program of `expr` under `schedule` with all conditions left open.

    It takes a tenth of the time, and serves to count work. `stages`: the fused stages of `expr`, one nest each.
    `folds`: instructions that combine the results of a subgroup's threads. Raises LoweringError if they do not fit.
    """
    ctx = Context(expr, schedule, stages, folds)
    root = ctx.root
    nest = cut(ctx, root, schedule.loops, {a: Index() for a, _ in root.axes}, dict(root.axes))
    nests = _Nests(ctx, PlacedStages(ctx, nest))
    body: Body = ()
    if all(extent for _, extent in root.axes):
        body = nests.lowered(root, nest)
    for buffer in ctx.registers:
        body = (Alloc(buffer, body),)
    digits = tuple(
        TaskDigit(b.loop.axis, b.loop.step, b.extent, b.stride)
        for b in nest.bands
        if b.loop.kind is Kind.TASK and b.extent > 0
    )
    arguments = tuple(ctx.home[n].buffer for n, _ in (*expr.outputs, *expr.inputs))
    return TileProgram(schedule.name, arguments, len(expr.outputs), body, digits, schedule.threads, tuple(ctx.scratch))


class _Nests:
    """The bodies of stages, each with those of the stages computed inside of it."""

    def __init__(self, ctx: Context, placed: PlacedStages) -> None:
        self.ctx, self.placed = ctx, placed

    def attached(self, host: str, depth: int) -> Body:
        """Return the stages computed inside a host's loop. Syncs come before the first, before readers, and at the end.

        Stages that each thread has to itself come last and need no sync. Outputs among them are stored with the host.
        """
        ctx = self.ctx
        sync: Body = (Sync(),) if ctx.threads > 1 else ()
        body: Body = ()
        fresh: set[str] = set()
        copies = [n for n in self.placed.copies if self._stands(n, host, depth)]
        for name in copies:
            body += self.placed.copies[name] if name not in ctx.copied else ()
        for name in self._here(host, depth, own=False):
            stage = ctx.stages[name]
            if not fresh or fresh & {ld.tensor for ld, _ in loads(stage.body)}:
                body, fresh = body + sync, set()
            body, fresh = body + self.lowered(stage, self.placed.nests[name]), fresh | {name}
            for copy in [c for c in copies if ctx.copied.get(c) == name]:
                body += self.placed.copies[copy]
        own: Body = ()
        for name in self._here(host, depth, own=True):
            if name not in ctx.outputs:
                own += self.lowered(ctx.stages[name], self.placed.nests[name])
        return (body + sync if body else ()) + own

    def _here(self, host: str, depth: int, *, own: bool) -> list[str]:
        """Return the stages with nests of their own inside a host's loop, in order. `own`: each thread has its box."""
        nests = [n for n in self.ctx.stages if n in self.placed.nests and self._stands(n, host, depth)]
        return [n for n in nests if (self.ctx.at[n].scope is Scope.REGISTER) == own]

    def _stands(self, name: str, host: str, depth: int) -> bool:
        at = self.ctx.at[name]
        return (at.inside, at.depth) == (host, depth)

    def lowered(self, stage: Stage, nest: Nest) -> Body:
        """Return the loops of one stage, after the stages that are computed once for all of them."""
        return self.attached(self.ctx.host(stage), -1) + self._loops(stage, nest)

    def _loops(self, stage: Stage, nest: Nest) -> Body:
        ctx, host = self.ctx, self.ctx.host(stage)
        before = partial(self.attached, host)
        if not stage.reduce:
            target = Target.of(ctx, stage, nest)
            body: Body = ()
            for name in self._here(host, len(nest.bands) - 1, own=True) if nest.bands else ():
                if name in ctx.outputs:  # of the same point, by the same thread
                    body += self.lowered(ctx.stages[name], self.placed.nests[name])
            value = ctx.resolve(stage.body, nest.values)
            combine = ctx.expr.combine if stage is ctx.root else ""
            body += (Store(target.name, target.place, value, target.dynamic, combine=combine),)
            return looped(nest.bands, under(target.where, body), before)
        reduction = Reduction(ctx, stage, nest)
        unit = ctx.at[host].instruction if host else ctx.schedule.instruction
        if unit is None:
            return reduction.lowered(before)
        how = multiply.block if unit.threads == 1 else multiply.staged if unit.staged else multiply.of_subgroup
        return how(reduction, unit, before)


def _misses(body: Body, conditional: bool) -> bool:
    """Check whether some threads could miss a Sync, or a product that their subgroup makes together."""
    return any((meets(s) and conditional) or _misses(children(s), conditional or isinstance(s, If)) for s in body)
