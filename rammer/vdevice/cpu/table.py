"""The table that vEUs walk: plain arrays, made from a plan, stored in one file of an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, TaskUid
from rammer.ir.tensor import Array
from rammer.vdevice import tables
from rammer.vdevice.placement import ARENA

ABI = 3  # of runtime.c, the table and the kernels; changes with any of them
PUBLISH = 1  # slot flag: another vEU waits for this slot
MAX_VEUS = 1024

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Table:
    """Lanes of all rPrograms. Slots are int32 [kernel, rtask, args, flags, ahead]; a barrier has kernel -1, its first
    wait in `args` and the number of waits in `rtask`. Waits are [veu, order].
    """

    header: Mapping[str, Any]
    bounds: NDArray[np.int64]  # [programs * veus + 1] first slot of every lane
    slots: Ints  # [slots, 5]
    waits: Ints  # [waits, 2]
    operators: Ints  # [slots] operator of the slot's rTask, -1 for barriers
    arg_base: Ints  # [args] ARENA, or the number of a constant
    arg_offset: NDArray[np.int64]  # [args] bytes
    aheads: NDArray[np.int64]  # [aheads, 3] base and offset, as for args, and lines; the first one is nothing

    def to_bytes(self) -> bytes:
        """The file, see `rammer.vdevice.tables`."""
        return tables.to_bytes(self.header, {name: getattr(self, name) for name in _ARRAYS})

    @staticmethod
    def from_bytes(data: bytes) -> Table:
        """Read and check a file. Raises ArtifactError."""
        with tables.damage_reported():
            header, arrays = tables.from_bytes(data, _ARRAYS)
            table = Table(header, **arrays)
            table.check()
        return table

    def check(self) -> None:
        """Raise ValueError if an index points outside of its array."""
        header = self.header
        num_veus, num_programs = header["num_veus"], header["num_programs"]
        numbers = (num_veus, num_programs, header["arena_bytes"], header["scratch_bytes"])
        if not all(type(n) is int and 0 <= n < 1 << 50 for n in numbers):
            raise ValueError("a size is no size")
        kernel, rtask, args, _, ahead = self.slots.astype(np.int64).T  # sums of int32 might wrap
        barrier = kernel < 0
        arity = np.array([k[2] for k in header["kernels"]] or [0])
        sound = (
            1 <= num_veus <= MAX_VEUS
            and len(self.bounds) == num_programs * num_veus + 1
            and self.bounds[0] == 0
            and self.bounds[-1] == len(self.slots) == len(self.operators)
            and bool(np.all(np.diff(self.bounds) >= 0))
            and bool(np.all((kernel >= -1) & (kernel < len(header["kernels"])) & (rtask >= 0) & (args >= 0)))
            and bool(np.all((args + rtask)[barrier] <= len(self.waits)))
            and bool(np.all((args[~barrier] + arity[kernel[~barrier]]) <= len(self.arg_base)))
            and bool(np.all((self.waits[:, 0] >= 0) & (self.waits[:, 0] < num_veus) & (self.waits[:, 1] >= 0)))
            and len(self.arg_base) == len(self.arg_offset)
            and bool(np.all((self.arg_base >= ARENA) & (self.arg_base < len(header["weights"]))))
            and bool(np.all(self.arg_offset >= 0))
            and bool(np.all((ahead >= 0) & (ahead < len(self.aheads))))
            and bool(np.all((self.aheads[:, 0] >= ARENA) & (self.aheads[:, 0] < len(header["weights"]))))
            and bool(np.all((self.aheads[:, 1:] >= 0) & (self.aheads[:, 1:] < 1 << 50)))
            and all(ARENA <= b < len(header["weights"]) and n >= 0 for b, n in (*header["inputs"], *header["outputs"]))
            and len(header["operators"]) > int(np.max(self.operators, initial=-1))
            and all(isinstance(k[0], str) and isinstance(k[1], str) for k in header["kernels"])
        )
        if not sound:
            raise ValueError("an index points outside of its array")


_ARRAYS = {
    "bounds": "<i8",
    "slots": "<i4",
    "waits": "<i4",
    "operators": "<i4",
    "arg_base": "<i4",
    "arg_offset": "<i8",
    "aheads": "<i8",
}


def lanes_of(
    plan: ExecutionPlan, kernel_number: list[int], first_arg: list[int], ahead: Mapping[TaskUid, int]
) -> dict[str, Array]:
    """The arrays of a plan's lanes; `kernel_number` and `first_arg` are by operator, `ahead` by rTask."""
    num_veus = plan.spec.num_veus
    slots: list[tuple[int, int, int, int, int]] = []
    waits: list[tuple[int, int]] = []
    operators: list[int] = []
    bounds = [0]
    awaited: list[int] = []
    for program in plan.programs:
        first = len(slots)
        starts = []
        for lane in program.lanes:
            starts.append(len(slots))
            for slot in lane:
                if isinstance(slot, RTask):
                    n, rtask = slot.uid
                    slots.append((kernel_number[n], rtask, first_arg[n], 0, ahead.get(slot.uid, 0)))
                    operators.append(n)
                else:
                    slots.append((-1, len(slot.waits), len(waits), 0, 0))
                    operators.append(-1)
                    waits += [(w.veu, w.order) for w in slot.waits]
            bounds.append(len(slots))
        bounds += [len(slots)] * (num_veus - len(program.lanes))
        for n in range(first, len(slots)):
            kernel, count, at, *_ = slots[n]
            if kernel < 0:
                awaited += [starts[veu] + order for veu, order in waits[at : at + count]]
    table = np.array(slots, np.int32).reshape(-1, 5)
    table[awaited, 3] |= PUBLISH
    return {
        "bounds": np.array(bounds, np.int64),
        "slots": table,
        "waits": np.array(waits, np.int32).reshape(-1, 2),
        "operators": np.array(operators, np.int32),
    }
