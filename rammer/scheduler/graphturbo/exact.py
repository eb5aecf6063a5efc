"""The order of layers that needs the least memory, found exactly where wiring is irregular.

Chains of groups have it depth first already. Cells with many readers do not (NASNet: up to 1.7 times less).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from rammer.scheduler.graphturbo.network import Network

MOST_LOOKS = 300_000  # at a node that may come next: beyond it the order stays as it was
Needs = tuple[frozenset[int], ...]  # of every node, those that it reads


def peak_of(needs: Needs, nbytes: Sequence[int], order: Sequence[int], given: int = 0) -> int:
    """The most bytes that live at once; what nobody reads lives on. The first `given` nodes live from the start."""
    left = [0] * len(needs)
    for some in needs:
        for n in some:
            left[n] += 1
    live = peak = sum(nbytes[:given])
    for node in order:
        live += nbytes[node]
        peak = max(peak, live)
        for n in needs[node]:
            left[n] -= 1
            live -= 0 if left[n] else nbytes[n]
    return peak


@lru_cache(maxsize=1 << 8)  # cells come again
def best_order(needs: Needs, nbytes: tuple[int, ...], given: int = 0, most: int = MOST_LOOKS) -> list[int] | None:
    """An order of least `peak_of`, each node after those that it reads; None after `most` looks.

    Branch and bound over sets of nodes that are done, as what lives depends on nothing else: those of the least peak so
    far first, and of them the largest. A set is gone on from only by the way with the lowest peak.
    """
    readers = [0] * len(needs)
    for node, some in enumerate(needs):
        for n in some:
            readers[n] |= 1 << node
    needed = [sum(1 << n for n in some) for some in needs]
    begin = (1 << given) - 1
    queue = [(sum(nbytes[:given]), -given, begin, sum(nbytes[:given]))]  # peak, minus nodes done, which, live bytes
    least = {begin: queue[0][0]}
    came: dict[int, tuple[int, int]] = {}
    looks = 0
    while queue:
        peak, left, done, live = heapq.heappop(queue)
        if done + 1 == 1 << len(needs):
            return _way(came, done)
        if peak > least[done]:
            continue
        if (looks := looks + len(needs)) > most:
            return None
        for node in range(given, len(needs)):
            if done >> node & 1 or needed[node] & ~done:
                continue
            after = done | 1 << node
            highest = max(peak, live + nbytes[node])
            if highest < least.get(after, highest + 1):
                least[after] = highest
                came[after] = done, node
                freed = sum(nbytes[n] for n in needs[node] if not readers[n] & ~after)
                heapq.heappush(queue, (highest, left - 1, after, live + nbytes[node] - freed))
    return None


def _way(came: dict[int, tuple[int, int]], done: int) -> list[int]:
    order = []
    while done in came:
        done, node = came[done]
        order.append(node)
    return order[::-1]


def narrow_places(network: Network) -> list[int]:
    """Layers of which nothing but their own result is read behind them."""
    last = [max(readers, default=-1) for readers in network.readers]
    found, farthest = [], -1
    for n in range(len(network.layers)):
        if farthest <= n < last[n]:
            found.append(n)
        farthest = max(farthest, last[n])
    return found


def least_memory_order(network: Network) -> list[int]:
    """All layers, segment by segment between narrow places; inside of each with the least memory, if that is found."""
    cuts = [-1, *narrow_places(network), len(network.layers) - 1]
    return [n for before, end in pairwise(cuts) for n in _ordered(network, range(before + 1, end + 1))]


def _ordered(network: Network, segment: range) -> list[int]:
    """Layers of a segment; what it reads of earlier ones lives from its start."""
    outside = sorted({r.source for n in segment for r in network.layers[n].reads if 0 <= r.source < segment.start})
    place = {n: at for at, n in enumerate((*outside, *segment))}
    needs = [frozenset[int]()] * len(outside)
    needs += [frozenset(place[r.source] for r in network.layers[n].reads if r.source >= 0) for n in segment]
    nbytes = tuple(network.nbytes(n) for n in place)
    given, known = len(outside), list(range(len(outside), len(place)))
    found = best_order(tuple(needs), nbytes, given)
    if found is None or peak_of(tuple(needs), nbytes, found, given) >= peak_of(tuple(needs), nbytes, known, given):
        found = known
    names = list(place)
    return [names[at] for at in found]


def renumbered(network: Network, order: Sequence[int]) -> Network:
    """The network with layer order[k] as number k."""
    number = {n: k for k, n in enumerate(order)}
    layers = []
    for n in order:
        layer = network.layers[n]
        reads = tuple(replace(r, source=number.get(r.source, r.source)) for r in layer.reads)
        over = layer.takes_over
        layers.append(replace(layer, reads=reads, takes_over=over if over is None else number.get(over, over)))
    return replace(network, layers=tuple(layers))
