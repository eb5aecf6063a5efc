"""Slots beside estimates: rows of equal rTasks, waits, and the mean that a goal is set for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.gpu import peers as gpu_peers
from benchmarks.gpu import slots
from rammer import compile
from rammer_viz.demo import lstm_stack


def test_rows_waits_and_the_mean(tmp_path: Path) -> None:
    """Two lanes: an rTask, a wait and an rTask; and one rTask whose estimate is right."""
    times = [[0, 2], [2.5, 3], [3, 6], [1, 2]]
    np.savez(
        tmp_path / "net.npz",
        times=np.array(times, np.float32),
        operators=np.array([0, -1, 0, 1], np.int32),
        lengths=np.array([3, 1]),
        programs=np.array(1),
        total_us=np.array(6.0),
        kinds=np.array(["matmul", "add"]),
        rkernels=np.array(["m", "a"]),
        rtask_us=np.array([2.0, 1.0]),
        estimated_us=np.array(4.0),
    )
    found = slots.read(tmp_path / "net.npz")
    assert found.rows == (slots.Row("matmul", "m", 2, 2.5, 2.0), slots.Row("add", "a", 1, 1.0, 1.0))
    assert (found.wait_us, found.between_us) == (0.5, 0.25)
    assert found.off == pytest.approx((4 * 0.25 + 1 * 0) / 5)
    said = CliRunner().invoke(slots.main, [str(tmp_path), "--json", str(tmp_path / "s.json")])
    assert "of a run 0.500" in said.output and (tmp_path / "s.json").exists(), said.output


def test_slots_of_a_program_have_its_estimates(tmp_path: Path) -> None:
    with compile(lstm_stack(2, 3, 16), "cuda", device="emulator:3", tune_seconds=0) as program:
        x = np.zeros((3, 1, 16), np.float32)
        gpu_peers.save_slots(program, {"x": x}, tmp_path / "net.npz")
        found = slots.read(tmp_path / "net.npz")
        assert sum(row.count for row in found.rows) == program.report().num_rtasks
        assert {row.rkernel for row in found.rows} == {row.rkernel for row in program.report().operators}
        assert all(row.estimated_us > 0 and row.measured_us >= 0 for row in found.rows)
