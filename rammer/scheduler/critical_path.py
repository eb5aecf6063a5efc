"""List scheduling of rTasks, longest remaining path first, at the vEU that holds their weights. Beyond the paper."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from rammer.errors import ScheduleError
from rammer.ir.device import SyncModel
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import TaskUid
from rammer.scheduler.assembly import Assembly, Needs
from rammer.scheduler.draft import Draft, Placement
from rammer.scheduler.policy import Problem
from rammer.scheduler.select import TIE_US, count
from rammer.scheduler.wavefront import WavefrontPolicy


class ListPolicy:
    """No waves: whenever a vEU is free it takes, of the rTasks whose operands are there, one that most depends on.

    rTasks with static weights go back to the vEU that used them last, if waiting for it costs less than reading them
    anew. All in one rProgram; the best of three choices of rKernels, by time(P): wavefront's, all fastest, all most
    efficient. Raises ScheduleError on a device with global synchronisation.
    """

    name = "list"

    def schedule(self, problem: Problem) -> ExecutionPlan:
        if problem.spec.sync is SyncModel.GLOBAL:
            raise ScheduleError(
                f"policy 'list' needs rTask-level synchronisation, and {problem.spec.name!r} has none",
                hint="use policy 'wavefront'",
            )
        draft = Draft(problem)
        options = [draft.market.options(op.operation) for op in problem.graph.operators]
        choices = {
            "wavefront's": WavefrontPolicy().schedule(problem).kernels,
            "all fastest": tuple(o.fastest.kernel for o in options),
            "all most efficient": tuple(o.efficient.kernel for o in options),
        }
        runs: dict[tuple[RKernel, ...], tuple[str, _Run]] = {}
        for why, kernels in choices.items():
            if kernels not in runs:
                runs[kernels] = why, _Run(Draft(problem), kernels)
        why, best = min(runs.values(), key=lambda item: item[1].assembly.time_us)
        programs = [] if best.assembly.is_empty else [best.assembly.build()]
        notes = (
            f"rKernels: {why}, the best of {len(runs)} different choices",
            f"vEUs by rTask: {count(p.reason for p in best.placements)}",
        )
        return best.draft.finish(self.name, programs, best.assembly.time_us, notes)


class _Run:
    """One pass through the graph with fixed rKernels, in the order of time."""

    def __init__(self, draft: Draft, kernels: Sequence[RKernel]) -> None:
        draft.kernels.update(enumerate(kernels))
        self.draft = draft
        self.assembly = Assembly(draft.spec)
        self.placements: list[Placement] = []
        self._common: dict[int, Needs] = {}
        self._read_dependencies()
        self._rank_us = self._ranks()
        self._pending: list[tuple[float, float, TaskUid]] = []  # (release, -rank, rTask): operands known, not yet there
        self._waiting: list[tuple[float, int]] = []  # (-rank, operator) with rTasks that could run now
        self._ready: dict[int, _Queue] = {}
        for operator_id, missing in enumerate(self._missing):
            for rtask_id, number in enumerate(missing):
                if not number:
                    self._release(TaskUid(operator_id, rtask_id))
        self._go()

    def _read_dependencies(self) -> None:
        """Fill in what each rTask misses; a producer needed whole counts as one."""
        num_rtasks = [self.draft.kernels[n].num_rtasks for n in range(len(self.draft.kernels))]
        self._missing = [[0] * n for n in num_rtasks]
        self._release_us = [[0.0] * n for n in num_rtasks]
        self._operands: list[list[list[TaskUid]]] = [[[] for _ in range(n)] for n in num_rtasks]
        self._whole: list[list[int]] = [[] for _ in num_rtasks]
        self._readers: dict[TaskUid, list[TaskUid]] = {}
        self._whole_readers: list[list[int]] = [[] for _ in num_rtasks]
        self._unplaced = list(num_rtasks)
        for consumer, number in enumerate(num_rtasks):
            for producer, pairs in self.draft.dependencies.edges(consumer):
                if len(pairs) == number * num_rtasks[producer]:
                    self._whole[consumer].append(producer)
                    self._whole_readers[producer].append(consumer)
                    self._missing[consumer] = [m + 1 for m in self._missing[consumer]]
                    continue
                for reader, operand in pairs.tolist():
                    self._operands[consumer][reader].append(TaskUid(producer, operand))
                    self._readers.setdefault(TaskUid(producer, operand), []).append(TaskUid(consumer, reader))
                    self._missing[consumer][reader] += 1

    def _ranks(self) -> list[float]:
        """Per operator, the longest way from its start to the end of the graph."""
        draft = self.draft
        ranks = [0.0] * len(draft.graph.operators)
        for wave in reversed(list(draft.graph.wavefronts())):
            for n in wave:
                rounds = max(1.0, draft.kernels[n].num_rtasks / draft.spec.num_veus)
                after = max((ranks[reader] for reader in draft.graph.dfg.successors(n)), default=0.0)
                ranks[n] = draft.rtask_us(n) * rounds + draft.spec.barrier_us + after
        return ranks

    def _release(self, task: TaskUid) -> None:
        at = self._release_us[task.operator_id][task.rtask_id]
        heappush(self._pending, (at, -self._rank_us[task.operator_id], task))

    def _go(self) -> None:
        free = [(0.0, veu) for veu in range(self.draft.spec.num_veus)]
        free_at = [0.0] * self.draft.spec.num_veus
        while self._pending or self._waiting:
            now, veu = heappop(free)
            if now != free_at[veu]:
                continue  # the lane got work from another one's turn meanwhile
            while self._pending and self._pending[0][0] <= now:
                _, negative_rank, task = heappop(self._pending)
                queue = self._ready.get(task.operator_id)
                if queue is None:
                    queue = self._ready[task.operator_id] = _Queue()
                    heappush(self._waiting, (negative_rank, task.operator_id))
                queue.add(task, self._home(task))
            if not self._waiting:
                free_at[veu] = self._pending[0][0]
                heappush(free, (free_at[veu], veu))
                continue
            operator_id = self._waiting[0][1]
            queue = self._ready[operator_id]
            task, home = queue.take(veu)
            if not queue:
                heappop(self._waiting)
                del self._ready[operator_id]
            where, reason = veu, "earliest"
            if home.veu >= 0 and free_at[home.veu] <= now + max(home.worth_us, TIE_US):
                where, reason = home.veu, home.reason
            self._place(task, where, reason)
            free_at[where] = float(self.assembly.ready_us[where])
            heappush(free, (free_at[where], where))
            if where != veu:
                heappush(free, (now, veu))

    def _home(self, task: TaskUid) -> _Home:
        """Where the rTask has its static weights, or else the last of its own operands."""
        if (veu := self.draft.home(task)) is not None:
            return _Home(veu, self.draft.reload_us(task.operator_id), "static weights")
        if operands := self._operands[task.operator_id][task.rtask_id]:
            return _Home(self.assembly.needs(operands).veu, self.draft.spec.barrier_us, "operand")
        return _HOMELESS

    def _place(self, task: TaskUid, veu: int, reason: str) -> None:
        operator_id, rtask_id = task
        common = self._common.get(operator_id)
        if common is None:
            whole = (TaskUid(p, r) for p in self._whole[operator_id] for r in range(self.draft.kernels[p].num_rtasks))
            common = self._common[operator_id] = self.assembly.needs(whole)
        operands = self._operands[operator_id][rtask_id]
        needs = self.assembly.needs(operands, common) if operands else common
        self.assembly.place(task, veu, self.draft.rtask_us(operator_id), needs)
        placement = Placement(task, veu, reason)
        self.placements.append(placement)
        self.draft.settle([placement])
        for reader in self._readers.get(task, ()):
            self._arrived(reader, float(self.assembly.ready_us[veu]))
        self._unplaced[operator_id] -= 1
        if not self._unplaced[operator_id] and self._whole_readers[operator_id]:
            everything = (TaskUid(operator_id, r) for r in range(self.draft.kernels[operator_id].num_rtasks))
            end_us = self.assembly.needs(everything).end_us
            for consumer in self._whole_readers[operator_id]:
                for r in range(self.draft.kernels[consumer].num_rtasks):
                    self._arrived(TaskUid(consumer, r), end_us)

    def _arrived(self, reader: TaskUid, at_us: float) -> None:
        operator_id, rtask_id = reader
        release_us = self._release_us[operator_id]
        release_us[rtask_id] = max(release_us[rtask_id], at_us)
        self._missing[operator_id][rtask_id] -= 1
        if not self._missing[operator_id][rtask_id]:
            self._release(reader)


class _Home(NamedTuple):
    """A vEU that an rTask had better run on, and the delay that this is worth."""

    veu: int
    worth_us: float
    reason: str


_HOMELESS = _Home(-1, 0.0, "earliest")


class _Queue:
    """rTasks of one operator that could run now, by home."""

    def __init__(self) -> None:
        self._by_home: dict[int, list[tuple[TaskUid, _Home]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_home)

    def add(self, task: TaskUid, home: _Home) -> None:
        heappush(self._by_home.setdefault(home.veu, []), (task, home))

    def take(self, veu: int) -> tuple[TaskUid, _Home]:
        """One that lives on `veu`, else a homeless one, else one from the vEU with the most."""
        for chosen in (veu, _HOMELESS.veu):
            if chosen in self._by_home:
                break
        else:
            chosen = max(self._by_home, key=lambda v: (len(self._by_home[v]), -v))
        tasks = self._by_home[chosen]
        found = heappop(tasks)
        if not tasks:
            del self._by_home[chosen]
        return found
