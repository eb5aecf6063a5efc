"""The first tier of the ONNX backend suite as programs for GPUs: right on every policy, and machine code that fits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
from backend_suite import Case, cases, outcome
from test_backend_suite import expected_failures

import rammer
from rammer.errors import ToolchainError
from rammer.ir.graph import Graph
from rammer.ir.tensor import Array
from rammer.scheduler.plugin import rammer_policies
from rammer.vdevice.cuda.build import nvrtc_version
from rammer.vdevice.rocm.spec import FAMILIES
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.runtime.streams import RESOURCES
from rammer.vdevice.toolchain import parallel_jobs

LISTED = Path(__file__).with_name("simt_failures.txt")  # a line for each that fails here and not elsewhere
ARCHS = {"cuda": ("sm_80", "sm_90", "sm_120"), "rocm": tuple(FAMILIES)}
PARTS = 16  # per process

Results = dict[str, str]  # what was tried -> why it fails, an empty string if it does not


def in_scope(names: list[str]) -> Iterator[tuple[int, Case]]:
    chosen = set(names)
    return ((n, case) for n, case in enumerate(cases()) if case.name in chosen)


def run_policies(target: str, arch: str, names: list[str]) -> Results:
    """Results of a few cases under every policy; memory is full of NaN before each run."""
    found = {}
    for _, case in in_scope(names):
        for policy in rammer_policies():

            def execute(graph: Graph, inputs: Mapping[str, Array], policy: str = policy) -> Mapping[str, Array]:
                options = {"arch": arch, "device": "emulator:3", "policy": policy, "tune_seconds": 0}
                with rammer.compile(graph, target, **options) as program:
                    assert isinstance(program.executable, EmulatorExecutable)
                    program.executable.poison = True
                    return program.run(inputs)

            found[f"{case.name} on {target}, {policy}"] = outcome(case, execute)
    return found


def build(target: str, names: list[str]) -> Results:
    """Machine code of a few cases for one arch in turn, for all vEUs of a GPU that is not here; and their results."""
    found = {}
    for number, case in in_scope(names):
        arch = ARCHS[target][number % len(ARCHS[target])]

        def execute(graph: Graph, inputs: Mapping[str, Array], arch: str = arch) -> Mapping[str, Array]:
            with rammer.compile(graph, target, arch=arch, tune_seconds=0) as program:
                resources = json.loads(program.image.files[RESOURCES])
            unwanted = {name: n for name, n in resources.items() if n and ("spill" in name or name == "stack_bytes")}
            assert not unwanted, f"{arch}: {unwanted}"
            with rammer.compile(graph, target, arch=arch, device="emulator:2", tune_seconds=0) as program:
                return program.run(inputs)

        found[f"{case.name} built for {target}"] = outcome(case, execute)
    return found


def check(work: Callable[[list[str]], Results]) -> None:
    """Nothing fails but what is listed, and what is listed does."""
    names = [case.name for case in cases() if case.tier_1]
    workers = parallel_jobs()
    parts = [names[n :: PARTS * workers] for n in range(PARTS * workers)]
    results: Results = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for part in pool.map(work, parts):
            results |= part
    listed = set(LISTED.read_text().splitlines())
    failed = {key: why for key, why in results.items() if why and key.split()[0] not in expected_failures()}
    surprises = {key: why for key, why in failed.items() if key not in listed}
    assert not surprises, "\n".join(f"{key}: {why}" for key, why in surprises.items())
    stale = sorted(key for key in listed & set(results) if key not in failed)
    assert not stale, f"remove from {LISTED.name}, they pass: {stale}"


@pytest.mark.slow
@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90"), ("rocm", "gfx90a")])
def test_first_tier_cases_pass_on_every_policy(target: str, arch: str) -> None:
    """Waves of 32 on CUDA, of 64 on ROCm."""
    check(partial(run_policies, target, arch))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda", "rocm"])
def test_first_tier_cases_compile_without_spills(target: str) -> None:
    if target == "cuda":
        try:
            nvrtc_version()
        except ToolchainError as error:
            pytest.skip(str(error))
    check(partial(build, target))
