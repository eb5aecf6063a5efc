"""What rTasks load before they wait: only what is there, the same results, and what machine code does behind it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pytest
from simt_plans import spec
from test_simt_residency import inputs_of, operations, recurrent, static

import rammer
from benchmarks.gpu.sass import Listing, disassembled, listings
from benchmarks.on_paper.hops import ENTRY, standalone_text
from rammer.errors import DeviceError, ToolchainError
from rammer.ir.analysis.dependency import overlaps
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.expr import loads
from rammer.ir.operator import Operations
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, RProgram, TaskUid
from rammer.ir.tile import Store, Sync, TileProgram, statements
from rammer.kernels import candidates
from rammer.runtime.program import Program
from rammer.tools.demo import lstm_stack
from rammer.vdevice.cuda.build import compile_cubin
from rammer.vdevice.simt.codegen import image as images
from rammer.vdevice.simt.codegen.early import early_words, loads_early
from rammer.vdevice.simt.codegen.image import SimtProgram, make_image, make_program
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.printer import emit
from rammer.vdevice.simt.codegen.ready import early_operands, with_constants
from rammer.vdevice.simt.codegen.table import NUMBER
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.tune.rooms import compiled

ROOM = early_words(48, 4)
POLICIES = ["wavefront", "list", "stationary"]


def outputs(plan: ExecutionPlan, inputs: dict[str, np.ndarray], *, early: bool) -> np.ndarray:
    program = make_program(plan, CUDA, rooms=None if early else {})
    assert bool(program.early) == early == ("mk_stopped(pc" in program.text)
    return EmulatorExecutable(make_image(plan, program, {}), poison=True).run(inputs)["y"]


@pytest.mark.parametrize("policy", POLICIES)
def test_results_do_not_change_by_a_bit(policy: str) -> None:
    """Memory is NaN at first: what is loaded too early shows."""
    program = recurrent(policy, 2, 5, 64, 5)
    inputs = inputs_of(program)
    wanted = outputs(program.plan, inputs, early=False)
    np.testing.assert_array_equal(outputs(program.plan, inputs, early=True), wanted)
    executable = EmulatorExecutable(make_image(program.plan, make_program(program.plan, CUDA), {}), poison=True)
    for executable.deterministic, executable.seed in ((True, 3), (False, 0), (False, 4)):
        np.testing.assert_array_equal(executable.run(inputs)["y"], wanted)


@lru_cache(maxsize=2)
def stack(arch: str) -> Program:
    """Three layers of twelve steps, whose recurrent weights stay where they are read."""
    return rammer.compile(lstm_stack(3, 12, 96), "cuda", arch=arch, device="emulator:26", policy="stationary")


@pytest.mark.parametrize("arch", ["h200", "h200:x2"])
def test_resident_weights_are_early_in_the_program_that_is_built(arch: str) -> None:
    """Their copies are in shared memory long before the wait; behind it no thread reads them again."""
    made = stack(arch)
    program = make_program(made.plan, CUDA)
    assert program.text.encode() == made.image.file(images.SOURCE)
    seen = 0
    for fn, resident in residents_of(program).items():
        function = program.functions[fn]
        body = function.kernel.body
        assert isinstance(body, TileProgram)
        if body.num_block_syncs or function.kernel.operation.kind == "matmul":  # threads meet in scratch
            continue
        before, waited, behind = function.emitted.text.partition("mk_stopped(")
        names = [body.arguments[body.num_outputs + p].name for p in resident]
        assert waited and all(f"{n}[" in before and f"{n}[" not in behind for n in names), function.kernel.name
        seen += 1
    assert seen >= 4
    inputs = inputs_of(made)
    wanted = outputs(made.plan, inputs, early=False)
    np.testing.assert_array_equal(outputs(made.plan, inputs, early=True), wanted)


def residents_of(program: SimtProgram) -> dict[int, set[int]]:
    """By function, the inputs that its rTasks read from copies."""
    streams, found = program.streams, dict[int, set[int]]()
    for fn, _, first, count, *_ in streams.instructions.tolist():
        if fn >= 0:
            outputs = len(program.functions[fn].kernel.operation.outputs)
            numbers = np.flatnonzero(streams.arg_base[first + outputs : first + count] == NUMBER)
            found.setdefault(fn, set()).update(numbers.tolist())
    return {fn: positions for fn, positions in found.items() if positions}


@dataclass(frozen=True)
class Compiled:
    """What a compiler would say of a text."""

    registers: int
    spill_bytes: int
    data: bytes = b""

    @property
    def resources(self) -> Compiled:
        return self


def early_words_of(text: str) -> int:
    sizes = re.findall(r"(vf|float) early\d+\[(\d+)\]", text)
    return sum(int(n) * (4 if kind == "vf" else 1) for kind, n in sizes)


def test_only_what_spills_gets_less_room() -> None:
    """A compiler that spills always a little, and more for functions that load over 40 words: others keep theirs."""
    plan = stack("h200").plan

    def compile(text: str) -> Compiled:
        most = max(early_words_of(part) for part in re.split(r"^INLINE void k_", text, flags=re.M))
        return Compiled(100 + most, 4 + 40 * (most > 40))

    program, code = compiled(plan, CUDA, compile)
    whole = make_program(plan, CUDA)
    words = {f.kernel: early_words_of(f.emitted.text) for f in whole.functions}
    much = {k for k in whole.early if words[k] > 40}
    assert much and much < whole.early.keys() and code.resources.spill_bytes == 4
    assert program.early == {k: ROOM // 4 if k in much else ROOM for k in whole.early}


def without_barrier_of(plan: ExecutionPlan, uid: TaskUid) -> HappensBefore:
    """The order if the rTask did not wait."""
    programs = []
    for program in plan.programs:
        lanes = [list(lane) for lane in program.lanes]
        for lane in lanes:
            for n, slot in enumerate(lane[1:]):
                if getattr(slot, "uid", None) == uid and isinstance(lane[n], BarrierRTask):
                    lane[n] = BarrierRTask(())
        programs.append(RProgram(tuple(map(tuple, lanes))))
    return HappensBefore(programs)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_early_is_there_without_the_wait(policy: str) -> None:
    plan = recurrent(policy, 2, 5, 64, 5).plan
    found = early_operands(plan, dict.fromkeys(plan.kernels, ROOM))
    graph, dynamic = plan.graph, 0
    for uid, positions in found.items():
        kernel, op = plan.kernels[uid.operator_id], graph.operators[uid.operator_id]
        for position in positions:
            if kernel.operation.static[position]:
                continue
            order = without_barrier_of(plan, uid)
            dynamic += 1
            for producer, output, start in graph.writers(op.inputs[position]):
                shift = graph.storage(op.inputs[position]).offset - start
                for reader, writer in overlaps(kernel, position, plan.kernels[producer], output, shift).tolist():
                    if reader == uid.rtask_id:
                        slots = order.slots(TaskUid(producer, writer)), order.slots(uid)
                        assert order.before(*slots).all(), (uid, position)
    assert found and (dynamic or policy == "list"), "a cell that stays at home has its old state there"


def test_what_is_not_there_yet_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way round: with the state of the neighbours loaded early results are wrong."""
    program = recurrent("wavefront", 2, 5, 64, 5)
    plan, inputs = program.plan, inputs_of(program)
    wanted = outputs(plan, inputs, early=True)
    every = {
        TaskUid(n, r): frozenset(range(len(kernel.operation.static)))
        for n, kernel in enumerate(plan.kernels)
        for r in range(kernel.num_rtasks)
    }
    monkeypatch.setattr(images, "early_operands", lambda *_: every)
    assert not np.array_equal(outputs(plan, inputs, early=True), wanted)


@pytest.mark.parametrize("room", [7, 40, ROOM])
def test_room_and_order(room: int) -> None:
    """Nothing but ready arguments before the wait, in no more words than there are; all others behind it."""
    seen = 0
    for operation in operations():
        for kernel in candidates(operation, spec(4)):
            body = kernel.body
            assert isinstance(body, TileProgram)
            ready = frozenset(
                b.name for b, known in zip(body.arguments[body.num_outputs :], operation.static, strict=True) if known
            )
            if (early := loads_early(body, ready, room)) is None:
                continue
            every = list(statements(early[0].body))
            at = next(n for n, s in enumerate(every) if isinstance(s, Sync) and s.waits)
            before = {ld.tensor for s in every[:at] if isinstance(s, Store) for ld, _ in loads(s.value)}
            assert before <= ready and early[1] == before
            sizes = re.findall(r"(vf|float) early\d+\[(\d+)\]", emit(replace(kernel, body=early[0]), CUDA, 256).text)
            assert 0 < sum(int(n) * (4 if kind == "vf" else 1) for kind, n in sizes) <= room
            assert body.num_block_syncs == early[0].num_block_syncs == 0
            seen += 1
    assert seen >= (1 if room < 16 else 4)


@lru_cache(maxsize=4)
def cell_code(units: int, per_task: int, arch: str) -> Listing:
    """A cell with its weights before the wait, which is a block sync here."""
    state = (1, units)
    cell = static("lstm_cell", ((1, 4, units), state, state, (4, units, units)), {})
    operation = Operations(OPS).retype(cell, cell.inputs, cell.outputs, (False, False, False, True))
    kernel = next(k for k in candidates(operation, spec(132)) if f"_cell{per_task}_" in k.name)
    emitted = emit(with_constants(kernel, ROOM), CUDA, 256)
    assert emitted.waits
    try:
        text = disassembled(compile_cubin(standalone_text([emitted], CUDA), arch).data)
    except ToolchainError as error:
        pytest.skip(str(error))
    return listings(text)[ENTRY + emitted.symbol]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize(("per_task", "weights"), [(8, 8), (32, 32)])
def test_behind_the_wait_only_the_state_is_loaded(per_task: int, weights: int, arch: str) -> None:
    """The weights of a thread by 16 bytes before it; behind it the state, all of it asked for before the first FFMA."""
    kinds = [i.opcode for i in cell_code(256, per_task, arch).code]
    (wait,) = (n for n, k in enumerate(kinds) if k.startswith("BAR"))
    wide = [n for n, k in enumerate(kinds) if k.startswith("LDG.E.128")]
    assert sum(n < wait for n in wide) == weights and sum(n > wait for n in wide) == weights // 4
    sums = [n for n, k in enumerate(kinds) if k == "FFMA" and n > wait]
    assert max(wide) < sums[0]
    assert not any(k.startswith(("STL", "LDL")) for k in kinds) and "LDS.128" not in kinds[wait:]
    assert sum(k.startswith("SHFL") for k in kinds) == 4 * (5 if per_task == 8 else 3)


def test_nothing_spills() -> None:
    try:
        program = _compiled()
    except ToolchainError as error:
        pytest.skip(str(error))
    text = program.image.file(images.SOURCE).decode()
    resources = compile_cubin(text, "sm_90").resources
    assert text.count("if (mk_stopped(pc") > 4 and resources.spill_bytes == resources.stack_bytes == 0
    assert resources.registers <= 255 and any(n.startswith("early:") for n in program.report().notes)


def _compiled() -> Program:
    import rammer
    from rammer.tools.demo import lstm_stack

    return rammer.compile(lstm_stack(4, 8, 256), "cuda", arch="sm_90", tune_seconds=0)


def test_a_wait_of_its_own_gives_up() -> None:
    """What never comes, awaited inside of an rTask: the same report, no vEU goes on, and the program runs again."""
    program = recurrent("stationary", 2, 5, 64, 5)
    inputs, emitted = inputs_of(program), make_program(program.plan, CUDA)
    own = [int(n) for n in re.findall(r"fn == (\d+)", emitted.text)]
    executable = EmulatorExecutable(make_image(program.plan, emitted, {}))
    wanted = executable.run(inputs)["y"]
    stream, waits = executable._stream, executable._waits
    first = next(row for row in stream.tolist() if row[0] in own and row[5] > 1)
    executable._waits = waits.copy()
    executable._waits[first[4] : first[4] + first[5], 1] = 1 << 20
    for _ in range(2):
        with pytest.raises(DeviceError, match="waited in vain"):
            executable.run(inputs)
    executable._waits = waits
    np.testing.assert_array_equal(executable.run(inputs)["y"], wanted)
