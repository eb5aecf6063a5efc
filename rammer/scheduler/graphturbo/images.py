"""Group operators so that each image of a batch stays on one vEU for as long as possible. Beyond the paper.

Known as: data parallelism within a layer sequence. Borders of groups lie at narrow places, where one tensor alone is
read by later layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rammer.scheduler.graphturbo.network import Network
from rammer.scheduler.graphturbo.split import LayerGroup, Split, Splitter, divisors, group_of, joined


def by_images(network: Network, splitter: Splitter) -> tuple[list[LayerGroup], list[Split | None]]:
    """Return the smallest number of groups, each with as many parts as its outermost axis (usually images) allows.

    Groups that this axis does not divide are split by the paper's rule, so that an instance fits.
    """
    groups: list[LayerGroup] = []
    splits: list[Split | None] = []
    borders = [0, *(n + 1 for n in narrow_places(network)), len(network.layers)]
    for begin, end in pairwise(borders):
        found = as_one(network, begin, end)
        if len(found) > 1:
            groups += found
            splits += [None] * len(found)
            continue
        (group,) = found
        before = groups[-1] if groups and splits[-1] else None
        if before and before.result in group.outside and not network.layers[before.result].is_result:
            both = joined(before, group)
            if _most_parts(both) == _most_parts(before) > 1:
                groups[-1], splits[-1] = both, _whole_images(both)
                continue
        groups.append(group)
        splits.append(_whole_images(group) if _most_parts(group) > 1 else splitter.best(group))
    return groups, splits


def _most_parts(group: LayerGroup) -> int:
    """Return the most parts into which the outermost axis can be split."""
    return max((v for v in divisors(group.cuts[0]) if v <= group.parts[0]), default=1) if group.cuts else 1


def _whole_images(group: LayerGroup) -> Split:
    return Split(len(group.layers), _most_parts(group), 0)


def narrow_places(network: Network) -> list[int]:
    """Return the layers whose result is the only earlier one that later layers read. Known as: cut vertices."""
    last = [max(readers, default=-1) for readers in network.readers]
    found, farthest = [], -1
    for n in range(len(network.layers)):
        if farthest <= n < last[n]:
            found.append(n)
        farthest = max(farthest, last[n])
    return found


def as_one(network: Network, begin: int, end: int) -> Sequence[LayerGroup]:
    """Return layers as one group if only the last one's result is read after them, else one group per layer."""
    readers = network.readers
    if any(network.layers[n].is_result or not readers[n] or readers[n][-1] >= end for n in range(begin, end - 1)):
        return [group_of(network, n) for n in range(begin, end)]
    group = group_of(network, end - 1)
    for n in range(end - 2, begin - 1, -1):
        group = joined(group_of(network, n), group)
    return [group]
