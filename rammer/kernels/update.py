"""Generate rKernels of updates. Data say where each element goes; several to one place go in their order.

Known as: scatter.
"""

from __future__ import annotations

from math import prod

from rammer.ir.device import Execution, VDeviceSpec
from rammer.ir.expr import free_axes
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.tile import Kind
from rammer.kernels.lower import lower
from rammer.kernels.schedule import Loop, Schedule, group

LEAST = 1 << 12  # elements that are worth an rTask
MOST_THREADS = 256


def candidates(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """Return a kernel of one rTask per vEU where there is enough work, and one of a single rTask."""
    shape = operation.expr.root.shape
    *outer, inner = free_axes(operation.expr) or (("", 1),)
    longest = max(outer, key=lambda a: a[1], default=inner)  # rows stay whole
    counts = dict.fromkeys((min(spec.num_veus, longest[1], -(-prod(shape) // LEAST)), 1))
    return [_kernel(operation, spec, *longest, count) for count in counts]


def _kernel(operation: Operation, spec: VDeviceSpec, axis: str, extent: int, count: int) -> RKernel:
    expr = operation.expr
    free = [a for a, _ in free_axes(expr)]
    tasks = (Loop(axis, -(-extent // count), Kind.TASK),) if count > 1 else ()
    rows = tuple(Loop(a) for a, _ in expr.root.axes if a not in free)
    threads = 1
    if spec.execution is Execution.SIMT and free:
        points = prod(e for _, e in free_axes(expr)) // count
        wave = max(spec.wave, 1)
        threads = max(min(-(-points // wave) * wave, MOST_THREADS, spec.max_threads) // wave, 1) * wave
        inner: tuple[Loop, ...] = (Loop(group(free), threads), Loop(group(free), 1, Kind.THREAD))
    else:
        inner = tuple(Loop(a) for a in free)
    schedule = Schedule(f"update_x{threads}_t{count}", (*tasks, *rows, *inner), threads=threads)
    return RKernel(schedule.name, operation, lower(expr, schedule, expr.stages), schedule=str(schedule))
