"""Run a loop whose body is one program: the device takes all steps in one call, without Python between them.

A step reads carried values in one row of two, and writes the next ones to the other row. What steps collect goes to one
row after another of an array that grows as the loop goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from rammer.errors import InputError, ModelError
from rammer.ir.graph import RANDOM_RUN
from rammer.ir.tensor import Array, NamedArrays
from rammer.runtime.program import Program
from rammer.vdevice.base import StepRows, TakesSteps

COPIED_BYTES = 128 << 10  # smaller inputs are copied to where a program can be pointed
FIRST_BYTES = 1 << 20  # of collected rows, for which there is memory before it is known that so many steps come
KNOWN_BYTES = 1 << 26  # the same where the number of steps is given, though a condition may end the loop

Fail = Callable[..., ModelError]


class DrivenLoop:
    """A loop over a program whose state pairs are the carried values. A loop is run by one thread at a time.

    `given` are inputs of one step. `scanned` inputs have rows for one step each, `collected` are outputs, `again` is
    the output that ends the loop. An input of `counters` changes by a constant in each step. A carried value may be
    shorter than the program's input: zeros follow it.
    """

    def __init__(
        self,
        program: Program,
        given: Mapping[str, Any],
        scanned: Collection[str],
        collected: Sequence[str],
        again: str | None,
        counters: Mapping[str, int],
    ) -> None:
        assert isinstance(program.executable, TakesSteps)
        kinds = {port.name: port.type for port in (*program.inputs, *program.outputs)}
        names = [port.name for port in program.inputs]
        self._counters = {name: by for name, by in counters.items() if name in names}
        self.draws = RANDOM_RUN in names  # each step draws random numbers
        self._starts: Mapping[str, Any] = {}
        self._carried: dict[str, Array] = {}
        rows: dict[str, StepRows] = {}
        for output, name in program.state_pairs.items():
            self._carried[name] = program.executable.rows(kinds[name], 1 if output in program.image.in_place else 2)
            rows[name], rows[output] = StepRows(self._carried[name]), StepRows(self._carried[name], 1)
        others = [name for name in names if name not in rows and name not in self._counters]
        self._fixed = {
            name: program.executable.rows(kinds[name], 1)
            for name in others
            if name not in scanned and kinds[name].nbytes < COPIED_BYTES
        }
        # what the first step reads
        self._firsts = {name: rows[0, ...] for name, rows in (self._carried | self._fixed).items()}
        self._moved = [name for name in others if name not in self._fixed]  # to where the caller has them
        self._collected = {name: kinds[name] for name in collected}
        self._row_bytes = sum(kind.nbytes for kind in self._collected.values())
        rows |= {name: StepRows(array) for name, array in self._fixed.items()}
        rows |= {name: StepRows(np.asarray(given[name])[np.newaxis]) for name in names if name not in rows}
        first = {name: np.empty((1, *k.shape), k.dtype.numpy) for name, k in self._collected.items()}
        self._kept = rows | {name: StepRows(row) for name, row in first.items()}
        self._body = program.executable.steps(self._kept, again)

    @property
    def alive(self) -> bool:
        """True if the condition holds after the last step."""
        return bool(self._body.progress[1])

    @property
    def steps(self) -> int:
        return int(self._body.progress[0])

    def run(
        self,
        given: Mapping[str, Any],
        scanned: NamedArrays,
        limit: int,
        most: tuple[int, int],
        fail: Fail,
        taken: int = 0,
    ) -> tuple[dict[str, Array], list[Array]]:
        """Take at most `limit` steps. Return the values carried last, by input, and the rows that outputs collected.

        Raises `fail(…)` for a failed step, and for a loop that goes beyond the `most` steps, or collected bytes; so
        many steps were `taken` before.
        """
        self._body.progress[0], self._body.progress[1] = 0, 1
        self._starts = given
        for name, first in self._firsts.items():
            value = given[name]
            if value.shape != first.shape:
                first[...] = 0
                first = first[tuple(map(slice, value.shape))]
            first[...] = value
        for name in self._moved:
            array = scanned[name] if name in scanned else given[name][np.newaxis]
            self._move(name, array if array[0].flags.c_contiguous else np.ascontiguousarray(array))
        end = min(limit, most[0] - taken)
        room = min(end, max(64, (FIRST_BYTES if limit > most[0] else KNOWN_BYTES) // (self._row_bytes + 8)))
        self._grow(room)
        steps = 0
        while self._body.progress[1] and steps < end:
            if steps == room:
                room = min(end, 2 * room)
                self._grow(room)
            try:
                self._body.take(room)
            except InputError as error:
                raise fail(f"step {taken + self.steps}: {error.what}") from error
            steps = self.steps
            if steps * self._row_bytes > most[1]:
                raise fail(f"collects more than {most[1]} bytes", hint="take fewer steps")
        if steps < limit and self._body.progress[1]:
            hint = "Session(…, max_steps=…) lets it take more"
            raise fail(f"has taken {taken + steps:,} steps, and would go on", hint=hint)
        found = [self._kept.pop(name).array for name in self._collected]  # the caller's from now on
        for name in self._moved:
            del self._kept[name]
        carried = {name: rows[steps % len(rows), ...].copy() for name, rows in self._carried.items()}
        return carried, [rows if len(rows) == steps else rows[:steps].copy() for rows in found]

    def _move(self, name: str, array: Array) -> None:
        self._kept[name] = StepRows(array)
        self._body.move(name, self._kept[name])

    def _grow(self, room: int) -> None:
        """Make room for so many steps."""
        for name, by in self._counters.items():
            first, known = self._starts[name], self._kept[name].array
            if len(known) < room or known.item(0) != first.item():
                self._move(name, (first.item() + np.arange(room) * by).reshape(room, *first.shape))
        for name, kind in self._collected.items():
            rows = np.empty((room, *kind.shape), kind.dtype.numpy)
            if self.steps:
                rows[: self.steps] = self._kept[name].array[: self.steps]
            self._move(name, rows)
