"""Summarise a plan as the report of its program."""

from __future__ import annotations

from rammer.ir.operator import flops
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask
from rammer.runtime.report import OperatorRow, Report
from rammer.scheduler.hand_overs import longest_chain
from rammer.scheduler.timeline import Timeline


def make_report(
    plan: ExecutionPlan, timeline: Timeline, weight_bytes: int, phases_s: dict[str, float], checked: str
) -> Report:
    """Summarise a plan."""
    rows = [
        OperatorRow(op.name, op.kind, k.name, k.num_rtasks, plan.rtask_us.get(k, 0.0), flops(op.operation.expr) / 1e6)
        for op, k in zip(plan.graph.operators, plan.kernels, strict=True)
    ]
    barriers = sum(isinstance(s, BarrierRTask) for p in plan.programs for lane in p.lanes for s in lane)
    chain = longest_chain(plan)
    return Report(
        target=plan.spec.name,
        arch=plan.spec.arch,
        policy=plan.policy,
        num_veus=plan.spec.num_veus,
        num_operators=len(rows),
        num_rkernels=len(set(plan.kernels)),
        num_rtasks=plan.num_rtasks,
        num_barriers=barriers,
        num_rprograms=len(plan.programs),
        arena_bytes=plan.memory.arena_bytes if plan.memory else 0,
        weight_bytes=weight_bytes,
        estimated_us=timeline.total_us,
        estimated_utilisation=timeline.utilisation,
        estimated_overhead=timeline.overhead,
        phases_s=phases_s,
        notes=list(plan.notes),
        operators=rows,
        moved=dict(timeline.moved),
        hand_overs=chain.hops,
        handed_bytes=chain.nbytes,
        checked=checked,
    )
