"""Divide a network into slices of groups: what each computes, and the pieces of tensors that it reads.

For software-managed memories. A slice computes everything that it needs, including rows beside its border that another
slice computes, too. Paper: GraphTurbo §3.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from benchmarks.graphturbo.simulated import SimulatedNetwork, Span
from rammer.ir.analysis.parts import Box, joined
from rammer.scheduler.graphturbo.split import LayerGroup, Split

Name = int  # of a slice: the group's result times MOST, plus the number of the slice in the group
Piece = tuple[Name, int]  # the slice that makes or loads it, and the layer, or ~input
MOST = 1 << 20


class SlicePart(NamedTuple):
    """The bytes of a piece that are read."""

    piece: Piece
    nbytes: int


class Step(NamedTuple):
    """One layer of one slice: the piece that it makes, its reads, and the piece whose memory its result may reuse."""

    makes: SlicePart
    reads: tuple[SlicePart, ...]
    mflop: float
    takes_over: Piece | None


class Slice(NamedTuple):
    """A box of a group's result, the steps that compute it, and the slices that made its operands."""

    name: Name
    group: LayerGroup
    box: Box
    steps: tuple[Step, ...]
    producers: frozenset[Name]


Counts = tuple[int, ...]  # into how many parts each axis of a group's result is cut
Known = dict[tuple[object, ...], list[Slice]]


def slices(
    network: SimulatedNetwork, groups: Sequence[LayerGroup], splits: Sequence[Split | None], known: Known | None = None
) -> list[Slice]:
    """Return the slices of all groups, group by group. `known` memoizes slices between plans of the same network."""
    known = {} if known is None else known
    found: list[Slice] = []
    made: dict[int, Counts] = {}
    for group, split in zip(groups, splits, strict=True):
        shape = network.layers[group.result].shape
        parts = split.parts if split else {}
        counts = tuple(min(parts.get(axis, 1), max(extent, 1)) for axis, extent in enumerate(shape))
        key = group.layers, counts, *(made[source] for source in group.outside if source >= 0)
        if key not in known:
            known[key] = [
                _sliced(network, group, box, group.result * MOST + k, made)
                for k, box in enumerate(product(*map(_spans, shape, counts)))
            ]
        made[group.result] = counts
        found += known[key]
    return found


def producers_of(slices: Sequence[Slice]) -> list[set[int]]:
    """Return, for each slice, the places of those that made its operands."""
    place = {one.name: at for at, one in enumerate(slices)}
    return [{place[name] for name in one.producers} for one in slices]


def _spans(extent: int, count: int) -> list[Span]:
    """Return an axis in parts as equal as possible."""
    return [(extent * k // count, extent * (k + 1) // count) for k in range(count)]


def _overlapping(counts: Counts, shape: Sequence[int], box: Box) -> Iterator[tuple[int, int]]:
    """Yield the parts that a box overlaps, and how many of its places each has."""
    along = []
    for (low, high), extent, count in zip(box, shape, counts, strict=True):
        parts = range(((low + 1) * count - 1) // extent, (high * count - 1) // extent + 1)
        spans = [(k, max(low, extent * k // count), min(high, extent * (k + 1) // count)) for k in parts]
        along.append([(k, end - begin) for k, begin, end in spans])
    for found in product(*along):
        part, places = 0, 1
        for (k, length), count in zip(found, counts, strict=True):
            part, places = part * count + k, places * length
        yield part, places


def needed(network: SimulatedNetwork, group: LayerGroup, box: Box) -> dict[int, Box]:
    """Return the box of every tensor, in the group and just outside of it, that a box of its result needs."""
    wanted: dict[int, Box] = {group.result: box}
    for n in reversed(group.layers):
        if n in wanted:
            layer = network.layers[n]
            for read in layer.reads:
                part = read.box(wanted[n], layer.shape, network.shape(read.source))
                if all(low < high for low, high in part):
                    wanted[read.source] = joined(wanted.get(read.source, part), part)
    return wanted


def _sliced(network: SimulatedNetwork, group: LayerGroup, box: Box, name: Name, made: Mapping[int, Counts]) -> Slice:
    wanted = needed(network, group, box)
    inside = frozenset(group.layers)
    found, producers = [], set[int]()
    for n in group.layers:
        if n not in wanted:
            continue
        layer, reads = network.layers[n], []
        for read in layer.reads:
            source, shape = read.source, network.shape(read.source)
            part = read.box(wanted[n], layer.shape, shape)
            if any(low >= high for low, high in part):
                continue
            if source in inside or source < 0:
                reads.append(SlicePart((name, source), network.nbytes_of(source, part)))
                continue
            nbytes, whole = network.layers[source].nbytes, prod(shape)
            for k, places in _overlapping(made[source], shape, part):
                reads.append(SlicePart((source * MOST + k, source), nbytes * places // whole))
                producers.add(source * MOST + k)
        over = (name, layer.takes_over) if layer.takes_over in inside else None
        makes = SlicePart((name, n), network.nbytes_of(n, wanted[n]))
        found.append(Step(makes, tuple(reads), layer.mflop * network.share(n, wanted[n]), over))
    return Slice(name, group, box, tuple(found), frozenset(producers))
