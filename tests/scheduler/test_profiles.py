"""Profilers: estimated and measured times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jobs import Job, make_kernel, make_problem

from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.scheduler.profiler import EstimatingProfiler, MeasuredProfiler


def one_kernel(num_rtasks: int = 4) -> tuple[object, ...]:
    problem = make_problem([Job("a", ((1, 1.0),)), Job("b", ((num_rtasks, 1.0),), ("a",))], VDeviceSpec("x", 2))
    operation = problem.graph.operators[1].operation
    return operation, problem.candidates[operation][0]


def test_estimates_follow_the_slower_of_arithmetic_and_memory() -> None:
    _, kernel = one_kernel()  # 4 rTasks: 20 slots, each of two operations, and 32 bytes in all
    slots = 4 * 4 + 4
    spec = VDeviceSpec("x", 2, clock_ghz=0.00025)
    assert EstimatingProfiler(spec).rtask_us(kernel) == pytest.approx(2 * slots / 4)
    slow = replace(spec, clock_ghz=2.5e8, memory=(MemoryLevel("DRAM", 1 << 30, "device", 0.004),))
    assert EstimatingProfiler(slow).rtask_us(kernel) == pytest.approx(32 / 4 / (0.004 / 2 * 1e3))
    near = replace(slow, memory=(MemoryLevel("L2", 1 << 20, "veu", 8.0), *slow.memory))
    assert EstimatingProfiler(near).rtask_us(kernel) == pytest.approx(32 / 4 / 8e3)
    assert kernel.fits(near) and not kernel.fits(replace(near, max_threads=0))


def test_overhanging_tiles_cost_whole_tiles() -> None:
    operation, _ = one_kernel(4)
    profiler = EstimatingProfiler(VDeviceSpec("x", 2, clock_ghz=0.00025))
    two, three = make_kernel(operation, 2), make_kernel(operation, 3)  # 4 points in three tiles of 2: one is empty
    assert profiler.rtask_us(three) == profiler.rtask_us(two)


def test_measured_times_win_over_estimates() -> None:
    operation, kernel = one_kernel()
    other = make_kernel(operation, 2)
    estimate = EstimatingProfiler(VDeviceSpec("x", 2))
    profiler = MeasuredProfiler({kernel: 12.5}, estimate)
    assert profiler.rtask_us(kernel) == 12.5
    assert profiler.rtask_us(other) == estimate.rtask_us(other)
