"""Divide the memory of a plan into pieces, and list those that each rTask touches. Residency is tracked per piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import inf, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.dependency import Elements, read_elements, written_elements
from rammer.ir.analysis.intervals import union
from rammer.ir.analysis.storage import constant_key, memory_owners
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan, MemoryPlan
from rammer.ir.remembered import remembered
from rammer.ir.tensor import Layout, Numbers, TensorId, TensorType
from rammer.planner.pieces import bases

MOST_PIECES = 1 << 12  # of the arena, and of the constants: the time of tracking grows with their number
LEAST_BYTES = 256  # of a piece: four lines


class Touch(NamedTuple):
    """The pieces that an rTask touches, and the bytes that it touches in each. It writes the last ones: `written`."""

    pieces: Numbers
    nbytes: NDArray[np.float64]
    written: Numbers


@dataclass(frozen=True)
class Region:
    """Addresses from 0 to `nbytes`, in pieces of `size` bytes, a power of two.

    `first` is the number of the first piece.
    """

    nbytes: int
    first: int

    @cached_property
    def size(self) -> int:
        size = LEAST_BYTES
        while size * MOST_PIECES < self.nbytes:
            size *= 2
        return size

    @property
    def end(self) -> int:
        """One more than the number of the last piece."""
        return self.first + -(-self.nbytes // self.size)

    def place(self, base: int) -> tuple[int, int]:
        """Return the number of the piece that holds byte `base`, and the offset of that byte in it."""
        return self.first + base // self.size, base % self.size


class ScratchBytes(NamedTuple):
    """Bytes that an rTask reads and writes in the scratch of its vEU, of results that stay there."""

    read: float = 0.0
    written: float = 0.0


NO_SCRATCH = ScratchBytes()


class Address(NamedTuple):
    """The begin of a tensor, or of its part for each rTask if the tensor lies in separate pieces."""

    region: Region
    base: int | Sequence[int]  # byte

    def places(self, num_rtasks: int) -> list[tuple[int, int]]:
        """Return the piece in which the operand of each rTask begins, and the offset in that piece."""
        if isinstance(self.base, int):
            return [self.region.place(self.base)] * num_rtasks
        return [self.region.place(base) for base in self.base]


class Part(NamedTuple):
    """The pieces that an rTask touches of its operands, inputs first.

    Numbers count from the piece where an operand begins.
    """

    pieces: Numbers
    operand: Numbers  # of each piece
    nbytes: NDArray[np.float64]  # in each piece
    written: int  # so many of the last pieces


def touches(kernel: RKernel, addresses: Sequence[Address], in_use: Numbers) -> list[Touch]:
    """Return what every rTask of a kernel touches. `addresses` holds those of its inputs, then of its outputs.

    Raises `in_use` to the bytes of each piece that all rTasks touch together.
    """
    sizes = tuple([at.region.size for at in addresses])
    found = []
    for rtask, places in enumerate(zip(*[at.places(kernel.num_rtasks) for at in addresses], strict=True)):
        firsts, begins = zip(*places, strict=True)
        part = _part(kernel, rtask, begins, sizes)
        pieces = np.array(firsts).take(part.operand)
        pieces += part.pieces
        found.append(Touch(pieces, part.nbytes, pieces[len(pieces) - part.written :]))
    total = np.zeros(len(in_use), np.int64)
    for number, (at, (chosen, most)) in enumerate(zip(addresses, _operands(kernel), strict=True)):
        if isinstance(at.base, int):
            first, begin = at.region.place(at.base)
            pieces, nbytes = _cut(kernel, number, tuple(sorted({*chosen})), begin, sizes[number], most)
            total[pieces + first] += nbytes
            continue
        by_place: dict[tuple[int, int], set[int]] = {}
        for place, use in zip(at.places(len(chosen)), chosen, strict=True):
            by_place.setdefault(place, set()).add(use)
        largest = np.zeros(len(in_use), np.int64)  # pieces of a tensor that take turns in the same place count once
        for (first, begin), uses in by_place.items():
            pieces, nbytes = _cut(kernel, number, tuple(sorted(uses)), begin, sizes[number], most)
            largest[pieces + first] = np.maximum(largest[pieces + first], nbytes)
        total += largest
    np.maximum(in_use, total, out=in_use)
    return found


@remembered(1 << 12)
def _operands(kernel: RKernel) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Return for each operand (inputs first) the set that each rTask uses, and the most elements that all use."""
    expr = kernel.operation.expr
    most = [expr.most_read(name) for name, _ in expr.inputs]
    most += [float(prod(expr.root.shape)) if expr.in_place else inf] * len(kernel.operation.outputs)
    return tuple((_elements(kernel, n)[0].chosen, m) for n, m in enumerate(most))


@remembered(1 << 9)  # steps of a recurrent network touch the same places of tensors of their own
def _part(kernel: RKernel, rtask: int, begins: tuple[int, ...], sizes: tuple[int, ...]) -> Part:
    """Return what an rTask touches of operands that begin at offsets `begins` of pieces of `sizes` bytes."""
    cuts = [
        _cut(kernel, number, (chosen[rtask],), begin, size, most / kernel.num_rtasks)
        for number, ((chosen, most), begin, size) in enumerate(zip(_operands(kernel), begins, sizes, strict=True))
    ]
    pieces, nbytes = (np.concatenate(column) for column in zip(*cuts, strict=True))
    counts = [len(cut) for cut, _ in cuts]
    operand = np.repeat(np.arange(len(cuts)), counts)
    return Part(pieces, operand, nbytes.astype(np.float64), sum(counts[len(kernel.operation.inputs) :]))


def _elements(kernel: RKernel, number: int) -> tuple[Elements, TensorType]:
    """Return the elements that rTasks use of an operand, and its type. Inputs are numbered first."""
    if (output := number - len(kernel.operation.inputs)) >= 0:
        return written_elements(kernel, output), kernel.operation.outputs[output]
    return read_elements(kernel, number), kernel.input_types()[number]


@remembered(1 << 12)
def _cut(
    kernel: RKernel, number: int, chosen: tuple[int, ...], begin: int, size: int, most: float
) -> tuple[Numbers, Numbers]:
    """Return the pieces of `size` bytes of an operand, and the bytes in each. It begins at byte `begin` of piece 0.

    Counts the sets numbered `chosen`. If they have more than `most` elements, each piece counts in proportion.
    """
    elements, kind = _elements(kernel, number)
    used = union([elements.sets[n] for n in chosen])
    spans = used * kind.element_bytes + begin
    first, last = spans[:, 0] // size, (spans[:, 1] - 1) // size
    counts = last - first + 1
    span = np.repeat(np.arange(len(spans)), counts)
    pieces = first[span] + np.arange(len(span)) - np.repeat(np.cumsum(counts) - counts, counts)
    nbytes = np.minimum(spans[span, 1], (pieces + 1) * size) - np.maximum(spans[span, 0], pieces * size)
    begins = np.flatnonzero(np.diff(pieces, prepend=-1))
    pieces, nbytes = pieces[begins], np.add.reduceat(nbytes, begins) if len(begins) else nbytes
    if most * kind.element_bytes < (total := int(nbytes.sum())):
        nbytes = np.ceil(nbytes * (most * kind.element_bytes / total)).astype(np.int64)
    return pieces, nbytes


def _without_scratch(touch: Touch, end: int) -> tuple[Touch, ScratchBytes]:
    """Split an rTask's pieces at number `end`: return those before it, and the bytes of those after it, in scratch."""
    outside, count = touch.pieces < end, len(touch.written)
    sizes, written = touch.nbytes[~outside], np.arange(len(outside)) >= len(outside) - count
    found = ScratchBytes(float(sizes[~written[~outside]].sum()), float(sizes[written[~outside]].sum()))
    return Touch(touch.pieces[outside], touch.nbytes[outside], touch.written[touch.written < end]), found


def touches_alone(kernel: RKernel) -> tuple[list[Touch], Numbers]:
    """Return what every rTask touches if memory holds only the kernel's operands, and the bytes of each piece."""
    bases, nbytes = [], 0
    for kind in (*kernel.input_types(), *kernel.operation.outputs):
        bases.append(nbytes)
        nbytes += kind.nbytes
    region = Region(nbytes, 0)
    in_use = np.zeros(region.end, np.int64)
    return touches(kernel, [Address(region, base) for base in bases], in_use), in_use


class PieceUse:
    """The pieces of a plan's memory: those that each operator's rTasks touch, and the bytes of each that are `in_use`.

    Tensors that share bytes of the arena share pieces. Without a memory plan, every tensor counts as separate memory.
    `in_scratch`: bytes that rTasks use in the scratch of their vEU; these are in no piece.
    """

    def __init__(self, plan: ExecutionPlan) -> None:
        self._graph = plan.graph
        if (memory := plan.memory) is None:
            sizes = {tensor: plan.graph.types[tensor].nbytes for tensor in memory_owners(plan.graph)}
            starts = [0, *accumulate(sizes.values())]
            memory = MemoryPlan(dict(zip(sizes, starts, strict=False)), starts[-1])
        self._offsets = dict(memory.offsets)
        scratch_bytes = 0
        for tensor in memory.in_scratch:  # at addresses of their own: only the number of bytes counts
            self._offsets[tensor] = scratch_bytes
            scratch_bytes += plan.graph.types[tensor].nbytes
        self._constants: dict[tuple[TensorId, Layout | None], int] = {}
        constant_bytes = 0
        for op, kernel in zip(plan.graph.operators, plan.kernels, strict=True):
            for tensor, kind in zip(op.inputs, kernel.input_types(), strict=True):
                if plan.graph.storage(tensor).root in plan.graph.constants:
                    (whole, layout), _ = key = constant_key(plan.graph, tensor, kind.layout)
                    if key[0] not in self._constants:
                        self._constants[key[0]] = constant_bytes
                        constant_bytes += replace(plan.graph.types[whole], layout=layout).nbytes
        self._arena = Region(memory.arena_bytes, 0)
        self._static = Region(constant_bytes, self._arena.end)
        self._scratch, self._in_scratch = Region(scratch_bytes, self._static.end), memory.in_scratch
        in_use = np.zeros(self._scratch.end, np.int64)
        self.touched: list[list[Touch]] = []
        self.in_scratch: list[list[ScratchBytes]] = []
        for n, (op, kernel) in enumerate(zip(plan.graph.operators, plan.kernels, strict=True)):
            separate = bases(plan, memory, n) if memory.pieces else {}
            tensors, kinds = (*op.inputs, *op.outputs), (*kernel.input_types(), *kernel.operation.outputs)
            numbers = [*range(len(op.outputs), len(tensors)), *range(len(op.outputs))]  # outputs are arguments first
            operands = zip(tensors, kinds, map(separate.get, numbers), strict=True)
            addresses = [self._address(*operand) for operand in operands]
            found = touches(kernel, addresses, in_use)
            if memory.in_scratch.keys().isdisjoint(plan.graph.storage(t).root for t in tensors):
                self.touched.append(found)
                self.in_scratch.append([NO_SCRATCH] * len(found))
            else:
                parts = [_without_scratch(touch, self._static.end) for touch in found]
                self.touched.append([outside for outside, _ in parts])
                self.in_scratch.append([in_scratch for _, in_scratch in parts])
        self.in_use = in_use[: self._static.end]

    def _address(self, tensor: TensorId, kind: TensorType, bases: Numbers | None) -> Address:
        """Return where a tensor begins. `kind` has the layout in which a constant is read.

        `bases`: for an owner in separate pieces, the address that each rTask takes for its begin.
        """
        root, offset = self._graph.storage(tensor)
        if root in self._in_scratch:
            return Address(self._scratch, self._offsets[root] + offset * kind.element_bytes)
        if bases is not None:
            return Address(self._arena, (bases + offset * kind.element_bytes).tolist())
        if root not in self._graph.constants:
            return Address(self._arena, self._offsets[root] + offset * kind.element_bytes)
        key, first = constant_key(self._graph, tensor, kind.layout)
        return Address(self._static, self._constants[key] + first * kind.element_bytes)
