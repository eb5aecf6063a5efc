"""Schedule by Algorithm 1 exactly as printed. Paper: §3.3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram, TaskUid
from rammer.scheduler.assembly import NOTHING, Assembly
from rammer.scheduler.draft import Draft
from rammer.scheduler.policy import Problem
from rammer.scheduler.select import Option, SelectBy, Selection, count, explain, select_rkernels


def algorithm_1(problem: Problem, selection: SelectBy, policy: str) -> ExecutionPlan:
    """Return the plan of a graph. Schedule(G, D): lines 1 to 11.

    P1 extends the current rProgram in place, and is undone if P2 wins.
    """
    draft = Draft(problem)
    current = Assembly(problem.spec)
    plans: list[RProgram] = []
    done_us = 0.0
    reasons: list[str] = []
    for wave in problem.graph.wavefronts():
        before, before_us = current.mark(), current.time_us
        chosen = _schedule_wave(draft, wave, current, selection)  # P1
        joins = True
        if before_us:  # an empty rProgram is P2 already
            apart = Assembly(problem.spec)
            chosen_apart = _schedule_wave(draft, wave, apart, selection)  # P2
            if not (joins := current.time_us <= before_us + apart.time_us):
                current.undo(before)
                plans.append(current.build())
                done_us += before_us
                current, chosen = apart, chosen_apart
        draft.kernels.update(chosen.kernels)
        reasons.append(chosen.reason)
        if draft.tell:
            joined = joins and before_us > 0
            explain(draft.tell, len(reasons), joined, len(plans), problem.graph, chosen, current.time_us)
    if not current.is_empty:
        plans.append(current.build())
    notes = (
        f"waves: {len(reasons)}, rPrograms: {len(plans)}, by Algorithm 1 as printed",
        f"rKernels by wave: {count(reasons)}",
    )
    return draft.finish(policy, plans, done_us + current.time_us, notes)


def _fastest(options: Sequence[Option]) -> RKernel:
    return min(options, key=lambda o: o.alone_us).kernel


def _efficient(options: Sequence[Option]) -> RKernel:
    return min(options, key=lambda o: o.work_us).kernel


def _schedule_wave(draft: Draft, wave: Iterable[int], program: Assembly, selection: SelectBy) -> Selection:
    """Append a wave to P. ScheduleWave(W, P, D): lines 12 to 19."""
    before = program.mark()

    def price(kernels: dict[int, RKernel]) -> float:
        """Return time(P) with these rKernels, and leave P scheduled with them."""
        program.undo(before)
        draft.kernels.update(kernels)
        for operator_id, needs in draft.needs(kernels, program).items():
            us = draft.rtask_us(operator_id)
            if needs.count(NOTHING) == len(needs):
                program.fill(operator_id, len(needs), us)
                continue
            for rtask_id, need in enumerate(needs):
                earliest = int(program.starts_us(need).argmin())  # SelectvEU; ties go to the first
                program.place(TaskUid(operator_id, rtask_id), earliest, us, need)
        return program.time_us

    options = {n: draft.market.fitting(draft.graph.operators[n].operation) for n in wave}
    fastest = {n: _fastest(found) for n, found in options.items()}
    efficient = {n: _efficient(found) for n, found in options.items()}
    return select_rkernels(fastest, efficient, draft.spec.num_veus, price, selection)
