"""One peer in one process: load, check, then run whenever asked."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from benchmarks.peers import PEERS, Task, worst_error
from benchmarks.store import stored
from rammer.errors import RammerError


@dataclass(frozen=True, slots=True)
class Visit:
    """Run once untimed, then up to `runs` times but no longer than `seconds` (once at least)."""

    runs: int
    seconds: float


def serve(pipe: connection.Connection, task: Task) -> None:
    """Child's main: answers a loaded-message, then samples per Visit; None ends it."""
    try:
        built = stored(Path(task.path))
        load = PEERS[task.peer].prepare(built, task)
        forget_peak()
        start = time.perf_counter()
        run = load()
        outputs = run(built.inputs)
        load_s = time.perf_counter() - start
        error = worst_error(outputs, built.outputs)
        pipe.send({"load_s": load_s, "error": error})
        while (visit := pipe.recv()) is not None:
            pipe.send({"samples_ms": _visit(run, built.inputs, visit)})
        error = max(error, worst_error(run(built.inputs), built.outputs))  # it may go wrong after many runs
        pipe.send({"error": error, "peak_mb": peak_mb()})
    except Exception as failure:  # whatever a peer raises is its result, and must not stop the others
        pipe.send({"failed": " ".join(f"{type(failure).__name__}: {failure}".split())[:400]})


def forget_peak() -> None:
    """Let `peak_mb` count from here on, where the system can."""
    switch = Path("/proc/self/clear_refs")
    if switch.exists():
        switch.write_text("5")


def peak_mb() -> float:
    """Most resident memory of this process since `forget_peak`, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage also counts the parent's memory at the fork
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _visit(run: Any, inputs: Any, visit: Visit) -> list[float]:
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
        """Peak memory and last error; ends the process. Raises RammerError with the peer's reason."""
        self._send(None)
        answer = self._answer(timeout_s)
        self._process.join(timeout_s)
        return answer

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._pipe.close()

    def _send(self, message: Visit | None) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            self._raise_ended()

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        if not self._pipe.poll(timeout_s):
            raise RammerError(f"no answer within {timeout_s:.0f} s")
        try:
            answer: dict[str, Any] = self._pipe.recv()
        except EOFError:
            self._raise_ended()
        if "failed" in answer:
            raise RammerError(answer["failed"])
        return answer

    def _raise_ended(self) -> None:
        self._process.join(10)
        raise RammerError(f"its process ended with exit code {self._process.exitcode}")
