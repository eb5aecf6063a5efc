"""Work that forked children share with this process: the same results whatever becomes of them."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rammer import forkpool as children
from rammer.forkpool import Background, computed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
PARENT = os.getpid()


def squared(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


@pytest.fixture(autouse=True)
def nobody_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Children have ended after each test, and nobody needs to wait for them."""
    forked: list[int] = []
    fork = os.fork

    def recorded() -> int:
        forked.append(fork())
        return forked[-1]

    monkeypatch.setattr(os, "fork", recorded)
    yield
    for number in forked:
        with pytest.raises(ChildProcessError):
            os.waitpid(number, os.WNOHANG)


class Meeting:
    """Lets work begin only when so many processes have taken an item: none takes them all."""

    def __init__(self, processes: int) -> None:
        self._barrier, self._met = multiprocessing.get_context("fork").Barrier(processes), False

    def __call__(self) -> None:
        if not self._met:
            self._barrier.wait(60)
        self._met = True


@pytest.mark.parametrize("items", [0, 1, 7, 8, 9, 41])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_results_are_in_order_and_children_have_their_part(items: int, processes: int) -> None:
    count = max(min(processes, items // children.FEWEST), 1)
    meeting = Meeting(count)

    def work(number: int) -> tuple[int, int]:
        meeting()
        return squared(number)

    found = computed(work, range(items), processes)
    assert [value for value, _ in found] == [n * n for n in range(items)]
    assert len({pid for _, pid in found}) == min(count, items)


def test_more_items_than_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "MOST_TICKETS", 5)
    assert [value for value, _ in computed(squared, range(23), 2)] == [n * n for n in range(23)]


def test_results_may_be_larger_than_a_pipe() -> None:
    found = computed(lambda n: bytes([n]) * (1 << 20), range(8), 2)
    assert [(len(part), part[0]) for part in found] == [(1 << 20, n) for n in range(8)]


def killed(number: int) -> int:
    if os.getpid() != PARENT:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def hanging(number: int) -> int:
    if os.getpid() != PARENT:
        time.sleep(60)
    return number


def unpicklable(number: int) -> object:
    return number if os.getpid() == PARENT else threading.Lock()


@pytest.mark.parametrize("work", [killed, hanging, unpicklable])
def test_what_a_child_does_not_bring_is_computed_here(
    work: Callable[[int], object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(children, "PATIENCE_S", 0.3)
    monkeypatch.setattr(children, "PATIENCE", 0.0)
    meeting = Meeting(2)

    def met(number: int) -> object:
        meeting()
        return work(number)

    with caplog.at_level(logging.WARNING):
        assert computed(met, range(9), 2) == list(range(9))
    assert "brought no results" in caplog.text


def test_a_child_never_collects_garbage_of_this_process() -> None:
    """Finalizers of other libraries may wait for threads, which a child does not have."""

    class Pool:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            if os.getpid() != PARENT:
                time.sleep(60)

    gc.disable()  # here it stays garbage until the children have collected theirs
    Pool()
    try:
        assert children.run_isolated(gc.collect, lambda: 0, 5.0).how == ""
        assert not gc.isenabled()  # as it was
    finally:
        gc.enable()
    assert children.run_isolated(gc.isenabled, lambda: 0, 5.0).made
    assert gc.isenabled()


@pytest.mark.parametrize("here", [True, False])  # in this process, or in the child first
def test_what_work_raises_is_raised_here(here: bool) -> None:
    meeting, failed = Meeting(2), multiprocessing.get_context("fork").Event()

    def work(number: int) -> int:
        meeting()
        if failed.is_set() or (os.getpid() == PARENT) is here:
            failed.set()
            raise ValueError(f"no {number}")
        return number

    with pytest.raises(ValueError, match=r"no [0-7]"):
        computed(work, range(8), 2)


def test_from_a_thread() -> None:
    """Sessions compile in the background."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(v for v, _ in computed(squared, range(8), 2)))
    thread.start()
    thread.join(60)
    assert found == [n * n for n in range(8)]


@pytest.fixture
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "usable_cpus", lambda: 2)


@pytest.mark.usefixtures("two_cpus")
@pytest.mark.parametrize("wanted", [range(0), range(20), range(5, 9)])
def test_what_was_begun_ahead_is_made_once_by_either(wanted: range) -> None:
    """Of what a child has not begun, just what is wanted; one that fails leaves its part to who asks."""
    ahead = Background(squared, range(20))
    found = ahead.results(wanted)
    assert found.keys() >= set(wanted) and all(made == number * number for number, (made, _) in found.items())
    assert {pid for number, (_, pid) in found.items() if number not in wanted} <= {p for _, p in found.values()} - {
        PARENT
    }
    assert ahead.results(wanted) == {}
    failing = Background(failing_in_children, range(20))
    time.sleep(0.1)
    assert set(failing.results(range(20)).values()) <= {PARENT}


@pytest.mark.usefixtures("two_cpus")
def test_what_nobody_has_begun_is_made_by_all() -> None:
    """A child that is held up by its first item leaves the rest to two others."""
    ahead = Background(slowly_squared, range(40))
    time.sleep(0.1)
    found = ahead.results(range(40))
    assert {number: made for number, (made, _) in found.items()} == {n: n * n for n in range(40)}
    assert len({pid for _, pid in found.values()}) >= 3


def slowly_squared(number: int) -> tuple[int, int]:
    time.sleep(1.0 if number == 0 else 0.02)
    return squared(number)


def failing_in_children(number: int) -> int:
    assert os.getpid() == PARENT
    return PARENT


def looping(number: int) -> None:
    while True:
        pass


@pytest.mark.usefixtures("two_cpus")
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="states of processes are read as Linux shows them")
def test_who_works_ahead_stands_still_while_something_is_measured_and_ends_when_told() -> None:
    ahead = Background(looping, [0])
    assert ahead._child is not None
    number = ahead._child._number

    def becomes(states: str) -> bool:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with open(f"/proc/{number}/stat") as file:
                if file.read().rpartition(") ")[2][0] in states:
                    return True
        return False

    assert becomes("R")
    with ahead.still():
        assert becomes("T")
    assert becomes("R")
    with pytest.raises(KeyboardInterrupt), ahead.still():
        raise KeyboardInterrupt
    assert becomes("R")
    with ahead.still():
        ahead.end()


def test_a_child_holds_no_pipe_of_a_program_that_another_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """subprocess waits for the end of such a pipe. A child that waits to be read would hold it, and both would wait."""
    monkeypatch.setattr(children, "usable_cpus", lambda: 2)
    reading, writing = os.pipe()
    ahead = Background(lambda number: bytes(number), [1 << 20])
    try:
        assert ahead.begun
        with ahead.still():  # it has closed them before it can be stopped
            os.close(writing)
            assert select.select([reading], [], [], 20)[0] and os.read(reading, 1) == b""
        assert len(ahead.results({1 << 20})[1 << 20]) == 1 << 20
    finally:
        os.close(reading)
        ahead.end()


def test_nothing_is_begun_ahead_without_items_or_with_one_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Background(squared, []).results([]) == {}
    monkeypatch.setattr(children, "usable_cpus", lambda: 1)
    ahead = Background(squared, [1, 2])
    with ahead.still():
        assert ahead.results([1, 2]) == {}
