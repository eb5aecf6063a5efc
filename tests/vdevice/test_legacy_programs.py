"""Imported kernels in models: chosen by the scheduler, right under the emulator, compiled for every GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from legacy_kernels import matmul_data, record, reverse_data, softmax_data, tanh_data
from onnx import TensorProto, helper
from rammer_legacy_kernels import store, verify
from simt_races import find_races
from test_cuda_build import needs_nvrtc
from test_simt_races import why_not

import rammer
from rammer.ir.kernel import ForeignSource
from rammer.ir.tensor import Array
from rammer.runtime.program import Program
from rammer.vdevice.cuda.build import compile_cubin
from rammer.vdevice.rocm.build import compile_code_object
from rammer.vdevice.rocm.prelude import hip
from rammer.vdevice.simt.codegen.image import make_image, make_program
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable

KINDS = {"matmul": "imported_matmul16", "softmax": "imported_softmax40", "tanh": "imported_tanh3"}


@pytest.fixture(autouse=True, scope="module")
def _kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store with four verified kernels, one of them for no operator of the model."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RAMMER_KERNELS_DIR", str(tmp_path_factory.mktemp("kernels") / "store"))
    for data in (matmul_data(), softmax_data(), tanh_data(), reverse_data()):
        one = record(data)
        store.add(one, verify.check(one))
    yield
    patch.undo()


def model() -> onnx.ModelProto:
    """y = softmax(x w), and t = tanh(a): kernels of 256, 40 and 48 threads on the same vEUs."""
    w = np.random.default_rng(0).standard_normal((50, 24)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"], axis=1),
        helper.make_node("Tanh", ["a"], ["t"]),
    ]

    def value(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    weights = [helper.make_tensor("w", TensorProto.FLOAT, w.shape, w.ravel())]
    graph = helper.make_graph(
        nodes, "g", [value("x", 40, 50), value("a", 4, 5, 32)], [value("y", 40, 24), value("t", 4, 5, 32)], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def inputs(seed: int = 1) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {n: random.standard_normal(s).astype(np.float32) for n, s in (("x", (40, 50)), ("a", (4, 5, 32)))}


def check(program: Program, seed: int = 1) -> None:
    given, made = inputs(seed), model()
    w = np.array(made.graph.initializer[0].float_data, np.float32).reshape(50, 24)
    m = given["x"].astype(np.float64) @ w
    e = np.exp(m - m.max(axis=1, keepdims=True))
    found = program.run(given)
    np.testing.assert_allclose(found["y"], e / e.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["t"], np.tanh(given["a"]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["sequential", "wavefront"])
@pytest.mark.parametrize(
    ("target", "arch"), [("cuda", "sm_90"), ("rocm", "gfx906"), ("rocm", "gfx1100")], ids=["cuda", "wave64", "wave32"]
)
def test_a_model_of_imported_kernels(target: str, arch: str, policy: str) -> None:
    with rammer.compile(model(), target, arch=arch, device="emulator:3", policy=policy, tune_seconds=0) as program:
        report = program.report()
        assert {o.kind: o.rkernel for o in report.operators} == KINDS
        assert "imported rKernels: imported_matmul16, imported_softmax40, imported_tanh3" in report.notes
        executable = program.executable
        assert isinstance(executable, EmulatorExecutable) and executable.streams.header["threads"] == 256
        executable.poison = True
        for executable.deterministic, executable.seed in ((True, 0), (True, 3), (False, 1)):
            check(program, executable.seed)


def test_kernels_are_for_their_operators_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other shapes, an unverified kernel, an empty store: none is used."""
    one = record(matmul_data())
    monkeypatch.setenv("RAMMER_KERNELS_DIR", str(tmp_path / "other"))
    store.add(one)
    store.add(record(softmax_data(41)), verify.check(record(softmax_data(41))))
    with rammer.compile(model(), "cuda", device="emulator:3", tune_seconds=0) as program:
        assert not any("imported" in o.rkernel for o in program.report().operators)
        assert not any("imported" in n for n in program.report().notes)


def test_the_syncs_of_a_part_of_a_veu_race_with_nobody() -> None:
    if reason := why_not():
        pytest.skip(reason)
    with rammer.compile(model(), "cuda", device="emulator:2", tune_seconds=0) as program:
        assert find_races(make_image(program.plan, make_program(program.plan, CUDA), {}), inputs()) == ""


def test_a_saved_program_needs_no_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = str(tmp_path / "p.rammer")
    with rammer.compile(model(), "cuda", device="emulator:2", tune_seconds=0) as program:
        program.save(path)
    monkeypatch.setenv("RAMMER_KERNELS_DIR", str(tmp_path / "none"))
    with rammer.load(path, device="emulator") as again:
        check(again)


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_cubins(arch: str) -> None:
    with rammer.compile(model(), "cuda", arch=arch, device="emulator:3", tune_seconds=0) as program:
        text = make_program(program.plan, CUDA).text
        assert any(isinstance(k.body, ForeignSource) for k in program.plan.kernels)
    cubin = compile_cubin(text, arch)
    assert cubin.data[:4] == b"\x7fELF" and cubin.resources.spill_bytes == 0


@pytest.mark.parametrize("arch", ["gfx906", "gfx90a", "gfx942", "gfx1100"])
def test_code_objects(arch: str) -> None:
    with rammer.compile(model(), "rocm", arch=arch, device="emulator:3", tune_seconds=0) as program:
        text = make_program(program.plan, hip(program.plan.spec.subgroup_size)).text
    assert compile_code_object(text, arch).resources.spill_bytes == 0
