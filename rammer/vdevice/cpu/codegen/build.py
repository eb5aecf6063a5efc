"""Build an image of a plan: machine code, the table that vEUs walk, and packed constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rammer.ir.analysis.storage import direct_ports
from rammer.ir.expr import Cast, nodes
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, TaskUid
from rammer.ir.tensor import Array, DType
from rammer.planner.stealing import is_stealable
from rammer.vdevice.base import Image, Progress, ports_of
from rammer.vdevice.cpu.codegen.compile import CompiledKernels, KernelCompiler
from rammer.vdevice.cpu.codegen.task_prefetch import task_prefetches
from rammer.vdevice.cpu.runtime.table import ABI, RUNTIME, SIGNALS_DONE, TABLE, Table, fingerprint
from rammer.vdevice.image.arena import ALIGNMENT, ARENA, aligned
from rammer.vdevice.image.memory import allocate
from rammer.vdevice.image.placement import ArenaPlacement


def build_image(plan: ExecutionPlan, compiler: KernelCompiler, progress: Progress) -> Image:
    """Emit, compile and lay out a plan. Raises ToolchainError, DeviceError."""
    graph, spec = plan.graph, plan.spec
    places = ArenaPlacement(plan)
    kernels = list(dict.fromkeys(plan.kernels))
    compiled = compiler.compile(kernels, progress)
    compiler.forget(but=kernels)
    numbers = {kernel: n for n, kernel in enumerate(kernels)}

    first_args: list[list[int]] = []
    args: list[tuple[int, int]] = []
    for n in range(len(graph.operators)):
        operands = places.operands(n)
        firsts = []
        for mine in operands.places:
            firsts.append(len(args))
            args += mine
        first_args.append([firsts[n] for n in operands.chosen])

    asking = task_prefetches(plan, {k: source.capacity for k, source in compiled.sources.items()})
    asked = [(ARENA, 0, 0)]
    for a in asking.values():
        where, start = args[first_args[a.operator][0] + len(graph.operators[a.operator].outputs) + a.position]
        asked.append((where, start + a.first, a.lines))

    scratch = max((k.scratch_bytes for k in kernels), default=0)
    common = places.header()
    header = {
        **common,
        "abi": ABI,
        # bytes of a vEU's scratch, and the stride between two: they share no line, and begin in different cache sets
        "scratch_bytes": scratch,
        "scratch_stride": aligned(scratch) + ALIGNMENT,
        "kernels": _addresses(kernels, compiled),
        "direct": [t for t in direct_ports(graph, spec.direct_bytes) if t in common["alone"]],
        "keeps_subnormals": _has_subnormals(graph),
    }
    weights = places.pack(allocate)
    header["weights"] = list(weights)
    ahead = {task: n for n, task in enumerate(asking, 1)}
    tickets = {k: compiled.sources[k].tickets if is_stealable(k) else () for k in kernels}
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


def lanes_of(
    plan: ExecutionPlan,
    kernel_number: list[int],
    first_args: list[list[int]],
    ahead: Mapping[TaskUid, int],
    tickets: Mapping[RKernel, Sequence[int]],
) -> dict[str, Array]:
    """Return the table's arrays of a plan's lanes.

    `kernel_number` is by operator, `first_args` and `ahead` by rTask. `tickets` has a kernel's numbers by rTask, or ().
    """
    num_veus = plan.spec.num_veus
    slots: list[tuple[int, int, int, int, int, int]] = []
    waits: list[tuple[int, int]] = []
    operators: list[int] = []
    bounds = [0]
    awaited: list[int] = []
    for program in plan.programs:
        first = len(slots)
        starts = []
        for lane in program.lanes:
            starts.append(len(slots))
            for slot in lane:
                if isinstance(slot, RTask):
                    n, rtask = slot.uid
                    given = tickets[plan.kernels[n]] if num_veus > 1 else ()
                    count = given[rtask] if given else 0
                    slots.append((kernel_number[n], rtask, first_args[n][rtask], 0, ahead.get(slot.uid, 0), count))
                    operators.append(n)
                else:
                    slots.append((-1, len(slot.waits), len(waits), 0, 0, 0))
                    operators.append(-1)
                    waits += [(w.veu, w.order) for w in slot.waits]
            bounds.append(len(slots))
        bounds += [len(slots)] * (num_veus - len(program.lanes))
        for n in range(first, len(slots)):
            kernel, count, at, *_ = slots[n]
            if kernel < 0:
                awaited += [starts[veu] + order for veu, order in waits[at : at + count]]
    table = np.array(slots, np.int32).reshape(-1, 6)
    table[awaited, 3] |= SIGNALS_DONE
    return {
        "bounds": np.array(bounds, np.int64),
        "slots": table,
        "waits": np.array(waits, np.int32).reshape(-1, 2),
        "operators": np.array(operators, np.int32),
    }


def _has_subnormals(graph: Graph) -> bool:
    """Return whether a type has ordinary numbers that are subnormal in float32, as F8E8M0's smallest powers of two."""
    if any(kind.dtype is DType.F8E8M0 for kind in graph.types.values()):
        return True
    stages = (stage for operation in {op.operation for op in graph.operators} for stage in operation.expr.stages)
    values = (v for stage in stages for v in (stage.body, stage.epilogue) if v is not None)
    return any(isinstance(n, Cast) and n.dtype is DType.F8E8M0 for value in values for n in nodes(value))


def seal_image(image: Image, plan: ExecutionPlan, compiler: KernelCompiler, progress: Progress) -> Image:
    """Return the image with objects that hold exactly the plan's rKernels. Raises ToolchainError."""
    kernels = list(dict.fromkeys(plan.kernels))
    compiled = compiler.compile_only(kernels, progress)
    table = Table.from_bytes(image.files[TABLE])
    table = replace(table, header={**table.header, "kernels": _addresses(kernels, compiled)})
    return replace(image, files={TABLE: table.to_bytes(), RUNTIME: image.files[RUNTIME], **_code(compiled)})


def _addresses(kernels: Sequence[RKernel], compiled: CompiledKernels) -> list[list[str | int]]:
    """Return for each rKernel the object that holds it, its symbol and its number of arguments."""
    return [[*compiled.where[k], len(k.operation.outputs) + len(k.operation.inputs)] for k in kernels]


def _code(compiled: CompiledKernels) -> dict[str, bytes]:
    return {f"{name}.so": data for name, data in compiled.objects.items()}
