"""Decode a CPU image from its bytes for the proof. Shares no code with its writers (`table.py`, `build.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rammer.ir.kernel import RKernel
from rammer.vdevice.base import Image
from rammer.vdevice.proof.decoded import DecodedImage, DecodedSlots, read_table

FILE = "table.bin"
ARRAYS = {
    "bounds": "<i8",
    "slots": "<i4",
    "waits": "<i4",
    "operators": "<i4",
    "arg_base": "<i4",
    "arg_offset": "<i8",
    "aheads": "<i8",
}
SAYS_DONE = 1  # slot flag: publishes its completion
LINE_BYTES = 64


def decode(image: Image, names: Mapping[RKernel, str], tickets_of: Mapping[RKernel, Sequence[int]]) -> DecodedImage:
    """Return the lanes of a table.

    `names` are symbols of rKernels, `tickets_of` the stealable iterations of their rTasks.
    """
    header, arrays = read_table(image.files[FILE], ARRAYS)
    num_veus, num_programs = int(header["num_veus"]), int(header["num_programs"])
    bounds, slots, waits = arrays["bounds"], arrays["slots"], arrays["waits"]
    if len(bounds) != num_veus * num_programs + 1 or slots.shape[1:] != (6,) or bounds[-1] != len(slots):
        raise ValueError("lanes and slots do not match")
    lane = np.repeat(np.arange(num_veus * num_programs), np.diff(bounds))
    kernel, rtask, first, flags, ahead, tickets = slots.T
    barrier = kernel < 0
    arity = np.array([int(k[2]) for k in header["kernels"]] + [0], np.int64)
    order = np.arange(len(slots)) - bounds[lane]
    found = DecodedSlots(
        program=lane // num_veus,
        veu=lane % num_veus,
        order=order,
        operator=arrays["operators"],
        function=np.where(barrier, -1, kernel),
        rtask=rtask,
        published=np.where(flags & SAYS_DONE, order + 1, 0),
        first_operand=first,
        num_operands=np.where(barrier, 0, arity[np.where(barrier, -1, kernel)]),
        tickets=np.where(barrier, 0, tickets),
    )
    who = np.flatnonzero(barrier)
    slot = np.repeat(who, rtask[who])
    row = np.arange(len(slot)) + np.repeat(first[who] - (np.cumsum(rtask[who]) - rtask[who]), rtask[who])
    constants = [image.weights[name] for name in header["weights"]]
    asking = np.flatnonzero(~barrier & (ahead > 0))
    base, offset, lines = arrays["aheads"][ahead[asking]].T
    stride, scratch = int(header["scratch_stride"]), int(header["scratch_bytes"])
    begins = stride * np.arange(num_veus)
    return DecodedImage(
        num_veus=num_veus,
        num_programs=num_programs,
        slots=found,
        waits=np.column_stack((slot, waits[row])),
        operands=np.column_stack((arrays["arg_base"], arrays["arg_offset"])),
        functions=[str(k[1]) for k in header["kernels"]],
        constants=constants,
        arena_bytes=int(header["arena_bytes"]),
        scratch=np.column_stack((begins, begins + scratch)),
        scratch_shared=True,
        inputs=[(int(b), int(o)) for b, o in header["inputs"]],
        outputs=[(int(b), int(o)) for b, o in header["outputs"]],
        unshared=frozenset((*header["alone"], *header["direct"])),
        calls=lambda kernel, _, function: names.get(kernel) == function,
        tickets=tickets_of,
        hints=np.column_stack((asking, base, offset, np.maximum(lines - 1, 0) * LINE_BYTES)),
    )
