"""NVIDIA's driver against a stand-in for cupy: what differs from other platforms' (`test_simt_runtime.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_cupy import CUDADriverError, CUDARuntimeError, OutOfMemoryError
from fake_gpus import GRAPH, FakeCuda
from simt_plans import agree, values

from rammer.errors import DeviceError, InputError
from rammer.vdevice.cuda import driver
from rammer.vdevice.cuda.device import open_cuda
from rammer.vdevice.cuda.driver import find_gpu, load_cupy, probe
from rammer.vdevice.simt.device import GpuVDevice


def test_an_array_that_cupy_refuses(cuda_gpu: FakeCuda) -> None:
    loaded, cupy = cuda_gpu.executable(), cuda_gpu.cupy
    cupy.fails["from_dlpack"] = BufferError("strange memory")
    with pytest.raises(InputError, match="input 'x': cannot be read on the GPU: strange memory"):
        loaded.run_device({"x": cuda_gpu.array(values()["x"])})
    cupy.fails["from_dlpack"] = CUDARuntimeError("cudaErrorInvalidValue: no")
    with pytest.raises(DeviceError, match="cudaErrorInvalidValue"):
        loaded.run_device({"x": cuda_gpu.array(values()["x"])})


def test_a_lost_gpu(cuda_gpu: FakeCuda) -> None:
    loaded = cuda_gpu.executable()
    cuda_gpu.cupy.fails["launch"] = CUDADriverError("CUDA_ERROR_ILLEGAL_ADDRESS: oops")
    with pytest.raises(DeviceError, match=r"failed to run the program: (.|\n)*the process has lost the GPU"):
        loaded.run(values())


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        ("Module.load", CUDADriverError("CUDA_ERROR_INVALID_IMAGE: no"), "update NVIDIA's driver"),
        ("funcSetAttribute", CUDADriverError("CUDA_ERROR_INVALID_VALUE: no"), "failed to load the program"),
        (
            "alloc",
            OutOfMemoryError("Out of memory allocating 5,000 bytes"),
            r"to load the program(.|\n)*3072 of 144384 MiB",
        ),
    ],
)
def test_failures_to_load(cuda_gpu: FakeCuda, call: str, error: Exception, text: str) -> None:
    cuda_gpu.cupy.fails[call] = error
    with pytest.raises(DeviceError, match=text):
        cuda_gpu.executable()
    assert cuda_gpu.cupy.calls[-1] == "free_all_blocks"
    cuda_gpu.cupy.fails.clear()
    assert agree(GRAPH, cuda_gpu.executable())


def test_an_older_driver(cuda_gpu: FakeCuda) -> None:
    cuda_gpu.cupy.driver_version = 12040
    with pytest.raises(DeviceError, match=r"for CUDA 12.4; the program's machine code is of NVRTC 13.5(.|\n)*12"):
        cuda_gpu.executable()


def test_finding_the_gpu(cuda_gpu: FakeCuda) -> None:
    assert find_gpu(0).name == "h200"
    with pytest.raises(DeviceError, match="no NVIDIA GPU 3; there are 1"):
        find_gpu(3)
    cuda_gpu.cupy.properties.update(major=6, minor=1)
    with pytest.raises(DeviceError, match="sm_61; programs need sm_70"):
        find_gpu(0)


def test_what_is_missing_is_said(cuda_gpu: FakeCuda) -> None:
    cupy = cuda_gpu.cupy
    cupy.count = 0
    with pytest.raises(DeviceError, match=r"shows no NVIDIA GPU(.|\n)*CUDA_VISIBLE_DEVICES"):
        load_cupy()
    cupy.fails["getDeviceCount"] = CUDARuntimeError("cudaErrorInsufficientDriver: too old")
    cupy.driver_version = 11080
    with pytest.raises(DeviceError, match=r"cudaErrorInsufficientDriver(.|\n)*CUDA 11.8(.|\n)*update NVIDIA's driver"):
        load_cupy()
    cupy.driver_version = 0
    with pytest.raises(DeviceError, match=r"no driver for NVIDIA GPUs(.|\n)*emulator"):
        load_cupy()


def test_where_the_gpu_is_hidden_another_one_is_compiled_for(cuda_gpu: FakeCuda) -> None:
    cuda_gpu.cupy.fails["getDeviceCount"] = CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    with pytest.raises(DeviceError, match="shows no NVIDIA GPU"):
        open_cuda()
    with pytest.raises(DeviceError, match="shows no NVIDIA GPU"):
        open_cuda(arch="h200", device=0)
    device = open_cuda(arch="h200")
    assert device.spec.num_veus == 132
    assert isinstance(device, GpuVDevice) and "shows no NVIDIA GPU" in device.missing


def test_probing_loads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(driver, "NODES", (str(tmp_path / "nvidia0"),))
    assert probe().reason == "this machine has no NVIDIA GPU"
    (tmp_path / "nvidia0").touch()

    def absent(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    with monkeypatch.context() as patch:
        patch.setattr(driver.ctypes, "CDLL", absent)
        assert probe().reason == "there is an NVIDIA GPU, but no driver"
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: None)
    assert probe().hint == "pip install cupy-cuda13x"
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: name)
    assert probe().ok


def test_without_cupy_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(driver.importlib, "import_module", absent)
    driver._module.cache_clear()
    with pytest.raises(DeviceError, match="pip install cupy-cuda13x"):
        find_gpu(0)
