"""Choose when a simulated plan loads and stores: loads earlier and stores later, as far as memory allows.

A simulated run says at which step it needs each transfer. Here a load may begin some steps earlier, and then occupies
memory from that step on. A store may end some steps later. A main or shared memory carries one transfer after another;
of those that may begin, the most urgent one goes first. SoMa (HPCA'25) searches the same space: when memory is
allocated, when it is freed, and which transfer goes first. GraphTurbo (§4.4) is one point in it: weights are prefetched
during the layer before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from benchmarks.graphturbo.scratchpad import Far, Memories, Move, Transfers
from benchmarks.graphturbo.slices import Piece, Step

WINDOWS = (0, 1, 2, 4, 8, 16, 32, 64, 1 << 30)  # steps ahead, or behind: of all transfers alike, where searches begin
MOST_AHEAD = 64  # transfers that an idle memory looks at
MOST_PLAYED = 300  # plans that a search plays
MOST_BEFORE = 6  # transfers of a busy memory, before the one that a step waits for, that are moved in its place


class Transfer(NamedTuple):
    """A transfer of a main or shared memory for a step: a move, or a part of one. By default it ends before the step.

    It may be moved to an earlier step, not before `first`, and then begins as soon as that step could. Or it may be
    moved to a later step, up to `last`, and then ends before that step begins. `room`: the memory that it occupies in
    between, beyond what steps hold anyway; `inside`: also during its own step.
    """

    move: Move
    nbytes: int
    step: int
    first: int
    last: int
    room: str
    inside: bool

    @property
    def stores(self) -> bool:
        return self.move.kind in ("spill", "result")

    def span(self, at: int) -> tuple[int, int]:
        """The step from which it may begin, and the step before which it ends."""
        return min(at, self.step), max(at, self.step)

    def steps(self, at: int) -> slice:
        """The steps in which it occupies memory."""
        begin, due = self.span(at)
        if begin == due or not self.room:
            return slice(0, 0)
        inside = int(self.inside)
        return slice(begin, due + inside) if at < self.step else slice(begin - inside, due)


class Timeline(NamedTuple):
    """The begin and end of each step and transfer. `at`: the step that each transfer was moved to."""

    steps: tuple[tuple[float, float], ...]
    transfers: tuple[tuple[float, float], ...]
    at: tuple[int, ...]

    @property
    def end(self) -> float:
        return max((end for _, end in (*self.steps, *self.transfers)), default=0.0)


class Costs(NamedTuple):
    """The time to compute each step, and to move a byte of each main or shared memory, in one unit."""

    steps: Sequence[float]
    byte: Mapping[Far, float]

    def moving(self, transfer: Transfer) -> float:
        return transfer.nbytes * self.byte[transfer.move.memory]


def transfers_of(steps: Sequence[Step], moved: Transfers, most: int) -> list[Transfer]:
    """Return the transfers of a run with the range of steps to which each may be moved, in parts of limited bytes."""
    made = {step.makes.piece: at for at, step in enumerate(steps)}
    loads: dict[Piece, list[int]] = defaultdict(list)
    for move in moved.moves:
        if move.kind == "load":
            loads[move.piece].append(move.step)
    there: dict[Piece, int] = {}  # where a piece was stored: the step before which that is done
    weighed: dict[int, int] = {}  # the step after the last use of weights that were loaded
    used = _uses(steps, moved)
    found: list[Transfer] = []
    for n, move in enumerate(moved.moves):
        at, piece = move.step, move.piece
        if move.kind == "weights":
            place = at, weighed.get(piece[1], 0), at, "shared", False
            weighed[piece[1]] = used[n] + 1
        elif move.kind == "load":
            place = at, there.get(piece, 0), at, "near", not move.kept
        elif move.kind == "spill" and made[piece] < at:  # to make room
            place = at, made[piece] + 1, at, "shared" if move.memory == "shared" else "", False
            there[piece] = at
        else:  # as it is made
            again = next((n for n in loads[piece] if n > at), None)
            last = len(steps) if again is None else (at + 1 + again) // 2
            place = at + 1, at + 1, last, "near", True
            there[piece] = last
        count = max(-(-move.nbytes // most), 1)
        sizes = [move.nbytes * (k + 1) // count - move.nbytes * k // count for k in range(count)]
        found += [Transfer(move, nbytes, *place) for nbytes in sizes]
    return found


def held(steps: Sequence[Step], moved: Transfers) -> dict[str, list[int]]:
    """Return the bytes that each step needs in each memory. Shared memory also holds weights until their last use."""
    found = {"near": [near for near, _ in moved.held], "shared": [shared for _, shared in moved.held]}
    for n, last in _uses(steps, moved).items():
        for at in range(moved.moves[n].step, last + 1):
            found["shared"][at] += moved.moves[n].nbytes
    return found


def _uses(steps: Sequence[Step], moved: Transfers) -> dict[int, int]:
    """Return the last step that uses loaded weights, by the number of the move."""
    using: dict[int, list[int]] = defaultdict(list)
    for at, step in enumerate(steps):
        using[step.makes.piece[1]].append(at)
    found: dict[int, int] = {}
    until: dict[int, int] = {}
    for n in reversed(range(len(moved.moves))):
        move, layer = moved.moves[n], moved.moves[n].piece[1]
        if move.kind == "weights":
            found[n] = max(at for at in using[layer] if at < until.get(layer, len(steps)))
            until[layer] = move.step
    return found


class Rooms:
    """The bytes in each memory at every step, of a plan and of moved transfers."""

    def __init__(self, held: Mapping[str, Sequence[int]], memories: Memories) -> None:
        self._used = {name: np.array([*steps, 0], np.int64) for name, steps in held.items()}
        self._room = {"near": memories.near, "shared": memories.shared}

    def take(self, transfer: Transfer, at: int, sign: int = 1) -> None:
        """Add its bytes at the step that it was moved to; with `sign` -1, remove them."""
        if transfer.room:
            self._used[transfer.room][transfer.steps(at)] += sign * transfer.nbytes

    def fits(self, transfer: Transfer, at: int) -> bool:
        """Return whether it fits at a step, if it occupies nothing now."""
        if not transfer.room:
            return True
        used = self._used[transfer.room][transfer.steps(at)]
        return not used.size or bool(used.max() + transfer.nbytes <= self._room[transfer.room])


class _Run(ABC):
    """A simulation of steps in order. Each memory carries one transfer at a time; `next_for` chooses it."""

    def __init__(self, transfers: Sequence[Transfer], costs: Costs, at: Sequence[int]) -> None:
        self.transfers, self.costs, self.at = transfers, costs, list(at)
        self.took = [costs.moving(t) for t in transfers]
        self.when: list[tuple[float, float] | None] = [None] * len(transfers)
        self.step = 0  # that is computed, or waits
        count = len(costs.steps) + 1
        self.missing, self.stores = [0] * count, [0] * count  # transfers, and stores of them, that are due
        for n in range(len(transfers)):
            self.count(n, 1)

    def count(self, n: int, sign: int) -> None:
        """Count one more, or one less, that is due before a step."""
        _, due = self.transfers[n].span(self.at[n])
        self.missing[due] += sign
        self.stores[due] += sign * self.transfers[n].stores

    @abstractmethod
    def opened(self) -> None:
        """Called when all steps before this one are done."""

    @abstractmethod
    def next_for(self, memory: Far) -> int | None:
        """Return the transfer that begins now."""

    def run(self) -> Timeline:
        carried: dict[Far, bool] = {"shared": False, "main": False}
        ends: list[tuple[float, int]] = []  # of what is under way: a transfer, or -1 for a step
        computed: list[tuple[float, float]] = []
        now, computing, count = 0.0, False, len(self.costs.steps)
        self.opened()
        while True:
            for memory in carried:
                if not carried[memory] and (n := self.next_for(memory)) is not None:
                    carried[memory], self.when[n] = True, (now, now + self.took[n])
                    heappush(ends, (now + self.took[n], n))
            if not computing and self.step < count and not self.missing[self.step]:
                computing = True
                computed.append((now, now + self.costs.steps[self.step]))
                heappush(ends, (computed[-1][1], -1))
            if not ends:
                break
            now, n = heappop(ends)
            if n < 0:
                computing = False
                self.step += 1
                self.opened()
            else:
                carried[self.transfers[n].move.memory] = False
                self.count(n, -1)
        when = tuple(times for times in self.when if times)
        assert self.step == count and len(when) == len(self.when), "a transfer waits for itself"
        return Timeline(tuple(computed), when, tuple(self.at))


class _Fixed(_Run):
    """A simulation with transfers at given steps. A memory carries the one that is due first, stores before loads.

    A load of a step waits for the stores that are due before it, because they free memory.
    """

    def __init__(self, transfers: Sequence[Transfer], costs: Costs, at: Sequence[int]) -> None:
        super().__init__(transfers, costs, at)
        self._spans = [t.span(n) for t, n in zip(transfers, at, strict=True)]
        self._opened: dict[int, list[int]] = defaultdict(list)
        for n, (begin, _) in enumerate(self._spans):
            self._opened[begin].append(n)
        self._ready: dict[Far, list[tuple[int, bool, int]]] = {"shared": [], "main": []}
        self._waiting: list[int] = []  # loads, for stores

    def opened(self) -> None:
        self._waiting += self._opened[self.step]

    def next_for(self, memory: Far) -> int | None:
        if self._waiting:
            left = []
            for n in self._waiting:
                transfer, (begin, due) = self.transfers[n], self._spans[n]
                if transfer.stores or not self.stores[begin]:
                    heappush(self._ready[transfer.move.memory], (due, not transfer.stores, n))
                else:
                    left.append(n)
            self._waiting = left
        return heappop(self._ready[memory])[-1] if self._ready[memory] else None


class _AsSoon(_Run):
    """A simulation where each transfer that fits begins as soon as its memory is idle, in the order of steps.

    Stores are late as long as there is space. Waiting transfers occupy none.
    """

    def __init__(self, transfers: Sequence[Transfer], costs: Costs, rooms: Rooms) -> None:
        super().__init__(transfers, costs, [t.step for t in transfers])
        self._rooms = rooms
        order = sorted(range(len(transfers)), key=lambda n: (transfers[n].step, not transfers[n].stores))
        self._left: dict[Far, list[int]] = {
            memory: [n for n in order if transfers[n].move.memory == memory] for memory in ("shared", "main")
        }
        self._late = [n for n in order if transfers[n].last > transfers[n].step]

    def opened(self) -> None:
        """Let stores that are due now, and for which there is space, take longer."""
        for n in self._late:
            transfer, at = self.transfers[n], self.at[n]
            if at == self.step < transfer.last and not self._done(n):
                self._rooms.take(transfer, at, -1)
                later = at + 1 if self._rooms.fits(transfer, at + 1) else at
                self._rooms.take(transfer, later)
                self.count(n, -1)
                self.at[n] = later
                self.count(n, 1)

    def _done(self, n: int) -> bool:
        return self.when[n] is not None

    def next_for(self, memory: Far) -> int | None:
        left = self._left[memory]
        for n in left[:MOST_AHEAD]:
            transfer, step = self.transfers[n], self.step
            if transfer.last > transfer.step or transfer.step == step:  # what is late, and what is needed now
                suits = transfer.step <= step and (transfer.stores or not self.stores[step])
            else:
                suits = transfer.first <= step and not self.stores[step] and self._rooms.fits(transfer, step)
                if suits:
                    self.at[n] = step
                    self._rooms.take(transfer, step)
            if suits:
                left.remove(n)
                return n
        return None


def play(transfers: Sequence[Transfer], at: Sequence[int], costs: Costs) -> Timeline:
    """Compute all steps, with transfers moved to the given steps."""
    return _Fixed(transfers, costs, at).run()


def least(transfers: Iterable[Transfer], costs: Costs) -> float:
    """Return a lower bound of all timelines: computing, or the transfers of the busiest memory."""
    carried: dict[Far, float] = {"shared": 0.0, "main": 0.0}
    for transfer in transfers:
        carried[transfer.move.memory] += costs.moving(transfer)
    return max(sum(costs.steps), *carried.values())


def searched(
    transfers: Sequence[Transfer], held: Mapping[str, Sequence[int]], memories: Memories, costs: Costs
) -> Timeline:
    """Return the best timeline found.

    It starts from several: all transfers moved as far as a window and memory allow, for some windows, and all transfers
    begun as soon as memories are idle. From the best of these it goes downhill, by moving transfers that steps wait
    for.
    """
    found: list[Sequence[int]] = [moved_alike(transfers, Rooms(held, memories), window) for window in WINDOWS]
    found.append(_AsSoon(transfers, costs, Rooms(held, memories)).run().at)
    best = min((play(transfers, at, costs) for at in dict.fromkeys(map(tuple, found))), key=lambda t: t.end)
    return _Downhill(transfers, held, memories, costs, best).run()


def moved_alike(transfers: Sequence[Transfer], rooms: Rooms, window: int) -> list[int]:
    """Move all transfers by up to `window` steps, in the order of their steps, as far as memory allows."""
    at = [t.step for t in transfers]
    for n in sorted(range(len(transfers)), key=lambda n: transfers[n].step):
        at[n] = next((place for place in _places(transfers[n], window) if rooms.fits(transfers[n], place)), at[n])
        rooms.take(transfers[n], at[n])
    return at


def _places(transfer: Transfer, window: int) -> Iterator[int]:
    """Yield steps to which it may be moved, the farthest first; each is half as far as the one before."""
    step, far = transfer.step, transfer.first if transfer.first < transfer.step else transfer.last
    away = max(-window, min(window, far - step))
    while away:
        yield step + away
        away = int(away / 2)


class _Downhill:
    """Shorten a timeline by moves of single transfers."""

    def __init__(
        self,
        transfers: Sequence[Transfer],
        held: Mapping[str, Sequence[int]],
        memories: Memories,
        costs: Costs,
        start: Timeline,
    ) -> None:
        self._transfers, self._costs, self._best = transfers, costs, start
        self._rooms = Rooms(held, memories)
        for transfer, at in zip(transfers, start.at, strict=True):
            self._rooms.take(transfer, at)
        self._least, self._left = least(transfers, costs), MOST_PLAYED

    def run(self) -> Timeline:
        tried: set[int] = set()
        while self._left > 0 and self._best.end > self._least * (1 + 1e-9):
            stalls = sorted((s for s in self._stalls() if s[1] not in tried), reverse=True)
            if not stalls:
                break
            _, step, culprit = stalls[0]
            if self._improved(culprit):
                tried.clear()
            else:
                tried.add(step)
        return self._best

    def _stalls(self) -> Iterator[tuple[float, int, int]]:
        """Return how long each step waits, and for which transfer: of those that are due, the one that ends last."""
        last: dict[int, tuple[float, int]] = {}
        for n, (transfer, at) in enumerate(zip(self._transfers, self._best.at, strict=True)):
            due = transfer.span(at)[1]
            last[due] = max(last.get(due, (-inf, 0)), (self._best.transfers[n][1], n))
        before = 0.0
        for step, (begin, end) in enumerate(self._best.steps):
            if begin > before:
                yield begin - before, step, last[step][1]
            before = end
        if (over := len(self._best.steps)) in last and self._best.end > before:
            yield self._best.end - before, over, last[over][1]

    def _improved(self, culprit: int) -> bool:
        """Return whether moving it, or a transfer right before it, ends the run sooner."""
        for n in self._busy_before(culprit):
            transfer, old = self._transfers[n], self._best.at[n]
            self._rooms.take(transfer, old, -1)
            for place in dict.fromkeys((*_places(transfer, 1 << 30), transfer.step)):
                if place != old and self._left > 0 and self._rooms.fits(transfer, place) and self._sooner(n, place):
                    self._rooms.take(transfer, place)
                    return True
            self._rooms.take(transfer, old)
        return False

    def _sooner(self, n: int, place: int) -> bool:
        self._left -= 1
        at = (*self._best.at[:n], place, *self._best.at[n + 1 :])
        timeline = play(self._transfers, at, self._costs)
        if timeline.end >= self._best.end * (1 - 1e-9):
            return False
        self._best = timeline
        return True

    def _busy_before(self, culprit: int) -> list[int]:
        """Return a transfer and those that its memory carried before it without a pause, the last one first."""
        memory, when = self._transfers[culprit].move.memory, self._best.transfers
        others = [n for n, t in enumerate(self._transfers) if t.move.memory == memory and when[n] <= when[culprit]]
        found = [culprit]
        for n in sorted(others, key=lambda n: when[n], reverse=True):
            if n == culprit:
                continue
            if len(found) > MOST_BEFORE or when[n][1] < when[found[-1]][0]:
                break
            found.append(n)
        return found
