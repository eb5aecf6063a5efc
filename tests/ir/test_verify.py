"""Each rule, broken by a plan made for it; the happens-before order against the transitive closure."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import networkx as nx
import numpy as np
import pytest
from plans import plan_of, program
from rammer_testing.generate import random_graph, random_plan

from rammer.errors import VerificationError
from rammer.ir.device import MemoryLevel, SyncModel, VDeviceSpec
from rammer.ir.graph import Graph, View
from rammer.ir.kernel import ForeignSource
from rammer.ir.operator import Operations, ROperator, attributes
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan, MemoryPlan, Pieces
from rammer.ir.program import BarrierRTask, RTask
from rammer.ir.tensor import Digit, DType, Layout, TensorType, channel_blocked
from rammer.ir.tile import TaskDigit
from rammer.ir.verify import RULES, HappensBefore, verify_plan
from rammer.planner.memory import plan_memory
from rammer.vdevice.interpreter import numpy_kernel, run_plan

GOOD = program(["0.0"], ["0.1", [(0, 0)], "1.0"])


@cache
def good() -> ExecutionPlan:
    plan = plan_of((2, 1), GOOD)
    return replace(plan, memory=plan_memory(plan))


def with_digits(plan: ExecutionPlan, *digits: TaskDigit) -> ExecutionPlan:
    return replace(
        plan, kernels=(replace(plan.kernels[0], body=ForeignSource("numpy", "", "", digits)), *plan.kernels[1:])
    )


def moved(plan: ExecutionPlan, **offsets: int) -> ExecutionPlan:
    assert plan.memory is not None
    return replace(plan, memory=replace(plan.memory, offsets={**plan.memory.offsets, **offsets}))


BY_TWO = Layout((Digit(0, 2), Digit(0, 1, 2)))
axis = good().kernels[0].operation.expr.root.axes[0][0]
BROKEN: dict[str, tuple[str, ExecutionPlan, str]] = {
    "kernel of another operation": (
        "R100",
        replace(good(), kernels=plan_of((2, 1), GOOD).kernels),
        "another operation",
    ),
    "too few kernels": ("R100", replace(good(), kernels=good().kernels[:1]), "1 kernels for 2 operators"),
    "too few lanes": ("R101", replace(good(), programs=(GOOD, program([]))), r"programs\[1\] has 1 lanes"),
    "no such slot": (
        "R102",
        plan_of((1, 1), program(["0.0"], [[(0, 1)], "1.0"])),
        r"prog\[0\]\[1\], which does not exist",
    ),
    "no such lane": ("R102", plan_of((1, 1), program(["0.0"], [[(2, 0)], "1.0"])), "does not exist"),
    "own lane": ("R102", plan_of((1, 1), program(["0.0", [(0, 0)], "1.0"], [])), "own lane"),
    "same lane twice": ("R102", plan_of((1, 1), program(["0.0"], [[(0, 0), (0, 0)], "1.0"])), "vEU 0 twice"),
    "cycle": (
        "R103",
        plan_of((1, 1), program([[(1, 0)], "0.0"], [[(0, 1)], "1.0"])),
        r"prog\[0\]\[0\] -> prog\[1\]\[0\] -> prog\[0\]\[1\] -> prog\[0\]\[0\]",
    ),
    "no barrier": (
        "R104",
        plan_of((2, 1), program(["0.0"], ["0.1", "1.0"])),
        r"rTask 1.0 of tanh 'node1' in prog\[1\]\[1\] reads what rTask 0.0 of tanh 'node0' in prog\[0\]\[0\] writes",
    ),
    "barrier too early": ("R104", plan_of((2, 1), program(["0.0", "0.1"], [[(0, 0)], "1.0"])), "rTask 0.1 of"),
    "consumer in an earlier rProgram": (
        "R104",
        plan_of((1, 1), program(["1.0"]), program(["0.0"])),
        "nothing makes it wait",
    ),
    "fine barrier": ("R105", replace(plan_of((2, 1), GOOD, sync=SyncModel.GLOBAL)), "does not wait for all vEUs"),
    "rTask twice": ("R106", plan_of((2, 1), program(["0.0", "0.0"], ["0.1"])), "again in"),
    "rTask lost": ("R106", plan_of((2, 1), program(["0.0"], ["1.0"])), "rTask 0.1 of tanh 'node0' is in no slot"),
    "rTask unknown": ("R106", plan_of((2, 1), program(["0.7"], [])), "the unknown rTask 0.7"),
    "input overwritten while read": ("R107", moved(good(), t1=good().memory.offsets["t0"]), "share arena bytes"),
    "arena too small": ("R108", replace(good(), memory=replace(good().memory, arena_bytes=8)), "leaves the arena"),
    "not aligned": ("R108", moved(good(), t1=4), "not aligned"),
    "no place": ("R108", replace(good(), memory=MemoryPlan({}, 0)), "no place in the arena"),
    "scratch": ("R108", replace(good(), spec=replace(good().spec, scratch_bytes=-1)), "bytes of scratch"),
    "threads": ("R108", replace(good(), spec=replace(good().spec, max_threads=0)), "1 threads"),
    "tiles that leave a gap": (
        "R109",
        with_digits(good(), TaskDigit(axis, 3, 2, 1)),
        r"elements \[6, 8\) no rTask writes",
    ),
    "tiles that overlap": (
        "R109",
        with_digits(
            plan_of((4, 1), program(["0.0", "0.1", "0.2", "0.3", "1.0"])),
            TaskDigit(axis, 4, 2, 2),
            TaskDigit(axis, 3, 2, 1),
        ),
        "both write",
    ),
}


def in_pieces(plan: ExecutionPlan, tensor: str, first: int) -> ExecutionPlan:
    """Cut in two behind everything else; so far apart that no address is negative."""
    assert plan.memory is not None
    memory = replace(plan.memory, pieces={tensor: Pieces((0, first), (1024, 2048 + 4 * first))}, arena_bytes=4096)
    return replace(plan, memory=memory)


BROKEN["cut through what an rTask reads"] = (
    "R111",
    in_pieces(good(), "t1", 4),
    r"rTask 1.0 of tanh 'node1' touches elements \[0, 8\) of 't1' as 't1', and they lie in several pieces",
)
BROKEN["an output in pieces"] = ("R108", in_pieces(good(), "t2", 4), "'t2' is an input or output, and lies in pieces")
BROKEN["no such piece"] = ("R108", in_pieces(good(), "t1", 8), r"pieces of 't1' begin at \(0, 8\), of 8 elements")
BROKEN["other layout than the operator's"] = (
    "R110",
    replace(good(), graph=replace(good().graph, types={**good().graph.types, "t1": TensorType((8,), layout=BY_TWO)})),
    r"in layout row-major, but it is float32\[8\] in layout 0//2 0//1%2",
)
BROKEN["view past the end of its base"] = (
    "R110",
    replace(good(), graph=replace(good().graph, views={"t1": View("t0", 4)})),
    r"elements \[4, 12\) of 't0'",
)


@cache
def updating(read: str = "new") -> ExecutionPlan:
    """A cache of which four elements change, and what is made of the cache then."""
    cache, rows, places = TensorType((1, 8)), TensorType((1, 4)), TensorType((1,), DType.I64)
    interner = Operations(OPS)
    update = interner.define("update", (cache, rows, places), attributes(moves=(0, -1), how="linear"))
    tanh = interner.define("tanh", (cache,))
    nodes = (ROperator("store", update, ("old", "rows", "at"), ("new",)), ROperator("use", tanh, (read,), ("y",)))
    types = {"old": cache, "new": cache, "y": cache, "rows": rows, "at": places}
    graph = Graph("step", ("old", "rows", "at"), ("y", "new"), nodes, types, {}, interner, {"new": View("old", 0)})
    kernels = numpy_kernel(update, {}), numpy_kernel(tanh, {tanh.expr.root.axes[1][0]: 4})
    plan = ExecutionPlan(graph, VDeviceSpec("test", 2), kernels, (program(["0.0", "1.0"], [[(0, 0)], "1.1"]),))
    return replace(plan, memory=plan_memory(plan, unshared=("old",)))


BROKEN["what was there before"] = ("R112", updating("old"), "tanh 'use' reads 'old', .* 'store' changes that in place")
BROKEN["an update of something else"] = (
    "R112",
    replace(updating(), graph=replace(updating().graph, views={})),
    "'store' updates 'old', and 'new' is not that input's memory",
)
BROKEN["an update that nobody waits for"] = (
    "R104",
    replace(updating(), programs=(program(["0.0", "1.0"], ["1.1"]),)),
    "rTask 1.1 of tanh 'use' .* reads what rTask 0.0 of update 'store' .* writes",
)

LEVEL = MemoryLevel("near", 1 << 20, "veu", managed="scratch")
BROKEN["foreign text with an operand in scratch"] = (
    "R113",
    replace(
        good(),
        spec=replace(good().spec, memory=(LEVEL,), resident="near"),
        memory=MemoryPlan({"t0": 0, "t2": 64}, 128, in_scratch={"t1": Pieces((0,), (0,), (1,))}),
    ),
    "'t1' lies in scratch, but 'tanh_numpy_.*' is foreign text",
)
BROKEN["a message without a group of vEUs"] = (
    "R114",
    replace(good(), memory=replace(good().memory, messages={"t1": 64})),  # type: ignore[type-var]
    "'t1' is a message, and not all of it is written in one group",
)
BROKEN["scratch where nothing may stay"] = (
    "R108",
    replace(good(), memory=MemoryPlan({"t0": 0, "t2": 64}, 128, in_scratch={"t1": Pieces((0,), (0,), (1,))})),
    "1 results lie in scratch, and test has no level where they may stay",
)


def joined(offset: int = 32, writers: int = 2, order: tuple[str, ...] = ("0.0", "1.0", "2.0")) -> ExecutionPlan:
    """Images of 16 channels and as many others, joined where they lie, and a reader of both; each has one rTask."""
    interner = Operations(OPS)
    layout = channel_blocked(3, 16, batch_first=True)
    plain, both = TensorType((3, 16, 2)), TensorType((3, 32, 2), layout=layout)
    part = replace(plain, layout=layout.with_strides(plain.shape, both.strides))
    write = interner.retype(interner.define("tanh", (plain,)), (plain,), (part,), (False,))
    read = interner.retype(
        interner.define("tanh", (replace(both, layout=None),)), (both,), (replace(both, layout=None),), (False,)
    )
    nodes = [ROperator(f"write{n}", write, ("x",), (f"part{n}",)) for n in range(writers)]
    nodes.append(ROperator("read", read, ("both",), ("y",)))
    types = {"x": plain, "part0": part, "part1": part, "both": both, "y": replace(both, layout=None)}
    views = {"part0": View("both", 0), "part1": View("both", offset)}
    graph = Graph("joined", ("x",), ("y",), tuple(nodes), types, {}, interner, views)
    kernels = tuple(numpy_kernel(op.operation, {}) for op in nodes)
    plan = ExecutionPlan(graph, VDeviceSpec("test", 2), kernels, (program(order[:1], order[1:]),))
    return replace(plan, memory=plan_memory(plan))


BROKEN["channels joined where others lie"] = (
    "R109",
    joined(offset=16),
    "'part0' and 'part1' share elements of 'both', so both would be written there",
)
BROKEN["channels that nobody writes between others"] = (
    "R109",
    joined(writers=1, order=("0.0", "1.0")),
    r"tanh 'read' reads 'both', whose elements \[32, 64\) no rTask writes",
)
BROKEN["joined channels that nobody waits for"] = (
    "R104",
    joined(),
    "rTask 2.0 of tanh 'read' .* reads what rTask 0.0 of tanh 'write0' .* writes",
)
BROKEN["channels that end behind what they lie in"] = ("R110", joined(offset=48), "a view lies inside its base")


def test_a_good_plan_passes() -> None:
    verify_plan(good())
    verify_plan(updating())
    plan = joined()
    waiting = replace(plan, programs=(program(["0.0"], ["1.0", [(0, 0)], "2.0"]),))
    verify_plan(waiting)
    x = np.random.default_rng(0).standard_normal((3, 16, 2)).astype(np.float32)
    found = run_plan(waiting, {"x": x})["y"]
    np.testing.assert_allclose(found, np.tanh(np.tanh(np.concatenate([x, x], 1))), rtol=1e-6)
    assert plan.graph.sources[1] == () and [s.producer for s in plan.graph.sources[2]] == [0, 1]


def test_an_update_changes_its_input() -> None:
    old, rows = np.zeros((1, 8), np.float32), np.ones((1, 4), np.float32)
    found = run_plan(updating(), {"old": old, "rows": rows, "at": np.array([3])})
    assert found["new"].tolist() == [[0, 0, 0, 1, 1, 1, 1, 0]]
    np.testing.assert_allclose(found["y"], np.tanh(found["new"]), rtol=1e-6)


@pytest.mark.parametrize("label", BROKEN)
def test_rule(label: str) -> None:
    rule, plan, message = BROKEN[label]
    with pytest.raises(VerificationError, match=message) as caught:
        verify_plan(plan)
    assert caught.value.rule == rule
    assert str(caught.value).startswith(f"{rule}: ")


def test_every_rule_has_a_broken_plan() -> None:
    assert {rule for rule, _, _ in BROKEN.values()} == RULES.keys()


def test_global_barriers_wait_for_all() -> None:
    lanes = (["0.0", [(1, 0)], "1.0"], ["0.1", [(0, 0)]])
    verify_plan(plan_of((2, 1), program(*lanes), sync=SyncModel.GLOBAL))


@pytest.mark.parametrize("seed", range(8))
def test_order_is_the_transitive_closure(seed: int) -> None:
    plan = random_plan(random_graph(seed, 5), seed, num_veus=2 + seed % 3)
    order = HappensBefore(plan.programs)
    edges = nx.DiGraph()
    number: dict[tuple[int, int, int], int] = {}
    for p, prog in enumerate(plan.programs):
        for veu, lane in enumerate(prog.lanes):
            for at, _ in enumerate(lane):
                number[p, veu, at] = len(number)
    for (p, veu, at), me in number.items():
        edges.add_node(me)
        if at:
            edges.add_edge(number[p, veu, at - 1], me)
        slot = plan.programs[p][veu][at]
        if isinstance(slot, BarrierRTask):
            edges.add_edges_from((number[p, *w], me) for w in slot.waits)
        edges.add_edges_from((other, me) for (q, _, _), other in number.items() if q < p)
    closure = nx.transitive_closure_dag(edges)
    tasks = [n for (p, v, o), n in number.items() if isinstance(plan.programs[p][v][o], RTask)]
    pairs = np.array(list(product(tasks, tasks)))
    found = order.before(pairs[:, 0], pairs[:, 1])
    assert found.tolist() == [closure.has_edge(int(a), int(b)) for a, b in pairs]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1)])
def test_tensors_of_no_or_one_element(shape: tuple[int, ...]) -> None:
    kind = TensorType(shape)
    interner = Operations(OPS)
    operation = interner.define("tanh", (kind,))
    nodes = tuple(ROperator(f"n{n}", operation, (f"t{n}",), (f"t{n + 1}",)) for n in range(2))
    types = dict.fromkeys(("t0", "t1", "t2"), kind)
    graph = Graph("g", ("t0",), ("t2",), nodes, types, {}, interner)
    kernel = numpy_kernel(operation, {})
    plan = ExecutionPlan(graph, VDeviceSpec("test", 1), (kernel, kernel), (program(["0.0", "1.0"]),))
    plan = replace(plan, memory=plan_memory(plan))
    verify_plan(plan)
    assert run_plan(plan, {"t0": np.zeros(shape, np.float32)})["t2"].shape == shape


def test_cycle_in_a_later_program_names_it() -> None:
    plan = plan_of((1, 1), program(["0.0"], []), program([[(1, 0)], "1.0"], [[(0, 1)]]))
    with pytest.raises(VerificationError, match=r"programs\[1\] prog\[0\]\[0\] -> "):
        verify_plan(plan)
