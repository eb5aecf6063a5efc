"""Results that say themselves that they are there: bit by bit the same, nothing carried along, and no fence."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from test_simt_residency import inputs_of, recurrent

from rammer import config
from rammer.errors import DeviceError, ToolchainError, VerificationError
from rammer.ir.dependency import Dependencies
from rammer.ir.order import HappensBefore
from rammer.ir.program import BarrierRTask, RProgram, RTask, TaskUid
from rammer.ir.verify import RULES, Evidence, verify_plan
from rammer.program import Program
from rammer.vdevice.cuda.build import compile_cubin
from rammer.vdevice.cuda.sass import disassembled, listings
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.image import SimtProgram, make_image, make_program
from rammer.vdevice.simt.megakernel import ENTRY, TOLD, header_bytes
from rammer.vdevice.simt.prelude import CUDA
from rammer.vdevice.simt.told import Told, pairs_of, telling

SHAPES = {"wavefront": (2, 5, 64, 5), "list": (3, 4, 36, 3), "stationary": (2, 6, 64, 4)}


@lru_cache(maxsize=8)
def network(policy: str) -> Program:
    return recurrent(policy, *SHAPES[policy])


@lru_cache(maxsize=8)
def told(policy: str) -> Told:
    found = telling(network(policy).plan)
    assert found is not None
    return found


def outputs(policy: str, program: SimtProgram, **options: object) -> np.ndarray:
    """What a program computes; memory is NaN at first, and runs that follow each other find words of the one before."""
    made = network(policy)
    executable = EmulatorExecutable(make_image(made.plan, program, {}), poison=True, **options)  # type: ignore[arg-type]
    return executable.run(inputs_of(made))["y"]


@pytest.mark.parametrize("policy", SHAPES)
def test_results_do_not_change_by_a_bit(policy: str) -> None:
    """Under many orders of threads, and with a thread of the system for each vEU."""
    plan = network(policy).plan
    program = make_program(plan, CUDA, tells=True)
    wanted = outputs(policy, make_program(plan, CUDA))
    executable = EmulatorExecutable(make_image(plan, program, {}), poison=True)
    for executable.deterministic, executable.seed in ((True, 0), (True, 3), (True, 8), (False, 0), (False, 4)):
        np.testing.assert_array_equal(executable.run(inputs_of(network(policy)))["y"], wanted)
    executable = EmulatorExecutable(make_image(plan, program, {}))  # words of earlier launches lie there
    for _ in range(3):
        np.testing.assert_array_equal(executable.run(inputs_of(network(policy)))["y"], wanted)


@pytest.mark.parametrize("policy", SHAPES)
def test_hand_overs_by_words_need_no_counter(policy: str) -> None:
    plan = network(policy).plan
    before, after = (make_program(plan, CUDA, tells=tells).streams.instructions for tells in (False, True))
    for column in (5, 6):  # waits, and steps that are published
        assert (after[:, column] > 0).sum() < (before[:, column] > 0).sum()
    assert any(note.startswith("told: ") for note in make_program(plan, CUDA, tells=True).notes)


def test_weights_stay_beside_what_is_taken() -> None:
    """In just as much room as both need; with less for what is taken, results are handed over by fences."""
    plan = network("stationary").plan
    found = make_program(plan, CUDA, tells=True)
    header = found.streams.header
    end = found.shared_bytes - header_bytes(header["max_args"])

    def within(nbytes: int) -> SimtProgram:
        return make_program(replace(plan, spec=replace(plan.spec, scratch_bytes=nbytes)), CUDA, tells=True)

    wanted = make_program(plan, CUDA).streams.header["resident_bytes"]
    assert within(end).streams.header["resident_bytes"] == header["resident_bytes"] == wanted > 0
    assert within(end - 1).streams.header["resident_bytes"] < wanted
    assert not any(note.startswith("told: ") for note in within(max(k.scratch_bytes for k in plan.kernels)).notes)


@pytest.mark.parametrize("policy", SHAPES)
def test_the_rest_is_waited_for(policy: str) -> None:
    """All rules hold for the plan without what words tell: each other dependency, and each reuse of memory."""
    found, graph = told(policy), network(policy).plan.graph
    evidence = Evidence(found.plan)
    for number, rule in RULES.items():
        if number != "R104":
            rule.check(evidence)
    order = evidence.order
    for n, op in enumerate(graph.operators):
        for rtask, needed in enumerate(Dependencies(graph, found.plan.kernels).of(n)):
            counted = {u for t in op.inputs if found.of(t) is None for u in _writers(found, n, t, rtask)}
            assert counted <= set(needed)
            for uid in counted:
                assert order.before(order.slots(uid), order.slots(TaskUid(n, rtask)))[0], (uid, n, rtask)
    verify_plan(replace(network(policy).plan, memory=found.memory))  # in the stricter order memory is as good


def _writers(found: Told, n: int, tensor: str, rtask: int) -> set[TaskUid]:
    dependencies = Dependencies(found.plan.graph, found.plan.kernels)
    position = found.plan.graph.operators[n].inputs.index(tensor)
    return {TaskUid(p, w) for r, p, w in pairs_of(dependencies, n, position) if r == rtask}


def test_a_plan_whose_waits_are_taken_away_is_no_plan() -> None:
    """What words tell carries nothing: with the memory of the plan that counts on it, a reuse is not covered."""
    plan = network("wavefront").plan
    with pytest.raises(VerificationError, match=r"R104|R107"):
        verify_plan(replace(told("wavefront").plan, memory=plan.memory))


WORDS = r"LDG.*64.*STRONG", r"STG.*64.*STRONG"

MUTATIONS = {
    "a word is believed whatever its epoch": ("!= tag; polls++", "!= tag && polls < 1; polls++"),
    "the epoch is that of the launch before": ("(uint64_t)(lane->base + 1) << 32", "(uint64_t)(lane->base) << 32"),
    "nobody waits for all words": ("  mk_sync();\n  if (*(volatile", "  if (*(volatile"),
    "another word is told": ("mk_store_word(word, ", "mk_store_word(word + 1, "),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = MUTATIONS[name]
    assert TOLD.count(before) == 1
    plan = network("wavefront").plan
    wanted = outputs("wavefront", make_program(plan, CUDA))
    monkeypatch.setattr("rammer.vdevice.simt.megakernel.TOLD", TOLD.replace(before, after))
    program = make_program(plan, CUDA, tells=True)
    wrong = False
    for seed in range(4):
        try:
            wrong |= not np.array_equal(outputs("wavefront", program, seed=seed), wanted)
        except DeviceError:
            wrong = True
    assert wrong


def test_barriers_that_the_words_do_not_replace_matter() -> None:
    """Each of them: without it, the order no longer covers what the plan counts on."""
    found = told("wavefront")
    lanes = found.plan.programs[0].lanes
    barriers = [(v, n) for v, lane in enumerate(lanes) for n, slot in enumerate(lane) if isinstance(slot, BarrierRTask)]
    assert barriers
    order = HappensBefore(found.plan.programs)
    for veu, at in barriers:
        cut = [list(lane) for lane in lanes]
        cut[veu][at] = BarrierRTask(())
        less = HappensBefore([RProgram(tuple(map(tuple, cut)))])
        follower = cut[veu][at + 1]
        assert isinstance(follower, RTask)
        n, rtask = follower.uid
        op = found.plan.graph.operators[n]
        counted = {u for t in op.inputs if found.of(t) is None for u in _writers(found, n, t, rtask)}
        slots = [(order.slots(u), order.slots(follower.uid)) for u in counted]
        assert all(order.before(a, b)[0] for a, b in slots)
        assert not all(less.before(a, b)[0] for a, b in slots)


def test_a_word_that_never_comes_is_reported() -> None:
    """By the watchdog, with the name of who should have told it."""
    plan = network("stationary").plan
    program = make_program(plan, CUDA, tells=True)
    text = re.sub(r"mk_tell\(MK_TENSOR", "if (tid != 0) mk_tell(MK_TENSOR", program.text)
    with pytest.raises(DeviceError, match="waited in vain for vEU"):
        outputs("stationary", replace(program, text=text))


def test_the_option() -> None:
    made = {}
    for flag in ("0", "1"):
        with config.override(RAMMER_DATA_AS_FLAG=flag):
            program = recurrent.__wrapped__("wavefront", *SHAPES["wavefront"])
        made[flag] = program.run(inputs_of(program))["y"]
        notes = program.report().notes
        assert any(note.startswith("told") for note in notes) == (flag == "1")
    np.testing.assert_array_equal(made["0"], made["1"])


def test_machine_code_has_no_fence_for_words() -> None:
    """Words go out and come in by single relaxed accesses of eight bytes; nothing more is fenced than before."""
    counts = []
    for tells in (False, True):
        text = make_program(network("stationary").plan, CUDA, tells=tells).text
        try:
            listing = listings(disassembled(compile_cubin(text, "sm_90").data))[ENTRY]
        except ToolchainError as error:
            pytest.skip(str(error))
        opcodes = [i.opcode for i in listing.code]
        counts.append([sum(bool(re.match(kind, o)) for o in opcodes) for kind in (*WORDS, "MEMBAR")])
    (none, zero, fences), (taken, told_words, others) = counts
    assert none == zero == 0 < min(taken, told_words) and others <= fences
