"""Run a loop whose body is one program: the device takes all steps in one call, without Python between them.

A step reads carried values in one row of two, and writes the next ones to the other row. What steps collect goes to one
row after another of an array that grows as the loop goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rammer.errors import InputError, ModelError
from rammer.ir.tensor import Array
from rammer.runtime.program import Program
from rammer.vdevice.base import Rows, TakesSteps

COPIED_BYTES = 128 << 10  # smaller inputs are copied to where a program can be pointed
FIRST_BYTES = 1 << 20  # of collected rows, for which there is memory before it is known that so many steps come

Fail = Callable[..., ModelError]


class DrivenLoop:
    """A loop of at most `limit` steps over a program whose state pairs are the carried values.

    `given` are the inputs of the first step, `scanned` has rows for one step each. `collected` are outputs, `again` is
    the output that ends the loop, `counter` the input that counts steps.
    """

    def __init__(
        self,
        program: Program,
        given: Mapping[str, Any],
        limit: int,
        scanned: Mapping[str, Array],
        collected: Sequence[str],
        again: str | None,
        counter: str | None,
    ) -> None:
        assert isinstance(program.executable, TakesSteps)
        self._body, self._limit, self._again = program.executable, limit, again
        self._progress = np.array([0, 1], np.int64)
        self._reads: dict[str, Rows] = {}
        self._writes: dict[str, Rows] = {}
        kinds = {port.name: port.type for port in program.inputs}
        for output, name in program.state_pairs.items():
            rows = self._body.rows(kinds[name], 1 if output in program.image.in_place else 2)
            rows[0] = given[name]
            self._reads[name], self._writes[output] = Rows(rows), Rows(rows, 1)
        for name in kinds.keys() - self._reads.keys():
            if name in scanned:
                rows = scanned[name] if scanned[name][0].flags.c_contiguous else np.ascontiguousarray(scanned[name])
            elif kinds[name].nbytes < COPIED_BYTES:
                rows = self._body.rows(kinds[name], 1)
                rows[0] = given[name]
            else:
                rows = np.ascontiguousarray(given[name])[np.newaxis]
            self._reads[name] = Rows(rows)
        self._counter = (counter, kinds[counter].shape) if counter in kinds else None
        types = {port.name: port.type for port in program.outputs}
        self._rows = {name: np.empty((0, *types[name].shape), types[name].dtype.numpy) for name in collected}
        self._row_bytes = sum(types[name].nbytes for name in collected)

    @classmethod
    def can_run(cls, program: Program | None, pairs: Mapping[str, str]) -> bool:
        """Check whether a program can be the body of such a loop, with these carried values: output -> input."""
        return (
            program is not None
            and isinstance(program.executable, TakesSteps)
            and program.image.signature is None
            and program.state_pairs == pairs
        )

    @property
    def steps(self) -> int:
        return int(self._progress[0])

    def run(self, most_steps: int, most_bytes: int, fail: Fail) -> None:
        """Take all steps. Raises `fail(…)` for a failed step, and for a loop that goes beyond a limit."""
        end = min(self._limit, most_steps)
        room = min(end, max(64, FIRST_BYTES // (self._row_bytes + 8)))
        self._grow(room)
        while self._progress[1] and self.steps < end:
            if self.steps == room:
                room = min(end, 2 * room)
                self._grow(room)
            try:
                self._body.take_steps(self._reads, self._writes, self._again, self._progress, room)
            except InputError as error:
                raise fail(f"step {self.steps}: {error.what}") from error
            if self.steps * self._row_bytes > most_bytes:
                raise fail(f"collects more than {most_bytes} bytes", hint="take fewer steps")
        if self._progress[1] and self.steps < self._limit:
            hint = "Session(…, max_steps=…) lets it take more"
            raise fail(f"has taken {self.steps:,} steps, and would go on", hint=hint)

    def _grow(self, room: int) -> None:
        """Make room for so many steps."""
        if self._counter:
            name, shape = self._counter
            self._reads[name] = Rows(np.arange(room).reshape(room, *shape))
        for name, rows in self._rows.items():
            self._rows[name] = np.empty((room, *rows.shape[1:]), rows.dtype)
            self._rows[name][: self.steps] = rows[: self.steps]
            self._writes[name] = Rows(self._rows[name])

    def carried(self, name: str) -> Array:
        """Return the last value of a carried input."""
        rows = self._reads[name].array
        return rows[self.steps % len(rows)].copy()

    def collected(self) -> list[Array]:
        """Return what the steps have added to each output, a row for each step."""
        return [rows if len(rows) == self.steps else rows[: self.steps].copy() for rows in self._rows.values()]
