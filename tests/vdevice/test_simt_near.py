"""Results that stay in shared memory from rTask to rTask: where they lie, what breaks that, and the same outputs.

Everything runs on the emulator: nothing here says how long it takes on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import onnx
import pytest
from goldens import Golden
from onnx import TensorProto, helper, numpy_helper
from rammer_testing.generate import random_graph, random_plan
from simt_plans import spec

import rammer
from rammer.cost.price import fit
from rammer.errors import VerificationError
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.operator import Operations
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan, MemoryPlan, Pieces
from rammer.ir.program import RProgram
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array, TensorId, TensorType
from rammer.ir.verify import verify_plan
from rammer.kernels import candidates
from rammer.planner.memory import plan_memory
from rammer.planner.scratch_allocation import ResidentPiece, own_scratch, resident_pieces
from rammer.runtime.program import Program
from rammer.scheduler.profiler import EstimatingProfiler
from rammer.scheduler.timeline import Timeline, simulate
from rammer.vdevice.interpreter import run_plan
from rammer.vdevice.simt.codegen.image import make_image, make_program
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.printer import emit
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer_viz.demo import lstm_stack

node = helper.make_node


def model(of: tuple[int, ...], nodes: list[onnx.NodeProto], **weights: tuple[int, ...]) -> onnx.ModelProto:
    """Nodes from `x` (of a shape) to `y`, with random weights of the given shapes, and `shape_…` as numbers."""
    random = np.random.default_rng(0)
    values = [
        numpy_helper.from_array((random.standard_normal(size) / 4).astype(np.float32), name)
        if not name.startswith("shape")
        else numpy_helper.from_array(np.array(size, np.int64), name)
        for name, size in weights.items()
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", of), ("y", None)))
    return helper.make_model(
        helper.make_graph(nodes, "near", [x], [y], values), opset_imports=[helper.make_opsetid("", 17)]
    )


def block(tokens: int, width: int, heads: int) -> onnx.ModelProto:
    """A transformer's block: attention with logarithms of weights, which is several operators, and two products."""
    nodes = []
    for name in "qkv":
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            node("Reshape", [f"{name}0", "shape_heads"], [f"{name}1"]),
            node("Transpose", [f"{name}1"], [name], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["s"]),
        node("LogSoftmax", ["s"], ["p"]),
        node("MatMul", ["p", "v"], ["o0"]),
        node("Transpose", ["o0"], ["o1"], perm=[0, 2, 1, 3]),
        node("Reshape", ["o1", "shape_back"], ["o"]),
        node("MatMul", ["o", "wo"], ["a0"]),
        node("Add", ["x", "a0"], ["a"]),
        node("MatMul", ["a", "w1"], ["f0"]),
        node("Relu", ["f0"], ["f"]),
        node("MatMul", ["f", "w2"], ["f1"]),
        node("Add", ["a", "f1"], ["y"]),
    ]
    square = {f"w{name}": (width, width) for name in "qkvo"}
    shapes = {"shape_heads": (2, tokens, heads, width // heads), "shape_back": (2, tokens, width)}
    return model((2, tokens, width), nodes, **square, w1=(width, 2 * width), w2=(2 * width, width), **shapes)


def bottleneck(size: tuple[int, int], channels: int) -> onnx.ModelProto:
    """MobileNet's: more channels, each for itself in a window, and fewer again, twice."""
    nodes, x = [], "x"
    for n, out in enumerate(("m", "y")):
        nodes += [
            node("Conv", [x, f"e{n}"], [f"a{n}"]),
            node("Relu", [f"a{n}"], [f"b{n}"]),
            node("Conv", [f"b{n}", f"d{n}"], [f"c{n}"], group=4 * channels, pads=[1] * 4),
            node("Relu", [f"c{n}"], [f"r{n}"]),
            node("Conv", [f"r{n}", f"p{n}"], [f"s{n}"]),
            node("Add", [f"s{n}", x], [out]),
        ]
        x = out
    weights = {f"e{n}": (4 * channels, channels, 1, 1) for n in range(2)}
    weights |= {f"d{n}": (4 * channels, 1, 3, 3) for n in range(2)}
    weights |= {f"p{n}": (channels, 4 * channels, 1, 1) for n in range(2)}
    return model((3, channels, *size), nodes, **weights)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "lstm": lambda: lstm_stack(2, 4, 36),
    "block": lambda: block(12, 32, 2),
    "odd block": lambda: block(11, 21, 3),
    "bottleneck": lambda: bottleneck((8, 8), 8),
    "odd bottleneck": lambda: bottleneck((7, 9), 8),
}


@lru_cache(maxsize=16)
def compiled(name: str, target: str = "cuda", veus: int = 3) -> Program:
    return rammer.compile(MODELS[name](), target, device=f"emulator:{veus}", policy="graphturbo", tune_seconds=0)


@pytest.fixture(scope="module", autouse=True)
def _closed() -> object:
    yield
    for name in MODELS:
        for target in ("cuda", "rocm"):
            compiled(name, target).close()
    compiled.cache_clear()


def inputs_of(graph: rammer.Graph) -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {t: random.standard_normal(graph.types[t].shape).astype(np.float32) for t in graph.inputs}


def memory_of(plan: ExecutionPlan) -> MemoryPlan:
    assert plan.memory is not None
    return plan.memory


@pytest.mark.parametrize("target", ["cuda", "rocm"])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_right_and_equal_in_every_interleaving(name: str, target: str) -> None:
    """Shared memory is NaN at first: what lies elsewhere, or is overwritten while it is needed, would show."""
    program = compiled(name, target)
    assert memory_of(program.plan).in_scratch, "nothing stays: this shows nothing"
    assert any(note.startswith("kept: ") for note in program.report().notes)
    graph = rammer.from_onnx(MODELS[name]())
    inputs = inputs_of(graph)
    (wanted,) = evaluate_graph(graph, inputs).values()
    (first,) = program.run(inputs).values()
    np.testing.assert_allclose(first, wanted, rtol=2e-4, atol=2e-5)
    executable = program.executable
    assert isinstance(executable, EmulatorExecutable)
    executable.poison = True
    for executable.deterministic, executable.seed in ((True, 1), (True, 2), (False, 0), (False, 3)):
        (found,) = program.run(inputs).values()
        np.testing.assert_array_equal(found, first)


@pytest.mark.parametrize("name", ["lstm", "odd block"])
def test_results_do_not_change_by_a_bit(name: str) -> None:
    """The same plan with all results in the arena, beside weights that stay, too."""
    plan = compiled(name).plan
    inputs = inputs_of(plan.graph)
    found = []
    for each in (plan, replace(plan, memory=plan_memory(plan))):
        image = make_image(each, make_program(each, CUDA), {})
        found.append(EmulatorExecutable(image, poison=True).run(inputs))
    for output, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][output])


@pytest.mark.parametrize("seed", range(12))
def test_random_plans_are_verified_and_computed(seed: int) -> None:
    """Random graphs, rKernels, vEUs and orders: whatever stays, the interpreter and the emulator find it."""
    veus = 1 + seed % 2
    graph = random_graph(seed, 6)
    plan = random_plan(graph, seed, veus, spec=spec(veus), candidates=candidates)
    plan = replace(plan, memory=plan_memory(plan, scratch=True))
    verify_plan(plan)
    inputs = {
        t: np.random.default_rng(seed).standard_normal(graph.types[t].shape).astype(graph.types[t].dtype.numpy)
        for t in graph.inputs
    }
    wanted = evaluate_graph(graph, inputs)
    image = make_image(plan, make_program(plan, CUDA), {})
    for found in (run_plan(plan, inputs, seed=seed), EmulatorExecutable(image, poison=True).run(inputs)):
        for output, value in wanted.items():
            np.testing.assert_allclose(found[output], value, rtol=1e-4, atol=1e-5)


# What breaks a plan


def moved(plan: ExecutionPlan, owner: TensorId, **changes: tuple[int, ...]) -> ExecutionPlan:
    memory = memory_of(plan)
    return replace(
        plan,
        memory=replace(memory, in_scratch={**memory.in_scratch, owner: replace(memory.in_scratch[owner], **changes)}),
    )


def at(plan: ExecutionPlan, stay: ResidentPiece, begin: int) -> ExecutionPlan:
    """The plan with a piece elsewhere in the same scratch, at the next place that is aligned as it was."""
    pieces = memory_of(plan).in_scratch[stay.owner]
    begin += (stay.begin - begin) % 64
    place = next(n for n, o in enumerate(pieces.offsets) if (o, pieces.veus[n]) == (stay.begin, stay.lane.veu))
    offsets = tuple(begin if n == place else o for n, o in enumerate(pieces.offsets))
    return moved(plan, stay.owner, offsets=offsets)


def broken(plan: ExecutionPlan, rule: str, message: str) -> None:
    with pytest.raises(VerificationError, match=message) as caught:
        verify_plan(plan)
    assert caught.value.rule == rule


def test_a_piece_in_the_scratch_of_another_veu_is_found() -> None:
    plan = compiled("odd block").plan
    for owner, pieces in memory_of(plan).in_scratch.items():
        for n in range(len(pieces.veus)):
            veus = tuple((veu + (k == n)) % 3 for k, veu in enumerate(pieces.veus))
            broken(moved(plan, owner, veus=veus), "R113", "which lies in the scratch of vEU")


def test_two_pieces_that_are_needed_at_once_do_not_share_bytes() -> None:
    plan = compiled("odd block").plan
    there, seen = resident_pieces(plan, HappensBefore(plan.programs)), 0
    for one in there:
        for other in there:
            if one is not other and one.meets(other):
                broken(at(plan, one, other.begin), "R107", "(share bytes of|uses [0-9]+ bytes of it)")
                seen += 1
    assert seen


def test_a_piece_in_the_scratch_that_an_rtask_uses_is_found() -> None:
    seen = 0
    for name in ("block", "odd block", "bottleneck", "odd bottleneck"):
        plan = compiled(name).plan
        for stay in resident_pieces(plan, HappensBefore(plan.programs)):
            if own_scratch(plan, stay.lane)[stay.first : stay.last + 1].any():
                broken(at(plan, stay, 0), "R107", "(which runs meanwhile, uses|share bytes of)")
                seen += 1
    assert seen


def test_a_smaller_piece_is_found() -> None:
    """Where the next piece begins earlier, the one before has lost its end."""
    plan, seen = compiled("odd block").plan, 0
    for owner, pieces in memory_of(plan).in_scratch.items():
        for n, first in enumerate(pieces.firsts[1:], 1):
            if first - 16 > pieces.firsts[n - 1]:
                firsts = tuple(f - 16 * (k == n) for k, f in enumerate(pieces.firsts))
                broken(moved(plan, owner, firsts=firsts), "R111", "they lie in several pieces")
                seen += 1
    assert seen


def test_scratch_has_an_end_and_places_are_aligned() -> None:
    plan = compiled("odd block").plan
    stay = resident_pieces(plan, HappensBefore(plan.programs))[0]
    broken(at(plan, stay, plan.spec.scratch_bytes), "R108", "leaves the scratch of")
    pieces = memory_of(plan).in_scratch[stay.owner]
    broken(moved(plan, stay.owner, offsets=tuple(o + 4 for o in pieces.offsets)), "R108", "is not aligned")
    broken(replace(plan, spec=replace(plan.spec, resident="")), "R108", "no level where they may stay")


def test_ports_and_what_two_rprograms_touch_do_not_stay() -> None:
    plan = compiled("odd block", veus=3).plan
    memory, output = memory_of(plan), plan.graph.outputs[0]
    offsets = {t: o for t, o in memory.offsets.items() if t != output}
    near = {**memory.in_scratch, output: Pieces((0,), (0,), (0,))}
    broken(replace(plan, memory=replace(memory, offsets=offsets, in_scratch=near)), "R113", "is an input or output")
    alone = rammer.compile(MODELS["odd block"](), "cuda", device="emulator:1", policy="graphturbo", tune_seconds=0)
    with alone:
        (lane,) = alone.plan.programs[0].lanes
        half = len(lane) // 2
        parts = (RProgram((lane[:half],)), RProgram((lane[half:],)))
        broken(replace(alone.plan, programs=parts), "R113", "in rProgram 0")
        apart = replace(alone.plan, programs=parts, memory=None)
        verify_plan(replace(apart, memory=plan_memory(apart, scratch=True)))


# What it spares


def followed(plan: ExecutionPlan) -> Timeline:
    """On paper; a vEU has no more of L2 than where all of a GPU's read it."""
    usual = spec(132)
    shared = usual.byte_us(usual.memory[2], 132)
    levels = (replace(m, veu_gbps=1e-3 / shared) if m.name == "L2" else m for m in plan.spec.memory)
    plan = replace(plan, spec=replace(plan.spec, memory=tuple(levels)))
    estimates = EstimatingProfiler(plan.spec)
    return simulate(replace(plan, prices={k: fit(k, plan.spec, estimates.rtask_us(k), None) for k in plan.kernels}))


@pytest.mark.parametrize("name", MODELS)
def test_bytes_in_scratch_come_from_nowhere_else(name: str) -> None:
    plan = compiled(name).plan
    near, far = followed(plan), followed(replace(plan, memory=plan_memory(plan)))
    assert near.moved["shared"] > 0 == far.moved["shared"]
    assert near.total_us < far.total_us
    spared = far.moved["L2"] + far.moved["DRAM"] - near.moved["L2"] - near.moved["DRAM"]
    assert abs(near.moved["shared"] - spared) <= len(near.moved)  # each is rounded


def test_nothing_stays_if_that_is_not_asked_for() -> None:
    off = rammer.compile(
        MODELS["block"](), "cuda", device="emulator:3", policy="graphturbo:results=off", tune_seconds=0
    )
    with off:
        assert not memory_of(off.plan).in_scratch


def test_kernel_text(golden: Golden) -> None:
    """Operands in shared memory are bytes from the scratch; others are pointers to global memory."""
    operation = Operations(OPS).define("add", (TensorType((3, 8)), TensorType((3, 8))))
    kernel = candidates(operation, spec())[0]
    golden.check(emit(kernel, CUDA, 64, copied=frozenset({0, 2})).text)
