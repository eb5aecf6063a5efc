"""Describe a program as the body of a loop for steps.c: where each port is in each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rammer.ir.tensor import Array
from rammer.vdevice.base import StepRows
from rammer.vdevice.cpu.runtime.call import address_of
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
        views = dict((*inputs, *written))
        self._homes = {name: (n, address_of(view), view.nbytes) for n, (name, view) in enumerate(views.items())}
        self._arguments = {n: (len(b.args), address_of(b.args), address_of(b.offsets)) for n, b in bindings.items()}
        self._table = np.zeros((len(views), 9), np.int64)
        for name in views:
            self.move(name, rows[name])
        self._condition = next((view for name, view in outputs if name == again), np.zeros(0, np.bool_))
        ports = args.ctypes.data, self._table.ctypes.data, len(inputs), len(written)
        self._loop = np.array([*ports, self._condition.ctypes.data, self._condition.nbytes], np.int64)
        self.progress = np.array([0, 1], np.int64)
        self._at = address_of(self._loop), address_of(self.progress)

    def move(self, name: str, rows: StepRows) -> None:
        """Set the rows of a port. The caller keeps them alive."""
        points, array = self._can_point(name, rows), rows.array
        if points != (name in self._pointed):  # a new dictionary: by the old one the program knows what to point back
            self._pointed = {n: -1 for n in (*self._pointed, name) if points or n != name}
        number, home, nbytes = self._homes[name]
        bound = self._arguments[name] if points else (0, 0, 0)
        self._table[number] = (*bound, home, address_of(array), nbytes, array.strides[0], rows.shift, len(array))

    def take(self, end: int) -> None:
        """Take steps until `end`, or until the condition is false; maybe fewer, to show signals to the caller."""
        self._take(*self._at, end, self._pointed)

    def _can_point(self, name: str, rows: StepRows) -> bool:
        """Check whether arguments may point at each of these rows."""
        array = rows.array
        free = name in self._anywhere and array.flags.aligned
        return name in self._bindings and (free or not (address_of(array) % ALIGNMENT or array.strides[0] % ALIGNMENT))
