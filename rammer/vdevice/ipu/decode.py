"""Decode an IPU program from the tables that its host program reads.

Shares no code with the writers (`tables.py`, `placement.py`), so that a proof does not repeat their errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rammer.ir.kernel import RKernel
from rammer.ir.tensor import DType, Numbers
from rammer.vdevice.base import Image
from rammer.vdevice.proof.flow import DecodedFlow, VertexClass, VertexGroup, VertexKernel

FILE = "plan.txt"
HELD = {DType.F64: DType.F32, DType.I64: DType.I32}  # the machine has no 64-bit numbers


class _Tokens:
    """Reader of the words and numbers of the tables."""

    def __init__(self, text: str) -> None:
        self._words, self._at = text.split(), 0

    def word(self) -> str:
        self._at += 1
        return self._words[self._at - 1]

    def number(self) -> int:
        return int(self.word())

    def numbers(self, count: int) -> Numbers:
        found = np.array(self._words[self._at : self._at + count], np.int64)
        if len(found) != count:
            raise ValueError("the tables end too early")
        self._at += count
        return found

    def section(self, name: str) -> int:
        if (found := self.word()) != name:
            raise ValueError(f"section {found!r} where {name!r} is due")
        return self.number()

    def end(self) -> None:
        if self._at != len(self._words):
            raise ValueError("the tables go on behind their end")


def decode(image: Image, names: Mapping[RKernel, Sequence[str]]) -> DecodedFlow:
    """Return the program of an image. `names`: for each rKernel, the class of every rTask's vertex.

    Raises ValueError, KeyError or IndexError.
    """
    tokens = _Tokens(image.files[FILE].decode())
    tokens.section("device")
    tokens.word()
    tiles, _, _ = tokens.numbers(3).tolist()
    variables = [(tokens.word(), tokens.word(), tokens.number()) for _ in range(tokens.section("variables"))]
    counts = [count for _, _, count in variables]
    tokens.numbers(4 * tokens.section("homes"))
    scratch: dict[int, Numbers] = {}
    for _ in range(tokens.section("scratch")):
        variable, count = tokens.numbers(2).tolist()
        scratch[variable] = np.append(tokens.numbers(count), counts[variable])
    num_sets = tokens.section("sets")
    for _ in range(num_sets):
        tokens.word()
    classes = [_class(tokens) for _ in range(tokens.section("classes"))]
    kernels = []
    for _ in range(tokens.section("kernels")):
        rtasks, arguments = tokens.numbers(2).tolist()
        rows = tokens.numbers(rtasks * (1 + arguments)).reshape(rtasks, 1 + arguments)
        kernels.append(VertexKernel(rows[:, 0], rows[:, 1:]))
    tokens.section("status")
    groups = []
    for _ in range(tokens.section("operators")):
        kernel, count = tokens.numbers(2).tolist()
        places = tokens.numbers(2 * count).reshape(-1, 2).tolist()
        where = tokens.numbers(2 * len(kernels[kernel].classes)).reshape(-1, 2)
        if np.any((where < 0) | (where >= (num_sets, tiles))):
            raise ValueError("a vertex is in no compute set, or on no tile")
        groups.append(VertexGroup(kernel, tuple((v, b) for v, b in places), where[:, 0], where[:, 1]))
    sent = tokens.numbers(tokens.section("weights")).tolist()
    weights = sorted(image.weights, key=lambda name: int(name[1:]))
    constants = {v: image.weights[name] for v, name in zip(sent, weights, strict=True)}
    inputs, outputs = (
        [(v, base, count) for v, base, count in tokens.numbers(3 * tokens.section(name)).reshape(-1, 3).tolist()]
        for name in ("inputs", "outputs")
    )
    steps = tokens.numbers(tokens.section("steps")).tolist()
    tokens.end()
    return DecodedFlow(tiles, counts, constants, classes, kernels, groups, steps, inputs, outputs, scratch, names, HELD)


def _class(tokens: _Tokens) -> VertexClass:
    name = tokens.word()
    tokens.numbers(3)  # cycles, operations, whether it has a status
    levels = []
    for _ in range(tokens.number()):
        tokens.word()
        tokens.numbers(2)  # whether it is an output; elements of the argument
        levels.append(tuple((d, n) for d, n in tokens.numbers(2 * tokens.number()).reshape(-1, 2).tolist()))
    for _ in range(tokens.number()):
        tokens.word()
        tokens.number()
    scratch = []
    for _ in range(tokens.number()):
        tokens.word()
        scratch.append((tokens.number(), tokens.number()))
    return VertexClass(name, tuple(levels), tuple(scratch))
