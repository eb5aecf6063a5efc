"""Policy "graphturbo": the paper's worked examples, what its algorithms promise, and what its plans move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

import numpy as np
import pytest
from cpus import MadeUp, runnable
from onnx import TensorProto, helper, numpy_helper
from stages import problem_of

import rammer
from rammer.cost.price import fit
from rammer.errors import VerificationError
from rammer.ir.analysis.dependency import Dependencies, followed_axes
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.plan import ExecutionPlan, Price
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tile import TaskDigit
from rammer.ir.verify import verify_plan
from rammer.passes import optimize
from rammer.planner.memory import plan_memory
from rammer.plugins import PluginRegistry
from rammer.scheduler.graphturbo.grouping import grouped
from rammer.scheduler.graphturbo.instances import Instance, breadth_first, depth_first, instances
from rammer.scheduler.graphturbo.network import Axes, Layer, Network, Read, network_of
from rammer.scheduler.graphturbo.split import LayerGroup, Split, Splitter, axes_of, group_of, joined
from rammer.scheduler.policy import Problem
from rammer.scheduler.timeline import simulate
from rammer.vdevice.interpreter import run_plan

KIB = 1 << 10
node = helper.make_node
WINDOW: Axes = (0, 1, 2, None)  # of images [n, h, w, c]: a convolution reads all channels
POINTS: Axes = (0, 1, 2, 3)


def loaded(shape: tuple[int, ...], nodes: list[object], **weights: tuple[int, ...]) -> Graph:
    """Nodes from `x` to `y`, with weights of the given shapes."""
    values = [numpy_helper.from_array(np.ones(size, np.float32), name) for name, size in weights.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "network", [x], [y], values)
    return rammer.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def images(size: int) -> Graph:
    """The running example: four stages, each with half the channels of the one before. Paper: Figure 3."""
    nodes = [node("Conv", ["xabc"[k], f"w{k}"], ["abcy"[k]]) for k in range(4)]
    return loaded((8, 16, size, size), nodes, **{f"w{k}": (16 >> k, 16 >> max(k - 1, 0), 1, 1) for k in range(4)})


def image_by_image(graph: Graph) -> dict[int, RKernel]:
    """rKernels without a body, one rTask for every image."""
    body = ForeignSource("numpy", "none", "", (TaskDigit("n", 1, 8, 1),))
    return {n: RKernel("images", op.operation, body) for n, op in enumerate(graph.operators)}


class TestRunningExample:
    """Stages of 8, 4, 2 and 1 instances on eight cores, where an image of the first one fills the near memory."""

    graph = images(16)
    kernels = image_by_image(graph)
    network = network_of(graph, {k.operation: [k] for k in kernels.values()})

    def cut(self) -> tuple[list[LayerGroup], list[Split | None]]:
        alone = replace(self.network, layers=tuple(replace(layer, reads=()) for layer in self.network.layers))
        splitter = Splitter(alone, 8, alone.layers[0].nbytes // 8)  # in the paper's example inputs do not count
        groups = [group_of(self.network, n) for n in range(4)]
        return groups, [splitter.best(group_of(alone, n)) for n in range(4)]

    def test_factors(self) -> None:
        _, splits = self.cut()
        assert splits == [Split(1, 8, 0), Split(1, 4, 0), Split(1, 2, 0), Split(1, 1, 0)]

    def found(self) -> tuple[list[Instance], list[set[int]]]:
        return instances(*self.cut(), self.kernels, Dependencies(self.graph, self.kernels))

    def test_edges(self) -> None:
        """Figure 6: a1 and a2 feed b1, ..., c1 and c2 feed d1."""
        found, producers = self.found()
        named = {name(i): {name(found[p]) for p in needed} for i, needed in zip(found, producers, strict=True)}
        assert named["b1"] == {"a1", "a2"} and named["b4"] == {"a7", "a8"}
        assert named["c2"] == {"b3", "b4"} and named["d1"] == {"c1", "c2"}
        assert all(not named[f"a{k}"] for k in range(1, 9))

    def test_orders(self) -> None:
        """Figure 7, letter by letter."""
        found, producers = self.found()
        breadth, depth = ([name(found[n]) for n in order(producers)] for order in (breadth_first, depth_first))
        assert breadth == ["a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "b1", "b2", "b3", "b4", "c1", "c2", "d1"]
        assert depth == ["a8", "a7", "b4", "a6", "a5", "b3", "c2", "a4", "a3", "b2", "a2", "a1", "b1", "c1", "d1"]


def name(instance: Instance) -> str:
    return "abcd"[instance.group] + str(instance.part + 1)


class Net:
    """Layers of images [n, h, w, c] of two bytes."""

    def __init__(self, *shape: int) -> None:
        self.layers: list[Layer] = []
        self.inputs = (bytes_of(shape),)
        self.shape = {~0: shape}

    def add(self, shape: tuple[int, ...], reads: dict[int, Axes], takes_over: int | None = None) -> int:
        number = len(self.layers)
        found = tuple(Read(source, axes) for source, axes in reads.items())
        self.layers.append(Layer(shape, bytes_of(shape), found, takes_over=takes_over))
        self.shape[number] = shape
        return number

    def window(self, x: int, channels: int, stride: int = 1, axes: Axes = WINDOW) -> int:
        n, h, w, _ = self.shape[x]
        return self.add((n, -(-h // stride), -(-w // stride), channels), {x: axes})

    def network(self) -> Network:
        last = len(self.layers) - 1
        self.layers[last] = replace(self.layers[last], is_result=True)
        return Network(tuple(self.layers), self.inputs)


def bytes_of(shape: Sequence[int]) -> int:
    return 2 * int(np.prod(shape))


def resnet50(batch: int) -> Network:
    """Convolutions with what is fused into them, and additions of their own, in place."""
    net = Net(batch, 224, 224, 3)
    x = net.window(net.window(~0, 64, 2), 64, 2, POINTS)
    for stage, (channels, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            shortcut = x if block else None
            y = net.window(net.window(x, channels), channels, stride)
            if shortcut is None:
                shortcut = net.window(x, 4 * channels, stride)
            y = net.window(y, 4 * channels)
            x = net.add(net.shape[y], {y: POINTS, shortcut: POINTS}, takes_over=y)
    pooled = net.add((batch, 1, 1, 2048), {x: (0, None, None, 3)})
    scores = net.add((batch, 1, 1, 1000), {pooled: WINDOW})
    net.add((batch, 1, 1, 1000), {scores: POINTS}, takes_over=scores)
    return net.network()


def stages(network: Network, room: int) -> list[tuple[int, int]]:
    splitter = Splitter(network, 8, 8 * room)
    return [(len(g.layers), s.factor if (s := splitter.best(g)) else 0) for g in grouped(network, splitter)]


@pytest.mark.parametrize(("batch", "least", "most"), [(8, 640, 780), (16, 1276, 1564)])
def test_resnet_in_the_four_stages_of_the_paper(batch: int, least: int, most: int) -> None:
    """In a window of sizes of the cores' own memory, and beyond neither end of it. The stem is with the first stage,
    the tail with the last."""
    network = resnet50(batch)
    for room in (least, most):
        assert stages(network, room * KIB) == [(15, 8), (17, 4), (25, 2), (16, 1)]
    for room in (least - 4, most + 4):
        assert [f for _, f in stages(network, room * KIB)] != [8, 4, 2, 1]


def test_layers_of_resnet() -> None:
    """57 kernels with additions fused, as TVM has 58; 16 additions more without."""
    assert len(resnet50(1).layers) == 57 + 16


def random_network(seed: int) -> Network:
    """Images through windows, points, sums of two and reductions; several readers, several results."""
    random = np.random.default_rng(seed)
    net = Net(4, 8, 8, 2)
    pool = [~0]
    for _ in range(random.integers(3, 14)):
        x = pool[int(random.integers(max(0, len(pool) - 3), len(pool)))]
        match int(random.integers(5)):
            case 0:
                made = net.window(x, int(random.integers(1, 9)))
            case 1:
                made = net.window(x, net.shape[x][3], 2, POINTS)
            case 2:
                made = net.add(net.shape[x], {x: (0, None, 2, 3)})  # over all rows
            case _:
                others = [y for y in pool if net.shape[y] == net.shape[x] and y != x]
                made = net.add(net.shape[x], {x: POINTS, **({others[-1]: POINTS} if others else {})})
        pool.append(made)
    network = net.network()
    last = [replace(n, is_result=not r) for n, r in zip(network.layers, network.readers, strict=True)]
    return replace(network, layers=tuple(last))


def test_a_grid_where_one_axis_is_not_enough() -> None:
    """Four images, of which half a one fits: images first, and rows inside of them."""
    net = Net(4, 8, 8, 2)
    net.window(net.window(~0, 2), 2)
    network = net.network()
    group = joined(group_of(network, 0), group_of(network, 1))
    image = 2 * 8 * 8 * 2
    whole, half = (Splitter(network, 4, room, grid=True).best(group) for room in (2 * image, image))
    assert whole == Split(2, 4, 0) and whole.parts == {0: 4}
    assert half == Split(2, 8, 1, 4) and half.parts == {0: 4, 1: 2}
    assert Splitter(network, 4, image).best(group) == Split(2, 8, 1)  # rows of all images at once


def test_instances_of_a_grid() -> None:
    """In the order of their numbers they are image by image, rows in order."""
    body = ForeignSource("numpy", "none", "", (TaskDigit("n", 1, 8, 4), TaskDigit("h", 4, 4, 1)))
    graph = images(16)
    kernels = {n: RKernel("rows", op.operation, body) for n, op in enumerate(graph.operators)}
    network = network_of(graph, {k.operation: [k] for k in kernels.values()})
    group = group_of(network, 0)
    for n in range(1, 4):
        group = joined(group, group_of(network, n))
    found, producers = instances([group], [Split(4, 16, 2, 8)], kernels, Dependencies(graph, kernels))
    assert len(found) == 16 and not any(producers)
    for part, instance in enumerate(found):
        for n, rtasks in instance.rtasks.items():
            boxes = [kernels[n].box(r) for r in rtasks.tolist()]
            assert {(b["n"][0], b["h"][0] // 8) for b in boxes} == {(part // 2, part % 2)}


@pytest.mark.parametrize("seed", range(40))
def test_groups_and_splits_keep_what_they_promise(seed: int) -> None:
    network = random_network(seed)
    for room in (200, 1000, 10_000):
        splitter = Splitter(network, 4, room)
        groups = grouped(network, splitter)
        assert sorted(n for g in groups for n in g.layers) == list(range(len(network.layers)))
        for group in groups:
            inside = set(group.layers)
            for n in group.layers[:-1]:  # one result, and no way out and back in
                assert set(network.readers[n]) <= inside and not network.layers[n].is_result
            best = splitter.best(group)
            assert len(group.layers) == 1 or best is not None
            for split in splitter.splits(group):
                check_split(network, group, split, room)
                assert best is not None
                assert (split.num_layers, -split.factor, -split.axis) <= (best.num_layers, -best.factor, -best.axis)


def check_split(network: Network, group: LayerGroup, split: Split, room: int) -> None:
    """By definition: every tensor has the axis, the factor divides all, an instance fits, and no smaller one does."""
    axes = axes_of(network, group, split.axis)
    extents = [network.layers[n].shape[a] for n in group.layers if (a := axes[n]) is not None]
    common = gcd(*extents) if len(extents) == len(group.layers) else 1
    assert split.factor == 1 or (common % split.factor == 0)

    def footprint(factor: int) -> float:
        sizes = {n: network.layers[n].nbytes / factor for n in group.layers}
        for source, outside in group.outside.items():
            followed = outside.axes[split.axis] is not None
            sizes[source] = network.nbytes(source) / (factor if followed else 1)
        reads = {n: {r.source for r in network.layers[n].reads} for n in group.layers}
        peak = 0.0
        for at, n in enumerate(group.layers):
            made = {*group.outside, *group.layers[: at + 1]}
            later = {n, *(s for m in group.layers[at:] for s in reads[m])}
            peak = max(peak, sum(sizes[s] for s in made & later))
        return peak

    assert footprint(split.factor) <= room + 1
    smaller = [v for v in range(1, split.factor) if common % v == 0 and (v >= 4 or v in (1, 2))]
    assert all(footprint(v) > room - 1 for v in smaller)


def test_a_joined_group_is_its_layers() -> None:
    """Whatever was joined first: an axis must be followed on all ways to the result."""
    net = Net(2, 6, 4, 3)
    a = net.window(~0, 5)
    b = net.add(net.shape[a], {a: POINTS})
    c = net.add(net.shape[a], {a: (0, None, 2, 3)})
    d = net.add(net.shape[a], {b: POINTS, c: POINTS})
    network = net.network()
    alone = {n: group_of(network, n) for n in (a, b, c, d)}
    both = joined(alone[c], joined(alone[b], alone[d]))
    other = joined(alone[b], joined(alone[c], alone[d]))
    assert both == other
    assert joined(alone[a], both).cuts == (2, 0, 4, 5)  # rows: c reads all of them
    assert axes_of(network, joined(alone[a], both), 1)[a] is None


def test_axes_that_operators_follow() -> None:
    def axes(shape: tuple[int, ...], nodes: list[object], **weights: tuple[int, ...]) -> tuple[Axes, ...]:
        operator = loaded(shape, nodes, **weights).operators[-1]
        return followed_axes(operator.operation)

    image = (2, 6, 8, 8)
    assert axes(image, [node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[1] * 4)], w=(4, 6, 3, 3))[0] == (
        0,
        None,
        2,
        3,
    )
    assert axes(image, [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3])])[0] == (0, 1, 2, 3)
    assert axes(image, [node("GlobalAveragePool", ["x"], ["y"])])[0] == (0, 1, None, None)
    assert axes(image, [node("Transpose", ["x"], ["y"], perm=[1, 0, 3, 2])])[0] == (1, 0, 3, 2)
    assert axes(image, [node("MatMul", ["x", "w"], ["y"])], w=(8, 5))[0] == (0, 1, 2, None)
    assert axes(image, [node("Softmax", ["x"], ["y"], axis=3)])[0] == (0, 1, 2, None)


def test_network_of_a_graph() -> None:
    """Weights are no inputs; results are marked; the bytes are those of the tensors."""
    graph = images(4)
    network = network_of(graph, {k.operation: [k] for k in image_by_image(graph).values()})
    assert [layer.shape for layer in network.layers] == [(8, 16 >> k, 4, 4) for k in range(4)]
    assert network.inputs == (8 * 16 * 16 * 4,)
    assert [[r.source for r in layer.reads] for layer in network.layers] == [[~0], [0], [1], [2]]
    assert all(layer.reads[0].axes == (0, None, 2, 3) for layer in network.layers)
    assert all(layer.parts == (8, 1, 1, 1) for layer in network.layers)  # rKernels cut images apart, and no more
    assert [layer.is_result for layer in network.layers] == [False, False, False, True]


# ---- plans


def tower(batch: int, size: int, channels: int = 16, joined: bool = False) -> Graph:
    """Two convolutions and a pooling, three times: as networks begin, with tensors that shrink.

    Joined: both convolutions' channels go on, as in DenseNet.
    """
    nodes = []
    for stage in range(3):
        for half in range(2):
            source = f"p{stage - 1}" if not half and stage else f"r{stage}{half - 1}" if half else "x"
            nodes += [
                node("Conv", [source, f"w{stage}{half}"], [f"c{stage}{half}"], pads=[1] * 4),
                node("Relu", [f"c{stage}{half}"], [f"r{stage}{half}"]),
            ]
        if joined:
            nodes.append(node("Concat", [f"r{stage}0", f"r{stage}1"], [f"j{stage}"], axis=1))
        last, result = f"j{stage}" if joined else f"r{stage}1", f"p{stage}" if stage < 2 else "y"
        nodes.append(node("MaxPool", [last], [result], kernel_shape=[2, 2], strides=[2, 2]))
    weights = {}
    for stage in range(3):
        for half in range(2):
            inputs = 2 * channels if joined and stage and not half else channels
            weights[f"w{stage}{half}"] = (channels, inputs, 3, 3)
    return loaded((batch, channels, size, size), nodes, **weights)


def small_caches(own: int, shared: int) -> VDeviceSpec:
    spec = MadeUp(runnable("x86-64-avx2"), 2, 512).spec
    levels = (
        MemoryLevel("L2", own, "veu", 80.0),
        MemoryLevel("L3", shared, read_gbps=48.0),
        MemoryLevel("DRAM", 1 << 34, read_gbps=20.0),
    )
    return replace(spec, memory=levels)


class TestPlans:
    """A tower of sixteen images, of which the shared cache holds two with what lies between their layers."""

    spec = small_caches(32 * KIB, 512 * KIB)

    def problem(self, graph: Graph, policy: str) -> Problem:
        return problem_of(graph, self.spec, policy)

    def plan(self, policy: str, problem: Problem) -> ExecutionPlan:
        plan = PluginRegistry(third_party=False).policy(policy).schedule(problem)
        plan = replace(plan, memory=plan.memory or plan_memory(plan))
        verify_plan(plan)
        return replace(plan, prices={k: fit(k, self.spec, us, None) for k, us in plan.rtask_us.items()})

    def test_cuts_move_less_and_the_fastest_plan_is_taken(self) -> None:
        """Less from main memory than layers one after the other; the search has all cuts of the rules, too."""
        graph = optimize(tower(16, 32), self.spec)
        wavefront = simulate(self.plan("wavefront", self.problem(graph, "wavefront")))
        problem = self.problem(optimize(tower(16, 32), self.spec, per_image=True), "graphturbo")
        policies = ("rules=paper,order=breadth", "rules=paper,order=depth", "rules=paper", "rules=every")
        plans = (self.plan(f"graphturbo:{policy}", problem) for policy in policies)
        breadth, depth, best, search = map(simulate, plans)
        assert all(found.moved["DRAM"] < 0.85 * wavefront.moved["DRAM"] for found in (breadth, depth))
        assert search.total_us <= min(best.total_us, wavefront.total_us)

    def test_what_no_cut_makes_cheaper_is_not_cut(self) -> None:
        graph = optimize(tower(4, 28), self.spec, per_image=True)
        problem = self.problem(graph, "graphturbo")
        search, rules = (PluginRegistry(third_party=False).policy(p) for p in ("graphturbo", "graphturbo:rules=paper"))
        whole, cut = search.schedule(problem), rules.schedule(problem)
        assert whole.policy == "wavefront (chosen by graphturbo)" and "not cut" in whole.notes[0]
        assert cut.policy == "graphturbo:rules=paper"
        us = [
            simulate(replace(p, prices={k: Price(us, 0.0, 0.0) for k, us in p.rtask_us.items()})).total_us
            for p in (whole, cut)
        ]
        assert us[0] < us[1]

    @pytest.mark.parametrize(("joined", "share"), [(False, 0.7), (True, 0.85)])
    def test_memory_in_pieces(self, joined: bool, share: float) -> None:
        """A few images at a time in less memory than layer by layer; right in any interleaving, and as it is proven."""
        graph = optimize(tower(5, 32, joined=joined), self.spec, per_image=True)
        plan = PluginRegistry(third_party=False).policy("graphturbo").schedule(self.problem(graph, "graphturbo"))
        assert plan.memory is not None and plan.memory.pieces
        verify_plan(plan)
        whole = plan_memory(plan)
        assert plan.memory.arena_bytes < share * whole.arena_bytes
        x = {"x": np.random.default_rng(0).standard_normal((5, 16, 32, 32), np.float32)}
        wanted = evaluate_graph(graph, x)["y"]
        for seed in range(3):
            np.testing.assert_allclose(run_plan(plan, x, seed=seed)["y"], wanted, rtol=1e-4, atol=1e-3)
        caught = 0
        for tensor, pieces in plan.memory.pieces.items():
            begin = min(pieces.offsets) // 64 * 64
            offsets = tuple(begin + 4 * first % 64 for first in pieces.firsts)  # a ring of one place
            shrunk = replace(plan.memory, pieces={**plan.memory.pieces, tensor: replace(pieces, offsets=offsets)})
            try:
                verify_plan(replace(plan, memory=shrunk))
            except VerificationError as error:
                assert error.rule == "R107"
                caught += 1
        assert caught

    def test_on_the_cpu(self) -> None:
        """An odd batch of images of odd sizes, compiled and run."""
        graph = tower(3, 45)
        x = np.random.default_rng(0).standard_normal((3, 16, 45, 45)).astype(np.float32)
        with rammer.compile(graph, "cpu", policy="graphturbo", device=2, tune_seconds=0) as program:
            memory = program.plan.memory
            assert memory is not None and memory.pieces
            wanted = evaluate_graph(graph, {"x": x})["y"]
            for _ in range(5):
                np.testing.assert_allclose(program(x), wanted, rtol=1e-4, atol=1e-3)
