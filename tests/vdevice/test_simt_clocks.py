"""Clocks of every slot, recorded by the program itself: on the emulator, and as a GPU's runtime would read them."""

from __future__ import annotations

import numpy as np
import pytest
from simt_plans import chain, image, load, mirror, placed, values

import rammer
from rammer.errors import DeviceError, InputError
from rammer.ir.program import BarrierRTask
from rammer.vdevice.simt.codegen.table import LINE
from rammer.vdevice.simt.runtime.clocks import profiled, slot_times
from rammer_viz.demo import lstm_stack

GRAPH = chain(3)
LANES = [[0, [(1, 1)], 2], [[(0, 0)], 1]]
PLAN = placed(GRAPH, [mirror(GRAPH)] * 3, LANES)


@pytest.mark.parametrize("deterministic", [True, False])
def test_slots_follow_the_plan(deterministic: bool) -> None:
    """A row per slot; lanes in order, nobody before what it waits for, and the results are those of a plain run."""
    loaded = load(PLAN, deterministic=deterministic)
    x = values()
    for _ in range(3):
        outputs, times = loaded.run_timed(x)
        np.testing.assert_array_equal(outputs["t2"], loaded.run(x)["t2"])
    assert times.emulated
    (lanes,), (owners,) = times.programs, times.operators
    assert [o.tolist() for o in owners] == [[0, -1, 2], [-1, 1]]
    for lane in lanes:
        assert np.all(np.diff(lane.reshape(-1)) >= 0)
    for lane, slots in zip(lanes, PLAN.programs[0].lanes, strict=True):
        for (_, ready), slot in zip(lane, slots, strict=True):
            if isinstance(slot, BarrierRTask):
                assert all(lanes[w.veu][w.order, 1] <= ready for w in slot.waits)
    assert 0 < max(lane[-1, 1] for lane in lanes) <= times.total_us


def test_clocks_of_veus_are_put_on_one_scale() -> None:
    """vEU 1 has a clock of half the rate, and began 1 us later; the launch took 5 us more."""
    streams = load(PLAN).streams
    rows = len(streams.instructions)
    clocks = np.zeros((rows, 4), np.uint64)
    ends = [int(n) - 1 for n in streams.bounds[1:]]
    clocks[ends[0]] = 1000, 50, 11000, 10050
    clocks[ends[1]] = 2000, 7000, 12000, 12000
    clocks[int(streams.bounds[0])] = 50, 50, 2050, 0
    clocks[int(streams.bounds[1])] = 7000, 7500, 8000, 0
    state = np.concatenate([np.zeros(LINE * 5, np.uint32), clocks.reshape(-1).view(np.uint32)])
    times = slot_times(streams, state, 16.0)
    assert times.total_us == 16.0 and not times.emulated
    np.testing.assert_allclose(times.programs[0][0][0], [0, 2])
    np.testing.assert_allclose(times.programs[0][1], [[1, 2], [2, 3]])
    assert slot_times(streams, state).total_us == 11.0


def test_the_report_says_that_it_is_emulated() -> None:
    x = np.random.default_rng(0).standard_normal((4, 1, 8)).astype(np.float32)
    used = {}
    for policy in ("sequential", "wavefront"):
        with rammer.compile(lstm_stack(2, 4, 8), "cuda", device="emulator:3", policy=policy, tune_seconds=0) as program:
            used[policy] = program.profile({"x": x}, seconds=0)
            assert used[policy].emulated and "emulated" in str(program.report())
            assert 0 < used[policy].in_rtasks <= 1 and 0 <= used[policy].scheduling < 1
    assert used["sequential"].waiting == 0 < used["wavefront"].waiting


def test_a_deadlock_is_reported_in_a_timed_run_too() -> None:
    loaded = load(placed(GRAPH, [mirror(GRAPH)] * 3, [[0, [(1, 1)], 2], [[(0, 2)], 1]]))
    for _ in range(2):
        with pytest.raises(DeviceError, match="waited in vain"):
            loaded.run_timed(values())
    loaded.close()
    with pytest.raises(InputError, match="closed"):
        loaded.run_timed(values())


def test_programs_without_profiling_pay_nothing() -> None:
    """Only the definition makes stamps of the marks."""
    text = image(PLAN).files["program.cu"].decode()
    assert "MK_PROFILE 1" not in text and profiled(text).count("MK_PROFILE 1") == 1
