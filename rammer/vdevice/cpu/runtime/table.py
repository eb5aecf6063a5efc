"""Define the table that vEUs walk: plain arrays made from a plan, stored in one file of an image."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rammer.vdevice.image.arena import ARENA
from rammer.vdevice.image.tables import INT32, INT64, TableFile, rows_of

ABI = 10  # of runtime.c, call.c, the table and the kernels; changes with any of them
SIGNALS_DONE = 1  # slot flag: another vEU waits for this slot
TICKETS = 5  # the column of a slot with the number of iterations that other vEUs may steal
MAX_VEUS = 1024
RUNTIME, TABLE = "runtime.so", "table.bin"  # files of an image
LINE_BYTES = 64  # of a cache line

Ints = NDArray[np.int32]


def fingerprint(arch: str) -> str:
    """Return what an image requires from the machine that loads it: ABI and arch."""
    return f"cpu-abi{ABI}-{arch}"


@dataclass(frozen=True)
class Table(TableFile):
    """Lanes of all rPrograms. Slots are int32 [kernel, rtask, args, flags, ahead, tickets].

    A barrier has kernel -1, its first wait in `args` and the number of waits in `rtask`. Waits are [veu, order].
    """

    bounds: NDArray[np.int64] = field(metadata=INT64)  # [programs * veus + 1] first slot of every lane
    slots: Ints = field(metadata=rows_of(INT32, 6))  # [slots, 6]
    waits: Ints = field(metadata=rows_of(INT32, 2))  # [waits, 2]
    operators: Ints = field(metadata=INT32)  # [slots] operator of the slot's rTask, -1 for barriers
    arg_base: Ints = field(metadata=INT32)  # [args] ARENA, or the number of a constant
    arg_offset: NDArray[np.int64] = field(metadata=INT64)  # [args] bytes
    aheads: NDArray[np.int64] = field(metadata=rows_of(INT64, 3))  # [aheads, 3] base, offset, lines; row 0: none

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
