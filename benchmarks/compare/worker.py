"""One peer in one process: load, check, then run whenever asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from benchmarks.compare.apart import PAUSE_S, alone, end, urgent
from benchmarks.compare.peers import PEERS, Task, worst_error
from benchmarks.micro.memory import forget_peak, peak_mb
from benchmarks.models.store import Arrays, stored
from rammer.errors import RammerError

TOLERANCE = 1e-3  # a larger relative error is no rounding


class Overdue(RammerError):
    """A peer that takes too long."""


@dataclass(frozen=True, slots=True)
class Visit:
    """Run once untimed, then up to `runs` times but no longer than `seconds` (once at least).

    `priority`: a real-time one of all its threads meanwhile, 0: as they are.
    """

    runs: int
    seconds: float
    priority: int = 0


def serve(pipe: connection.Connection, task: Task) -> None:
    """Child's main: answers a loaded-message, then samples per Visit; None ends it."""
    alone()
    try:
        built = stored(Path(task.path))
        prepared = PEERS[task.peer].prepare(built, task)
        before_mb = forget_peak()
        start = time.perf_counter()
        loaded = prepared.load()
        outputs = loaded.run(built.inputs)
        load_s = time.perf_counter() - start
        known = {"form": task.form} if task.form else {}
        pipe.send({**known, **prepared.known, "load_s": load_s, "error": _checked(outputs, built.outputs)})
        while (visit := pipe.recv()) is not None:
            time.sleep(PAUSE_S)
            with urgent(visit.priority):
                samples = _visit(loaded.run, built.inputs, visit)
            pipe.send({"samples_ms": samples})
        memory = {"peak_mb": peak_mb(), "model_mb": peak_mb() - before_mb}
        error = _checked(loaded.run(built.inputs), built.outputs)  # it may go wrong after many runs
        pipe.send({"last_error": error, **memory, **loaded.observe(built.inputs)})
    except Exception as failure:  # whatever a peer raises is its result, and must not stop the others
        pipe.send({"failed": " ".join(f"{type(failure).__name__}: {failure}".split())[:400]})


def _checked(outputs: Arrays, expected: Arrays) -> float:
    """The error of a run. Raises RammerError if it is wrong."""
    error = worst_error(outputs, expected)
    if not error < TOLERANCE:  # NaN is wrong, too
        raise RammerError(f"wrong output: relative error {error:.1e}")
    return error


def _visit(run: Callable[[Arrays], Arrays], inputs: Arrays, visit: Visit) -> list[float]:
    run(inputs)
    samples: list[float] = []
    end = time.perf_counter() + visit.seconds
    while len(samples) < visit.runs and (not samples or time.perf_counter() < end):
        start = time.perf_counter()
        run(inputs)
        samples.append((time.perf_counter() - start) * 1e3)
    return samples


class Worker:
    """The parent's side: a process that runs `task`, asked one thing at a time."""

    def __init__(self, task: Task) -> None:
        context = get_context("spawn")
        self._pipe, child = context.Pipe()
        self._process = context.Process(target=serve, args=(child, task), daemon=True)
        self._process.start()
        child.close()

    def loaded(self, timeout_s: float) -> dict[str, Any]:
        """Load seconds and first error. Raises RammerError with the peer's reason."""
        return self._answer(timeout_s)

    def visit(self, visit: Visit, timeout_s: float) -> list[float]:
        """Milliseconds of each timed run. Raises RammerError with the peer's reason."""
        self._send(visit)
        samples: list[float] = self._answer(timeout_s)["samples_ms"]
        return samples

    def finish(self, timeout_s: float) -> dict[str, Any]:
        """Memory, last error, what the peer observed; ends the process. Raises RammerError with the peer's reason."""
        self._send(None)
        answer = self._answer(timeout_s)
        self._process.join(timeout_s)
        return answer

    def stop(self) -> None:
        """End the process and what it started, whatever it is doing."""
        end(self._process, self._pipe)

    def _send(self, message: Visit | None) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            self._raise_ended()

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        if not self._pipe.poll(timeout_s):
            raise Overdue(f"no answer within {timeout_s:.0f} s")
        try:
            answer: dict[str, Any] = self._pipe.recv()
        except (EOFError, OSError):
            self._raise_ended()
        if "failed" in answer:
            raise RammerError(answer["failed"])
        return answer

    def _raise_ended(self) -> None:
        self._process.join(10)
        raise RammerError(f"its process ended with exit code {self._process.exitcode}")
