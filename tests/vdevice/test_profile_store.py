"""The store of measured times."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from jobs import Job, make_kernel, make_problem

from rammer import config
from rammer.errors import RammerError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.vdevice import sealed, toolchain
from rammer.vdevice.profiles import ProfileStore, export_times, import_times, kernel_key, profile_store


def one_kernel(points: int = 4) -> tuple[Operation, RKernel]:
    problem = make_problem([Job("a", ((points, 1.0),))], VDeviceSpec("x", 2))
    operation = problem.graph.operators[0].operation
    return operation, problem.candidates[operation][0]


def test_kernel_keys_name_text_rtasks_and_memory() -> None:
    operation, first = one_kernel()
    _, again = one_kernel()
    _, larger = one_kernel(8)
    assert kernel_key(first, "text") == kernel_key(again, "text")
    others = {kernel_key(make_kernel(operation, 2), "text"), kernel_key(first, "int"), kernel_key(larger, "text")}
    assert len(others - {kernel_key(first, "text")}) == 3


def test_the_users_store_lies_in_the_cache_and_is_cleared_with_it(tmp_path: Path) -> None:
    with config.override(RAMMER_CACHE_DIR=str(tmp_path / "cache")):
        store = profile_store("d", "t")
        store.put({"k": 1.0})
        store = profile_store("d", "t")
        assert store.get(["k"]) == {"k": 1.0}
        toolchain.clear_cache()
        store = profile_store("d", "t")
        assert store.get(["k"]) == {}


def test_times_are_kept_per_device_and_toolchain(tmp_path: Path) -> None:
    path = tmp_path / "new" / "profile.db"
    store = ProfileStore(path, "cpu-a", "cc-1")
    store.put({"k1": 1.5, "k2": 2.5})
    store.put({"k2": 3.5})
    store = ProfileStore(path, "cpu-a", "cc-1")
    assert store.get(["k1", "k2", "k3"]) == {"k1": 1.5, "k2": 3.5}
    store = ProfileStore(path, "cpu-a", "cc-2")
    assert store.get(["k1"]) == {}


def test_many_keys(tmp_path: Path) -> None:
    times = {f"k{n}": float(n) for n in range(1801)}
    store = ProfileStore(tmp_path / "p.db", "d", "t")
    store.put(times)
    assert store.get(times) == times


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.db"
    path.write_bytes(content)
    store = ProfileStore(path, "d", "t")
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
    store = ProfileStore(path, "d", "t")
    with pytest.warns(RuntimeWarning, match="its form is 99, not 2"):
        assert store.get(["k"]) == {}


def test_an_unusable_place_only_warns(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = ProfileStore(tmp_path / "file" / "p.db", "d", "t")
    with pytest.warns(RuntimeWarning, match="is not usable"):
        store.put({"k": 1.0})
    with pytest.warns(RuntimeWarning, match="is not usable"):
        assert store.get(["k"]) == {}


WRITER = """
import sys
from rammer.vdevice.profiles import ProfileStore
path, me = sys.argv[1:]
store = ProfileStore(path, "d", "t")
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
    store = ProfileStore(path, "d", "t")
    assert len(store.get([f"{me}-{n}" for me in range(4) for n in range(25)])) == 100


def test_caches_are_merged(tmp_path: Path) -> None:
    """Of two times for the same the younger one stays; those of another device are kept apart."""
    ours, theirs, file = tmp_path / "ours", tmp_path / "theirs", tmp_path / "times.json"
    with config.override(RAMMER_CACHE_DIR=str(ours)):
        profile_store("cpu A", "cc").put({"old": 1.0, "same": 1.0})
    with config.override(RAMMER_CACHE_DIR=str(theirs)):
        profile_store("cpu A", "cc").put({"old": 2.0, "new": 3.0})
        profile_store("cpu B", "cc").put({"same": 4.0})
        profile_store("cpu A", "cc").put_verdicts({"wrong": "it is"})
        assert export_times(file) == 3
    with config.override(RAMMER_CACHE_DIR=str(ours)):
        profile_store("cpu A", "cc").put({"same": 5.0})
        assert import_times(file) == (3, 3)
        assert profile_store("cpu A", "cc").get(["old", "same", "new"]) == {"old": 2.0, "same": 5.0, "new": 3.0}
        assert profile_store("cpu B", "cc").get(["old", "same", "new"]) == {"same": 4.0}
        assert profile_store("cpu A", "cc").verdicts(["wrong"]) == {}  # tried out again here
        assert import_times(file) == (3, 0)
    with config.override(RAMMER_CACHE_DIR=str(theirs)):
        newer = tmp_path / "newer.json"
        profile_store("cpu A", "cc").put({"old": 9.0})
        export_times(newer)
        assert import_times(file) == (3, 0) and profile_store("cpu A", "cc").get(["old"]) == {"old": 9.0}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"rammer times": 2, "times": []}',
        '{"rammer times": 1}',
        '{"rammer times": 1, "times": [["a", "b", "c", 1.0]]}',
        '{"rammer times": 1, "times": [["a", "b", "c", -1.0, 1.0]]}',
        '{"rammer times": 1, "times": [["a", "b", "c", NaN, 1.0]]}',
        '{"rammer times": 1, "times": [["a", "b", "c", true, 1.0]]}',
        '{"rammer times": 1, "times": [["a", "b", null, 1.0, 1.0]]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_exported_file_changes_nothing(content: str, tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    file.write_text(content)
    with config.override(RAMMER_CACHE_DIR=str(tmp_path / "cache")):
        profile_store("d", "t").put({"k": 1.0})
        with pytest.raises(RammerError, match="no measured times"):
            import_times(file)
        assert [time.kernel for time in profile_store("", "").times()] == ["k"]


def test_a_writer_waits_for_another_one(tmp_path: Path) -> None:
    """A process that checks the file before it writes does not fail because another one has written meanwhile."""
    store = ProfileStore(tmp_path / "p.db", "d", "t")
    store.put({"k": 1.0})
    sealed._checked.clear()
    with closing(sqlite3.connect(tmp_path / "p.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM rtask")
        writer = threading.Thread(target=store.put, args=({"k2": 2.0},))
        writer.start()
        writer.join(0.3)
        assert writer.is_alive()
        other.execute("COMMIT")
    writer.join(30)
    assert store.get(["k", "k2"]) == {"k2": 2.0}
