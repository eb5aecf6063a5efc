"""Where a run's time goes: arithmetic on made-up times, and a real profile."""

from __future__ import annotations

import numpy as np
import pytest

import rammer
from rammer.errors import DeviceError
from rammer.runtime.usage import usage_of
from rammer.vdevice.base import SlotTimes
from rammer_viz.demo import lstm_stack


def times(*lanes: list[tuple[int, float, float]], total: float) -> SlotTimes:
    """One rProgram; each lane lists (operator, begin, end)."""
    spans = tuple(np.array([slot[1:] for slot in lane], float).reshape(-1, 2) for lane in lanes)
    operators = tuple(np.array([slot[0] for slot in lane], np.int32) for lane in lanes)
    return SlotTimes((spans,), (operators,), total)


def test_time_is_split_into_rtasks_barriers_and_nothing() -> None:
    run = times([(0, 1, 4), (-1, 4, 5), (1, 5.5, 9)], [(0, 0, 2)], total=10)
    usage = usage_of([run], 2)
    assert usage.in_rtasks == pytest.approx(8.5 / 20) and usage.overhead == pytest.approx(11.5 / 20)
    assert usage.waiting == pytest.approx(1 / 20) and usage.between == pytest.approx(0.5 / 20)
    assert usage.scheduling == pytest.approx(2.5 / 10)  # from 4 to 5.5 and from 9 to 10
    assert usage.operator_us == (5.0, 3.5)


def test_slow_runs_do_not_count() -> None:
    quick, slow = times([(0, 0, 1)], total=1), times([(0, 0, 1)], total=100)
    assert usage_of([slow, quick], 1).run_us == 1


def test_a_profile_is_part_of_the_report_but_not_of_a_saved_program() -> None:
    x = np.zeros((5, 1, 32), np.float32)
    with rammer.compile(lstm_stack(2, 5, 32), "cpu", device=2, tune_seconds=0) as program:
        assert program.report().usage is None
        (port,) = program.inputs
        usage = program.profile({port.name: x}, seconds=0)
        report = program.report()
        assert report.usage == usage and report.to_json()["usage"]["overhead"] == usage.overhead
        assert report.to_save()["usage"] is None
        assert len(usage.operator_us) == report.num_operators and 0 < usage.in_rtasks < 1
        assert str(usage) in str(report)


def test_a_device_that_does_not_time_rtasks_says_so() -> None:
    with rammer.compile(lstm_stack(1, 2, 8), "ipu", tune_seconds=0) as program:
        (port,) = program.inputs
        with pytest.raises(DeviceError, match="does not time"):
            program.profile({port.name: np.zeros(port.type.shape, np.float32)})
