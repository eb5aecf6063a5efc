"""Compute which elements an access touches over its loops.

Index and conditions are split into parts that share no variable. Each part is exact, or an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np

from rammer.ir.analysis.access import Access
from rammer.ir.analysis.intervals import NOTHING, Intervals, expand, in_order, merged, repeated, sumset, within
from rammer.ir.analysis.simplify import simplify_index
from rammer.ir.expr import Path, Range, decided_by, independent_groups
from rammer.ir.index import Index, bounds, evaluate, variables
from rammer.ir.semantics.evaluate import happens

Ranges: TypeAlias = Mapping[str, tuple[int, int]]  # variable -> first and last value
Spans: TypeAlias = tuple[tuple[str, tuple[int, int]], ...]

MAX_POINTS = 1 << 19  # points of one part that are enumerated
MAX_RANGES = 1 << 18  # ranges of a sum of parts


@dataclass(frozen=True, slots=True, eq=False)
class Footprint:
    """Elements, and how often elements are touched in all. If not `exact`: a superset, and `times` is not valid."""

    elements: Intervals
    times: int
    exact: bool = True

    @property
    def size(self) -> int:
        return int((self.elements[:, 1] - self.elements[:, 0]).sum())


EMPTY = Footprint(NOTHING, 0)


def footprint(access: Access, still: Mapping[str, int] | None = None) -> Footprint:
    """Return the elements that an access touches over all its variables, except those fixed by `still`."""
    return _touched(access, tuple((still or {}).items()))


@lru_cache(maxsize=1 << 14)  # what one statement writes is requested by each that reads it
def _touched(access: Access, still: tuple[tuple[str, int], ...]) -> Footprint:
    ranges = dict(access.ranges)
    ranges |= {name: (value, value) for name, value in still if name in ranges}
    if any(high < low for low, high in ranges.values()):
        return EMPTY
    path = _open(access.path, ranges)
    if path is None:
        return EMPTY
    index = simplify_index(access.index, ranges)
    used = {name for name in decided_by(index, path) if ranges[name][0] < ranges[name][1]}
    idle = prod(high - low + 1 for name, (low, high) in ranges.items() if name not in used)
    found = _found(index, path, tuple(sorted((name, ranges[name]) for name in used)))
    return Footprint(found.elements, found.times * idle, found.exact)


def _open(path: Path, ranges: Ranges) -> Path | None:
    """Return the conditions that are left open, each as narrow as its variables allow; None if they cannot hold."""
    kept: dict[tuple[tuple[Range, ...], bool], None] = {}
    for where, wanted in path:
        left: list[Range] = []
        never = False
        for r in where:
            index = simplify_index(r.index, ranges)
            low, high = bounds(index, ranges)
            if high < r.low or low >= r.high:
                never = True
            elif low < r.low or high >= r.high:
                shift = index.const
                left.append(Range(index - shift, max(r.low, low) - shift, min(r.high, high + 1) - shift))
        if (wanted and never) or (not wanted and not never and not left):
            return None
        if wanted:
            for r in left:
                kept[(r,), True] = None
        elif not never:
            kept[tuple(left), False] = None
    return tuple(kept)


@lru_cache(maxsize=1 << 14)
def _found(index: Index, path: Path, spans: Spans) -> Footprint:
    ranges = dict(spans)
    parts = [_part(*part, ranges) for part in _parts(index, path)]
    if any(not part.times for part in parts):
        return EMPTY
    times = prod(part.times for part in parts)
    exact = all(part.exact for part in parts)
    if prod(len(part.elements) for part in parts) > MAX_RANGES:
        low, high = (sum(int(part.elements[side, side]) for part in parts) for side in (0, -1))
        return Footprint(np.array([[low, high - len(parts) + 1]]) + index.const, times, False)
    return Footprint(sumset([part.elements for part in parts]) + index.const, times, exact)


def _parts(index: Index, path: Path) -> list[tuple[Index, Path]]:
    """Group terms of the index and conditions so that no two groups share a variable."""
    parts: list[tuple[Index, Path]] = []
    free = Index()  # terms of variables on which nothing else depends: one part
    terms = (Index(0, (term,)) for term in index.terms)
    for _, found, where in independent_groups(((variables(term), term) for term in terms), path):
        total = sum(found, Index())
        if where or any(not isinstance(atom, str) for atom, _ in total.terms):
            parts.append((total, where))
        else:
            free += total
    return [*parts, (free, ())] if free.terms else parts


def _part(index: Index, path: Path, ranges: Ranges) -> Footprint:
    axes = sorted(decided_by(index, path))
    sizes = [ranges[n][1] - ranges[n][0] + 1 for n in axes]
    if not path and all(isinstance(atom, str) for atom, _ in index.terms):
        return Footprint(line(index, ranges), prod(sizes))
    if prod(sizes) > MAX_POINTS:
        return _bounded(index, path, ranges, prod(sizes))
    values = np.ogrid[tuple(slice(ranges[n][0], ranges[n][1] + 1) for n in axes)]
    grid: dict[str, Any] = dict(zip(axes, values, strict=True))
    inside = happens(path, grid, sizes)
    points = np.unique(np.broadcast_to(np.asarray(evaluate(index, grid)), sizes)[inside])
    return Footprint(merged(points, points + 1), int(inside.sum()))


def line(index: Index, ranges: Ranges) -> Intervals:
    """Return the values of an affine index."""
    lowest, steps = index.const, []
    for name, coef in index.terms:
        low, high = ranges[str(name)]
        lowest += min(coef * low, coef * high)
        steps.append((abs(coef), high - low + 1))
    values: Intervals = np.array([[lowest, lowest + 1]])
    for step, count in sorted(steps):
        values = repeated(values, step, count)
    return values


def _bounded(index: Index, path: Path, ranges: Ranges, points: int) -> Footprint:
    """Bound a part of too many points: exactly if index and conditions all follow one number, else by one range."""
    low, high = bounds(index, ranges)
    around = Footprint(np.array([[low, high + 1]]), points, False)
    number = path[0][0][0].index if path else Index()
    if not number.terms or not all(isinstance(atom, str) for atom, _ in number.terms):
        return around
    atom, coef = number.terms[0]
    factor, rest = divmod(dict(index.terms).get(atom, 0), coef)
    if rest or (index - number * factor).terms or not factor:
        return around
    values = line(number, ranges)
    if int((values[:, 1] - values[:, 0]).sum()) != points:
        return around
    first, end = bounds(number, ranges)
    for where, wanted in path:
        if not wanted or len(where) != 1 or where[0].index != number:
            return around
        first, end = max(first, where[0].low), min(end, where[0].high - 1)
    kept = expand(within(values, first, end + 1))
    places = np.sort(kept * factor + index.const)
    return Footprint(merged(places, places + 1), len(places))


def states(accesses: Sequence[Access], loops: Sequence[str], ranges: Ranges, most: int) -> list[dict[str, int]] | None:
    """Return an assignment of variables for each way in which the accesses behave; None for over `most` points.

    Accesses behave alike where their indices shift together and their conditions leave the same open.
    """
    used = [n for n in loops if ranges[n][0] < ranges[n][1]]
    decisive = set[str]().union(*(decided_by(a.index, a.path) for a in accesses))
    relevant = [n for n in used if n in decisive]
    base = {n: ranges[n][0] for n in used}
    total = prod(ranges[n][1] - ranges[n][0] + 1 for n in relevant)
    if total > most:
        return None
    if not relevant:
        return [base]
    shape = [ranges[n][1] - ranges[n][0] + 1 for n in relevant]
    axes = np.ogrid[tuple(slice(ranges[n][0], ranges[n][1] + 1) for n in relevant)]
    grid: dict[str, Any] = dict(zip(relevant, axes, strict=True))
    columns: dict[Any, Any] = {}
    start: Any = None
    for access in accesses:
        inner = {n: s for n, s in access.ranges.items() if n not in relevant}
        moving, mixed = _separate(access.index, grid)
        if start is None:
            start = evaluate(moving, grid)
        if ("at", access.buffer, moving) not in columns:
            columns["at", access.buffer, moving] = evaluate(moving, grid) - start
        columns |= {name: grid[name] for name in mixed}
        for r in dict.fromkeys(r for where, _ in access.path for r in where):
            moving, mixed = _separate(r.index, grid)
            columns |= {name: grid[name] for name in mixed}
            if mixed:
                continue
            low, high = bounds(r.index - moving, inner)
            if (r, low, high) not in columns:
                value = evaluate(moving, grid)
                columns[r, low, high] = np.minimum(np.maximum(r.low - value, low), high + 1)
                columns[r, low, high, "end"] = np.minimum(np.maximum(r.high - value, low), high + 1)
    moved = [np.broadcast_to(c, shape).ravel() for c in columns.values() if np.ndim(c) and c.min() < c.max()]
    order, fresh = in_order(moved or [np.zeros(prod(shape), np.int64)])
    first = order[fresh]
    places = np.unravel_index(first, shape)
    return [
        {**base, **{n: int(ranges[n][0] + p[row]) for n, p in zip(relevant, places, strict=True)}}
        for row in range(len(first))
    ]


def _separate(index: Index, grid: Mapping[str, Any]) -> tuple[Index, set[str]]:
    """Return the terms that variables of `grid` fix, and those of these variables that other terms mix with others."""
    still, mixed = [], set()
    for term in index.terms:
        names = variables(Index(0, (term,)))
        if names <= grid.keys():
            still.append(term)
        else:
            mixed |= names & grid.keys()
    return Index(0, tuple(still)), mixed
