"""Compute the grids of places at which an expression is evaluated, and what its indices select there.

They do not depend on data, so they are computed once for equal operators: for a recurrent cell they take longer than
its sums.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property
from math import gcd, prod
from typing import Any, TypeAlias, TypeVar

import numpy as np

from rammer.ir.expr import Call, Scalar, Stage, loads
from rammer.ir.index import Div, var, variables
from rammer.ir.tensor import Shape

Result = TypeVar("Result")

WHOLE_PARTS = 4  # a reduction read in up to so many parts, such as the gates of a cell, is computed as a whole
MOST_KEPT = 1 << 14  # elements of an index array that is cached


class Grid(dict[str, Any]):
    """An index array per axis, and cached results of indices on them."""

    def __init__(self, axes: Mapping[str, Any]) -> None:
        super().__init__(axes)
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Result], size: Callable[[Result], int] = lambda _: 0) -> Result:
        """Return what `make` returns, cached if it is small."""
        if key in self._made:
            found: Result = self._made[key]
            return found
        made = make()
        if size(made) <= MOST_KEPT:
            self._made[key] = made
        return made


Grids: TypeAlias = dict[Hashable, Grid]  # of one expression: by stage, and by the sizes of boxes


class Places(list[Any]):
    """An index array per dimension of a tensor of the shape `within`, and how the elements there lie."""

    def __init__(self, index: Iterable[Any], within: Shape) -> None:
        super().__init__(index)
        self.within = within

    @cached_property
    def shape(self) -> Shape:
        """Shape of the elements at the places."""
        return np.broadcast_shapes(*map(np.shape, self))

    @cached_property
    def points(self) -> int:
        return prod(self.shape)

    @cached_property
    def size(self) -> int:
        """Number of elements of the index arrays."""
        return sum(map(np.size, self))

    @cached_property
    def inside(self) -> tuple[Any, ...]:
        """Places clipped to the tensor."""
        return tuple(np.minimum(np.maximum(p, 0), max(n - 1, 0)) for p, n in zip(self, self.within, strict=True))

    @cached_property
    def steps(self) -> tuple[list[int], list[list[int]]] | None:
        """First place, and step per grid dimension, of every index; None unless all are inside and affine."""
        return _progressions(self, self.within)

    def grid(self, stage: Stage) -> Grid:
        """Return the places, clipped to the stage that they index, as a grid of its axes."""
        if self._grid is None:
            self._grid = Grid(dict(zip((a for a, _ in stage.axes), self.inside, strict=True)))
        return self._grid

    _grid: Grid | None = None


def whole_of(stage: Stage) -> tuple[tuple[int, int], ...]:
    """Return the box of all of a stage's points."""
    return tuple((0, extent) for extent in stage.shape)


def in_parts(stage: Stage, places: Places) -> bool:
    """Return whether to compute a stage at just those places. Reductions are often read in parts, and repeatedly."""
    part, whole = places.points, prod(stage.shape)
    return (part * WHOLE_PARTS < whole if stage.reduce else part <= whole) or not stage.axes


def in_blocks(stage: Stage, grid: Grid) -> Grid:
    """Split an axis that a factor reads in blocks into two dimensions of the grid, so that each block is read once."""
    assert isinstance(stage.body, Call)
    blocks = [(a, n) for factor in stage.body.args for a, n in blocks_of(factor).items() if n > 1 and a in grid]
    if not blocks:
        return grid
    axis, block = blocks[0]
    rank = max(np.ndim(g) for g in grid.values())
    wide = {a: np.reshape(g, (1,) * (rank - np.ndim(g)) + np.shape(g)) for a, g in grid.items()}
    whole = wide[axis].ravel()
    dim = int(np.argmax(wide[axis].shape))
    alone = whole.size == wide[axis].shape[dim] and all(g.shape[dim] == 1 for a, g in wide.items() if a != axis)
    if not alone or whole[0] % block or whole.size % block or np.any(np.diff(whole) != 1):
        return grid
    shape = (*wide[axis].shape[:dim], -1, block, *wide[axis].shape[dim + 1 :])
    return Grid({a: np.expand_dims(g, dim) if a != axis else g.reshape(shape) for a, g in wide.items()})


def terms_of(stage: Stage, grid: Grid) -> tuple[Grid, Shape, int]:
    """Return the grid of a reduction's terms at a grid of places, its shape, and the rank of the places."""
    return grid.once(stage.name, lambda: _terms_of(stage, grid))


def _terms_of(stage: Stage, grid: Grid) -> tuple[Grid, Shape, int]:
    rank = max((np.ndim(g) for g in grid.values()), default=0)
    count = len(stage.reduce)
    inner: dict[str, Any] = {
        a: np.reshape(g, (*(1,) * (rank - np.ndim(g)), *np.shape(g), *(1,) * count)) for a, g in grid.items()
    }
    for p, (axis, extent) in enumerate(stage.reduce):
        inner[axis] = np.arange(extent).reshape((1,) * rank + (1,) * p + (extent,) + (1,) * (count - p - 1))
    outer = np.broadcast_shapes(*(np.shape(g) for g in inner.values()))[:rank]
    return Grid(inner), (*outer, *(e for _, e in stage.reduce)), rank


def blocks_of(factor: Scalar) -> dict[str, int]:
    """Return the axes on which loads depend, and how many successive values of each read the same.

    Example: the output channels of one group of a convolution read the same input channels.
    """
    found: dict[str, int] = {}
    for atom in (atom for load, _ in loads(factor) for index in load.index for atom, _ in index.terms):
        names = {atom} if isinstance(atom, str) else variables(atom.arg)
        grouped = isinstance(atom, Div) and len(names) == 1 and atom.arg == var(*names)
        for name in names:
            found[name] = gcd(found.get(name, 0), atom.by) if isinstance(atom, Div) and grouped else 1
    return found


def is_contraction(stage: Stage) -> bool:
    """Return whether a stage sums products, which NumPy's `matmul` computes."""
    return (
        bool(stage.reduce)
        and stage.combine == "sum"
        and stage.dtype.is_float
        and isinstance(stage.body, Call)
        and stage.body.fn == "mul"
    )


def _progressions(places: list[Any], shape: Shape) -> tuple[list[int], list[list[int]]] | None:
    """Return the first place, and step per grid dimension, of every index; None unless all are inside and affine."""
    rank = max((np.ndim(p) for p in places), default=0)
    first, steps = [], []
    for place, extent in zip(places, shape, strict=True):
        place = np.reshape(place, (1,) * (rank - np.ndim(place)) + np.shape(place))
        if place.size == 0 or place.min() < 0 or place.max() >= extent:
            return None
        start = int(place.flat[0])
        step = [int(place.take(1, d).flat[0]) - start if place.shape[d] > 1 else 0 for d in range(rank)]
        affine = np.array(start)
        for d in range(rank):
            affine = affine + (np.arange(place.shape[d]) * step[d]).reshape((-1,) + (1,) * (rank - d - 1))
        if not np.array_equal(affine.reshape(place.shape), place):
            return None
        first.append(start)
        steps.append(step)
    return first, steps
