"""Results in place of their operands are right in any interleaving, and each fault of them is caught."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from cpus import CPUS, runnable
from layers import network
from onnx import helper
from rammer_testing.generate import random_graph, random_inputs, random_plan

import rammer
from rammer.errors import VerificationError
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.expr import Call, Load
from rammer.ir.graph import Graph
from rammer.ir.index import Index, var
from rammer.ir.plan import ExecutionPlan, MemoryPlan
from rammer.ir.program import BarrierRTask, RProgram
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array
from rammer.ir.tile import Buffer, For, Kind, Scope, Stmt, Store, TileProgram
from rammer.ir.verify import verify_plan
from rammer.kernels import candidates
from rammer.planner import in_place
from rammer.planner.in_place import in_place_pairs, replaced
from rammer.planner.memory import plan_memory
from rammer.vdevice.interpreter import run_plan

node = helper.make_node
SEEDS = range(24)


@cache
def squeezed(channels: int = 40, size: int = 19) -> Graph:
    """Channels weighed by what is in all of them, and a sum around two convolutions; nothing is a whole vector."""
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        node("GlobalAveragePool", ["a"], ["mean"]),
        node("Conv", ["mean", "w1"], ["gate"]),
        node("Mul", ["a", "gate"], ["b"]),
        node("Conv", ["b", "w2"], ["c"], pads=[1] * 4),
        node("Relu", ["c"], ["d"]),
        node("Conv", ["d", "w3"], ["e"], pads=[1] * 4),
        node("Add", ["b", "e"], ["f"]),
        node("Conv", ["f", "w4"], ["y"], pads=[1] * 4),
    ]
    square = (channels, channels, 3, 3)
    return network(
        (1, 24, size, size),
        nodes,
        w0=(channels, 24, 3, 3),
        w1=(channels, channels, 1, 1),
        w2=square,
        w3=square,
        w4=square,
    )


def memory_of(plan: ExecutionPlan) -> MemoryPlan:
    assert plan.memory is not None
    return plan.memory


def taken(plan: ExecutionPlan) -> list[tuple[str, str]]:
    """(operand, result) where the result lies in the operand's place."""
    offsets = memory_of(plan).offsets
    found = in_place_pairs(plan, HappensBefore(plan.programs))
    return [(a, b) for a, b in found if a in offsets and offsets[a] == offsets.get(b)]


@pytest.fixture(scope="module")
def compiled() -> Iterator[rammer.Program]:
    with closing(
        rammer.compile(squeezed(), "cpu", device=2, arch=runnable("x86-64-avx512"), tune_seconds=0)
    ) as program:
        yield program


def given(graph: Graph) -> dict[str, Array]:
    return {"x": np.random.default_rng(1).standard_normal(graph.types["x"].shape, np.float32)}


def test_gates_and_sums_take_the_place_of_what_they_change(compiled: rammer.Program) -> None:
    """The weighed channels lie where the channels lay, and the sum where its first term lay; the arena is smaller."""
    plan = compiled.plan
    found = taken(plan)
    assert len(found) == 2 and found[0][1] == found[1][0], found
    spec = replace(plan.spec, direct_bytes=None)  # ports of the caller's share their bytes with nothing
    inside, apart = (plan_memory(replace(plan, memory=None, spec=replace(spec, in_place=p))) for p in (True, False))
    assert inside.arena_bytes < apart.arena_bytes
    (y,) = compiled.run(given(squeezed())).values()
    (wanted,) = evaluate_graph(squeezed(), given(squeezed())).values()
    np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=1e-4)


def test_devices_that_do_not_say_so_keep_results_apart(compiled: rammer.Program) -> None:
    plan = compiled.plan
    apart = replace(plan, memory=None, spec=replace(plan.spec, in_place=False))
    assert not list(in_place_pairs(apart, HappensBefore(plan.programs)))
    with pytest.raises(VerificationError, match=r"R107.*share arena bytes"):
        verify_plan(replace(apart, memory=plan.memory))


def shifted(plan: ExecutionPlan) -> Iterator[ExecutionPlan]:
    """A result a line behind the operand whose place it had."""
    memory = memory_of(plan)
    for _, result in taken(plan):
        offsets = {**memory.offsets, result: memory.offsets[result] + memory.alignment}
        yield replace(plan, memory=replace(memory, offsets=offsets, arena_bytes=memory.arena_bytes + memory.alignment))


def without_one_wait(plan: ExecutionPlan) -> Iterator[ExecutionPlan]:
    for p, program in enumerate(plan.programs):
        for v, lane in enumerate(program.lanes):
            for s, slot in enumerate(lane):
                for wait in slot.waits if isinstance(slot, BarrierRTask) else ():
                    fewer = BarrierRTask(tuple(w for w in slot.waits if w != wait))
                    lanes = [*program.lanes]
                    lanes[v] = (*lane[:s], fewer, *lane[s + 1 :])
                    yield replace(plan, programs=(*plan.programs[:p], RProgram(tuple(lanes)), *plan.programs[p + 1 :]))


def test_a_result_beside_the_place_is_caught(compiled: rammer.Program) -> None:
    mutants = list(shifted(compiled.plan))
    assert mutants
    for mutant in mutants:
        with pytest.raises(VerificationError, match="R107"):
            verify_plan(mutant)


def test_two_results_in_one_place_are_caught(compiled: rammer.Program) -> None:
    """Who takes the place of a tensor that is read again later breaks R107, whatever its own operator does."""
    plan = compiled.plan
    memory, graph = memory_of(plan), plan.graph
    (operand, _), (first, _) = taken(plan)
    nbytes = graph.types[first].nbytes
    readers = [op.outputs[0] for op in graph.operators if first in op.inputs]
    others = [
        t for t in readers if graph.types[t].nbytes == nbytes and memory.offsets.get(t) != memory.offsets[operand]
    ]
    assert others
    for other in others:
        moved = replace(memory, offsets={**memory.offsets, other: memory.offsets[operand]})
        with pytest.raises(VerificationError, match="R107"):
            verify_plan(replace(plan, memory=moved))


@cache
def made(seed: int) -> ExecutionPlan:
    spec = replace(CPUS[seed % 3].spec, num_veus=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_place, "WORTH_BYTES", 1)
        return random_plan(random_graph(seed, placed=bool(seed % 2)), seed, 3, spec=spec, candidates=candidates)


def test_random_plans_use_it() -> None:
    assert sum(bool(_all_taken(made(seed))) for seed in SEEDS) >= len(SEEDS) / 4


def _all_taken(plan: ExecutionPlan) -> list[tuple[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_place, "WORTH_BYTES", 1)
        return taken(plan)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_plans_mean_the_same_in_any_interleaving(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "WORTH_BYTES", 1)
    plan = made(seed)
    verify_plan(plan)
    inputs = random_inputs(plan.graph, seed)
    wanted = evaluate_graph(plan.graph, inputs)
    for interleaving in range(6):
        found = run_plan(plan, inputs, seed=interleaving)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("seed", range(0, 24, 3))
def test_any_missing_wait_is_caught(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "WORTH_BYTES", 1)
    plan = made(seed)
    for mutant in without_one_wait(plan):
        try:
            verify_plan(mutant)
        except VerificationError as error:
            assert error.rule in ("R104", "R107")
        else:  # lane order or another wait says the same
            for interleaving in range(10):
                run_plan(mutant, random_inputs(plan.graph, seed), seed=interleaving)


def _program(*body: Stmt, outputs: int = 1, size: int = 8) -> TileProgram:
    names = [*("out", "more")[:outputs], "a", "b"]
    buffers = tuple(Buffer(n, 4 if n == "b" else size, Scope.ARGUMENT) for n in names)
    return TileProgram("p", buffers, outputs, (For("i", 0, 8, Kind.SERIAL, body),), (), 1, ())


HERE, NEXT = var("i"), var("i") + Index(1)
PROGRAMS = {
    "where it is stored": (_program(Store("out", HERE, Call("relu", (Load("a", (HERE,)),)))), {"a"}),
    "twice, where it is stored": (
        _program(Store("out", HERE, Call("mul", (Load("a", (HERE,)), Load("a", (HERE,)))))),
        {"a"},
    ),
    "beside": (_program(Store("out", HERE, Load("a", (NEXT,)))), set()),
    "here and beside": (_program(Store("out", HERE, Call("add", (Load("a", (HERE,)), Load("a", (NEXT,)))))), set()),
    "of another size": (_program(Store("out", HERE, Call("add", (Load("a", (HERE,)), Load("b", (HERE,)))))), {"a"}),
    "summed in the result": (
        _program(Store("out", HERE, Call("add", (Load("out", (HERE,)), Load("a", (HERE,)))))),
        set(),
    ),
    "for two results": (
        _program(Store("out", HERE, Load("a", (HERE,))), Store("more", HERE, Load("a", (HERE,))), outputs=2),
        set(),
    ),
    "into scratch first": (
        _program(Store("kept", HERE, Load("a", (HERE,))), Store("out", HERE, Load("kept", (HERE,)))),
        set(),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_result_may_replace(name: str) -> None:
    program, wanted = PROGRAMS[name]
    assert replaced(program) - {"b"} == wanted
