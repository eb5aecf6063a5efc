"""Groups in parts: graphs that mean the same, plans that are proven, and less that leaves the vEUs' own caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise, permutations

import numpy as np
import pytest
import stages
from cpus import MadeUp, runnable
from onnx import TensorProto, helper, numpy_helper

import rammer
from rammer.cost.price import us_per_byte
from rammer.errors import VerificationError
from rammer.ir.analysis.parts import full_box
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.plan import ExecutionPlan, Price
from rammer.ir.program import BarrierRTask, RProgram, RTask
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.verify import verify_graph, verify_plan
from rammer.passes import optimize
from rammer.planner.memory import plan_memory
from rammer.scheduler.graphturbo.in_parts import DIMS, InParts, Parted, in_parts, needed
from rammer.scheduler.graphturbo.strips import worthwhile
from rammer.scheduler.select import PriceTable
from rammer.scheduler.timeline import simulate
from rammer.vdevice.interpreter import run_plan

KIB = 1 << 10
node = helper.make_node


def network(batch: int, size: int, *, joined: bool = False) -> Graph:
    """Two inverted residuals, as MobileNets have them, a third of stride two, perhaps two joined ones; means."""
    shapes = {"w0": (16, 3, 3, 3)}
    nodes = [node("Conv", ["x", "w0"], ["c0"], pads=[1] * 4, strides=[2, 2]), node("Relu", ["c0"], ["t0"])]
    for n, (stride, out) in enumerate([(1, 16), (1, 16), (2, 24)]):
        wide = 48
        shapes |= {f"e{n}": (wide, 16, 1, 1), f"d{n}": (wide, 1, 3, 3), f"p{n}": (out, wide, 1, 1)}
        nodes += [
            node("Conv", [f"t{n}", f"e{n}"], [f"a{n}"]),
            node("Clip", [f"a{n}", "low", "high"], [f"b{n}"]),
            node("Conv", [f"b{n}", f"d{n}"], [f"m{n}"], pads=[1] * 4, strides=[stride] * 2, group=wide),
            node("Relu", [f"m{n}"], [f"r{n}"]),
            node("Conv", [f"r{n}", f"p{n}"], [f"q{n}"]),
            node("Add", [f"q{n}", f"t{n}"], [f"t{n + 1}"]) if stride == 1 else node("Relu", [f"q{n}"], [f"t{n + 1}"]),
        ]
    last, channels = "t3", 24
    if joined:
        shapes |= {"j0": (32, 24, 3, 3), "j1": (16, 32, 3, 3), "j2": (16, 24, 1, 1)}
        nodes += [
            node("Conv", ["t3", "j0"], ["u0"], pads=[1] * 4),
            node("Conv", ["u0", "j1"], ["u1"], pads=[1] * 4),
            node("Conv", ["t3", "j2"], ["u2"]),
            node("Concat", ["u1", "u2"], ["u"], axis=1),
        ]
        last, channels = "u", 32
    shapes["g"] = (10, channels)
    nodes += [
        node("GlobalAveragePool", [last], ["v"]),
        node("Flatten", ["v"], ["f"]),
        node("Gemm", ["f", "g"], ["y"], transB=1),
    ]
    rng = np.random.default_rng(1)
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) / 6, t) for t, s in shapes.items()]
    weights += [numpy_helper.from_array(np.array(v, np.float32), t) for t, v in (("low", 0.0), ("high", 6.0))]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (batch, 3, size, size))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "network", [x], [y], weights)
    return rammer.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def spec_of(veus: int, own: int = 96 * KIB) -> VDeviceSpec:
    levels = (
        MemoryLevel("L2", own, "veu", 80.0),
        MemoryLevel("L3", 4096 * KIB, read_gbps=16.0, write_gbps=8.0),
        MemoryLevel("DRAM", 1 << 34, read_gbps=8.0),
    )
    return replace(MadeUp(runnable("x86-64-avx2"), veus, 512).spec, memory=levels)


problem_of, planned = partial(stages.problem_of, offer=True), partial(stages.planned, offer=True)


def an_input(batch: int, size: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((batch, 3, size, size), np.float32)}


def random_groups(graph: Graph, rng: np.random.Generator) -> list[Parted]:
    """Runs of operators of which only the last one's result is read elsewhere, in parts of any sizes."""
    seen = {*graph.outputs, *graph.views, *(view.base for view in graph.views.values())}
    found, at = [], 0
    while at < len(graph.operators):
        ends = [
            last
            for last in range(at, min(at + 5, len(graph.operators)))
            if len(graph.types[graph.operators[last].outputs[0]].shape) == 4
            and all(
                op.outputs[0] not in seen and max(graph.consumers[op.outputs[0]]) <= last
                for op in graph.operators[at:last]
            )
        ]
        if not ends or rng.random() < 0.2:
            at += 1
            continue
        last = int(rng.choice(ends))
        shape = graph.types[graph.operators[last].outputs[0]].shape
        rows = sorted({0, shape[2], *rng.integers(0, shape[2], 3).tolist()})
        images = sorted({0, shape[0], *rng.integers(0, shape[0], 1).tolist()})
        boxes = []
        for first, end in pairwise(images):
            for low, high in pairwise(rows):
                box = list(full_box(shape))
                box[DIMS[0]], box[DIMS[1]] = (first, end), (low, high)
                boxes.append(tuple(box))
        group = Parted(tuple(range(at, last + 1)), tuple(boxes))
        if all(needed(graph, group.operators, box) for box in boxes):
            found.append(group)
        at = last + 1
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_graph_in_parts_means_the_same(seed: int) -> None:
    """Any groups in any parts, with operands and results that are parts of larger tensors."""
    rng = np.random.default_rng(seed)
    batch, size = (int(rng.integers(1, 4)), int(rng.choice([33, 45, 64])))
    graph = optimize(network(batch, size, joined=seed % 2 == 0), spec_of(2), per_image=seed % 3 == 0)
    groups = random_groups(graph, rng)
    found = in_parts(graph, groups)
    assert len(groups) > 2 and [len(parts) for parts in found.parts] == [len(group.boxes) for group in groups]
    verify_graph(found.graph, graph)
    x = an_input(batch, size)
    np.testing.assert_allclose(evaluate_graph(found.graph, x)["y"], evaluate_graph(graph, x)["y"], rtol=1e-6, atol=1e-6)
    assert sorted(n for numbers in found.numbers for n in numbers) == list(range(len(found.graph.operators)))


def test_parts_that_need_all_of_something() -> None:
    """A mean over all rows, and a product of such means, without rows themselves, between operators of a group."""
    rng = np.random.default_rng(5)
    shapes = {"w0": (16, 4, 3, 3), "g": (16, 16), "w1": (16, 16, 1, 1)}
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        node("GlobalAveragePool", ["a"], ["m"]),
        node("Flatten", ["m"], ["f"]),
        node("Gemm", ["f", "g"], ["s"]),
        node("Sigmoid", ["s"], ["q"]),
        node("Unsqueeze", ["q", "axes"], ["u"]),
        node("Mul", ["a", "u"], ["b"]),
        node("Conv", ["b", "w1"], ["y"]),
    ]
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) / 6, t) for t, s in shapes.items()]
    weights.append(numpy_helper.from_array(np.array([2, 3]), "axes"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 4, 13, 9))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    whole_graph = helper.make_graph(nodes, "excited", [x], [y], weights)
    loaded = rammer.from_onnx(helper.make_model(whole_graph, opset_imports=[helper.make_opsetid("", 17)]))
    rows = ((0, 5), (5, 6), (6, 13))
    boxes = tuple(((n, n + 1), (0, 16), span, (0, 9)) for n in range(3) for span in rows)
    found = in_parts(loaded, [Parted(tuple(range(len(loaded.operators))), boxes)])
    given = {"x": rng.standard_normal((3, 4, 13, 9)).astype(np.float32)}
    got, want = (evaluate_graph(graph, given)["y"] for graph in (found.graph, loaded))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert any(kind.rank == 2 and "[" in t for t, kind in found.graph.types.items())


def parts_of(plan: ExecutionPlan) -> dict[str, set[int]]:
    """On which vEUs the operators of each part are: of those that have names of parts."""
    found: dict[str, set[int]] = {}
    for program in plan.programs:
        for veu, lane in enumerate(program.lanes):
            for slot in lane:
                if isinstance(slot, RTask):
                    result = plan.graph.operators[slot.uid.operator_id].name.rpartition(" for ")[2]
                    found.setdefault(result, set()).add(veu)
    return {name: veus for name, veus in found.items() if "[" in name}


@pytest.mark.parametrize(
    ("rules", "batch", "size", "veus", "kib", "joined"),
    [
        ("parts", 1, 75, 2, 96, False),
        pytest.param("images", 1, 75, 2, 96, False, marks=pytest.mark.slow),
        ("images", 1, 61, 2, 64, True),
        pytest.param("parts", 1, 61, 2, 64, True, marks=pytest.mark.slow),
        ("parts", 1, 93, 3, 128, False),
        pytest.param("images", 1, 93, 3, 128, False, marks=pytest.mark.slow),
        ("parts", 3, 45, 2, 64, True),
        pytest.param("images", 3, 45, 2, 64, True, marks=pytest.mark.slow),
        ("images", 2, 61, 2, 128, False),
        pytest.param("parts", 2, 61, 2, 128, False, marks=pytest.mark.slow),
    ],
)
def test_plans(rules: str, batch: int, size: int, veus: int, kib: int, joined: bool) -> None:
    """A part has one vEU, whichever interleaving is right, and less leaves the vEUs' caches than by wavefront."""
    spec = spec_of(veus, kib * KIB)
    graph = optimize(network(batch, size, joined=joined), spec, per_image=True)
    plan = planned(graph, spec, f"graphturbo:rules={rules}")
    verify_plan(plan)
    x = an_input(batch, size)
    wanted = evaluate_graph(graph, x)["y"]
    for seed in range(2):
        np.testing.assert_allclose(run_plan(plan, x, seed=seed)["y"], wanted, rtol=1e-4, atol=1e-4)
    if rules == "parts":
        assert plan.notes[0].startswith("groups in parts: ")
        where = parts_of(plan)
        assert len(where) >= 2 * veus and all(len(some) == 1 for some in where.values())
        assert {min(some) for some in where.values()} == set(range(veus))
        whole_plan = planned(graph, spec, "wavefront")
        assert plan.memory is not None
        assert moving_us(plan) < 0.97 * moving_us(whole_plan)


def placed(program: RProgram) -> Iterator[tuple[int, int]]:
    """vEU and operator of every rTask."""
    yield from ((position.veu, uid.operator_id) for position, uid in program.tasks())


def moving_us(plan: ExecutionPlan) -> float:
    """Microseconds of moving what does not stay in the vEUs' own caches."""
    placed = replace(plan, memory=plan.memory or plan_memory(plan))
    timeline = simulate(replace(placed, prices={k: Price(us, 0.0, 0.0) for k, us in plan.rtask_us.items()}))
    rates = us_per_byte(plan.spec, plan.spec.num_veus)[0].tolist()
    return sum(nbytes * us for nbytes, us in zip(timeline.moved.values(), rates, strict=True))


def test_parts_share_memory() -> None:
    """What lies inside of parts takes turns in the same bytes."""
    spec = spec_of(2, 192 * KIB)
    graph = optimize(network(1, 96), spec)
    plan, uncut = (planned(graph, spec, p) for p in ("graphturbo:rules=parts", "graphturbo:parts=none"))
    assert plan.memory and uncut.memory and plan.memory.arena_bytes < 0.8 * uncut.memory.arena_bytes


def in_one_program(size: int) -> ExecutionPlan:
    spec = spec_of(2)
    plan = planned(optimize(network(1, size), spec), spec, "graphturbo:rules=parts")
    assert len(plan.programs) == 1
    return plan


def test_a_wait_less_is_found_out() -> None:
    """Every one that a barrier-rTask has."""
    plan = in_one_program(75)
    (program,) = plan.programs
    waits = [
        (veu, order, n)
        for veu, lane in enumerate(program.lanes)
        for order, slot in enumerate(lane)
        if isinstance(slot, BarrierRTask)
        for n in range(len(slot.waits))
    ]
    assert len(waits) >= 4
    for veu, order, n in waits:
        lanes = list(program.lanes)
        lane, slot = lanes[veu], lanes[veu][order]
        assert isinstance(slot, BarrierRTask)
        less = replace(slot, waits=slot.waits[:n] + slot.waits[n + 1 :])
        lanes[veu] = (*lane[:order], less, *lane[order + 1 :])
        with pytest.raises(VerificationError):
            verify_plan(replace(plan, programs=(replace(program, lanes=tuple(lanes)),)))


def test_a_part_in_another_place_is_found_out() -> None:
    """A part of a result a row further on: some rows are then written twice, others by nobody."""
    plan = in_one_program(76)
    graph = plan.graph
    written = [t for op in graph.operators for t in op.outputs if t in graph.views and "[" in t]
    assert len(written) >= 4
    for tensor in written:
        view, step = graph.views[tensor], graph.types[tensor].strides[2]
        for moved in (view.offset + step, view.offset - step):
            if moved >= 0:
                shifted = replace(graph, views={**graph.views, tensor: view._replace(offset=moved)})
                with pytest.raises(VerificationError):
                    verify_plan(replace(plan, graph=shifted))


def test_memory_that_another_part_has_is_found_out() -> None:
    """Whatever lies inside of a part, moved onto what is in use then."""
    plan = in_one_program(63)
    assert plan.memory is not None
    owners = {t: at for t, at in plan.memory.offsets.items() if " for " in t}
    pairs = [(one, other) for one, other in permutations(owners, 2) if owners[one] != owners[other]]
    caught = 0
    for one, other in pairs[:: max(len(pairs) // 60, 1)]:
        moved = replace(plan.memory, offsets={**plan.memory.offsets, one: owners[other]})
        try:
            verify_plan(replace(plan, memory=moved))
        except VerificationError as error:
            assert error.rule in ("R107", "R108")
            caught += 1
    assert caught > 10


@pytest.mark.parametrize("own", [64 * KIB, 128 * KIB, 4096 * KIB])
def test_which_groups_pay(own: int) -> None:
    """Groups lie one behind the other and are whole in themselves, parts cover each result once, and spare more than
    they cost. Where everything has room nothing is cut.
    """
    spec = spec_of(2, own)
    problem = problem_of(optimize(network(1, 96, joined=True), spec), spec, "graphturbo")
    groups, graph = worthwhile(problem, PriceTable(problem)), problem.graph
    assert bool(groups) == (own < 4096 * KIB)
    taken = [n for priced in groups for n in priced.group.operators]
    assert taken == sorted(set(taken))
    for priced in groups:
        (*inner, last), boxes = priced.group
        assert priced.spared_us > priced.more_us > 0
        assert all(set(graph.consumers[graph.operators[n].outputs[0]]) <= {*inner, last} for n in inner)
        shape = graph.types[graph.operators[last].outputs[0]].shape
        counted = np.zeros(shape, np.int64)
        for box in boxes:
            counted[tuple(slice(*span) for span in box)] += 1
        assert (counted == 1).all() and len(boxes) % 2 == 0


def test_who_makes_parts_has_rkernels_for_them() -> None:
    """Without them operators stay whole, as where vEUs have no caches of their own."""
    spec = spec_of(2)
    graph = optimize(network(1, 128), spec)
    for one in (spec, replace(spec, memory=spec.memory[1:])):
        given = replace(problem_of(graph, one, "graphturbo:rules=parts"), offer=None)
        plan = stages.REGISTRY.policy("graphturbo:rules=parts").schedule(given)
        assert plan.graph is graph and "not cut" in plan.notes[0]


def test_numbers_of_a_graph_that_is_not_cut() -> None:
    graph = optimize(network(1, 33), spec_of(2))
    found = in_parts(graph, [])
    assert found == InParts(found.graph, (), (), tuple((n,) for n in range(len(graph.operators))))
    assert found.graph.operators == graph.operators and found.graph.views == graph.views


def test_on_the_cpu() -> None:
    """Compiled and run: an odd size, as this machine's caches have it perhaps in parts."""
    graph = network(1, 301)
    x = an_input(1, 301)
    with rammer.compile(graph, "cpu", policy="graphturbo:rules=parts", device=2, tune_seconds=0) as program:
        wanted = evaluate_graph(graph, x)["y"]
        for _ in range(3):
            np.testing.assert_allclose(program.run(x)["y"], wanted, rtol=1e-4, atol=1e-4)
