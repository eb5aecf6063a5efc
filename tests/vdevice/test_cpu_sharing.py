"""Programs that share the vEU threads of a process: results under every use, whose turn it is, and who sleeps."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from handmade import Net, chain, make_plan, reference

from rammer import config
from rammer.errors import DeviceError, InputError
from rammer.ir.graph import Graph
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask
from rammer.ir.tensor import Array, DType, TensorType
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.runtime.executable import CpuExecutable
from rammer.vdevice.cpu.runtime.pool import Pool
from rammer.vdevice.cpu.runtime.table import RUNTIME

PATIENCE_S = 60.0  # for what must happen some time
FOREVER_MS = "1e7"  # of spinning
SHORTEST = 8  # of a report: ticks of the shortest run

Load = Callable[..., CpuExecutable]


@pytest.fixture
def load() -> Iterator[Load]:
    """Builds and loads a plan or a graph; closes everything at the end."""
    opened: list[CpuExecutable] = []

    def make(
        what: ExecutionPlan | Graph, num_veus: int = 2, *, cpus: tuple[int, ...] = (), padding: int = 0, spin: int = 0
    ) -> CpuExecutable:
        """`cpus`: as if these were the process's; `padding` makes another runtime of the same code."""
        device = CpuVDevice(device=num_veus)
        device._host = replace(device._host, cpus=cpus or device._host.cpus)
        plan = make_plan(what, device.spec, spin=spin) if isinstance(what, Graph) else what
        image = device.build(plan)
        files = {**image.files, RUNTIME: image.files[RUNTIME] + bytes(padding)}
        opened.append(device.load(replace(image, files=files)))
        opened[-1].poison = True
        return opened[-1]

    yield make
    for executable in opened:
        executable.close()


def pool_of(executable: CpuExecutable) -> Pool:
    assert executable._pool is not None
    return executable._pool


def sleepers(pool: Pool) -> int:
    """Threads that neither compute nor spin."""
    return pool.runtime.sleepers(pool.address)


def vector(size: int = 64, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def check(executable: CpuExecutable, graph: Graph, runs: int = 5, seed: int = 0) -> None:
    for n in range(seed, seed + runs):
        x = {"x": vector(graph.types["x"].shape[0], n)}
        for name, wanted in reference(graph, x).items():
            np.testing.assert_allclose(executable.run(x)[name], wanted, rtol=1e-5, err_msg=f"run {n}, {name}")


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def run_until_awake(executable: CpuExecutable, graph: Graph) -> None:
    """Run until all workers spin: one that comes too late, or got too little time, sleeps first."""

    def awake() -> bool:
        check(executable, graph, 2)
        return sleepers(pool_of(executable)) == 0

    wait_until(awake)


def in_threads(*works: Callable[[], object]) -> None:
    """Run all at once; the first failure of any is raised here."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]


NETS = [(chain(n, size), veus) for n, size, veus in ((6, 64, 2), (3, 1040, 3), (7, 208, 8), (5, 64, 1), (1, 16, 4))]


@pytest.mark.parametrize("flags", [{}, {"RAMMER_PIN": "0"}, {"RAMMER_SPIN_MS": "0"}], ids=str)
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_programs_of_all_widths_are_right_in_turn_and_at_once(
    load: Load, num_threads: int, flags: dict[str, str]
) -> None:
    with config.override(**flags):
        programs = [(load(graph, veus), graph) for graph, veus in NETS for _ in range(2)]
    wide = [pool_of(e) for e, _ in programs if e._num_veus > 1]
    assert len(set(map(id, wide))) == 1 and wide[0].num_veus == 8

    def work(number: int) -> None:
        order = random.Random(number)
        for n in range(60):
            executable, graph = order.choice(programs)
            check(executable, graph, 1, seed=number * 100 + n)

    in_threads(*(lambda n=n: work(n) for n in range(num_threads)))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads /proc")
def test_many_programs_have_the_threads_of_one(load: Load) -> None:
    def threads() -> set[str]:
        return {path.name for path in Path("/proc/self/task").iterdir()}

    before = threads()
    own = {"padding": 72}  # other files may have left a pool of the common runtime
    programs = [load(chain(), 3, **own) for _ in range(6)]
    wait_until(lambda: len(threads() - before) == 2)  # those of compiling may take a moment to end
    programs += [load(chain(), 5, **own), load(chain(), 1, **own)]
    wait_until(lambda: len(threads() - before) == 4)
    for executable in programs[:6]:
        executable.close()
    check(programs[7], chain())
    assert len(threads() - before) == 4
    programs[6].close()
    wait_until(lambda: not threads() - before)


def test_the_last_program_ends_the_pool_closed_or_forgotten(load: Load) -> None:
    device = CpuVDevice(device=2)
    closed, forgotten = load(chain(), 4), device.load(device.build(make_plan(chain(), device.spec)))
    pool = weakref.ref(pool_of(closed))
    assert pool() is pool_of(forgotten)
    closed.close()
    check(forgotten, chain())
    forgotten.myself = forgotten  # type: ignore[attr-defined]
    del forgotten
    gc.collect()
    assert pool() is None
    check(load(chain(), 2), chain())


def test_programs_come_and_go_while_others_run(load: Load) -> None:
    """Pools grow under running programs; closing one leaves the others their threads."""
    stays, graph = load(chain(), 2), chain()
    stop = threading.Event()

    def come_and_go() -> None:
        try:
            for n in range(30):
                other = load(chain(3, 208), 2 + n % 7)
                check(other, chain(3, 208), 2, seed=n)
                other.close()
        finally:
            stop.set()

    def stay(number: int) -> None:
        while not stop.is_set():
            check(stays, graph, 3, seed=number)

    in_threads(come_and_go, lambda: stay(1), lambda: stay(2))


def test_a_program_that_is_closed_while_it_runs_finishes_its_run(load: Load) -> None:
    graph = chain()
    for n in range(10):
        victim, other = load(graph, 2, spin=200_000), load(graph, 3)
        failures: list[InputError] = []

        def run(victim: CpuExecutable = victim, failures: list[InputError] = failures) -> None:
            try:
                while True:
                    check(victim, graph, 1)
            except InputError as error:
                failures.append(error)

        def close(victim: CpuExecutable = victim, seconds: float = 0.002 * n) -> None:
            time.sleep(seconds)
            victim.close()

        in_threads(run, close, lambda other=other: check(other, graph, 20))
        assert "closed" in str(failures[0])
        check(other, graph)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # from JAX, if a test before loaded it
def test_a_forked_child_has_one_pool_of_its_own(load: Load) -> None:
    """Forked while other threads run and wait for their turns."""
    programs = [(load(graph, veus), graph) for graph, veus in NETS]
    stop = threading.Event()

    def busy(number: int) -> None:
        while not stop.is_set():
            check(*programs[number], 1)

    def fork() -> None:
        try:
            for _ in range(5):
                pid = os.fork()
                if pid == 0:
                    signal.alarm(60)
                    status = 1
                    try:
                        in_threads(*(lambda p=p: check(*p, 3) for p in programs))
                        assert len({id(pool_of(e)) for e, _ in programs if e._num_veus > 1}) == 1
                        for executable, _ in programs:
                            executable.close()
                        status = 0
                    finally:
                        os._exit(status)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        finally:
            stop.set()

    in_threads(fork, *(lambda n=n: busy(n) for n in range(3)))
    for executable, graph in programs:
        check(executable, graph)


def test_turns_come_in_the_order_of_asking(load: Load) -> None:
    """Programs of one pool and of another runtime's: begins of runs are in the order in which runs were asked for."""
    slow = load(chain(1), 2, spin=100_000_000)
    others = [load(chain(1), 2 + n % 3, padding=n % 2) for n in range(6)]
    assert len({id(pool_of(e)) for e in (slow, *others)}) == 2
    assert len({id(pool_of(e).turn) for e in (slow, *others)}) == 1
    next_ticket = pool_of(slow).turn[:4].view(np.uint32)
    first = int(next_ticket[0])
    threads = []
    for n, executable in enumerate((slow, *others)):
        threads.append(threading.Thread(target=executable.run, args=({"x": vector()},)))
        threads[-1].start()
        wait_until(lambda n=n: int(next_ticket[0]) > first + n)
    for t in threads:
        t.join()
    begins = [int(e._report[6]) for e in (slow, *others)]
    assert begins == sorted(begins) and len(set(begins)) == len(begins)


@pytest.mark.parametrize(("graph", "veus"), NETS)
def test_the_caller_walks_lanes_whose_workers_do_not_begin(
    load: Load, monkeypatch: pytest.MonkeyPatch, graph: Graph, veus: int
) -> None:
    """Workers that never begin, as they have no thread; and then some that do."""
    monkeypatch.setattr(Pool, "grow", lambda *_: None)
    executable = load(graph, veus, padding=veus)
    executable._report[SHORTEST] = 1
    check(executable, graph)
    monkeypatch.undo()
    pool_of(executable).grow(veus, executable._cpus)
    check(executable, graph)


def test_a_deadlock_is_found_without_workers(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(chain(2), CpuVDevice(device=2).spec)
    lanes = tuple(tuple(s for s in lane if isinstance(s, RTask)) for lane in plan.programs[0].lanes)
    crossed = tuple((lane[0], BarrierRTask((Position(1 - v, 2),)), *lane[1:]) for v, lane in enumerate(lanes))
    monkeypatch.setattr(Pool, "grow", lambda *_: None)
    with config.override(RAMMER_WATCHDOG_SECONDS="0.02"):
        stalls = load(replace(plan, programs=(RProgram(crossed),)), padding=9)
    stalls._report[SHORTEST] = 1
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"waited in vain for vEU 1, order 2"):
            stalls.run({"x": vector()})


class TestIdle:
    """Who spins forever would never sleep for the time that has passed."""

    @pytest.fixture(autouse=True)
    def restless(self) -> Iterator[None]:
        with config.override(RAMMER_SPIN_MS=FOREVER_MS):
            yield

    def test_the_idle_veus_of_a_pool_sleep_while_another_pool_has_the_turn(self, load: Load) -> None:
        one, other = load(chain(), 2, cpus=(0, 1)), load(chain(), 2, cpus=(0, 1), padding=8)
        assert pool_of(one) is not pool_of(other)
        for _ in range(3):
            for runs, sleeps in ((one, other), (other, one)):
                run_until_awake(runs, chain())
                wait_until(lambda e=sleeps: sleepers(pool_of(e)) == 1)

    def test_pools_on_other_cpus_do_not_wait_for_each_other(self, load: Load) -> None:
        one, other = load(chain(), 2, cpus=(0, 1)), load(chain(), 2, cpus=(2, 3))
        assert pool_of(one).turn is not pool_of(other).turn
        near = load(chain(), 2, cpus=(3, 4))
        assert pool_of(near).turn is pool_of(other).turn and pool_of(near) is not pool_of(other)
        in_threads(*(lambda e=e: check(e, chain(), 10) for e in (one, other, near)))

    def test_veus_without_a_cpu_of_their_own_sleep_if_they_are_not_called(self, load: Load) -> None:
        with config.override(RAMMER_PIN="0"):
            wide, narrow = (load(chain(6, 1024), veus, cpus=(0, 1, 2, 3)) for veus in (4, 2))
        for _ in range(3):
            run_until_awake(wide, chain(6, 1024))
            check(narrow, chain(6, 1024), 2)
            wait_until(lambda: sleepers(pool_of(wide)) == 2)

    def test_a_program_that_never_ran_does_not_spin(self, load: Load) -> None:
        idle = load(chain(), 3, cpus=(0, 1, 2))
        wait_until(lambda: sleepers(pool_of(idle)) == 2)


class TestFaults:
    def test_a_bad_index_in_one_leaves_the_others_right(self, load: Load) -> None:
        net = Net()
        net.types["n"] = TensorType((64,), DType.I64)
        net.inputs = ("x", "n")
        t = net.op("pick", "x", "n")
        picks, good = load(net.graph(t), 3), load(chain(), 2)
        x, number = vector(), np.arange(64)

        def wrong() -> None:
            for n in range(40):
                where = (7 * n) % 64
                with pytest.raises(InputError, match="pick 'node t0': index out of range"):
                    picks.run({"x": x, "n": np.where(number == where, 64, number)})
                np.testing.assert_array_equal(picks.run({"x": x, "n": number})[t], x)

        in_threads(wrong, lambda: check(good, chain(), 60), lambda: check(good, chain(), 60, seed=1000))

    def test_a_deadlock_in_one_leaves_the_others_right(self, load: Load) -> None:
        plan = make_plan(chain(2), CpuVDevice(device=2).spec)
        lanes = tuple(tuple(s for s in lane if isinstance(s, RTask)) for lane in plan.programs[0].lanes)
        crossed = tuple((lane[0], BarrierRTask((Position(1 - v, 2),)), *lane[1:]) for v, lane in enumerate(lanes))
        with config.override(RAMMER_WATCHDOG_SECONDS="0.02"):
            stalls = load(replace(plan, programs=(RProgram(crossed),)))
        good = load(chain(), 3)

        def stall() -> None:
            for _ in range(5):
                with pytest.raises(DeviceError, match=r"waited in vain for vEU \d, order 2"):
                    stalls.run({"x": vector()})

        in_threads(stall, lambda: check(good, chain(), 30))
        assert pool_of(stalls) is pool_of(good)

    def test_a_kernel_that_never_ends_takes_its_pool_along_and_the_others_get_another(self) -> None:
        """In a process of its own: the thread of such a kernel cannot be stopped."""
        script = f"""
import sys, threading
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
from handmade import chain, hanging, make_plan, reference
from rammer import config
from rammer.errors import DeviceError
from rammer.vdevice.cpu.device import CpuVDevice
device = CpuVDevice(device=2)
with config.override(RAMMER_WATCHDOG_SECONDS="0.05"):
    hangs = device.load(device.build(hanging(device.spec)))
good = [device.load(device.build(make_plan(chain(), device.spec))) for _ in range(3)]
assert len({{id(e._pool) for e in (hangs, *good)}}) == 1
x = {{"x": np.arange(64, dtype=np.float32)}}
wanted = reference(chain(), x)["t5"]
def runs(e):
    for _ in range(20):
        assert np.allclose(e.run(x)["t5"], wanted)
    done.append(e)
done = []
threads = [threading.Thread(target=runs, args=(e,)) for e in good[:2]]
for n in range(2):  # the first run of all: its worker cannot be resting
    try:
        hangs.run(x)
        sys.exit("no error")
    except DeviceError as error:
        assert "does not come back" in str(error), error
    for t in threads if n == 0 else (): t.start()
for t in threads: t.join()
assert len(done) == 2
for e in good: runs(e)
assert len({{id(e._pool) for e in good}}) == 1 and good[0]._pool is not hangs._pool
hangs.close()
runs(good[0])
"""
        done = subprocess.run([sys.executable, "-c", script], timeout=120, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_programs_in_the_memory_of_one_that_hangs_do_not_run() -> None:
    """Its thread may still write into the arena that they share. In a process of its own: the thread stays."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
from handmade import chain, hanging, make_plan, reference
from rammer import config
from rammer.errors import DeviceError
from rammer.vdevice.cpu.device import CpuVDevice
device = CpuVDevice(device=2)
images = [device.build(p) for p in (hanging(device.spec), make_plan(chain(), device.spec))]
with config.override(RAMMER_WATCHDOG_SECONDS="0.05"):
    (_, bad), (_, good) = device.load_together(images)
good._struct.watchdog_ns = 60_000_000_000
alone = device.load(images[1])
x = {{"x": np.arange(64, dtype=np.float32)}}
wanted = reference(chain(), x)["t5"]
for e in (bad, good, good):  # the first run of all: its worker cannot be resting
    try:
        e.run(x)
        sys.exit("no error")
    except DeviceError as error:
        assert "does not come back" in str(error), error
assert good.try_run(x) is None
assert np.allclose(alone.run(x)["t5"], wanted)
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_who_is_called_seldom_does_not_spin(load: Load) -> None:
    """After two gaps in which spinning was in vain a worker sleeps at once; called sooner, it spins again."""
    with config.override(RAMMER_SPIN_MS="2"):
        executable = load(chain(), 2)
    pool = pool_of(executable)

    def spun_in_vain() -> int:
        check(executable, chain(), 1)
        wait_until(lambda: sleepers(pool) == 1)
        time.sleep(0.002)  # longer than it spins, also where it did not
        return pool.runtime.in_vain(pool.address, 1)

    def sleeps_at_once() -> bool:
        before = spun_in_vain()
        return before >= 2 and all(spun_in_vain() == before for _ in range(4))

    wait_until(sleeps_at_once)  # one that comes too late takes a call for a sooner one, and spins again
    executable._struct.spin_ns = 10**15

    def spins() -> bool:
        check(executable, chain(), 3)
        time.sleep(0.05)  # a worker that does not spin sleeps by then
        return sleepers(pool) == 0

    wait_until(spins)  # it may come too late to be called so
    executable._struct.spin_ns = 0
    check(executable, chain(), 1)
