"""Unrolled networks as Poplar programs, right however results are read; and the account of tile memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import rammer
from rammer.errors import DeviceError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array, TensorId
from rammer.plugins import PluginRegistry
from rammer.vdevice.base import VDevice
from rammer.vdevice.ipu.codegen.memory import fits, tile_memory
from rammer.vdevice.ipu.codegen.placement import place
from rammer.vdevice.ipu.codegen.program import PoplarProgram
from rammer.vdevice.ipu.spec import MODELS, parse_arch
from rammer_viz.demo import lstm_stack

ARCH = "gc2:8"
POLICIES = ("sequential", "round_robin", "wavefront")


@pytest.fixture(scope="module")
def ipu() -> Iterator[VDevice]:
    answer = PluginRegistry().vdevices()["ipu"][1].probe()
    if not answer.ok:
        pytest.skip(answer.reason)
    yield PluginRegistry().open("ipu", arch=ARCH, device="emulator")


def compiled(graph: Graph, policy: str = "wavefront", arch: str = ARCH) -> rammer.Program:
    return rammer.compile(graph, "ipu", device="emulator", arch=arch, policy=policy, tune_seconds=5)


def check(program: rammer.Program, graph: Graph) -> None:
    random = np.random.default_rng(0)
    for _ in range(2):  # counters start anew
        inputs = {p.name: random.standard_normal(p.type.shape).astype(p.type.dtype.numpy) for p in program.inputs}
        found, wanted = program.run(inputs), evaluate_graph(graph, inputs)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


class Recurrence:
    """h[t] = tanh(h[t - 1] W) + …: cells that are not fused, as a product starts each."""

    def __init__(self, width: int = 16) -> None:
        self.builder, self.random, self.width = GraphBuilder(), np.random.default_rng(1), width

    def weight(self) -> TensorId:
        scale = self.width**-0.5
        return self.builder.constant((self.random.standard_normal((self.width, self.width)) * scale).astype(np.float32))

    def cell(self, h: TensorId, weight: TensorId, *others: TensorId) -> TensorId:
        y = self.builder.add("tanh", self.builder.add("matmul", h, weight))
        for other in others:
            y = self.builder.add("add", y, other)
        return y

    def graph(self, *outputs: TensorId) -> Graph:
        for output in outputs:
            self.builder.output(output)
        return self.builder.build()


def chain(steps: int, back: int = 1, inputs: bool = False, outputs: tuple[int, ...] = (-1,)) -> Graph:
    """A recurrence that looks `back` rounds back, with an input for each round or none."""
    net = Recurrence()
    weight, x = net.weight(), net.builder.input("x", (steps, net.width))
    states = [net.builder.add("slice", x, starts=(n, 0), steps=(1, 1), shape=(1, net.width)) for n in range(back)]
    for n in range(steps):
        row = net.builder.add("slice", x, starts=(n, 0), steps=(1, 1), shape=(1, net.width))
        states.append(net.cell(states[-1], weight, *([states[-back]] if back > 1 else []), *([row] if inputs else [])))
    return net.graph(*(states[o] for o in outputs))


CASES = {
    "one round back": chain(12),
    "three rounds back": chain(14, back=3),
    "an operand per round": chain(12, inputs=True),
    "the last states": chain(14, back=3, outputs=(-1, -2, -3)),
    "states of the middle": chain(12, outputs=(-1, 5, 8)),
    "every state": chain(12, inputs=True, outputs=tuple(range(1, 13))),
}


@pytest.mark.parametrize("name", CASES)
def test_recurrences(ipu: VDevice, name: str) -> None:
    graph = CASES[name]
    with compiled(graph) as program:
        check(program, graph)


def random_recurrence(seed: int) -> Graph:
    """Rounds of a few cells that read each other, states of up to three rounds before, and their round's input."""
    random, net = np.random.default_rng(seed), Recurrence()
    steps, cells = 24, int(random.integers(1, 4))
    x = net.builder.input("x", (steps + 3, net.width))

    def row(n: int) -> TensorId:
        return net.builder.add("slice", x, starts=(n, 0), steps=(1, 1), shape=(1, net.width))

    weights = [net.weight() for _ in range(cells)]
    reads = [
        [(int(random.integers(cells)), int(random.integers(1, 4))) for _ in range(random.integers(1, 4))]
        for _ in range(cells)
    ]
    takes = random.random(cells) < 0.5
    states = [[row(n)] * cells for n in range(3)]
    for n in range(steps):
        now: list[TensorId] = []
        for c in range(cells):
            first, *others = [states[-back][cell] for cell, back in reads[c]]
            others += [now[-1]] if now else []
            now.append(net.cell(first, weights[c], *others, *([row(n + 3)] if takes[c] else [])))
        states.append(now)
    # a state that leaves is stored by another kernel than those around it: few, or there is nothing to repeat
    wanted = [states[int(random.integers(4, steps))][int(random.integers(cells))], states[-2][0], states[-1][-1]]
    return net.graph(*dict.fromkeys(wanted))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 16))])
@pytest.mark.parametrize("policy", ["sequential", "wavefront"])
def test_random_recurrences(ipu: VDevice, seed: int, policy: str) -> None:
    graph = random_recurrence(seed)
    with compiled(graph, policy) as program:
        check(program, graph)


@pytest.mark.parametrize("policy", POLICIES)
def test_layers_of_a_recurrent_network(ipu: VDevice, policy: str) -> None:
    """All states of the last layer are an output: cells read parts of arrays, and write parts of one."""
    graph = rammer.from_onnx(lstm_stack(2, 16, 16))
    with compiled(graph, policy) as program:
        check(program, graph)


def test_the_account_of_memory_is_the_emulators(ipu: VDevice) -> None:
    for graph in (CASES["every state"], CASES["the last states"], rammer.from_onnx(lstm_stack(2, 16, 16))):
        with compiled(graph) as program:
            check(program, graph)
            ours = tile_memory(place(program.plan, parse_arch(ARCH)))
            totals = program.executable.profile().totals  # type: ignore[attr-defined]
        assert 0 <= int(ours.total.max()) - ours.reserve - totals["peak_tile_bytes"] <= 2048


# memory: every part of the account


def account(graph: Graph, arch: str = ARCH) -> tuple[PoplarProgram, dict[str, Array]]:
    with compiled(graph, arch=arch) as program:
        flat = place(program.plan, parse_arch(arch))
    memory = tile_memory(flat)
    return flat, {n: getattr(memory, n) for n in ("weights", "code", "state", "activations", "buffers")}


def test_weights_code_and_state_are_counted(ipu: VDevice) -> None:
    flat, parts = account(CASES["one round back"])
    weights = sum(v.count * v.itemsize for v in flat.variables if v.value is not None)
    assert parts["weights"].sum() == weights == 16 * 16 * 4
    code = {(t, c.name): c.code_bytes for g in flat.groups for t in g.tiles.tolist() for c in g.table.classes}
    assert parts["code"].sum() == sum(code.values())  # once per tile and class
    assert parts["state"].sum() >= sum(g.table.classes[0].state_bytes for g in flat.groups)
    net = Recurrence(256)
    wide = net.graph(net.cell(net.builder.input("x", (1, 256)), net.weight()))
    assert (account(wide)[1]["buffers"] > 0).sum() > 1  # every tile needs all of x


def test_activations_take_each_others_place(ipu: VDevice) -> None:
    """Far longer chains need no more memory for what lives between two cells."""
    peaks = [int(account(chain(n))[1]["activations"].max()) for n in (8, 32)]
    rows = [-(-n * 16 * 4 // 8) for n in (8, 32)]  # of the input, which is spread over 8 tiles
    assert peaks[1] - peaks[0] <= rows[1] - rows[0] + 256


def test_a_larger_arch_is_offered_where_it_would_fit(ipu: VDevice) -> None:
    net = Recurrence(300)
    h = net.builder.input("x", (1, net.width))
    for _ in range(5):
        h = net.cell(h, net.weight())
    graph = net.graph(h)  # 1.8 MB of weights
    with pytest.raises(DeviceError, match=r"gc2:8: 8 of 8 tiles") as error:
        compiled(graph)
    assert "all tiles together lack" in error.value.hint
    offers = re.findall(r"arch='([a-z0-9:]+)'", error.value.hint)
    assert [o.partition(":")[0] for o in offers] == ["gc2", "gc200", "bow"]
    for arch in offers[:2]:
        with compiled(graph, arch=arch) as program:
            check(program, graph)
    with compiled(graph, arch="gc2:12") as program:  # one tile less than offered: weights lie level
        assert not fits(place(program.plan, parse_arch("gc2:12")))
        weights = tile_memory(place(program.plan, parse_arch(offers[0]), level=True)).weights
    assert weights.max() - weights.min() <= 1024


# vEUs and models


@pytest.mark.parametrize("arch", ["bow:4", "gc2:2x6", "gc200:4"])
def test_models_and_workers_as_veus(arch: str) -> None:
    graph = CASES["an operand per round"]
    with compiled(graph, arch=arch) as program:
        check(program, graph)
        totals = program.executable.profile().totals  # type: ignore[attr-defined]
    model = parse_arch(arch).model
    assert totals["clock_hz"] == model.clock_ghz * 1e9 and totals["tile_bytes"] == model.tile_bytes
    assert totals["tiles"] == parse_arch(arch).tiles


def test_workers_of_a_tile_share_its_compute_sets() -> None:
    """Six vEUs of a tile: their vertices run side by side, one worker each."""
    vdevice = PluginRegistry().open("ipu", arch="gc2:2x6", device="emulator")
    assert vdevice.spec.num_veus == 12
    with compiled(CASES["one round back"], arch="gc2:2x6") as program:
        flat = place(program.plan, parse_arch("gc2:2x6"))
    assert {int(t) for g in flat.groups for t in g.tiles} <= {0, 1}


def test_bow_is_a_faster_gc200() -> None:
    bow, gc200 = MODELS["bow"], MODELS["gc200"]
    assert replace(bow, name="gc200", clock_ghz=gc200.clock_ghz) == gc200 and bow.clock_ghz > gc200.clock_ghz


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sequential", "wavefront"])
def test_lstm_tc_with_100_steps(ipu: VDevice, policy: str) -> None:
    """Four layers for a GC2: under 2 MB of C++ and tables."""
    pytest.importorskip("torch", reason="the paper's models are built with PyTorch (extra torch)")
    from benchmarks.gpu.ipu import model_with_layers

    model, inputs, wanted = model_with_layers("lstm_tc_unrolled", 4, steps=100)
    with rammer.compile(model, "ipu", device="emulator", arch="gc2", policy=policy) as program:
        found = program.run(inputs)
        assert program.executable.source_bytes < 2 << 20  # type: ignore[attr-defined]
        assert program.executable.profile().totals["peak_tile_bytes"] <= 256 << 10  # type: ignore[attr-defined]
    np.testing.assert_allclose(found["output"], wanted["output"], rtol=1e-3, atol=1e-4)
