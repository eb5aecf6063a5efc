"""Programs whose products run on the CPU's matrix unit: built, saved, loaded, and refused elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import rammer
from rammer import config
from rammer.errors import ArtifactError, DeviceError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.vdevice.cpu.codegen.amx import BF16, BF16X3

ARCH = "x86-64-amx"


def layers(rows: int = 512, width: int = 256, count: int = 3) -> Graph:
    """Dense layers with ReLU; every product is worth waking the unit, also at 6 GHz."""
    rng = np.random.default_rng(5)
    builder = GraphBuilder("layers")
    t = builder.input("x", (rows, width))
    for _ in range(count):
        w = builder.constant(rng.standard_normal((width, width), dtype=np.float32) / width**0.5)
        t = builder.add("relu", builder.add("matmul", t, w))
    builder.output(t, "y")
    return builder.build()


def inputs() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(6).standard_normal((512, 256), dtype=np.float32)}


@pytest.mark.parametrize("command", ["", *(["gcc"] if shutil.which("gcc") else [])], ids=lambda c: c or "ziglang")
@pytest.mark.parametrize("policy", ["sequential", "wavefront", "round_robin", "list"])
def test_a_program_on_the_unit(policy: str, command: str, tmp_path: Path) -> None:
    graph = layers()
    with config.override(RAMMER_CC=command):  # unmeasured, the estimate chooses: the unit
        program = rammer.compile(graph, "cpu", policy=policy, arch=f"{ARCH}@here", device=2, tune_seconds=0)
        assert program.plan is not None
        assert any(f"_{BF16X3}_" in k.name for k in program.plan.kernels)
        program.save(tmp_path / "layers.rammer")
    wanted = evaluate_graph(graph, inputs())["y"]
    np.testing.assert_allclose(program.run(inputs())["y"], wanted, rtol=1e-5, atol=1e-5)
    again = rammer.load(tmp_path / "layers.rammer")
    np.testing.assert_array_equal(again.run(inputs())["y"], program.run(inputs())["y"])


@pytest.mark.parametrize("arch", [ARCH, "x86-64-avx512bf16"])
def test_operands_may_be_rounded(arch: str) -> None:
    options = {"arch": f"{arch}@here", "precision": "bf16"}
    with rammer.compile(layers(), "cpu", device=2, tune_seconds=0, **options) as program:  # type: ignore[arg-type]
        assert program.plan is not None
        assert any(f"_{BF16}_" in k.name for k in program.plan.kernels)
        wanted = evaluate_graph(layers(), inputs())["y"]
        error = np.abs(program.run(inputs())["y"] - wanted).max() / np.abs(wanted).max()
    assert 1e-4 < error < 1e-2


def test_an_infinity_is_seen() -> None:
    """Parts of an infinity are no numbers: its row becomes NaN, and no other."""
    program = rammer.compile(layers(count=1), "cpu", arch=f"{ARCH}@here", tune_seconds=0)
    x = inputs()
    x["x"][7, 3] = np.inf
    got = program.run(x)["y"]
    assert not np.isfinite(got[7]).all()
    assert np.isfinite(np.delete(got, 7, axis=0)).all()


@pytest.fixture(params=["the CPU has none", "the system grants none"])
def without_a_unit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "the CPU has none":
        monkeypatch.setenv("RAMMER_DISABLE_CPU_FEATURES", "amx*")
    else:
        monkeypatch.setattr("rammer.vdevice.cpu.host._matrix_unit_granted", lambda: False)


@pytest.mark.usefixtures("without_a_unit")
def test_a_machine_without_the_unit_compiles_programs_for_it_and_runs_none(tmp_path: Path) -> None:
    path = tmp_path / "layers.rammer"
    with config.override(RAMMER_CC=None), rammer.compile(layers(count=1), "cpu", arch=ARCH, tune_seconds=0) as program:
        program.save(path)
        for run in (program.run, program.profile):
            with pytest.raises(DeviceError, match=f"the program is for '{ARCH}': this"):
                run(inputs())
    with pytest.raises(ArtifactError, match=f"the program is for '{ARCH}': this"):
        rammer.load(path)


@pytest.mark.usefixtures("without_a_unit")
def test_an_emulated_unit_is_in_the_image_and_runs_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "layers.rammer"
    with rammer.compile(layers(count=1), "cpu", arch=f"{ARCH}@here", tune_seconds=0) as program:
        assert program.report().arch.startswith(f"{ARCH}@")
        program.save(path)
        wanted = program.run(inputs())["y"]
    with rammer.load(path) as program:
        np.testing.assert_array_equal(program.run(inputs())["y"], wanted)
