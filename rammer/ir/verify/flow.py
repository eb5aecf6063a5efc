"""Trace outputs of a tile program back, statement by statement, to the elements of inputs that they come from.

Known as: reaching definitions, program slicing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.access import Access, Accesses, common_loops
from rammer.ir.analysis.intervals import in_order
from rammer.ir.expr import Role, decided_by
from rammer.ir.index import Index, bounds, evaluate, variables
from rammer.ir.remembered import memoized
from rammer.ir.semantics.evaluate import happens
from rammer.ir.tile import Kind

Points: TypeAlias = NDArray[np.int64]
Loops: TypeAlias = tuple[int, ...]  # numbers of loops
Instances: TypeAlias = dict[str, Points]  # of a statement: the value of every variable, and TAG, for each instance

TAG = "#"  # the traced element that an instance belongs to
ROLE = "%"  # the role of what it computes: a number of `Flow.roles`
ROW = "@"  # the request that an instance serves
MOST_ROLES = 1 << 10  # distinguished
MAX_INSTANCES = 1 << 18  # of a statement that are traced together
ENOUGH = 1 << 13  # likewise, while tags of earlier rounds can be dropped


_NONE = np.zeros(0, np.int64)


class Untraceable(Exception):
    """Error of a trace that would take too long."""


class Flow:
    """Traces of one tile program; `inputs` are the buffers at which they end.

    After a trace, `terms` has the number of terms of the sums in each register buffer, by tag, if `counting`.
    `unwritten` names an element that was read and that no statement had written. `roles` are those in which inputs were
    read; beyond `most_roles` of them, the first one stands for all.
    """

    def __init__(
        self, accesses: Accesses, inputs: Sequence[str], *, counting: bool = True, most_roles: int = MOST_ROLES
    ) -> None:
        self._most, self._counting, self._most_roles = MAX_INSTANCES, counting, most_roles
        self.terms: dict[str, Points] = {}
        self.unwritten = ""
        self.roles: list[Role] = [()]
        self.kept = np.zeros(0, np.int64)
        self._numbers: dict[Role, int] = {(): 0}
        self._accesses, self._inputs = accesses, frozenset(inputs)
        self._writes: dict[int, list[Access]] = {}
        self._reads: dict[int, list[Access]] = {}
        self._sorted: dict[Hashable, tuple[Points, Points]] = {}  # results of `_by_place`
        self._updates: set[int] = set()  # statements that read the buffer which they write
        self._sums: dict[int, str] = {}  # of these, the ones that add a term to a register
        self._plain: set[int] = set()  # of these, the ones that leave what was there as one of the terms
        for access in accesses.found:
            reads = self._reads.setdefault(access.statement, [])
            if not access.write:
                reads.append(access)
                continue
            self._writes.setdefault(access.statement, []).append(access)
            if own := [r for r in reads if r.buffer == access.buffer]:
                self._updates.add(access.statement)
                if access.register and all(r.index == access.index for r in own):
                    self._sums[access.statement] = access.buffer
                    if all(r.path == access.path and not (r.role or r.more or r.threads) for r in own):
                        self._plain.add(access.statement)

    def sources(self, starts: Mapping[int, Instances], rounds: Points) -> dict[str, Points]:
        """Trace stores back to the elements of every input that they depend on: sorted rows (tag, role, element).

        `starts` has instances of statements, by number. A statement reads what earlier statements wrote, so one walk
        back through the program meets all of them. Where a statement would have too many instances, tags are dropped:
        those of the first of `rounds` (by tag), then those of the next one. Tags are independent, so the others are as
        if these had not been requested. `kept` lists the others, and results number them anew. Raises Untraceable where
        the last round alone has too many.
        """
        found: dict[str, list[Points]] = {name: [] for name in self._inputs}
        wanted: dict[str, dict[Loops, _Wanted]] = {}
        self.terms, self.unwritten = {}, ""
        level, last = 0, int(rounds.max(initial=0))
        for statement in sorted(self._reads, reverse=True):
            while True:
                more = bool((rounds[rounds >= level] < last).any())
                self._most = ENOUGH if more else MAX_INSTANCES
                try:
                    self._trace(statement, _those(starts.get(statement), rounds >= level), wanted, found, len(rounds))
                    break
                except Untraceable:
                    if not more:
                        raise
                    level = int(rounds[rounds >= level].min()) + 1
                for groups in wanted.values():
                    for group in groups.values():
                        group.keep(rounds >= level)
        for groups in wanted.values():
            for group in groups.values():
                self.unwritten = group.lost() or self.unwritten
        self.kept = np.flatnonzero(rounds >= level)
        self.terms = {name: counts[self.kept] for name, counts in self.terms.items()}
        return {name: self._numbered_anew(parts, rounds >= level) for name, parts in found.items()}

    def _numbered_anew(self, parts: Sequence[Points], kept: NDArray[np.bool_]) -> Points:
        rows = np.concatenate([np.zeros((0, 3), np.int64), *parts])
        rows = rows[kept[rows[:, 0]]]
        return _distinct(np.searchsorted(self.kept, rows[:, 0]), rows[:, 1], rows[:, 2])

    def _trace(
        self,
        statement: int,
        start: Instances | None,
        wanted: dict[str, dict[Loops, _Wanted]],
        found: Mapping[str, list[Points]],
        count: int,
    ) -> None:
        """Turn requests of a statement's writes into requests of its reads. Raises Untraceable before any change."""
        parts = [start] if start is not None else []
        written: list[tuple[_Wanted, Points]] = []
        for write in self._writes[statement]:
            for group in wanted.get(write.buffer, {}).values():
                for made, rows in self._written(write, group):
                    parts.append(made)
                    written.append((group, rows))
        if not parts:
            return
        now = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
        if len(now[TAG]) > self._most:
            raise Untraceable("a statement has too many instances")
        asked: list[tuple[Access, Points, Instances]] = []
        plain = self._sums[statement] if statement in self._plain else None  # requests of the sum stay open
        for read in self._reads[statement]:
            if read.buffer == plain:
                continue
            places, around = _places(read, now)
            moved = {n: evaluate(ix, around) + np.zeros_like(places) for n, ix in read.threads}
            asked.append((read, places, {**around, **moved, ROLE: self._entering(read.role, around[ROLE])}))
        if self._counting and statement in self._sums:
            buffer = self._sums[statement]
            self.terms[buffer] = self.terms.get(buffer, 0) + self._terms(statement, now, count)
        for group, rows in written:
            group.found[rows] |= plain is None
            if statement not in self._updates:
                group.closed[rows] = True
        for read, places, around in asked:
            if read.buffer in self._inputs:
                found[read.buffer].append(_distinct(around[TAG], around[ROLE], places))
            elif len(places):
                groups, shared = wanted.setdefault(read.buffer, {}), self._accesses.shared(read)
                if shared not in groups:
                    groups[shared] = _Wanted(read, len(shared))
                groups[shared].add(places, around)

    def _entering(self, role: Role, outer: Points) -> Points:
        """Return the roles of values that enter computations in a role, given the roles of the results."""
        if not role:
            return outer
        numbers = np.zeros(len(self.roles), np.int64)
        for number in np.flatnonzero(np.bincount(outer)).tolist():
            whole = (*self.roles[number], *role)
            if whole not in self._numbers and len(self.roles) < self._most_roles:
                self._numbers[whole] = len(self.roles)
                self.roles.append(whole)
            numbers[number] = self._numbers.get(whole, 0)
        return numbers[outer]

    def _terms(self, statement: int, instances: Instances, count: int) -> Points:
        """Count the terms that a sum adds, by tag."""
        own = next(r for r in self._reads[statement] if r.buffer == self._sums[statement])
        _, happening = _places(own, instances)
        return np.bincount(_distinct(*_numbered(own, happening).T)[:, 0], minlength=count)

    def _written(self, write: Access, group: _Wanted) -> Iterator[tuple[Instances, Points]]:
        """Yield the instances of a statement that write wanted elements, and the rows of the group that they write."""
        rows = group.between(*self._span(write))  # mostly empty: another statement writes them
        if not len(rows):
            return
        names = common_loops(group.read, write)
        around = {n: group.column(n)[rows] for n in names}
        around |= {TAG: group.table[1, rows], ROLE: group.table[2, rows], ROW: rows}
        for made in self._writing(write, around, group.table[0, rows]):
            yield {n: v for n, v in made.items() if n != ROW}, made[ROW]

    @memoized
    def _span(self, write: Access) -> tuple[int, int]:
        """Return the first and the last element that a write may access."""
        return bounds(write.index, write.ranges)

    def _writing(self, write: Access, around: Instances, elements: Points) -> Iterator[Instances]:
        """Yield the instances with which an access reaches elements; `around` has the outer loops' values for each."""
        own = self._variables(write)
        moving = [n for n in around if n in own]
        settings: list[Any] = _alike([around[n] for n in moving]) if moving else [slice(None)]
        for rows in settings:
            known = {n: int(around[n][rows][0]) for n in moving}
            made = self._touching(write, known, {n: v[rows] for n, v in around.items()}, elements[rows])
            inside = _inside(write, made)
            if inside.any():
                yield made if inside.all() else {n: v[inside] for n, v in made.items()}

    def _touching(self, write: Access, known: Mapping[str, int], around: Instances, elements: Points) -> Instances:
        ranges = {n: s for n, s in write.ranges.items() if n not in around}
        ranges |= {n: (s[0], s[0]) for n, s in ranges.items() if n in self._idle(write)}
        moving = self._variables(write)
        own = [n for n in ranges if n in moving]
        shape = [ranges[n][1] - ranges[n][0] + 1 for n in own]
        if prod(shape) > MAX_INSTANCES:
            raise Untraceable("a statement has too many instances")
        key = (write.index, *known.items(), *((n, ranges[n]) for n in own))
        if key not in self._sorted:
            self._sorted[key] = _by_place(write.index, known, {n: ranges[n] for n in own})
        places, order = self._sorted[key]
        first = np.searchsorted(places, elements, "left")
        counts = np.searchsorted(places, elements, "right") - first
        rows = np.repeat(np.arange(len(elements)), counts)
        hits = order[np.arange(len(rows)) + (first - (np.cumsum(counts) - counts))[rows]]
        values: Instances = {n: v[rows] for n, v in around.items()}
        if own:
            at = np.unravel_index(hits, shape)
            values |= {n: ranges[n][0] + at[p] for p, n in enumerate(own)}
        return _crossed(values, {n: s for n, s in ranges.items() if n not in own})

    @memoized
    def _variables(self, write: Access) -> frozenset[str]:
        """Return the variables of a write's index."""
        return frozenset(variables(write.index))

    @memoized
    def _idle(self, write: Access) -> frozenset[str]:
        """Return the thread variables on which a statement does not depend: one value stands for all."""
        accesses = [*self._reads[write.statement], *self._writes[write.statement]]
        threads = {lp.var for _, lp in write.loops if lp.kind is Kind.THREAD}
        for a in accesses:
            threads -= decided_by(a.index, a.path)
        alone = any(a.register for a in accesses)  # what it reads or writes is each thread's own
        return frozenset() if alone else frozenset(threads)


class _Wanted:
    """Requests of a buffer by reads that share the same loops with its writes: element, tag, role, each loop's value.

    Columns are sorted, so that requests of a part of the buffer are contiguous.
    """

    def __init__(self, read: Access, shared: int) -> None:
        self.read = read
        self._names = [lp.var for _, lp in read.loops[:shared]]
        self.table = np.zeros((3 + len(self._names), 0), np.int64)
        self.found = np.zeros(0, bool)  # some statement writes it
        self.closed = np.zeros(0, bool)  # and what was written before is lost
        self._fresh: list[Points] = []
        self._reach = (0, -1)  # the first and the last element that was ever wanted

    def add(self, places: Points, around: Instances) -> None:
        low, high = int(places.min()), int(places.max())
        first, last = self._reach
        self._reach = (min(first, low), max(last, high)) if first <= last else (low, high)
        self._fresh.append(np.stack([places, around[TAG], around[ROLE], *(around[n] for n in self._names)]))

    def between(self, low: int, high: int) -> Points:
        """Return the numbers of the columns that are still wanted, each once, of the elements from `low` to `high`."""
        if high < self._reach[0] or self._reach[1] < low:
            return _NONE
        self._merge()
        first, end = np.searchsorted(self.table[0], (low, high + 1))
        result: Points = first + np.flatnonzero(~self.closed[first:end])
        return result

    def _merge(self) -> None:
        if not self._fresh:
            return
        still = ~self.closed
        merged = np.concatenate([self.table[:, still], *self._fresh], axis=1)
        seen = np.zeros(merged.shape[1], bool)
        seen[: int(still.sum())] = self.found[still]
        order, first = in_order(merged)
        starts = np.flatnonzero(first)
        self.table = merged[:, order[starts]]
        self.found = np.logical_or.reduceat(seen[order], starts)  # of equal ones, if one of them was found
        self.closed = np.zeros(len(starts), bool)
        self._fresh = []

    def keep(self, tags: NDArray[np.bool_]) -> None:
        """Drop what was wanted for other tags."""
        kept = tags[self.table[1]]
        self.table, self.found, self.closed = self.table[:, kept], self.found[kept], self.closed[kept]
        self._fresh = [rows for part in self._fresh if (rows := part[:, tags[part[1]]]).size]

    def column(self, name: str) -> Points:
        result: Points = self.table[3 + self._names.index(name)]
        return result

    def lost(self) -> str:
        """Name an element that is read before any statement writes it; empty if there is none."""
        self._merge()
        return "" if self.found.all() else f"{self.read.buffer}[{self.table[0, np.argmin(self.found)]}]"


def _those(instances: Instances | None, tags: NDArray[np.bool_]) -> Instances | None:
    """Return the instances of some tags."""
    if instances is None or tags.all():
        return instances
    kept = tags[instances[TAG]]
    return {name: values[kept] for name, values in instances.items()}


def _by_place(index: Index, known: Mapping[str, int], ranges: Mapping[str, tuple[int, int]]) -> tuple[Points, Points]:
    """Return the elements of an index over all values of variables, ascending, and each combination's number."""
    axes = np.ogrid[tuple(slice(low, high + 1) for low, high in ranges.values())]
    grid: dict[str, Any] = {**known, **dict(zip(ranges, axes, strict=True))}
    shape = [high - low + 1 for low, high in ranges.values()]
    places = np.broadcast_to(np.asarray(evaluate(index, grid), np.int64), shape).ravel()
    order = np.argsort(places, kind="stable")
    return places[order], order


def _alike(columns: Sequence[Points]) -> list[Points]:
    """Group rows that agree in all columns."""
    order = np.lexsort(columns)
    change = np.any([np.diff(c[order]) != 0 for c in columns], axis=0)
    return np.split(order, np.flatnonzero(change) + 1) if len(order) else []


def _distinct(*columns: Points) -> Points:
    """Return every row once, sorted by the first column, then the second, …."""
    order, first = in_order(columns)
    kept = order[first]
    return np.stack([c[kept] for c in columns], 1)


def _crossed(values: Instances, rest: Mapping[str, tuple[int, int]]) -> Instances:
    """Combine every instance with every combination of the values of further variables."""
    times = prod(max(high - low + 1, 0) for low, high in rest.values())
    count = len(values[TAG]) if times else 0
    if count * times > MAX_INSTANCES:
        raise Untraceable("a statement has too many instances")
    if times == 1:
        return values | {n: np.full(count, low) for n, (low, _) in rest.items()}
    result = {n: np.repeat(v, times) for n, v in values.items()}
    if not times:  # a loop that does not run
        return result | {n: np.zeros(0, np.int64) for n in rest}
    each = 1
    for name, (low, high) in rest.items():
        size = high - low + 1
        result[name] = np.tile(np.repeat(np.arange(low, high + 1), each), count * (times // (each * size)))
        each *= size
    return result


def _inside(access: Access, instances: Instances) -> NDArray[np.bool_]:
    """Return a mask of the instances in which the access happens."""
    return happens(access.path, instances, (len(instances[TAG]),))


def _places(read: Access, instances: Instances) -> tuple[Points, Instances]:
    """Return the elements that instances of a statement read, and these instances."""
    values = _crossed(instances, {n: (0, extent - 1) for n, extent in read.more if n not in instances})
    inside = _inside(read, values)
    places = np.broadcast_to(np.asarray(evaluate(read.index, values), np.int64), inside.shape)
    return (places, values) if inside.all() else (places[inside], {n: v[inside] for n, v in values.items()})


def _numbered(read: Access, instances: Instances) -> Points:
    """Return instances as (tag, number)."""
    number = np.zeros(len(instances[TAG]), np.int64)
    for name, (low, high) in read.ranges.items():
        number = number * (high - low + 1) + instances[name] - low
    return np.stack([instances[TAG], number], 1)
