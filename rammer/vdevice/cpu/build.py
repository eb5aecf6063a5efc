"""A plan becomes an image: machine code, the table that vEUs walk, and packed constants."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from rammer.errors import DeviceError
from rammer.ir.graph import Graph
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import Array, Layout, TensorId, TensorType, pack, unpack
from rammer.vdevice.base import Image, Port, Progress
from rammer.vdevice.cpu.compile import KernelCompiler
from rammer.vdevice.cpu.memory import aligned, allocate, arrange
from rammer.vdevice.cpu.table import ABI, ARENA, Table, lanes_of

RUNTIME = "runtime.so"
TABLE = "table.bin"


def fingerprint(arch: str) -> str:
    """What an image needs from the machine that loads it."""
    return f"cpu-abi{ABI}-{arch}"


def build_image(plan: ExecutionPlan, compiler: KernelCompiler, progress: Progress) -> Image:
    """Emit, compile and lay out a plan. Raises ToolchainError, DeviceError."""
    graph, spec = plan.graph, plan.spec
    if plan.memory is None:
        raise DeviceError("the plan has no memory", hint="set its `memory` with rammer.ir.memory.plan_memory(plan)")
    kernels = list(dict.fromkeys(plan.kernels))
    compiled = compiler.compile(kernels, progress)
    numbers = {kernel: n for n, kernel in enumerate(kernels)}

    places = _Places(graph, plan.memory.offsets)
    first_arg: list[int] = []
    args: list[tuple[int, int]] = []
    for op, kernel in zip(graph.operators, plan.kernels, strict=True):
        first_arg.append(len(args))
        packing = dict(kernel.packing)
        args += [places.find(t, graph.types[t].layout) for t in op.outputs]
        for tensor, (name, kind) in zip(op.inputs, kernel.operation.expr.inputs, strict=True):
            args.append(places.find(tensor, packing.get(name, kind.layout)))

    header = {
        "abi": ABI,
        "arch": spec.arch,
        "num_veus": spec.num_veus,
        "num_programs": len(plan.programs),
        "arena_bytes": plan.memory.arena_bytes,
        "scratch_bytes": max((k.scratch_bytes for k in kernels), default=0),
        "kernels": [[*compiled.where[k], len(k.operation.outputs) + len(k.operation.inputs)] for k in kernels],
        "inputs": [places.find(t, None) for t in graph.inputs],
        "outputs": [places.find(t, None) for t in graph.outputs],
        "operators": [f"{op.kind} {op.name!r}" for op in graph.operators],
    }
    weights = places.pack()
    header["weights"] = list(weights)
    lanes = lanes_of(plan, [numbers[k] for k in plan.kernels], first_arg)
    base, offset = np.array(args, np.int64).reshape(-1, 2).T
    table = Table(header, **lanes, arg_base=base.astype(np.int32), arg_offset=offset)
    code = {f"{name}.so": data for name, data in compiled.objects.items()}
    return Image(
        "cpu",
        fingerprint(spec.arch),
        tuple(_port(graph, t) for t in graph.inputs),
        tuple(_port(graph, t) for t in graph.outputs),
        {TABLE: table.to_bytes(), RUNTIME: compiler.runtime(), **code},
        weights,
        plan,
    )


def _port(graph: Graph, tensor: TensorId) -> Port:
    kind = graph.types[tensor]
    if kind.layout is not None:
        raise DeviceError(f"input or output {tensor!r} has a blocked layout", hint="passes must keep ports row-major")
    return Port(tensor, kind)


class _Places:
    """Where tensors lie: in the arena, or in a constant; every constant is packed once per layout."""

    def __init__(self, graph: Graph, offsets: Mapping[TensorId, int]) -> None:
        self._graph = graph
        self._offsets = offsets
        self._numbers: dict[tuple[TensorId, Layout | None], int] = {}

    def find(self, tensor: TensorId, layout: Layout | None) -> tuple[int, int]:
        """(ARENA or number of a constant, byte offset). `layout` is what a kernel reads a constant in."""
        graph = self._graph
        root, offset = graph.storage(tensor)
        itemsize = graph.types[tensor].dtype.itemsize
        if root not in graph.constants:
            if root not in self._offsets:
                raise DeviceError(f"the memory plan has no place for {root!r}")
            return ARENA, self._offsets[root] + offset * itemsize
        if layout == graph.types[tensor].layout:
            return self._number(root, graph.types[root].layout), offset * itemsize
        return self._number(tensor, layout), 0

    def _number(self, tensor: TensorId, layout: Layout | None) -> int:
        return self._numbers.setdefault((tensor, layout), len(self._numbers))

    def pack(self) -> dict[str, Array]:
        """The constants in their layouts by number, all in one block."""
        kinds = [
            TensorType(self._graph.types[tensor].shape, self._graph.types[tensor].dtype, layout)
            for tensor, layout in self._numbers
        ]
        block = allocate(sum(aligned(kind.nbytes) for kind in kinds))
        weights: dict[str, Array] = {}
        at = 0
        for n, ((tensor, layout), kind) in enumerate(zip(self._numbers, kinds, strict=True)):
            out = block[at : at + kind.nbytes].view(kind.dtype.numpy)
            arrange(self._value(tensor), layout, out)
            weights[f"w{n}"] = out.reshape(kind.physical_shape)
            at += aligned(kind.nbytes)
        return weights

    def _value(self, tensor: TensorId) -> Array:
        """A constant's value, also through views: a view's physical elements are those of its root."""
        root, offset = self._graph.storage(tensor)
        value, whole, kind = self._graph.constants[root], self._graph.types[root], self._graph.types[tensor]
        if root == tensor:
            return value
        flat = (pack(value, whole.layout) if whole.layout else value).reshape(-1)
        part = flat[offset : offset + prod(kind.physical_shape)]
        return unpack(part, kind.layout, kind.shape) if kind.layout else part.reshape(kind.shape)
