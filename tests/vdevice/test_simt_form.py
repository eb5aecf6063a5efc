"""Programs as a branch per vEU, the paper's Figure 9, from `compile(form="branches")`: small ones only."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rammer
from rammer.demo import lstm_stack
from rammer.errors import DeviceError, ToolchainError
from rammer.vdevice.cuda.build import nvrtc_version
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.image import MOST_BRANCHED, RESOURCES, SOURCE

MODEL = lstm_stack(2, 3, 48)
X = np.random.default_rng(0).standard_normal((3, 1, 48)).astype(np.float32)


@pytest.mark.parametrize("target", ["cuda", "rocm"])
@pytest.mark.parametrize("policy", ["wavefront", "list"])
def test_both_forms_compute_the_same(target: str, policy: str, tmp_path: object) -> None:
    options = {"device": "emulator:3", "policy": policy, "tune_seconds": 0}
    with rammer.compile(MODEL, target, **options) as table:
        wanted = table(X)
    with rammer.compile(MODEL, target, form="branches", **options) as branches:
        text = branches.image.files[SOURCE].decode()
        assert "veu == 2) {" in text and "switch (fn)" not in text and "ring" not in text
        assert isinstance(branches.executable, EmulatorExecutable)
        branches.executable.poison = True
        for branches.executable.seed in (0, 1):
            np.testing.assert_array_equal(branches(X), wanted)
        branches.save(f"{tmp_path}/p.rammer")
    with rammer.load_program(f"{tmp_path}/p.rammer", device="emulator") as again:
        np.testing.assert_array_equal(again(X), wanted)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_branches_compile_without_spills(arch: str) -> None:
    try:
        nvrtc_version()
    except ToolchainError as error:
        pytest.skip(str(error))
    with rammer.compile(MODEL, "cuda", arch=arch, form="branches", tune_seconds=0) as program:
        resources = json.loads(program.image.files[RESOURCES])
        assert resources["spill_bytes"] == 0 and resources["code_bytes"] < 1 << 20


def test_a_large_program_is_refused() -> None:
    with pytest.raises(DeviceError, match=rf"as branches it may have {MOST_BRANCHED}(.|\n)*form=\"table\""):
        rammer.compile(lstm_stack(2, 120, 64), "cuda", device="emulator:8", form="branches", tune_seconds=0)


def test_forms_have_names() -> None:
    with pytest.raises(DeviceError, match=r"'cuda' emits no program as 'branch', but as table or branches(.|\n)*mean"):
        rammer.compile(MODEL, "cuda", device="emulator:2", form="branch")
    with pytest.raises(DeviceError, match="'cpu' emits no program as 'branches', but as table"):
        rammer.compile(MODEL, "cpu", form="branches")
