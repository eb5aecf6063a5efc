"""Lanes on paper: who waits, who is busy, and what stays in registers."""

from __future__ import annotations

import pytest
from simt_plans import chain, mirror, placed

from benchmarks.hops import HopCosts
from benchmarks.lanes import Parts, simulated

COSTS = HopCosts(fence_us=0.25, poll_us=0.5, dispatch_us=0.125)


def lanes(*rows: list[object], registers: bool = False):  # type: ignore[no-untyped-def]
    graph = chain(3)
    plan = placed(graph, [mirror(graph)] * 3, list(rows))
    return simulated(plan, [Parts(2.0, 1.0)] * 3, COSTS, registers)


def test_a_lane_does_one_thing_after_the_other() -> None:
    found = lanes([0, 1, 2], [])
    assert (found.total_us, found.fullest_us, found.same) == (3 * 3.125, 3 * 3.125, 2 / 3)
    assert lanes([0, 1, 2], [], registers=True).total_us == 3 * 3.125 - 2 * 2.0


def test_what_comes_before_a_wait_hides_behind_it() -> None:
    """The second vEU loads early meanwhile; then it waits for the first one's rTask, and for fence and poll."""
    found = lanes([0], [[(0, 0)], 1, 2])
    assert found.total_us == pytest.approx(3.125 + 0.75 + 1.0 + 3.125)
    kept = lanes([0], [[(0, 0)], 1, 2], registers=True)
    assert kept.total_us == pytest.approx(found.total_us - 2.0) and kept.fullest_us == found.fullest_us - 2.0
