"""ThreadSanitizer: silent on good programs, loud where a wait or a block sync is missing."""

from __future__ import annotations

import shutil
import subprocess
from functools import lru_cache

import numpy as np
import pytest
from simt_plans import chain, image, mirror, placed, values
from simt_races import find_races
from test_rocm_build import in_hip

import rammer
from rammer.errors import ToolchainError
from rammer.scheduler.plugin import rammer_policies
from rammer.vdevice.rocm.prelude import hip
from rammer.vdevice.simt.codegen.image import make_image, make_program
from rammer_viz.demo import lstm_stack


@lru_cache(maxsize=1)
def why_not() -> str:
    if shutil.which("gcc") is None:
        return "no gcc"
    probe = ["gcc", "-x", "c++", "-fsanitize=thread", "-o", "/dev/null", "-"]
    done = subprocess.run(probe, input="int main(void) { return 0; }", text=True, capture_output=True)
    return "" if done.returncode == 0 else "gcc has no ThreadSanitizer"


@pytest.fixture(autouse=True)
def _needs_tsan() -> None:
    if reason := why_not():
        pytest.skip(reason)


GRAPH = chain(3)
GOOD = [[0, [(1, 1)], 2], [[(0, 0)], 1]]


def races(lanes: list[list[object]], text: str | None = None) -> str:
    kernel = mirror(GRAPH, 32, text=text) if text else mirror(GRAPH, 32)
    return find_races(image(placed(GRAPH, [kernel] * 3, lanes)), values())


def races_on_amd(lanes: list[list[object]]) -> str:
    plan = placed(GRAPH, [in_hip(mirror(GRAPH, 64))] * 3, lanes)
    return find_races(make_image(plan, make_program(plan, hip(64)), {}), values())


@pytest.mark.slow
def test_silent_on_a_good_plan() -> None:
    assert races(GOOD) == "" == races_on_amd(GOOD)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [[[0, 2], [[(0, 0)], 1]], [[0, [(1, 0)], 2], [1]]])
def test_a_dropped_wait_is_a_race(lanes: list[list[object]]) -> None:
    report = races(lanes)
    assert "data race" in report and "mirror_32" in report
    report = races_on_amd(lanes)
    assert "data race" in report and "mirror_64" in report


@pytest.mark.slow
def test_a_missing_block_sync_is_a_race() -> None:
    """Threads of one block, which a run on the host orders, are not ordered for the sanitizer."""
    text = """
static __device__ void mirror_32(void *const *args, char *scratch, int rtask, int tid, int *status) {{
  float *o = (float *)args[0], *s = (float *)scratch; const float *a = (const float *)args[1];
  s[tid] = a[tid]; {sync} o[tid] = s[31 - tid]; o[tid + 32] = 0;
}}
"""
    assert "data race" in races(GOOD, text.replace("{sync}", ""))
    assert races(GOOD, text.replace("{sync}", "mk_sync();")) == ""


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sequential", "wavefront"])
def test_silent_on_a_model(policy: str) -> None:
    with rammer.compile(lstm_stack(1, 3, 16), "cuda", device="emulator:2", policy=policy, tune_seconds=0) as program:
        assert any("resident" in note for note in program.report().notes) == (policy == "wavefront")
        assert find_races(program.image, {"x": np.ones((3, 1, 16), np.float32)}) == ""


@pytest.mark.slow
@pytest.mark.parametrize("policy", rammer_policies())
def test_silent_on_every_policy_on_amd(policy: str) -> None:
    with rammer.compile(lstm_stack(1, 2, 8), "rocm", device="emulator:2", policy=policy, tune_seconds=0) as program:
        assert find_races(program.image, {"x": np.ones((2, 1, 8), np.float32)}) == ""


def test_without_a_compiler_it_says_so() -> None:
    with pytest.raises(ToolchainError, match="no gcc-of-nowhere"):
        find_races(image(placed(GRAPH, [mirror(GRAPH)] * 3, GOOD)), values(), compiler="gcc-of-nowhere")
