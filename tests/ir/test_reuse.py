"""R107: bytes are shared in turns. Decided by happens-before alone, whatever the planner of memory believes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from types import ModuleType

import numpy as np
import pytest
from rammer_testing.generate import random_graph, random_plan

from rammer.errors import VerificationError
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import TaskUid
from rammer.ir.verify import reuse, verify_plan
from rammer.planner import in_place, memory, pieces, scratch_allocation
from rammer.planner.memory import Lifetimes, plan_memory


def _turns(plan: ExecutionPlan, first: str, second: str) -> bool:
    """By the definition: every access of `first` happens before every write of `second`."""
    graph, order = plan.graph, HappensBefore(plan.programs)

    def slots(owner: str, writing: bool) -> list[int]:
        return [
            order.task_slots[TaskUid(n, r)]
            for n, op in enumerate(graph.operators)
            if any(graph.storage(t).root == owner for t in (*op.outputs, *(() if writing else op.inputs)))
            for r in range(plan.kernels[n].num_rtasks)
        ]

    if second in {graph.storage(t).root for t in graph.inputs} or first in {
        graph.storage(t).root for t in graph.outputs
    }:
        return False
    pairs = [(a, b) for a in slots(first, writing=False) for b in slots(second, writing=True)]
    return bool(order.before(*np.array(pairs, np.int64).reshape(-1, 2).T).all())


def _says(plan: ExecutionPlan) -> bool:
    try:
        verify_plan(plan)
    except VerificationError as error:
        assert error.rule == "R107"
        return False
    return True


@pytest.mark.parametrize("seed", range(8))
def test_by_the_definition_wherever_owners_lie(seed: int) -> None:
    """Random places, most of which are wrong: neighbours in the order of writes decide as all pairs do."""
    plan = random_plan(random_graph(seed, 7), seed, num_veus=1 + seed % 4)
    placed, rng = plan_memory(plan), np.random.default_rng(seed)
    owners = list(placed.offsets)
    told = {pair: _turns(plan, *pair) or _turns(plan, *reversed(pair)) for pair in combinations(owners, 2)}
    size = {t: plan.graph.types[t].nbytes for t in owners}
    answers = {_says(replace(plan, memory=placed))}
    for spread in (2, 8, 32, 128):
        for _ in range(12):
            kept = rng.random() < 0.5  # the planner's places, one of them moved
            at = {t: placed.offsets[t] if kept else 64 * int(rng.integers(spread)) for t in owners}
            at[owners[int(rng.integers(len(owners)))]] = 64 * int(rng.integers(spread))
            arena = max(at[t] + size[t] for t in owners)
            meets = [p for p in told if at[p[0]] < at[p[1]] + size[p[1]] and at[p[1]] < at[p[0]] + size[p[0]]]
            right = all(told[pair] for pair in meets)
            assert _says(replace(plan, memory=replace(placed, offsets=at, arena_bytes=arena))) == right
            answers.add(right)
    assert answers == {True, False}


def test_a_planner_that_errs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two inputs at byte 0, believed by the planner: the proof asks somebody else."""

    def always(self: Lifetimes, first: object, second: object) -> object:
        return np.ones(np.broadcast(first, second).shape, bool)

    plan = random_plan(random_graph(3, 8), 3, num_veus=2)
    verify_plan(replace(plan, memory=plan_memory(plan)))
    monkeypatch.setattr(Lifetimes, "precedes", always)
    with pytest.raises(VerificationError, match="R107"):
        verify_plan(replace(plan, memory=plan_memory(plan)))


@pytest.mark.parametrize("planner", [memory, scratch_allocation, pieces, in_place])
def test_no_code_of_the_planner(planner: ModuleType) -> None:
    own = {name for name, value in vars(planner).items() if getattr(value, "__module__", "") == planner.__name__}
    assert own and not own & vars(reuse).keys()
