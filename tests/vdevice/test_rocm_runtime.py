"""The runtime of ROCm through the real hip-python, on a stub of AMD's library whose launches run on the host."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from simt_plans import agree, chain, mirror, placed, values
from test_rocm_build import in_hip

from rammer.errors import ArtifactError, DeviceError
from rammer.ir.memory import plan_memory
from rammer.ir.plan import ExecutionPlan
from rammer.vdevice.base import Image
from rammer.vdevice.rocm import runtime
from rammer.vdevice.rocm.build import HSACO, compile_code_object
from rammer.vdevice.rocm.device import RocmVDevice
from rammer.vdevice.rocm.prelude import hip
from rammer.vdevice.rocm.runtime import RocmExecutable, find_gpu, probe
from rammer.vdevice.rocm.spec import choose_gpu
from rammer.vdevice.simt.emulator.compile import compile_host
from rammer.vdevice.simt.image import TABLE, fingerprint, make_image, make_program
from rammer.vdevice.toolchain import c_compiler

GRAPH = chain(3)
LANES = [[0, [(1, 1)], 2], [[(0, 0)], 1]]
MI50 = choose_gpu("mi50")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    """The stub, where hip-python looks for AMD's library."""
    pytest.importorskip("hip", reason="hip-python is not installed: pip install hip-python")
    folder = tmp_path_factory.mktemp("rocm") / "lib"
    folder.mkdir()
    path = folder / "libamdhip64.so"
    text = Path(__file__).with_name("hip_stub.c").read_text()
    path.write_bytes(c_compiler().compile_shared(text, ("-Wl,-soname,libamdhip64.so",)))
    stub = ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL)  # hip-python 7 opens what has this name already
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCM_PATH", str(folder.parent))
        runtime._module.cache_clear()
        if find_gpu(0).name != "Stub MI50":
            pytest.skip("hip-python has loaded a real library")
        yield stub


@pytest.fixture
def stub(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setenv("STUB_FAIL", "")
    monkeypatch.setenv("STUB_CODE", "1")
    monkeypatch.setenv("STUB_PROGRAM", str(tmp_path / "program.so"))
    _count(library, "stub_launches").value = _count(library, "stub_cooperative").value = 0
    yield library
    for what in ("allocated", "modules", "events"):
        assert _count(library, f"stub_{what}").value == 0, f"{what} were left behind"


def _count(library: ctypes.CDLL, name: str) -> ctypes.c_int:
    return ctypes.c_int.in_dll(library, name)


def image(lanes: Any = LANES) -> Image:
    """A program of two vEUs as a code object, and on the host."""
    return image_of(placed(GRAPH, [in_hip(mirror(GRAPH))] * 3, lanes))


def image_of(plan: ExecutionPlan) -> Image:
    program = make_program(plan, hip(64))
    Path(os.environ["STUB_PROGRAM"]).write_bytes(compile_host(program.text))
    made = make_image(plan, program, {HSACO: compile_code_object(program.text, "gfx906").data})
    header = {**program.streams.header, "arch": "gfx906"}
    return _with_header(made, program.streams, header)


def _with_header(made: Image, streams: Any, header: dict[str, Any]) -> Image:
    table = replace(streams, header=header).to_bytes()
    return replace(made, fingerprint=fingerprint(made.target, header["arch"]), files={**made.files, TABLE: table})


def test_a_run(stub: Any) -> None:
    loaded = RocmExecutable(image(), 0, MI50)
    for seed in range(3):
        assert agree(GRAPH, loaded, seed)  # type: ignore[arg-type]
    assert _count(stub, "stub_cooperative").value == _count(stub, "stub_launches").value == 3
    assert loaded.times_us(values(), 4) == [500.0] * 4
    assert loaded._ticks == 0.25  # this GPU's counter runs at 25 MHz
    loaded.close()
    loaded.close()
    with pytest.raises(DeviceError, match="closed"):
        loaded.run(values())


def test_every_timed_run_starts_from_its_inputs(stub: Any) -> None:
    """A plan may put a tensor where an input was: what is timed again would find it there."""
    plan = placed(GRAPH, [in_hip(mirror(GRAPH))] * 3, LANES)
    loaded = RocmExecutable(image_of(replace(plan, memory=plan_memory(plan))), 0, MI50)
    wanted = loaded.run(values())["t2"]
    (_, x), (_, y) = loaded._inputs[0], loaded._outputs[0]
    assert not np.array_equal(loaded._read(np.empty_like(wanted), x), values()["x"]), "the plan leaves its input alone"
    loaded.times_us(values(), 3)
    np.testing.assert_array_equal(loaded._read(np.empty_like(wanted), y), wanted)
    loaded.close()


def test_a_library_without_cooperative_launches(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ROCm 5: hip-python cannot find the function, and the program is launched as the paper did."""

    def missing(*_: Any) -> Any:
        raise RuntimeError("failed to dlsym 'b'hipModuleLaunchCooperativeKernel'': undefined symbol")

    monkeypatch.setattr(runtime._module(), "hipModuleLaunchCooperativeKernel", missing)
    loaded = RocmExecutable(image(), 0, MI50)
    assert agree(GRAPH, loaded)  # type: ignore[arg-type]
    assert _count(stub, "stub_cooperative").value == 0 and _count(stub, "stub_launches").value == 1
    loaded.close()


@pytest.mark.parametrize(
    ("function", "code", "text"),
    [
        (
            "hipModuleLoadData",
            209,
            r"hipModuleLoadData failed: hipErrorNoBinaryForGpu \(209\)\n  hint: compile with arch=",
        ),
        ("hipModuleGetFunction", 500, "hipErrorNotFound"),
        ("hipMalloc", 2, r"hipErrorOutOfMemory \(2\)\n  hint: the model needs more memory"),
        ("hipMemcpy", 1, "hipErrorInvalidValue"),
        ("hipSetDevice", 101, "hipErrorInvalidDevice"),
    ],
)
def test_failures_to_load_leave_nothing_behind(
    stub: Any, function: str, code: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = image()
    monkeypatch.setenv("STUB_FAIL", function)
    monkeypatch.setenv("STUB_CODE", str(code))
    with pytest.raises(DeviceError, match=text):
        RocmExecutable(made, 0, MI50)


def test_failures_to_run_pass(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = RocmExecutable(image(), 0, MI50)
    for function, code, text in (
        ("hipModuleLaunchCooperativeKernel", 720, r"hipErrorCooperativeLaunchTooLarge(.|\n)*cannot hold all vEUs"),
        ("hipModuleLaunchCooperativeKernel", 719, "hipErrorLaunchFailure"),
    ):
        monkeypatch.setenv("STUB_FAIL", function)
        monkeypatch.setenv("STUB_CODE", str(code))
        with pytest.raises(DeviceError, match=text):
            loaded.run(values())
    monkeypatch.setenv("STUB_FAIL", "")
    assert agree(GRAPH, loaded)  # type: ignore[arg-type]
    loaded.close()


def test_a_deadlock_leaves_the_gpu_usable(stub: Any) -> None:
    loaded = RocmExecutable(image([[0, [(1, 1)], 2], [[(0, 2)], 1]]), 0, MI50)
    for _ in range(2):
        with pytest.raises(DeviceError, match="waited in vain"):
            loaded.run(values())
    loaded.close()


def test_images_for_others_are_refused(stub: Any) -> None:
    made = image()
    with pytest.raises(ArtifactError, match="the program is for gfx906, mi250x is gfx90a"):
        RocmExecutable(made, 0, choose_gpu("mi250x"))
    files = {name: data for name, data in made.files.items() if name != HSACO}
    with pytest.raises(ArtifactError, match="no machine code"):
        RocmExecutable(Image(made.target, made.fingerprint, made.inputs, made.outputs, files, made.weights), 0, MI50)


def test_finding_the_gpu(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_gpu(0)
    assert (found.arch, found.num_cus, found.dram_gib, found.dram_gbps, found.ghz) == ("gfx906", 60, 16, 1024, 1.725)
    with pytest.raises(DeviceError, match="no AMD GPU 3; there are 1"):
        find_gpu(3)
    monkeypatch.setenv("STUB_ARCH", "gfx803")
    with pytest.raises(DeviceError, match="Stub MI50 is gfx803; programs are made for gfx906"):
        find_gpu(0)


def test_a_vdevice_on_it(stub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From `open` to a measured plan; another arch is compiled for, and says that it cannot run."""
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(runtime, "NODES", (str(tmp_path / "kfd"),))
    assert probe().ok
    vdevice = RocmVDevice()
    assert vdevice.gpu.num_cus == 60 and vdevice.spec.num_veus == 60
    other = RocmVDevice(arch="gfx90a")
    assert other.spec.arch == "gfx90a" and "the GPU here is Stub MI50 (gfx906)" in other.missing
    monkeypatch.setenv("STUB_FAIL", "hipGetDeviceCount")
    monkeypatch.setenv("STUB_CODE", "100")
    assert probe().reason == "ROCm's library is here, but it finds no AMD GPU" and "group render" in probe().hint
    monkeypatch.setenv("STUB_CODE", "3")
    assert "hipGetDeviceCount failed: hipErrorNotInitialized (3)" in probe().reason


def test_version_7_fills_what_it_is_given() -> None:
    """Its names are bytes, and its properties an argument."""
    filled = SimpleNamespace(name=b"", gcnArchName=b"")

    def properties(target: Any, *number: int) -> Any:
        if not number:
            raise TypeError("takes exactly 2 positional arguments")
        target.gcnArchName = b"gfx90a:sramecc+"
        return (0,)

    module = SimpleNamespace(
        hipGetDeviceProperties=properties,
        hipDeviceProp_t=lambda: filled,
        hipError_t=SimpleNamespace(hipSuccess=0),
    )
    found = runtime.Hip.__new__(runtime.Hip)
    found.module = module  # type: ignore[assignment]
    assert runtime._text(found.properties(0).gcnArchName) == "gfx90a:sramecc+"
    assert found.attribute("hipDeviceAttributeWallClockRate", 0) == 0


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runtime, "NODES", (str(tmp_path / "kfd"),))
    assert probe().reason == "this machine has no AMD GPU (there is no /dev/kfd)"
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(runtime.importlib.util, "find_spec", lambda name: None)
    assert "hip-python is not installed" in probe().reason and probe().hint == "pip install hip-python"
    monkeypatch.undo()

    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    runtime._module.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(runtime.importlib, "import_module", absent)
        with pytest.raises(DeviceError, match=r"No module named 'hip'\n  hint: pip install hip-python"):
            find_gpu(0)

    def unloadable() -> Any:
        raise RuntimeError("failed to dlopen 'b'libamdhip64.so'': cannot open shared object file")

    with monkeypatch.context() as patch:
        patch.setattr(runtime, "_module", lambda: SimpleNamespace(hipGetDeviceCount=unloadable))
        with pytest.raises(DeviceError, match=r"library cannot be loaded: failed to dlopen(.|\n)*install ROCm's HIP"):
            find_gpu(0)
