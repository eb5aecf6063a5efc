"""AMD's driver on a stub of AMD's library: what differs from other platforms' (`test_simt_runtime.py`)."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_gpus import GRAPH, FakeRocm
from simt_plans import agree

from rammer.errors import ArtifactError, DeviceError, InputError
from rammer.ir.tensor import Array, DType, TensorType
from rammer.vdevice.rocm import dlpack, driver
from rammer.vdevice.rocm.driver import Hip, RocmArray, find_gpu, probe


def test_launches_are_cooperative(rocm_gpu: FakeRocm) -> None:
    loaded = rocm_gpu.executable()
    assert agree(GRAPH, loaded)
    assert rocm_gpu.cell("cooperative").value == rocm_gpu.count("launch") == 1
    assert loaded._driver.ticks(1e9) == 0.25e9  # this GPU's counter runs at 25 MHz
    loaded.close()


@pytest.mark.parametrize("uncached", [False, True])
def test_what_vEUs_hand_over_may_lie_in_uncached_memory(rocm_gpu: FakeRocm, uncached: bool) -> None:
    """Arena, counters and clocks do, weights do not."""
    vdevice = rocm_gpu.vdevice()
    vdevice.spec = replace(vdevice.spec, uncached=uncached)
    loaded = vdevice.open(vdevice.build(rocm_gpu.plan()))
    assert agree(GRAPH, loaded)
    assert rocm_gpu.cell("uncached").value == 2 * uncached
    loaded.run_timed({t: np.zeros(GRAPH.types[t].shape, np.float32) for t in GRAPH.inputs})
    assert rocm_gpu.cell("uncached").value == 3 * uncached
    loaded.close()


def test_a_library_without_cooperative_launches(rocm_gpu: FakeRocm, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ROCm 5: hip-python cannot find the function, and the program is launched as the paper did."""

    def missing(*_: Any) -> Any:
        raise RuntimeError("failed to dlsym 'b'hipModuleLaunchCooperativeKernel'': undefined symbol")

    monkeypatch.setattr(driver._module(), "hipModuleLaunchCooperativeKernel", missing, raising=False)
    loaded = rocm_gpu.executable()
    assert agree(GRAPH, loaded)
    assert rocm_gpu.cell("cooperative").value == 0 and rocm_gpu.count("launch") == 1
    loaded.close()


@pytest.mark.parametrize(
    ("function", "code", "text"),
    [
        ("hipModuleGetFunction", 500, "hipErrorNotFound"),
        ("hipModuleLoadData", 209, r"hipModuleLoadData failed: hipErrorNoBinaryForGpu \(209\)\n  hint: compile with"),
        ("hipStreamCreateWithFlags", 1, "to make a stream: hipStreamCreateWithFlags failed: hipErrorInvalidValue"),
        ("hipEventCreate", 1, "hipErrorInvalidValue"),
        ("hipMemsetAsync", 1, "hipErrorInvalidValue"),
        ("hipMemcpyAsync", 1, "hipErrorInvalidValue"),
        ("hipSetDevice", 101, "hipErrorInvalidDevice"),
    ],
)
def test_failures_to_load(
    rocm_gpu: FakeRocm, function: str, code: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture sees to it that nothing is left behind."""
    made = rocm_gpu.image()
    monkeypatch.setenv("STUB_FAIL", function)
    monkeypatch.setenv("STUB_CODE", str(code))
    with pytest.raises(DeviceError, match=text):
        rocm_gpu.vdevice().open(made)


def test_a_code_object_for_another_arch(rocm_gpu: FakeRocm) -> None:
    made, vdevice = rocm_gpu.image(), rocm_gpu.vdevice()
    code = bytearray(made.files[vdevice.platform.code_file])
    code[0x30] = 0x3F
    with pytest.raises(ArtifactError, match="code object is for gfx90a, Stub MI50 is gfx906"):
        vdevice.open(type(made)(**{**vars(made), "files": {**made.files, vdevice.platform.code_file: bytes(code)}}))


def test_outputs_are_arrays_for_others(rocm_gpu: FakeRocm) -> None:
    """NumPy reads their memory, which is the host's here, by both protocols; it lives as long as a reader does."""
    readers = [read_by_both(dtype) for dtype in DType]
    gc.collect()
    assert rocm_gpu.cell("memory").value == len(readers)
    for by_dlpack, copied in readers:
        np.testing.assert_array_equal(by_dlpack, copied)
    del by_dlpack
    readers.clear()
    gc.collect()
    assert rocm_gpu.cell("memory").value == 0


def read_by_both(dtype: DType) -> tuple[Array, Array]:
    """Return an output that DLPack lends, whose own object is gone, and what it holds."""
    made = RocmArray(Hip(), 0, TensorType((2, 3), dtype))
    bits = np.arange(made.dtype.itemsize * 6, dtype=np.uint8) % 2
    copied = np.frombuffer(bits.tobytes(), made.dtype).reshape(2, 3)
    hip = Hip()
    hip("hipMemcpy", made.address, copied.ctypes.data, copied.nbytes, hip.module.hipMemcpyKind.hipMemcpyHostToDevice)
    np.testing.assert_array_equal(made.get(), copied)
    described = made.__cuda_array_interface__
    read = np.asarray(SimpleNamespace(__array_interface__=described))
    np.testing.assert_array_equal(read, copied)
    lent = [dlpack.lend(made.address, 0, made.dtype, made.shape, made, device_type=1)]
    by_dlpack = np.from_dlpack(SimpleNamespace(__dlpack__=lambda **_: lent.pop(), __dlpack_device__=lambda: (1, 0)))  # type: ignore[arg-type]
    return by_dlpack, copied


def test_a_capsule_that_nobody_reads(rocm_gpu: FakeRocm) -> None:
    made = RocmArray(Hip(), 0, TensorType((4,)))
    assert made.__dlpack_device__() == (10, 0)
    made.__dlpack__()
    capsule = made.__dlpack__()
    assert dlpack.borrow(capsule).dtype == "float32" and len(dlpack._lent) == 1
    del capsule
    assert not dlpack._lent


def test_arrays_that_cannot_be_read(rocm_gpu: FakeRocm) -> None:
    loaded = rocm_gpu.executable()
    elsewhere = SimpleNamespace(__dlpack__=lambda **_: None, __dlpack_device__=lambda: (2, 0))
    complex_numbers = rocm_gpu.array(np.zeros(64, np.complex64))
    for value, text in (
        (elsewhere, "cannot be read on the GPU: .*DLPack's type 2, AMD GPUs are 10"),
        (complex_numbers, "dtype complex64, the program takes float32"),
    ):
        with pytest.raises(InputError, match=f"input 'x': {text}"):
            loaded.run_device({"x": value})
    loaded.close()


def test_finding_the_gpu(rocm_gpu: FakeRocm, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_gpu(0)
    assert (found.arch, found.num_multiprocessors, found.dram_gib, found.dram_gbps, found.ghz) == (
        "gfx906",
        60,
        16,
        1024,
        1.725,
    )
    with pytest.raises(DeviceError, match="no AMD GPU 3; there are 1"):
        find_gpu(3)
    monkeypatch.setenv("STUB_ARCH", "gfx803")
    with pytest.raises(DeviceError, match="Stub MI50 is gfx803; programs are made for gfx906"):
        find_gpu(0)


def test_probing(rocm_gpu: FakeRocm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(driver, "NODES", (str(tmp_path / "kfd"),))
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: name)
    assert probe().ok
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
    found = Hip.__new__(Hip)
    found.module = module  # type: ignore[assignment]
    assert driver._text(found.properties(0).gcnArchName) == "gfx90a:sramecc+"
    assert found.attribute("hipDeviceAttributeWallClockRate", 0) == 0


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(driver, "NODES", (str(tmp_path / "kfd"),))
    assert probe().reason == "this machine has no AMD GPU (there is no /dev/kfd)"
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: None)
    assert "hip-python is not installed" in probe().reason and probe().hint == "pip install hip-python"
    monkeypatch.undo()

    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    driver._module.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(driver.importlib, "import_module", absent)
        with pytest.raises(DeviceError, match=r"No module named 'hip'\n  hint: pip install hip-python"):
            find_gpu(0)

    def unloadable() -> Any:
        raise RuntimeError("failed to dlopen 'b'libamdhip64.so'': cannot open shared object file")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "_module", lambda: SimpleNamespace(hipGetDeviceCount=unloadable))
        with pytest.raises(DeviceError, match=r"ROCm cannot be loaded: failed to dlopen(.|\n)*install ROCm's HIP"):
            find_gpu(0)
