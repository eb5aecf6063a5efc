"""A program is run once before it is handed out: what goes wrong after the proofs is stopped, and named."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cpus import runnable

import rammer
from rammer import config
from rammer import forkpool as children
from rammer.compiler import compilation, smoke_run
from rammer.errors import DeviceError, RammerError, VerificationError
from rammer.frontend.builder import GraphBuilder
from rammer.hookspecs import hookimpl
from rammer.ir.graph import Graph
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import DType
from rammer.ir.verify import replay
from rammer.plugins import PluginRegistry
from rammer.scheduler.profiler import EstimatingProfiler
from rammer.vdevice import c_kernels
from rammer.vdevice.cpu.codegen import build
from rammer.vdevice.cpu.codegen.compile import KernelCompiler, KernelSource
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.host import host
from rammer.vdevice.cpu.runtime.table import Table
from rammer.vdevice.image import placement
from rammer.vdevice.image.arena import ARENA
from rammer_viz.demo import lstm_stack


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Machine code is shared by the tests, verdicts on programs are not. There is time for all operators."""
    monkeypatch.setattr(smoke_run, "LEAST_S", smoke_run.MOST_S)
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "once"))
    monkeypatch.setattr(smoke_run, "generators", lambda: str(id(monkeypatch)))
    yield


@pytest.fixture
def nothing_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are not proven, nor rKernels tried out: both would stop what is injected here before it runs."""
    monkeypatch.setattr(compilation, "verify_image", lambda *_: "")
    monkeypatch.setattr(CpuVDevice, "rkernels_wrong", lambda *_, **__: {})


def network() -> Graph:
    """Products one after another, and a tensor that is read late."""
    random = np.random.default_rng(0)
    b = GraphBuilder("network")
    x = b.input("x", (75, 192))
    first = b.add("matmul", x, b.constant(random.standard_normal((192, 96)).astype(np.float32)))
    second = b.add("softmax", first, axis=1)
    third = b.add("matmul", second, b.constant(random.standard_normal((96, 96)).astype(np.float32)))
    b.output(b.add("add", third, first), "y")
    return b.build()


def compiled(graph: Graph | None = None, **options: Any) -> rammer.Program:
    return rammer.compile(graph or network(), "cpu", device=1, policy="wavefront", tune_seconds=0, **options)


def test_any_order_of_slots_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators begin as late in a plan as its waits allow: some read what their producer has not yet finished."""

    def push(queue: list[tuple[int, int]], item: tuple[int, int]) -> None:
        heapq.heappush(queue, (-item[0], item[1]))

    def pop(queue: list[tuple[int, int]]) -> tuple[int, int]:
        operator, veu = heapq.heappop(queue)
        return -operator, veu

    monkeypatch.setattr(replay, "heapq", SimpleNamespace(heappush=push, heappop=pop))
    b = GraphBuilder("rows")
    x = b.input("x", (192, 27))
    y = b.add("matmul", x, b.constant(np.random.default_rng(0).standard_normal((27, 37)).astype(np.float32)))
    b.output(y, "y")
    b.output(b.add("relu", b.add("slice", y, starts=(68, 0), steps=(1, 1), shape=(22, 37))), "z")
    b.output(b.add("reshape", b.add("slice", y, starts=(5, 0), steps=(1, 1), shape=(14, 37)), shape=(1, 14, 37)), "v")
    assert smoke_run.CHECKED in str(
        rammer.compile(b.build(), "cpu", device=2, policy="wavefront", tune_seconds=0).report()
    )


def test_it_is_said_what_was_run() -> None:
    with compiled() as program:
        assert program.report().checked == "checked by one run"
        assert "checked by one run" in str(program.report())
    with config.override(RAMMER_CHECK="0"), compiled() as program:
        assert "not run: RAMMER_CHECK=0" in str(program.report())
    elsewhere = "aarch64-neon" if host().machine != "aarch64" else "x86-64-sse4"
    with compiled(arch=elsewhere) as program:
        assert "not run: device is not here" in str(program.report())


def test_what_was_found_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled().close()

    def runs(*_: Any) -> Any:
        raise AssertionError("it was run again")

    monkeypatch.setattr(smoke_run, "run_isolated", runs)
    with compiled() as program:
        assert program.report().checked == "checked by one run"


def shifted(nbytes: int) -> Callable[..., Table]:
    """A table in which the first operand in the arena of the last operator lies elsewhere."""

    def make(header: Any, **arrays: Any) -> Table:
        table = Table(header, **arrays)
        last = table.slots[table.operators == table.operators.max()][0]
        offsets = table.arg_offset.copy()
        offset = int(last[2]) + 1 + int(np.flatnonzero(table.arg_base[last[2] + 1 :] == ARENA)[0])
        offsets[offset] += nbytes
        return replace(table, arg_offset=offsets)

    return make


@pytest.mark.usefixtures("nothing_before")
def test_an_operand_lies_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "Table", shifted(64))
    with pytest.raises(RammerError, match=r"add.*run once: 'y'\["):
        compiled()


@pytest.mark.usefixtures("nothing_before")
def test_packed_weights_are_permuted(monkeypatch: pytest.MonkeyPatch) -> None:
    arrange = placement.arrange

    def permuted(array: Any, layout: Any, out: Any) -> None:
        arrange(array, layout, out)
        out[...] = np.roll(out, 1, -1)

    monkeypatch.setattr(placement, "arrange", permuted)
    with pytest.raises(RammerError, match=r"matmul.*run once"):
        compiled()


def test_memory_is_used_again_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    built = CpuVDevice.build

    def build_over(device: CpuVDevice, plan: ExecutionPlan, **options: Any) -> Any:
        assert plan.memory is not None
        first, second = (plan.graph.operators[n].outputs[0] for n in (0, 1))
        offsets = {**plan.memory.offsets, second: plan.memory.offsets[first]}
        return built(device, replace(plan, memory=replace(plan.memory, offsets=offsets)), **options)

    monkeypatch.setattr(CpuVDevice, "build", build_over)
    with pytest.raises(VerificationError, match="R107"):  # the backend's plan is not the one that was proven
        compiled()
    monkeypatch.setattr(compilation, "verify_plan", lambda *_: None)
    with pytest.raises(RammerError, match=r"run once: 'y'\["):
        compiled()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("s < end; s++", "s < end - (end - first > 1); s++"),
        ("if (LOAD(&other->step) - base > on.order) return 1;", "return 1;"),
    ],
    ids=["the last slot of a vEU is left out", "nothing is waited for"],
)
def test_the_runtime_errs_when_veus_run_together(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What slots leave one after another is right then: memory begins anew before all run together."""
    library = KernelCompiler._library

    def erring(compiler: KernelCompiler, names: Any) -> KernelSource:
        source = library(compiler, names)
        text = source.text.replace(old, new)
        return replace(source, text=text, key=source.key if text == source.text else f"{source.key[:-1]}m")

    monkeypatch.setattr(KernelCompiler, "_library", erring)
    with pytest.raises(RammerError, match="when its vEUs run together"):
        rammer.compile(network(), "cpu", device=2, policy="wavefront", tune_seconds=0)


def test_a_slow_comparison_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy computes what rounding explains for as long as it takes, on a machine with other work longer still."""
    usual = smoke_run.step_at_largest

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(1.5)
        return usual(*arguments, **options)

    monkeypatch.setattr(smoke_run, "PATIENCE_S", 0.5)
    monkeypatch.setattr(smoke_run, "step_at_largest", slow)
    with rammer.compile(network(), "cpu", device=2, tune_seconds=0) as program:
        assert program.report().checked == "checked by one run"


def test_outputs_that_single_roundings_explain_need_no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of all roundings take many times as long, a minute for DeepSpeech2."""
    monkeypatch.setattr(smoke_run, "USUAL", 0.0)
    monkeypatch.setattr(smoke_run, "expected", lambda *_: pytest.fail("bounds were computed"))
    model = lstm_stack(layers=2, steps=12, hidden=96)
    with rammer.compile(model, "cpu", device=1, tune_seconds=0) as program:
        checked = program.report().checked
        assert checked.startswith("checked by one run") and "not compared" not in checked


def test_numbers_that_become_zero_need_no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of deep networks with random weights: bounds took MobileViT 40 s. Larger faults are found."""
    b = GraphBuilder("tiny")
    x, small = b.input("x", (3, 96)), b.constant(np.full((96,), 1e-20, np.float32))
    b.output(b.add("mul", b.add("mul", x, small), small), "y")
    monkeypatch.setattr(smoke_run, "expected", lambda *_: pytest.fail("bounds were computed"))
    with compiled(b.build()) as program:
        assert program.report().checked == "checked by one run"
    value = np.array([1e-40, -3e-39], np.float32)
    assert smoke_run.step_at_largest(value) == 2.0**-126 and smoke_run.step_at_largest(np.ones(2, np.int32)) == 0.0
    assert smoke_run.step_at_largest(value.astype(np.float64)) < 2.0**-170


class Foreign:
    """A plugin with an rKernel in C, which is not proven."""

    def __init__(self, body: str) -> None:
        self.body = body

    @hookimpl
    def rammer_rkernels(self, operation: Any, spec: Any) -> list[RKernel]:
        if operation.kind != "softmax":
            return []
        text = f"void foreign(char *const *args, char *scratch, long rtask, int *status) {{ {self.body} }}"
        return [RKernel("foreign", operation, ForeignSource("c", "foreign", text, (), num_block_syncs=0))]


def with_foreign(body: str) -> PluginRegistry:
    registry = PluginRegistry(third_party=False)
    registry.register(Foreign(body), "foreign")
    return registry


@pytest.mark.usefixtures("nothing_before")
@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("*(volatile int *)0 = 1;", "it ended by SIGSEGV"),
        ("for (volatile int n = 0;; n++);", "it did not come back"),
        ("((float *)args[0])[200] += 1;", "should be"),
    ],
)
def test_a_foreign_kernel_is_wrong(
    body: str, what: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is an error where there is no other one; else another one takes its place. One that hangs says where."""
    monkeypatch.setattr(smoke_run, "PATIENCE_S", 0.5)
    usual = c_kernels.rammer_rkernels

    @hookimpl
    def others(operation: Any, spec: Any, tuning: Any) -> Any:
        return [] if operation.kind == "softmax" else usual(operation, spec, tuning)

    with monkeypatch.context() as alone:
        alone.setattr(c_kernels, "rammer_rkernels", others)
        with pytest.raises(DeviceError, match=f"(?s)softmax.*run once.*{what}"):
            compiled(registry=with_foreign(body))
    assert ("(most recent call first)" in capfd.readouterr().err) == ("come back" in what)
    monkeypatch.setattr(EstimatingProfiler, "rtask_us", lambda _, kernel: 1.0 if kernel.name == "foreign" else 100.0)
    with compiled(registry=with_foreign(body)) as program:
        assert "foreign is no candidate: softmax 'softmax', run once" in str(program.report())
        assert program.report().checked == "checked by one run"
        x = np.random.default_rng(1).standard_normal((75, 192)).astype(np.float32)
        np.testing.assert_allclose(program.run({"x": x})["y"], evaluate_graph(network(), {"x": x})["y"], atol=1e-4)


@pytest.mark.parametrize(("target", "device"), [("cpu", 1), ("cuda", "emulator:2")])
def test_a_pass_changes_the_meaning(target: str, device: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operator is right then, and the outputs are not the model's. Devices that run as a whole see it as well."""
    b = GraphBuilder("difference")
    x, y = b.input("x", (28, 75)), b.input("y", (28, 75))
    b.output(b.add("sub", x, y), "z")
    optimized = compilation.optimize

    def optimize(graph: Graph, *arguments: Any, **options: Any) -> Graph:
        made = optimized(graph, *arguments, **options)
        swapped = tuple(replace(op, inputs=op.inputs[::-1]) for op in made.operators)
        return replace(made, operators=swapped)

    monkeypatch.setattr(compilation, "optimize", optimize)
    with pytest.raises(VerificationError, match=r"R212: 'z'\[0, 0\] is .* by what passes made of the model"):
        rammer.compile(b.build(), target, device=device, tune_seconds=0)


def test_a_pass_exchanges_the_gates_of_an_lstm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds through all of its operators would allow that: they grow with every step."""
    optimized = compilation.optimize

    def optimize(graph: Graph, *arguments: Any, **options: Any) -> Graph:
        values = {t: value[::-1].copy() for t, value in graph.constants.items() if value.shape == (4, 96, 96)}
        assert values
        return optimized(replace(graph, constants={**graph.constants, **values}), *arguments, **options)

    model = lstm_stack(layers=1, steps=12, hidden=96)
    with rammer.compile(model, "cpu", device=1, tune_seconds=0) as program:
        assert program.report().checked.startswith("checked by one run")
        assert "not compared" not in program.report().checked
    monkeypatch.setattr(compilation, "optimize", optimize)
    with pytest.raises(VerificationError, match=r"R212: .*, by what passes made of the model"):
        rammer.compile(model, "cpu", device=1, tune_seconds=0)


def test_a_meaning_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the report says that outputs were not compared; RAMMER_CHECK=2 compares them."""
    monkeypatch.setattr(smoke_run, "OPERATOR_S", 10.0)
    with compiled() as program:
        assert program.report().checked == "checked by one run; outputs are not compared with the model"
    with config.override(RAMMER_CHECK="2"), compiled() as program:
        assert program.report().checked == "checked by one run"


def test_the_meaning_of_a_known_model_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled().close()

    def begins(_: Any, items: Any) -> Any:
        assert not items, "it was begun again"
        return children.Background(len, [])

    monkeypatch.setattr(smoke_run, "Background", begins)
    compiled().close()


def test_sums_of_numbers_that_are_alike() -> None:
    """All roundings of such sums go one way: they are farther off than those of random numbers."""
    b = GraphBuilder("alike")
    x = b.input("x", (4, 20, 46))
    positive = b.add("cast", b.add("greater", x, b.constant(np.zeros((), np.float32))), dtype=DType.F32)
    roots = b.add("sqrt", b.add("add", positive, b.constant(np.array(0.5, np.float32))))
    b.output(b.add("reduce", roots, fn="sum", axes=(1, 2), keepdims=False), "y")
    program = rammer.compile(b.build(), "cpu", arch=runnable("x86-64"), device=1, policy="sequential", tune_seconds=0)
    assert smoke_run.CHECKED in str(program.report())
