"""Build waves of Algorithm 1 in time linear in the number of rTasks; repeat for chains. Paper: §3.3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import TypeAlias

from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram
from rammer.scheduler.assembly import Assembly, Undone
from rammer.scheduler.draft import Draft, TaskPlacement
from rammer.scheduler.judge import Judged, PlanSelector
from rammer.scheduler.policies.chains import chains, feeders, ran_alone
from rammer.scheduler.policy import Problem
from rammer.scheduler.select import Market, Options, SelectBy, count, explain, select_rkernels, wave_bound_us

INTERPLAY: SelectBy = "interplay"
SELECTIONS: tuple[SelectBy, ...] = (INTERPLAY, "efficient", "fastest")
Held: TypeAlias = Mapping[int, Options]  # restricted choices by operator


def draw_best(problem: Problem, policy: str, judge: PlanSelector) -> Judged:
    """Return the cheapest of plans with rKernels chosen per wave ("interplay"), or all fastest or all most efficient.

    A wave decides by the rProgram that ends with it. It does not know what its vEUs will lack in later waves.
    """
    market = Market(problem)
    weighed = [market.options(op.operation) for op in problem.graph.operators]
    best, by = judge.believed(draw(problem, policy, market=market)), INTERPLAY
    alike = {best.plan.kernels}
    selections = SELECTIONS if any(len({o.fastest, o.efficient, o.whole, o.first}) > 1 for o in weighed) else ()
    for other in selections:
        if other != INTERPLAY and (kernels := tuple(getattr(o, other).kernel for o in weighed)) not in alike:
            alike.add(kernels)
            plan = draw_below(judge.plain_us_below(best), problem, policy, other, market=market)
            if plan and judge.prefers(found := judge.believed(plan), best):
                best, by = found, other
    return _with_chains(problem, policy, judge, market, best, by)


def _with_chains(
    problem: Problem, policy: str, judge: PlanSelector, market: Market, best: Judged, by: SelectBy
) -> Judged:
    """Schedule again with restricted rKernels for steps of long chains, and keep the result if it is faster.

    The best rKernel for one step at a time keeps every vEU busy with one chain. For chains to run side by side, all
    their steps must use an rKernel of fewer rTasks; each such operation is tried. While only the first or the last
    chain runs, its steps choose as before.
    """
    held: Held = {}
    for steps in chains(problem, market):
        side_by_side, tried = best, held
        for way in _ways(problem, market, steps):
            found = judge.believed(draw(problem, policy, by, market=market, held={**held, **way}))
            if found is not best and (side_by_side is best or judge.cheaper(found, side_by_side)):
                side_by_side, tried = found, {**held, **way}
        if side_by_side is best:
            continue
        if alone := ran_alone(side_by_side.plan):
            together = {n: options for n, options in tried.items() if n not in alone}
            again = judge.believed(draw(problem, policy, by, market=market, held=together))
            if judge.cheaper(again, side_by_side):
                side_by_side, tried = again, together
        if judge.prefers(side_by_side, best):
            best, held = side_by_side, tried
    return best


def _ways(problem: Problem, market: Market, steps: tuple[int, ...]) -> Iterator[Held]:
    """Yield restrictions of rKernels for the steps of a chain: the fewest rTasks, or the least work.

    For operators that they read, either no restriction or the generator's first choice, which lets a chain begin before
    all of their rTasks are done. Restrictions that change nothing are left out.
    """
    operations = [op.operation for op in problem.graph.operators]
    few = {n: o.only(o.whole) for n in steps for o in (market.options(operations[n]),)}
    lean = {n: o.only(o.efficient) for n in steps for o in (market.options(operations[n]),)}
    first = {n: o.only(o.first) for n in feeders(problem.graph, steps) for o in (market.options(operations[n]),)}
    open_ones = {n: market.options(operations[n]) for n in steps}
    for chosen in (few,) if few == lean else (few, lean):
        if chosen != open_ones:
            yield chosen
        if any(options.first != options.efficient for options in first.values()):
            yield {**first, **chosen}


def draw(
    problem: Problem,
    policy: str,
    by: SelectBy = "interplay",
    *,
    market: Market | None = None,
    held: Held | None = None,
) -> ExecutionPlan:
    """Return the plan of one pass over the waves: `draw_below` without a limit."""
    plan = draw_below(inf, problem, policy, by, market=market, held=held)
    assert plan is not None
    return plan


def draw_below(
    limit_us: float,
    problem: Problem,
    policy: str,
    by: SelectBy,
    *,
    market: Market | None = None,
    held: Held | None = None,
) -> ExecutionPlan | None:
    """Return the plan of one pass over the waves, or None once it is known to take `limit_us` or longer.

    The paper builds P1 = ScheduleWave(W, Pcurr) and P2 = ScheduleWave(W, {}) for each wave and compares them. Here P1
    extends Pcurr in place and is undone if P2 wins. That is possible because a wave's operators do not depend on each
    other: scheduling one reads Pcurr and changes only the ends of its lanes. P2 is not built where time(P1) <=
    time(Pcurr) + a lower bound of time(P2).

    P2 must be faster by more than noise. Otherwise every second wave would be launched separately to save a barrier,
    which made measured networks slower. If a launch costs no more than a barrier, that margin is dropped, as separate
    rPrograms need no wait lists.
    """
    draft = Draft(problem, market)
    current = Assembly(problem.spec)
    programs: list[RProgram] = []
    trials: list[WaveTrial] = []
    done_us = 0.0
    noise = problem.profiler.noise if problem.spec.launch_us > problem.spec.barrier_us else 1.0
    for wave, later_us in zip(problem.graph.wavefronts(), draft.market.later_work_us, strict=True):
        before, before_us = current.mark(), current.time_us
        options = {n: draft.market.options(problem.graph.operators[n].operation) for n in wave}
        options |= {n: held[n] for n in wave if held and n in held}
        trial = WaveTrial(draft, options, current, by)
        wave_us = (current.time_us - before_us) / noise
        if before_us and wave_us > problem.spec.launch_us + trial.bound_us:
            alone = WaveTrial(draft, options, Assembly(problem.spec), by)
            if wave_us > alone.assembly.time_us:
                current.undo(before)
                programs.append(current.build())
                done_us += before_us
                trial, current, before_us = alone, alone.assembly, 0.0
        if limit_us < inf and done_us + current.least_us(later_us) >= limit_us:
            return None
        trial.accept()
        trials.append(trial)
        if draft.tell:
            explain(draft.tell, len(trials), before_us > 0, len(programs), problem.graph, trial.chosen, current.time_us)
    if not current.is_empty:
        programs.append(current.build())
    notes: tuple[str, ...] = (
        f"waves: {len(trials)}, rPrograms: {len(programs)}",
        f"rKernels by wave: {count(t.chosen.reason for t in trials)}",
        f"vEUs by rTask: {count(p.reason for t in trials for p in t.placements)}",
    )
    if held:
        kinds = dict.fromkeys(problem.graph.operators[n].kind for n in held)
        notes = (*notes, f"one rKernel for all steps of {', '.join(kinds)}")
    return draft.finish(policy, programs, done_us + current.time_us, notes)


class WaveTrial:
    """One wave appended to an rProgram with the rKernels that suit both; not yet final."""

    def __init__(self, draft: Draft, options: Mapping[int, Options], assembly: Assembly, by: SelectBy) -> None:
        self.draft = draft
        self.assembly = assembly
        self.placements: list[TaskPlacement] = []
        self.bound_us = wave_bound_us(list(options.values()), draft.spec.num_veus)
        before = assembly.mark()
        tried: list[tuple[dict[int, RKernel], list[TaskPlacement], Undone]] = []
        present: dict[int, RKernel] = {}

        def price(kernels: dict[int, RKernel]) -> float:
            nonlocal present
            if present:
                tried.append((present, self.placements, assembly.undo(before)))
            present = kernels
            for known, self.placements, undone in tried:
                if known == kernels:
                    assembly.redo(undone)
                    draft.kernels.update(kernels)
                    break
            else:
                self.placements = draft.schedule_wave(kernels, assembly)
            return assembly.time_us

        fastest = {n: o.fastest.kernel for n, o in options.items()}
        efficient = {n: o.efficient.kernel for n, o in options.items()}
        self.chosen = select_rkernels(fastest, efficient, draft.spec.num_veus, price, by)

    def accept(self) -> None:
        """Make the choice of rKernels final."""
        self.draft.kernels.update(self.chosen.kernels)
        self.draft.settle(self.placements)
