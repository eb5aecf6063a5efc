"""Represent the content of an image in terms of plans: the common format of all backends' decoders.

A decoder shares no code with the image's writer; otherwise both would have the same fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rammer.errors import VerificationError
from rammer.ir.kernel import RKernel
from rammer.ir.tensor import Array, Numbers

ARENA, SCRATCH = -1, -2  # bases of operands; constants count from 0
FILE_ALIGNMENT = 64  # bytes, of arrays in a file of tables
NO_COPIES: Numbers = np.zeros((0, 8), np.int64)
NO_HINTS: Numbers = np.zeros((0, 4), np.int64)


@dataclass(frozen=True)
class DecodedSlots:
    """Slots of all lanes in order, rProgram by rProgram and in each vEU by vEU: arrays with one number per slot."""

    program: Numbers
    veu: Numbers
    order: Numbers
    operator: Numbers  # of its rTask, for reports; -1 for a barrier-rTask
    function: Numbers  # to call; -1 for a barrier-rTask
    rtask: Numbers  # the number that the function gets
    published: Numbers  # the number of complete slots of its lane that a slot signals at its end; 0: no signal
    first_operand: Numbers  # row of `DecodedImage.operands`
    num_operands: Numbers
    tickets: Numbers  # tickets of its rTask that others may steal

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True)
class DecodedImage:
    """What a device does with an image. Places are (base, byte offset); a base is ARENA, SCRATCH or a constant.

    `calls(kernel, places, function)` returns whether the function is the rKernel's with operands at these places.
    `tickets` are the tickets of each of an rKernel's rTasks; rTasks of other rKernels cannot be stolen from.
    """

    num_veus: int
    num_programs: int
    slots: DecodedSlots
    waits: Numbers  # [n, 3] a waiting slot, and the (vEU, order) in its rProgram that it waits for
    operands: Numbers  # [n, 2] places
    functions: Sequence[str]
    constants: Sequence[Array]  # as they lie in memory
    arena_bytes: int
    scratch: Numbers  # [num_veus, 2] bytes [begin, end) of each vEU
    scratch_shared: bool  # whether these lie in one memory; else in each vEU's own
    inputs: Sequence[tuple[int, int]]
    outputs: Sequence[tuple[int, int]]
    unshared: frozenset[str]  # ports that may be bound elsewhere, together with the operands in their bytes
    calls: Callable[[RKernel, Numbers, str], bool]
    tickets: Mapping[RKernel, Sequence[int]] = field(default_factory=dict)
    # [n, 8] slot whose rTask it precedes, constant, source (byte of it), target (byte of scratch), bytes of a row,
    # rows, stride of rows in source and in target
    copies: Numbers = field(default_factory=lambda: NO_COPIES)
    # (kernel, input, rTask, elements) -> the elements' indices in a copy
    copy_place: Callable[[RKernel, int, int, Numbers], Numbers] | None = None
    hints: Numbers = field(default_factory=lambda: NO_HINTS)  # [n, 4] slot, place, bytes: prefetches
    # [n, 7] slot, first byte of scratch, words, ranks that receive them, place there, offset and base of a copy
    sent: Numbers = field(default_factory=lambda: np.zeros((0, 7), np.int64))
    # [n, 7] slot before which it arrives, place in scratch, bytes, parity, vEU and order of a slot that sends, base
    received: Numbers = field(default_factory=lambda: np.zeros((0, 7), np.int64))
    boxes: Sequence[int] = ()  # bytes of scratch where arriving bytes are counted
    cluster: int = 1  # vEUs that send each other messages


def broken(rule: str, what: str) -> VerificationError:
    """Return the error of an image that breaks a rule."""
    hint = "the backend built another program than the plan: please report it, with the model"
    return VerificationError(rule, what, hint=hint)


def read_table(data: bytes, arrays: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """Return the header and the arrays of a file of tables. `arrays` are names and types in the file's order.

    The format: eight bytes with the length of a JSON text, that text, and each array at a multiple of 64 bytes. Raises
    ValueError or KeyError for another format.
    """
    length = int(np.frombuffer(data, "<u8", 1)[0])
    text = json.loads(bytes(data[8 : 8 + length]))
    at, found = 8 + length, dict[str, Numbers]()
    for name, dtype in arrays.items():
        listed, shape = text["arrays"][name]
        if listed != dtype:
            raise ValueError(f"{name} is {listed}, and not {dtype}")
        at = -(-at // FILE_ALIGNMENT) * FILE_ALIGNMENT
        size = 1
        for extent in shape:
            size *= int(extent)
        found[name] = np.frombuffer(data, dtype, size, at).reshape(shape).astype(np.int64)
        at += size * np.dtype(dtype).itemsize
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes too many")
    return dict(text["header"]), found
