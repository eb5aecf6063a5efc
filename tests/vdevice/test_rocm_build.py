"""Code objects for AMD GPUs, without a GPU: every arch, resources, what fits, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simt_plans import chain, mirror, placed

import rammer
from rammer.errors import DeviceError, RammerError, ToolchainError
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.operator import Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import TensorType
from rammer.kernels import candidates
from rammer.vdevice.base import CompiledOnly
from rammer.vdevice.rocm import build
from rammer.vdevice.rocm.build import HSACO, check_fits, compile_code_object, hip_compiler
from rammer.vdevice.rocm.device import PLATFORM
from rammer.vdevice.rocm.driver import probe
from rammer.vdevice.rocm.elf import arch_of, read_kernels
from rammer.vdevice.rocm.prelude import hip
from rammer.vdevice.rocm.spec import FAMILIES, GPUS, choose_gpu, make_spec, of_device
from rammer.vdevice.simt.codegen.image import make_program
from rammer.vdevice.simt.codegen.megakernel import program_text
from rammer.vdevice.simt.codegen.printer import emit
from rammer.vdevice.simt.device import GpuVDevice
from rammer.vdevice.simt.machine_code import KernelResources
from rammer.vdevice.simt.runtime.streams import RESOURCES
from rammer.vdevice.toolchain import object_store
from rammer_viz.demo import lstm_stack

GRAPH = chain(2)
FINE = KernelResources(64)
needs_no_gpu = pytest.mark.skipif(probe().ok, reason="this machine has an AMD GPU")


def in_hip(kernel: RKernel, **changes: object) -> RKernel:
    assert isinstance(kernel.body, ForeignSource)
    return replace(kernel, body=replace(kernel.body, language="hip", **changes))  # type: ignore[arg-type]


def plan() -> ExecutionPlan:
    return placed(GRAPH, [in_hip(mirror(GRAPH))] * 2, [[0, 1], []])


def test_code_objects_are_cached_and_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    text = make_program(plan(), hip(64)).text
    first = compile_code_object(text, "gfx906")
    assert arch_of(first.data) == "gfx906" and first.data[8] == 3  # ABI version of code object 5
    assert 0 < first.resources.registers <= 64 and first.resources.shared_bytes == 0
    assert 1000 < first.resources.code_bytes < len(first.data)
    monkeypatch.setattr(build.HipCompiler, "code_object", lambda *_: pytest.fail("compiled twice"))
    assert compile_code_object(text, "gfx906") == first


def test_the_compilers_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path))  # other tests compile at the same time
    before = object_store().stats()
    with pytest.raises(ToolchainError, match="undeclared identifier 'mk_oops'"):
        compile_code_object('extern "C" __attribute__((global)) void rammer_run() { mk_oops(); }\n', "gfx906")
    with pytest.raises(ToolchainError, match="undefined hidden symbol: oops"):
        compile_code_object(
            '#define D __attribute__((device))\nextern "C" D void oops();\n'
            'extern "C" __attribute__((global)) void rammer_run() { oops(); }\n',
            "gfx906",
        )
    assert object_store().stats() == before
    with pytest.raises(ToolchainError, match="no kernel 'rammer_run'"):
        assert compile_code_object('extern "C" __attribute__((global)) void other() {}\n', "gfx906").resources


@pytest.mark.parametrize("arch", ["gfx906", "gfx90a"])
def test_the_compiler_unrolls_no_more_than_fits(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first convolution of AlexNet: left to itself clang unrolls it until a thousand registers spill."""
    attrs = {"strides": (4, 4), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}
    inputs = (TensorType((1, 3, 227, 227)), TensorType((64, 3, 11, 11)))
    operation = Operations(OPS).define("conv", inputs, attributes(**attrs))
    dialect = hip(FAMILIES[arch].wavefront_size)
    for kernel in candidates(operation, make_spec(choose_gpu(arch))):
        text = program_text([emit(kernel, dialect, 256)], dialect, 256, 4)
        needs = compile_code_object(text, arch).resources
        assert needs.spill_bytes == needs.stack_bytes == 0
        with monkeypatch.context() as patch:  # no limit first: what spills is compiled again
            patch.setattr(build, "UNROLLING", ((), build.UNROLLING[-1]))
            assert compile_code_object(text, arch).resources.spill_bytes == 0


HUNGRY = """
extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(256, 256))) void rammer_run(float *p) {
  float a[400];
  p += __builtin_amdgcn_workitem_id_x();
  #pragma unroll
  for (int n = 0; n < 400; n++) a[n] = p[n * 256];
  for (int k = 0; k < 9; k++) {
    #pragma unroll
    for (int n = 0; n < 400; n++) a[n] = a[n] * a[(n * 7 + 1) % 400] + p[k];
  }
  #pragma unroll
  for (int n = 0; n < 400; n++) p[n * 256] = a[n];
}
"""


def test_a_kernel_that_wants_too_many_registers_is_refused() -> None:
    """While compiling, by its resources, and not by a slow run."""
    needs = compile_code_object(HUNGRY, "gfx906").resources
    with pytest.raises(DeviceError, match=r"more than the 256 registers that a thread has on gfx906: \d+ spill"):
        check_fits(1, 256, 0, choose_gpu("gfx906"), needs)


def test_another_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A driver that links by itself, as hipcc does; here ziglang's clang with a linker beside it."""
    zig = hip_compiler().command[0]
    (tmp_path / "lld").write_text(f'#!/bin/sh\n[ "$1" = -flavor ] && shift 2\nexec {zig} ld.lld "$@"\n')
    (tmp_path / "hipcc").write_text(f'#!/bin/sh\nexec {zig} clang -B{tmp_path} "$@"\n')
    for tool in ("lld", "hipcc"):
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("RAMMER_HIPCC", str(tmp_path / "hipcc"))
    monkeypatch.setenv("RAMMER_CODE_OBJECT", "4")
    made = compile_code_object(make_program(plan(), hip(64)).text, "gfx90a")
    assert arch_of(made.data) == "gfx90a" and made.data[8] == 2
    monkeypatch.setenv("RAMMER_CODE_OBJECT", "3")
    with pytest.raises(RammerError, match="RAMMER_CODE_OBJECT='3'"):
        compile_code_object("", "gfx90a")
    monkeypatch.setenv("RAMMER_HIPCC", "/nosuch/hipcc")
    with pytest.raises(ToolchainError, match="no such program"):
        hip_compiler()
    monkeypatch.setenv("RAMMER_HIPCC", "false")
    with pytest.raises(ToolchainError, match="does not answer"):
        hip_compiler()


def test_files_that_are_no_code_objects() -> None:
    good = compile_code_object(make_program(plan(), hip(64)).text, "gfx906").data
    for bad in (b"", b"\x7fELF" + b"\0" * 100, b"__CLANG_OFFLOAD_BUNDLE__" * 4):
        with pytest.raises(ToolchainError, match="no code object"):
            read_kernels(bad)
    for size in range(64, len(good), 997):  # cut short anywhere
        with pytest.raises(ToolchainError):
            read_kernels(good[:size])


@pytest.mark.parametrize("arch", FAMILIES)
@needs_no_gpu
def test_compile_for_a_gpu_that_is_not_here(arch: str, tmp_path: Path) -> None:
    """A real model for every arch, without spills; saved, and run on the host."""
    path = f"{tmp_path}/p.rammer"
    x = np.ones((2, 1, 8), np.float32)
    with rammer.compile(lstm_stack(1, 2, 8), "rocm", arch=arch, tune_seconds=0) as program:
        assert isinstance(program.executable, CompiledOnly)
        with pytest.raises(DeviceError, match=f"the program is for {arch}: this machine has no AMD GPU"):
            program(x)
        program.save(path)
        needs = json.loads(program.image.files[RESOURCES])
        assert needs["spill_bytes"] == needs["stack_bytes"] == 0 < needs["registers"]
        assert arch_of(program.image.files[HSACO]) == arch
        assert program.image.fingerprint == f"rocm-abi3-{arch}"
    with rammer.load(path, device="emulator") as again:
        assert again(x).shape == (2, 1, 8)


@needs_no_gpu
def test_without_a_gpu_open_says_why() -> None:
    with pytest.raises(DeviceError, match=r"no AMD GPU is usable: this machine has no AMD GPU(.|\n)*emulator"):
        rammer.compile(lstm_stack(1, 2, 8), "rocm")
    with pytest.raises(DeviceError, match="no AMD GPU"):
        GpuVDevice(PLATFORM, arch="gfx906", device=0)


@pytest.mark.parametrize(
    ("program", "resources", "num_veus", "text"),
    [
        ({"shared_bytes": 70 << 10}, FINE, 1, "of shared memory, a block on mi50 has 65536"),
        ({}, replace(FINE, registers=300), 1, "with 300 registers does not fit a multiprocessor"),
        ({}, FINE, 60 * 16 + 1, "cannot all be on mi50 at once: 16 on each of 60 multiprocessors"),
        ({"shared_bytes": 40 << 10}, FINE, 61, "1 on each"),
    ],
)
def test_what_does_not_fit_is_refused(
    program: dict[str, int], resources: KernelResources, num_veus: int, text: str
) -> None:
    """Blocks that wait for blocks that are not there would wait for ever."""
    made = make_program(plan(), hip(64))
    check_fits(2, made.threads, made.shared_bytes, choose_gpu("mi50"), FINE)
    needs = {"threads": made.threads, "shared_bytes": made.shared_bytes, **program}
    with pytest.raises(DeviceError, match=text):
        check_fits(num_veus, gpu=choose_gpu("mi50"), needs=resources, **needs)


@pytest.mark.parametrize("name", GPUS)
def test_specs_make_sense(name: str) -> None:
    spec = make_spec(GPUS[name])
    assert spec.num_veus == GPUS[name].num_multiprocessors and spec.arch == GPUS[name].arch
    assert spec.max_threads % spec.subgroup_size == 0 and 32 << 10 < spec.scratch_bytes < 64 << 10
    assert 100 < spec.peak_gflops < 1000
    rates = [level.read_gbps * (spec.num_veus if level.owner == "veu" else 1) for level in spec.memory]
    assert rates == sorted(rates, reverse=True)


def test_the_papers_gpu() -> None:
    """13.25 TFLOP/s, 1 TB/s, 256 KiB of registers in a CU."""
    spec = make_spec(choose_gpu("gfx906"))
    assert round(spec.peak_gflops * spec.num_veus) == 13248
    registers, dram = spec.level("registers"), spec.level("HBM")
    assert registers and registers.nbytes == 256 << 10 and dram and dram.read_gbps == 1024


def test_choosing_a_gpu() -> None:
    assert (
        choose_gpu(None).name == "mi50"
        and choose_gpu("gfx90a").name == "mi250x"
        and choose_gpu("MI300X").num_multiprocessors == 304
    )
    with pytest.raises(DeviceError, match="did you mean 'mi300x'"):
        choose_gpu("mi300")
    assert make_spec(choose_gpu("mi300x:uncached")).uncached and not make_spec(choose_gpu("mi300x")).uncached
    with pytest.raises(DeviceError, match="mi210 needs no uncached memory\n  hint: leave out :uncached; it is for"):
        choose_gpu("mi210:uncached")
    with pytest.raises(DeviceError, match="behind a colon comes one of x1, x2, c4, c8, uncached"):
        choose_gpu("mi300x:cached")
    mine = of_device("AMD Instinct MI210", "gfx90a", 104, 8 << 20, 64 << 30, 1638.4, 1.7)
    assert mine.num_multiprocessors == 104 and make_spec(mine).num_veus == 104
    with pytest.raises(DeviceError, match="Old is gfx803; programs are made for gfx906"):
        of_device("Old", "gfx803", 36, 2 << 20, 8 << 30, 224, 1.3)
