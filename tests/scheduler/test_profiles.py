"""Profilers, and the store of measured times."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.scheduler.profile_store import ProfileStore, kernel_key
from rammer.scheduler.profiler import EstimatingProfiler, MeasuredProfiler, Resources
from rammer.testing.problems import Job, make_kernel, make_problem


def one_kernel(num_rtasks: int = 4) -> tuple[object, ...]:
    problem = make_problem([Job("a", ((1, 1.0),)), Job("b", ((num_rtasks, 1.0),), ("a",))], VDeviceSpec("x", 2))
    operation = problem.graph.operators[1].operation
    return operation, problem.candidates[operation][0]


def test_estimates_follow_the_slower_of_arithmetic_and_memory() -> None:
    _, kernel = one_kernel()  # 4 rTasks: 36 operations and 32 bytes in all
    flops = 4 * 4 * 2 + 4
    spec = VDeviceSpec("x", 2, peak_gflops=0.001)
    assert EstimatingProfiler(spec).rtask_us(kernel) == pytest.approx(flops / 4)
    slow = replace(spec, peak_gflops=1e9, memory=(MemoryLevel("DRAM", 1 << 30, "device", 0.004),))
    assert EstimatingProfiler(slow).rtask_us(kernel) == pytest.approx(32 / 4 / (0.004 / 2 * 1e3))
    near = replace(slow, memory=(MemoryLevel("L2", 1 << 20, "veu", 8.0), *slow.memory))
    assert EstimatingProfiler(near).rtask_us(kernel) == pytest.approx(32 / 4 / 8e3)
    assert EstimatingProfiler(near).resources(kernel) == Resources(1, 0)


def test_overhanging_tiles_cost_whole_tiles() -> None:
    operation, _ = one_kernel(4)
    profiler = EstimatingProfiler(VDeviceSpec("x", 2, peak_gflops=0.001))
    two, three = make_kernel(operation, 2), make_kernel(operation, 3)  # 4 points in three tiles of 2: one is empty
    assert profiler.rtask_us(three) == profiler.rtask_us(two)


def test_measured_times_win_over_estimates() -> None:
    operation, kernel = one_kernel()
    other = make_kernel(operation, 2)
    estimate = EstimatingProfiler(VDeviceSpec("x", 2))
    profiler = MeasuredProfiler({kernel: 12.5}, estimate)
    assert profiler.rtask_us(kernel) == 12.5
    assert profiler.rtask_us(other) == estimate.rtask_us(other)


def test_kernel_keys_name_what_a_kernel_does() -> None:
    (_, first), (_, again), (operation, _) = one_kernel(), one_kernel(), one_kernel()
    assert kernel_key(first) == kernel_key(again)
    assert len({kernel_key(first), kernel_key(make_kernel(operation, 2)), kernel_key(first, "int main;")}) == 3


def test_times_are_kept_per_device_and_toolchain(tmp_path: Path) -> None:
    path = tmp_path / "new" / "profile.db"
    with ProfileStore(path, "cpu-a", "cc-1") as store:
        store.put({"k1": 1.5, "k2": 2.5})
        store.put({"k2": 3.5})
    with ProfileStore(path, "cpu-a", "cc-1") as store:
        assert store.get(["k1", "k2", "k3"]) == {"k1": 1.5, "k2": 3.5}
    with ProfileStore(path, "cpu-a", "cc-2") as store:
        assert store.get(["k1"]) == {}
        assert store.clear() == 0
    with ProfileStore(path, "cpu-a", "cc-1") as store:
        assert store.clear() == 2
        assert store.get(["k1"]) == {}


def test_many_keys(tmp_path: Path) -> None:
    times = {f"k{n}": float(n) for n in range(1801)}
    with ProfileStore(tmp_path / "p.db", "d", "t") as store:
        store.put(times)
        assert store.get(times) == times


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.db"
    path.write_bytes(content)
    with ProfileStore(path, "d", "t") as store:
        with pytest.warns(RuntimeWarning, match=r"was damaged \(.*\); moved to p\.db\.damaged-"):
            assert store.get(["k"]) == {}
        store.put({"k": 1.0})
        assert store.get(["k"]) == {"k": 1.0}
    (aside,) = tmp_path.glob("p.db.damaged-*")
    assert aside.read_bytes() == content


def test_another_form_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with ProfileStore(path, "d", "t") as store, pytest.warns(RuntimeWarning, match="its form is 99, not 1"):
        assert store.get(["k"]) == {}


def test_an_unusable_place_only_warns(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with ProfileStore(tmp_path / "file" / "p.db", "d", "t") as store:
        with pytest.warns(RuntimeWarning, match="is not usable"):
            store.put({"k": 1.0})
        with pytest.warns(RuntimeWarning, match="is not usable"):
            assert store.get(["k"]) == {}


WRITER = """
import sys
from rammer.scheduler.profile_store import ProfileStore
path, me = sys.argv[1:]
with ProfileStore(path, "d", "t") as store:
    for n in range(25):
        store.put({f"{me}-{n}": float(n), "shared": float(n)})
        assert store.get([f"{me}-{n}"]) == {f"{me}-{n}": float(n)}
"""


def test_concurrent_processes(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    command = [sys.executable, "-W", "error", "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, str(me)], stderr=subprocess.PIPE) for me in range(4)]
    for writer in writers:
        _, stderr = writer.communicate(timeout=60)
        assert writer.returncode == 0, stderr.decode()
    with ProfileStore(path, "d", "t") as store:
        assert len(store.get([f"{me}-{n}" for me in range(4) for n in range(25)])) == 100
