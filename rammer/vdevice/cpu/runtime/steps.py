"""Describe a program as the body of a loop for steps.c: where each port is in each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rammer.ir.tensor import Array
from rammer.vdevice.base import StepRows
from rammer.vdevice.image.arena import ALIGNMENT, PortBinding

Take = Callable[[int, int, int, dict[str, int]], None]  # loop and progress of steps.c, the last step, pointed ports


class CpuLoopBody:
    """A loop's body. Arguments of rTasks point at a port's rows if these may lie anywhere, else rows are copied.

    `inputs` and `outputs` are the views of ports in the program's memory, `bindings` those that may lie elsewhere. Of
    these, `anywhere` names ports that need no alignment.
    """

    def __init__(
        self,
        inputs: Sequence[tuple[str, Array]],
        outputs: Sequence[tuple[str, Array]],
        rows: Mapping[str, StepRows],
        again: str | None,
        bindings: Mapping[str, PortBinding],
        anywhere: frozenset[str],
        args: Array,
        take: Take,
    ) -> None:
        self._bindings, self._anywhere, self._take = bindings, anywhere, take
        self._pointed = {name: -1 for name, _ in inputs if self._can_point(name, rows[name])}
        homes = {view.ctypes.data for name, view in inputs if name in self._pointed}  # also of what is changed there
        written = [(name, view) for name, view in outputs if name in rows and view.ctypes.data not in homes]
        self._views = dict((*inputs, *written))
        self._numbers = {name: n for n, name in enumerate(self._views)}
        self._table = np.zeros((len(self._views), 9), np.int64)
        for name in self._views:
            self.move(name, rows[name])
        self._condition = next((view for name, view in outputs if name == again), np.zeros(0, np.bool_))
        counts = len(inputs), len(written)
        condition = self._condition.ctypes.data, self._condition.nbytes
        self._loop = np.array([args.ctypes.data, self._table.ctypes.data, *counts, *condition], np.int64)

    def move(self, name: str, rows: StepRows) -> None:
        """Set the rows of a port. The caller keeps them alive."""
        at, offsets, count, points = 0, 0, 0, self._can_point(name, rows)
        if points != (name in self._pointed):  # a new dictionary: by the old one the program knows what to point back
            self._pointed = {n: -1 for n in (*self._pointed, name) if points or n != name}
        if points:
            bound = self._bindings[name]
            at, offsets, count = _address(bound.args), _address(bound.offsets), len(bound.args)
        view, array = self._views[name], rows.array
        place = _address(view), _address(array), view.nbytes, array.strides[0], rows.shift, len(array)
        self._table[self._numbers[name]] = (count, at, offsets, *place)

    def take(self, progress: NDArray[np.int64], end: int) -> None:
        """Take steps until `end`, or until the condition is false; maybe fewer, to show signals to the caller.

        `progress` has the next step, and whether the loop goes on.
        """
        self._take(_address(self._loop), _address(progress), end, self._pointed)

    def _can_point(self, name: str, rows: StepRows) -> bool:
        """Check whether arguments may point at each of these rows."""
        array = rows.array
        free = name in self._anywhere and array.flags.aligned
        return name in self._bindings and (free or not (_address(array) % ALIGNMENT or array.strides[0] % ALIGNMENT))


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
