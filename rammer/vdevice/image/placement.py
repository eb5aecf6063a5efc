"""Place a plan's tensors in a device's memory, and pack constants into the layouts that kernels read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rammer.errors import DeviceError
from rammer.ir.analysis.storage import constant_key
from rammer.ir.graph import Graph
from rammer.ir.plan import ExecutionPlan, MemoryPlan
from rammer.ir.program import TaskUid
from rammer.ir.tensor import Array, Layout, TensorId, TensorType, pack, unpack
from rammer.planner.pieces import bases
from rammer.vdevice.image.arena import ARENA, SCRATCH, aligned


def constant_value(graph: Graph, tensor: TensorId) -> Array:
    """Return a constant's value, also of a view: a view's physical elements are those of its root."""
    root, offset = graph.storage(tensor)
    value, whole, kind = graph.constants[root], graph.types[root], graph.types[tensor]
    if root == tensor:
        return value
    flat = (pack(value, whole.layout) if whole.layout else value).reshape(-1)
    part = flat[offset : offset + prod(kind.physical_shape)]
    return unpack(part, kind.layout, kind.shape) if kind.layout else part.reshape(kind.shape)


class Operands(NamedTuple):
    """Places of an operator's operands, one list per group of its rTasks: they differ if tensors lie in pieces."""

    places: list[list[tuple[int, int]]]
    chosen: list[int]  # rTask -> entry of `places`


class ArenaPlacement:
    """Places of tensors: in the arena, or in a constant. Each constant is packed once per layout.

    `memory` is the plan's by default. Raises DeviceError for a plan without.
    """

    def __init__(self, plan: ExecutionPlan, memory: MemoryPlan | None = None) -> None:
        found = plan.memory if memory is None else memory
        if found is None:
            raise DeviceError("the plan has no memory", hint="set memory by rammer.planner.memory.plan_memory(plan)")
        self._plan, self._graph, self.memory = plan, plan.graph, found
        self._numbers: dict[tuple[TensorId, Layout | None], int] = {}

    def header(self) -> dict[str, Any]:
        """Return what the tables of all devices say of a plan: its size, ports and operators."""
        plan, graph = self._plan, self._graph
        return {
            "arch": plan.spec.arch,
            "num_veus": plan.spec.num_veus,
            "num_programs": len(plan.programs),
            "arena_bytes": self.memory.arena_bytes,
            "inputs": [self.find(t, None) for t in graph.inputs],
            "outputs": [self.find(t, None) for t in graph.outputs],
            "operators": [f"{op.kind} {op.name!r}" for op in graph.operators],
            "alone": ports_alone(graph, self.memory),
        }

    def find(self, tensor: TensorId, layout: Layout | None) -> tuple[int, int]:
        """Return (ARENA or number of a constant, byte offset). `layout` is that in which a kernel reads a constant."""
        graph = self._graph
        root, offset = graph.storage(tensor)
        itemsize = graph.types[tensor].dtype.itemsize
        if root not in graph.constants:
            if root not in self.memory.offsets:
                raise DeviceError(f"the memory plan has no place for {root!r}")
            return ARENA, self.memory.offsets[root] + offset * itemsize
        key, first = constant_key(graph, tensor, layout)
        return self._numbers.setdefault(key, len(self._numbers)), first * itemsize

    def operands(self, operator: int) -> Operands:
        """Return the places of an operator's outputs, then of its inputs, in the layouts that its rKernel reads."""
        found, op = self._operands(operator), self._graph.operators[operator]
        sent = [(k, t) for k, t in enumerate((*op.outputs, *op.inputs)) if t in self.memory.messages]
        if not sent:
            return found
        known: dict[tuple[int, frozenset[int]], int] = {}
        chosen = []
        for rtask, number in enumerate(found.chosen):
            group = self._groups[TaskUid(operator, rtask)]
            grouped = frozenset(k for k, t in sent if self._groups[self._makers[t]] == group)
            chosen.append(known.setdefault((number, grouped), len(known)))
        at = {k: (SCRATCH, self.memory.messages[t]) for k, t in sent}
        return Operands(
            [[at[k] if k in grouped else p for k, p in enumerate(found.places[n])] for n, grouped in known], chosen
        )

    @cached_property
    def _groups(self) -> dict[TaskUid, int]:
        """Return the group of vEUs on which each rTask runs."""
        cluster, tasks = self._plan.spec.cluster, self._plan.programs[0].tasks()
        return {uid: at.veu // cluster.group for at, uid in tasks} if cluster else {}

    @cached_property
    def _makers(self) -> dict[TensorId, TaskUid]:
        """Return an rTask that makes each tensor."""
        return {t: TaskUid(n, 0) for n, op in enumerate(self._graph.operators) for t in op.outputs}

    def _operands(self, operator: int) -> Operands:
        op, kernel, graph = self._graph.operators[operator], self._plan.kernels[operator], self._graph
        packing = dict(kernel.packing)
        layouts = [graph.types[t].layout for t in op.outputs]
        layouts += [packing.get(name, kind.layout) for name, kind in kernel.operation.expr.inputs]
        separate = bases(self._plan, self.memory, operator) if self.memory.pieces or self.memory.in_scratch else {}
        tensors = (*op.outputs, *op.inputs)
        places = [
            (ARENA, 0) if n in separate else self.find(tensor, layout)
            for n, (tensor, layout) in enumerate(zip(tensors, layouts, strict=True))
        ]
        if not separate:
            return Operands([places], [0] * kernel.num_rtasks)
        known: dict[tuple[int, ...], int] = {}
        begins = np.stack([separate[n] for n in separate], 1).tolist()
        chosen = [known.setdefault(tuple(begin), len(known)) for begin in begins]
        shifts = [graph.storage(tensors[n]).offset * graph.types[tensors[n]].element_bytes for n in separate]
        found = []
        for begin in known:
            mine = list(places)
            for n, base, shift in zip(separate, begin, shifts, strict=True):
                mine[n] = SCRATCH if graph.storage(tensors[n]).root in self.memory.in_scratch else ARENA, base + shift
            found.append(mine)
        return Operands(found, chosen)

    def pack(self, allocate: Callable[[int], NDArray[np.uint8]]) -> dict[str, Array]:
        """Return the constants in their layouts, named w0 … by number, all in one block of memory."""
        kinds = [
            TensorType(self._graph.types[tensor].shape, self._graph.types[tensor].dtype, layout)
            for tensor, layout in self._numbers
        ]
        running: list[Future[None]] = []
        block = allocate(sum(aligned(kind.nbytes) for kind in kinds))
        weights: dict[str, Array] = {}
        at = 0
        with ThreadPoolExecutor() as pool:  # NumPy copies without the GIL
            for n, ((tensor, layout), kind) in enumerate(zip(self._numbers, kinds, strict=True)):
                raw = block[at : at + kind.nbytes]
                if layout is not None and (encoding := layout.encoding):
                    out = raw.view(encoding.dtype.numpy).reshape(-1, encoding.parts, encoding.block)
                    weights[f"w{n}"] = out
                else:
                    out = raw.view(kind.dtype.numpy)
                    weights[f"w{n}"] = out.reshape(kind.physical_shape)
                running.append(pool.submit(arrange, constant_value(self._graph, tensor), layout, out))
                at += aligned(kind.nbytes)
        for future in running:
            future.result()
        return weights


def ports_alone(graph: Graph, memory: MemoryPlan) -> list[str]:
    """Return the inputs and outputs that may be bound elsewhere: no other tensor or port shares their bytes.

    No argument of a tensor in pieces may begin among these bytes either: it may begin far before the accessed piece.
    """
    ranges = [(at, at + graph.types[t].nbytes, t) for t, at in memory.offsets.items()]
    for owner, pieces in memory.pieces.items():
        itemsize, nbytes = graph.types[owner].element_bytes, graph.types[owner].nbytes
        ends = (*(first * itemsize for first in pieces.firsts[1:]), nbytes)
        for first, at, end in zip(pieces.firsts, pieces.offsets, ends, strict=True):
            begin = at - first * itemsize
            ranges.append((begin, begin + end, owner))
    shared: set[TensorId] = set()
    reach, last = 0, None  # the largest end so far, and its tensor
    for start, end, tensor in sorted(ranges):
        if last is not None and start < reach:
            shared |= {tensor, last}
        if last is None or end >= reach:
            reach, last = end, tensor
    updated = {op.outputs[0] for op in graph.operators if op.operation.expr.in_place}  # it shares its input's memory
    ports = [t for t in (*graph.inputs, *graph.outputs) if t not in updated]
    roots = Counter(graph.storage(t).root for t in ports)
    return [t for t in ports if roots[t] == 1 and t in memory.offsets and t not in shared]


def arrange(array: Array, layout: Layout | None, out: Array) -> None:
    """Write `array` in a layout into `out`, a flat array of the layout's physical size, or encoded."""
    if layout is not None and layout.encoding:
        whole = np.empty(prod(layout.physical_shape(array.shape)), array.dtype)
        arrange(array, replace(layout, encoding=None), whole)
        np.copyto(out, layout.encoding.encode(whole))
    elif layout is None:
        np.copyto(out, array.reshape(-1))
    elif (order := _radix_order(layout, array.ndim)) is None:
        np.copyto(out, pack(array, layout).reshape(-1))
    else:
        # Each dimension is split into digits: pad, reshape, transpose. Much faster than indexing single elements.
        sizes, shape = _digit_sizes(layout, array.shape)
        padded = array
        if tuple(shape) != array.shape:
            padded = np.zeros(shape, array.dtype)
            padded[tuple(slice(e) for e in array.shape)] = array
        np.copyto(out.reshape(layout.physical_shape(array.shape)), padded.reshape(sizes).transpose(order))


def _chains(layout: Layout, rank: int) -> list[list[int]]:
    """Return the digits of each logical dimension, most significant first."""
    chains: list[list[int]] = [[] for _ in range(rank)]
    for p, digit in enumerate(layout.digits):
        chains[digit.dim].append(p)
    return [sorted(chain, key=lambda p: -layout.digits[p].div) for chain in chains]


def _radix_order(layout: Layout, rank: int) -> list[int] | None:
    """Return the transposition of digits from logical to physical order; None unless they form a radix system."""
    flat: list[int] = []
    for chain in _chains(layout, rank):
        unit = 1
        for n, p in enumerate(reversed(chain)):
            digit = layout.digits[p]
            top = n == len(chain) - 1
            if digit.div != unit or (digit.mod == 0) != top:
                return None
            unit *= digit.mod
        if not chain:
            return None
        flat += chain
    return [flat.index(p) for p in range(len(layout.digits))]


def _digit_sizes(layout: Layout, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return the extents of all digits in logical order, and the padded extents of the logical dimensions."""
    physical = layout.physical_shape(shape)
    groups = [[physical[p] for p in chain] for chain in _chains(layout, len(shape))]
    return [e for g in groups for e in g], [prod(g) for g in groups]
