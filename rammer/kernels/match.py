"""Match what an operation computes: a product, a chain of two, a cell, a window. Known as: pattern matching.

`Problem.matched` holds the matches, so that all generators share one answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from rammer.ir.expr import Load, Stage, loads
from rammer.ir.index import var, variables
from rammer.kernels.problem import KernelProblem
from rammer.kernels.product import Product, distance, product


class Chain(NamedTuple):
    """A product, and the root: another product whose rows are computed from the first one's rows, as in attention."""

    first: Product
    last: Product


class ChannelWindow(NamedTuple):
    """A sum over neighbouring channels that lie in blocks: operand, its channel dimension, the root's channel axis."""

    tensor: str
    dim: int
    channel: str


class Matched:
    """The matches of an operation. Each one is computed on first use."""

    def __init__(self, problem: KernelProblem) -> None:
        self._problem = problem

    @cached_property
    def products(self) -> dict[str, Product]:
        """Stages that are sums of products, by name."""
        found = ((stage.name, product(self._problem, stage)) for stage in self._problem.stages.values())
        return {name: p for name, p in found if p is not None}

    @property
    def root(self) -> Product | None:
        """The root as a sum of products; None if it is something else."""
        return self.products.get(self._problem.root.name)

    @cached_property
    def shown(self) -> Stage:
        """The first output that a point-wise root reads at its own position; the root if there is none."""
        problem, root = self._problem, self._problem.root
        own = Load("", tuple(var(a) for a, _ in root.axes))
        read = [ld for ld, _ in loads(root.body)]
        for stage in problem.placed if not root.reduce else ():
            here = all(ld == replace(own, tensor=stage.name) for ld in read if ld.tensor == stage.name)
            if here and stage.axes == root.axes and stage.name in dict(problem.expr.outputs):
                return stage
        return root

    @property
    def output(self) -> Product | None:
        """The product, or distance, that is output: the root, or one that a point-wise root reads in place; or None."""
        alone = self.shown is self._problem.root or len(self._problem.placed) == 1
        return self.products.get(self.shown.name) or distance(self._problem, self.shown) if alone else None

    @cached_property
    def chain(self) -> Chain | None:
        """Two products, the second one of rows that are computed from the first one's; or None."""
        problem, last = self._problem, self.root
        if last is None or last.row is None or last.x.tensor not in problem.stages:
            return None
        found = [p for p in self.products.values() if p is not last]
        if len(found) != 1 or any(found[0].row not in dict(s.axes) for s in problem.stages.values()):
            return None
        (first,) = found  # heads that share a matrix are rows of it, too
        return Chain(first, last if last.row == first.row else replace(last, row=first.row, row_group=1))

    @cached_property
    def cell(self) -> Mapping[str, Product]:
        """Products that a point-wise root reads, as in a recurrent cell; empty if there are none."""
        return {} if self._problem.root.reduce else self.products

    @cached_property
    def window(self) -> ChannelWindow | None:
        """A sum over neighbouring channels of one operand, or None."""
        problem, root = self._problem, self._problem.root
        read = [load for load, _ in loads(root.body)]
        if not root.reduce or problem.placed or len({load.tensor for load in read}) != 1 or len(root.axes) < 2:
            return None
        load = read[0]
        kind = dict(problem.expr.inputs).get(load.tensor)
        summed = {a for a, _ in root.reduce}
        along = [(d, variables(ix)) for d, ix in enumerate(load.index) if summed & variables(ix)]
        if kind is None or kind.layout is None or len(along) != 1 or any(ld.dynamic for ld in read):
            return None
        dim, names = along[0]
        channels = names - summed
        blocked = [d.div for d in kind.layout.digits if d.dim == dim] == [problem.lanes, 1]
        if len(channels) != 1 or not blocked or kind.layout.digits[-1].dim != dim:
            return None
        return ChannelWindow(load.tensor, dim, *channels)
