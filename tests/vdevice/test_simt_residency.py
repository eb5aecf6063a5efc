"""Constants that stay in shared memory: what a slice is, what is kept and for how long, and the same results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from simt_plans import spec

import rammer
from rammer.errors import ArtifactError, ToolchainError
from rammer.ir.analysis.dependency import read_elements
from rammer.ir.analysis.intervals import expand
from rammer.ir.operator import Operation, Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask
from rammer.ir.tensor import TensorType
from rammer.kernels import candidates
from rammer.runtime.program import Program
from rammer.vdevice.cuda import spec as cuda
from rammer.vdevice.rocm import spec as rocm
from rammer.vdevice.simt.codegen.image import make_image, make_program
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.residency import make_resident
from rammer.vdevice.simt.codegen.slices import OperandSlice, slice_of
from rammer.vdevice.simt.codegen.table import KEEP, Streams
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.gpu import gpu_spec
from rammer_viz.demo import lstm_stack

POLICIES = ["sequential", "wavefront", "round_robin", "list", "stationary"]


@pytest.fixture(scope="module", autouse=True)
def two_reads() -> Iterator[None]:
    """Networks of few steps: a part that two operators read stays."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (cuda, rocm):
            patch.setattr(module, "gpu_spec", lambda *args, **named: gpu_spec(*args, **(named | {"kept_reads": 2})))
        recurrent.cache_clear()
        yield
    recurrent.cache_clear()


@lru_cache(maxsize=8)
def recurrent(policy: str = "wavefront", layers: int = 2, steps: int = 4, hidden: int = 36, veus: int = 3) -> Program:
    """36 units: tasks of nine units and of four, rows that are no multiple of a vector's four."""
    model = lstm_stack(layers, steps, hidden)
    return rammer.compile(model, "cuda", device=f"emulator:{veus}", policy=policy, tune_seconds=0)


def both_ways(steps: int, hidden: int) -> onnx.ModelProto:
    """An LSTM from both ends: two chains that need their weights at the same time."""
    random = np.random.default_rng(0)
    shapes = {"w": (2, 4 * hidden, hidden), "r": (2, 4 * hidden, hidden), "b": (2, 8 * hidden)}
    weights = [
        numpy_helper.from_array((random.standard_normal(shape) / 8).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    node = helper.make_node("LSTM", ["x", *shapes], ["y"], hidden_size=hidden, direction="bidirectional")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, 1, hidden])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [steps, 2, 1, hidden])
    graph = helper.make_graph([node], "both_ways", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def inputs_of(program: Program) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {p.name: random.standard_normal(p.type.shape).astype(np.float32) for p in program.inputs}


def static(kind: str, shapes: tuple[tuple[int, ...], ...], attrs: dict[str, object]) -> Operation:
    """An operation whose inputs after the first are constants."""
    operations = Operations(OPS)
    made = operations.define(kind, tuple(TensorType(s) for s in shapes), attributes(**attrs))  # type: ignore[arg-type]
    return operations.retype(made, made.inputs, made.outputs, (False, *(True,) * (len(shapes) - 1)))


CONV = {"pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1), "group": 1}


def operations() -> list[Operation]:
    cells = {op.operation: None for op in recurrent().plan.graph.operators}
    products = [
        static("matmul", ((4, 40), (40, 100)), {}),
        static("matmul", ((1, 64), (64, 72)), {}),
        static("conv", ((1, 8, 9, 9), (20, 8, 3, 3)), CONV),
    ]
    return [*cells, *products]


def elements(part: OperandSlice, rtask: int) -> np.ndarray:
    rows = [
        np.arange(run.nbytes // part.itemsize) + (run.source + n * run.source_step) // part.itemsize
        for run in part.runs(rtask)
        for n in range(run.count)
    ]
    return np.concatenate(rows) if rows else np.zeros(0, np.int64)


def test_a_slice_is_what_an_rtask_reads() -> None:
    """All of it, inside the operand, each element once; and hardly more where whole rows are read."""
    seen = 0
    for operation in operations():
        for kernel in candidates(operation, spec(4)):
            for position, known in enumerate(operation.static):
                part = slice_of(kernel, position)
                if part is None:
                    assert not known or operation.kind == "conv", kernel.name
                    continue
                reads = read_elements(kernel, position)
                for rtask in range(kernel.num_rtasks):
                    copied, wanted = elements(part, rtask), expand(reads[rtask])
                    assert np.isin(wanted, copied).all(), kernel.name
                    assert len(np.unique(copied)) == len(copied) and copied.min() >= 0
                    assert copied.max() < part.elements
                    if "tanh" in operation.kind and rtask < kernel.num_rtasks - 1:  # the last one may have fewer
                        beyond = 4 * 32  # of the last row of each gate, where passes over terms do not divide it
                        assert len(copied) <= 1.05 * len(wanted) + beyond, kernel.name
                seen += 1
    assert seen > 20


def test_gates_of_a_unit_are_four_rows() -> None:
    cell = static("lstm_cell", ((1, 4, 64), (1, 64), (1, 64), (4, 64, 64)), {})
    kernel = next(k for k in candidates(cell, spec(4)) if k.num_rtasks == 8)
    part = slice_of(kernel, 3)
    assert part is not None and part.folds == ((64 * 64, 8 * 64),)
    (run,) = part.runs(2)
    assert (run.source, run.nbytes, run.count, run.source_step) == (2 * 8 * 64 * 4, 8 * 64 * 4, 4, 64 * 64 * 4)


def run(plan: ExecutionPlan, inputs: dict[str, np.ndarray], *, resident: bool = True) -> object:
    image = make_image(plan, make_program(plan, CUDA, resident=resident), {})
    executable = EmulatorExecutable(image, poison=True)
    return executable, executable.run(inputs)["y"]


@pytest.mark.parametrize("policy", POLICIES)
def test_results_do_not_change_by_a_bit(policy: str) -> None:
    """Shared memory is NaN at first: what is not copied, or overwritten while it is needed, would show."""
    program = recurrent(policy)
    inputs = inputs_of(program)
    _, wanted = run(program.plan, inputs, resident=False)
    executable, found = run(program.plan, inputs)
    assert isinstance(executable, EmulatorExecutable)
    np.testing.assert_array_equal(found, wanted)
    assert bool(executable.streams.header["resident_bytes"]) == (policy != "sequential")
    for executable.deterministic, executable.seed in ((True, 3), (False, 0), (False, 4)):
        np.testing.assert_array_equal(executable.run(inputs)["y"], wanted)


def test_the_report_says_what_stays() -> None:
    program = recurrent("wavefront", 3, 6, 64, 2)
    (note,) = [n for n in program.report().notes if n.startswith("resident:")]
    assert "KiB of constants in the shared memory of 2 vEUs" in note
    assert note in program.plan.notes


def test_weights_are_read_once_from_main_memory() -> None:
    """Each matrix that steps share is copied once in all, not once per step; layers after each other share room."""
    program = recurrent("wavefront:selection=fastest", 3, 6, 64, 2)  # all steps of a layer in one rKernel
    header = make_program(program.plan, CUDA).streams.header
    matrix_bytes = 4 * 64 * 64 * 4
    shared_bytes = (3 + 2) * matrix_bytes  # of the states, and of the inputs of all layers but the first
    assert shared_bytes <= header["resident_bytes"] < 1.2 * shared_bytes + 8 * 1024
    assert header["shared_bytes"] < shared_bytes


def kept(plan: ExecutionPlan, room: int) -> tuple[int, int, int]:
    """Bytes of copies, rTasks that read them, and bytes of shared memory that they take."""
    program = make_program(plan, CUDA, resident=False)
    places = [[(0, 0)] * len(op.inputs) for op in plan.graph.operators]
    for n, op in enumerate(plan.graph.operators):
        constants = {t: k for k, t in enumerate(plan.graph.constants)}
        places[n] = [(constants.get(t, -1), 0) for t in op.inputs]
    base = program.streams.header["scratch_bytes"] // 128 * 128 + 128
    found = make_resident(plan, places, [base] * len(places), base + room)
    assert found.end <= base + room
    return found.nbytes, len(found.copies), found.end - base


def test_what_does_not_fit_stays_in_main_memory() -> None:
    program = rammer.compile(both_ways(4, 36), "cuda", device="emulator:1", tune_seconds=0)
    plan = program.plan
    all_bytes, all_tasks, size = kept(plan, 1 << 20)
    some_bytes, some_tasks, less = kept(plan, size // 2)
    assert 0 < some_bytes < all_bytes and 0 < some_tasks < all_tasks and less < size
    assert kept(plan, 0) == (0, 0, 0)
    scratch = int(make_program(plan, CUDA).streams.header["scratch_bytes"]) + 128
    tight = replace(plan, spec=replace(plan.spec, scratch_bytes=scratch + less))
    header = make_program(tight, CUDA).streams.header
    assert 0 < header["resident_bytes"] < make_program(plan, CUDA).streams.header["resident_bytes"]
    inputs = inputs_of(program)
    np.testing.assert_array_equal(run(tight, inputs)[1], run(plan, inputs, resident=False)[1])  # type: ignore[index]


def test_scratch_takes_room_only_while_it_is_used() -> None:
    """One large product before a recurrent network left its weights no room, from the first step to the last."""
    plan = recurrent("stationary", 2, 6, 64, 2).plan
    constants = list(plan.graph.constants)
    places = [[(constants.index(t) if t in constants else -1, 0) for t in op.inputs] for op in plan.graph.operators]
    free = make_resident(plan, places, [0] * len(places), 1 << 20)
    inside: set[int] = set()
    for lane in plan.programs[0].lanes:
        tasks = [slot.uid for slot in lane if isinstance(slot, RTask)]
        reading = [n for n, uid in enumerate(tasks) if uid in free.copies]
        inside |= {uid.operator_id for uid in tasks[reading[0] : reading[-1] + 1]}
    elsewhere = [0 if n in inside else free.end for n in range(len(places))]
    assert any(elsewhere), "all operators run while weights are there: this test shows nothing"
    assert make_resident(plan, places, elsewhere, free.end).copies == free.copies
    assert make_resident(plan, places, [free.end] * len(places), free.end).copies == {}


def test_copies_never_overlap_while_both_are_needed() -> None:
    plan = recurrent("round_robin", 3, 5, 64, 2).plan
    streams = make_program(plan, CUDA).streams
    for veu in range(streams.num_veus):
        rows = streams.lane(0, veu)
        copied = {}
        for row in rows.tolist():
            if row[0] == KEEP:
                _, target, nbytes, count, _, step, _ = streams.arg_offset[row[2] : row[2] + row[3]].tolist()
                for n in range(count):
                    span = range(target + n * step, target + n * step + nbytes)
                    copied = {k: v for k, v in copied.items() if k.stop <= span.start or span.stop <= k.start}
                    copied[span] = row[2]
            elif row[0] >= 0:
                args = slice(row[2], row[2] + row[3])
                for base, at in zip(streams.arg_base[args].tolist(), streams.arg_offset[args].tolist(), strict=True):
                    assert base != -2 or any(at == span.start for span in copied), "a copy that is no longer there"
    assert (streams.instructions[:, 0] == KEEP).any()


@pytest.mark.parametrize("wild", [(1, 1 << 20), (1, -16), (2, 1 << 20), (3, 1 << 20), (2, -4), (6, 5)])
def test_copies_out_of_range_are_refused(wild: tuple[int, int]) -> None:
    streams = make_program(recurrent().plan, CUDA).streams
    first = streams.instructions[streams.instructions[:, 0] == KEEP][0]
    offsets = streams.arg_offset.copy()
    offsets[first[2] + wild[0]] = wild[1]
    with pytest.raises(ArtifactError, match="damaged"):
        Streams.from_bytes(replace(streams, arg_offset=offsets).to_bytes())


def test_a_lost_copy_shows() -> None:
    """Each one: what is read instead is NaN, or what another rTask left there."""
    program = recurrent()
    image = make_image(program.plan, make_program(program.plan, CUDA), {})
    wanted = EmulatorExecutable(image, poison=True).run(inputs_of(program))["y"]
    copies = np.flatnonzero(make_program(program.plan, CUDA).streams.instructions[:, 0] == KEEP)
    for slot in copies:
        executable = EmulatorExecutable(image, poison=True)
        stream = executable._stream = executable._stream.copy()
        stream[slot, 0] = -2
        assert not np.array_equal(executable.run(inputs_of(program))["y"], wanted)
    assert len(copies) >= 3


def test_only_what_several_operators_read_is_kept() -> None:
    """rTasks of one operator find what they share in a cache."""
    program = recurrent()
    plan = program.plan
    constants = list(plan.graph.constants)
    places = [[(constants.index(t) if t in constants else -1, 0) for t in op.inputs] for op in plan.graph.operators]
    found = make_resident(plan, places, [0] * len(places), 1 << 20)
    lanes = [slot for lane in plan.programs[0].lanes for slot in lane if isinstance(slot, RTask)]
    assert found.copies.keys() <= {slot.uid for slot in lanes}
    readers = Counter(at for operands in places for at in {at for at, _ in operands if at >= 0})
    reading = {uid.operator_id for uid in found.copies}
    assert reading and all(any(readers[at] > 1 for at, _ in places[n]) for n in reading)
    assert any(set(readers) & {at for at, _ in operands} for n, operands in enumerate(places) if n not in reading)


@pytest.mark.parametrize("policy", ["wavefront", "stationary"])
@pytest.mark.parametrize(
    ("target", "arch"), [("cuda", "sm_80"), ("cuda", "sm_90"), ("cuda", "sm_120"), ("rocm", "gfx90a")]
)
def test_machine_code_with_copies_does_not_spill(target: str, arch: str, policy: str) -> None:
    try:
        program = rammer.compile(lstm_stack(2, 8, 64), target, arch=arch, policy=policy, tune_seconds=0)
    except ToolchainError as error:
        pytest.skip(str(error))
    with program:
        assert any(note.startswith("resident:") for note in program.report().notes)
        resources = json.loads(program.image.files["resources.json"])
        assert resources["spill_bytes"] == resources["stack_bytes"] == 0
