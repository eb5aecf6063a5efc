"""Sets of ranges against sets of numbers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from rammer.ir.analysis.intervals import Intervals, expand, merged, missing, union, within


def drawn(random: np.random.Generator) -> Intervals:
    points = np.flatnonzero(random.random(40) < random.choice([0.05, 0.5, 0.95])) + int(random.integers(-20, 20))
    return merged(points, points + 1)


def members(intervals: Intervals) -> set[int]:
    ranges = intervals.tolist()
    assert all(low < high for low, high in ranges)
    assert all(a[1] < b[0] for a, b in pairwise(ranges)), "canonical"
    assert intervals.dtype == np.int64 and intervals.shape == (len(ranges), 2)
    return {n for low, high in ranges for n in range(low, high)}


@pytest.mark.parametrize("seed", range(200))
def test_they_are_sets(seed: int) -> None:
    random = np.random.default_rng(seed)
    one, other = drawn(random), drawn(random)
    assert members(missing(one, other)) == members(one) - members(other)
    assert not members(missing(one, one.copy()))
    assert members(union([one, other])) == members(one) | members(other)
    assert members(within(one, -5, 7)) == members(one) & set(range(-5, 7))
    assert expand(one).tolist() == sorted(members(one))


@pytest.mark.parametrize("seed", range(50))
def test_ranges_that_overlap_are_merged(seed: int) -> None:
    random = np.random.default_rng(seed)
    starts = random.integers(0, 60, int(random.integers(1, 12)))
    ends = starts + random.integers(1, 9, len(starts))
    wanted = {n for low, high in zip(starts.tolist(), ends.tolist(), strict=True) for n in range(low, high)}
    assert members(merged(starts, ends)) == wanted
