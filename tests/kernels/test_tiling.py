"""Axes cut into tasks: whole pieces, about as many as wanted, and as evenly over vEUs as two axes allow."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rammer.kernels.tiling import SLACK, busiest, cut, even_share, even_shares, pieces

AXES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 8)), min_size=1, max_size=3)


def one_axis_after_another(units: list[int], want: int, veus: int) -> list[int | None]:
    """Each axis in as many pieces as are still wanted."""
    found: list[int | None] = []
    for count in units:
        found.append(even_share(count, want, veus) if want > 1 else None)
        want //= -(-count // (found[-1] or count))
    return found


@settings(max_examples=150)
@given(AXES, st.integers(1, 24), st.integers(1, 12))
def test_the_busiest_veu_has_no_more_than_by_any_two_axes(axes: list[tuple[int, int]], want: int, veus: int) -> None:
    named = [(str(n), units * grain, grain) for n, (units, grain) in enumerate(axes)]
    steps = {loop.axis: loop.step for loop in cut(named, want, veus)}
    units = [u for u, _ in axes if u > 1]
    grains = [g for u, g in axes if u > 1]
    wide = [n for n, (u, _) in enumerate(axes) if u > 1]
    assert all(steps.get(str(n), g) % g == 0 for n, g in zip(wide, grains, strict=True))
    shares = [steps[str(n)] // g if str(n) in steps else None for n, g in zip(wide, grains, strict=True)]
    greedy = one_axis_after_another(units, want, veus)
    found, plain = busiest(units, shares, veus), busiest(units, greedy, veus)
    assert found <= plain and pieces(units, shares) <= max(2 * want, pieces(units, greedy))
    if want < 2 or veus < 2:
        return
    for other in range(1, len(units)):
        for first, second in product(range(1, units[0]), range(1, units[other])):
            way = [first, *(second if n == other else None for n in range(1, len(units)))]
            if pieces(units, way) <= 2 * want:
                assert found <= max(SLACK * busiest(units, way, veus), SLACK * prod(units) / veus)


@pytest.mark.parametrize(
    ("units", "want", "veus", "shares"),
    [
        ((2, 30), 3, 3, [None, 10]),  # a batch of two would keep two of three vEUs busy
        ((3, 17), 2, 2, [None, 9]),  # three heads on two vEUs
        ((10, 3), 3, 3, [None, 1]),  # not 4, 4 and 2 rows of three
        ((12, 8), 4, 4, [3, None]),
        ((5, 1), 3, 3, [2, None]),
    ],
)
def test_a_second_axis_is_cut_where_that_is_more_even(
    units: tuple[int, ...], want: int, veus: int, shares: list[int | None]
) -> None:
    assert even_shares(units, want, veus)[: len(shares)] == shares
