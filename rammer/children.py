"""Computing in forked children beside this process: Python has one core otherwise."""

from __future__ import annotations

import logging
import os
import pickle
import selectors
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

FEWEST = 4  # items for each process: to fork takes some of their time
PATIENCE = 5.0  # times as long as this process works on its own part may a child take, and
PATIENCE_S = 10.0  # these seconds on top
SIZE_BYTES = 8  # of the number before results

log = logging.getLogger(__name__)


def computed(work: Callable[[Item], Made], items: Sequence[Item], processes: int | None = None) -> list[Made]:
    """`work` of every item, in their order: in up to `processes` (one for each CPU) where there are many items.

    Results of children are pickled. What a child does not bring in time is computed here, so what `work` raises is
    raised here.
    """
    count = max(min(processes or _cpus(), len(items) // FEWEST), 1) if hasattr(os, "fork") else 1
    began = time.monotonic()
    children: list[_Child[Made]] = []
    try:
        for n in range(1, count):
            children.append(_Child(work, items[n::count]))
        parts: list[list[Made]] = [[work(item) for item in items[::count]]]
        deadline = time.monotonic() + PATIENCE * (time.monotonic() - began) + PATIENCE_S
        for n, child in enumerate(children, 1):
            found = child.results(deadline)
            parts.append([work(item) for item in items[n::count]] if found is None else found)
    finally:
        for child in children:
            child.end()
    return [parts[n % count][n // count] for n in range(len(items))]


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Child(Generic[Made]):
    """A forked process that computes a part of the items, and writes their results into a pipe."""

    def __init__(self, work: Callable[[Item], Made], items: Sequence[Item]) -> None:
        self._pipe, writing = os.pipe()
        with warnings.catch_warnings():  # it takes no lock that another thread may have held
            warnings.simplefilter("ignore")
            self._number = os.fork()
        if self._number == 0:
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends it
                data = pickle.dumps([work(item) for item in items], pickle.HIGHEST_PROTOCOL)
                with os.fdopen(writing, "wb") as file:
                    file.write(len(data).to_bytes(SIZE_BYTES, "little") + data)
            finally:
                os._exit(0)  # whatever was raised: the parent computes it again
        os.close(writing)

    def results(self, deadline: float) -> list[Made] | None:
        """What it wrote; None where it ended without, or has not ended at the deadline (seconds, monotonic)."""
        data = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while selector.select(max(deadline - time.monotonic(), 0.0)) and (read := os.read(self._pipe, 1 << 20)):
                data += read
        size = int.from_bytes(data[:SIZE_BYTES], "little")
        if not data or len(data) != SIZE_BYTES + size:
            log.warning("a child that computes beside this process brought no results: they are computed here")
            return None
        found: list[Made] = pickle.loads(data[SIZE_BYTES:])
        return found

    def end(self) -> None:
        """Nothing of it is left."""
        os.close(self._pipe)
        with suppress(ProcessLookupError, ChildProcessError):  # somebody else in this process waits for children
            os.kill(self._number, signal.SIGKILL)
            os.waitpid(self._number, 0)
