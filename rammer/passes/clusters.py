"""Keep groups of operators that stay acyclic when each group becomes one operator. Known as: cycle-free clustering.

A topological order of the groups is kept as integer labels with gaps. Contracting two groups searches only the groups
between them in that order, so the cost follows their distance and not the size of the graph. Source: Pearce and Kelly,
"A dynamic topological sort algorithm", 2006, with contraction instead of edge insertion.
"""

from __future__ import annotations

from bisect import bisect_left

from rammer.ir.graph import Graph

_GAP = 1 << 120


class Clusters:
    """A partition of a graph's operators. At first each operator is a group of its own, named by its number."""

    def __init__(self, graph: Graph) -> None:
        count, producers = len(graph.operators), graph.producers
        self.group_of = list(range(count))
        self.members: dict[int, list[int]] = {n: [n] for n in range(count)}
        self.sources = [{producers[t] for t in op.inputs if t in producers} for op in graph.operators]
        self._label = [(n + 1) * _GAP for n in range(count)]
        self._order = list(self._label)  # the labels of all groups, ascending

    def predecessors(self, group: int) -> set[int]:
        """Return the groups that this one reads from."""
        return {g for n in self.sources[group] if (g := self.group_of[n]) != group}

    def contract(self, first: int, second: int, *, parallel: bool = False) -> int | None:
        """Merge two groups, and return the name of the merged one. None if that would make a cycle.

        `parallel` groups are to run side by side: neither may read a result of the other.
        """
        if self._label[first] > self._label[second]:
            first, second = second, first
        if parallel and first in self.predecessors(second):
            return None
        between = self._between(first, second)
        if between is None:
            return None
        self._take(second)
        self._move_before(first, sorted(between, key=self._label.__getitem__))
        for n in self.members[second]:
            self.group_of[n] = first
        self.members[first] += self.members.pop(second)
        self.sources[first] |= self.sources[second]
        return first

    def _between(self, first: int, second: int) -> set[int] | None:
        """Return the groups after `first` that `second` depends on; None if one of them depends on `first`."""
        low = self._label[first]
        found: set[int] = set()
        stack = [g for g in self.predecessors(second) if g != first]
        while stack:
            group = stack.pop()
            if group == first:
                return None
            if self._label[group] > low and group not in found:
                found.add(group)
                stack += self.predecessors(group)
        return found

    def _take(self, group: int) -> None:
        """Take a group out of the order."""
        del self._order[bisect_left(self._order, self._label[group])]

    def _move_before(self, target: int, groups: list[int]) -> None:
        """Move `groups`, in this order, right before `target`."""
        for group in groups:
            self._take(group)
        place = bisect_left(self._order, self._label[target])
        low = self._order[place - 1] if place else 0
        if self._label[target] - low <= len(groups):  # the gap is used up
            low *= _GAP
            self._label, self._order = ([label * _GAP for label in labels] for labels in (self._label, self._order))
        step = (self._label[target] - low) // (len(groups) + 1)
        for position, group in enumerate(groups, 1):
            self._label[group] = low + step * position
        self._order[place:place] = [self._label[group] for group in groups]
