"""Hand-overs by their parts: machine code that is read, costs that may be measured, and rows that add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rammer
from benchmarks.gpu.sass import LATENCY, OTHERS, disassembled, listings, walked
from benchmarks.on_paper.hops import HopCosts, hops, hops_of
from rammer.errors import ArtifactError, ToolchainError
from rammer.scheduler.hand_overs import longest_chain
from rammer.vdevice.cuda.build import nvrtc_version
from rammer_viz.demo import lstm_stack

HEAD = "//--------------------- .text.f --------------------------\nf:\n.text.f:\n"


def listing(*lines: str):  # type: ignore[no-untyped-def]
    text = "".join(
        line if line.startswith(".L") else f"        /*{n:04x}*/     {line} ;\n" for n, line in enumerate(lines)
    )
    return listings(HEAD + text)["f"]


def test_a_result_is_waited_for() -> None:
    """Two loads are under way at once; what depends on both comes after the later one."""
    load, other = "LDG.E R2, desc[UR4][R8.64]", "LDG.E R3, desc[UR4][R8.64+0x10]"
    one = walked(listing(load, "FADD R4, R2, R2", "EXIT"), 4, ())
    two = walked(listing(load, other, "FADD R4, R2, R3", "EXIT"), 4, ())
    chain = walked(listing(load, "LDG.E R9, desc[UR4][R2.64]", "FADD R4, R9, R9", "EXIT"), 4, ())
    assert LATENCY["LDG"] <= one.compute + one.tail <= LATENCY["LDG"] + 4
    assert 1 <= two.compute + two.tail - one.compute - one.tail <= 4
    assert chain.compute + chain.tail > 2 * LATENCY["LDG"]


def test_vectors_set_all_their_registers() -> None:
    wide = walked(listing("LDS.128 R4, [R2]", "FADD R9, R7, R7", "EXIT"), 4, ())
    narrow = walked(listing("LDS R4, [R2]", "FADD R9, R7, R7", "EXIT"), 4, ())
    assert wide.tail > narrow.tail + 20


def test_loops_run_as_often_as_is_known() -> None:
    code = (".L_x_0:\n", "FFMA R4, R4, R2, R4", "@P0 BRA `(.L_x_0)", "EXIT")
    once, often = walked(listing(*code), 4, ()), walked(listing(*code), 4, (100,))
    assert not once.sure and often.sure
    assert 90 * OTHERS < often.compute + often.tail - once.compute - once.tail < 110 * (OTHERS + 2)


def test_more_warps_take_turns() -> None:
    code = [f"FFMA R{n}, R2, R3, R{n}" for n in range(8, 40)]
    few, many = (walked(listing(*code, "EXIT"), warps, ()) for warps in (4, 8))
    assert many.compute + many.tail > 1.8 * (few.compute + few.tail) - OTHERS


def test_products_of_four_warps_are_awaited() -> None:
    """Two groups share the units of a multiprocessor, which take two columns in a clock."""
    code = ("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0", "WARPGROUP.DEPBAR.LE gsb0, 0x0", "EXIT")
    one, two = (walked(listing(*code[:1] * 4, *code[1:]), warps, ()) for warps in (4, 8))
    assert 256 <= one.compute + one.tail <= 270 and 512 <= two.compute + two.tail <= 530


def test_the_hand_overs_of_the_longest_chain() -> None:
    with rammer.compile(lstm_stack(2, 5, 64), "cuda", device="emulator:8", tune_seconds=0) as program:
        chain = hops_of(program.plan)
        assert len(chain) == longest_chain(program.plan).hops > 4
        assert all(hop.waits >= 0 and hop.waited_for >= 0 for hop in chain)
        graph = program.plan.graph
        depths = {n: w for w, numbers in enumerate(graph.wavefronts()) for n in numbers}
        assert all(depths[hop.waited_for] < depths[hop.waits] for hop in chain), "who waits comes later"


def test_costs_that_were_measured(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"fence_us": 0.25, "poll_us": 0.5}))
    costs = HopCosts.read(str(file))
    assert (costs.fence_us, costs.poll_us, costs.dispatch_us) == (0.25, 0.5, HopCosts().dispatch_us)
    assert costs.source == "measured, but for dispatch_us"
    file.write_text("no")
    with pytest.raises(ArtifactError, match="no costs of hand-overs"):
        HopCosts.read(str(file))


def test_hops_of_a_program() -> None:
    try:
        nvrtc_version()
        disassembled(b"")
    except ToolchainError as error:
        if "nvdisasm failed" not in str(error):
            pytest.skip(str(error))
    with rammer.compile(lstm_stack(2, 6, 128), "cuda", arch="sm_90", tune_seconds=0) as program:
        found = hops(program.plan, "sm_90")
        assert sum(row.count for row in found.rows) == longest_chain(program.plan).hops
        cells = [row for row in found.rows if "_cell" in row.rkernel]
        assert cells and all(row.sure and 0.1 < row.compute_us < 2 and 0 < row.tail_us < 1 for row in cells)
        slow = hops(program.plan, "sm_90", HopCosts(fence_us=1.4, source="measured"))
        more = sum(row.count for row in found.rows)
        estimated = hops(program.plan, "sm_90", HopCosts()).total_us
        assert slow.total_us == pytest.approx(estimated + more * 1.0) and "measured" in str(slow)
        assert json.loads(found.to_json())["rows"]
