"""Decode the image of a GPU program from its bytes and its text.

Shares no code with the writers (`table.py`, `image.py`, `megakernel.py`), so that a proof does not repeat their errors.
"""

from __future__ import annotations

import re

import numpy as np

from rammer.ir.kernel import RKernel
from rammer.vdevice.base import Image
from rammer.vdevice.proof.decoded import SCRATCH, DecodedImage, DecodedSlots, Numbers, read_table
from rammer.vdevice.simt.codegen.prelude import Dialect
from rammer.vdevice.simt.codegen.slices import slice_of
from rammer.vdevice.simt.codegen.variants import Variants

FILE, TEXT = "table.bin", "program.cu"
ARRAYS = {
    "bounds": "<i4",
    "instructions": "<i4",
    "waits": "<i4",
    "operators": "<i4",
    "arg_base": "<i4",
    "arg_offset": "<i8",
}
LAST, WAITS, COPIES = -1, -2, -3  # functions of instructions that are not rTasks
COPY_NUMBERS = 7  # source, target, bytes of a row, rows, distances of rows in both, bytes of an access
SCRATCH_AT = re.compile(r"\*scratch = arena \+ (\d+);")
CASE = re.compile(r"case (-?\d+): .*?(\w+)\(argv, scratch[,)]")


def decode(image: Image, dialect: Dialect) -> DecodedImage:
    """Read the lanes of a program in a dialect. Raises ValueError or KeyError for an image that cannot be read."""
    header, arrays = read_table(image.files[FILE], ARRAYS)
    text = image.files[TEXT].decode()
    num_veus, num_programs = int(header["num_veus"]), int(header["num_programs"])
    bounds, waits, operands = arrays["bounds"], arrays["waits"], np.stack([arrays["arg_base"], arrays["arg_offset"]], 1)
    if len(bounds) != num_veus * num_programs + 1 or arrays["instructions"].shape[1:] != (8,):
        raise ValueError("lanes and instructions do not match")
    rows = arrays["instructions"][: bounds[-1]]
    lane = np.repeat(np.arange(num_veus * num_programs), np.diff(bounds))
    if (rows[:, 0] == LAST).sum() != len(bounds) - 1 or (rows[bounds[1:] - 1, 0] != LAST).any():
        raise ValueError("a lane does not end where it should")
    functions = _cases(text)
    copying, walking = np.flatnonzero(rows[:, 0] == COPIES), np.flatnonzero((rows[:, 0] >= 0) | (rows[:, 0] == WAITS))
    fn, rtask, first, count, wait, num_waits, step, order = rows[walking].T
    own, operator = lane[walking], arrays["operators"][walking]
    before = np.append(-1, order[:-1])
    before[np.append(True, np.diff(own) != 0)[: len(own)]] = -1
    gap = order - before  # 2: the barrier-rTask before an rTask is part of its instruction
    if np.any((gap < 1) | (gap > 2) | ((gap == 2) & (fn < 0)) | ((gap == 1) & (fn >= 0) & (num_waits > 0))):
        raise ValueError("slots of a lane are missing, or an rTask waits that has no barrier-rTask before it")
    ends = np.cumsum(gap)  # rows of slots: an instruction's last one is ends - 1
    merged = np.flatnonzero(gap == 2)
    at = ends - 1

    def spread(values: Numbers, barrier: Numbers) -> Numbers:
        """Spread a number of each instruction over its slots; `barrier`: the number of a merged barrier-rTask."""
        found = np.zeros(int(ends[-1]) if len(ends) else 0, np.int64)
        found[at], found[at[merged] - 1] = values, barrier[merged]
        return found

    none, minus = np.zeros_like(fn), np.full_like(fn, -1)
    task = fn >= 0
    slots = DecodedSlots(
        program=spread(own // num_veus, own // num_veus),
        veu=spread(own % num_veus, own % num_veus),
        order=spread(order, order - 1),
        operator=spread(np.where(task, operator, -1), minus),
        function=spread(np.where(task, fn, -1), minus),
        rtask=spread(rtask, none),
        published=spread(step, none),
        first_operand=spread(first, none),
        num_operands=spread(np.where(task, count, 0), none),
        parts=spread(none, none),
    )
    barrier = np.where(task, at - 1, at)  # the slot to which an instruction's waits belong
    number = np.repeat(np.arange(len(fn)), num_waits)
    listed = waits[np.repeat(wait - (np.cumsum(num_waits) - num_waits), num_waits) + np.arange(len(number))]
    whose = barrier[number]
    other = (listed[:, 0] != own[number] % num_veus) | (listed[:, 1] >= slots.order[whose])  # own lane: skipped
    following = np.searchsorted(walking, copying)
    numbers = operands[rows[copying, 2][:, None] + np.arange(COPY_NUMBERS)]
    if np.any(rows[copying, 3] != COPY_NUMBERS) or np.any(numbers[:, 1:, 0] != SCRATCH):
        raise ValueError("an instruction copies nothing")
    if len(copying) and (following.max() >= len(walking) or np.any(own[following] != lane[copying])):
        raise ValueError("a lane copies what none of its rTasks reads")
    begin, target, nbytes, repeats, step_from, step_to, _ = numbers[:, :, 1].T
    copies = np.column_stack((at[following], numbers[:, 0, 0], begin, target, nbytes, repeats, step_from, step_to))
    if (begins := SCRATCH_AT.search(text)) is None:
        raise ValueError("the text says nowhere where scratch begins")
    room = int(header["shared_bytes"]) - int(begins[1])
    return DecodedImage(
        num_veus=num_veus,
        num_programs=num_programs,
        slots=slots,
        waits=np.column_stack((whose, listed))[other],
        operands=operands,
        functions=functions,
        constants=[image.weights[name] for name in header["weights"]],
        arena_bytes=int(header["arena_bytes"]),
        scratch=np.tile([[0, room]], (num_veus, 1)),
        scratch_shared=False,
        inputs=[(int(b), int(o)) for b, o in header["inputs"]],
        outputs=[(int(b), int(o)) for b, o in header["outputs"]],
        alone=frozenset(header["alone"]),
        copies=copies,
        copy_place=_copy_place,
        calls=Variants(dialect, int(header["threads"])).calls,
    )


def _cases(text: str) -> list[str]:
    """Return the functions by number, as the loop of a text calls them."""
    found = {int(number): name for number, name in CASE.findall(text) if int(number) >= 0}
    if sorted(found) != list(range(len(found))):
        raise ValueError("numbers of functions are missing")
    return [found[n] for n in range(len(found))]


def _copy_place(kernel: RKernel, position: int, rtask: int, elements: Numbers) -> Numbers:
    """Return where a function that reads a copy of an input finds these elements, counted from the copy's begin."""
    part = slice_of(kernel, position)
    if part is None:
        raise ValueError(f"{kernel.name} reads no copy of its input {position}")
    at = elements - part.start(rtask)
    for distance, row in part.folds:
        at = at // distance * row + at % distance
    return at
