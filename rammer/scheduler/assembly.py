"""An rProgram under construction, priced slot by slot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rammer.ir.device import VDeviceSpec
from rammer.ir.program import Mark, Position, RProgram, RProgramBuilder, TaskUid


@dataclass(frozen=True, slots=True)
class Needs:
    """What an rTask must see of an rProgram: the last needed slot of each lane, and when it ends.

    Lanes run in order, so that slot stands for all needed before it (Paper: §3.3, "only include the last one").
    """

    last: tuple[tuple[Position, TaskUid], ...] = ()
    end_us: float = 0.0  # when the last of them is done
    veu: int = -1  # on this vEU
    other_end_us: float = 0.0  # when the last one on any other vEU is done
    past: set[int] = field(default_factory=set)  # vEUs whose lanes were seen to need no barrier for this any more


NOTHING = Needs()


class Checkpoint(NamedTuple):
    """A state of an Assembly to come back to."""

    mark: Mark
    ready_us: tuple[float, ...]
    synced: tuple[int, ...]


class Assembly:
    """Appends rTasks and knows at once when each of them runs.

    Lanes only grow at their ends, so the state is the time at which each lane is ready: one more rTask costs O(1), and
    `time_us` always equals what `simulate` says about the finished rProgram. `mark` and `undo` make trials cheap.
    """

    def __init__(self, spec: VDeviceSpec) -> None:
        self.spec = spec
        self.ready_us = [0.0] * spec.num_veus
        self._builder = RProgramBuilder(spec.num_veus)
        self._ends: list[list[float]] = [[] for _ in range(spec.num_veus)]
        self._synced = (0,) * spec.num_veus  # per lane, its slots before the last global barrier

    @property
    def is_empty(self) -> bool:
        return not any(self._ends)

    @property
    def time_us(self) -> float:
        """time(P): the launch, and the longest lane; 0 for an rProgram without slots. Paper: Alg. 1."""
        return 0.0 if self.is_empty else self.spec.launch_us + max(self.ready_us)

    def needs(self, tasks: Iterable[TaskUid], also: Needs = NOTHING) -> Needs:
        """What lies in this rProgram of `tasks`; those of earlier rPrograms are complete anyway.

        The answer holds until the next `undo`.
        """
        last = {where.veu: (where, task) for where, task in also.last}
        find = self._builder.find
        for task in tasks:
            where = find(task)
            if where is not None:
                veu, order = where
                if veu not in last or last[veu][0].order < order:
                    last[veu] = (where, task)
        return self._needs(last)

    def _needs(self, last: dict[int, tuple[Position, TaskUid]]) -> Needs:
        if not last:
            return NOTHING
        ends = sorted(((self._ends[w.veu][w.order], w.veu) for w, _ in last.values()), reverse=True)
        return Needs(tuple(last.values()), *ends[0], ends[1][0] if len(ends) > 1 else 0.0)

    def start_us(self, veu: int, needs: Needs) -> float:
        """When an rTask with these needs would start on `veu`, after a barrier-rTask if it must have one."""
        ready = self.ready_us[veu]
        if not needs.last:
            return ready
        foreign = needs.other_end_us if veu == needs.veu else needs.end_us
        if foreign > ready:
            return foreign + self.spec.barrier_us
        if veu in needs.past:
            return ready
        known = self._builder.known(veu)
        for where, _ in needs.last:
            if where.veu != veu and where.order >= known[where.veu]:
                return ready + self.spec.barrier_us
        needs.past.add(veu)
        return ready

    def place(self, task: TaskUid, veu: int, rtask_us: float, needs: Needs = NOTHING) -> None:
        """Append an rTask that takes `rtask_us`."""
        start = self.start_us(veu, needs)
        if needs.last:
            self._builder.wait(task, [uid for _, uid in needs.last])
        where = self._builder.append(task, veu)
        ends = self._ends[veu]
        if where.order > len(ends):
            ends.append(start)  # the barrier-rTask
        end = self.ready_us[veu] = start + rtask_us
        ends.append(end)

    def sync(self) -> None:
        """A barrier of all lanes: every rTask so far is done before any further one begins."""
        now = max(self.ready_us)
        self._synced = tuple(map(len, self._ends))
        self._builder.sync()
        for ends in self._ends:
            ends.append(now + self.spec.barrier_us)
        self.ready_us = [now + self.spec.barrier_us] * self.spec.num_veus

    def is_synced(self, task: TaskUid) -> bool:
        """Whether a global barrier, or the end of an rProgram, lies behind an rTask."""
        where = self._builder.find(task)
        return where is None or where.order < self._synced[where.veu]

    def mark(self) -> Checkpoint:
        """The present state, for `undo`."""
        return Checkpoint(self._builder.mark(), tuple(self.ready_us), self._synced)

    def undo(self, state: Checkpoint) -> None:
        """Take back everything placed since `mark`."""
        self._builder.undo(state.mark)
        self.ready_us = list(state.ready_us)
        self._synced = state.synced
        for ends, length in zip(self._ends, state.mark.lengths, strict=True):
            del ends[length:]

    def build(self) -> RProgram:
        """The finished rProgram."""
        return self._builder.build()
