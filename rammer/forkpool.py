"""Compute in forked child processes, as the GIL limits threads to one core. Known as: a process pool."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import logging
import os
import pickle
import selectors
import signal
import stat
import sys
import time
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

FEWEST = 4  # items per process, to outweigh the cost of a fork
MOST_TICKETS = 1 << 12  # numbers that a pipe holds
TICKET_BYTES = 2
PATIENCE = 5.0  # a child may take this factor times as long as this process took for its own part,
PATIENCE_S = 10.0  # plus these seconds
LOOK_S = 0.25  # seconds between checks of a child's progress
PR_SET_PDEATHSIG = 1  # a constant of Linux that Python does not have
SIZE_BYTES = 8  # of the size that precedes results
STARTED = b"+"  # what a child writes before anything else
STDERR = 2

logger = logging.getLogger(__name__)


def computed(work: Callable[[Item], Made], items: Sequence[Item], processes: int | None = None) -> list[Made]:
    """Return `work` of every item, in order, computed in up to `processes` (default: one per CPU).

    With a small number of items, runs here. Every process takes the next item when it is ready, so long items should
    come first. Results of children are pickled. Items that a child does not return in time are computed here, so
    exceptions of `work` are raised here.
    """
    count = max(min(processes or usable_cpus(), len(items) // FEWEST), 1) if hasattr(os, "fork") else 1
    if count == 1:
        return [work(item) for item in items]
    began = time.monotonic()
    tickets = _Tickets(len(items))
    children: list[_Child[Made]] = []
    found: dict[int, Made] = {}
    try:
        children += (_Child(work, items, tickets) for _ in range(1, count))
        found |= _taken(work, items, tickets)
        deadline = time.monotonic() + PATIENCE * (time.monotonic() - began) + PATIENCE_S
        for child in children:
            found |= child.results(deadline)
        if len(found) < len(items):
            logger.warning("a child that computes beside this process brought no results: they are computed here")
    finally:
        tickets.close()
        for child in children:
            child.end()
    return [found[n] if n in found else work(item) for n, item in enumerate(items)]


class Background(Generic[Item, Made]):
    """Run `work` of items in a forked child, in the background. `end` stops it.

    Nothing is started with one CPU, or without items.
    """

    def __init__(self, work: Callable[[Item], Made], items: Sequence[Item]) -> None:
        self._work, self._items = work, items
        self._child: _Child[Made] | None = None
        if items and hasattr(os, "fork") and usable_cpus() > 1:
            self._tickets = _Tickets(len(items))
            self._child = _Child(work, items, self._tickets)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Stop the child inside of the block (SIGSTOP), so that it does not disturb measurements."""
        child = self._child
        if child is None:
            yield
            return
        child.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            if child is self._child:  # `end` was not called meanwhile
                child.signal(signal.SIGCONT)

    @property
    def begun(self) -> bool:
        """Whether a child was started and not ended."""
        return self._child is not None

    def results(self, wanted: Container[Item], patience_s: float = PATIENCE_S) -> dict[Item, Made]:
        """Return results by item, and end the child.

        Items in `wanted` that the child has not started are computed now, in all processes. Items that the child does
        not finish within another `patience_s` are left out.
        """
        if self._child is None:
            return {}
        numbers = [n for numbers in self._tickets for n in numbers if self._items[n] in wanted]
        made_now = computed(self._work, [self._items[n] for n in numbers])
        found = dict(zip(numbers, made_now, strict=True)) | self._child.results(time.monotonic() + patience_s)
        self.end()
        return {self._items[n]: made for n, made in found.items()}

    def end(self) -> None:
        """Stop the child and release its resources."""
        child, self._child = self._child, None
        if child is not None:
            self._tickets.close()
            child.end()


def _taken(work: Callable[[Item], Made], items: Sequence[Item], tickets: _Tickets) -> dict[int, Made]:
    """Compute the items that this process takes; return the results by number."""
    return {n: work(items[n]) for numbers in tickets for n in numbers}


@dataclass(frozen=True, slots=True)
class Ended(Generic[Made]):
    """The result of a child, or how it ended without one."""

    made: Made | None
    how: str = ""


def run_isolated(work: Callable[[], Made], progress: Callable[[], int], patience_s: float) -> Ended[Made]:
    """Run `work` in a forked child that may crash or hang. It hangs if `progress` stays the same for `patience_s`.

    A child that hangs writes its threads' stacks to standard error. Without fork, runs it here. Exceptions of `work`
    are raised here.
    """
    if not hasattr(os, "fork"):
        return Ended(work())

    def guarded(_: None) -> tuple[Made | None, BaseException | None]:
        faulthandler.disable()  # the parent says how it ended,
        faulthandler.register(signal.SIGUSR1, STDERR)  # and asks where it hangs
        try:
            return work(), None
        except Exception as error:
            return None, error

    tickets = _Tickets(1)
    child = _Child(guarded, [None], tickets)
    try:
        seen, until = progress(), time.monotonic() + patience_s
        while not child.has_more(min(patience_s, LOOK_S)):
            if (now := progress()) != seen:
                seen, until = now, time.monotonic() + patience_s
            elif time.monotonic() > until:
                child.signal(signal.SIGUSR1)  # its stacks go to standard error
                child.has_more(LOOK_S)
                return Ended(None, f"it did not come back within {patience_s:g} s")
        found = child.results(time.monotonic() + patience_s)
        how = child.ended()
    finally:
        tickets.close()
        child.end()
    if 0 not in found:
        return Ended(None, how)
    made, error = found[0]
    if error is not None:
        raise error
    return Ended(made)


class _Tickets:
    """The numbers of items that no process has taken yet, in a shared pipe."""

    def __init__(self, count: int) -> None:
        self._count, self._tickets = count, min(count, MOST_TICKETS)
        self.pipe, writing = os.pipe()
        with os.fdopen(writing, "wb") as file:
            file.write(b"".join(n.to_bytes(TICKET_BYTES, "little") for n in range(self._tickets)))
        os.set_blocking(self.pipe, False)  # a child of another thread may have the end for writing, too

    def __iter__(self) -> Iterator[range]:
        with suppress(BlockingIOError):
            while ticket := os.read(self.pipe, TICKET_BYTES):
                yield range(int.from_bytes(ticket, "little"), self._count, self._tickets)

    def close(self) -> None:
        os.close(self.pipe)


def usable_cpus() -> int:
    """Return how many CPUs this process may use; all CPUs on systems without affinity masks."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fork() -> int:
    """Fork. The child never collects garbage of this process, as a finalizer may wait for threads it does not have."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():  # it takes no lock that another thread may have held
            warnings.simplefilter("ignore")
            number = os.fork()
        if number == 0:
            gc.freeze()
        return number
    finally:
        if collects:
            gc.enable()


class _Child(Generic[Made]):
    """A forked process that computes the items it takes, and writes their results into a pipe."""

    def __init__(self, work: Callable[[Item], Made], items: Sequence[Item], tickets: _Tickets) -> None:
        self._pipe, writing = os.pipe()
        self._number = _fork()
        if self._number == 0:
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and ends this child
                _end_with_parent()
                _close_pipes_but(writing, tickets.pipe)
                os.write(writing, STARTED)
                data = pickle.dumps(_taken(work, items, tickets), pickle.HIGHEST_PROTOCOL)
                with os.fdopen(writing, "wb") as file:
                    file.write(len(data).to_bytes(SIZE_BYTES, "little") + data)
            finally:
                os._exit(0)  # also after an exception: the parent computes the items again
        os.close(writing)
        if self.has_more(PATIENCE_S):  # from here on it may be stopped, as it holds no pipe of others
            os.read(self._pipe, len(STARTED))

    def results(self, deadline: float) -> dict[int, Made]:
        """Return its results; empty if it ended without, or is not done at the deadline (monotonic seconds)."""
        data = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while selector.select(max(deadline - time.monotonic(), 0.0)) and (read := os.read(self._pipe, 1 << 20)):
                data += read
        size = int.from_bytes(data[:SIZE_BYTES], "little")
        if not data or len(data) != SIZE_BYTES + size:
            return {}
        found: dict[int, Made] = pickle.loads(data[SIZE_BYTES:])
        return found

    def has_more(self, seconds: float) -> bool:
        """Return whether it writes, or has ended, within so many seconds."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            return bool(selector.select(seconds))

    def ended(self) -> str:
        """Return how it ended. Call it only after the end."""
        with suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(self._number, 0)[1])
            return f"it ended by {signal.Signals(-code).name}" if code < 0 else "it ended the process"
        return "it ended"

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._number, number)

    def end(self) -> None:
        """Kill the child if it runs, and release its resources."""
        os.close(self._pipe)
        with suppress(ProcessLookupError, ChildProcessError):  # other code of this process may have waited for it
            os.kill(self._number, signal.SIGKILL)
            os.waitpid(self._number, 0)


def _close_pipes_but(*kept: int) -> None:
    """Close the pipes that this process has from its parent, but the standard ones and `kept`.

    Another thread may have been starting a program. It waits until no process can write into that program's pipes.
    """
    for number in map(int, os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ()):
        with suppress(OSError):  # the folder's own number is no longer open
            if number > STDERR and number not in kept and stat.S_ISFIFO(os.fstat(number).st_mode):
                os.close(number)


def _end_with_parent() -> None:
    """Make this process end with its parent, even while it is stopped. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
