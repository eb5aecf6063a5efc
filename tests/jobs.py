"""Scheduling problems made by hand or at random: operators with stated rTask counts and times, and no arithmetic."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Const, Load, Scalar, Stage, TensorExpr
from rammer.ir.graph import Graph
from rammer.ir.index import var
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.operator import OpDef, Operation, Operations, ROperator, attributes
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask
from rammer.ir.tensor import TensorType
from rammer.ir.tile import TaskDigit
from rammer.scheduler.policy import Problem
from rammer.scheduler.profiler import EstimatingProfiler, MeasuredProfiler
from rammer.scheduler.timeline import simulate


@dataclass(frozen=True, slots=True)
class Job:
    """An operator to schedule.

    `tilings` are its rKernels as (num_rtasks, rtask_us). Every rTask reads all of each job in `after`, and only its own
    tile of each job in `near`. `weights` names a static input; jobs with one `kind` share their rKernels.
    """

    name: str
    tilings: tuple[tuple[int, float], ...]
    after: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    weights: str = ""
    kind: str = ""


def make_problem(jobs: Sequence[Job], spec: VDeviceSpec, size: int = 1) -> Problem:
    """The problem of scheduling `jobs`, listed in topological order, on a device; tensors have `size` elements or more.

    Every rTask writes some.
    """
    size = max((size, *(n for job in jobs for n, _ in job.tilings)))
    kind = TensorType((size,))
    names = {job.kind or job.name for job in jobs}
    interner = Operations({name: OpDef(name, _express) for name in names})
    operators: list[ROperator] = []
    candidates: dict[Operation, list[RKernel]] = {}
    times: dict[RKernel, float] = {}
    for job in jobs:
        inputs = (*job.after, *job.near, *((job.weights,) if job.weights else ()))
        attrs = attributes(num_after=len(job.after), size=size)
        operation = interner.define(job.kind or job.name, (kind,) * len(inputs), attrs)
        if job.weights:
            static = (*(False,) * (len(inputs) - 1), True)
            operation = interner.retype(operation, operation.inputs, operation.outputs, static)
        operators.append(ROperator(job.name, operation, inputs, (job.name,)))
        if operation not in candidates:
            kernels = [make_kernel(operation, num_rtasks) for num_rtasks, _ in job.tilings]
            candidates[operation] = kernels
            times.update({k: us for k, (_, us) in zip(kernels, job.tilings, strict=True)})
    weights = {job.weights: np.zeros(size, np.float32) for job in jobs if job.weights}
    read = {name for job in jobs for name in (*job.after, *job.near)}
    outputs = tuple(job.name for job in jobs if job.name not in read)
    types = dict.fromkeys([*weights, *(job.name for job in jobs)], kind)
    graph = Graph("jobs", (), outputs, tuple(operators), types, weights, interner)
    return Problem(graph, spec, candidates, MeasuredProfiler(times, EstimatingProfiler(spec)))


def make_kernel(operation: Operation, num_rtasks: int) -> RKernel:
    """An rKernel that cuts the only axis into `num_rtasks` tiles, and has no body."""
    ((axis, extent),) = operation.expr.root.axes
    digits = (TaskDigit(axis, -(-extent // num_rtasks), num_rtasks, 1),)
    return RKernel(f"x{num_rtasks}", operation, ForeignSource("numpy", "job", "", digits))


def random_jobs(seed: int, most: int = 24) -> list[Job]:
    """A random DFG: chains, fans and skips; one or two rKernels each; some with weights that are used again."""
    pick = random.Random(seed)
    prototypes = [_random_tilings(pick) for _ in range(4)]
    jobs: list[Job] = []
    for n in range(pick.randint(1, most)):
        earlier = [job.name for job in jobs[-6:]]
        chosen = pick.sample(earlier, min(len(earlier), pick.choice((0, 1, 1, 1, 2, 3))))
        cut = pick.randint(0, len(chosen))
        number = pick.randrange(len(prototypes))
        weights = f"w{pick.randint(0, 3)}" if pick.random() < 0.3 else ""
        near, after = tuple(chosen[:cut]), tuple(chosen[cut:])
        jobs.append(Job(f"op{n}", prototypes[number], after, near, weights, f"kind{number}"))
    return jobs


def _random_tilings(pick: random.Random) -> tuple[tuple[int, float], ...]:
    num_rtasks = pick.choice((1, 2, 3, 4, 8, 16))
    us = round(pick.uniform(0.5, 20.0), 2)
    if num_rtasks > 1 and pick.random() < 0.6:  # a coarser tiling, often the more efficient one
        return (num_rtasks, us), (num_rtasks // 2, round(us * pick.uniform(1.2, 2.2), 2))
    return ((num_rtasks, us),)


def _express(*inputs: TensorType, num_after: int, size: int) -> TensorExpr:
    names = [f"x{n}" for n in range(len(inputs))]
    stages = []
    loads: list[Scalar] = []
    for n, name in enumerate(names):
        if n < num_after:
            stages.append(Stage(f"all{n}", (("i", size),), Load(name, (var("j"),)), (("j", size),)))
            loads.append(Load(f"all{n}", (var("i"),)))
        else:
            loads.append(Load(name, (var("i"),)))
    body: Scalar = Const(1.0)
    for load in loads:
        body = body + load
    stages.append(Stage("y", (("i", size),), body))
    return TensorExpr("job", tuple(zip(names, inputs, strict=True)), tuple(stages), (("y", TensorType((size,))),))


def lanes_of(plan: ExecutionPlan, operator: str) -> list[int]:
    """The vEU of each rTask of an operator, by rtask_id."""
    number = next(n for n, op in enumerate(plan.graph.operators) if op.name == operator)
    found = {uid.rtask_id: where.veu for p in plan.programs for where, uid in p.tasks() if uid.operator_id == number}
    return [found[r] for r in sorted(found)]


def recurrent(steps: int) -> list[Job]:
    """Two layers of a recurrent network, each step of two weight tiles, and an odd operator beside them."""
    jobs = []
    for s, layer in product(range(steps), range(2)):
        before = ([f"c{s - 1}.{layer}"] if s else []) + ([f"c{s}.{layer - 1}"] if layer else [])
        kind = f"cell{len(before)}"
        jobs.append(Job(f"c{s}.{layer}", ((2, 4.0),), tuple(before), weights=f"w{layer}", kind=kind))
    jobs.append(Job("odd", ((1, 1.0),)))
    return jobs


DIAMOND = [
    Job("stem", ((4, 2.0),)),
    Job("left", ((2, 3.0),), ("stem",)),
    Job("right", ((3, 1.0),), near=("stem",)),
    Job("join", ((2, 1.5),), ("left", "right")),
]


def table(plan: ExecutionPlan) -> str:
    """Every lane's slots, each with the time at which it ends."""
    lines = []
    for number, (program, times) in enumerate(zip(plan.programs, simulate(plan).programs, strict=True)):
        for veu, (lane, at) in enumerate(zip(program.lanes, times.lanes, strict=True)):
            cells = [f"{number}/{veu}:"]
            for slot, end in zip(lane, at.end_us, strict=True):
                if isinstance(slot, BarrierRTask):
                    cells.append(f"wait({' '.join(f'{w.veu}:{w.order}' for w in slot.waits)})>{end:g}")
                else:
                    op = plan.graph.operators[slot.uid.operator_id].name
                    cells.append(f"{op}.{slot.uid.rtask_id}>{end:g}")
            lines.append(" ".join(cells))
    return "\n".join(lines)
