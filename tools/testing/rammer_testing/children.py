"""Run cases in child processes, each within a time limit, so that a crash is one case's outcome."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TypeAlias

from rammer_testing.errors import Result

Case: TypeAlias = Callable[[str, str], Result]


def run(
    case: Case,
    names: Sequence[str],
    *,
    device: str = "CPU",
    jobs: int = 1,
    seconds: float = 120,
    show: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run `case(name, device)` for each name, in `jobs` processes and within `seconds`.

    Return results in the order of the names. The module of `case` is imported once, before processes are forked.
    """
    waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    for name in [*names, *[None] * jobs]:
        waiting.put(name)
    results: dict[str, Result] = {}

    def work() -> None:
        worker: _Worker | None = None
        while (name := waiting.get()) is not None:
            worker = worker or _Worker(case, device)
            results[name], alive = worker.result(name, seconds)
            worker = worker if alive else None
            show(results[name])
        if worker:
            worker.close()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[name] for name in names]


class _Worker:
    """A process that runs one case after another."""

    def __init__(self, case: Case, device: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([case.__module__])
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(case, other, device))
        self._process.start()
        other.close()

    def result(self, name: str, seconds: float) -> tuple[Result, bool]:
        """Return the case's result, and whether the process is alive."""
        try:
            self._pipe.send(name)
            if self._pipe.poll(seconds):
                return self._pipe.recv(), True
            self._process.kill()
            outcome = Result(name, "timeout", f"no result after {seconds:g} s")
        except (EOFError, OSError):
            self._process.join()
            outcome = Result(name, "crash", f"the process ended with {self._process.exitcode}")
        self.close()
        return outcome, False

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def _serve(case: Case, pipe: Connection, device: str) -> None:
    try:
        while True:
            pipe.send(case(pipe.recv(), device))
    except EOFError:
        return  # the parent is done
