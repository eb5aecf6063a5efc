"""Tensors in pieces: rings smaller than the tensor, right on every backend, and no fault of them that is not caught."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from cpus import runnable
from onnx import TensorProto, helper, numpy_helper
from rammer_testing.generate import random_graph, random_plan

import rammer
from rammer.compiler.compilation import in_memory
from rammer.errors import VerificationError
from rammer.ir.analysis.dependency import Dependencies, reads, writes
from rammer.ir.analysis.intervals import expand
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.analysis.storage import hulls
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel, Tuning
from rammer.ir.plan import ExecutionPlan, MemoryPlan, Pieces
from rammer.ir.program import BarrierRTask, RProgram, RProgramBuilder, TaskUid
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array
from rammer.ir.verify import verify_plan
from rammer.planner.memory import plan_memory
from rammer.planner.pieces import bases
from rammer.plugins import PluginRegistry
from rammer.vdevice.image.placement import ports_alone
from rammer.vdevice.interpreter import RaceError, numpy_kernel, run_plan

IMAGES, PLACES = 7, 3
RING = "→a"  # what lies between the convolutions, as it is called when it is imported
node = helper.make_node


@cache
def two_convolutions() -> Graph:
    """Images [7, 3, 29, 35] through two convolutions; the second one reads rows of several rTasks of the first."""
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        node("Conv", ["a", "w1"], ["y"], pads=[1] * 4),
    ]
    rng = np.random.default_rng(0)
    weights = {"w0": (5, 3, 3, 3), "w1": (4, 5, 3, 3)}
    values = [numpy_helper.from_array(rng.standard_normal(s, np.float32), name) for name, s in weights.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (IMAGES, 3, 29, 35))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph(nodes, "two", [x], [y], values), opset_imports=[helper.make_opsetid("", 17)]
    )
    return rammer.from_onnx(model)


def images_of(kernel: RKernel, rtask: int) -> range:
    low, high = kernel.box(rtask)[kernel.operation.expr.root.axes[0][0]]
    return range(low, high)


def image_by_image(graph: Graph, kernels: Sequence[RKernel], spec: VDeviceSpec, least_piece: int = 64) -> ExecutionPlan:
    """Every image through both operators before the next one begins; rTasks are dealt out in turn.

    The first operator waits until the image that is to lie in the same place was read.
    """
    needed = Dependencies(graph, kernels)
    waits = [needed.of(n) for n in range(len(kernels))]
    builder, turn = RProgramBuilder(spec.num_veus), 0
    for image in range(IMAGES):
        for n, kernel in enumerate(kernels):
            for rtask in range(kernel.num_rtasks):
                assert len(images_of(kernel, rtask)) == 1, f"{kernel.name} takes several images at once"
                if image in images_of(kernel, rtask):
                    done = [r for r in range(kernels[1].num_rtasks) if image - PLACES in images_of(kernels[1], r)]
                    builder.wait(TaskUid(n, rtask), [*waits[n][rtask], *(TaskUid(1, r) for r in done if not n)])
                    builder.append(TaskUid(n, rtask), turn % spec.num_veus)
                    turn += 1
    plan = ExecutionPlan(graph, spec, tuple(kernels), (builder.build(),), "image by image")
    return replace(plan, memory=plan_memory(plan, least_piece=least_piece))


@cache
def plan_on_paper() -> ExecutionPlan:
    graph = two_convolutions()
    kernels = []
    for op, rows in zip(graph.operators, (17, 15), strict=True):
        (n, _), _, (h, _), _ = op.operation.expr.root.axes
        kernels.append(numpy_kernel(op.operation, {n: 1, h: rows}))
    return image_by_image(graph, kernels, VDeviceSpec("interpreter", 2))


def memory_of(plan: ExecutionPlan) -> MemoryPlan:
    assert plan.memory is not None
    return plan.memory


def given(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {t: rng.standard_normal(graph.types[t].shape, np.float32) for t in graph.inputs}


def test_a_ring_smaller_than_the_tensor() -> None:
    """Seven images of the intermediate take turns in the places of a few; both vEUs work on it."""
    plan = plan_on_paper()
    verify_plan(plan)
    ring = memory_of(plan).pieces[RING]
    image = 5 * 29 * 35
    assert ring.firsts == tuple(range(0, IMAGES * image, image))
    assert len(places(plan)) <= PLACES
    whole = plan_memory(replace(plan, memory=None)).arena_bytes
    assert memory_of(plan).arena_bytes <= whole - 4 * image * (IMAGES - PLACES) + 64 * (PLACES + 2)
    wanted = evaluate_graph(plan.graph, given(plan.graph))
    for seed in range(20):
        found = run_plan(plan, given(plan.graph), seed=seed)
        np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kib", [16, 1024])
def test_a_plan_larger_than_the_private_caches_lies_in_pieces(kib: int) -> None:
    plan = plan_on_paper()
    cores = replace(plan.spec, memory=(MemoryLevel("L1", kib << 10, "veu", 500.0),))
    placed = memory_of(in_memory(replace(plan, memory=None, spec=cores)))
    whole = plan_memory(replace(plan, memory=None)).arena_bytes
    assert set(placed.pieces) == ({RING} if kib == 16 else set())
    assert (placed.arena_bytes < whole) == (kib == 16)


def places(plan: ExecutionPlan) -> list[int]:
    """Where images of the ring may lie: a piece begins in its line where it would in the whole tensor."""
    ring = memory_of(plan).pieces[RING]
    return sorted({offset - skew(first) for first, offset in zip(ring.firsts, ring.offsets, strict=True)})


def skew(first: int) -> int:
    return 4 * first % 64


def with_offsets(plan: ExecutionPlan, *offsets: int) -> ExecutionPlan:
    memory = memory_of(plan)
    moved = {**memory.pieces, RING: Pieces(memory.pieces[RING].firsts, offsets)}
    return replace(plan, memory=replace(memory, pieces=moved))


def is_caught(plan: ExecutionPlan, *rules: str) -> None:
    with pytest.raises(VerificationError) as caught:
        verify_plan(plan)
    assert caught.value.rule in rules


def test_a_smaller_ring_is_caught() -> None:
    plan = plan_on_paper()
    firsts, found = memory_of(plan).pieces[RING].firsts, places(plan)
    for count in range(1, len(found)):
        shrunk = with_offsets(plan, *(found[n % count] + skew(first) for n, first in enumerate(firsts)))
        is_caught(shrunk, "R107")
        with pytest.raises(RaceError):
            for seed in range(20):
                run_plan(shrunk, given(plan.graph), seed=seed)


def without_one_wait(plan: ExecutionPlan) -> Iterator[ExecutionPlan]:
    (program,) = plan.programs
    for veu, lane in enumerate(program.lanes):
        for order, slot in enumerate(lane):
            for wait in slot.waits if isinstance(slot, BarrierRTask) else ():
                assert isinstance(slot, BarrierRTask)
                kept = BarrierRTask(tuple(w for w in slot.waits if w != wait))
                lanes = list(program.lanes)
                lanes[veu] = (*lane[:order], kept, *lane[order + 1 :])
                yield replace(plan, programs=(RProgram(tuple(lanes)),))


def test_a_missing_wait_is_caught() -> None:
    mutants = list(without_one_wait(plan_on_paper()))
    assert len(mutants) > IMAGES
    for mutant in mutants:
        is_caught(mutant, "R104", "R107")


def test_a_piece_elsewhere_is_caught() -> None:
    """A line further, where the one before or after it lies, or out of the arena."""
    plan = plan_on_paper()
    firsts, offsets = memory_of(plan).pieces[RING].firsts, memory_of(plan).pieces[RING].offsets
    begins = [offset - skew(first) for first, offset in zip(firsts, offsets, strict=True)]
    for n in range(IMAGES):
        around = {begins[n - 1]} if n else {begins[1]}
        for place in (around | {memory_of(plan).arena_bytes, -128}) - {begins[n]}:
            is_caught(with_offsets(plan, *offsets[:n], place + skew(firsts[n]), *offsets[n + 1 :]), "R107", "R108")
        is_caught(with_offsets(plan, *offsets[:n], offsets[n] + 4, *offsets[n + 1 :]), "R108")


def test_a_cut_through_what_an_rtask_touches_is_caught() -> None:
    plan = plan_on_paper()
    memory = memory_of(plan)
    firsts = memory.pieces[RING].firsts
    torn = Pieces((0, *(f + 10 for f in firsts[1:])), memory.pieces[RING].offsets)
    is_caught(replace(plan, memory=replace(memory, pieces={RING: torn}, arena_bytes=1 << 20)), "R107", "R108", "R111")
    later = (0, *(f + 16 for f in firsts[1:]))
    apart = Pieces(later, tuple(n * (1 << 15) + skew(f) for n, f in enumerate(later)))
    placed = replace(memory, pieces={RING: apart}, offsets={t: o + (1 << 19) for t, o in memory.offsets.items()})
    is_caught(replace(plan, memory=replace(placed, arena_bytes=1 << 20)), "R111")


def test_arguments_of_pieces_are_not_taken_for_those_of_ports() -> None:
    """Where a ring's argument begins among a port's bytes, far before its piece, the port stays at home."""
    plan = plan_on_paper()
    ports = (*plan.graph.inputs, *plan.graph.outputs)
    apart = plan_memory(replace(plan, memory=None), unshared=ports, least_piece=64)
    assert set(ports_alone(plan.graph, apart)) == set(ports)
    for memory in (apart, memory_of(plan)):
        begins = np.concatenate([at for n in range(2) for at in bases(plan, memory, n).values()])
        for port in ports_alone(plan.graph, memory):
            among = begins - memory.offsets[port]
            assert not np.any((among >= 0) & (among < plan.graph.types[port].nbytes))
    port, ring = plan.graph.inputs[0], apart.pieces[RING]
    end = apart.offsets[port] + plan.graph.types[port].nbytes
    behind = replace(apart, pieces={RING: Pieces(ring.firsts, tuple(end + 64 * n for n in range(len(ring.firsts))))})
    assert port not in ports_alone(plan.graph, behind)


def test_what_a_caller_sees_lies_whole() -> None:
    plan = plan_on_paper()
    memory = memory_of(plan)
    assert memory.pieces.keys() == {RING}
    cut = replace(memory, pieces={**memory.pieces, "y": Pieces((0,), (memory.offsets["y"],))})
    is_caught(replace(plan, memory=cut), "R108")


@pytest.mark.parametrize("seed", range(12))
def test_pieces_by_definition(seed: int) -> None:
    """What rTasks touch of a tensor lies in one piece; pieces that share bytes are in order, slot by slot."""
    plan = random_plan(random_graph(seed, 8), seed, num_veus=1 + seed % 3)
    memory = plan_memory(plan, least_piece=1)
    plan = replace(plan, memory=memory)
    verify_plan(plan)
    graph, order = plan.graph, HappensBefore(plan.programs)
    accesses: dict[tuple[str, int], list[tuple[int, bool]]] = {}
    for n, op in enumerate(graph.operators):
        for position, tensor in enumerate((*op.inputs, *op.outputs)):
            root, offset = graph.storage(tensor)
            if root in graph.constants:
                continue
            writing = position >= len(op.inputs)
            for rtask in range(plan.kernels[n].num_rtasks):
                touched = (
                    writes(plan.kernels[n], position - len(op.inputs), rtask)
                    if writing
                    else reads(plan.kernels[n], position, rtask)
                )
                firsts = memory.pieces[root].firsts if root in memory.pieces else (0,)
                pieces = np.unique(np.searchsorted(firsts, expand(touched) + offset, "right") - 1).tolist()
                assert len(pieces) <= 1
                for piece in pieces:
                    accesses.setdefault((root, piece), []).append((order.task_slots[TaskUid(n, rtask)], writing))
    spans = {}
    for root, piece in accesses:
        if root in memory.pieces:
            found = memory.pieces[root]
            elements = (*found.firsts, int(np.prod(graph.types[root].physical_shape)))
            start, count = found.offsets[piece], elements[piece + 1] - elements[piece]
            spans[root, piece] = (start, start + count * graph.types[root].element_bytes)
        else:
            spans[root, piece] = (memory.offsets[root], memory.offsets[root] + graph.types[root].nbytes)
    for one, other in combinations(spans, 2):
        if spans[one][0] < spans[other][1] and spans[other][0] < spans[one][1]:
            assert any(
                all(
                    order.before(np.array([a]), np.array([b])).all()
                    for a, _ in accesses[p]
                    for b, w in accesses[q]
                    if w
                )
                for p, q in ((one, other), (other, one))
            ), (one, other)


def test_hulls() -> None:
    plan = plan_on_paper()
    kernel = plan.kernels[1]
    for rtask in range(kernel.num_rtasks):
        for argument, touched in enumerate((writes(kernel, 0, rtask), reads(kernel, 0, rtask))):
            assert hulls(kernel, argument)[rtask].tolist() == [touched[0, 0], touched[-1, 1]]


@pytest.mark.parametrize(("target", "device"), [("cpu", 2), ("cuda", "emulator:3")])
def test_the_ring_on_backends(target: str, device: int | str) -> None:
    """rTasks get the addresses of their pieces; memory that nobody wrote is poison."""
    registry, graph = PluginRegistry(third_party=False), two_convolutions()
    arch = runnable("x86-64-avx512") if target == "cpu" else None
    with closing(registry.open(target, arch=arch, device=device)) as vdevice:
        kernels = []
        for op in graph.operators:
            fit = [
                k
                for k in registry.rkernels(op.operation, vdevice.spec, Tuning(task_multiples=(8, 64)))
                if k.fits(vdevice.spec)
            ]
            alone = [k for k in fit if all(len(images_of(k, r)) == 1 for r in range(k.num_rtasks))]
            kernels.append(min(alone, key=lambda k: k.num_rtasks))
        plan = image_by_image(graph, kernels, vdevice.spec)
        verify_plan(plan)
        assert len(places(plan)) <= PLACES
        wanted = evaluate_graph(graph, given(graph))["y"]
        executable = vdevice.load(replace(vdevice.build(plan), plan=None))
        try:
            executable.poison = True  # type: ignore[attr-defined]
            for _ in range(5):
                np.testing.assert_allclose(executable.run(given(graph))["y"], wanted, rtol=1e-4, atol=1e-4)
        finally:
            executable.close()
