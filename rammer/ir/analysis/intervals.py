"""Represent sets of elements as half-open ranges: sorted, disjoint, never touching. Known as: interval sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Intervals: TypeAlias = NDArray[np.int64]  # [n, 2]: half-open ranges, sorted, disjoint, not even touching

MOST_NUMBERS = 1 << 62  # that an int64 distinguishes
NOTHING: Intervals = np.zeros((0, 2), np.int64)


def union(sets: Sequence[Intervals]) -> Intervals:
    """Return the elements in any of the sets."""
    some = [s for s in sets if s.size]
    if len(some) < 2:
        return some[0] if some else NOTHING
    flat = np.concatenate(some)
    return merged(flat[:, 0], flat[:, 1])


def missing(wanted: Intervals, present: Intervals) -> Intervals:
    """Return the elements of `wanted` that are not in `present`."""
    if not len(wanted) or not len(present):
        return wanted
    if np.array_equal(wanted, present):
        return NOTHING
    gaps = np.empty((len(present) + 1, 2), np.int64)
    gaps[0, 0], gaps[1:, 0] = wanted[0, 0], present[:, 1]
    gaps[:-1, 1], gaps[-1, 1] = present[:, 0], wanted[-1, 1]
    gaps = gaps[gaps[:, 0] < gaps[:, 1]]
    first = np.searchsorted(gaps[:, 1], wanted[:, 0], "right")
    counts = np.searchsorted(gaps[:, 0], wanted[:, 1], "left") - first
    if not counts.any():
        return NOTHING
    ranges = np.repeat(wanted, counts, axis=0)
    meeting = gaps[np.arange(len(ranges)) + np.repeat(first - (np.cumsum(counts) - counts), counts)]
    return np.concatenate([np.maximum(ranges[:, :1], meeting[:, :1]), np.minimum(ranges[:, 1:], meeting[:, 1:])], 1)


def within(intervals: Intervals, low: int, high: int) -> Intervals:
    """Return the elements in [low, high)."""
    clipped = np.clip(intervals, low, max(low, high))
    result: Intervals = clipped[clipped[:, 0] < clipped[:, 1]]
    return result


def expand(intervals: Intervals) -> NDArray[np.int64]:
    """Return every element of a set, ascending."""
    lengths = intervals[:, 1] - intervals[:, 0]
    before = np.cumsum(lengths) - lengths
    result: NDArray[np.int64] = np.arange(lengths.sum()) + np.repeat(intervals[:, 0] - before, lengths)
    return result


def repeated(intervals: Intervals, step: int, count: int) -> Intervals:
    """Return the union of the set shifted by 0, step, … (count - 1) * step."""
    if len(intervals) == 1 and intervals[0, 1] - intervals[0, 0] >= step:
        return np.array([[intervals[0, 0], intervals[0, 1] + step * (count - 1)]])
    return shifted(intervals, np.arange(count) * step)


def sumset(parts: Sequence[Intervals]) -> Intervals:
    """Return all sums of one position from each part, as dimensions of a load add up. Known as: Minkowski sum."""
    if any(not len(p) for p in parts):
        return NOTHING
    total: Intervals = np.array([[0, 1]])
    shift = 0
    many = []
    for part in parts:
        if len(part) == 1 and part[0, 1] - part[0, 0] == 1:
            shift += int(part[0, 0])
        else:
            many.append(part)
    for part in sorted(many, key=_finest):
        if len(part) == 1:
            ends = np.array([[part[0, 0], part[0, 1] - 1]])
            total = total + ends if len(total) == 1 else shifted(total, expand(part))
            continue
        steps = part[1:, 0] - part[:-1, 0]
        if len(total) == 1 and (steps <= total[0, 1] - total[0, 0]).all() and (part[:, 1] - part[:, 0] == 1).all():
            total = np.array([[total[0, 0] + part[0, 0], total[0, 1] + part[-1, 1] - 1]])
        else:
            total = shifted(total, expand(part))
    return total + shift


def shifted(intervals: Intervals, offsets: NDArray[np.int64]) -> Intervals:
    flat = (offsets[:, None, None] + intervals).reshape(-1, 2)
    return merged(flat[:, 0], flat[:, 1])


def merged(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Intervals:
    """Return the union of ranges in canonical form."""
    if not len(starts):
        return NOTHING
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    begins = np.flatnonzero(starts[1:] > reach[:-1]) + 1
    found = np.empty((len(begins) + 1, 2), np.int64)
    found[0, 0], found[1:, 0] = starts[0], starts[begins]
    found[:-1, 1], found[-1, 1] = reach[begins - 1], reach[-1]
    return found


def _finest(intervals: Intervals) -> int:
    """Return the smallest step between members. Sets of small steps are summed first, so that their sums merge."""
    if len(intervals) and (intervals[:, 1] - intervals[:, 0] > 1).any():
        return 1
    return int((intervals[1:, 0] - intervals[:-1, 0]).min()) if len(intervals) > 1 else 1 << 62


def in_order(columns: Sequence[NDArray[np.int64]] | NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the order of rows by the first column, then the second, …; and a mask of rows unlike the one before."""
    count, number, extent = len(columns[0]), np.zeros(len(columns[0]), np.int64), 1
    for column in columns if count else ():  # rows as numbers of many digits: sorted far faster than by each column
        low, high = int(column.min()), int(column.max())
        extent *= high - low + 1
        if extent > MOST_NUMBERS:
            break
        if low < high:
            number = number * (high - low + 1) + (column - low)
    first = np.ones(count, bool)
    if extent <= MOST_NUMBERS:
        order = np.argsort(number)
        first[1:] = np.diff(number[order]) != 0
    else:
        order = np.lexsort(tuple(columns)[::-1])
        first[1:] = np.any([np.diff(c[order]) != 0 for c in columns], axis=0)
    return order, first
