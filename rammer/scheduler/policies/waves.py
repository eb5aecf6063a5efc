"""Build waves of Algorithm 1 in time linear in the number of rTasks; repeat for chains. Paper: §3.3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple, TypeAlias

from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram
from rammer.scheduler.assembly import Assembly, Placed
from rammer.scheduler.draft import Draft
from rammer.scheduler.judge import Estimate, PlanSelector
from rammer.scheduler.policies.chains import chains, feeders, ran_alone
from rammer.scheduler.policy import Problem
from rammer.scheduler.select import Options, PriceTable, SelectBy, count, wave_bound_us

INTERPLAY: SelectBy = "interplay"
SELECTIONS: tuple[SelectBy, ...] = (INTERPLAY, "efficient", "fastest")
Restricted: TypeAlias = Mapping[int, Options]  # restricted choices by operator


def best_plan(problem: Problem, policy: str, judge: PlanSelector) -> Estimate:
    """Return the cheapest of plans with rKernels chosen per wave ("interplay"), or all fastest or all most efficient.

    A wave decides by the rProgram that ends with it. It does not know what its vEUs will lack in later waves.
    """
    prices = PriceTable(problem)
    weighed = [prices.options(op.operation) for op in problem.graph.operators]
    best, by = judge.estimate(build_plan(Draft(problem, prices), policy)), INTERPLAY
    alike = {best.plan.kernels}
    selections = SELECTIONS if any(len({o.fastest, o.efficient, o.fewest_rtasks, o.first}) > 1 for o in weighed) else ()
    for other in selections:
        if other != INTERPLAY and (kernels := tuple(getattr(o, other).kernel for o in weighed)) not in alike:
            alike.add(kernels)
            plan = build_plan_below(judge.plain_us_below(best), Draft(problem, prices), policy, other)
            if plan and judge.prefers(found := judge.estimate(plan), best):
                best, by = found, other
    return _with_chains(problem, policy, judge, prices, best, by)


def _with_chains(
    problem: Problem, policy: str, judge: PlanSelector, prices: PriceTable, best: Estimate, by: SelectBy
) -> Estimate:
    """Schedule again with restricted rKernels for steps of long chains, and keep the result if it is faster.

    The best rKernel for one step at a time keeps every vEU busy with one chain. For chains to run side by side, all
    their steps must use an rKernel of fewer rTasks; each such operation is tried. While only the first or the last
    chain runs, its steps choose as before.
    """
    held: Restricted = {}
    for steps in chains(problem, prices):
        side_by_side, tried = best, held
        for way in _ways(problem, prices, steps):
            found = judge.estimate(build_plan(Draft(problem, prices), policy, by, {**held, **way}))
            if found is not best and (side_by_side is best or judge.cheaper(found, side_by_side)):
                side_by_side, tried = found, {**held, **way}
        if side_by_side is best:
            continue
        if alone := ran_alone(side_by_side.plan):
            together = {n: options for n, options in tried.items() if n not in alone}
            again = judge.estimate(build_plan(Draft(problem, prices), policy, by, together))
            if judge.cheaper(again, side_by_side):
                side_by_side, tried = again, together
        if judge.prefers(side_by_side, best):
            best, held = side_by_side, tried
    return best


def _ways(problem: Problem, prices: PriceTable, steps: tuple[int, ...]) -> Iterator[Restricted]:
    """Yield restrictions of rKernels for the steps of a chain: the fewest rTasks, or the least work.

    For operators that they read, either no restriction or the generator's first choice, which lets a chain begin before
    all of their rTasks are done. Restrictions that change nothing are left out.
    """
    options = [prices.options(op.operation) for op in problem.graph.operators]
    fewest, lean = (
        {n: options[n].only(getattr(options[n], way)) for n in steps} for way in ("fewest_rtasks", "efficient")
    )
    first = {n: options[n].only(options[n].first) for n in feeders(problem.graph, steps)}
    for chosen in (fewest,) if fewest == lean else (fewest, lean):
        if chosen != {n: options[n] for n in steps}:
            yield chosen
        if any(one.first != one.efficient for one in first.values()):
            yield {**first, **chosen}


def build_plan(
    draft: Draft, policy: str, by: SelectBy = INTERPLAY, restricted: Restricted | None = None
) -> ExecutionPlan:
    """Return the plan of one pass over the waves: `build_plan_below` without a limit."""
    plan = build_plan_below(inf, draft, policy, by, restricted)
    assert plan is not None
    return plan


def build_plan_below(
    limit_us: float, draft: Draft, policy: str, by: SelectBy, restricted: Restricted | None = None
) -> ExecutionPlan | None:
    """Return the plan of one pass over the waves, or None once it is known to take `limit_us` or longer.

    The paper builds P1 = ScheduleWave(W, Pcurr) and P2 = ScheduleWave(W, {}) for each wave and compares them. Here P1
    extends Pcurr in place and is undone if P2 wins. That is possible because a wave's operators do not depend on each
    other: scheduling one reads Pcurr and changes only the ends of its lanes. P2 is not built where time(P1) <=
    time(Pcurr) + a lower bound of time(P2), launched on several vEUs. `restricted` restricts the choices of operators.

    P2 must be faster by more than noise. Otherwise every second wave would be launched separately to save a barrier,
    which made measured networks slower. If a launch costs no more than a barrier, that margin is dropped, as separate
    rPrograms need no wait lists.
    """
    graph, spec = draft.graph, draft.spec
    ratio = draft.prices.problem.profiler.noise if spec.launch_us > spec.barrier_us and not draft.printed else 1.0
    current = Assembly(spec)
    programs: list[RProgram] = []
    waves: list[WaveTrial] = []
    done_us = 0.0
    for wave, later_us in zip(graph.wavefronts(), draft.prices.later_work_us, strict=True):
        before, before_us = current.mark(), current.time_us
        options = {n: restricted[n] if restricted and n in restricted else draft.options(n) for n in wave}
        trial = select_rkernels(draft, options, current, by)
        least_us = 0.0 if draft.printed else spec.launch_us + wave_bound_us(list(options.values()), spec.num_veus)
        if before_us and current.time_us > before_us + ratio * least_us:
            alone = select_rkernels(draft, options, Assembly(spec), by)
            if current.time_us > before_us + ratio * alone.assembly.time_us:
                current.undo(before)
                programs.append(current.build())
                done_us += before_us
                trial, current, before_us = alone, alone.assembly, 0.0
        if limit_us < inf and done_us + current.least_us(later_us) >= limit_us:
            return None
        draft.kernels.update(trial.kernels)
        draft.record_homes(trial.placed)
        waves.append(trial)
        if draft.tell:
            names = (f"{graph.operators[n].name} by {k.num_rtasks} × {k.name}" for n, k in trial.kernels.items())
            fate = f"wave {len(waves)} {'joins' if before_us else 'opens'} rProgram {len(programs)}"
            draft.tell(f"{fate}: {', '.join(names)} ({trial.reason}); time(P) {current.time_us:.2f} µs")
    if not current.is_empty:
        programs.append(current.build())
    notes = [
        f"waves: {len(waves)}, rPrograms: {len(programs)}{', by Algorithm 1 as printed' if draft.printed else ''}",
        f"rKernels by wave: {count(wave.reason for wave in waves)}",
    ]
    if reasons := count(one.reason for wave in waves for one in wave.placed):
        notes.append(f"vEUs by rTask: {reasons}")
    if restricted:
        kinds = dict.fromkeys(graph.operators[n].kind for n in restricted)
        notes.append(f"one rKernel for all steps of {', '.join(kinds)}")
    return draft.finish(policy, programs, done_us + current.time_us, notes)


class WaveTrial(NamedTuple):
    """One wave appended to an rProgram, not yet final: its rKernels by operator, the reason, and its rTasks."""

    assembly: Assembly
    kernels: Mapping[int, RKernel]
    reason: str
    placed: Sequence[Placed]


def select_rkernels(draft: Draft, options: Mapping[int, Options], assembly: Assembly, by: SelectBy) -> WaveTrial:
    """Append a wave with its fastest rKernels, or the most efficient ones if it fills the vEUs and time(P) drops.

    That is `by` "interplay". "fastest" and "efficient" choose without comparing. Paper: §3.3, SelectRKernels.
    """
    fast = {n: o.fastest.kernel for n, o in options.items()}
    lean = {n: o.efficient.kernel for n, o in options.items()}
    if by == "efficient":
        return WaveTrial(assembly, lean, "most efficient: as asked", draft.schedule_wave(lean, assembly))
    before = assembly.mark()
    placed, fast_us = draft.schedule_wave(fast, assembly), assembly.time_us
    if by == "fastest":
        return WaveTrial(assembly, fast, "fastest: as asked", placed)
    if sum(kernel.num_rtasks for kernel in fast.values()) < draft.spec.num_veus:
        return WaveTrial(assembly, fast, "fastest: the wave cannot fill the vEUs", placed)
    if fast == lean:
        return WaveTrial(assembly, fast, "fastest: they are the most efficient too", placed)
    undone = assembly.undo(before)
    leanly_placed = draft.schedule_wave(lean, assembly)
    if assembly.time_us < fast_us:
        return WaveTrial(assembly, lean, "most efficient: the wave fills the vEUs", leanly_placed)
    assembly.undo(before)
    assembly.redo(undone)
    return WaveTrial(assembly, fast, "fastest: the most efficient ones priced no better", placed)
