"""What a wait loads before it polls: nothing, for its list came into the block's own memory during the task before."""

from __future__ import annotations

import numpy as np
import pytest
from test_simt_residency import inputs_of, recurrent

from benchmarks.gpu.sass import Listing, disassembled, listings
from rammer.errors import DeviceError, ToolchainError
from rammer.vdevice.cuda.build import compile_cubin
from rammer.vdevice.simt.codegen import image as images
from rammer.vdevice.simt.codegen.image import make_image, make_program
from rammer.vdevice.simt.codegen.megakernel import AHEAD, COMMON, LOOP
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable

NEAR = "if (w < $AHEAD) on.veu = near[2 * w], on.order = near[2 * w + 1];\n    else on = waits[w];"
FAR = "on = waits[w];"


def polls(listing: Listing) -> list[set[str]]:
    """Of each load at device scope the kinds of loads that say where it goes, on whatever way there."""
    code = listing.code
    before: dict[int, list[int]] = {n: [] for n in range(len(code) + 1)}
    for n, instr in enumerate(code):
        if instr.target in listing.labels:
            before[listing.labels[instr.target]].append(n)
        if instr.reads or instr.kind not in ("BRA", "EXIT", "RET", "BRX"):
            before[n + 1].append(n)
    found = []
    for at, poll in enumerate(code):
        if poll.opcode.startswith("LDG.E.STRONG"):
            left, seen, loads = [(n, r) for n in before[at] for r in poll.reads if r[0] == "R"], set(), set()
            while left:
                n, register = place = left.pop()
                if place in seen:
                    continue
                seen.add(place)
                made, names = register in code[n].sets, (register,)
                if made and code[n].kind in ("LDS", "LDG"):
                    loads.add(code[n].kind)
                    continue
                if made:
                    names = tuple(r for r in code[n].reads if r[0] == "R")
                left += [(m, r) for m in before[n] for r in names]
            found.append(loads)
    return found


@pytest.mark.parametrize(("arch", "ahead"), [("sm_80", True), ("sm_90", True), ("sm_120", True), ("sm_90", False)])
def test_a_poll_is_the_first_load_of_a_wait(arch: str, ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of lists that lead to a poll lie in the block's own memory, but for those behind the first ones of a
    long list; not if they are asked for when the wait begins: two loads that depend on each other.
    """
    assert COMMON.count(NEAR) == 1
    if not ahead:
        monkeypatch.setattr("rammer.vdevice.simt.codegen.megakernel.COMMON", COMMON.replace(NEAR, FAR))
    plan = recurrent("wavefront", 2, 3, 64, 4).plan
    text = make_image(plan, make_program(plan, CUDA), {}).file(images.SOURCE).decode()
    try:
        listing = listings(disassembled(compile_cubin(text, arch).data))["rammer_run"]
    except ToolchainError as error:
        pytest.skip(str(error))
    of_lists = [loads for loads in polls(listing) if "LDG" in loads]
    assert of_lists and all(("LDS" in loads) == ahead for loads in of_lists)


def test_lists_are_there_before_their_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looked for one of the first entries of a list elsewhere would give up; a list that did not come shows."""
    program = recurrent("wavefront", 2, 5, 96, 5)
    plan, inputs = program.plan, inputs_of(program)
    assert 1 < make_program(plan, CUDA).streams.instructions[:, 5].max() <= AHEAD

    def ran(before: str, after: str) -> np.ndarray:
        assert (COMMON + LOOP).count(before) == 1
        for name, text in (("COMMON", COMMON), ("LOOP", LOOP)):
            monkeypatch.setattr(f"rammer.vdevice.simt.codegen.megakernel.{name}", text.replace(before, after))
        image = make_image(plan, make_program(plan, CUDA), {})
        return EmulatorExecutable(image, poison=True, seed=1).run(inputs)["y"]

    wanted = ran("mk_arrive(run.state + 1)", "mk_arrive(run.state + 1)")
    np.testing.assert_array_equal(ran("else on = waits[w];", "else { *stop = 1; return; }"), wanted)
    with pytest.raises((DeviceError, AssertionError)):
        np.testing.assert_array_equal(ran("near[tid] = coming;", ";"), wanted)
