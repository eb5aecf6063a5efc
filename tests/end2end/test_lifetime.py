"""Programs that are interrupted, forked, forgotten or alive at the end of the process."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import rammer
from rammer_viz.demo import lstm_stack

X = np.ones((30, 1, 64), np.float32)
linux_only = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads /proc")


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return lstm_stack(2, 30, 64)


@pytest.fixture
def program(model: onnx.ModelProto) -> Iterator[rammer.Program]:
    with rammer.compile(model, "cpu", device=2, tune_seconds=0) as found:
        yield found


def wait_for(pid: int, seconds: float = 30.0) -> int:
    """Exit status of a child; one that does not end is killed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # from JAX, if a test before loaded it
def test_a_child_forked_while_another_thread_runs_can_run_and_close(program: rammer.Program) -> None:
    wanted = program(X)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            program(X)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for n in range(8):
            time.sleep(0.001 * n)
            if (pid := os.fork()) == 0:
                status = 1
                try:
                    status = 0 if np.array_equal(program(X), wanted) else 2
                    program.close()
                finally:
                    os._exit(status)
            assert wait_for(pid) == 0
    finally:
        stop.set()
        thread.join()
    np.testing.assert_array_equal(program(X), wanted)


def test_a_run_that_was_interrupted_leaves_the_program_usable(program: rammer.Program) -> None:
    wanted = program(X)
    caught = 0
    for n in range(20):
        signal.setitimer(signal.ITIMER_REAL, 0.0005 * (n + 1))
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            while True:
                program(X)
        except KeyboardInterrupt:
            caught += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        np.testing.assert_array_equal(program(X), wanted)
    assert caught == 20


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def num_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def given_back(threads: int, files: int) -> bool:
    """Whether no more of them are left. The kernel may list a thread for a moment after it was joined."""
    late = time.monotonic() + 5
    while (num_threads(), num_files()) != (threads, files) and time.monotonic() < late:
        time.sleep(0.001)
    return (num_threads(), num_files()) == (threads, files)


@linux_only
def test_a_forgotten_program_gives_back_its_threads_and_files(model: onnx.ModelProto, tmp_path: Path) -> None:
    with rammer.compile(model, "cpu", device=2, tune_seconds=0) as program:
        program.save(tmp_path / "p.rammer")
        program(X)
    del program
    gc.collect()
    time.sleep(0.05)  # until those of the first program are listed no more
    threads, files = num_threads(), num_files()
    for make in (
        lambda: rammer.compile(model, "cpu", device=3, tune_seconds=0),
        lambda: rammer.load(tmp_path / "p.rammer"),
    ):
        forgotten = make()
        forgotten(X)
        assert num_threads() > threads
        del forgotten
        gc.collect()
        assert given_back(threads, files)


ENDS = """
import atexit, os, sys, threading, time
at_last = []  # registered before anything of rammer's, so called after it
atexit.register(lambda: [act() for act in at_last])
import numpy as np
import rammer
from rammer_viz.demo import lstm_stack
program = rammer.compile(lstm_stack(2, 30, 64), "cpu", device=2, tune_seconds=0)
x = np.ones((30, 1, 64), np.float32)
program(x)
def forever(program=program):
    while True:
        program(x)
def run_too_late():
    try:
        program(x)
    except rammer.DeviceError as error:
        if "the process ends" in str(error):
            return
    os._exit(3)
def child():
    if os.fork() == 0:
        program(x)
        sys.exit(0)
    assert os.wait()[1] == 0
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "threading.Thread(target=forever, daemon=True).start(); time.sleep(0.1)",
        "other = rammer.compile(lstm_stack(1, 30, 64), 'cpu', device=3, tune_seconds=0)\n"
        "for p in (program, other, program, other): threading.Thread(target=forever, args=(p,), daemon=True).start()\n"
        "time.sleep(0.1)",
        "at_last.append(run_too_late)\n"
        "others = [threading.Thread(target=forever, daemon=True) for _ in range(3)]\n"
        "for thread in others: thread.start()\n"
        "time.sleep(0.1)",
        "child()",
        "program.myself = program",
        "sys.modules['keeps_it'] = program",
        "raise KeyboardInterrupt",
    ],
)
def test_a_process_ends_well_with_a_program_alive(end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", ENDS + end],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == (-signal.SIGINT if "KeyboardInterrupt" in end else 0), done.stderr
    assert "ResourceWarning" not in done.stderr
    assert "Exception ignored" not in done.stderr and "Exception in thread" not in done.stderr
