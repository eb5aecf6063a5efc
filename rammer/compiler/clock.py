"""Time the phases of a compilation, and name the phase in errors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rammer.compiler.trace import Trace
from rammer.errors import RammerError
from rammer.log import TIMES


class Clock:
    """Sum of seconds per phase of one compilation."""

    def __init__(self, trace: Trace) -> None:
        self.seconds: dict[str, float] = {}
        self.trace = trace

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a phase. Adds its name as a note to a RammerError, and turns running out of memory into one."""
        start = time.perf_counter()
        try:
            yield
        except RammerError as error:
            error.add_note(f"while compiling: {phase}")
            raise
        except MemoryError as error:
            hint = "the model needs more memory than this process can get"
            raise RammerError(f"memory ran out while compiling: {phase}", hint=hint) from error
        took = time.perf_counter() - start
        self.seconds[phase] = self.seconds.get(phase, 0.0) + took
        self.trace.say(TIMES, f"{phase} {took:.3f} s")
