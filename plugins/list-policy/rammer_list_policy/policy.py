"""Schedule rTasks by list scheduling: longest remaining path first, on the vEU that holds their weights.

Beyond the paper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rammer.plugin import (
    TIE_US,
    Assembly,
    Draft,
    ExecutionPlan,
    Needs,
    Placed,
    Problem,
    RKernel,
    TaskUid,
    WavefrontPolicy,
    need_fine_sync,
    reload_us,
)


class ListPolicy:
    """List scheduling without waves: a free vEU takes the ready rTask with the longest remaining path.

    rTasks with static weights return to the vEU that used them last, if waiting for it costs less than reading them
    again. All rTasks are in one rProgram. Of three choices of rKernels the one with the least time(P) is used:
    wavefront's, all fastest, all most efficient. Raises ScheduleError on a device with global synchronisation.
    """

    name = "list"

    def schedule(self, problem: Problem) -> ExecutionPlan:
        need_fine_sync(self.name, problem.spec)
        draft = Draft(problem)
        options = [draft.prices.options(op.operation) for op in problem.graph.operators]
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
        tally = Counter(placed.reason for placed in best.placements).most_common()
        reasons = ", ".join(f"{number} × {reason}" for reason, number in tally)
        notes = (
            f"rKernels: {why}, the best of {len(runs)} different choices",
            f"vEUs by rTask: {reasons}",
        )
        return best.draft.finish(self.name, programs, best.assembly.time_us, notes)


class _Run:
    """One pass through the graph with fixed rKernels, in the order of time."""

    def __init__(self, draft: Draft, kernels: Sequence[RKernel]) -> None:
        draft.kernels.update(enumerate(kernels))
        self.draft = draft
        self.assembly = Assembly(draft.spec)
        self._reload_us = cache(partial(reload_us, spec=draft.spec))
        self.placements: list[Placed] = []
        self._read_dependencies()
        self._rank_us = self._ranks()
        self._pending: list[tuple[float, float, TaskUid]] = []  # (release, -rank, rTask): operands placed, not computed
        self._waiting: list[tuple[float, int]] = []  # (-rank, operator) with rTasks that could run now
        self._ready: dict[int, _Queue] = {}
        for batches in self._batches:
            for batch in batches:
                if not batch.missing:
                    self._release(batch)
        self._go()

    def _read_dependencies(self) -> None:
        """Fill in the operands that rTasks miss; a producer needed whole counts as one."""
        num_rtasks = [self.draft.kernels[n].num_rtasks for n in range(len(self.draft.kernels))]
        self._batches: list[list[_Batch]] = []
        self._batch: list[list[_Batch]] = []  # of each rTask
        self._common: dict[int, Needs] = {}  # of the whole producers
        self._whole: list[list[int]] = [[] for _ in num_rtasks]
        self._readers: dict[TaskUid, list[_Batch]] = {}
        self._whole_readers: list[list[int]] = [[] for _ in num_rtasks]
        self._unplaced = list(num_rtasks)
        for consumer, number in enumerate(num_rtasks):
            some: list[NDArray[np.int64]] = []  # rows of reader, producer, operand
            for producer, pairs in self.draft.dependencies.edges(consumer):
                if len(pairs) == number * num_rtasks[producer]:
                    self._whole[consumer].append(producer)
                    self._whole_readers[producer].append(consumer)
                else:
                    some.append(np.insert(pairs, 1, producer, axis=1))
            self._batches.append([])
            self._batch.append([])
            known: dict[bytes, _Batch] = {}
            for key, operands in _by_reader(some, number):
                if (batch := known.get(key)) is None:
                    tasks = tuple(TaskUid(*row) for row in operands.tolist())
                    batch = known[key] = _Batch(consumer, tasks, len(tasks) + len(self._whole[consumer]))
                    self._batches[consumer].append(batch)
                    for operand in tasks:
                        self._readers.setdefault(operand, []).append(batch)
                batch.rtasks.append(len(self._batch[consumer]))
                self._batch[consumer].append(batch)

    def _ranks(self) -> list[float]:
        """Return, per operator, the longest path from its start to the end of the graph."""
        draft = self.draft
        ranks = [0.0] * len(draft.graph.operators)
        for wave in reversed(draft.graph.wavefronts()):
            for n in wave:
                rounds = max(1.0, draft.kernels[n].num_rtasks / draft.spec.num_veus)
                after = max((ranks[reader] for reader in draft.graph.after[n]), default=0.0)
                ranks[n] = draft.rtask_us(n) * rounds + draft.spec.barrier_us + after
        return ranks

    def _release(self, batch: _Batch) -> None:
        for rtask_id in batch.rtasks:
            task = TaskUid(batch.operator_id, rtask_id)
            heappush(self._pending, (batch.release_us, -self._rank_us[batch.operator_id], task))

    def _go(self) -> None:
        free = [(0.0, veu) for veu in range(self.draft.spec.num_veus)]
        free_at = [0.0] * self.draft.spec.num_veus
        while self._pending or self._waiting:
            now, veu = heappop(free)
            if now != free_at[veu]:
                continue  # the lane received work in another lane's turn
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
        """Return the vEU that holds the rTask's static weights, or else the one that made its last operand."""
        if (veu := self.draft.homes(task.operator_id).get(task.rtask_id)) is not None:
            return _Home(veu, self._reload_us(self.draft.kernels[task.operator_id]), "static weights")
        batch = self._batch[task.operator_id][task.rtask_id]
        if not batch.operands:
            return _HOMELESS
        if batch.made_on < 0:
            batch.made_on = self.assembly.needs(batch.operands).veu
        return _Home(batch.made_on, self.draft.spec.barrier_us, "operand")

    def _needs(self, batch: _Batch) -> Needs:
        if batch.needs is None:
            if (common := self._common.get(batch.operator_id)) is None:
                whole = self._whole[batch.operator_id]
                tasks = (TaskUid(p, r) for p in whole for r in range(self.draft.kernels[p].num_rtasks))
                common = self._common[batch.operator_id] = self.assembly.needs(tasks)
            batch.needs = self.assembly.needs(batch.operands, common) if batch.operands else common
        return batch.needs

    def _place(self, task: TaskUid, veu: int, reason: str) -> None:
        operator_id, rtask_id = task
        needs = self._needs(self._batch[operator_id][rtask_id])
        placed = Placed(task, veu, self.draft.rtask_us(operator_id), needs, reason)
        self.assembly.place(*placed[:4])
        self.placements.append(placed)
        self.draft.record_homes([placed])
        for batch in self._readers.get(task, ()):
            self._arrived(batch, float(self.assembly.ready_us[veu]))
        self._unplaced[operator_id] -= 1
        if not self._unplaced[operator_id] and self._whole_readers[operator_id]:
            everything = (TaskUid(operator_id, r) for r in range(self.draft.kernels[operator_id].num_rtasks))
            end_us = self.assembly.needs(everything).end_us
            for consumer in self._whole_readers[operator_id]:
                for batch in self._batches[consumer]:
                    self._arrived(batch, end_us)

    def _arrived(self, batch: _Batch, at_us: float) -> None:
        batch.release_us = max(batch.release_us, at_us)
        batch.missing -= 1
        if not batch.missing:
            self._release(batch)


@dataclass(slots=True, eq=False)
class _Batch:
    """rTasks of an operator with the same operands, and results computed once for all of them."""

    operator_id: int
    operands: tuple[TaskUid, ...]  # of producers that the operator does not need whole
    missing: int  # operands and whole producers that are not placed yet
    rtasks: list[int] = field(default_factory=list)
    release_us: float = 0.0
    made_on: int = -1  # where the last of the operands was made
    needs: Needs | None = None


def _by_reader(some: list[NDArray[np.int64]], num_readers: int) -> Iterator[tuple[bytes, NDArray[np.int64]]]:
    """Yield, for each reader in rows (reader, producer, operand), a key that is equal for equal rows, and the rows."""
    rows = np.concatenate(some) if some else np.zeros((0, 3), np.int64)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    for begin, end in pairwise(np.searchsorted(rows[:, 0], np.arange(num_readers + 1)).tolist()):
        yield rows[begin:end, 1:].tobytes(), rows[begin:end, 1:]


class _Home(NamedTuple):
    """The preferred vEU of an rTask, and the delay in µs that it justifies."""

    veu: int
    worth_us: float
    reason: str


_HOMELESS = _Home(-1, 0.0, "earliest")


class _Queue:
    """Ready rTasks of one operator, by home."""

    def __init__(self) -> None:
        self._by_home: dict[int, list[tuple[TaskUid, _Home]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_home)

    def add(self, task: TaskUid, home: _Home) -> None:
        heappush(self._by_home.setdefault(home.veu, []), (task, home))

    def take(self, veu: int) -> tuple[TaskUid, _Home]:
        """Return a task at home on `veu`, else a homeless one, else one from the vEU with the most."""
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
