"""Programs whose products run on the CPU's matrix unit: built, saved, loaded, and refused elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import rammer
from rammer import config
from rammer.errors import ArtifactError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.evaluate import evaluate_graph
from rammer.ir.graph import Graph
from rammer.ir.tensor import PARTS
from rammer.vdevice.cpu.spec import ARCHES, choose_arch, host

ARCH = "x86-64-amx"
HERE = host()
here = pytest.mark.skipif(
    not HERE.runs(ARCHES[ARCH]), reason="this machine has no AMX, or the system does not grant its registers"
)


def layers(rows: int = 256, width: int = 256, count: int = 3) -> Graph:
    """Dense layers with ReLU; every product is worth waking the unit."""
    rng = np.random.default_rng(5)
    builder = GraphBuilder("layers")
    t = builder.input("x", (rows, width))
    for _ in range(count):
        w = builder.constant(rng.standard_normal((width, width), dtype=np.float32) / width**0.5)
        t = builder.add("relu", builder.add("matmul", t, w))
    builder.output(t, "y")
    return builder.build()


def inputs() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(6).standard_normal((256, 256), dtype=np.float32)}


@here
@pytest.mark.parametrize("command", ["", *(["gcc"] if shutil.which("gcc") else [])], ids=lambda c: c or "ziglang")
@pytest.mark.parametrize("policy", ["sequential", "wavefront", "round_robin", "list"])
def test_a_program_on_the_unit(policy: str, command: str, tmp_path: Path) -> None:
    graph = layers()
    with config.override(RAMMER_CC=command):  # unmeasured, the estimate chooses: the unit
        program = rammer.compile(graph, "cpu", policy=policy, arch=ARCH, device=2, tune_seconds=0)
        assert program.plan is not None
        assert any(f"bf16x{PARTS}" in k.name for k in program.plan.kernels)
        program.save(tmp_path / "layers.rammer")
    wanted = evaluate_graph(graph, inputs())["y"]
    np.testing.assert_allclose(program.run(inputs())["y"], wanted, rtol=1e-5, atol=1e-5)
    again = rammer.load_program(tmp_path / "layers.rammer")
    np.testing.assert_array_equal(again.run(inputs())["y"], program.run(inputs())["y"])


@here
def test_an_infinity_is_seen() -> None:
    """Parts of an infinity are no numbers: its row becomes NaN, and no other."""
    program = rammer.compile(layers(count=1), "cpu", arch=ARCH, tune_seconds=0)
    x = inputs()
    x["x"][7, 3] = np.inf
    got = program.run(x)["y"]
    assert not np.isfinite(got[7]).all()
    assert np.isfinite(np.delete(got, 7, axis=0)).all()


def test_a_machine_without_the_unit_refuses_its_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if HERE.machine != "x86_64":
        pytest.skip("the compiler would need to build for another machine")
    path = tmp_path / "layers.rammer"
    rammer.compile(layers(count=1), "cpu", arch=ARCH, tune_seconds=0).save(path)
    if HERE.runs(ARCHES[ARCH]):
        monkeypatch.setattr("rammer.vdevice.cpu.spec._matrix_unit_granted", lambda: False)
    with pytest.raises(ArtifactError, match="amx"):
        rammer.load_program(path)


@here
def test_the_unit_is_chosen_unless_a_flag_or_the_system_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_arch(None, HERE).name == ARCH
    with config.override(RAMMER_MATRIX_UNIT="0"):
        assert choose_arch(None, HERE).name == "x86-64-avx512"
        assert choose_arch(ARCH, HERE).name == ARCH
    monkeypatch.setattr("rammer.vdevice.cpu.spec._matrix_unit_granted", lambda: False)
    assert choose_arch(None, host()).name == "x86-64-avx512"
