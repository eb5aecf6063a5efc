"""The runtime of CUDA against a stand-in for cupy, whose kernels are the emulator's: the real one needs a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cupy import CUDADriverError, CUDARuntimeError, FakeCupy, OnGpu, OutOfMemoryError
from simt_plans import agree, chain, image, mirror, placed, values

import rammer
from rammer.demo import lstm_stack
from rammer.errors import ArtifactError, DeviceError, InputError
from rammer.ir.memory import plan_memory
from rammer.ir.operator import Operations
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import TensorType
from rammer.kernels import candidates
from rammer.vdevice.base import Image, silent
from rammer.vdevice.cuda import device, driver, profile, runtime
from rammer.vdevice.cuda.build import CUBIN, RESOURCES, Cubin, Resources
from rammer.vdevice.cuda.device import CudaVDevice
from rammer.vdevice.cuda.driver import find_gpu, load_cupy, probe
from rammer.vdevice.cuda.runtime import CudaExecutable
from rammer.vdevice.cuda.spec import choose_gpu, make_spec
from rammer.vdevice.simt.image import SOURCE

GRAPH = chain(3)
LANES = [[0, [(1, 1)], 2], [[(0, 0)], 1]]
CODE = Resources(64, 0, 0, 1, "NVRTC 13.5")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    fake = FakeCupy()
    monkeypatch.setattr(driver, "_module", lambda: fake)
    yield fake


def made(lanes: Any = LANES, resources: Resources = CODE) -> Image:
    """A program of two vEUs whose cubin is its text."""
    return cubin_image(placed(GRAPH, [mirror(GRAPH)] * 3, lanes), resources)


def cubin_image(plan: ExecutionPlan, resources: Resources = CODE) -> Image:
    found = image(plan)
    files = {**found.files, CUBIN: found.files[SOURCE], RESOURCES: json.dumps(asdict(resources)).encode()}
    return replace(found, files=files)


def executable(lanes: Any = LANES, **options: Any) -> CudaExecutable:
    return CudaExecutable(made(lanes), 0, choose_gpu("h200"), **options)


def test_a_run(cupy: FakeCupy) -> None:
    loaded = executable()
    uploads = cupy.calls.count("empty")
    for seed in range(3):
        assert agree(GRAPH, loaded, seed)  # type: ignore[arg-type]
    assert cupy.calls.count("launch") == 3 and cupy.calls.count("empty") == uploads == 2  # weights, arena: once
    assert loaded.times_us(values(), 4) == [500.0] * 4


def test_every_timed_run_starts_from_its_inputs(cupy: FakeCupy) -> None:
    """A plan may put a tensor where an input was: what is timed again would find it there."""
    plan = placed(GRAPH, [mirror(GRAPH)] * 3, LANES)
    loaded = CudaExecutable(cubin_image(replace(plan, memory=plan_memory(plan))), 0, choose_gpu("h200"))
    wanted = loaded.run(values())
    (_, x), (_, y) = loaded._inputs[0], loaded._outputs[0]
    assert not np.array_equal(x.get(), values()["x"]), "the plan leaves its input alone: this test shows nothing"
    seen: list[bool] = []
    loaded.times_us(values(), 3, before=lambda: seen.append(np.array_equal(x.get(), values()["x"])))
    assert seen == [True] * 3
    np.testing.assert_array_equal(y.get(), wanted["t2"])


def test_a_graph_is_recorded_once(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are frozen in it: another limit of the watchdog needs another one."""
    loaded = executable(graph=True)
    for seed in range(3):
        assert agree(GRAPH, loaded, seed)  # type: ignore[arg-type]
    assert cupy.calls.count("begin_capture") == 1 and cupy.calls.count("Graph.launch") == 3
    monkeypatch.setenv("RAMMER_WATCHDOG_SECONDS", "7")
    assert agree(GRAPH, loaded)  # type: ignore[arg-type]
    assert cupy.calls.count("begin_capture") == 2 and cupy.calls.count("launch") == 2
    cupy.fails["launch"] = CUDADriverError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: no")
    monkeypatch.setenv("RAMMER_WATCHDOG_SECONDS", "8")
    with pytest.raises(DeviceError, match="CAPTURE_UNSUPPORTED"):
        loaded.run(values())
    assert cupy.capturing is None, "the stream was left in capture"
    cupy.fails.clear()
    assert agree(GRAPH, loaded)  # type: ignore[arg-type]
    monkeypatch.setenv("RAMMER_CUDA_GRAPH", "1")
    assert executable()._recording and not executable(graph=False)._recording


def test_a_timed_run(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a second kernel with clocks, compiled once; the whole run's time is that of events."""
    compiled: list[str] = []

    def compile_once(text: str, arch: str) -> Cubin:
        compiled.append(arch)
        return Cubin(text.encode(), CODE, "")

    monkeypatch.setattr(runtime, "compile_cubin", compile_once)
    loaded = executable()
    wanted = loaded.run(values())
    for _ in range(2):
        outputs, times = loaded.run_timed(values())
        np.testing.assert_array_equal(outputs["t2"], wanted["t2"])
    assert compiled == ["sm_90"] and times.total_us == 500.0 and not times.emulated
    assert [o.tolist() for o in times.operators[0]] == [[0, -1, 2], [-1, 1]]
    loaded.close()
    with pytest.raises(DeviceError, match="closed"):
        loaded.run_timed(values())


@pytest.mark.parametrize("how", ["dlpack", "interface"])
def test_arrays_on_the_device(cupy: FakeCupy, how: str) -> None:
    loaded = executable()
    x = values()
    wanted = loaded.run(x)
    found = loaded.run_device({"x": OnGpu(x["x"], how)})
    assert type(found["t2"]).__name__ == "Array", "outputs stay on the GPU"
    np.testing.assert_array_equal(found["t2"], wanted["t2"])
    again = loaded.run_device(x)  # host arrays are uploaded
    np.testing.assert_array_equal(again["t2"], wanted["t2"])
    assert not np.shares_memory(found["t2"], again["t2"]), "a later run changed an output"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (OnGpu(np.zeros(64, np.float64)), "dtype float64, the program takes float32"),
        (OnGpu(np.zeros((8, 8), np.float32)), "rank 2"),
        (OnGpu(np.zeros(63, np.float32)), "dimension 0 is 63, the program takes 64"),
        (OnGpu(np.zeros(128, np.float32)[::2]), "not contiguous"),
        (OnGpu(np.zeros(64, np.float32), number=3), "lies on GPU 3, the program on GPU 0"),
    ],
)
def test_arrays_that_do_not_fit(cupy: FakeCupy, given: OnGpu, text: str) -> None:
    loaded = executable()
    with pytest.raises(InputError, match=text):
        loaded.run_device({"x": given})
    assert agree(GRAPH, loaded)  # type: ignore[arg-type]


def test_an_array_that_cupy_refuses(cupy: FakeCupy) -> None:
    loaded = executable()
    cupy.fails["from_dlpack"] = BufferError("strange memory")
    with pytest.raises(InputError, match="input 'x': cannot be read on the GPU: strange memory"):
        loaded.run_device({"x": OnGpu(values()["x"])})
    cupy.fails["from_dlpack"] = CUDARuntimeError("cudaErrorInvalidValue: no")
    with pytest.raises(DeviceError, match="cudaErrorInvalidValue"):
        loaded.run_device({"x": OnGpu(values()["x"])})


def test_programs_take_arrays_of_the_gpu(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through `Program`, from a compilation on: one array on the GPU leaves all outputs there."""
    monkeypatch.setattr(device, "probe", lambda: driver.Availability(True))
    monkeypatch.setattr(device, "compile_cubin", lambda text, arch: Cubin(text.encode(), CODE, ""))
    cupy.properties["multiProcessorCount"] = 4
    x = np.random.default_rng(0).standard_normal((2, 1, 8)).astype(np.float32)
    with rammer.compile(lstm_stack(1, 2, 8), "cuda", tune_seconds=0) as program:
        wanted = program(x)
        found = program(OnGpu(x))
        assert isinstance(wanted, np.ndarray) and type(found).__name__ == "Array"
        np.testing.assert_array_equal(found, wanted)
        with pytest.raises(InputError, match="dtype float64"):
            program(OnGpu(x.astype(np.float64)))
        with pytest.raises(InputError, match="no input named"):
            program.run({"y": OnGpu(x)})
        assert program.executable.times_us({"x": x}, 2) == [500.0] * 2  # type: ignore[attr-defined]
    with (
        rammer.compile(lstm_stack(1, 2, 8), "cuda", device="emulator:4", tune_seconds=0) as program,
        pytest.raises(InputError, match="lies on a GPU, the program runs on the host"),
    ):
        program(OnGpu(x))


def test_failures_are_ours_and_pass(cupy: FakeCupy) -> None:
    loaded = executable()
    for error, text in (
        (CUDADriverError("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: too many"), "cannot hold all vEUs at once"),
        (CUDADriverError("CUDA_ERROR_ILLEGAL_ADDRESS: oops"), "the process has lost the GPU"),
        (CUDARuntimeError("cudaErrorNew: what"), "nvidia-smi"),
    ):
        cupy.fails["launch"] = error
        with pytest.raises(DeviceError, match=f"failed to run the program: (.|\n)*{text}"):
            loaded.run(values())
    cupy.fails.clear()
    assert agree(GRAPH, loaded)  # type: ignore[arg-type]
    loaded.close()
    loaded.close()
    with pytest.raises(DeviceError, match="closed"):
        loaded.run(values())
    assert cupy.calls[-1] == "free_all_blocks"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        ("Module.load", CUDADriverError("CUDA_ERROR_NO_BINARY_FOR_GPU: no"), "compile with arch= of this GPU"),
        ("Module.load", CUDADriverError("CUDA_ERROR_INVALID_IMAGE: no"), "update NVIDIA's driver"),
        ("funcSetAttribute", CUDADriverError("CUDA_ERROR_INVALID_VALUE: no"), "failed to load the program"),
        (
            "empty",
            OutOfMemoryError("Out of memory allocating 5,000 bytes"),
            r"to load the program(.|\n)*3072 of 144384 MiB",
        ),
    ],
)
def test_failures_to_load_leave_nothing_behind(cupy: FakeCupy, call: str, error: Exception, text: str) -> None:
    cupy.fails[call] = error
    with pytest.raises(DeviceError, match=text):
        executable()
    assert cupy.calls[-1] == "free_all_blocks"
    cupy.fails.clear()
    assert agree(GRAPH, executable())  # type: ignore[arg-type]


def test_a_deadlock_leaves_the_gpu_usable(cupy: FakeCupy) -> None:
    for graph in (False, True):
        loaded = executable([[0, [(1, 1)], 2], [[(0, 2)], 1]], graph=graph)
        for _ in range(2):
            with pytest.raises(DeviceError, match="waited in vain"):
                loaded.run(values())


def test_images_for_others_are_refused(cupy: FakeCupy) -> None:
    h200, whole = choose_gpu("h200"), made()

    def without(name: str) -> Image:
        return replace(whole, files={n: data for n, data in whole.files.items() if n != name})

    with pytest.raises(ArtifactError, match="no machine code"):
        CudaExecutable(without(CUBIN), 0, h200)
    with pytest.raises(ArtifactError, match=r"'resources\.json' is damaged"):
        CudaExecutable(without(RESOURCES), 0, h200)
    with pytest.raises(ArtifactError, match="the program is for sm_90, a100 is sm_80"):
        CudaExecutable(whole, 0, choose_gpu("a100"))
    with pytest.raises(DeviceError, match=r"2 vEUs cannot all be on h200 at once: .* on each of 0 SMs"):
        CudaExecutable(whole, 0, replace(h200, num_sms=0))
    cupy.blocks_per_sm = 0
    with pytest.raises(DeviceError, match="2 vEUs, h200 holds 0 of them at once"):
        CudaExecutable(whole, 0, h200)
    cupy.driver_version = 12040
    with pytest.raises(DeviceError, match=r"for CUDA 12.4; the program's machine code is of NVRTC 13.5(.|\n)*12"):
        CudaExecutable(whole, 0, h200)


def test_finding_the_gpu(cupy: FakeCupy) -> None:
    assert find_gpu(0).name == "h200"
    with pytest.raises(DeviceError, match="no NVIDIA GPU 3; there are 1"):
        find_gpu(3)
    cupy.properties.update(major=6, minor=1)
    with pytest.raises(DeviceError, match="sm_61; programs need sm_70"):
        find_gpu(0)


def test_what_is_missing_is_said(cupy: FakeCupy) -> None:
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


def test_probing_loads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(driver, "NODES", (str(tmp_path / "nvidia0"),))
    assert probe().reason == "this machine has no NVIDIA GPU"
    (tmp_path / "nvidia0").touch()

    def absent(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    with monkeypatch.context() as patch:
        patch.setattr(driver.ctypes, "CDLL", absent)
        assert probe().reason == "there is an NVIDIA GPU, but no driver for it"
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: None)
    assert probe().hint == "pip install cupy-cuda13x"
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: name)
    assert probe().ok


def test_a_vdevice_on_it(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """From `open` to a measured plan; another arch is compiled for, and says that it cannot run."""
    monkeypatch.setattr(device, "probe", lambda: driver.Availability(True))
    monkeypatch.setattr(device, "compile_cubin", lambda text, arch: Cubin(text.encode(), CODE, ""))
    vdevice = CudaVDevice()
    assert vdevice.spec.num_veus == 132
    assert vdevice.plans_us([placed(GRAPH, [mirror(GRAPH)] * 3, LANES)] * 2) == [500.0, 500.0]
    other = CudaVDevice(arch="sm_80")
    assert other.spec.arch == "sm_80" and "the GPU here is h200 (sm_90)" in other.missing
    with pytest.raises(DeviceError, match="no CUDA device 'gpu'"):
        CudaVDevice(device="gpu")


def test_kernels_are_timed_and_times_kept(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every lane runs its tasks; what is measured once is not measured again."""
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(profile, "nvrtc_version", lambda: "NVRTC 0")
    monkeypatch.setattr(profile, "compile_cubin", lambda text, arch: Cubin(text.encode(), CODE, ""))
    clock = iter(range(1, 10**6))
    cupy.elapsed_ms = lambda: float(next(clock))
    operation = Operations(OPS).define("matmul", (TensorType((8, 32)), TensorType((32, 64))), ())
    kernels = candidates(operation, make_spec(choose_gpu("h200"), 2))
    first = profile.measure_kernels(kernels, 0, choose_gpu("h200"), 2, 10.0, silent)
    assert set(first) == set(kernels) and all(t > 0 for t in first.values())
    launches = cupy.calls.count("launch")
    assert launches == 4 * (1 + len(kernels))
    assert profile.measure_kernels(kernels, 0, choose_gpu("h200"), 2, 10.0, silent) == first
    assert cupy.calls.count("launch") == launches


def test_without_cupy_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(driver.importlib, "import_module", absent)
    driver._module.cache_clear()
    with pytest.raises(DeviceError, match="pip install cupy-cuda13x"):
        find_gpu(0)
