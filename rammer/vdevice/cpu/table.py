"""The table that vEUs walk: plain arrays, made from a plan, stored in one file of an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, TaskUid
from rammer.ir.tensor import Array
from rammer.vdevice.placement import ARENA
from rammer.vdevice.tables import INT32, INT64, TableFile, rows_of

ABI = 9  # of runtime.c, call.c, the table and the kernels; changes with any of them
PUBLISH = 1  # slot flag: another vEU waits for this slot
TICKETS = 5  # the column of a slot that says how many parts of its rTask others may do
MAX_VEUS = 1024

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Table(TableFile):
    """Lanes of all rPrograms. Slots are int32 [kernel, rtask, args, flags, ahead, tickets]; a barrier has kernel -1,
    its first wait in `args` and the number of waits in `rtask`. Waits are [veu, order].
    """

    bounds: NDArray[np.int64] = field(metadata=INT64)  # [programs * veus + 1] first slot of every lane
    slots: Ints = field(metadata=rows_of(INT32, 6))  # [slots, 6]
    waits: Ints = field(metadata=rows_of(INT32, 2))  # [waits, 2]
    operators: Ints = field(metadata=INT32)  # [slots] operator of the slot's rTask, -1 for barriers
    arg_base: Ints = field(metadata=INT32)  # [args] ARENA, or the number of a constant
    arg_offset: NDArray[np.int64] = field(metadata=INT64)  # [args] bytes
    aheads: NDArray[np.int64] = field(metadata=rows_of(INT64, 3))  # [aheads, 3] place, lines; the first is nothing

    def check(self) -> None:
        """Raise ValueError if an index points outside of its array."""
        header = self.header
        num_veus, num_programs = header["num_veus"], header["num_programs"]
        numbers = (num_veus, num_programs, header["arena_bytes"], header["scratch_bytes"], header["scratch_stride"])
        if not all(type(n) is int and 0 <= n < 1 << 50 for n in numbers):
            raise ValueError("a size is no size")
        kernel, rtask, args, _, ahead, tickets = self.slots.astype(np.int64).T  # sums of int32 might wrap
        barrier = kernel < 0
        arity = np.array([k[2] for k in header["kernels"]] or [0])
        sound = (
            1 <= num_veus <= MAX_VEUS
            and header["scratch_bytes"] <= header["scratch_stride"]
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
            and bool(np.all((self.arg_offset >= 0) | ((self.arg_base == ARENA) & (self.arg_offset > -1 << 50))))
            and bool(np.all((ahead >= 0) & (ahead < len(self.aheads)) & (tickets >= 0)))
            and bool(np.all((self.aheads[:, 0] >= ARENA) & (self.aheads[:, 0] < len(header["weights"]))))
            and bool(np.all((self.aheads[:, 1:] >= 0) & (self.aheads[:, 1:] < 1 << 50)))
            and all(ARENA <= b < len(header["weights"]) and n >= 0 for b, n in (*header["inputs"], *header["outputs"]))
            and len(header["operators"]) > int(np.max(self.operators, initial=-1))
            and set(map(type, (*header["alone"], *header["direct"]))) <= {str}
            and all(isinstance(k[0], str) and isinstance(k[1], str) for k in header["kernels"])
        )
        if not sound:
            raise ValueError("an index points outside of its array")


def lanes_of(
    plan: ExecutionPlan,
    kernel_number: list[int],
    first_args: list[list[int]],
    ahead: Mapping[TaskUid, int],
    tickets: Mapping[RKernel, Sequence[int]],
) -> dict[str, Array]:
    """The arrays of a plan's lanes; `kernel_number` is by operator, `first_args` and `ahead` by rTask, and `tickets`
    of an rKernel for each of its rTasks, if it has any."""
    num_veus = plan.spec.num_veus
    slots: list[tuple[int, int, int, int, int, int]] = []
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
                    given = tickets[plan.kernels[n]] if num_veus > 1 else ()
                    count = given[rtask] if given else 0
                    slots.append((kernel_number[n], rtask, first_args[n][rtask], 0, ahead.get(slot.uid, 0), count))
                    operators.append(n)
                else:
                    slots.append((-1, len(slot.waits), len(waits), 0, 0, 0))
                    operators.append(-1)
                    waits += [(w.veu, w.order) for w in slot.waits]
            bounds.append(len(slots))
        bounds += [len(slots)] * (num_veus - len(program.lanes))
        for n in range(first, len(slots)):
            kernel, count, at, *_ = slots[n]
            if kernel < 0:
                awaited += [starts[veu] + order for veu, order in waits[at : at + count]]
    table = np.array(slots, np.int32).reshape(-1, 6)
    table[awaited, 3] |= PUBLISH
    return {
        "bounds": np.array(bounds, np.int64),
        "slots": table,
        "waits": np.array(waits, np.int32).reshape(-1, 2),
        "operators": np.array(operators, np.int32),
    }
