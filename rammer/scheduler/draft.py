"""Hold the state of a policy while it builds a plan: rKernels, dependencies of rTasks, vEUs of static weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.dependency import Dependencies, Needed
from rammer.ir.device import Execution, SyncModel
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram, TaskUid
from rammer.scheduler.assembly import NOTHING, NOWHERE, Assembly, Needs, Placed
from rammer.scheduler.policy import Problem
from rammer.scheduler.select import TIE_US, Assignment, Options, PriceTable, select_veu

RTaskIds: TypeAlias = NDArray[np.int64]  # of one operator, ascending


class _Candidate(NamedTuple):
    task: TaskUid
    needs: Needs
    home: int | None


class Draft:
    """State and helpers that all policies share. Policies fill `kernels`; dependencies are computed from it."""

    printed = False  # whether waves are scheduled as the paper prints it

    def __init__(self, problem: Problem, prices: PriceTable | None = None) -> None:
        self.graph = problem.graph
        self.spec = problem.spec
        self.prices = prices or PriceTable(problem)
        self.gathers = self.spec.execution is Execution.SIMT and self.spec.sync is SyncModel.FINE  # a whole block waits
        self.kernels: dict[int, RKernel] = {}
        self.dependencies = Dependencies(problem.graph, self.kernels)
        self._homes: dict[tuple[RKernel, tuple[str, ...]], dict[int, int]] = {}  # rTask -> vEU
        self._statics = [op.statics for op in problem.graph.operators]
        self.tell = problem.tell

    def options(self, operator_id: int) -> Options:
        """Return the rKernels from which a wave chooses."""
        return self.prices.options(self.graph.operators[operator_id].operation)

    def rtask_us(self, operator_id: int) -> float:
        return self.prices.repeated_us(self.kernels[operator_id])

    def homes(self, operator_id: int) -> Mapping[int, int]:
        """Return, by rTask, the vEU that last ran the same rTask of the same rKernel on the same static weights."""
        return self._homes.get((self.kernels[operator_id], self._statics[operator_id]), {})

    def record_homes(self, placed: Iterable[Placed]) -> None:
        """Record on which vEUs static weights were used."""
        for (operator_id, rtask_id), veu, *_ in placed:
            if statics := self._statics[operator_id]:
                self._homes.setdefault((self.kernels[operator_id], statics), {})[rtask_id] = veu

    def schedule_wave(self, wave: Mapping[int, RKernel], assembly: Assembly) -> list[Placed]:
        """Append the rTasks of independent operators, each to the vEU that can start it first. Paper: Alg. 1, line 12.

        rTasks whose operands are ready earliest come first, and of these the longest first, which balances the lanes.
        Ties go to rTasks whose static weights the chosen vEU used last.
        """
        self.kernels.update(wave)
        wanted = self.tasks(wave, assembly)
        now = float(assembly.ready_us.min())
        alike: dict[tuple[float, float], list[_Candidate]] = {}
        for task, needs in wanted:
            candidate = _Candidate(task, needs, self.homes(task.operator_id).get(task.rtask_id))
            alike.setdefault((max(now, needs.end_us), -self.rtask_us(task.operator_id)), []).append(candidate)
        chosen = (
            Placed(task, place.veu, -negative_us, needs, place.reason)
            for (_, negative_us), candidates in sorted(alike.items())
            for task, needs, place in _by_weights(candidates, assembly)
        )
        return self.place(chosen, assembly)

    def place(self, chosen: Iterable[Placed], assembly: Assembly) -> list[Placed]:
        """Append rTasks that do not depend on each other. `chosen` yields each one after the one before is placed.

        Where barriers are expensive, merges their waits and signals.
        """
        before, placed = assembly.mark(), list[Placed]()
        for one in chosen:
            assembly.place(one.task, one.veu, one.rtask_us, one.needs)
            placed.append(one)
        if self.gathers:
            assembly.gather(before, placed)
        return placed

    def tasks(self, operator_ids: Iterable[int], assembly: Assembly) -> list[tuple[TaskUid, Needs]]:
        """Return every rTask of independent operators, with its dependencies in this rProgram.

        On a device with global synchronisation, this appends a barrier of all lanes if there are any.
        """
        return self.some_tasks({op: np.arange(self.kernels[op].num_rtasks) for op in operator_ids}, assembly)

    def some_tasks(self, rtasks: Mapping[int, RTaskIds], assembly: Assembly) -> list[tuple[TaskUid, Needs]]:
        """Return `tasks` for some rTasks of each operator, ascending. All of their producers must be placed."""
        needs = {op: [NOTHING] * len(some) for op, some in rtasks.items()}
        if not assembly.is_empty and self.spec.sync is not SyncModel.GLOBAL:
            needs = {op: self._operator_needs(op, some, assembly) for op, some in rtasks.items()}
        elif not assembly.is_empty and any(self._needs_sync(op, some, assembly) for op, some in rtasks.items()):
            assembly.sync()
        return [
            (TaskUid(op, rtask), need)
            for op, some in rtasks.items()
            for rtask, need in zip(some.tolist(), needs[op], strict=True)
        ]

    def _needs_sync(self, operator_id: int, rtasks: RTaskIds, assembly: Assembly) -> bool:
        """Return whether some of the rTasks depends on one that no global barrier follows."""
        open_ones = 0
        for producer, sure in self.dependencies.producers(operator_id).items():
            count = self.kernels[producer].num_rtasks
            later = sum(not assembly.is_synced(TaskUid(producer, n)) for n in range(count))
            if sure and later == count and 0 in rtasks[:1]:
                return True
            open_ones += later
        return open_ones > 0 and any(
            not assembly.is_synced(TaskUid(producer, needed))
            for producer, found in self.dependencies.needed(operator_id, rtasks)
            for needed in found.rtasks
        )

    def _operator_needs(self, operator_id: int, rtasks: RTaskIds, assembly: Assembly) -> list[Needs]:
        """Return the dependencies of rTasks.

        Each producer is looked up once. rTasks with equal dependencies share one object.
        """
        by_all: dict[int, int] = {}
        by_some: list[tuple[Needed, list[tuple[int, int]]]] = []
        for producer, found in self.dependencies.needed(operator_id, rtasks):
            slots = assembly.find_all(producer, found.rtasks)
            if not found.by_all:
                by_some.append((found, slots))
                continue
            for veu, order in slots:
                if by_all.get(veu, -1) < order:
                    by_all[veu] = order
        common = assembly.needs_at(by_all.items())
        parts: list[NDArray[np.int64]] = []  # rows of reader, vEU, order
        for found, slots in by_some:
            slots = [s if s[1] > by_all.get(s[0], -1) else NOWHERE for s in slots]  # later than the common ones
            if any(s is not NOWHERE for s in slots):
                rows = np.column_stack((found.readers, np.array(slots)[found.which]))
                parts.append(rows[rows[:, 2] >= 0])
        if not parts:
            return [common] * len(rtasks)
        rows = np.concatenate(parts)
        rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
        begins = np.searchsorted(rows[:, 0], np.arange(len(rtasks) + 1))
        known: dict[bytes, Needs] = {b"": common}
        answers = []
        for begin, end in pairwise(begins.tolist()):
            mine = rows[begin:end, 1:]
            if (needs := known.get(key := mine.tobytes())) is None:
                needs = known[key] = assembly.needs_at((*by_all.items(), *mine.tolist()))
            answers.append(needs)
        return answers

    def sequential_us(self) -> float:
        """Return the time of RammerBase in µs: every operator's fastest rKernel, launched alone."""
        options = [self.prices.options(op.operation).fastest for op in self.graph.operators]
        veus = self.spec.num_veus
        return sum(
            self.spec.launched_us(min(o.kernel.num_rtasks, veus) > 1) + o.unshared_us
            for o in options
            if o.kernel.num_rtasks
        )

    def finish(self, policy: str, programs: Sequence[RProgram], cost_us: float, notes: Sequence[str]) -> ExecutionPlan:
        """Return the plan. A note says so if its price exceeds the baseline's by more than noise."""
        baseline_us = self.sequential_us()
        if cost_us > baseline_us * max(self.prices.problem.profiler.noise, 1 + 1e-9):
            worse = f"priced at {cost_us:.2f} µs, worse than the {baseline_us:.2f} µs of one rProgram per rOperator"
            notes = [*notes, worse]
        kernels = tuple(self.kernels[n] for n in range(len(self.graph.operators)))
        us = {kernel: self.prices.rtask_us(kernel) for kernel in kernels}
        return ExecutionPlan(self.graph, self.spec, kernels, tuple(programs), policy, rtask_us=us, notes=tuple(notes))


def _by_weights(candidates: list[_Candidate], assembly: Assembly) -> Iterator[tuple[TaskUid, Needs, Assignment]]:
    """Yield candidates of equal duration, each with its vEU; the caller places each before it takes the next.

    A vEU is chosen for the first candidate. Another one replaces it if its weights are on that vEU and it can start as
    early.
    """
    queue = sorted(candidates, key=lambda candidate: candidate.task, reverse=True)
    by_home: dict[int | None, list[_Candidate]] = {}
    for candidate in queue:
        by_home.setdefault(candidate.home, []).append(candidate)
    gone: set[TaskUid] = set()
    while queue:
        if queue[-1].task in gone:
            queue.pop()
            continue
        chosen = queue[-1]
        place = select_veu(assembly, chosen.needs, chosen.home)
        for home in (place.veu, None) if place.veu != chosen.home else ():
            fitting = by_home.get(home, [])
            while fitting and fitting[-1].task in gone:
                fitting.pop()
            if fitting and assembly.start_us(place.veu, fitting[-1].needs) <= place.start_us + TIE_US:
                chosen = fitting[-1]
                place = place if home is None else place._replace(reason="static weights")
                break
        gone.add(chosen.task)
        yield chosen.task, chosen.needs, place
