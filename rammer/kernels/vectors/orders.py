"""Order the loops around a register block of a product: panels of weights, rows, k-blocks. Known as: cache blocking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

from rammer.ir.expr import Load
from rammer.ir.index import var, variables
from rammer.kernels.problem import WORD, KernelProblem
from rammer.kernels.product import Product, axes_of, terms
from rammer.kernels.schedule import Loop

MIN_BLOCKS = 4  # register blocks of rows: with fewer, panels are not blocked
LEAST_TERMS = 64  # terms of a k-block: sums are loaded and stored for each
PAGE_BYTES = 4096  # of memory; also what the sets of the nearest cache span: rows with this stride share one set
STRIDED_ROWS = 32  # uses of a strided panel that pay for copying it

Loops = tuple[Loop, ...]


@dataclass(frozen=True)
class Orders:
    """The loop orders of a task.

    A task has `steps` points of some axes. A register block has `rows` rows and a `panel` of lanes. `panels` are the
    loops over the panels of a task, `within` those over the rows of one panel.
    """

    problem: KernelProblem
    p: Product
    panel: int
    rows: int
    reduce: Loops
    steps: Mapping[str, int]
    panels: Loops
    within: Loops

    def best(self) -> Loops:
        """Choose by rules: all rows per panel of weights, or all panels per block of rows.

        Rows come first if x is large, so that it is read once. They also come first if the output is row-major: a panel
        at a time would write pieces with a stride of a whole row, which fall on a small number of cache sets and which
        hardware does not prefetch. Weights then come from the private cache in memory order, about as fast as from the
        nearest cache. Counted work does not distinguish these orders; measured times differ by up to a tenth.
        """
        problem, p, plain = self.problem, self.p, (*self.panels, *self.within)
        if self._points < MIN_BLOCKS * self.rows:
            return plain
        packed, spec = problem.packable(p.w, p.lane), problem.spec
        passing = self._panel_bytes + self._row_bytes  # what is copied, and the rows that use the copy
        if self.copies_panels and spec.holds(spec.l2, self._panel_bytes, passing):
            return plain
        kind = dict(problem.expr.outputs).get(p.stage.name)
        row_major = packed and kind is not None and kind.layout is None and p.stage.axes[-1][0] == p.lane
        cold = not spec.holds(spec.l2, self._share(p.x), self._panel_bytes)
        strips = self._strips() if packed and (cold or row_major) else ()
        at_once = strips[: len(self.within)] == self.within  # all weights stay while rows pass
        chunk = () if strips and (row_major or at_once) else self._block_k_in_l1(cold)
        if row_major and len(chunk) > 1:
            chunk = ()  # measured: slower than weights from the second cache
        if strips and not chunk:
            return (*self.panels[:-1], *strips)
        if cold and not packed and not chunk and len(self.panels) == 1:
            return (*self._block_k_in_l2(), *plain)
        if cold and chunk and len(self.panels) == 1:
            return (*chunk[:-1], *self.panels, *chunk[-1:], *self._left(chunk))
        return (*self.panels, *chunk, *self._left(chunk))

    @cached_property
    def copies_panels(self) -> bool:
        """Check whether copying a panel of weights made at run time is faster than reading its strided rows.

        True if STRIDED_ROWS points reuse the panel, and its rows are on pages of their own, or crowd the sets of the
        nearest cache that their stride reaches. Lanes are adjacent already.
        """
        w, kinds = self.p.w, dict(self.problem.expr.inputs)
        if self.problem.packable(w, self.p.lane) or w.tensor not in kinds or w.index[-1] != var(self.p.lane):
            return False
        kind = kinds[w.tensor]
        plain = all(ix == var(a) for ix in w.index for a in variables(ix)) and kind.layout is None
        stride = kind.shape[-1] * kind.dtype.itemsize
        held = self.problem.spec.l1.nbytes // gcd(stride, PAGE_BYTES)  # rows of a panel, of one line each
        crowded = stride >= PAGE_BYTES or terms(self.p) > held
        return plain and kind.shape[-1] > self.panel and crowded and self._points >= STRIDED_ROWS

    @cached_property
    def _panel_bytes(self) -> int:
        """Bytes of the weights of a panel."""
        return terms(self.p) * WORD * self.panel

    @property
    def _row_bytes(self) -> int:
        """Bytes of x that a register block reads, and of its sums."""
        return WORD * self.rows * (terms(self.p) + self.panel)

    @cached_property
    def _sharing(self) -> dict[str, int]:
        """Points of a task that share weights, by axis."""
        weights = axes_of(self.p.w)
        axes = [(a, e) for a, e in self.p.stage.axes if a != self.p.lane and a not in weights]
        return {a: min(self.steps.get(a, e), e) for a, e in axes}

    @property
    def _points(self) -> int:
        return prod(self._sharing.values())

    def _share(self, load: Load) -> float:
        """Return the bytes of a tensor that a task reads."""
        extents = dict((*self.problem.root.axes, *self.problem.root.reduce))
        moving = [a for a in self.steps if any(a in variables(ix) for ix in load.index)]
        nbytes = self.problem.expr.type_of(load.tensor).filled_bytes
        return nbytes * prod(min(self.steps[a] / extents[a], 1.0) for a in moving)

    def _left(self, chunk: Loops) -> Loops:
        return tuple(loop for loop in self.within if loop not in chunk)

    def _strips(self) -> Loops:
        """Return loops over rows, then over the panels of a strip of lanes whose weights stay in the private cache.

        One strip holds all lanes if they fit. Empty if strips would be single panels.
        """
        lane, spec = self.p.lane, self.problem.spec
        panels = -(-min(self.steps.get(lane, dict(self.p.stage.axes)[lane]), self.p.group) // self.panel)
        most = max(spec.room(spec.l2, self._row_bytes) // self._panel_bytes, 1)
        size = max(n for n in range(1, panels + 1) if panels % n == 0 and n <= most)
        if size == 1:
            return ()
        strip = (Loop(lane, size * self.panel),) if size < panels else ()
        return (*strip, *self.within, Loop(lane, self.panel))

    def _block_k_in_l1(self, cold: bool) -> Loops:
        """Return loops that block the reduction so that the weights of a panel stay in the nearest cache for all rows.

        The sums of all rows then wait in a buffer. If x exceeds the private cache (`cold`), rows are cut so that their
        x stays there for all panels. Empty if the panel fits as it is.
        """
        if (piece := self._k_block) is None:
            return ()
        spec, rows = self.problem.spec, dict(self._sharing)
        most = spec.room(spec.l2, self._panel_bytes) / (WORD * terms(self.p)) if cold else self._points
        loops: list[Loop] = []
        for axis, extent in self._sharing.items():
            if (points := prod(rows.values())) <= most or extent == 1:
                continue
            grain = self.rows if axis == self.p.row else 1
            size = max(int(extent * most / points) // grain * grain, grain)
            if size < extent:
                loops.append(Loop(axis, size))
                rows[axis] = size
        return () if prod(rows.values()) < MIN_BLOCKS * self.rows else (*loops, piece)

    @cached_property
    def _k_block(self) -> Loop | None:
        """A loop over k-blocks of the reduction: a panel's weights for one stay in the nearest cache for all rows.

        None if the panel stays as it is, or if no such block divides the reduction.
        """
        if self._stays(terms(self.p)) or not self.reduce:
            return None
        first = self.reduce[0]
        extent = dict(self.p.stage.reduce)[first.axis]
        each, units = terms(self.p) // extent * first.step, extent // first.step
        fitting = [u for u in range(1, units) if units % u == 0 and self._stays(u * each)]
        if extent % first.step or not fitting or fitting[-1] * each < LEAST_TERMS:
            return None
        return Loop(first.axis, fitting[-1] * first.step)

    def _stays(self, count: int) -> bool:
        """Check whether `count` terms of a panel stay in the nearest cache while a register block's x and sums pass."""
        spec = self.problem.spec
        return spec.holds(spec.l1, count * WORD * self.panel, WORD * self.rows * (count + self.panel))

    def _block_k_in_l2(self) -> Loops:
        """Return loops for a reduction so deep that not even MIN_BLOCKS blocks of rows stay in the private cache.

        K-blocks are outermost, so that x is read once. Meanwhile the sums of as many rows wait as stay in the private
        cache while a panel's k-block passes. Empty if there is one k-block, or if too small a number of rows would fit.
        """
        piece, p, spec = self._k_block, self.p, self.problem.spec
        if piece is None or p.row is None or spec.holds(spec.l2, MIN_BLOCKS * self._row_bytes, self._panel_bytes):
            return ()
        extents = dict(p.stage.axes)
        height, width = (min(self.steps.get(a, extents[a]), extents[a]) for a in (p.row, p.lane))
        deep = terms(p) // dict(p.stage.reduce)[piece.axis] * piece.step
        held = int(spec.room(spec.l2, WORD * deep * self.panel) // (WORD * width)) // self.rows * self.rows
        if height <= held:
            return (piece,)
        return (Loop(p.row, held), piece) if held >= MIN_BLOCKS * self.rows else ()
