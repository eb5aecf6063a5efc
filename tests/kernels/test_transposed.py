"""What reads one operand across copies squares of it, turned; and norms keep what rows need, no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernel_harness import SLOW_SPEC, check, operation
from rammer_testing.mutate.tiles import mutants

from rammer.ir.expr import Cast, Load
from rammer.ir.index import var
from rammer.ir.operator import Operation, Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, TensorType
from rammer.ir.tile import Buffer, For, Kind, Scope, Store, TileProgram
from rammer.ir.verify.kernel import prove
from rammer.kernels import candidates
from rammer.passes.fusion.compose import Member, compose
from rammer.vdevice.cpu.codegen.emit import emit
from rammer.vdevice.cpu.codegen.printer import CpuPrinter


def t(*shape: int, dtype: DType = DType.F32) -> TensorType:
    return TensorType(shape, dtype)


def turned_and_added(shape: tuple[int, ...], perm: tuple[int, ...], other: tuple[int, ...]) -> Operation:
    """Of x: its transposition, plus another operand as it lies."""
    made = Operations(OPS)
    turn = made.define("transpose", (t(*shape),), attributes(perm=perm))
    added = made.define("add", (turn.outputs[0], t(*other)))
    members = (Member(turn, ((-1, 0),)), Member(added, ((0, 0), (-1, 1))))
    return made.wrap("transpose+add", (members, ((1, 0),)), lambda: compose(members, ((1, 0),)))


SHAPES = {
    "even": ((32, 48), (1, 0), (48, 32)),
    "rows that are none": ((7, 42, 128), (0, 2, 1), (7, 128, 42)),
    "channels last to first": ((1, 28, 28, 40), (0, 3, 1, 2), (1, 40, 28, 28)),
    "channels first to last": ((3, 75, 5, 29), (0, 2, 3, 1), (3, 5, 29, 75)),
    "the other one for all columns": ((2, 19, 130), (0, 2, 1), (130, 1)),
}


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_squares_are_copied(shape: tuple[tuple[int, ...], ...], lanes: int) -> None:
    spec = replace(SLOW_SPEC, lanes=lanes)
    op = turned_and_added(*shape)
    kernels = candidates(op, spec)
    assert any("xa" in k.name and k.scratch_bytes == 4 * lanes * lanes for k in kernels), [k.name for k in kernels]
    for kernel in kernels:
        assert not prove(kernel)
    check(op, kernels, spec=spec)


MOVES = {
    "twelve rows": ((12, 56), (1, 0)),
    "a last part": ((3, 40, 75), (0, 2, 1)),
    "places of pixels": ((1, 5, 2, 2, 29, 33), (0, 1, 4, 2, 5, 3)),
    "three by three": ((7, 3, 5, 3), (0, 2, 3, 1)),
}


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_parts_of_squares_are_turned_in_registers(move: tuple[tuple[int, ...], ...], lanes: int) -> None:
    spec = replace(SLOW_SPEC, lanes=lanes)
    op = operation("transpose", t(*move[0]), perm=move[1])
    kernels = candidates(op, spec)
    assert all("vtranspose(" in emit(k, spec).text and not prove(k) for k in kernels)
    check(op, kernels, spec=spec)


ROWS = {
    "eight channels": (16, 8, 8, 203, 7),
    "as many as lanes": (16, 16, 16, 96, 3),
    "two vectors": (16, 24, 32, 75, 3),
    "vectors of eight": (8, 24, 32, 75, 3),
}


@pytest.mark.parametrize(("lanes", "channels", "outs", "places", "taps"), ROWS.values(), ids=ROWS)
def test_channels_beside_each_other_are_stored_by_rows(
    lanes: int, channels: int, outs: int, places: int, taps: int
) -> None:
    """Vectors are of channels, and numbers of a channel lie beside each other: squares are turned, or parts of them."""
    spec, pads = replace(SLOW_SPEC, lanes=lanes), (taps // 2, taps // 2)
    op = operation("conv", t(1, channels, places), t(outs, channels, taps), t(outs), static=("w", "bias"), pads=pads)
    kernels = candidates(op, spec)
    assert any("vturned(" in emit(k, spec).text for k in kernels)
    check(op, kernels, spec=spec)


def test_numbers_without_vectors_are_stored_one_by_one() -> None:
    """What is rounded to bytes and widened again has no form of whole vectors: there is no square to turn."""
    v, lane = var("v"), var("l")
    number = Load("x", (v * 8 + lane,))
    for value, turns in ((number * number, True), (Cast(Cast(number, DType.U8), DType.F32), False)):
        column = For("l", 0, 8, Kind.VECTOR, (Store("out", v + lane * 75, value),))
        square = For("v", 0, 8, Kind.UNROLLED, (column,))
        arguments = Buffer("out", 600, Scope.ARGUMENT), Buffer("x", 64, Scope.ARGUMENT)
        text = "".join(CpuPrinter(TileProgram("small", arguments, 1, (square,), (), 1, ()), 8).body((square,), 0))
        assert ("vturned(" in text) == turns


def test_every_change_of_a_square_is_seen() -> None:
    op = turned_and_added((4, 26, 32), (0, 2, 1), (4, 32, 26))  # uneven tasks have guards that a change need not break
    kernel = next(k for k in candidates(op, SLOW_SPEC) if "xa" in k.name)
    changed = list(mutants(kernel, 300, 0))
    missed = [what for what, other in changed if not any(f.broken for f in prove(other))]
    assert len(changed) > 100 and not missed, missed


def test_what_lies_as_the_output_does_needs_no_square() -> None:
    made = operation("add", t(40, 64), t(40, 64))
    assert not any("xa" in k.name for k in candidates(made, SLOW_SPEC))


@pytest.mark.parametrize("shape", [(1, 56, 56, 40), (1, 128, 384), (75, 29)])
def test_moments_of_a_norm_are_kept_for_a_few_rows(shape: tuple[int, ...]) -> None:
    """A square of x less its mean is no product with weights, which whole tiles would share."""
    op = operation("layer_norm", t(*shape), t(shape[-1]), t(shape[-1]), axis=len(shape) - 1)
    for kernel in candidates(op, SLOW_SPEC):
        assert kernel.scratch_bytes <= 256, kernel.name
