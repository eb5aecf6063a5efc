"""The interpreter: deadlocks and races are reported by slot; memory is what the plan says; it is a vDevice."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from rammer_testing.generate import random_graph, random_inputs, random_kernel, random_plan

from rammer.errors import DeviceError, VerificationError
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, TaskUid
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.planner.memory import plan_memory
from rammer.vdevice import interpreter
from rammer.vdevice.interpreter import InterpreterVDevice, RaceError, run_plan
from rammer.vdevice.interpreter_plugin import rammer_vdevices


def plan(seed: int = 7, num_veus: int = 3) -> ExecutionPlan:
    return random_plan(random_graph(seed), seed, num_veus)


def test_deadlock_names_the_waiting_slots() -> None:
    lanes = (BarrierRTask((Position(1, 0),)),), (BarrierRTask((Position(0, 0),)),), ()
    broken = replace(plan(), programs=(RProgram(lanes),))
    with pytest.raises(VerificationError, match=r"prog\[0\]\[0\], prog\[1\]\[0\]"):
        run_plan(broken, random_inputs(broken.graph, 0), seed=0, check_races=False)


def test_shared_bytes_race_and_show_as_wrong_values() -> None:
    """All tensors in one place: a race by the watch, and garbage without it."""
    good = plan()
    assert good.memory is not None
    inputs = random_inputs(good.graph, 1)
    wanted = evaluate_graph(good.graph, inputs)
    bad = replace(good, memory=replace(good.memory, offsets=dict.fromkeys(good.memory.offsets, 0)))
    with pytest.raises(RaceError) as caught:
        for seed in range(5):
            run_plan(bad, inputs, seed=seed)
    assert caught.value.rule in ("R104", "R107")
    found = run_plan(bad, inputs, seed=0, check_races=False)
    assert any(not np.allclose(found[t], wanted[t]) for t in wanted)


def test_an_rtask_sees_only_what_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    """If dependencies forgot an element, the interpreter would compute NaN."""
    whole = plan(5, 1)
    real = interpreter.reads
    monkeypatch.setattr(interpreter, "reads", lambda kernel, position, rtask: real(kernel, position, rtask)[:0])
    found = run_plan(whole, random_inputs(whole.graph, 0))
    assert any(np.isnan(value).any() for value in found.values())


def test_same_seed_same_interleaving() -> None:
    one = plan()
    inputs = random_inputs(one.graph, 2)
    first, second = (run_plan(one, inputs, seed=4) for _ in range(2))
    assert all(np.array_equal(first[t], second[t], equal_nan=True) for t in first)


def test_as_a_vdevice() -> None:
    (entry,) = rammer_vdevices()
    assert entry.name == "interpreter"
    assert entry.probe().ok
    device = entry.open(arch=None, device="3")
    assert device.spec.num_veus == 3
    one = replace(plan(), spec=device.spec)
    executable = device.load(device.build(one))
    inputs = random_inputs(one.graph, 3)
    for name, value in evaluate_graph(one.graph, inputs).items():
        np.testing.assert_allclose(executable.run(inputs)[name], value, rtol=1e-4, atol=1e-5)
    executable.close()
    for bad in ("0", "x", "²"):
        with pytest.raises(DeviceError, match="no device"):
            InterpreterVDevice(device=bad)


def test_one_veu_runs_in_order() -> None:
    graph = random_graph(11)
    kernels = tuple(random_kernel(op.operation, Random(n)) for n, op in enumerate(graph.operators))
    lane = tuple(RTask(TaskUid(n, r)) for n, k in enumerate(kernels) for r in range(k.num_rtasks))
    one = ExecutionPlan(graph, InterpreterVDevice(device=1).spec, kernels, (RProgram((lane,)),))
    one = replace(one, memory=plan_memory(one))
    inputs = random_inputs(graph, 5)
    for name, value in evaluate_graph(graph, inputs).items():
        np.testing.assert_allclose(run_plan(one, inputs)[name], value, rtol=1e-4, atol=1e-5)
