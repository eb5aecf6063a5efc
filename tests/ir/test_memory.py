"""Memory plans: legal by brute force over all accesses, compact, aligned."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from plans import plan_of, program
from rammer_testing.generate import random_graph, random_plan

from rammer.frontend.builder import GraphBuilder
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.analysis.storage import memory_owners
from rammer.ir.graph import View
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import TaskUid
from rammer.ir.semantics.evaluate import Memory
from rammer.ir.tensor import TensorType
from rammer.planner.memory import PAGE, Lifetimes, plan_memory


def accesses(plan: ExecutionPlan, owner: str) -> tuple[list[int | None], list[int | None]]:
    """(all accesses, writes) of an owner, as slots; None stands for the caller before, or after, the plan."""
    order = HappensBefore(plan.programs)
    graph = plan.graph
    touched: list[int | None] = []
    written: list[int | None] = []
    for n, op in enumerate(graph.operators):
        slots = [order.task_slots[TaskUid(n, r)] for r in range(plan.kernels[n].num_rtasks)]
        if any(graph.storage(t).root == owner for t in (*op.inputs, *op.outputs)):
            touched += slots
        if any(graph.storage(t).root == owner for t in op.outputs):
            written += slots
    return touched, written


def precedes(plan: ExecutionPlan, first: str, second: str) -> bool:
    """By the definition: every access of `first` happens before every write of `second`."""
    order, graph = HappensBefore(plan.programs), plan.graph
    roots = [graph.storage(t).root for t in graph.inputs], [graph.storage(t).root for t in graph.outputs]
    if second in roots[0] or first in roots[1]:
        return False
    touched, _ = accesses(plan, first)
    _, written = accesses(plan, second)
    return all(order.before(np.array([a]), np.array([b])).all() for a in touched for b in written)


@pytest.mark.parametrize("seed", range(6))
def test_lifetimes_by_definition(seed: int) -> None:
    plan = random_plan(random_graph(seed, 6), seed, num_veus=1 + seed % 4)
    lifetimes = Lifetimes(plan, HappensBefore(plan.programs))
    for a, first in enumerate(lifetimes.owners):
        for b, second in enumerate(lifetimes.owners):
            if a != b:
                assert bool(lifetimes.precedes(a, b)) == precedes(plan, first, second), (first, second)


@pytest.mark.parametrize("seed", range(4))
def test_owners_are_placed_in_blocks_as_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = random_plan(random_graph(seed, 12), seed, num_veus=1 + seed % 3)
    alone = [*plan.graph.inputs[:1]]
    together = plan_memory(plan, unshared=alone)
    monkeypatch.setattr("rammer.planner.memory.BLOCK", 1)
    assert plan_memory(plan, unshared=alone) == together
    lifetimes = Lifetimes(plan, HappensBefore(plan.programs))
    for n in range(1, len(lifetimes.owners)):
        one_by_one = [bool(lifetimes.precedes(n, m) | lifetimes.precedes(m, n)) for m in range(n + 1)]
        assert lifetimes.disjoint(n, n + 1).tolist() == [one_by_one]


@pytest.mark.parametrize("seed", range(10))
def test_overlap_only_in_order(seed: int) -> None:
    plan = random_plan(random_graph(seed), seed, num_veus=2)
    memory = plan_memory(plan)
    lifetimes = Lifetimes(plan, HappensBefore(plan.programs))
    end = {t: memory.offsets[t] + plan.graph.types[t].nbytes for t in memory.offsets}
    assert set(memory.offsets) == set(memory_owners(plan.graph))
    assert all(o % memory.alignment == 0 for o in memory.offsets.values())
    assert max(end.values()) <= memory.arena_bytes
    alone = set(sorted(memory.offsets)[::3])
    kept = plan_memory(plan, unshared=alone)
    ends = {t: at + plan.graph.types[t].nbytes for t, at in kept.offsets.items()}
    for first in alone & kept.offsets.keys():
        for other in kept.offsets.keys() - {first}:
            assert ends[first] <= kept.offsets[other] or ends[other] <= kept.offsets[first]
    for (a, first), (b, second) in combinations(enumerate(lifetimes.owners), 2):
        if memory.offsets[first] < end[second] and memory.offsets[second] < end[first]:
            assert lifetimes.precedes(a, b) or lifetimes.precedes(b, a)


def test_a_chain_takes_turns_in_three_pieces() -> None:
    """In lane order the tensors reuse each other's memory, the input's too; without order none does."""
    lane = [f"{n}.0" for n in range(30)]
    plan = plan_of((1,) * 30, program(lane))
    assert plan_memory(plan).arena_bytes <= 3 * 64
    apart = plan_of((1,) * 30, program(lane[::2], lane[1::2]))
    assert plan_memory(apart).arena_bytes == 30 * 64  # but t3 may follow t0, on one lane


def test_views_and_constants_own_nothing() -> None:
    plan = plan_of((1, 1), program(["0.0", "1.0"]))
    graph = replace(plan.graph, views={"t1": View("whole", 4)}, types={**plan.graph.types, "whole": TensorType((12,))})
    assert memory_owners(graph) == ["t0", "t2", "whole"]
    graph = replace(plan.graph, inputs=(), constants={"t0": np.zeros(8, np.float32)})
    assert memory_owners(graph) == ["t2", "t1"]


def test_sizes_of_whole_pages_are_set_apart() -> None:
    plan = plan_of((1,), program(["0.0"]))
    big = {t: TensorType((PAGE,)) for t in plan.graph.types}
    memory = plan_memory(replace(plan, graph=replace(plan.graph, types=big)))
    assert sorted(memory.offsets.values()) == [0, 4 * PAGE + 64]


def test_threads_share_the_array_of_a_tensor() -> None:
    """vEUs that are threads write parts of a tensor that none has touched before."""
    builder = GraphBuilder("one")
    x = builder.input("x", (64,))
    builder.output(builder.add("relu", x), "y")
    graph = builder.build()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(300):
                memory, start = Memory(graph), threading.Barrier(4)

                def touch(memory: Memory = memory, start: threading.Barrier = start) -> int:
                    start.wait()
                    return memory.physical("y").ctypes.data

                assert len({f.result() for f in [pool.submit(touch) for _ in range(4)]}) == 1
    finally:
        sys.setswitchinterval(interval)
