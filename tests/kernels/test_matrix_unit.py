"""Products in bf16 parts: as exact as float32, on the matrix unit where the machine has one, else emulated."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from cpus import runnable
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from kernel_harness import (
    SPEC,
    Built,
    Runner,
    check,
    check_compiled,
    compile_all,
    library,
    operation,
    random_inputs,
)

from rammer import config
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.expr import Load, Stage, TensorExpr
from rammer.ir.index import var
from rammer.ir.instruction import Instruction
from rammer.ir.kernel import RKernel
from rammer.ir.operator import OpDef, Operation, Operations
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import Array, Digit, DType, Layout, TensorType, channel_blocked, pack, unpack
from rammer.ir.verify.kernel import prove, proven
from rammer.kernels import candidates
from rammer.kernels.vectors.matrix_unit import units_of
from rammer.vdevice.cpu.codegen import amx, dots
from rammer.vdevice.cpu.codegen.compile import arch_flags
from rammer.vdevice.cpu.codegen.emit import emit, prelude, translation_unit
from rammer.vdevice.cpu.host import ARCHES, host
from rammer.vdevice.image.placement import arrange
from rammer.vdevice.toolchain import c_compiler

# so slow that every product is worth waking the unit
UNIT_SPEC = replace(SPEC, arch=runnable("x86-64-amx"), instructions=amx.AMX, clock_ghz=1 / 64)
BLOCKED = channel_blocked(4, 16)
FAR_SPEC = replace(UNIT_SPEC, memory=(MemoryLevel("L2", 32 << 10, "veu", 250.0),))  # weights do not stay near
STRIP_SPEC = replace(FAR_SPEC, scratch_bytes=48 << 10)  # nor do all rows of a task
# Nor all terms of its rows, but the sums of its columns do; what is far comes as slowly as such a unit multiplies.
SHARED = MemoryLevel("L3", 32 << 20, "device", 0.1)
PIECE_SPEC = replace(UNIT_SPEC, memory=(MemoryLevel("L2", 1 << 20, "veu", 250.0), SHARED), scratch_bytes=512 << 10)
# The same, but weights lie encoded: nothing encodes them on the way.
LYING_SPEC = replace(PIECE_SPEC, instructions=tuple(i for i in amx.AMX if not i.encodes))
# rounded operands: of vectors' instructions, and of the unit's
DOTS = replace(UNIT_SPEC, arch=runnable("x86-64-avx512bf16"), instructions=dots.AVX512_BF16, precision="bf16")
ROUNDED = replace(UNIT_SPEC, precision="bf16")
SHORT_SPEC = replace(UNIT_SPEC, precision="tf32")  # of two parts
ELSEWHERE = [a.name for a in ARCHES.values() if host().runs(a)][-1]  # the plainest CPU of this machine's kind
VDPBF16PS = re.compile(  # of 512 bits
    rb"\x62[%b][%b][\x40\x48]\x52" % (bytes(n << 4 | 2 for n in range(16)), bytes(n << 3 | 6 for n in range(16)))
)
TDPBF16PS = re.compile(rb"\xc4\xe2[\x42\x4a]\x5c")  # a product of tiles, the second one of which is 6 or 7


def t(*shape: int, layout: Layout | None = None) -> TensorType:
    return TensorType(shape, layout=layout)


def conv(n: int, c: int, o: int, h: int, w: int) -> Operation:
    return operation("conv", t(n, c, h, w, layout=BLOCKED), t(o, c, 1, 1), static=("w",), out_layout=BLOCKED)


def cell(batch: int, units: int) -> Operation:
    types = t(batch, 4, units), t(batch, units), t(batch, units), t(4, units, units)
    return operation("lstm_cell", *types, static=("r",))


def on_unit(op: Operation, spec: VDeviceSpec = UNIT_SPEC) -> list[RKernel]:
    return [k for k in candidates(op, spec) if f"_{amx.BF16X3}_" in k.name]


CASES = {
    "matmul": operation("matmul", t(64, 96), t(96, 128), static=("b",)),
    "matmul-tail": operation("matmul", t(200, 64), t(64, 160), static=("b",)),
    "matmul-wide": operation("matmul", t(14, 32), t(32, 256), static=("b",)),
    "matmul-short": operation("matmul", t(47, 64), t(64, 128), static=("b",)),
    "conv-bias": operation(
        "conv",
        t(1, 32, 8, 8, layout=BLOCKED),
        t(128, 32, 1, 1),
        t(128),
        static=("w", "b"),
        out_layout=BLOCKED,
    ),
    "conv": conv(1, 64, 128, 8, 8),
    "conv-batch": conv(3, 64, 128, 4, 8),
    "conv-tail": conv(1, 96, 192, 5, 9),
    "cell": cell(16, 128),
    "cell-32": cell(31, 64),
}


@pytest.fixture(scope="module")
def built() -> Built:
    return compile_all({name: (op, on_unit(op)) for name, op in CASES.items()}, UNIT_SPEC)


@pytest.mark.parametrize("name", CASES)
def test_every_product_has_its_value(built: Built, name: str) -> None:
    check_compiled(built, name)


@pytest.mark.parametrize("spec", [FAR_SPEC, STRIP_SPEC], ids=["far", "strips"])
@pytest.mark.parametrize("name", ["matmul-tail", "conv-batch", "conv-tail"])
def test_rows_pass_by_panels_of_weights_that_come_from_far(name: str, spec: VDeviceSpec) -> None:
    op = CASES[name]
    kernels = on_unit(op, spec)
    assert kernels and all(k.schedule not in {n.schedule for n in on_unit(op)} for k in kernels)
    check(op, kernels, spec=spec)


TALL, WIDE = PIECES = (
    operation("matmul", t(96, 1024), t(1024, 256), static=("b",)),
    operation("matmul", t(75, 1280), t(1280, 192), static=("b",)),
)


@pytest.mark.parametrize(
    ("op", "spec", "loops"),
    [
        (TALL, LYING_SPEC, "j/128t k/512s j/32s i/32s"),
        (TALL, PIECE_SPEC, "j/128t k/512s j/32s i/32s"),
        (WIDE, LYING_SPEC, "j/128t k/640s j/64s i/16s"),
        (WIDE, PIECE_SPEC, "j/128t k/320s j/64s i/16s"),  # a panel of columns is in scratch, too
    ],
    ids=["tall blocks", "tall blocks, encoded on the way", "wide blocks", "wide blocks, encoded on the way"],
)
def test_sums_wait_for_the_next_piece_of_their_terms(op: Operation, spec: VDeviceSpec, loops: str) -> None:
    kernels = [k for k in on_unit(op, spec) if k.schedule.startswith(loops)]
    assert kernels and proven(kernels[0])[1] == ()
    check(op, kernels, spec=spec)


@pytest.mark.parametrize("spec", [ROUNDED, DOTS], ids=["AMX", "AVX512-BF16"])
def test_so_do_sums_of_rounded_operands(spec: VDeviceSpec) -> None:
    spec = replace(spec, memory=(MemoryLevel("L2", 256 << 10, "veu", 250.0), SHARED), scratch_bytes=128 << 10)
    assert any(" k/256s " in k.schedule or " k/512s " in k.schedule for k in candidates(TALL, spec))
    check_rounded(TALL, spec)


def on_the_way(kernel: RKernel) -> bool:
    """Whether weights lie as float32, and are encoded as rows pass by."""
    ((_, layout),) = kernel.packing
    assert (layout.encoding is None) == ("_columns;" in kernel.schedule)
    return layout.encoding is None


ROWS = {
    "16 rows": (operation("matmul", t(16, 256), t(256, 128), static=("b",)), False),
    "75 rows": (operation("matmul", t(75, 256), t(256, 128), static=("b",)), False),
    "401 rows": (operation("matmul", t(401, 256), t(256, 128), static=("b",)), True),
    "of each of three images": (conv(3, 64, 128, 20, 21), True),
}


@pytest.mark.parametrize("case", ROWS)
def test_weights_from_far_are_encoded_on_the_way_by_many_rows(case: str) -> None:
    """Where memory is no slower than the unit: it takes as long as multiplying some rows."""
    op, many = ROWS[case]
    far = replace(FAR_SPEC, scratch_bytes=1 << 20)
    kernels = [k for k in on_unit(op, far) if k.num_rtasks == 2]
    assert [on_the_way(k) for k in kernels] == [many]
    check(op, kernels, spec=far)
    assert not any(on_the_way(k) for k in on_unit(op, UNIT_SPEC))  # where they stay near


def test_tasks_by_columns_fetch_weights_once_that_come_from_far() -> None:
    op = operation("matmul", t(256, 256), t(256, 1024), static=("b",))
    near = replace(PIECE_SPEC, memory=(replace(PIECE_SPEC.memory[0], nbytes=2 << 20), SHARED))
    by_rows, by_columns = (on_unit(op, spec)[0].schedule for spec in (near, PIECE_SPEC))
    assert by_rows.startswith("i/128t") and by_columns.startswith("j/512t")


def test_a_last_task_copies_no_strip_that_lies_past_the_last_row() -> None:
    """800 rows as 416 and 384: of the second task's strips of 96 rows the fifth is empty."""
    op = operation("matmul", t(800, 64), t(64, 128), static=("b",))
    kernel = next(k for k in on_unit(op, STRIP_SPEC) if "i/416t i/96s" in k.schedule)
    assert proven(kernel)[1] == ()
    check(op, [kernel], spec=STRIP_SPEC)


@pytest.mark.parametrize("spread", [0.0, 12.0])
@pytest.mark.parametrize("name", ["matmul-tail", "matmul-wide", "conv-tail", "cell"])
def test_emulated_products_are_the_units_bit_by_bit(built: Built, name: str, spread: float) -> None:
    """On a machine without the unit: what one emulation computes, another one does. The rest of a cell may round."""
    op, kernels = built.kernels[name]
    rng = np.random.default_rng(1)
    inputs = {
        name: x * (10.0 ** rng.uniform(-spread, spread, x.shape)).astype(np.float32)
        for name, x in random_inputs(op).items()
    }
    for kernel, symbol in kernels:
        text = translation_unit([emit(kernel, UNIT_SPEC)], UNIT_SPEC)
        emulated = Runner(kernel, library(text, f"x86-64-amx@{ELSEWHERE}"), symbol, inputs).run()
        for got, want in zip(emulated, Runner(kernel, built.library, symbol, inputs).run(), strict=True):
            atol = 1e-5 * np.abs(want).max() if name == "cell" else 0
            np.testing.assert_allclose(got, want, rtol=0, atol=atol)


def errors(op: Operation, kernels: Sequence[RKernel], spec: VDeviceSpec, inputs: dict[str, Array]) -> list[float]:
    """Largest error of each kernel, relative to the sum of the products' absolute values."""
    found = []
    lib = library(translation_unit([emit(k, spec) for k in kernels], spec), spec.arch)
    x, w = (inputs[name].astype(np.float64) for name, _ in op.expr.inputs)
    for kernel in kernels:
        (got,) = Runner(kernel, lib, emit(kernel, spec).symbol, inputs).run()
        found.append(float((np.abs(got - x @ w) / (np.abs(x) @ np.abs(w))).max()))
    return found


def spread_out(spread: float) -> tuple[Operation, dict[str, Array]]:
    """A product, and operands of sizes that lie so many orders of magnitude to either side."""
    op = operation("matmul", t(64, 512), t(512, 128), static=("b",))
    rng = np.random.default_rng(3)
    return op, {
        name: (rng.standard_normal(kind.shape) * 10.0 ** rng.uniform(-spread, spread, kind.shape)).astype(np.float32)
        for name, kind in op.expr.inputs
    }


@pytest.mark.parametrize("spread", [0.0, 4.0, 12.0])
def test_parts_are_as_exact_as_float32(spread: float) -> None:
    """Also where numbers of very different size meet: nothing is scaled, and no digit of an operand is lost."""
    op, inputs = spread_out(spread)
    parts = errors(op, on_unit(op), UNIT_SPEC, inputs)
    plain = errors(op, candidates(op, SPEC), SPEC, inputs)
    assert parts and max(parts) <= 1.5 * min(plain)
    assert max(parts) < 2e-6


@pytest.mark.parametrize("spread", [0.0, 4.0, 12.0])
def test_two_parts_are_more_exact_than_tf32(spread: float) -> None:
    """Worst of all products: 2^-16 of each operand is left out, and so is the product of what is left of both."""
    op, inputs = spread_out(spread)
    short = [k for k in candidates(op, SHORT_SPEC) if f"_{amx.BF16X2}_" in k.name]
    found = errors(op, short, SHORT_SPEC, inputs)
    assert found and max(found) < 3 * 2.0**-16
    assert min(found) > max(errors(op, on_unit(op), UNIT_SPEC, inputs))


@given(arrays(np.float32, amx.BF16X3.block, elements=st.floats(-(2.0**120), 2.0**120, width=32, allow_subnormal=False)))
def test_three_parts_hold_a_float32_exactly(values: Array) -> None:
    values = np.where(np.abs(values) < 2.0**-90, np.float32(0), values)  # below, the last parts are no normal numbers
    layout = Layout((Digit(0),), amx.BF16X3)
    packed = pack(values, layout)
    assert packed.nbytes == TensorType(values.shape, layout=layout).nbytes == values.size * 6
    np.testing.assert_array_equal(unpack(packed, layout, values.shape), values)


def test_constants_are_arranged_in_parts_as_they_are_packed() -> None:
    (kernel, *_) = on_unit(CASES["matmul"])
    ((_, layout),) = kernel.packing
    value = np.random.default_rng(0).standard_normal((96, 128)).astype(np.float32)
    out = np.zeros((value.size // amx.BF16X3.block, amx.BF16X3.parts, amx.BF16X3.block), DType.BF16.numpy)
    arrange(value, layout, out)
    np.testing.assert_array_equal(out.view(np.uint16), pack(value, layout).view(np.uint16))
    np.testing.assert_array_equal(unpack(out, layout, value.shape), value)


@pytest.mark.parametrize("depth", [32, 96])
@pytest.mark.parametrize("copy", [i for i in amx.AMX if i.encodes], ids=lambda i: i.name)
def test_what_lies_in_order_is_encoded_as_it_lies(copy: Instruction, depth: int) -> None:
    spec, width = UNIT_SPEC, copy.extent("row")
    (_, made), (_, given) = copy.types({"row": width, "term": depth})
    assert made.layout is not None and given.layout is not None
    text = f"void encode(bf16 *to, const float *x) {{ rammer_{copy.name}(to, x, {width}, {depth}); }}"
    value = np.random.default_rng(4).standard_normal((width, depth)).astype(np.float32)
    out, source = np.empty_like(pack(value, made.layout)), pack(value, given.layout)
    library(prelude(spec) + text, spec.arch).encode(*(ctypes.c_void_p(i.ctypes.data) for i in (out, source)))
    np.testing.assert_array_equal(unpack(out, made.layout, value.shape), value)


EXECUTE = """
void encode(bf16 *to, const float *from, long depth, long rows) {{
  rammer_unit_begin(); rammer_{copy}(to, from, depth, 16, rows, depth); rammer_unit_end();
}}
void multiply(float *sums, const bf16 *a, const bf16 *b) {{
  rammer_unit_begin();
  rammer_begin_{form}(block, sums); rammer_add_{name}(block, a, b, 1); rammer_end_{form}(block, sums);
  rammer_unit_end();
}}
void go_on(float *sums, const bf16 *a, const bf16 *b) {{
  rammer_unit_begin();
  rammer_resume_{form}(block, sums); rammer_add_{name}(block, a, b, 1); rammer_end_{form}(block, sums);
  rammer_unit_end();
}}
"""


@pytest.mark.parametrize(
    "spec", [UNIT_SPEC, SHORT_SPEC, ROUNDED, DOTS], ids=["AMX", "AMX tf32", "AMX bf16", "AVX512-BF16"]
)
def test_the_text_is_what_instructions_say(spec: VDeviceSpec) -> None:
    """Encodings as `pack` has them, or of the same sum; products as the meaning says, of operands that it rounds."""
    unit = units_of(spec)[0]
    assert unit.products[0].precision == spec.precision
    rng = np.random.default_rng(2)
    for product in unit.products:
        (_, sums), (_, rows), (_, columns) = product.tensors
        form = "x".join(map(str, sums.shape))
        text = prelude(spec) + EXECUTE.format(copy=unit.copy.name, name=product.name, form=form)
        lib = library(text, spec.arch)
        x, y = (rng.standard_normal(kind.shape).astype(np.float32) for kind in (rows, columns))
        assert rows.layout is not None and columns.layout is not None
        a, b = pack(x, rows.layout), pack(y, columns.layout)
        made = np.empty_like(a)
        lib.encode(*(ctypes.c_void_p(i.ctypes.data) for i in (made, x)), *map(ctypes.c_long, x.shape[::-1]))
        if rows.layout.encoding == amx.BF16X3:  # digits are cut off, as none is lost
            np.testing.assert_array_equal(unpack(made, rows.layout, x.shape), x)
            sizes = [np.abs(part).max() for part in made.reshape(-1, 3, 512).astype(np.float32).swapaxes(0, 1)]
            assert sizes[1] < sizes[0] / 2**7 and sizes[2] < sizes[0] / 2**15
        else:
            np.testing.assert_array_equal(made.view(np.uint16), a.view(np.uint16))
        out = np.empty(sums.shape, np.float32)
        lib.multiply(*(ctypes.c_void_p(i.ctypes.data) for i in (out, made, b)))
        held = {"a": unpack(made, rows.layout, x.shape), "b": unpack(b, columns.layout, y.shape)}
        (wanted,) = evaluate_expr(product.meaning, held)
        exact = 1e-5 if spec is SHORT_SPEC else 1e-6  # of two parts the product of the second ones is left out
        np.testing.assert_allclose(out, wanted, rtol=0, atol=exact * np.abs(wanted).max())
        out += 7
        lib.go_on(*(ctypes.c_void_p(i.ctypes.data) for i in (out, made, b)))
        np.testing.assert_allclose(out, 2 * wanted + 7, rtol=0, atol=3 * exact * np.abs(wanted).max())


SHORT = {
    "75 rows, 48 columns": operation("matmul", t(75, 96), t(96, 144), static=("b",)),
    "7 rows": operation("matmul", t(7, 64), t(64, 160), static=("b",)),
    "columns in vectors": operation("matmul", t(40, 128), t(128, 80), static=("b",)),
}


def rounded(x: Array) -> Array:
    return x.astype(DType.BF16.numpy).astype(np.float32)


@pytest.mark.parametrize("spec", [ROUNDED, DOTS], ids=["AMX", "AVX512-BF16"])
@pytest.mark.parametrize("name", ["matmul-tail", "matmul-wide", "conv-batch", "cell"])
def test_products_of_rounded_operands(name: str, spec: VDeviceSpec) -> None:
    check_rounded(CASES[name], spec, cell=name == "cell")


@pytest.mark.parametrize("name", SHORT)
def test_blocks_of_eight_rows_suit_what_those_of_sixteen_do_not(name: str) -> None:
    assert not any(f"_{amx.BF16}_" in k.name for k in candidates(SHORT[name], ROUNDED))
    check_rounded(SHORT[name], DOTS)


def check_rounded(op: Operation, spec: VDeviceSpec, *, cell: bool = False) -> None:
    """Of operands that bf16 numbers hold products are those of float32, of others as exact as these."""
    kernels = [k for k in candidates(op, spec) if f"_{amx.BF16}_" in k.name]
    assert kernels and not any(prove(k) for k in kernels)
    lib = library(translation_unit([emit(k, spec) for k in kernels], spec), spec.arch)
    plain = random_inputs(op)
    exact = {n: rounded(x) for n, x in plain.items()}
    for kernel in kernels:
        both = (exact, 0.0, 2e-5), (plain, 1e-4, 1e-2)
        for inputs, low, high in both[: 1 if cell else 2]:  # cells amplify
            got, wanted = Runner(kernel, lib, emit(kernel, spec).symbol, inputs).run(), evaluate_expr(op.expr, inputs)
            error = max(np.abs(g - w).max() / np.abs(w).max() for g, w in zip(got, wanted, strict=True))
            assert low <= error < high, kernel.name


REFUSED = {
    "too few rows": operation("matmul", t(8, 64), t(64, 128), static=("b",)),
    "rows that fill no blocks": operation("matmul", t(33, 64), t(64, 128), static=("b",)),
    "too few columns": operation("matmul", t(64, 64), t(64, 32), static=("b",)),
    "terms that fill no block": operation("matmul", t(64, 72), t(72, 128), static=("b",)),
    "columns that fill no block": operation("matmul", t(64, 64), t(64, 136), static=("b",)),
    "weights that are no constant": operation("matmul", t(64, 64), t(64, 128)),
    "weights that do not stay near from step to step": cell(16, 512),
    "rows too long for scratch": operation("matmul", t(64, 8192), t(8192, 128), static=("b",)),
    "padding": operation(
        "conv", t(1, 32, 8, 8, layout=BLOCKED), t(128, 32, 1, 1), static=("w",), out_layout=BLOCKED, pads=(1, 1, 1, 1)
    ),
    "rows that are apart": operation(
        "conv", t(1, 32, 16, 16, layout=BLOCKED), t(128, 32, 1, 1), static=("w",), out_layout=BLOCKED, strides=(2, 2)
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_does_not_suit_the_unit_is_left_to_vectors(why: str) -> None:
    assert on_unit(REFUSED[why]) == []
    check(REFUSED[why], candidates(REFUSED[why], UNIT_SPEC)[:1], spec=UNIT_SPEC)


@pytest.mark.parametrize(
    ("left", "right"), [("clear", "store"), ("split_rows", "SQUARE"), ("unit_begin", "add_32x32"), ("ROWS", "PART")]
)
def test_operands_may_have_the_names_of_the_units_text(left: str, right: str) -> None:
    i, j, k = var("i"), var("j"), var("k")

    def express(a: TensorType, b: TensorType) -> TensorExpr:
        stage = Stage("o", (("i", 64), ("j", 128)), Load(left, (i, k)) * Load(right, (k, j)), (("k", 64),))
        return TensorExpr("product", ((left, a), (right, b)), (stage,), (("o", t(64, 128)),))

    made = Operations({"product": OpDef("product", express)})
    op = made.define("product", (t(64, 64), t(64, 128)))
    op = made.retype(op, op.inputs, op.outputs, (False, True))
    assert on_unit(op)
    check(op, on_unit(op), spec=UNIT_SPEC)


def test_without_a_unit_nothing_is_offered() -> None:
    assert all(on_unit(op, SPEC) == [] for op in CASES.values())


def test_rows_past_the_edge_are_not_read(built: Built) -> None:
    """Beyond the last row lies memory that must not be touched: here, NaN that would show."""
    op, ((kernel, symbol), *_) = built.kernels["matmul-tail"]
    inputs = random_inputs(op)
    runner = Runner(kernel, built.library, symbol, inputs)
    longer = np.full(runner.arrays[0].size + 64 * 64, np.nan, np.float32)
    longer[: runner.arrays[0].size] = runner.arrays[0]
    runner.pointers[1] = longer.ctypes.data
    (got,) = runner.run()
    assert np.isfinite(got).all()


@pytest.mark.parametrize(
    ("spec", "arch", "code"),
    [
        (UNIT_SPEC, "x86-64-amx", TDPBF16PS),
        (UNIT_SPEC, "x86-64-amx@x86-64-avx512", None),
        (DOTS, "x86-64-avx512bf16", VDPBF16PS),
        (DOTS, "x86-64-avx512bf16@x86-64-avx512", None),
    ],
)
def test_the_unit_is_used_where_the_target_has_it(spec: VDeviceSpec, arch: str, code: re.Pattern[bytes] | None) -> None:
    (kernel, *_) = candidates(CASES["matmul"], spec)
    with config.override(RAMMER_CC=None):
        compiler = c_compiler()
    text = translation_unit([emit(kernel, spec)], spec)
    made = compiler.compile_shared(text, arch_flags(arch, compiler.family, host()))
    assert [p for p in (TDPBF16PS, VDPBF16PS) if p.search(made)] == ([code] if code else [])
