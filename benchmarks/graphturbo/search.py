"""Search for groups of a network and their splits: by bytes moved in simulation, or by the paper's rules.

The paper's rules join two groups at a time and ignore weights and halos. Here whole plans are simulated. Borders of
groups lie at narrow places, each group has a split, and neighbouring plans are tried while one of them moves less.
Known as: hill climbing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np

from benchmarks.graphturbo.scratchpad import Memories, Transfers, run
from benchmarks.graphturbo.simulated import SimulatedNetwork
from benchmarks.graphturbo.slices import Known, needed, producers_of, slices
from rammer.scheduler.graphturbo.grouping import grouped
from rammer.scheduler.graphturbo.images import as_one, narrow_places
from rammer.scheduler.graphturbo.instances import breadth_first, depth_first
from rammer.scheduler.graphturbo.split import LayerGroup, Split, Splitter, divisors

MOST_STEPS = 16_000  # simulated from each start: a number, not a time, so that a busy machine finds the same plan
MOST_CUTS = 20  # narrow places that are considered
MOST_INSIDE = 8  # parts along an inner axis, within an image
INSTANCE = 1 << 14  # bytes, the fixed cost of an instance in sums
BETWEEN = 0.5  # of a memory, for the result between two groups: the reader's own data take the rest
RECOMPUTED = 1.1  # factor of work that recomputed rows may reach

ORDERS: dict[str, Callable[[Sequence[set[int]]], list[int]]] = {"breadth": breadth_first, "depth": depth_first}
State: TypeAlias = tuple[tuple[int, Split], ...]  # per group: its last block, and its split


class Paper(NamedTuple):
    """A simulated plan: groups, their splits, the order of their slices, and what it moves."""

    groups: tuple[LayerGroup, ...]
    splits: tuple[Split | None, ...]
    order: str
    moved: Transfers
    cost: float


def by_rules(
    network: SimulatedNetwork, memories: Memories, orders: Sequence[str] = tuple(ORDERS), *, grid: bool = False
) -> Paper:
    """Return groups by Algorithm 2, splits by Algorithm 1, in the cheaper order; the longest lifetimes are spilled."""
    splitter = Splitter(network, memories.cores, memories.near, grid=grid)
    groups = grouped(network, splitter)
    return priced(network, groups, [splitter.best(group) for group in groups], memories, orders, paper=True)


def priced(
    network: SimulatedNetwork,
    groups: Sequence[LayerGroup],
    splits: Sequence[Split | None],
    memories: Memories,
    orders: Sequence[str] = tuple(ORDERS),
    *,
    paper: bool = False,
    known: Known | None = None,
) -> Paper:
    """Return a plan with its cheaper order; by bytes moved, then by the peak of local memory."""
    found = slices(network, groups, splits, known)
    producers = producers_of(found)
    plans: dict[tuple[int, ...], Paper] = {}
    for name in orders:
        if (order := tuple(ORDERS[name](producers))) not in plans:
            moved = run(network, found, order, memories, "life" if paper else "next use", keeps=not paper)
            plans[order] = Paper(tuple(groups), tuple(splits), name, moved, moved.cost(memories))
    return min(plans.values(), key=lambda plan: (plan.cost, plan.moved.peak))


def searched(
    network: SimulatedNetwork,
    memories: Memories,
    orders: Sequence[str] = tuple(ORDERS),
    *,
    recomputed: float = RECOMPUTED,
    most_steps: int = MOST_STEPS,
) -> Paper:
    """Return the cheapest plan found, at most as expensive as the one by rules.

    `recomputed`: how many times the work a split may cost. `most_steps`: simulated steps from each start.
    """
    best = min((by_rules(network, memories, orders, grid=grid) for grid in (False, True)), key=lambda p: p.cost)
    again = priced(network, best.groups, best.splits, memories, orders)
    best = min(best, again, key=lambda p: p.cost)
    if best.cost > network.least_bytes:
        best = min(best, _Search(network, memories, orders, recomputed).run(most_steps), key=lambda p: p.cost)
    return best


class _Search:
    """Hill climbing over states. Blocks lie between narrow places; a state joins neighbouring blocks into groups."""

    def __init__(self, network: SimulatedNetwork, memories: Memories, orders: Sequence[str], recomputed: float) -> None:
        self._network, self._memories, self._orders, self._recomputed = network, memories, orders, recomputed
        self._blocks = _blocks(network)
        self._groups: dict[tuple[int, int], Sequence[LayerGroup]] = {}
        self._plans: dict[State, Paper] = {}
        self._known: Known = {}
        self._splitter = Splitter(network, memories.cores, memories.near)
        self._splits: dict[tuple[int, int], list[Split]] = {}
        self._inside: dict[tuple[int, int, Split], float] = {}
        self._left = 0

    def run(self, most_steps: int) -> Paper:
        """Search from several starts: by sums, all blocks as one group, and each block alone."""
        last = len(self._blocks) - 1
        whole: list[State] = [((last, split),) for split in self._options(0, last)]
        alone: State = tuple((n, self._alone(n)) for n in range(last + 1))
        for start in (self._by_sums(depth=False), self._by_sums(depth=True), min(whole, key=self._cost), alone):
            self._left = most_steps
            self._downhill(start)
            if self._cheapest().cost <= self._network.least_bytes:
                break
        return self._cheapest()

    def _cheapest(self) -> Paper:
        return min(self._plans.values(), key=lambda plan: plan.cost)

    def _by_sums(self, *, depth: bool) -> State:
        """Return the state with the least sum of bytes moved inside of groups and across borders.

        Known as: dynamic programming. `depth`: order of instances.
        """
        best: dict[int, dict[Split, tuple[float, State]]] = {-1: {Split(0, 1, 0): (0.0, ())}}
        for end in range(len(self._blocks)):
            best[end] = {}
            for begin in range(end + 1):
                for split in self._options(begin, end):
                    own = self._moved_inside(begin, end, split)
                    for before, (cost, state) in best[begin - 1].items():
                        total = cost + own + (self._moved_between(begin, before, split, depth) if begin else 0.0)
                        if total < best[end].get(split, (inf, ()))[0]:
                            best[end][split] = total, (*state, (end, split))
        return min(best[len(self._blocks) - 1].values(), key=lambda found: found[0])[1]

    def _moved_inside(self, begin: int, end: int, split: Split) -> float:
        """Return the bytes that a group moves: overflow, and weights (per instance if shared memory is too small)."""
        if (key := (begin, end, split)) not in self._inside:
            groups, (_, near, shared, shared_cost) = self._of(begin, end), self._memories
            weights = sum(self._network.layers[n].weights for group in groups for n in group.layers)
            over = max(0.0, *(self._splitter.peak(group, split) - near for group in groups))
            moved = INSTANCE * split.factor + weights * (split.factor if weights > shared else 1)
            self._inside[key] = moved + 2 * over * split.factor * (shared_cost if over <= shared else 1.0)
        return self._inside[key]

    def _moved_between(self, begin: int, before: Split, split: Split, depth: bool) -> float:
        """Return the bytes moved across a border, 0 if the result fits into half of the local memories.

        Depth first, only what one instance of the second group reads must fit.
        """
        whole = nbytes = self._network.nbytes(self._blocks[begin].start - 1)
        if depth and before.factor >= split.factor:
            nbytes //= split.factor
        if nbytes <= self._memories.near * BETWEEN:
            return 0.0
        return 2 * whole * (self._memories.shared_cost if nbytes <= self._memories.shared * BETWEEN else 1.0)

    def _downhill(self, state: State) -> None:
        while self._cost(state) > self._network.least_bytes and self._left > 0:
            better = next((s for s in self._neighbours(state) if self._cost(s) < self._cost(state)), None)
            if better is None:
                return
            state = better

    def _alone(self, block: int) -> Split:
        group = self._group(block, block)
        return (group and self._splitter.best(group)) or Split(1, 1, 0)

    def _cost(self, state: State) -> float:
        if state not in self._plans:
            groups: list[LayerGroup] = []
            splits: list[Split | None] = []
            begin = 0
            for end, split in state:
                found = self._of(begin, end)
                groups += found
                splits += [split] if len(found) == 1 else [None] * len(found)
                begin = end + 1
            plan = priced(self._network, groups, splits, self._memories, self._orders, known=self._known)
            self._plans[state] = plan
            self._left -= len(plan.moved.held) * len(self._orders)
        return self._plans[state].cost

    def _neighbours(self, state: State) -> Iterator[State]:
        """Yield states with another split of a group, two groups joined, one group divided, or a border moved."""
        begins = [0, *(end + 1 for end, _ in state)]
        for k, (end, split) in enumerate(state):
            for other in self._beside(begins[k], end, split):
                yield (*state[:k], (end, other), *state[k + 1 :])
        for k, (end, split) in enumerate(state[1:], 1):
            for other in dict.fromkeys((state[k - 1][1], split)):
                if other in self._options(begins[k - 1], end):
                    yield (*state[: k - 1], (end, other), *state[k + 1 :])
        for k, (end, split) in enumerate(state):
            for middle in range(begins[k], end):
                for halves in self._halves(begins[k], middle, end, split):
                    yield (*state[:k], *halves, *state[k + 1 :])
        for k, (end, split) in enumerate(state[:-1]):
            for moved in (end - 1, end + 1):
                if begins[k] <= moved < state[k + 1][0]:
                    yield (*state[:k], (moved, split), *state[k + 1 :])

    def _halves(self, begin: int, middle: int, end: int, split: Split) -> Iterator[State]:
        """Yield a group as two: one keeps the split, the other is split finer or coarser."""
        for other in self._beside(begin, middle, split):
            yield (middle, other), (end, split)
        for other in self._beside(middle + 1, end, split):
            yield (middle, split), (end, other)

    def _beside(self, begin: int, end: int, split: Split) -> list[Split]:
        """Return the next finer split of a group, and the next two coarser ones."""
        options = self._options(begin, end)
        coarser = [s for s in options if s.factor < split.factor][-2:]
        return [*reversed(coarser), *[s for s in options if s.factor > split.factor][:1]]

    def _options(self, begin: int, end: int) -> list[Split]:
        """Return the splits of blocks as one group, coarse to fine: along the outermost axis, then within its parts."""
        if (begin, end) not in self._splits:
            group = self._group(begin, end)
            self._splits[begin, end] = self._ways(group) if group else [Split(1, 1, 0)]
        return self._splits[begin, end]

    def _ways(self, group: LayerGroup) -> list[Split]:
        count = len(group.layers)
        along = [v for v in divisors(group.cuts[0]) if v <= group.parts[0]] if group.cuts else []
        outer = max(along, default=1)
        found = {v: Split(count, v, 0) for v in (1, *along)}
        for axis in range(1, len(group.cuts)):
            for v in divisors(group.cuts[axis]):
                split = Split(count, outer * v, axis, outer)
                if 1 < v <= min(group.parts[axis], MOST_INSIDE) and self._is_lean(group, split):
                    found.setdefault(split.factor, split)
        return [found[factor] for factor in sorted(found)]

    def _is_lean(self, group: LayerGroup, split: Split) -> bool:
        """Return whether recomputing rows that several instances need is cheap.

        Checks a middle instance, which has such rows on both sides.
        """
        shape = self._network.layers[group.result].shape
        box = tuple(
            (extent * (count // 2) // count, extent * (count // 2 + 1) // count)
            for extent, count in ((extent, split.parts.get(axis, 1)) for axis, extent in enumerate(shape))
        )
        work = sum(self._network.layers[n].mflop for n in group.layers)
        wanted = needed(self._network, group, box).items()
        mine = sum(self._network.share(n, part) * self._network.layers[n].mflop for n, part in wanted if n >= 0)
        return split.factor * mine <= self._recomputed * work

    def _group(self, begin: int, end: int) -> LayerGroup | None:
        """Return blocks as one group, or None if they cannot be one."""
        found = self._of(begin, end)
        return found[0] if len(found) == 1 else None

    def _of(self, begin: int, end: int) -> Sequence[LayerGroup]:
        """Return blocks as one group, or as one group per layer if another result of the network lies inside."""
        if (begin, end) not in self._groups:
            self._groups[begin, end] = as_one(self._network, self._blocks[begin].start, self._blocks[end].stop)
        return self._groups[begin, end]


def _blocks(network: SimulatedNetwork) -> list[range]:
    """Return the layers between narrow places.

    If there are too many narrow places, keep those of the smallest tensors, one in each part of the network.
    """
    narrow = narrow_places(network)
    if len(narrow) > MOST_CUTS:
        layers = network.layers
        sizes = np.array([[layer.nbytes, layer.weights] for layer in layers], np.float64)
        reached = np.cumsum((sizes / np.maximum(sizes.sum(axis=0), 1)).sum(axis=1))
        part = np.minimum(reached / reached[-1] * MOST_CUTS, MOST_CUTS - 1).astype(np.int64)
        narrow = sorted({int(part[n]): n for n in sorted(narrow, key=lambda n: -layers[n].nbytes)}.values())
    begins = [0, *(n + 1 for n in narrow), len(network.layers)]
    return [range(begin, end) for begin, end in pairwise(begins)]
