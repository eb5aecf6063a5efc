"""Group operators into sub-graphs that share local memory. Paper: GraphTurbo §3.2, Algorithm 2.

All of the paper's patterns rest on one fact: if only one group reads a group's result, joining both keeps one result
and creates no cycle. The patterns differ in what they join at once, and in the rule that the split factors must
satisfy.
"""

from __future__ import annotations

from math import inf

from rammer.scheduler.graphturbo.network import Network
from rammer.scheduler.graphturbo.split import LayerGroup, Splitter, group_of, joined


def grouped(network: Network, splitter: Splitter) -> list[LayerGroup]:
    """Return all layers in groups, in topological order of their results. Joins patterns until none is left."""
    return _Grouping(network, splitter).run()


class _Grouping:
    """Groups by the number of their result; consumers are visited last to first."""

    def __init__(self, network: Network, splitter: Splitter) -> None:
        self._network = network
        self._splitter = splitter
        self._groups = {n: group_of(network, n) for n in range(len(network.layers))}
        self._owner = list(range(len(network.layers)))

    def run(self) -> list[LayerGroup]:
        before = -1
        while before != len(self._groups):
            before = len(self._groups)
            self._straight()
            self._diamond()
            self._branch()
        return [self._groups[key] for key in sorted(self._groups)]

    def _visited(self) -> list[int]:
        return sorted(self._groups, reverse=True)

    def _producers(self, key: int) -> set[int]:
        return {self._owner[source] for source in self._groups[key].outside if source >= 0}

    def _feeds_only(self, key: int, consumer: int) -> bool:
        """Return whether a group's only reader is `consumer`, and its result is not an output of the network."""
        readers = {self._owner[n] for n in self._network.readers[key]}
        return readers == {consumer} and not self._network.layers[key].is_result

    def _factor(self, group: LayerGroup) -> float:
        best = self._splitter.best(group)
        return inf if best is None else best.factor

    def _straight(self) -> None:
        for key in self._visited():
            while key in self._groups and len(producers := self._producers(key)) == 1:
                (producer,) = producers
                if not (self._feeds_only(producer, key) and self._join_by_rule_i(producer, key)):
                    break

    def _branch(self) -> None:
        for key in self._visited():
            if key in self._groups and len(producers := self._producers(key)) > 1:
                for producer in sorted(producers, reverse=True):
                    if producer in self._producers(key) and self._feeds_only(producer, key):
                        self._join_by_rule_i(producer, key)

    def _diamond(self) -> None:
        for key in self._visited():
            if key not in self._groups:
                continue
            by_entry: dict[int, list[int]] = {}
            for producer in sorted(self._producers(key)):
                entries = self._producers(producer)
                if len(entries) == 1 and self._feeds_only(producer, key):
                    by_entry.setdefault(entries.pop(), []).append(producer)
            for paths in by_entry.values():
                if len(paths) > 1:
                    self._join_by_rule_ii(paths, key)

    def _join_by_rule_i(self, producer: int, consumer: int) -> bool:
        """Join if the consumer's factor is at least the producer's, and the joined factor does not exceed it."""
        one, other = self._groups[producer], self._groups[consumer]
        if self._factor(other) < self._factor(one):
            return False
        both = joined(one, other)
        if not self._factor(both) <= self._factor(other) < inf:
            return False
        self._replace([producer], both)
        return True

    def _join_by_rule_ii(self, paths: list[int], consumer: int) -> None:
        """Join if paths and consumer together need no more instances than the most demanding of them alone."""
        both = self._groups[consumer]
        for path in paths:
            both = joined(self._groups[path], both)
        most = max(self._factor(self._groups[key]) for key in (*paths, consumer))
        if self._factor(both) <= most and self._factor(both) < inf:
            self._replace(paths, both)

    def _replace(self, gone: list[int], group: LayerGroup) -> None:
        for key in gone:
            for n in self._groups.pop(key).layers:
                self._owner[n] = group.result
        self._groups[group.result] = group
