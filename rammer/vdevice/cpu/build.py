"""A plan becomes an image: machine code, the table that vEUs walk, and packed constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rammer.errors import DeviceError
from rammer.ir.expr import Cast, nodes
from rammer.ir.graph import Graph
from rammer.ir.handover import has_parts
from rammer.ir.kernel import RKernel
from rammer.ir.memory import direct_ports
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import DType
from rammer.vdevice.base import Image, Progress, ports_of
from rammer.vdevice.cpu.ahead import aheads
from rammer.vdevice.cpu.compile import CompiledKernels, KernelCompiler
from rammer.vdevice.cpu.table import ABI, Table, lanes_of
from rammer.vdevice.memory import allocate
from rammer.vdevice.placement import ALIGNMENT, ARENA, Places, aligned, ports_alone

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
    compiler.forget(but=kernels)
    numbers = {kernel: n for n, kernel in enumerate(kernels)}

    places = Places(plan, plan.memory)
    first_args: list[list[int]] = []
    args: list[tuple[int, int]] = []
    for n in range(len(graph.operators)):
        operands = places.operands(n)
        firsts = []
        for mine in operands.places:
            firsts.append(len(args))
            args += mine
        first_args.append([firsts[n] for n in operands.chosen])

    asking = aheads(plan, compiled.capacity)
    asked = [(ARENA, 0, 0)]
    for a in asking.values():
        where, start = args[first_args[a.operator][0] + len(graph.operators[a.operator].outputs) + a.position]
        asked.append((where, start + a.first, a.lines))

    alone = ports_alone(graph, plan.memory)
    scratch = max((k.scratch_bytes for k in kernels), default=0)
    header = {
        "abi": ABI,
        "arch": spec.arch,
        "num_veus": spec.num_veus,
        "num_programs": len(plan.programs),
        "arena_bytes": plan.memory.arena_bytes,
        # of a vEU, and from one to the next: no two share a line, nor begin in the same sets of a cache
        "scratch_bytes": scratch,
        "scratch_stride": aligned(scratch) + ALIGNMENT,
        "kernels": _addresses(kernels, compiled),
        "inputs": [places.find(t, None) for t in graph.inputs],
        "outputs": [places.find(t, None) for t in graph.outputs],
        "operators": [f"{op.kind} {op.name!r}" for op in graph.operators],
        "alone": alone,
        "direct": [t for t in direct_ports(graph, spec.direct_bytes) if t in alone],
        "keeps_subnormals": _has_subnormals(graph),
    }
    weights = places.pack(allocate)
    header["weights"] = list(weights)
    ahead = {task: n for n, task in enumerate(asking, 1)}
    tickets = {k: compiled.tickets[k] if has_parts(k) else () for k in kernels}
    lanes = lanes_of(plan, [numbers[k] for k in plan.kernels], first_args, ahead, tickets)
    base, offset = np.array(args, np.int64).reshape(-1, 2).T
    table = Table(header, **lanes, arg_base=base.astype(np.int32), arg_offset=offset, aheads=np.array(asked, np.int64))
    return Image(
        "cpu",
        fingerprint(spec.arch),
        *ports_of(graph),
        {TABLE: table.to_bytes(), RUNTIME: compiler.runtime(), **_code(compiled)},
        weights,
        plan,
    )


def _has_subnormals(graph: Graph) -> bool:
    """Whether numbers that are subnormal in float32 are ordinary ones of some type: its smallest powers of two are."""
    if any(kind.dtype is DType.F8E8M0 for kind in graph.types.values()):
        return True
    stages = (stage for operation in {op.operation for op in graph.operators} for stage in operation.expr.stages)
    values = (v for stage in stages for v in (stage.body, stage.epilogue) if v is not None)
    return any(isinstance(n, Cast) and n.dtype is DType.F8E8M0 for value in values for n in nodes(value))


def seal_image(image: Image, plan: ExecutionPlan, compiler: KernelCompiler, progress: Progress) -> Image:
    """The image with other objects, that hold nothing but the plan's rKernels. Raises ToolchainError."""
    kernels = list(dict.fromkeys(plan.kernels))
    compiled = compiler.compile_only(kernels, progress)
    table = Table.from_bytes(image.files[TABLE])
    table = replace(table, header={**table.header, "kernels": _addresses(kernels, compiled)})
    return replace(image, files={TABLE: table.to_bytes(), RUNTIME: image.files[RUNTIME], **_code(compiled)})


def _addresses(kernels: Sequence[RKernel], compiled: CompiledKernels) -> list[list[str | int]]:
    """For every rKernel the object that holds it, its symbol and its number of arguments."""
    return [[*compiled.where[k], len(k.operation.outputs) + len(k.operation.inputs)] for k in kernels]


def _code(compiled: CompiledKernels) -> dict[str, bytes]:
    return {f"{name}.so": data for name, data in compiled.objects.items()}
