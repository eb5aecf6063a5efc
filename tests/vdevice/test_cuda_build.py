"""Machine code for GPUs, without a GPU: NVRTC, resources, what fits."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from simt_plans import chain, mirror, placed

import rammer
from rammer.errors import DeviceError, ToolchainError
from rammer.vdevice.base import CompiledOnly
from rammer.vdevice.cuda import build
from rammer.vdevice.cuda.build import CUBIN, check_fits, compile_cubin
from rammer.vdevice.cuda.device import PLATFORM
from rammer.vdevice.cuda.driver import probe
from rammer.vdevice.cuda.spec import GPUS, choose_gpu, make_spec, of_device
from rammer.vdevice.simt.codegen.image import make_program
from rammer.vdevice.simt.codegen.megakernel import CALLED, INLINED
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.table import ENTRY
from rammer.vdevice.simt.device import GpuVDevice
from rammer.vdevice.simt.machine_code import KernelResources, MachineCode
from rammer.vdevice.simt.runtime.streams import RESOURCES, SOURCE
from rammer_viz.demo import lstm_stack

GRAPH = chain(2)
PLAN = placed(GRAPH, [mirror(GRAPH)] * 2, [[0, 1], []])
FINE = KernelResources(64)


def has_nvrtc() -> bool:
    try:
        build.nvrtc_version()
    except ToolchainError:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason=f"NVRTC is not installed: {build.INSTALL}")
needs_no_gpu = pytest.mark.skipif(probe().ok, reason="this machine has an NVIDIA GPU")


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_programs_compile_without_spills(arch: str) -> None:
    cubin = compile_cubin(make_program(PLAN, CUDA).text, arch)
    assert cubin.data[:4] == b"\x7fELF"
    assert 0 < cubin.resources.registers <= 255
    assert cubin.resources.spill_bytes == 0
    assert 1000 < cubin.resources.code_bytes < len(cubin.data)


@needs_nvrtc
def test_the_compilers_words_and_our_line() -> None:
    with pytest.raises(ToolchainError, match=r"identifier \"mk_oops\" is undefined(.|\n)*line 2: mk_oops"):
        compile_cubin('extern "C" __global__ void rammer_run() {\n  mk_oops();\n}\n', "sm_90")
    with pytest.raises(ToolchainError, match="this NVRTC knows sm_75"):
        compile_cubin("", "sm_10")


@needs_nvrtc
def test_cubins_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    text = make_program(PLAN, CUDA).text
    first = compile_cubin(text, "sm_90")
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled twice"))
    assert compile_cubin(text, "sm_90") == first


@needs_nvrtc
@needs_no_gpu
def test_compile_for_a_gpu_that_is_not_here(tmp_path: object) -> None:
    path = f"{tmp_path}/p.rammer"
    x = np.ones((2, 1, 8), np.float32)
    with rammer.compile(lstm_stack(1, 2, 8), "cuda", arch="sm_90", tune_seconds=0) as program:
        assert isinstance(program.executable, CompiledOnly)
        with pytest.raises(DeviceError, match="the program is for sm_90: this machine has no NVIDIA GPU"):
            program(x)
        program.save(path)
    with rammer.load(path, device="emulator") as again:
        assert again(x).shape == (2, 1, 8)


@needs_nvrtc
@needs_no_gpu
def test_an_image_says_what_it_needs() -> None:
    graph = chain(1)
    vdevice = GpuVDevice(PLATFORM, arch="h100")
    plan = replace(placed(graph, [mirror(graph)], [[0]]), spec=replace(vdevice.spec, num_veus=1))
    image = vdevice.build(plan)
    assert image.fingerprint == "cuda-abi3-sm_90" and CUBIN in image.files
    assert json.loads(image.files[RESOURCES])["spill_bytes"] == 0


@needs_no_gpu
@pytest.mark.parametrize(("inlined", "called", "best"), [(0, 9, INLINED), (12, 0, CALLED), (12, 12, INLINED)])
def test_where_registers_spill_the_other_form_is_tried(
    inlined: int, called: int, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks are inlined here, as they are short; the better form is taken, its text and its code."""
    vdevice, texts = GpuVDevice(PLATFORM, arch="h100"), []

    def compiled(text: str) -> MachineCode:
        texts.append(text)
        return MachineCode(text.encode(), {ENTRY: KernelResources(64, inlined if INLINED in text else called)})

    monkeypatch.setattr(vdevice, "machine_code", compiled)
    graph = chain(1)
    image = vdevice.build(replace(placed(graph, [mirror(graph)], [[0]]), spec=replace(vdevice.spec, num_veus=1)))
    assert image.files[SOURCE] == image.files[CUBIN] and best.encode() in image.files[SOURCE]
    assert len(texts) == (1 if inlined == 0 else 2) and INLINED in texts[0]


@needs_no_gpu
def test_without_a_gpu_open_says_why() -> None:
    with pytest.raises(DeviceError, match=r"no NVIDIA GPU(.|\n)*emulator"):
        rammer.compile(lstm_stack(1, 2, 8), "cuda")
    with pytest.raises(DeviceError, match="no NVIDIA GPU"):
        GpuVDevice(PLATFORM, arch="sm_90", device=0)


def test_without_nvrtc_compiling_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(build.importlib, "import_module", absent)
    with pytest.raises(ToolchainError, match="pip install cuda-bindings nvidia-cuda-nvrtc"):
        compile_cubin("", "sm_90")


@pytest.mark.parametrize(
    ("program", "resources", "num_veus", "text"),
    [
        ({"shared_bytes": 300 << 10}, FINE, 1, "shared memory"),
        ({"threads": 1024}, KernelResources(255), 1, "does not fit a multiprocessor"),
        ({}, FINE, 132 * 16 + 1, "cannot all be on h200 at once: 16 on each of 132 multiprocessors"),
        ({"threads": 256, "shared_bytes": 120 << 10}, FINE, 133, "1 on each"),
    ],
)
def test_what_does_not_fit_is_refused(
    program: dict[str, int], resources: KernelResources, num_veus: int, text: str
) -> None:
    """Blocks that wait for blocks that are not there would wait for ever."""
    fits = make_program(PLAN, CUDA)
    check_fits(2, fits.threads, fits.shared_bytes, choose_gpu("h200"), FINE)
    needs = {"threads": fits.threads, "shared_bytes": fits.shared_bytes, **program}
    with pytest.raises(DeviceError, match=text):
        check_fits(num_veus, gpu=choose_gpu("h200"), needs=resources, **needs)


@needs_nvrtc
@pytest.mark.parametrize("shares", [2])
def test_veus_that_share_a_multiprocessor(shares: int) -> None:
    """As many more of them, each with its part of registers, shared memory and rates; the machine code keeps to it."""
    gpu, alone = choose_gpu(f"h200:x{shares}"), make_spec(choose_gpu("h200"))
    spec = make_spec(gpu)
    assert spec.num_veus == shares * alone.num_veus and spec.arch == "sm_90"
    assert shares * (spec.scratch_bytes + (1 << 10)) <= 228 << 10 and spec.registers == alone.registers // shares
    assert spec.peak_gflops == pytest.approx(alone.peak_gflops / shares, rel=1e-3)
    with rammer.compile(lstm_stack(1, 4, 64), "cuda", arch=f"sm_90:x{shares}", tune_seconds=0) as program:
        assert program.plan.spec.num_veus == shares * 132
        needs, text = json.loads(program.image.files[RESOURCES]), program.image.file(SOURCE).decode()
        (threads,) = re.findall(rf"__launch_bounds__\((\d+), {shares}\)", text)
        assert f" {threads} threads per vEU" in text.partition("\n")[0]
        assert needs["registers"] <= 65536 // (int(threads) * shares) and needs["spill_bytes"] == 0
    for name in ("sm_90:x4", "sm_90:2"):
        with pytest.raises(DeviceError, match=r"no NVIDIA arch(.|\n)*x1, x2"):
            choose_gpu(name)


@pytest.mark.parametrize("name", GPUS)
def test_specs_make_sense(name: str) -> None:
    spec = make_spec(GPUS[name])
    assert spec.num_veus == GPUS[name].num_multiprocessors and spec.arch == GPUS[name].arch
    assert 32 << 10 < spec.scratch_bytes < GPUS[name].shared_kib << 10
    assert 50 < spec.peak_gflops < 1000
    rates = [level.read_gbps * (spec.num_veus if level.owner == "veu" else 1) for level in spec.memory]
    assert rates == sorted(rates, reverse=True)


def test_choosing_a_gpu() -> None:
    assert choose_gpu(None).name == "h200" and choose_gpu("sm_80").name == "a100" and choose_gpu("H100").name == "h100"
    with pytest.raises(DeviceError, match="did you mean 'sm_90'"):
        choose_gpu("sm_91")
    mine = of_device("NVIDIA H100 PCIe", "sm_90", 114, 227 << 10, 50 << 20, 80 << 30)
    assert (mine.name, mine.num_multiprocessors, mine.dram_gbps) == ("h100", 114, GPUS["h100"].dram_gbps)
    assert of_device("NVIDIA New", "sm_199", 7, 99 << 10, 1 << 20, 1 << 30).name == "NVIDIA New"
