"""Emitted C, as golden files: readable, deterministic, free of names from models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import pytest
from goldens import Golden

from rammer.ir.device import VDeviceSpec
from rammer.ir.operator import Operation, Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, TensorType, channel_blocked
from rammer.kernels import candidates
from rammer.vdevice.cpu.codegen import amx
from rammer.vdevice.cpu.codegen.emit import emit, prelude, translation_unit
from rammer.vdevice.cpu.codegen.printer import MAX_NUMBERS

SPEC = VDeviceSpec("cpu", num_veus=2, languages=("c",), lanes=16, registers=32, clock_ghz=1.6)
UNIT = replace(SPEC, instructions=amx.AMX, clock_ghz=1 / 64)
NEON = VDeviceSpec("cpu", num_veus=4, languages=("c",), lanes=4, registers=32, clock_ghz=1.9)


def matmul(rows: int) -> Operation:
    made = Operations(OPS)
    op = made.define("matmul", (TensorType((rows, 256)), TensorType((256, 128))))
    return made.retype(op, op.inputs, op.outputs, (False, True))


def conv() -> Operation:
    made, blocked = Operations(OPS), channel_blocked(4, 16)
    x, w, bias = TensorType((1, 32, 28, 28), layout=blocked), TensorType((64, 32, 3, 3)), TensorType((64,))
    op = made.define("conv", (x, w, bias), attributes(pads=(1, 1, 1, 1)))
    outputs = tuple(TensorType(t.shape, t.dtype, blocked) for t in op.outputs)
    return made.retype(op, (x, w, bias), outputs, (False, True, True))


def softmax() -> Operation:
    return Operations(OPS).define("softmax", (TensorType((8, 200)),), attributes(axis=1))


def cell() -> Operation:
    made = Operations(OPS)
    types = (TensorType((1, 4, 256)), TensorType((1, 256)), TensorType((1, 256)), TensorType((4, 256, 256)))
    op = made.define("lstm_cell", types)
    return made.retype(op, op.inputs, op.outputs, (False, False, False, True))


def merged_columns() -> Operation:
    """Axes of two that choose a result are unrolled: both results share their operands."""
    return Operations(OPS).define("merge", (TensorType((3, 4, 32), DType.I64),), attributes(steps=2))


def resized_by_thirds() -> Operation:
    """Vectors pick lanes in three patterns."""
    made, kinds = Operations(OPS), (TensorType((6, 66)), TensorType((96, 2)))
    op = made.define("resample_evenly", kinds, attributes(axis=1, step=2, by=3))
    return made.retype(op, kinds, op.outputs, (False, True))


def rows_of_a_map() -> Operation:
    """The last loop that reads a row prefetches the next one."""
    return Operations(OPS).define("softmax", (TensorType((1024, 2048)),), attributes(axis=1))


MAKERS = (matmul, conv, softmax, cell, merged_columns, resized_by_thirds, rows_of_a_map)


@pytest.mark.parametrize(("name", "spec"), [("avx512", SPEC), ("neon", NEON)])
@pytest.mark.parametrize("make", MAKERS, ids=lambda f: f.__name__)
def test_text(golden: Golden, make, name: str, spec: VDeviceSpec) -> None:
    op = make(64) if make is matmul else make()
    golden.check(emit(candidates(op, spec)[0], spec).text)


def test_loops_at_edges_that_hold_few_of_the_sums_stay_rolled() -> None:
    made, blocked = Operations(OPS), channel_blocked(3, 16)
    kinds = TensorType((1, 32, 2048), layout=blocked), TensorType((32, 32, 11)), TensorType((32,))
    op = made.define("conv", kinds, attributes(pads=(5, 5)))
    outputs = tuple(TensorType(t.shape, t.dtype, blocked) for t in op.outputs)
    long = emit(candidates(made.retype(op, kinds, outputs, (False, True, True)), SPEC)[0], SPEC).text
    assert "#pragma unroll 1\n" in long and "#pragma unroll 4\n" in long
    assert "#pragma unroll 1\n" not in emit(candidates(conv(), SPEC)[0], SPEC).text  # a row has few tiles


def test_text_for_the_matrix_unit(golden: Golden) -> None:
    golden.check(emit(candidates(matmul(200), UNIT)[0], UNIT).text)


@pytest.mark.parametrize("spec", [SPEC, UNIT], ids=["avx512", "amx"])
def test_prelude(golden: Golden, spec: VDeviceSpec) -> None:
    golden.check(prelude(spec))


def test_equal_kernels_have_one_symbol_and_one_text() -> None:
    first, second = (emit(candidates(softmax(), SPEC)[0], SPEC) for _ in range(2))
    assert first == second
    assert first.symbol in first.text
    assert translation_unit([first, second], SPEC).count(f"void {first.symbol}(char") == 1


@pytest.mark.parametrize("dtype", [DType.U8, DType.I8, DType.I16])
def test_single_numbers_are_not_unrolled_by_hundreds(dtype: DType) -> None:
    """What no vectors compute stays in loops: clang took minutes for hundreds of sums side by side."""
    pool = attributes(kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    op = Operations(OPS).define("max_pool", (TensorType((1, 32, 56, 56), dtype),), pool)
    for kernel in candidates(op, SPEC):
        found = list(stores(emit(kernel, SPEC).text))
        assert found
        for line, times in found:
            assert times * SPEC.lanes <= MAX_NUMBERS, line


def stores(text: str) -> Iterator[tuple[str, int]]:
    """Lines that store, and how often each is repeated by unrolling, lanes not counted."""
    around: list[int] = []  # how often each open block is repeated
    before = ""
    for line in map(str.strip, text.splitlines()):
        trips = int(line.split(" < ")[1].split(";")[0]) if line.startswith("for (") else 1
        around += [trips if before == "#pragma unroll" else 1] * line.count("{")
        if any(sign in line for sign in (" = ", " += ")) and not line.startswith(("for", "{", "const")):
            yield line, prod(around)
        del around[len(around) - line.count("}") :]
        before = line


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_copies_of_narrow_numbers_convert_none(dtype: DType) -> None:
    """Hundreds of conversions there and back took clang seconds, for a transposition."""
    op = Operations(OPS).define("transpose", (TensorType((1, 356, 9, 9), dtype),), attributes(perm=(0, 1, 3, 2)))
    for kernel in candidates(op, SPEC):
        assert not [line for line, _ in stores(emit(kernel, SPEC).text) if "(from_" in line or "(to_" in line]


def test_texts_are_short() -> None:
    for op in (matmul(256), conv(), softmax()):
        for kernel in candidates(op, SPEC):
            assert len(emit(kernel, SPEC).text.splitlines()) <= 150
