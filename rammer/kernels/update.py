"""Schedule updates. Data say where each element goes; several to one place go in their order. Known as: scatter."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from rammer.ir.device import Execution
from rammer.ir.expr import free_axes
from rammer.ir.tile import Kind
from rammer.kernels.problem import KernelProblem
from rammer.kernels.sched import Sched
from rammer.kernels.schedule import Schedule, group

LEAST = 1 << 12  # elements that are worth an rTask
MOST_THREADS = 256


def schedules(problem: KernelProblem) -> Iterator[Schedule]:
    """Yield one of an rTask per vEU where there is enough work, and one of a single rTask."""
    root, spec, free = problem.root, problem.spec, dict(free_axes(problem.expr))
    *outer, inner = free.items() or (("", 1),)
    axis, extent = max(outer, key=lambda a: a[1], default=inner)  # rows stay whole
    for count in dict.fromkeys((min(spec.num_veus, extent, -(-prod(root.shape) // LEAST)), 1)):
        s = Sched(problem).split(axis if count > 1 else None, -(-extent // count), Kind.TASK)
        s = s.reorder(*(a for a, _ in root.axes if a not in free))
        if spec.execution is Execution.SIMT and free:
            wave, points = max(spec.subgroup_size, 1), prod(free.values()) // count
            waves = min(-(-points // wave), MOST_THREADS // wave, spec.max_threads // wave)
            threads = max(waves, 1) * wave
            s = s.split(group(free), threads).bind(group(free)).on_threads(threads)
        else:
            s = s.reorder(*free)
        yield s.build(f"x{s.threads}", kind="update")
