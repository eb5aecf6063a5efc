"""Registers of rKernels are read back from machine code before anything is scheduled; one that spills is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simt_plans import SIZE, chain, mirror

import rammer
from rammer.candidates import drop_spilled
from rammer.demo import lstm_stack
from rammer.errors import DeviceError, ToolchainError
from rammer.ir.graph import Graph
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.plugins import PluginRegistry
from rammer.vdevice.base import VDevice, silent
from rammer.vdevice.cuda.build import nvrtc_version
from rammer.vdevice.rocm.build import hip_compiler

GPUS = [("cuda", "sm_90", "cuda"), ("rocm", "gfx906", "hip")]
VALUES = 320  # that a thread holds at once: more than it has registers
BUDGET_S = 600.0


@pytest.fixture(params=GPUS, ids=lambda p: p[1])
def gpu(request: pytest.FixtureRequest) -> tuple[VDevice, str]:
    """A vDevice to compile for, and the language of its kernels."""
    target, arch, language = request.param
    try:
        nvrtc_version() if target == "cuda" else hip_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))
    return PluginRegistry().open(target, arch=arch, device=None), language


def hungry(graph: Graph, language: str) -> RKernel:
    """All values change in every round of a loop, so that none can be made anew."""
    names = [f"v{n}" for n in range(VALUES)]
    text = f"""
static __device__ void hungry(void *const *args, char *scratch, int rtask, int tid, int *status) {{
  float *o = (float *)args[0]; const float *a = (const float *)args[1];
  float {", ".join(f"{name} = {n}" for n, name in enumerate(names))};
  for (int k = 0; k < tid % {SIZE}; k++) {{
    float x = a[k];
    {" ".join(f"{name} = {name} * x + {n};" for n, name in enumerate(names))}
  }}
  if (tid < {SIZE}) o[tid] = {" + ".join(names)};
}}
"""
    light = mirror(graph, 32)
    assert isinstance(light.body, ForeignSource)
    body = replace(light.body, language=language, symbol="hungry", text=text, num_threads=256, scratch_bytes=0)
    return replace(light, name="hungry", body=body)


def modest(graph: Graph, language: str) -> RKernel:
    light = mirror(graph, 32)
    assert isinstance(light.body, ForeignSource)
    return replace(light, body=replace(light.body, language=language))


def test_a_kernel_that_spills_is_no_candidate(gpu: tuple[VDevice, str]) -> None:
    vdevice, language = gpu
    graph = chain(1)
    operation = graph.operators[0].operation
    bad, good = hungry(graph, language), modest(graph, language)
    needs = vdevice.rkernels_registers([bad, good], budget_s=BUDGET_S)
    assert needs[bad].spilled_bytes > 0 and needs[bad].used > 128
    assert needs[good].spilled_bytes == 0 and 0 < needs[good].used < 64
    kept, notes = drop_spilled({operation: [bad, good]}, vdevice, BUDGET_S, silent)
    assert kept == {operation: [good]}
    assert len(notes) == 1 and "hungry is no candidate" in notes[0]
    with pytest.raises(DeviceError, match=r"mirror .*: no rKernel .* keeps its values in registers: hungry"):
        drop_spilled({operation: [bad]}, vdevice, BUDGET_S, silent)


def test_without_a_budget_nothing_is_read(gpu: tuple[VDevice, str]) -> None:
    vdevice, language = gpu
    graph = chain(1)
    candidates = {graph.operators[0].operation: [hungry(graph, language)]}
    assert drop_spilled(candidates, vdevice, 0.0, silent) == (candidates, [])
    assert vdevice.rkernels_registers([], budget_s=BUDGET_S) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("target", "arch"), [g[:2] for g in GPUS])
def test_default_kernels_do_not_spill(target: str, arch: str) -> None:
    with rammer.compile(lstm_stack(2, 4, 64), target, arch=arch, tune_seconds=BUDGET_S) as program:
        assert not [note for note in program.plan.notes if "no candidate" in note]
