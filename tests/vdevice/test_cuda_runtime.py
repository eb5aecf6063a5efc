"""The runtime of CUDA against a stand-in for cupy, whose kernels are the emulator's: the real one needs a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from simt_plans import agree, chain, image, mirror, placed, values

from rammer.errors import ArtifactError, DeviceError
from rammer.ir.operator import Operations
from rammer.ir.ops import OPS
from rammer.ir.tensor import TensorType
from rammer.kernels import candidates
from rammer.vdevice.base import silent
from rammer.vdevice.cuda import profile, runtime
from rammer.vdevice.cuda.build import CUBIN, Cubin, Resources
from rammer.vdevice.cuda.runtime import CudaExecutable, find_gpu
from rammer.vdevice.cuda.spec import choose_gpu, make_spec
from rammer.vdevice.library import Library
from rammer.vdevice.simt.emulator.compile import compile_host
from rammer.vdevice.simt.image import SOURCE

GRAPH = chain(3)
LANES = [[0, [(1, 1)], 2], [[(0, 0)], 1]]


class DeviceArray(np.ndarray[Any, Any]):
    """What runtime.py uses of cupy.ndarray."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)

    def set(self, value: Any, stream: Any = None) -> None:
        assert value.dtype == self.dtype and value.shape == self.shape
        self[...] = value

    def get(self, stream: Any = None) -> Any:
        return np.array(self)


class CudaError(Exception):
    """An error of the driver."""


class DeviceStream(nullcontext[None]):
    def synchronize(self) -> None: ...


class Kernel:
    """A function of a module: runs the program's text on the host."""

    max_dynamic_shared_size_bytes = 0
    launches = 0
    fails = False

    def __init__(self, text: str) -> None:
        self.library = Library(compile_host(text))

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int, stream: Any) -> None:
        if Kernel.fails:
            raise CudaError("cudaErrorCooperativeLaunchTooLarge")
        Kernel.launches += 1
        assert shared_mem == self.max_dynamic_shared_size_bytes
        words = [a.ctypes.data if isinstance(a, np.ndarray) else int(a) for a in args]
        assert len(words) == 8
        run = self.library.function("simt_run", ctypes.c_int, ctypes.c_void_p, *(ctypes.c_long,) * 5)
        packed = np.array(words, np.int64)
        assert run(packed.ctypes.data, grid[0], block[0], shared_mem, 1, 0) == 0


def device_array(value: Any) -> DeviceArray:
    whole = np.zeros(value.nbytes + 256, np.uint8)
    first = -whole.ctypes.data % 256
    out = whole[first : first + value.nbytes].view(value.dtype).reshape(value.shape)
    out[...] = value
    return out.view(DeviceArray)


def raw_module(*, path: str, enable_cooperative_groups: bool) -> Any:
    assert enable_cooperative_groups
    return SimpleNamespace(get_function=lambda name: Kernel(Path(path).read_text()))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    properties = {
        "name": b"NVIDIA H200",
        "major": 9,
        "minor": 0,
        "multiProcessorCount": 132,
        "sharedMemPerBlockOptin": 227 << 10,
        "l2CacheSize": 50 << 20,
        "totalGlobalMem": 141 << 30,
    }
    event = SimpleNamespace(record=lambda s: None, synchronize=lambda: None)
    fake = SimpleNamespace(
        empty=lambda n, dtype: device_array(np.full(n, 255, dtype)),
        zeros=lambda n, dtype: device_array(np.zeros(n, dtype)),
        asarray=lambda a: device_array(np.asarray(a)),
        copyto=np.copyto,
        from_dlpack=np.from_dlpack,
        RawModule=raw_module,
        cuda=SimpleNamespace(
            Device=lambda n: nullcontext(),
            Stream=lambda non_blocking: DeviceStream(),
            Event=lambda: event,
            get_elapsed_time=lambda a, b: 0.5,
            runtime=SimpleNamespace(
                CUDARuntimeError=CudaError,
                deviceSynchronize=lambda: None,
                getDeviceCount=lambda: 1,
                getDeviceProperties=lambda n: properties,
            ),
            driver=SimpleNamespace(CUDADriverError=CudaError),
            memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        ),
    )
    monkeypatch.setattr(runtime, "_cupy", lambda: fake)
    Kernel.launches, Kernel.fails = 0, False
    fake.properties = properties
    yield fake


def executable(lanes: Any = LANES, programs: int = 1) -> CudaExecutable:
    plan = placed(GRAPH, [mirror(GRAPH)] * 3, lanes)
    made = image(plan)
    made = replace(made, files={**made.files, CUBIN: made.files[SOURCE]})
    return CudaExecutable(made, 0, choose_gpu("h200"))


def test_a_run(cupy: Any) -> None:
    loaded = executable()
    for seed in range(3):
        assert agree(GRAPH, loaded, seed)  # type: ignore[arg-type]
    assert Kernel.launches == 3
    assert loaded.times_us(4) == [500.0] * 4


def test_arrays_on_the_device(cupy: Any) -> None:
    loaded = executable()
    x = values()
    wanted = loaded.run(x)
    found = loaded.run_device({"x": x["x"]})
    np.testing.assert_array_equal(found["t2"], wanted["t2"])


def test_failures_are_ours_and_pass(cupy: Any) -> None:
    loaded = executable()
    Kernel.fails = True
    with pytest.raises(DeviceError, match="failed to run the program: cudaErrorCooperativeLaunchTooLarge"):
        loaded.run(values())
    Kernel.fails = False
    assert agree(GRAPH, loaded)  # type: ignore[arg-type]
    loaded.close()
    with pytest.raises(DeviceError, match="closed"):
        loaded.run(values())


def test_a_deadlock_leaves_the_gpu_usable(cupy: Any) -> None:
    loaded = executable([[0, [(1, 1)], 2], [[(0, 2)], 1]])
    for _ in range(2):
        with pytest.raises(DeviceError, match="waited in vain"):
            loaded.run(values())


def test_images_for_others_are_refused(cupy: Any) -> None:
    made = image(placed(GRAPH, [mirror(GRAPH)] * 3, LANES))
    with pytest.raises(ArtifactError, match="no machine code"):
        CudaExecutable(made, 0, choose_gpu("h200"))
    with pytest.raises(ArtifactError, match="the program is for sm_90, a100 is sm_80"):
        CudaExecutable(replace(made, files={**made.files, CUBIN: b""}), 0, choose_gpu("a100"))


def test_finding_the_gpu(cupy: Any) -> None:
    assert find_gpu(0).name == "h200"
    with pytest.raises(DeviceError, match="no NVIDIA GPU 3; there are 1"):
        find_gpu(3)
    cupy.properties.update(major=6, minor=1)
    with pytest.raises(DeviceError, match="sm_61; programs need sm_70"):
        find_gpu(0)


def test_kernels_are_timed_and_times_kept(cupy: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every lane runs its tasks; what is measured once is not measured again."""
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path))
    code = Resources(64, 0, 0, 1)
    monkeypatch.setattr(profile, "nvrtc_version", lambda: "NVRTC 0")
    monkeypatch.setattr(profile, "compile_cubin", lambda text, arch: Cubin(text.encode(), code, ""))
    clock = iter(range(1, 10**6))
    cupy.cuda.get_elapsed_time = lambda a, b: float(next(clock))
    operation = Operations(OPS).define("matmul", (TensorType((8, 32)), TensorType((32, 64))), ())
    kernels = candidates(operation, make_spec(choose_gpu("h200"), 2))
    first = profile.measure_kernels(kernels, 0, choose_gpu("h200"), 2, 10.0, silent)
    assert set(first) == set(kernels) and all(t > 0 for t in first.values())
    launches = Kernel.launches
    assert launches == 4 * (1 + len(kernels))
    assert profile.measure_kernels(kernels, 0, choose_gpu("h200"), 2, 10.0, silent) == first
    assert Kernel.launches == launches


def test_without_cupy_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(runtime.importlib, "import_module", absent)
    runtime._cupy.cache_clear()
    with pytest.raises(DeviceError, match="pip install cupy-cuda13x"):
        find_gpu(0)
