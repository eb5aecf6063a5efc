"""Registers of rKernels are read back from machine code before anything is scheduled; one that spills is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simt_plans import SIZE, chain, mirror

import rammer
from rammer.compiler.candidates import drop_spilled
from rammer.errors import DeviceError, ToolchainError
from rammer.ir.graph import Graph
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.operator import Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import TensorType
from rammer.kernels import candidates
from rammer.plugins import PluginRegistry
from rammer.vdevice.base import VDevice, silent
from rammer.vdevice.cuda.build import compile_cubin, nvrtc_version
from rammer.vdevice.rocm.build import hip_compiler
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.printer import emit
from rammer.vdevice.simt.tune.registers import _entry, _text
from rammer_viz.demo import lstm_stack

GPUS = [("cuda", "sm_90", "cuda"), ("rocm", "gfx906", "hip")]
VALUES = 320  # that a thread holds at once: more than it has registers
BUDGET_S = 600.0


def needs_compiler(target: str) -> None:
    try:
        nvrtc_version() if target == "cuda" else hip_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture(params=GPUS, ids=lambda p: p[1])
def gpu(request: pytest.FixtureRequest) -> tuple[VDevice, str]:
    """A vDevice to compile for, and the language of its kernels."""
    target, arch, language = request.param
    needs_compiler(target)
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


def test_what_is_not_compiled_alone_surely_fits() -> None:
    """Tiles of few sums, and what computes point by point: both are left out, and neither spills."""
    vdevice = PluginRegistry().open("cuda", arch="sm_90", device=None)
    conv = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    shapes = ("conv", (1, 48, 20, 20), (36, 48, 3, 3)), ("matmul", (70, 300), (300, 90)), ("add", (64, 200), (64, 200))
    made = [
        Operations(OPS).define(k, tuple(map(TensorType, s)), attributes(**(conv if k == "conv" else {})))
        for k, *s in shapes
    ]
    kernels = [k for operation in made for k in candidates(operation, vdevice.spec)]
    try:
        read = vdevice.rkernels_registers(kernels, budget_s=BUDGET_S)
        left = [k for k in kernels if k not in read]
        text = _text([emit(k, CUDA, 256) for k in left], CUDA, 256)
        needs = compile_cubin(text, "sm_90").kernels
    except ToolchainError as error:
        pytest.skip(str(error))
    assert {k.operation.kind for k in left} == {"conv", "matmul", "add"} and read
    most = {k.name: needs[_entry(emit(k, CUDA, 256))] for k in left}
    assert all(one.registers <= 200 and one.spill_bytes == 0 for one in most.values()), most


@pytest.mark.slow
@pytest.mark.parametrize(("target", "arch"), [g[:2] for g in GPUS])
def test_default_kernels_do_not_spill(target: str, arch: str) -> None:
    needs_compiler(target)
    with rammer.compile(lstm_stack(2, 4, 64), target, arch=arch, tune_seconds=BUDGET_S) as program:
        assert not [note for note in program.plan.notes if "no candidate" in note]
