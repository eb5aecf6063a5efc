"""Work that forked children share with this process: the same results whatever becomes of them."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rammer import children
from rammer.children import computed

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


@pytest.mark.parametrize("items", [0, 1, 7, 8, 9, 41])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_results_are_in_order_and_children_have_their_part(items: int, processes: int) -> None:
    found = computed(squared, range(items), processes)
    assert [value for value, _ in found] == [n * n for n in range(items)]
    assert len({pid for _, pid in found}) == min(processes, max(items // children.FEWEST, 1), items)


def test_results_may_be_larger_than_a_pipe() -> None:
    found = computed(lambda n: bytes([n]) * (1 << 20), range(8), 2)
    assert [(len(part), part[0]) for part in found] == [(1 << 20, n) for n in range(8)]


def killed(number: int) -> int:
    if os.getpid() != PARENT and number == 5:
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
    with caplog.at_level(logging.WARNING):
        assert computed(work, range(9), 2) == list(range(9))
    assert "brought no results" in caplog.text


@pytest.mark.parametrize("failing", [4, 5])  # of this process, and of the child
def test_what_work_raises_is_raised_here(failing: int) -> None:
    def work(number: int) -> int:
        if number == failing:
            raise ValueError(f"no {number}")
        return number

    with pytest.raises(ValueError, match=f"no {failing}"):
        computed(work, range(8), 2)


def test_from_a_thread() -> None:
    """Sessions compile in the background."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(v for v, _ in computed(squared, range(8), 2)))
    thread.start()
    thread.join(60)
    assert found == [n * n for n in range(8)]
