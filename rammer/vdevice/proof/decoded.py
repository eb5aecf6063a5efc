"""What an image says, in terms of plans: the same for every backend, and read back by a decoder of each.

A decoder shares no code with what wrote the image: a fault of the writer would be in both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rammer.ir.kernel import RKernel
from rammer.ir.tensor import Array

Numbers = NDArray[np.int64]
ARENA, SCRATCH = -1, -2  # bases of operands; constants count from 0
FILE_ALIGNMENT = 64  # bytes, of arrays in a file of tables
NO_COPIES: Numbers = np.zeros((0, 8), np.int64)
NO_HINTS: Numbers = np.zeros((0, 4), np.int64)


@dataclass(frozen=True)
class DecodedSlots:
    """Slots of all lanes in order, rProgram by rProgram and in each vEU by vEU: an array of one number per slot."""

    program: Numbers
    veu: Numbers
    order: Numbers
    operator: Numbers  # whose rTask it is, for reports; -1 of a barrier-rTask
    function: Numbers  # that is called; -1 of a barrier-rTask
    rtask: Numbers  # the number that the function gets
    published: Numbers  # how many slots of its lane a slot says to be complete when it is; 0: it says nothing
    first_operand: Numbers  # row of `DecodedImage.operands`
    num_operands: Numbers
    parts: Numbers  # of its rTask that others may do

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True)
class DecodedImage:
    """What a device does with an image. Places are (base, byte offset); a base is ARENA, SCRATCH or a constant.

    `early`: of an rKernel, the places of its operands and a function, the inputs that the function reads before it
    waits; None if it is not the rKernel's function. `parts`: of how many parts of each of its rTasks an rKernel lets
    others do some; an rKernel that is not listed lets nobody.
    """

    num_veus: int
    num_programs: int
    slots: DecodedSlots
    waits: Numbers  # [n, 3] slot, and the (vEU, order) of its rProgram that it waits for
    operands: Numbers  # [n, 2] places
    functions: Sequence[str]
    constants: Sequence[Array]  # as they lie in memory
    arena_bytes: int
    scratch: Numbers  # [num_veus, 2] bytes [begin, end) of each vEU
    scratch_shared: bool  # whether these lie in one memory; else each vEU has its own
    inputs: Sequence[tuple[int, int]]
    outputs: Sequence[tuple[int, int]]
    alone: frozenset[str]  # ports that may lie elsewhere: operands in their bytes are moved with them
    early: Callable[[RKernel, Numbers, str], frozenset[int] | None]
    parts: Mapping[RKernel, Sequence[int]] = field(default_factory=dict)
    # [n, 8] slot before whose rTask it runs, constant, source, target (bytes of it and of the scratch), bytes of a row,
    # rows, distance of rows in both
    copies: Numbers = field(default_factory=lambda: NO_COPIES)
    # in a copy: the places of elements that an rTask of an rKernel reads of an input
    copy_place: Callable[[RKernel, int, int, Numbers], Numbers] | None = None
    hints: Numbers = field(default_factory=lambda: NO_HINTS)  # [n, 4] slot, place, bytes: what it asks for ahead


def read_table(data: bytes, arrays: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """The header and the arrays of a file of tables, as its format says: eight bytes with the length of a JSON text,
    that text, and each array at a multiple of 64 bytes. `arrays` are their names and types in the file's order.

    Raises ValueError or KeyError for what is no such file.
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
