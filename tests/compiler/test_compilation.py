"""A compilation as stages: what each gives, stopping after one, going on from one, in another process too."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rammer
from rammer import CompileOptions, config
from rammer.compiler import Compilation, Optimized, Planned
from rammer.compiler.compilation import STAGES
from rammer.errors import InputError, VerificationError
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer_viz.demo import lstm_stack

HOW = CompileOptions(target="cpu", device=2, policy="wavefront", tune_seconds=0)
MODEL = lstm_stack(2, 7, 96)


def computed(compilation: Compilation) -> list[str]:
    return [name for name in STAGES.values() if name in vars(compilation)]


def test_each_stage_computes_those_before_it_and_no_others() -> None:
    names = list(STAGES.values())
    for count, name in enumerate(names, 1):
        with Compilation.of(MODEL, HOW) as compilation:
            stage = getattr(compilation, name)
            assert computed(compilation) == names[:count]
            assert type(stage) in STAGES
            if count > 1:
                assert getattr(stage, names[count - 2]) is getattr(compilation, names[count - 2])
            lines = str(compilation).splitlines()
            assert len(lines) == count and lines[-1] == str(stage) and len(str(stage)) < 400
            with pytest.raises(dataclasses.FrozenInstanceError):
                stage.notes = ()


def test_what_the_stages_show() -> None:
    with Compilation.of(MODEL, HOW) as compilation:
        built, planned, proven = compilation.built, compilation.planned, compilation.proven
        assert planned.plan.memory is None and planned.plan.prices == {}
        assert proven.plan.memory and set(proven.plan.rtask_us) == set(proven.plan.kernels)
        assert proven.plan.programs == planned.plan.programs and proven.evidence
        assert built.report.estimated_us == proven.timeline.total_us and built.image.plan is proven.plan
        assert set(planned.kernels) == set(compilation.candidates.kernels)
        with compilation.program() as program:
            assert program.report() is built.report and program.plan is proven.plan


def saved(program: rammer.Program, path: Path) -> bytes:
    program.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("name", ["optimized", "candidates", "profiled", "planned"])
def test_another_process_goes_on_from_a_stage(name: str, tmp_path: Path) -> None:
    """The program is the same, bit by bit."""
    with Compilation.of(MODEL, HOW) as compilation:
        (tmp_path / "stage").write_bytes(pickle.dumps(getattr(compilation, name)))
        with compilation.program() as program:
            wanted = saved(program, tmp_path / "wanted")
    code = f"""
import pickle
from pathlib import Path
from rammer import Compilation, CompileOptions, PluginRegistry
folder = Path({str(tmp_path)!r})
stage = pickle.loads((folder / "stage").read_bytes())
first = stage
while not hasattr(first, "model"):
    first = vars(first)[next(n for n in ("profiled", "candidates", "optimized") if n in vars(first))]
how = CompileOptions(target="cpu", device=2, policy="wavefront", tune_seconds=0)
policy, device = how.open(PluginRegistry())
with Compilation(first.model, device, policy, how).enter(stage) as compilation:
    assert compilation.{name} is stage
    compilation.program().save(folder / "found")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "found").read_bytes() == wanted


def test_a_stage_that_is_entered_is_proven() -> None:
    """A graph with an operator less, and a plan that forgets an rTask, are refused."""
    with Compilation.of(MODEL, HOW) as compilation:
        optimized, planned = compilation.optimized, compilation.planned
        graph = optimized.graph
        with pytest.raises(VerificationError):
            compilation.enter(replace(optimized, graph=replace(graph, operators=graph.operators[1:])))
        (program, *rest) = planned.plan.programs
        lanes = tuple(lane[:-1] for lane in program.lanes)
        plan = replace(planned.plan, programs=(replace(program, lanes=lanes), *rest))
        with pytest.raises(VerificationError):
            _ = compilation.enter(replace(planned, plan=plan)).proven


def test_a_plan_of_another_policy_can_be_entered() -> None:
    """Stages of one compilation go on in another one: here by a plan with everything in one lane."""
    graph = rammer.from_onnx(MODEL)
    with Compilation.of(graph, HOW.but(policy="sequential")) as other, Compilation.of(graph, HOW) as compilation:
        compilation.enter(other.planned)
        with compilation.program() as program:
            assert program.plan.policy == "sequential"
            inputs = {p.name: np.random.default_rng(1).standard_normal(p.shape, np.float32) for p in program.inputs}
            wanted = evaluate_graph(graph, inputs)
            for name, found in program.run(inputs).items():
                np.testing.assert_allclose(found, wanted[name], rtol=1e-4, atol=1e-5)
    assert isinstance(other.planned, Planned) and isinstance(compilation.optimized, Optimized)


def test_a_device_is_closed_unless_a_program_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []
    from rammer.vdevice.cpu.device import CpuVDevice

    monkeypatch.setattr(CpuVDevice, "close", lambda self: closed.append(self))
    with Compilation.of(MODEL, HOW) as compilation:
        _ = compilation.planned
    assert closed == [compilation.device]
    closed.clear()
    with Compilation.of(MODEL, HOW) as compilation:
        program = compilation.program()
    assert not closed
    program.close()
    assert closed == [compilation.device]
    with Compilation.of(MODEL, HOW) as compilation:
        executable = compilation.built.executable
    with pytest.raises(InputError, match="closed"):  # no program has it
        executable.run({})
    with pytest.raises(ZeroDivisionError), Compilation.of(MODEL, HOW) as compilation:
        raise ZeroDivisionError
    assert closed[-1] is compilation.device


def test_the_environment_of_a_compilation_is_that_of_its_beginning() -> None:
    with config.override(RAMMER_VERIFY="0"), Compilation.of(MODEL, HOW) as compilation:
        assert compilation.proven.evidence is None and "not proven" in str(compilation.proven)
        assert all(k.unproven for kernels in compilation.candidates.kernels.values() for k in kernels)
