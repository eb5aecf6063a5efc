"""Functions in processes of their own: one that hangs, crashes or fills memory is a result of its own, too."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context, parent_process
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from rammer.errors import RammerError

Answer = dict[str, Any]
PAUSE_S = 0.1  # before a visit: threads of the process visited before may spin, ONNX Runtime's for 28 ms after a run
PR_SET_PDEATHSIG = 1  # of Linux: the signal that a process gets when its parent ends


def _serve(
    pipe: connection.Connection, make: Callable[..., Callable[[Any], Answer]], arguments: tuple[Any, ...]
) -> None:
    alone()
    try:
        answer = make(*arguments)
        while True:
            pipe.send(answer(pipe.recv()))
    except (EOFError, BrokenPipeError):
        return  # nobody asks any more
    except Exception as failure:  # whatever is raised is a result, and must not stop the others
        pipe.send({"failed": " ".join(f"{type(failure).__name__}: {failure}".split())[:600]})


def alone() -> None:
    """Make this process the first of a group, so that what it starts ends with it, and let it end with its parent.

    A compiler that goes on after a benchmark was killed disturbs the next one.
    """
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it has ended before
        os._exit(1)


@contextmanager
def urgent(priority: int) -> Iterator[None]:
    """Real-time priority for all threads of this process, meanwhile; 0: the one that it has."""
    if not priority:
        yield
        return
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    _schedule(os.SCHED_RR, os.sched_param(priority))
    try:
        yield
    finally:
        _schedule(*before)


def _schedule(policy: int, parameters: os.sched_param) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setscheduler(int(thread), policy, parameters)


class Apart:
    """A process that calls `make(*arguments)` and then gives each message to what that returned."""

    def __init__(self, make: Callable[..., Callable[[Any], Answer]], *arguments: Any) -> None:
        context = get_context("spawn")
        self._pipe, child = context.Pipe()
        self._process = context.Process(target=_serve, args=(child, make, arguments), daemon=True)
        self._process.start()
        child.close()

    def ask(self, message: Any, timeout_s: float) -> Answer:
        """The answer to a message. Raises RammerError with the reason if there is none."""
        try:
            self._pipe.send(message)
            if not self._pipe.poll(timeout_s):
                raise RammerError(f"no answer within {timeout_s:.0f} s")
            answer: Answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(10)
            raise RammerError(f"its process ended with exit code {self._process.exitcode}") from None
        if "failed" in answer:
            raise RammerError(answer["failed"])
        return answer

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        end(self._process, self._pipe)


def end(process: BaseProcess, pipe: connection.Connection) -> None:
    """End a process and what it started, whatever it is doing."""
    if process.pid is not None and process.is_alive():
        with suppress(ProcessLookupError):  # it ends, or has not begun, just now
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    process.join()
    pipe.close()
