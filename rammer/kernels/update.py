"""Schedule updates. Data say where each element goes; several to one place go in their order. Known as: scatter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from math import prod

from rammer.errors import LoweringError
from rammer.ir.device import Execution
from rammer.ir.expr import Load, Stage, TensorExpr, free_axes
from rammer.ir.index import var
from rammer.ir.kernel import RKernel
from rammer.ir.tile import Body, For, Kind, TileProgram
from rammer.kernels.lower import draft, finished
from rammer.kernels.problem import KernelProblem
from rammer.kernels.sched import Sched
from rammer.kernels.schedule import Loop, Schedule, group

LEAST = 1 << 12  # elements that are worth an rTask
MOST_THREADS = 256


def kernels(problem: KernelProblem) -> Iterator[RKernel]:
    """Yield rKernels of an update. One that is not in place copies its part of the data first, by the same tasks."""
    if problem.expr.copied and problem.spec.execution is Execution.SIMT:
        raise LoweringError(f"{problem.operation.kind}: threads do not copy what they update", hint="search instead")
    for schedule in schedules(problem):
        kernel = problem.kernel(schedule)
        if problem.expr.copied:
            assert isinstance(kernel.body, TileProgram)
            copy = finished(_copy(problem, [loop for loop in schedule.loops if loop.kind is Kind.TASK]))
            kernel = replace(kernel, body=replace(kernel.body, body=_one_after_the_other(copy.body, kernel.body.body)))
        yield kernel


def _copy(problem: KernelProblem, tasks: list[Loop]) -> TileProgram:
    """Return a program that copies the data. Axes along which elements keep their place are those of the updates."""
    into, kind = problem.expr.into, problem.expr.outputs[0][1]
    assert into is not None
    moved = {d.dim for d in into.dynamic}
    own = {index: axis for axis, _ in problem.root.axes for index in (var(axis),)}
    axes = tuple((f"to{dim}" if dim in moved else own[index], kind.shape[dim]) for dim, index in enumerate(into.index))
    stage = Stage(problem.root.name, axes, Load(into.tensor, tuple(var(a) for a, _ in axes)), dtype=kind.dtype)
    expr = TensorExpr("copy", ((into.tensor, kind),), (stage,), problem.expr.outputs)
    *outer, (last, _) = axes
    inner = (*(Loop(a) for a, _ in outer), Loop(last, problem.lanes), Loop(last, 1, Kind.VECTOR))
    return draft(expr, Schedule("copy", (*tasks, *inner)), [stage])


def _one_after_the_other(first: Body, second: Body) -> Body:
    """Return two bodies, one after the other in each rTask."""
    match first, second:
        case (For(kind=Kind.TASK) as a,), (For(kind=Kind.TASK) as b,) if replace(a, body=()) == replace(b, body=()):
            return (replace(a, body=(*a.body, *b.body)),)
    return (*first, *second)


def _contiguous(problem: KernelProblem) -> set[str]:
    """Return the axis along which updates and data are contiguous, if there is one."""
    into, body = problem.expr.into, problem.root.body
    assert into is not None and isinstance(body, Load)
    return {axis for axis, _ in problem.root.axes if into.index[-1:] == body.index[-1:] == (var(axis),)}


def schedules(problem: KernelProblem) -> Iterator[Schedule]:
    """Yield one of an rTask per vEU where there is enough work, and one of a single rTask."""
    root, spec, free = problem.root, problem.spec, dict(free_axes(problem.expr))
    *outer, inner = free.items() or (("", 1),)
    axis, extent = max(outer, key=lambda a: a[1], default=inner)  # rows stay whole
    for count in dict.fromkeys((min(spec.num_veus, extent, -(-prod(root.shape) // LEAST)), 1)):
        s = Sched(problem).split(axis if count > 1 else None, -(-extent // count), Kind.TASK)
        rows = [a for a, _ in root.axes if a not in free]
        if spec.execution is Execution.SIMT and free:
            s = s.reorder(*rows)
            wave, points = max(spec.subgroup_size, 1), prod(free.values()) // count
            waves = min(-(-points // wave), MOST_THREADS // wave, spec.max_threads // wave)
            threads = max(waves, 1) * wave
            s = s.split(group(free), threads).bind(group(free)).on_threads(threads)
        else:
            lines = [*takewhile(free.__contains__, dict(root.axes))]  # one line after another: its rows stay in order
            *others, last = *(a for a in free if a not in lines), ""
            if len(others) and others[-1] in _contiguous(problem):
                last = others.pop()
            s = s.reorder(*lines, *rows, *others)
            s = s.split(last, problem.lanes).vectorize(last) if last else s
        yield s.build(f"x{s.threads}", kind=problem.operation.kind)
