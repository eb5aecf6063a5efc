"""Floors of single operators."""

from __future__ import annotations

import pytest

import rammer
from benchmarks.micro.limits import Level, Limits
from benchmarks.on_paper.operators import rows, table
from rammer_viz.demo import lstm_stack

STEPS, HIDDEN = 5, 32


def test_every_operator_has_both_floors_and_its_share_of_the_time() -> None:
    limits = Limits(2, 100.0, (Level("L2", 1 << 10, 50.0), Level("DRAM", 1 << 62, 10.0)))
    with rammer.compile(lstm_stack(1, STEPS, HIDDEN), "cpu", device=2, tune_seconds=0) as program:
        plan = program.plan
        found = rows(plan, [1000.0] * len(plan.graph.operators), limits)
    assert sum(row.count for row in found) == len(plan.graph.operators)
    assert sum(row.ms for row in found) == pytest.approx(len(plan.graph.operators) / 2)
    (cell,) = (row for row in found if row.kind == "lstm_cell")
    products = 2 * 4 * HIDDEN * HIDDEN
    assert cell.count == STEPS and cell.arithmetic_ms >= STEPS * products / 100e6
    recurrent = 4 * 4 * HIDDEN * HIDDEN / 10e6  # larger than the nearest level, so every step reads it from the last
    assert cell.bytes_ms == pytest.approx(STEPS * recurrent, rel=0.1)
    assert found == sorted(found, key=lambda row: -row.gap_ms)
    assert table(found, 1).row_count == 2
