"""The paper's models as programs for GPUs: right on the host under every policy, and machine code without spills."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rammer
from rammer.errors import ToolchainError
from rammer.scheduler.plugin import rammer_policies
from rammer.vdevice.cuda.build import nvrtc_version
from rammer.vdevice.rocm.spec import FAMILIES
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.runtime.streams import RESOURCES

pytest.importorskip("torch", reason="the models are torch modules: pip install '.[bench]'")

from benchmarks.models.build import build
from benchmarks.models.store import BuiltModel, Scale

MODELS = (
    *("resnext29", "nasnet_cifar", "alexnet", "deepspeech2_lstm", "deepspeech2_unrolled"),
    *("lstm_tc_lstm", "lstm_tc_unrolled", "seq2seq_lstm", "seq2seq_unrolled"),
)
ARCHS = [("cuda", arch) for arch in ("sm_80", "sm_90", "sm_120")] + [("rocm", arch) for arch in FAMILIES]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def check(model: BuiltModel, target: str, arch: str, veus: int, policy: str) -> None:
    """Outputs are torch's; the arena is full of NaN before the run."""
    options = {"arch": arch, "device": f"emulator:{veus}", "policy": policy, "tune_seconds": 0}
    with rammer.compile(model.path, target, **options) as program:
        assert isinstance(program.executable, EmulatorExecutable)
        program.executable.poison = True
        for name, found in program.run(model.inputs).items():
            wanted = model.outputs[name]
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max(), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("policy", rammer_policies())
@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90"), ("rocm", "gfx90a")])
@pytest.mark.parametrize("name", MODELS)
def test_a_reduced_model(name: str, target: str, arch: str, policy: str, cache: Path) -> None:
    check(build(name, scale="small", cache=cache), target, arch, 5, policy)


@pytest.mark.slow
def test_lstm_tc_at_full_size(cache: Path) -> None:
    check(build("lstm_tc_lstm", cache=cache), "cuda", "sm_90", 8, "wavefront")


@pytest.mark.slow
@pytest.mark.parametrize(("target", "arch"), ARCHS)
@pytest.mark.parametrize("name", MODELS)
def test_a_reduced_model_compiles_without_spills(name: str, target: str, arch: str, cache: Path) -> None:
    check_build(name, "small", target, arch, cache)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90"), ("rocm", "gfx906")])
@pytest.mark.parametrize("name", ["lstm_tc_lstm", "seq2seq_lstm", "nasnet_cifar"])
def test_a_full_model_compiles_without_spills(name: str, target: str, arch: str, cache: Path) -> None:
    """Its code stays small, however many rTasks there are."""
    assert check_build(name, "full", target, arch, cache)["code_bytes"] < 1 << 20


def check_build(name: str, scale: Scale, target: str, arch: str, cache: Path) -> dict[str, int]:
    """What the machine code needs, for all vEUs of a GPU that need not be here."""
    if target == "cuda":
        try:
            nvrtc_version()
        except ToolchainError as error:
            pytest.skip(str(error))
    with rammer.compile(build(name, scale=scale, cache=cache).path, target, arch=arch, tune_seconds=0) as program:
        resources: dict[str, int] = json.loads(program.image.files[RESOURCES])
    unwanted = {what: n for what, n in resources.items() if n and ("spill" in what or what == "stack_bytes")}
    assert not unwanted
    return resources
