"""Waves of Algorithm 1, drawn in time linear in the number of rTasks, and again for chains. Paper: §3.3."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from operator import itemgetter

from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram
from rammer.scheduler.assembly import Assembly, Undone
from rammer.scheduler.chains import chains, ran_alone
from rammer.scheduler.draft import Draft, Placement
from rammer.scheduler.policy import Problem
from rammer.scheduler.select import Market, Options, SelectBy, count, explain, select_rkernels, wave_bound_us

LOOSE = 1.2  # beside chains the generator's first choice may be dearer: it lets readers start before all is done
CLOSE = 1.25  # plans whose prices are closer are measured: prices leave out what lines cost that another vEU has


def draw_with_chains(problem: Problem, policy: str) -> tuple[float, ExecutionPlan]:
    """Waves with rKernels by interplay; and again for steps of long chains. The price, and the plan.

    What is best for one step after another keeps every vEU busy with one chain. So that chains run side by side,
    all their steps must take the most efficient rKernel: tried for each such operation, kept if that takes less.
    """
    best_us, plan = draw(problem, policy)
    chosen: tuple[Operation, ...] = ()
    notes: list[str] = []
    for steps in chains(problem):
        us, other = draw(problem, policy, efficient=(*chosen, *steps))
        if ends := ran_alone(other):
            again = draw(problem, policy, efficient=(*chosen, *steps), free=ends)
            us, other = min((us, other), again, key=itemgetter(0))
        if (other.programs, other.kernels) == (plan.programs, plan.kernels):
            continue
        better = us < best_us
        if max(us, best_us) < CLOSE * min(us, best_us) and (measured := problem.profiler.plans_us((other, plan))):
            side_by_side, without = measured
            better = side_by_side * problem.profiler.noise < without
            how = f"{side_by_side:.0f} µs with chains of {steps[0].kind} side by side"
            notes.append(f"measured: {how}, {without:.0f} µs without")
        if better:
            best_us, plan, chosen = us, other, (*chosen, *steps)
    return best_us, replace(plan, notes=(*plan.notes, *notes))


def draw(
    problem: Problem,
    policy: str,
    by: SelectBy = "interplay",
    efficient: tuple[Operation, ...] = (),
    free: Container[int] = (),
) -> tuple[float, ExecutionPlan]:
    """The price and the plan of one pass over the waves, some operations held to their most efficient rKernels.

    The paper builds P1 = ScheduleWave(W, Pcurr) and P2 = ScheduleWave(W, {}) for each wave and compares them. Here P1
    grows in place and is taken back if P2 wins: a wave's operators do not depend on each other, so scheduling one reads
    Pcurr and changes only the ends of its lanes. P2 is not built where even a perfect P2 would lose, that is where
    time(P1) <= time(Pcurr) + a lower bound of time(P2). Operators that are `free` choose as ever.
    """
    draft = Draft(problem, LOOSE if efficient else None)
    held = Market(problem, draft.market.noise)
    for operation in efficient:
        held.insist(operation)
    current = Assembly(problem.spec)
    programs: list[RProgram] = []
    trials: list[Trial] = []
    done_us = 0.0
    for wave in problem.graph.wavefronts():
        before, before_us = current.mark(), current.time_us
        operations = {n: problem.graph.operators[n].operation for n in wave}
        options = {n: (draft.market if n in free else held).options(o) for n, o in operations.items()}
        trial = Trial(draft, options, current, by)
        if before_us and current.time_us > before_us + problem.spec.launch_us + trial.bound_us:
            alone = Trial(draft, options, Assembly(problem.spec), by)
            if current.time_us > before_us + alone.assembly.time_us:
                current.undo(before)
                programs.append(current.build())
                done_us += before_us
                trial, current, before_us = alone, alone.assembly, 0.0
        trial.accept()
        trials.append(trial)
        explain(len(trials), before_us > 0, len(programs), problem.graph, trial.chosen, current.time_us)
    if not current.is_empty:
        programs.append(current.build())
    notes: tuple[str, ...] = (
        f"waves: {len(trials)}, rPrograms: {len(programs)}",
        f"rKernels by wave: {count(t.chosen.reason for t in trials)}",
        f"vEUs by rTask: {count(p.reason for t in trials for p in t.placements)}",
    )
    if efficient:
        notes = (*notes, f"most efficient rKernels for all steps of {', '.join(o.kind for o in efficient)}")
    price_us = done_us + current.time_us
    return price_us, draft.finish(policy, programs, price_us, notes)


class Trial:
    """One wave appended to an rProgram with the rKernels that suit both; not yet final."""

    def __init__(self, draft: Draft, options: Mapping[int, Options], assembly: Assembly, by: SelectBy) -> None:
        self.draft = draft
        self.assembly = assembly
        self.placements: list[Placement] = []
        self.bound_us = wave_bound_us(list(options.values()), draft.spec.num_veus)
        before = assembly.mark()
        tried: list[tuple[dict[int, RKernel], list[Placement], Undone]] = []
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
