"""One runtime over two drivers: each test runs on stand-ins for cupy and for AMD's library, whose kernels are the
emulator's. A real GPU runs none of them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from fake_gpus import GRAPH, FakeGpu
from simt_plans import SIZE, agree, values

import rammer
from rammer.errors import ArtifactError, DeviceError, InputError
from rammer.ir.operator import Operations
from rammer.ir.ops import OPS
from rammer.ir.tensor import Array, TensorType
from rammer.kernels import candidates
from rammer.planner.memory import plan_memory
from rammer.vdevice.base import DeviceArrays, Image, TimedExecutable
from rammer.vdevice.simt.codegen.table import END
from rammer.vdevice.simt.runtime.streams import RESOURCES
from rammer.vdevice.simt.tune.profile import PASSED, TASKS, lanes
from rammer_viz.demo import lstm_stack


def on_host(output: Any) -> Array:
    """An output that was left on the GPU."""
    found: Array = output.get()
    return found


def test_a_run(gpu: FakeGpu) -> None:
    loaded = gpu.executable()
    taken = gpu.count("memory")
    for seed in range(3):
        assert agree(GRAPH, loaded, seed)
    assert gpu.count("replay" if gpu.target == "cuda" else "launch") == 3
    assert gpu.count("memory") == taken, "a run takes no memory"
    assert loaded.times_us(values(), 4) == [500.0] * 4
    assert isinstance(loaded, DeviceArrays) and isinstance(loaded, TimedExecutable)
    loaded.close()
    loaded.close()
    with pytest.raises(InputError, match="closed"):
        loaded.run(values())


def test_every_timed_run_starts_from_its_inputs(gpu: FakeGpu) -> None:
    """A plan may put a tensor where an input was: what is timed again would find it there."""
    plan, vdevice = gpu.plan(), gpu.vdevice()
    loaded = vdevice.open(vdevice.build(replace(plan, memory=plan_memory(plan))))
    wanted = loaded.run(values())
    assert loaded._loaded
    (_, x), (_, y) = loaded._loaded.inputs[0], loaded._loaded.outputs[0]

    def at(address: int) -> Array:
        return loaded._driver.read(address, np.empty(SIZE, np.float32))

    def given() -> bool:
        return np.array_equal(at(x), values()["x"])

    assert not given(), "the plan leaves its input alone: this test shows nothing"
    seen: list[bool] = []
    loaded.times_us(values(), 3, before=lambda: seen.append(given()))
    assert seen == [True] * 3
    np.testing.assert_array_equal(at(y), wanted["t2"])
    loaded.close()


def test_a_graph_is_recorded_once(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are frozen in it: another limit of the watchdog needs another one."""
    loaded = gpu.executable(graph=True)
    for seed in range(3):
        assert agree(GRAPH, loaded, seed)
    assert gpu.count("capture") == 1 and gpu.count("replay") == 3
    monkeypatch.setenv("RAMMER_WATCHDOG_SECONDS", "7")
    assert agree(GRAPH, loaded)
    assert gpu.count("capture") == 2 and gpu.count("launch") == 2
    gpu.fail("launch", "uncapturable")
    monkeypatch.setenv("RAMMER_WATCHDOG_SECONDS", "8")
    with pytest.raises(DeviceError, match=r"CAPTURE_UNSUPPORTED|StreamCaptureUnsupported(.|\n)*RAMMER_GPU_GRAPH=0"):
        loaded.run(values())
    gpu.fail()
    assert agree(GRAPH, loaded), "the stream was left in capture"
    loaded.close()
    monkeypatch.setenv("RAMMER_GPU_GRAPH", "1")
    for recording, options in ((True, {}), (False, {"graph": False})):
        loaded = gpu.executable(**options)  # type: ignore[arg-type]
        before = gpu.count("replay")
        loaded.run(values())
        assert gpu.count("replay") == before + recording
        loaded.close()


@pytest.mark.parametrize("policy", ["wavefront", "sequential"])
def test_launches_are_recorded_where_that_is_known_to_work(gpu: FakeGpu, policy: str) -> None:
    """A launch by itself takes fifteen times as long as a node of a graph (docs/measurements.md)."""
    before = gpu.count("capture")
    with rammer.compile(lstm_stack(1, 2, 8), gpu.target, policy=policy, tune_seconds=0) as program:
        inputs = {"x": np.ones((2, 1, 8), np.float32)}
        first, again = (program.run(inputs)["y"] for _ in range(2))
        np.testing.assert_array_equal(first, again)
        assert (program.report().num_rprograms > 1) == (policy == "sequential")
        assert gpu.count("capture") - before == (gpu.target == "cuda")


def test_a_timed_run(gpu: FakeGpu) -> None:
    """By a second kernel with clocks, compiled once; the whole run's time is that of events."""
    loaded = gpu.executable()
    wanted = loaded.run(values())
    before = len(gpu.compiled)
    for _ in range(2):
        outputs, times = loaded.run_timed(values())
        np.testing.assert_array_equal(outputs["t2"], wanted["t2"])
    assert len(gpu.compiled) == before + 1 and times.total_us == 500.0 and not times.emulated
    assert [o.tolist() for o in times.operators[0]] == [[0, -1, 2], [-1, 1]]
    assert all(np.all(slots[:, 0] <= slots[:, 1]) for slots in times.programs[0])
    loaded.close()
    with pytest.raises(InputError, match="closed"):
        loaded.run_timed(values())


@pytest.mark.parametrize("how", ["dlpack", "interface"])
def test_arrays_on_the_device(gpu: FakeGpu, how: str) -> None:
    loaded = gpu.executable()
    x = values()
    wanted = loaded.run(x)
    found = loaded.run_device({"x": gpu.array(x["x"], how)})
    assert gpu.count("wait") == 1, "what was enqueued before comes first"
    assert type(found["t2"]) is not np.ndarray, "outputs stay on the GPU"
    np.testing.assert_array_equal(on_host(found["t2"]), wanted["t2"])
    again = loaded.run_device(values(1))  # host arrays are uploaded
    np.testing.assert_array_equal(on_host(found["t2"]), wanted["t2"]), "a later run changed an output"
    loaded.close()
    assert not np.array_equal(on_host(again["t2"]), wanted["t2"]), "an output dies with the program"


@pytest.mark.parametrize("how", ["dlpack", "interface"])
@pytest.mark.parametrize(
    ("value", "number", "text"),
    [
        (np.zeros(64, np.float64), 0, "dtype float64, the program takes float32"),
        (np.zeros((8, 8), np.float32), 0, "rank 2"),
        (np.zeros(63, np.float32), 0, "axis 0 is 63, the program takes 64"),
        (np.zeros(128, np.float32)[::2], 0, "not contiguous"),
        (np.zeros(64, np.float32), 3, "lies on GPU 3, the program on GPU 0"),
    ],
)
def test_arrays_that_do_not_fit(gpu: FakeGpu, how: str, value: Array, number: int, text: str) -> None:
    loaded = gpu.executable()
    with pytest.raises(InputError, match=text):
        loaded.run_device({"x": gpu.array(value, how, number)})
    assert agree(GRAPH, loaded)
    loaded.close()


def test_programs_take_arrays_of_the_gpu(gpu: FakeGpu) -> None:
    """Through `Program`, from a compilation on: one array on the GPU leaves all outputs there."""
    x = np.random.default_rng(0).standard_normal((2, 1, 8)).astype(np.float32)
    with rammer.compile(lstm_stack(1, 2, 8), gpu.target, tune_seconds=0) as program:
        wanted = program(x)
        found = program(gpu.array(x))
        assert isinstance(wanted, np.ndarray)
        np.testing.assert_array_equal(on_host(found), wanted)
        with pytest.raises(InputError, match="dtype float64"):
            program(gpu.array(x.astype(np.float64)))
        with pytest.raises(InputError, match="no input named"):
            program.run({"y": gpu.array(x)})
        assert program.executable.times_us({"x": x}, 2) == [500.0] * 2  # type: ignore[attr-defined]
        assert program.profile({"x": x}, seconds=0).to_json()["emulated"] is False
    with (
        rammer.compile(lstm_stack(1, 2, 8), gpu.target, device="emulator:4", tune_seconds=0) as program,
        pytest.raises(InputError, match="lies on a GPU, the program runs on the host"),
    ):
        program(gpu.array(x))


def test_failures_are_ours_and_pass(gpu: FakeGpu) -> None:
    loaded = gpu.executable()
    for error, text in (("too large", "cannot hold all vEUs at once"), ("new", "(nvidia|rocm)-smi")):
        gpu.fail("launch", error)
        with pytest.raises(DeviceError, match=f"failed to run the program: (.|\n)*{text}"):
            loaded.run(values())
    gpu.fail()
    assert agree(GRAPH, loaded)
    loaded.close()


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        ("load", "other code", "compile with arch= of this GPU"),
        ("memory", "memory", "the model needs more memory than the GPU has free"),
    ],
)
def test_failures_to_load_leave_nothing_behind(gpu: FakeGpu, what: str, error: str, text: str) -> None:
    made = gpu.image()
    gpu.fail(what, error)
    with pytest.raises(DeviceError, match=f"to load the program(.|\n)*{text}"):
        gpu.vdevice().open(made)
    gpu.fail()
    loaded = gpu.executable()
    assert agree(GRAPH, loaded)
    loaded.close()


def test_a_deadlock_leaves_the_gpu_usable(gpu: FakeGpu) -> None:
    for graph in (False, True):
        loaded = gpu.executable([[0, [(1, 1)], 2], [[(0, 2)], 1]], graph=graph)
        for _ in range(2):
            with pytest.raises(DeviceError, match="waited in vain"):
                loaded.run(values())
        loaded.close()


def test_images_for_others_are_refused(gpu: FakeGpu) -> None:
    vdevice, whole = gpu.vdevice(), gpu.image()
    here = vdevice.gpu

    def without(name: str) -> Image:
        return replace(whole, files={n: data for n, data in whole.files.items() if n != name})

    with pytest.raises(ArtifactError, match="no machine code"):
        vdevice.open(without(vdevice.platform.code_file))
    with pytest.raises(ArtifactError, match=r"'resources\.json' is damaged"):
        vdevice.open(without(RESOURCES))
    vdevice.gpu = replace(here, arch="other", name="another")
    with pytest.raises(ArtifactError, match=f"the program is for {here.arch}, another is other"):
        vdevice.open(whole)
    vdevice.gpu = replace(here, num_multiprocessors=0)
    with pytest.raises(DeviceError, match=r"2 vEUs cannot all be on .* at once: .* on each of 0 multiprocessors"):
        vdevice.open(whole)
    vdevice.gpu = here
    gpu.blocks(0)
    with pytest.raises(DeviceError, match=f"2 vEUs, {here.name} holds 0 of them at once"):
        vdevice.open(whole)


def test_another_arch_is_compiled_for(gpu: FakeGpu) -> None:
    """And says that it cannot run."""
    vdevice = gpu.vdevice()
    arch = {"cuda": "sm_80", "rocm": "gfx90a"}[gpu.target]
    other = gpu.vdevice(arch=arch)
    assert other.spec.arch == arch and f"the GPU here is {vdevice.gpu.name} ({vdevice.gpu.arch})" in other.missing
    assert other.rkernels_us([]) == {}
    with pytest.raises(DeviceError, match=f"no {vdevice.platform.label} device 'gpu'"):
        gpu.vdevice(device="gpu")


def test_kernels_are_timed_and_times_kept(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every lane runs its tasks; what is measured once is not measured again."""
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path))
    gpu.elapsed(iter(range(1, 10**6)))
    vdevice = gpu.vdevice()
    vdevice.spec = replace(vdevice.spec, num_veus=2)
    operation = Operations(OPS).define("matmul", (TensorType((8, 32)), TensorType((32, 64))), ())
    kernels = candidates(operation, vdevice.spec)
    first = vdevice.rkernels_us(kernels)
    assert set(first) == set(kernels) and all(t > 0 for t in first.values())
    launches = gpu.count("launch")
    assert launches == 4 * (3 + len(kernels))
    assert vdevice.rkernels_us(kernels) == first
    assert gpu.count("launch") == launches


def test_a_timed_kernel_finds_no_cache_warm() -> None:
    """Each of its rTasks stands behind a wait, which empties the first cache, though it runs again and again."""
    table, bounds = lanes(7, 3, 2, 4, len(PASSED))
    tasks = table[table[:, 0] != END]
    assert len(tasks) == 3 * TASKS and np.diff(bounds).tolist() == [TASKS + 1] * 3 + [1]
    assert np.all(tasks[:, 5] == len(PASSED)) and np.all(tasks[:, 4] == 0) and np.all(tasks[:, 6] == 0)
    assert len({veu for veu, _ in PASSED}) > 1, "a vEU skips what a list says of itself"


def test_kernels_that_only_fit_alone_are_timed_alone(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path))
    vdevice = gpu.vdevice()
    vdevice.spec = replace(vdevice.spec, num_veus=2)
    operation = Operations(OPS).define("matmul", (TensorType((8, 32)), TensorType((32, 64))), ())
    kernels = candidates(operation, vdevice.spec)[:3]
    sizes: list[int] = []

    def check_fits(*_: Any) -> None:
        sizes.append(gpu.compiled[-1].count("MK_TASK void k_"))
        if sizes[-1] > 1:
            raise DeviceError("too many registers")

    monkeypatch.setattr(vdevice, "check_fits", check_fits)
    assert set(vdevice.rkernels_us(kernels)) == set(kernels)
    assert sorted(sizes) == [1, 1, 1, 2, 3]


STEP = """<ir_version: 10, opset_import: ["" : 24]>
    step (float[2, 3, 29, 8] past_k, float[2, 3, 1, 8] new, int64[2] at, float[5] h_in)
        => (float[2, 3, 8] y, float[2, 3, 29, 8] present_k, float[5] h_out) {
      present_k = TensorScatter <axis = 2> (past_k, new, at)
      axes = Constant <value_ints = [2]> ()
      y = ReduceSum <keepdims = 0> (present_k, axes)
      h_out = Add (h_in, h_in)
    }"""


@pytest.mark.parametrize("graph", ["0", "1"])
def test_state_stays_on_the_gpu(gpu: FakeGpu, graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache is changed where it lies, a state has two places, and the host sees neither of them."""
    monkeypatch.setenv("RAMMER_GPU_GRAPH", graph)
    random = np.random.default_rng(4)
    with rammer.compile(onnx.parser.parse_model(STEP), gpu.target, state=True, tune_seconds=0) as program:
        executable: Any = program.executable
        driver, copied = executable._driver, []
        for name in ("write", "read", "copy"):
            monkeypatch.setattr(driver, name, _noting(copied, getattr(driver, name)))
        streams = [(program.stream(), np.zeros((2, 3, 29, 8), np.float32)) for _ in range(2)]
        for stream, _ in streams:
            stream.reset(h_in=np.ones(5, np.float32))
        for step in range(5):
            for stream, cache in streams:
                new = random.standard_normal((2, 3, 1, 8)).astype(np.float32)
                cache[0, :, step], cache[1, :, 28 - step] = new[0, :, 0], new[1, :, 0]
                at = np.array([step, 28 - step])
                copied.clear()
                values = {"new": new, "at": at}
                if step % 2:
                    values["new"] = gpu.array(new)
                    np.testing.assert_allclose(on_host(stream.run(values)["y"]), cache.sum(2), rtol=1e-4, atol=1e-5)
                else:
                    np.testing.assert_allclose(stream.run(values)["y"], cache.sum(2), rtol=1e-4, atol=1e-5)
                if step:
                    assert max(copied) < cache.nbytes, "the cache was copied"
        for stream, cache in streams:
            np.testing.assert_array_equal(stream.state()["past_k"], cache)
            np.testing.assert_array_equal(stream.state()["h_in"], np.full(5, 2.0**5, np.float32))
        wanted = executable.run({"past_k": cache, "new": new, "at": at, "h_in": np.ones(5, np.float32)})
        np.testing.assert_array_equal(wanted["present_k"], cache)  # at home again
        one, kept = streams[0][0], streams[0][0].state()
    np.testing.assert_array_equal(one.state()["past_k"], kept["past_k"])  # the program is closed


def _noting(copied: list[int], function: Any) -> Any:
    def noted(*arguments: Any) -> Any:
        last = arguments[-1]
        copied.append(last if isinstance(last, int) else last.nbytes)
        return function(*arguments)

    return noted
