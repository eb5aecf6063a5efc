"""Decode the image of a GPU program from its bytes and its text.

Shares no code with the writers (`table.py`, `image.py`, `megakernel.py`), so that a proof does not repeat their errors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rammer.ir.kernel import RKernel
from rammer.ir.tensor import Numbers
from rammer.vdevice.base import Image
from rammer.vdevice.proof.decoded import SCRATCH, DecodedImage, DecodedSlots, read_table
from rammer.vdevice.simt.codegen.prelude import Dialect
from rammer.vdevice.simt.codegen.slices import slice_of
from rammer.vdevice.simt.codegen.variants import Variants

FILE, TEXT = "table.bin", "program.cu"
ARRAYS = dict.fromkeys(("bounds", "instructions", "waits", "operators", "arg_base"), "<i4") | {"arg_offset": "<i8"}
LAST, WAITS, COPIES = -1, -2, -3  # functions of instructions that are not rTasks
COPY_NUMBERS = 7  # source, target, bytes of a row, rows, distances of rows in both, bytes of an access
SCRATCH_AT = re.compile(r"\*scratch = arena \+ (\d+);")
CASE = re.compile(r"case (-?\d+): .*?(\w+)\(argv, scratch[,)]")
RECEIVES = re.compile(r"case (\d+): mk_receive\(run, argv \+ (\d+), (\d+), scratch,")
SENDS = re.compile(r"case (\d+): .*mk_send\(argv \+ (\d+), (\d+), scratch,")
BOXES = re.compile(r"n = tid; n < (\d+); .*mk_open_box\(scratch \+ (\d+) \+ n \* (\d+)\);")
CLUSTERS = re.compile(r"\bMK_CLUSTER\((\d+)\)|\bMK_BLOCKS (\d+)")
MESSAGE_ARGS = 5


@dataclass(frozen=True)
class _Walked:
    """The instructions of all lanes that are slots, or two: the barrier-rTask before an rTask is part of it."""

    rows: Numbers  # [n, 8]
    number: Numbers  # of each among all instructions
    lane: Numbers
    slot: Numbers  # the last one of each
    merged: NDArray[np.bool_]

    def spread(self, values: Numbers, barrier: Numbers | int) -> Numbers:
        """Spread a number of each instruction over its slots. `barrier`: that of a merged barrier-rTask."""
        found = np.zeros(int(self.slot[-1]) + 1 if len(self.slot) else 0, np.int64)
        found[self.slot] = values
        found[self.slot[self.merged] - 1] = np.broadcast_to(barrier, values.shape)[self.merged]
        return found


def decode(image: Image, dialect: Dialect) -> DecodedImage:
    """Read the lanes of a program in a dialect. Raises ValueError or KeyError for an image that cannot be read."""
    header, arrays = read_table(image.files[FILE], ARRAYS)
    text = image.files[TEXT].decode()
    num_veus, num_programs = int(header["num_veus"]), int(header["num_programs"])
    bounds, operands = arrays["bounds"], np.stack([arrays["arg_base"], arrays["arg_offset"]], 1)
    if len(bounds) != num_veus * num_programs + 1 or arrays["instructions"].shape[1:] != (8,):
        raise ValueError("lanes and instructions do not match")
    rows = arrays["instructions"][: bounds[-1]]
    lane = np.repeat(np.arange(num_veus * num_programs), np.diff(bounds))
    if (rows[:, 0] == LAST).sum() != len(bounds) - 1 or (rows[bounds[1:] - 1, 0] != LAST).any():
        raise ValueError("a lane does not end where it should")
    walked = _walked(rows, lane)
    slots = _slots(walked, arrays["operators"], num_veus)
    if (begins := SCRATCH_AT.search(text)) is None:
        raise ValueError("the text says nowhere where scratch begins")
    clusters = {int(header.get("cluster", 1)), *(int(a or b) for a, b in CLUSTERS.findall(text))}
    if len(clusters) > 1:
        raise ValueError(f"clusters have {sorted(clusters)} vEUs")
    room = int(header["shared_bytes"]) - int(begins[1])
    return DecodedImage(
        num_veus=num_veus,
        num_programs=num_programs,
        slots=slots,
        waits=_waits(walked, slots, arrays["waits"], num_veus),
        operands=operands,
        functions=_cases(text),
        constants=[image.weights[name] for name in header["weights"]],
        arena_bytes=int(header["arena_bytes"]),
        scratch=np.tile([[0, room]], (num_veus, 1)),
        scratch_shared=False,
        inputs=[(int(b), int(o)) for b, o in header["inputs"]],
        outputs=[(int(b), int(o)) for b, o in header["outputs"]],
        unshared=frozenset(header["alone"]),
        copies=_copies(walked, rows, lane, operands),
        copy_place=_copy_place,
        sent=_messages(walked, operands, SENDS.findall(text)),
        received=_messages(walked, operands, RECEIVES.findall(text)),
        boxes=[int(at) + n * int(step) for count, at, step in BOXES.findall(text) for n in range(int(count))],
        cluster=clusters.pop(),
        calls=Variants(dialect, int(header["threads"])).calls,
    )


def _walked(rows: Numbers, lane: Numbers) -> _Walked:
    """Return the instructions that are slots. Raises ValueError if slots of a lane are missing."""
    number = np.flatnonzero((rows[:, 0] >= 0) | (rows[:, 0] == WAITS))
    fn, *_, num_waits, _, order = rows[number].T
    own = lane[number]
    before = np.append(-1, order[:-1])
    before[np.append(True, np.diff(own) != 0)[: len(own)]] = -1
    gap = order - before  # 2: the barrier-rTask before an rTask is part of its instruction
    if np.any((gap < 1) | (gap > 2) | ((gap == 2) & (fn < 0)) | ((gap == 1) & (fn >= 0) & (num_waits > 0))):
        raise ValueError("slots of a lane are missing, or an rTask waits that has no barrier-rTask before it")
    return _Walked(rows[number], number, own, np.cumsum(gap) - 1, gap == 2)


def _slots(walked: _Walked, operators: Numbers, num_veus: int) -> DecodedSlots:
    fn, rtask, first, count, _, _, step, order = walked.rows.T
    spread, lane, task = walked.spread, walked.lane, fn >= 0
    return DecodedSlots(
        program=spread(lane // num_veus, lane // num_veus),
        veu=spread(lane % num_veus, lane % num_veus),
        order=spread(order, order - 1),
        operator=spread(np.where(task, operators[walked.number], -1), -1),
        function=spread(np.where(task, fn, -1), -1),
        rtask=spread(rtask, 0),
        published=spread(step, 0),
        first_operand=spread(first, 0),
        num_operands=spread(np.where(task, count, 0), 0),
        tickets=spread(np.zeros_like(fn), 0),
    )


def _waits(walked: _Walked, slots: DecodedSlots, waits: Numbers, num_veus: int) -> Numbers:
    """Return each slot's waits for other lanes; those for its own are skipped."""
    first, num_waits = walked.rows[:, 4], walked.rows[:, 5]
    barrier = np.where(walked.rows[:, 0] >= 0, walked.slot - 1, walked.slot)  # to which an instruction's waits belong
    number = np.repeat(np.arange(len(first)), num_waits)
    listed = waits[np.repeat(first - (np.cumsum(num_waits) - num_waits), num_waits) + np.arange(len(number))]
    whose = barrier[number]
    other = (listed[:, 0] != walked.lane[number] % num_veus) | (listed[:, 1] >= slots.order[whose])
    found: Numbers = np.column_stack((whose, listed))[other]
    return found


def _copies(walked: _Walked, rows: Numbers, lane: Numbers, operands: Numbers) -> Numbers:
    """Return the copies of constants, each before the slot that follows. Raises ValueError."""
    copying = np.flatnonzero(rows[:, 0] == COPIES)
    following = np.searchsorted(walked.number, copying)
    numbers = operands[rows[copying, 2][:, None] + np.arange(COPY_NUMBERS)]
    if np.any(rows[copying, 3] != COPY_NUMBERS) or np.any(numbers[:, 1:, 0] != SCRATCH):
        raise ValueError("an instruction copies nothing")
    if len(copying) and (following.max() >= len(walked.lane) or np.any(walked.lane[following] != lane[copying])):
        raise ValueError("a lane copies what none of its rTasks reads")
    begin, target, nbytes, repeats, step_from, step_to, _ = numbers[:, :, 1].T
    slot = walked.slot[following]
    return np.column_stack((slot, numbers[:, 0, 0], begin, target, nbytes, repeats, step_from, step_to))


def _messages(walked: _Walked, operands: Numbers, calls: Sequence[Sequence[str]]) -> Numbers:
    """Return the messages of all slots whose functions have some: slot, numbers, base of the last one.

    Raises ValueError.
    """
    found = [np.zeros((0, 2 + MESSAGE_ARGS), np.int64)]
    for function, first, count in calls:
        at = np.flatnonzero(walked.rows[:, 0] == int(function))
        for n in range(int(count)):
            numbers = operands[walked.rows[at, 2][:, None] + int(first) + n * MESSAGE_ARGS + np.arange(MESSAGE_ARGS)]
            if np.any(numbers[:, :-1, 0] != SCRATCH):
                raise ValueError("a message has an argument that is no number")
            found.append(np.column_stack((walked.slot[at], numbers[:, :, 1], numbers[:, -1, 0])))
    return np.concatenate(found)


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
