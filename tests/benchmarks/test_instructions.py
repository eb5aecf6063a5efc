"""Instructions per multiply-add: what is counted, and how far from the least that it takes the best guesses are."""

from __future__ import annotations

from functools import lru_cache

import pytest

from benchmarks.instructions import Counts, hot, in_flight, measured, of_model
from benchmarks.sass import Listing, listings
from rammer.errors import ToolchainError

HEAD = "//--------------------- .text.f --------------------------\nf:\n.text.f:\n"


def listing(*lines: str) -> Listing:
    text = "".join(x if x.startswith(".L") else f"        /*{n:04x}*/     {x} ;\n" for n, x in enumerate(lines))
    return listings(HEAD + text)["f"]


def test_the_loop_with_the_most_products() -> None:
    inner = ".L_x_1:\n", "LDS R2, [R9]", "FFMA R4, R4, R2, R4", "FFMA R5, R5, R2, R5", "@P0 BRA `(.L_x_1)"
    code = listing("FADD R1, R1, R1", ".L_x_0:\n", "LDG.E R3, desc[UR4][R8.64]", *inner, "@P1 BRA `(.L_x_0)", "EXIT")
    assert [i.kind for i in hot(code)] == ["LDS", "FFMA", "FFMA", "BRA"]
    straight = listing("FFMA R1, R1, R1, R1", "FADD R2, R1, R1", "EXIT")
    assert len(hot(straight)) == 3


def test_bytes_in_flight() -> None:
    first, second = "LDG.E.128 R4, desc[UR4][R2.64]", "LDG.E R8, desc[UR4][R2.64+0x10]"
    assert in_flight(listing(first, second, "FADD R1, R4, R8", first, "EXIT").code) == 20
    assert in_flight(listing(first, "FADD R1, R7, R7", second, "EXIT").code) == 16


@lru_cache(maxsize=1)
def best() -> dict[str, Counts]:
    try:
        return {row.task: row for row in measured("sm_90", every=False)}
    except ToolchainError as error:
        pytest.skip(str(error))


def test_products_are_most_of_what_is_issued() -> None:
    """Structure, no time: a convolution or a product takes little more than its products and operands."""
    for task in ("conv 3x3", "conv 1x1", "conv 7x7", "matmul"):
        row = best()[task]
        assert row.least <= row.each < (1.5 if row.tensor_parts else 1.25) * row.least, str(row)
        assert row.each < 1.4, str(row)


def test_rows_and_cells_are_read_by_vectors() -> None:
    for task in ("row", "cell"):
        row = best()[task]
        assert row.kinds["LDG.128"] > 0 and row.kinds.get("LDG.32", 0) <= 5, str(row)
        assert row.each < 2.2 * row.least, str(row)
    assert best()["row"].in_flight_kib >= 32


def test_operands_of_products_come_from_scratch_by_vectors() -> None:
    """Neighbours along both sides: what lies so is loaded by 16 bytes, or by 8 where a thread has two of them."""
    row = best()["matmul"]
    assert row.tensor_parts or not row.kinds.get("LDS.32"), str(row)


@pytest.mark.slow
def test_a_decoder_streams_its_weights_by_vectors() -> None:
    """All that a step of a language model reads but caches of an odd length, and enough of it under way."""
    pytest.importorskip("torch", reason="builds the model")
    try:
        rows = of_model("today_llama_256", "sm_90")
    except ToolchainError as error:
        pytest.skip(str(error))
    weights = [row for row in rows if row.share > 0.025]
    assert sum(row.share for row in weights) > 0.9
    for row in weights:
        assert row.kinds.get("LDG.128", 0) > 4 * row.kinds.get("LDG.32", 0) and row.in_flight_kib >= 30, str(row)
