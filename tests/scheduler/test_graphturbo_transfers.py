"""When plans on paper load and store: timelines are possible, and sooner than plain ones; small ones are the best."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from benchmarks.graphturbo.device import memories, times
from benchmarks.graphturbo.networks import NETWORKS
from benchmarks.graphturbo.plans import costs_of, held_by, transfers_of_plan, ways
from benchmarks.graphturbo.scratchpad import Memories, Move
from benchmarks.graphturbo.search import Paper
from benchmarks.graphturbo.simulated import SimulatedNetwork
from benchmarks.graphturbo.transfers import Costs, Rooms, Timeline, Transfer, least, play, searched

CLOSE = 1e-9


class Case:
    """Transfers of a network's plan, or made-up ones."""

    def __init__(self, transfers: list[Transfer], held: dict[str, list[int]], room: Memories, costs: Costs) -> None:
        self.transfers, self.held, self.room, self.costs = transfers, held, room, costs

    def play(self, at: Sequence[int]) -> Timeline:
        return play(self.transfers, at, self.costs)

    @property
    def standing(self) -> list[int]:
        return [t.step for t in self.transfers]

    def fits(self, at: Sequence[int]) -> bool:
        rooms = Rooms(self.held, self.room)
        for transfer, place in zip(self.transfers, at, strict=True):
            if not rooms.fits(transfer, place):
                return False
            rooms.take(transfer, place)
        return True

    def wrong(self, timeline: Timeline) -> str:
        """What of a timeline is impossible, by the clock and not by how it was made; nothing if all is possible."""
        steps, done = timeline.steps, [end for _, end in timeline.steps]
        for n, (begin, end) in enumerate(steps):
            if abs(end - begin - self.costs.steps[n]) > CLOSE or (n and begin < done[n - 1] - CLOSE):
                return f"step {n} at {begin}"
        for memory in ("shared", "main"):
            mine = [w for t, w in zip(self.transfers, timeline.transfers, strict=True) if t.move.memory == memory]
            if any(later[0] < sooner[1] - CLOSE for sooner, later in zip(sorted(mine), sorted(mine)[1:], strict=False)):
                return f"{memory} carries two at once"
        for n, (t, (begin, end), at) in enumerate(zip(self.transfers, timeline.transfers, timeline.at, strict=True)):
            first, due = min(at, t.step), max(at, t.step)
            if not t.first <= at <= t.last or abs(end - begin - self.costs.moving(t)) > CLOSE:
                return f"transfer {n}: {at} is not from {t.first} to {t.last}, or it is cut short"
            if first and begin < done[first - 1] - CLOSE:
                return f"transfer {n} begins before step {first} could"
            if due < len(steps) and end > steps[due][0] + CLOSE:
                return f"transfer {n} is done after step {due} begins"
        return self._overfull(timeline)

    def _overfull(self, timeline: Timeline) -> str:
        """Memories by the clock: loads hold room as of their beginning, stores until their end."""
        for memory, room in (("near", self.room.near), ("shared", self.room.shared)):
            for n, (begin, finish) in enumerate(timeline.steps):
                used = self.held[memory][n]
                for t, (start, end), at in zip(self.transfers, timeline.transfers, timeline.at, strict=True):
                    if t.room != memory or at == t.step:
                        continue
                    if at < t.step:  # it lies there as of its beginning
                        used += t.nbytes * (start < finish - CLOSE and (n < t.step or (t.inside and n == t.step)))
                    else:  # and here until its end
                        used += t.nbytes * (n >= t.step - t.inside and end > begin + CLOSE)
                if used > max(room, self.held[memory][n]):
                    return f"{memory} holds {used} of {room} in step {n}"
        return ""


def of_network(network: SimulatedNetwork, plan: Paper) -> Case:
    return Case(transfers_of_plan(network, plan), held_by(network, plan), memories(), costs_of(network, plan))


PLANS = [
    ("ResNet-50", 16, "rules"),
    ("ResNet-50", 8, "layers"),
    ("BERT-128", 4, "rules"),
    ("DenseNet-121", 8, "search"),
]


@pytest.mark.parametrize(("name", "batch", "way"), PLANS)
def test_timelines_of_networks_are_possible_and_sooner(name: str, batch: int, way: str) -> None:
    """As they stand, transfers take no longer than by sums of bytes; moved, they end sooner, and not before a bound."""
    network = NETWORKS[name](batch)
    plan = ways(network, memories(), (way,))[way]
    case, took = of_network(network, plan), times(network, plan.moved)
    standing, found = case.play(case.standing), searched(case.transfers, case.held, case.room, case.costs)
    assert case.wrong(standing) == "" and case.wrong(found) == ""
    assert sum(t.nbytes for t in case.transfers) == plan.moved.main + plan.moved.weights + plan.moved.shared
    assert standing.end <= took.in_turn * 1.001
    assert least(case.transfers, case.costs) * (1 - CLOSE) <= found.end < standing.end


def made_up(seed: int, steps: int = 4, transfers: int = 5) -> Case:
    rng = np.random.default_rng(seed)
    found = []
    for n in range(transfers):
        stores = bool(rng.integers(2))
        at = int(rng.integers(0, steps))
        memory = "main" if rng.integers(2) else "shared"
        move = Move(at, "result" if stores else "load", memory, int(rng.integers(1, 9)), (n, n))
        if stores:
            place = at + 1, at + 1, int(rng.integers(at + 1, steps + 1)), "near", True
        else:
            place = at, int(rng.integers(0, at + 1)), at, "near" if rng.integers(2) else "shared", bool(rng.integers(2))
        found.append(Transfer(move, move.nbytes, *place))
    used = {memory: rng.integers(0, 8, steps).tolist() for memory in ("near", "shared")}
    costs = Costs(rng.integers(1, 12, steps).astype(float).tolist(), {"main": 1.0, "shared": 0.5})
    return Case(found, used, Memories(1, 14, 14), costs)


def best_of_all(case: Case) -> float:
    """The soonest end of all ways to move transfers."""
    ways = product(*(range(t.first, t.last + 1) for t in case.transfers))
    return min(case.play(at).end for at in ways if case.fits(at))


def test_small_timelines_are_the_best_but_for_a_few() -> None:
    """Transfers are moved one at a time, so a few stay above; by how much in all is what this holds."""
    over = []
    for seed in range(150):
        case = made_up(seed)
        found, best = searched(case.transfers, case.held, case.room, case.costs), best_of_all(case)
        assert case.wrong(found) == "" and case.fits(found.at)
        assert best <= found.end <= case.play(case.standing).end
        over.append(found.end / best - 1)
    assert np.mean(np.array(over) < CLOSE) > 0.9 and np.mean(over) < 0.01


@pytest.mark.parametrize("seed", range(40))
def test_every_way_to_move_them_is_possible(seed: int) -> None:
    """Whatever has room by steps has it by the clock, too."""
    case, rng = made_up(seed, steps=6, transfers=8), np.random.default_rng(seed)
    for _ in range(60):
        at = [int(rng.integers(t.first, t.last + 1)) for t in case.transfers]
        if case.fits(at):
            assert case.wrong(case.play(at)) == ""


def two_steps(near: int) -> Case:
    """Of 10 each: what the second one loads, and what the first one makes and main memory receives."""
    load = Transfer(Move(1, "load", "main", 4, (0, 0)), 4, 1, 0, 1, "near", False)
    store = Transfer(Move(0, "result", "main", 6, (1, 1)), 6, 1, 1, 2, "near", True)
    costs = Costs((10.0, 10.0), {"main": 1.0, "shared": 1.0})
    return Case([load, store], {"near": [0, 0], "shared": [0, 0]}, Memories(1, near, 0), costs)


def test_a_store_may_be_late_and_a_load_early() -> None:
    """What the second step loads comes during the first, and the result leaves during the second."""
    case, tight = two_steps(10), two_steps(5)  # the latter has room for the load alone
    assert case.play(case.standing).end == 30
    assert searched(case.transfers, case.held, case.room, case.costs).end == 20
    assert searched(tight.transfers, tight.held, tight.room, tight.costs).end == 26


@pytest.mark.parametrize(
    ("load", "store", "why"),
    [
        ((16.0, 20.0), (10.0, 16.0), ""),
        ((12.0, 16.0), (10.0, 16.0), "main carries two at once"),
        ((20.0, 24.0), (10.0, 16.0), "transfer 0 is done after step 1 begins"),
        ((16.0, 20.0), (5.0, 11.0), "transfer 1 begins before step 1 could"),
        ((16.0, 19.0), (10.0, 16.0), "transfer 0: 1 is not from 0 to 1, or it is cut short"),
    ],
)
def test_what_is_wrong_is_seen(load: tuple[float, float], store: tuple[float, float], why: str) -> None:
    case = two_steps(10)
    standing = case.play(case.standing)
    assert standing.transfers == ((16.0, 20.0), (10.0, 16.0)) and standing.steps == ((0.0, 10.0), (20.0, 30.0))
    assert case.wrong(standing._replace(transfers=(load, store))) == why


def test_too_small_a_memory_is_seen() -> None:
    case = two_steps(10)
    found = searched(case.transfers, case.held, case.room, case.costs)
    assert case.wrong(found) == "" and two_steps(9).wrong(found) == "near holds 10 of 9 in step 0"
