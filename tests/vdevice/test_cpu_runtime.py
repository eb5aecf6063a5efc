"""Programs made by hand on the CPU vDevice: results, order, faults, threads, forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import Net, chain, make_plan, reference

import rammer
from rammer import config
from rammer.errors import DeviceError, InputError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph, View
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, Slot, TaskUid
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array, DType, TensorType
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.runtime.executable import CpuExecutable

Load = Callable[..., CpuExecutable]


@pytest.fixture
def load() -> Iterator[Load]:
    """Builds and loads a plan or a graph; closes everything at the end."""
    opened: list[CpuExecutable] = []

    def make(what: ExecutionPlan | Graph, num_veus: int = 2, **options: bool | int) -> CpuExecutable:
        device = CpuVDevice(device=num_veus)
        plan = make_plan(what, device.spec, **options) if isinstance(what, Graph) else what  # type: ignore[arg-type]
        image = replace(device.build(plan), plan=None)  # loading must need no plan
        opened.append(device.load(image))
        opened[-1].poison = True
        return opened[-1]

    yield make
    for executable in opened:
        executable.close()


def vector(size: int = 64, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def check(executable: CpuExecutable, graph: Graph, runs: int = 30) -> None:
    for seed in range(runs):
        x = {"x": vector(seed=seed)}
        got = executable.run(x)
        for name, wanted in reference(graph, x).items():
            np.testing.assert_allclose(got[name], wanted, rtol=1e-5, err_msg=f"run {seed}, {name}")


@pytest.mark.parametrize("split", [False, True], ids=["one rProgram", "rProgram per operator"])
@pytest.mark.parametrize("num_veus", [1, 2, 3, 8])
def test_waits_are_kept_with_any_number_of_veus(load: Load, num_veus: int, split: bool) -> None:
    """Every tile reads tiles of other vEUs, one of which is slow; the arena is NaN before each run."""
    graph = chain()
    check(load(graph, num_veus, split=split, spin=5000), graph)


def test_without_its_waits_the_plan_is_wrong(load: Load) -> None:
    """The test above sees a missing barrier: the same plan without waits reads NaN."""
    graph = chain()
    plan = make_plan(graph, CpuVDevice(device=2).spec, spin=200_000)
    lanes = tuple(tuple(s for s in lane if isinstance(s, RTask)) for lane in plan.programs[0].lanes)
    executable = load(replace(plan, programs=(RProgram(lanes),)))
    wrong = [np.isnan(executable.run({"x": vector()})[graph.outputs[0]]).any() for _ in range(5)]
    assert any(wrong)


def test_a_wait_for_a_barrier_slot_counts_its_waits(load: Load) -> None:
    net = Net()
    a = net.op("mirror", "x")
    b = net.op("add", a, "x")
    graph = net.graph(b)
    plan = make_plan(graph, CpuVDevice(device=3).spec, spin=200_000)
    first: tuple[Slot, ...] = tuple(RTask(TaskUid(0, r)) for r in range(4))
    through: tuple[Slot, ...] = (BarrierRTask((Position(0, 3),)),)
    last: tuple[Slot, ...] = (BarrierRTask((Position(1, 0),)), *(RTask(TaskUid(1, r)) for r in range(4)))
    check(load(replace(plan, programs=(RProgram((first, through, last)),)), 3), graph, 5)


def test_views_constants_and_passed_through_tensors(load: Load) -> None:
    """Outputs may be an input, a constant, or a part of another tensor; constants may be read through views."""
    net = Net(64)
    c = net.constant("c", np.arange(96, dtype=np.float32))
    net.types["part"] = TensorType((64,))
    net.types["half"] = TensorType((32,))
    t = net.op("add", "x", "part")
    graph = replace(net.graph(t, "x", c, "part", "half"), views={"part": View("c", 16), "half": View(t, 32)})
    x = vector()
    got = load(graph).run({"x": x})
    np.testing.assert_array_equal(got[t], x + np.arange(16, 80, dtype=np.float32))
    np.testing.assert_array_equal(got["x"], x)
    np.testing.assert_array_equal(got["c"], np.arange(96))
    np.testing.assert_array_equal(got["part"], np.arange(16, 80))
    np.testing.assert_array_equal(got["half"], got[t][32:])


def test_outputs_are_fresh_arrays(load: Load) -> None:
    graph = chain(1)
    executable = load(graph)
    first = executable.run({"x": vector(seed=1)})["t0"]
    kept = first.copy()
    executable.run({"x": vector(seed=2)})
    np.testing.assert_array_equal(first, kept)


def test_scratch_begins_in_the_middle_of_a_page() -> None:
    """Where callers' large arrays do not begin: loads from them would wait for stores to scratch."""
    x = np.random.default_rng(0).standard_normal((8, 2000)).astype(np.float32)
    builder = GraphBuilder()
    builder.output(builder.add("softmax", builder.input("x", x.shape), axis=1), "y")
    with rammer.compile(graph := builder.build(), "cpu", tune_seconds=0.0) as program:
        assert isinstance(program.executable, CpuExecutable)
        scratch = program.executable.stepped({"x": x}).scratch[0]
        assert scratch.size and scratch.ctypes.data % 4096 == 2048
        np.testing.assert_allclose(program.run({"x": x})["y"], evaluate_graph(graph, {"x": x})["y"], rtol=1e-5)


def test_an_index_out_of_range_names_the_operator(load: Load) -> None:
    net = Net()
    net.types["n"] = TensorType((64,), DType.I64)
    net.inputs = ("x", "n")
    t = net.op("pick", "x", "n")
    graph = net.graph(t)
    executable = load(graph)
    good, bad = np.arange(64)[::-1].copy(), np.arange(64)
    bad[40] = 64
    x = vector()
    with pytest.raises(InputError, match="pick 'node t0': index out of range"):
        executable.run({"x": x, "n": bad})
    np.testing.assert_array_equal(executable.run({"x": x, "n": good})[t], x[::-1])


def test_measured_times_are_in_order_and_change_nothing(load: Load) -> None:
    graph = chain()
    plan = make_plan(graph, CpuVDevice(device=2).spec, spin=2000)
    executable = load(plan)
    x = {"x": vector()}
    plain = executable.run(x)
    timed, times = executable.run_timed(x)
    np.testing.assert_array_equal(plain[graph.outputs[0]], timed[graph.outputs[0]])
    (program,) = times.programs
    assert [len(lane) for lane in program] == [len(lane) for lane in plan.programs[0].lanes]
    for lane in program:
        flat = lane.reshape(-1)
        assert flat[0] >= 0 and np.all(np.diff(flat) >= 0) and flat[-1] <= times.total_us
    for lane, slots in zip(program, plan.programs[0].lanes, strict=True):
        for (_, end), slot in zip(lane, slots, strict=True):
            for w in slot.waits if isinstance(slot, BarrierRTask) else ():
                assert end >= program[w.veu][w.order][1] - 0.5  # the counter is set a moment before the time is taken


class TestWatchdog:
    @pytest.fixture(autouse=True)
    def impatient(self) -> Iterator[None]:
        with config.override(RAMMER_WATCHDOG_SECONDS="0.05"):
            yield

    def test_a_deadlock_is_reported_and_later_runs_work_like_the_first(self, load: Load) -> None:
        graph = chain(2)
        plan = make_plan(graph, CpuVDevice(device=2).spec)
        lanes = tuple(tuple(s for s in lane if isinstance(s, RTask)) for lane in plan.programs[0].lanes)
        crossed = RProgram(
            (
                (lanes[0][0], BarrierRTask((Position(1, 2),)), *lanes[0][1:]),
                (lanes[1][0], BarrierRTask((Position(0, 2),)), *lanes[1][1:]),
            )
        )
        executable = load(replace(plan, programs=(crossed,)))
        for _ in range(3):
            with pytest.raises(DeviceError, match=r"vEU \d, order 1, waited in vain for vEU \d, order 2 \(mirror"):
                executable.run({"x": vector()})

    def test_a_kernel_that_never_ends_spoils_the_program_but_hangs_nothing(self) -> None:
        """In a process of its own: the thread of such a kernel cannot be stopped."""
        script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
from handmade import hanging
from rammer.errors import DeviceError
from rammer.vdevice.cpu.device import CpuVDevice
device = CpuVDevice(device=2)
executable = device.load(device.build(hanging(device.spec)))
for _ in range(2):
    try:
        executable.run({{"x": np.zeros(64, np.float32)}})
        sys.exit("no error")
    except DeviceError as error:
        assert "does not come back" in str(error), error
executable.close()
"""
        done = subprocess.run([sys.executable, "-c", script], timeout=600, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_closing_twice_is_fine_and_running_after_it_is_an_error(load: Load) -> None:
    executable = load(chain(1))
    executable.close()
    executable.close()
    with pytest.raises(InputError, match="closed"):
        executable.run({"x": vector()})


def test_many_threads_take_turns(load: Load) -> None:
    graph = chain()
    executable = load(graph)
    executable.poison = False
    faults: list[str] = []

    def work(seed: int) -> None:
        x = {"x": vector(seed=seed)}
        wanted = reference(graph, x)[graph.outputs[0]]
        for _ in range(50):
            if not np.allclose(executable.run(x)[graph.outputs[0]], wanted, rtol=1e-5):
                faults.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults


def test_sleeping_threads_wake_up(load: Load) -> None:
    graph = chain()
    with config.override(RAMMER_SPIN_MS="0"):
        check(load(graph, 3), graph, 20)


def test_free_threads_work(load: Load) -> None:
    with config.override(RAMMER_PIN="0"):
        check(load(chain(), 2), chain(), 10)


def test_the_callers_affinity_is_left_alone(load: Load) -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system has no CPU affinity")
    before = os.sched_getaffinity(0)
    check(load(chain(), min(2, len(before))), chain(), 20)
    assert os.sched_getaffinity(0) == before


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # from JAX, if a test before loaded it
def test_a_forked_child_gets_threads_of_its_own(load: Load) -> None:
    graph = chain()
    executable = load(graph)
    check(executable, graph, 3)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            check(executable, graph, 3)
            executable.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    check(executable, graph, 3)


def test_a_process_that_closes_nothing_ends_well() -> None:
    script = f"""
import logging, sys
logging.getLogger("rammer").setLevel(logging.ERROR)  # there may be fewer CPUs
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
from handmade import chain, make_plan
from rammer.vdevice.cpu.device import CpuVDevice
device = CpuVDevice(device=3)
executable = device.load(device.build(make_plan(chain(), device.spec)))
print(executable.run({{"x": np.ones(64, np.float32)}})["t5"].sum())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], timeout=600, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and float(done.stdout) != 0


def test_clocks_of_cores_may_differ(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that another core's clock puts before the run is a little early, and not an age late."""
    executable = load(chain(), 2)
    run = executable._run

    def skewed(*arguments: Any) -> None:
        run(*arguments)
        executable._times[0, 0] = executable._report[6] - 100

    monkeypatch.setattr(executable, "_run", skewed)
    first = executable.run_timed({"x": np.ones(64, np.float32)})[1].programs[0][0]
    assert -1e3 < first[0, 0] < 0 <= first[0, 1] < 1e9
