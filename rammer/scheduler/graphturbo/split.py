"""Split sub-graphs of a network into instances. Paper: GraphTurbo §3.1, Algorithm 1, Eq. (1).

The listing leaves three points open. An axis that some tensor lacks is not split here, as every instance would compute
that tensor whole. The peak counts all live tensors, inputs until their last use, and no weights. Candidates that divide
nothing are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, isqrt
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.scheduler.graphturbo.network import Axes, Network

Bytes: TypeAlias = NDArray[np.int64]


class Outside(NamedTuple):
    """A sub-graph's read from outside: per axis of its result the source's axis that follows it; the last reader."""

    axes: Axes
    last: int


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """A sub-graph: layers in topological order; only the last one's result is read outside.

    `cuts`: by axis of the result, the greatest common divisor of all tensors' extents along that axis; 0 if some tensor
    lacks it. `parts`: the most parts that all of them can be split into there.
    """

    layers: tuple[int, ...]
    cuts: tuple[int, ...]
    parts: tuple[int, ...]
    outside: Mapping[int, Outside]

    @property
    def result(self) -> int:
        return self.layers[-1]


class Split(NamedTuple):
    """A group split along an axis of its result into `factor` instances, with the number of layers that are split.

    `outer` of them are along the outermost axis, and each of these is split along `axis`: a grid.
    """

    num_layers: int
    factor: int
    axis: int
    outer: int = 1

    @property
    def parts(self) -> dict[int, int]:
        """Number of parts by axis that is split."""
        found = {0: self.outer, self.axis: self.factor // self.outer}
        return {axis: count for axis, count in found.items() if count > 1}


def group_of(network: Network, number: int) -> LayerGroup:
    """Return a layer as a group."""
    layer = network.layers[number]
    outside: dict[int, Outside] = {}
    for read in layer.reads:
        found = tuple(_only(k for k, a in enumerate(read.axes) if a == axis) for axis in range(len(layer.shape)))
        _meet(outside, read.source, Outside(found, number))
    return LayerGroup((number,), layer.shape, layer.parts or layer.shape, outside)


def joined(producer: LayerGroup, consumer: LayerGroup) -> LayerGroup:
    """Return two groups as one. Only the consumer may read the producer's result."""
    outside = dict(consumer.outside)
    axes = outside.pop(producer.result).axes
    followed = [(0, 1) if a is None else (producer.cuts[a], producer.parts[a]) for a in axes]
    cuts = tuple(gcd(c, f) if c and f else 0 for c, (f, _) in zip(consumer.cuts, followed, strict=True))
    parts = tuple(min(p, f) for p, (_, f) in zip(consumer.parts, followed, strict=True))
    for source, read in producer.outside.items():
        _meet(outside, source, Outside(tuple(None if a is None else read.axes[a] for a in axes), read.last))
    return LayerGroup(tuple(sorted((*producer.layers, *consumer.layers))), cuts, parts, outside)


def _meet(outside: dict[int, Outside], source: int, read: Outside) -> None:
    """Add a read. Axes on which another read of the same source differs are followed by neither."""
    if (known := outside.get(source)) is not None:
        same = tuple(a if a == b else None for a, b in zip(known.axes, read.axes, strict=True))
        read = Outside(same, max(known.last, read.last))
    outside[source] = read


def _only(found: Iterator[int]) -> int | None:
    some = list(found)
    return some[0] if len(some) == 1 else None


def axes_of(network: Network, group: LayerGroup, axis: int) -> dict[int, int | None]:
    """Return, for every layer of a group, the axis that follows `axis` of its result (`match_dim`)."""
    found: dict[int, int | None] = {group.result: axis}
    inside = frozenset(group.layers)
    for n in reversed(group.layers):
        for source, read in group_of(network, n).outside.items():
            if source in inside:
                at = found[n]
                moved = None if at is None else read.axes[at]
                found[source] = moved if found.get(source, moved) == moved else None
    return found


class Splitter:
    """Find splits on a device. `room`: bytes of the local memories of all its `cores`.

    With `grid`, the outermost axis is split first, as far as possible, and another one only inside of its parts.
    """

    def __init__(self, network: Network, cores: int, room: int, *, grid: bool = False) -> None:
        self.network = network
        self._grid = grid
        self._cores, self._room = cores, room
        self._sizes = np.array([layer.nbytes for layer in network.layers], np.int64)
        self._last = np.array([max(readers, default=-1) for readers in network.readers], np.int64)
        self._best: dict[tuple[int, ...], Split | None] = {}

    def best(self, group: LayerGroup) -> Split | None:
        """Return the best split by Eq. (1): most layers, fewest instances, outermost axis; None if nothing fits."""
        if group.layers not in self._best:
            found = self.splits(group)
            self._best[group.layers] = max(found, key=lambda s: (s.num_layers, -s.factor, -s.axis), default=None)
        return self._best[group.layers]

    def splits(self, group: LayerGroup) -> list[Split]:
        """Return, by axis, the fewest instances of which one fits into the local memories.

        Paper: Algorithm 1, SplitInfo.
        """
        outer = 1
        if self._grid and group.cuts and group.cuts[0] > 1 < group.parts[0]:
            if found := self._along(group, 0, 1):
                return [found]
            outer = max(v for v in divisors(group.cuts[0]) if v <= group.parts[0])
        axes = range(outer > 1, len(group.cuts))
        return [found for axis in axes if (found := self._along(group, axis, outer))]

    def peak(self, group: LayerGroup, split: Split) -> float:
        """Return the most bytes that live while one of a split's instances runs, without halos."""
        inner = split.factor // split.outer
        live = self._live(group, (0, split.axis))
        parts = [(split.outer if first else 1) * (inner if second else 1) for first, second in live]
        return float(np.sum([b / n for b, n in zip(live.values(), parts, strict=True)], axis=0).max())

    def _along(self, group: LayerGroup, axis: int, outer: int) -> Split | None:
        """Return the fewest instances along an axis, in each of `outer` parts of the outermost one."""
        cut, most = group.cuts[axis], group.parts[axis]
        for factor in (1, *(v for v in divisors(cut) if 1 < v <= most and self._balances(v))):
            split = Split(len(group.layers) if cut else 1, outer * factor, axis, outer)
            if int(self.peak(group, split)) <= self._room:
                return split
        return None

    def _balances(self, factor: int) -> bool:
        """Return whether slices distribute evenly over cores: at least as many as cores, or a power of two."""
        return factor >= self._cores or factor & (factor - 1) == 0

    def _live(self, group: LayerGroup, axes: tuple[int, int]) -> dict[tuple[bool, bool], Bytes]:
        """Return the bytes that live while each layer runs, by which of two axes of the result split them."""
        layers = np.array(group.layers, np.int64)
        inside = np.cumsum(self._sizes[layers])
        inside[1:] -= np.cumsum(self._freed(layers, self._sizes[layers[:-1]], self._last[layers[:-1]]))[:-1]
        found: dict[tuple[bool, bool], Bytes] = {(True, True): inside}
        for source, (followed, last) in group.outside.items():
            first, second = (followed[axis : axis + 1] != (None,) for axis in axes)
            live = found.setdefault((first, second), np.zeros(len(layers), np.int64))
            live[: int(np.searchsorted(layers, last)) + 1] += self.network.nbytes(source)
        for at, n in enumerate(group.layers):
            if (taken := self.network.layers[n].takes_over) is not None:
                known = group.outside.get(taken)
                if (known.last if known else self._last[taken]) == n:
                    inside[at] -= min(self.network.nbytes(taken), self.network.nbytes(n))
        return found

    @staticmethod
    def _freed(layers: NDArray[np.int64], sizes: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes that no layer after each one reads."""
        freed = np.zeros(len(layers), np.int64)
        np.add.at(freed, np.searchsorted(layers, last), sizes)
        return freed


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending; none of 0."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return [*small, *(number // d for d in reversed(small) if d * d != number)]
