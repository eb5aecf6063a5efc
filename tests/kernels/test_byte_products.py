"""Products of bytes, summed in int32: exact, by AVX512-VNNI and AVX2 where the machine has them, else emulated."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cpus import runnable
from kernel_harness import (
    SPEC,
    Built,
    Runner,
    aligned,
    check,
    check_compiled,
    compile_all,
    library,
    operation,
)

from rammer import config
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.instruction import Instruction
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import Array, DType, TensorType, pack
from rammer.ir.verify.kernel import prove, proven
from rammer.kernels import candidates
from rammer.kernels.vectors.matrix_unit import MatrixUnit, units_of
from rammer.vdevice.cpu.codegen import unit_text
from rammer.vdevice.cpu.codegen.compile import arch_flags
from rammer.vdevice.cpu.codegen.emit import emit, prelude, translation_unit
from rammer.vdevice.cpu.codegen.vnni import AVX2, AVX512, ROWS, VNNI
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.host import ARCHES, host
from rammer.vdevice.toolchain import c_compiler

BYTES = replace(SPEC, arch=runnable("x86-64-avx512vnni"), instructions=VNNI)
PAIRS = replace(SPEC, arch=runnable("x86-64-avx2"), lanes=8, registers=16, instructions=AVX2)
PAIRS_512 = replace(SPEC, arch=runnable("x86-64-avx512"), instructions=AVX512)
SPECS = {"vnni": BYTES, "avx512": PAIRS_512, "avx2": PAIRS}
FAR = replace(BYTES, memory=(MemoryLevel("L2", 1 << 10, "veu", 250.0),), scratch_bytes=6 << 10)  # strips of rows
ELSEWHERE = [a.name for a in ARCHES.values() if host().runs(a)][-1]  # the plainest CPU of this machine's kind
VPDPBUSD = re.compile(  # of 512 bits, and not the form that saturates
    rb"\x62[%b][%b][\x40\x48]\x50" % tuple(re.escape(bytes(range(*r))) for r in ((2, 256, 16), (5, 128, 8)))
)


def t(*shape: int, dtype: DType) -> TensorType:
    return TensorType(shape, dtype)


def matmul(x: tuple[int, ...], w: tuple[int, ...]) -> Operation:
    types = t(*x, dtype=DType.U8), t(*w, dtype=DType.I8)
    return operation("matmul", *types, static=("b",), dtype=DType.I32)


def conv(n: int, c: int, o: int, h: int, w: int) -> Operation:
    types = t(n, c, h, w, dtype=DType.U8), t(o, c, 1, 1, dtype=DType.I8)
    return operation("conv", *types, static=("w",), dtype=DType.I32)


CASES = {
    "whole blocks": matmul((64, 64), (64, 96)),
    "odd": matmul((75, 129), (129, 50)),
    "batch": matmul((3, 75, 129), (129, 50)),
    "batch of weights": matmul((3, 75, 129), (3, 129, 50)),
    "few": matmul((3, 5), (5, 17)),
    "one row": matmul((1, 300), (300, 200)),
    "last panel": matmul((200, 64), (64, 114)),
    "conv": conv(1, 64, 64, 8, 8),
    "conv-odd": conv(3, 37, 50, 5, 9),
    "conv-few": conv(2, 16, 16, 4, 4),
}


def on_unit(op: Operation, spec: VDeviceSpec = BYTES) -> list[RKernel]:
    return [k for k in candidates(op, spec) if ("_u8xi8_" in k.name or "_i8xu8_" in k.name)]


def any_bytes(op: Operation) -> dict[str, Array]:
    """All values that there are, the extremes often."""
    rng = np.random.default_rng(7)
    found = {}
    for name, kind in op.expr.inputs:
        ends = np.iinfo(kind.dtype.value)
        value = rng.integers(ends.min, ends.max, kind.shape, endpoint=True)
        found[name] = np.where(rng.random(kind.shape) < 0.3, ends.max, value).astype(kind.dtype.numpy)
    return found


@pytest.fixture(scope="module", params=SPECS)
def built(request: pytest.FixtureRequest) -> Built:
    spec = SPECS[request.param]
    cases = {name: (op, on_unit(op, spec)) for name, op in CASES.items()}
    assert all(kernels for _, kernels in cases.values())
    return compile_all(cases, spec)


@pytest.mark.parametrize("name", CASES)
def test_every_product_has_its_value(built: Built, name: str) -> None:
    check_compiled(built, name)
    op, kernels = built.kernels[name]
    inputs = any_bytes(op)
    (wanted,) = evaluate_expr(op.expr, inputs)
    for kernel, symbol in kernels:
        assert not prove(kernel)
        (got,) = Runner(kernel, built.library, symbol, inputs).run()
        np.testing.assert_array_equal(got, wanted, err_msg=kernel.name)


@pytest.mark.parametrize("name", ["odd", "conv-odd"])
def test_rows_pass_by_panels_of_weights_that_come_from_far(name: str) -> None:
    kernels = on_unit(CASES[name], FAR)
    assert kernels and all(k.schedule not in {n.schedule for n in on_unit(CASES[name])} for k in kernels)
    findings = [proven(k)[1] for k in kernels]  # the last strip of a task holds rows of the next one
    assert not any(findings)
    check(CASES[name], kernels, spec=FAR)


PRODUCTS = [(spec, unit, i) for spec in SPECS.values() for unit in units_of(spec) for i in unit.products]
EXECUTE = """
void run(int32_t *sums, const uint8_t *from, uint8_t *to, const int8_t *w, long step, long next, long rows, long k) {{
  rammer_{copy}(to, from, step, next, rows, k); rammer_{name}(sums, {operands}, (k + 3) / 4);
}}
"""


@pytest.mark.parametrize("emulated", [False, True], ids=["here", "emulated"])
@pytest.mark.parametrize(
    ("spec", "unit", "product"), PRODUCTS, ids=lambda i: getattr(i, "name", "").replace("test", "")
)
def test_the_text_is_what_instructions_say(
    spec: VDeviceSpec, unit: MatrixUnit, product: Instruction, emulated: bool
) -> None:
    """Of bytes wherever they are; sums wrap around, where a form that saturates would stop."""
    operands = "w, to" if unit.transposed else "to, w"
    arch = f"{spec.arch.partition('@')[0]}@{ELSEWHERE}" if emulated else spec.arch
    lib = library(prelude(spec) + EXECUTE.format(copy=unit.copy.name, name=product.name, operands=operands), arch)
    rng, beside = np.random.default_rng(2), spec.lanes
    rows, columns = product.extent("row"), product.extent("column")
    count, others = (columns, rows) if unit.transposed else (rows, columns)
    for terms, apart in ((4, False), (67, False), (67, True), (70_000, False)):
        kinds = dict(product.types({"row": rows, "column": columns, "term": terms}))
        x = rng.integers(0, 256, (count, terms)).astype(np.uint8)
        y = rng.integers(-128, 128, (terms, others)).astype(np.int8)
        if terms == 70_000:
            x[:], y[:] = 255, 127
            y[:, ::2] = -128
        a, b = (y.T, x.T) if unit.transposed else (x, y)
        packed = [pack(value, kinds[name].layout) for name, value in (("a", a), ("b", b))]  # type: ignore[arg-type]
        given, steps = x, (terms, 1 if unit.transposed else beside)
        if apart and unit.transposed:  # places lie beside each other
            given, steps = np.ascontiguousarray(x.T), (1, count)
        elif apart:  # so many terms of a row, then those of the next row
            blocks = np.pad(x, ((0, 0), (0, -terms % beside))).reshape(count, -1, beside)
            given, steps = np.ascontiguousarray(blocks.swapaxes(0, 1)), (beside, beside * count)
        made = aligned(np.full(packed[unit.transposed].size, 77, np.uint8))
        sums = aligned(np.zeros(kinds["sums"].nbytes // 4, np.int32))
        held = (sums, given, made, aligned(packed[not unit.transposed]))
        lib.run(*(ctypes.c_void_p(i.ctypes.data) for i in held), *map(ctypes.c_long, (*steps, count, terms)))
        if rows % ROWS == 0 or unit.transposed:
            np.testing.assert_array_equal(made, packed[unit.transposed].ravel())
        wanted = a.astype(np.int32) @ b.astype(np.int32)
        np.testing.assert_array_equal(sums[: rows * columns].reshape(rows, columns), wanted)


REFUSED = {
    "few columns": matmul((64, 64), (64, 12)),
    "fewer places than a vector has": conv(2, 16, 16, 3, 5),
    "weights that are no constant": operation(
        "matmul", t(64, 64, dtype=DType.U8), t(64, 64, dtype=DType.I8), dtype=DType.I32
    ),
    "two signed operands": operation(
        "matmul", t(64, 64, dtype=DType.I8), t(64, 64, dtype=DType.I8), static=("b",), dtype=DType.I32
    ),
    "a window": operation(
        "conv",
        t(1, 32, 8, 8, dtype=DType.U8),
        t(32, 32, 3, 3, dtype=DType.I8),
        static=("w",),
        dtype=DType.I32,
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_does_not_suit_the_instruction_is_left_to_vectors(why: str) -> None:
    assert on_unit(REFUSED[why]) == []
    check(REFUSED[why], candidates(REFUSED[why], BYTES)[:1], spec=BYTES)


def test_without_the_instruction_bytes_are_multiplied_by_vectors() -> None:
    for name in ("odd", "conv-odd"):
        assert on_unit(CASES[name], SPEC) == []
        check(CASES[name], candidates(CASES[name], SPEC))


@pytest.mark.parametrize(("arch", "used"), [("x86-64-avx512vnni", True), ("x86-64-avx512vnni@x86-64-avx512", False)])
def test_the_instruction_is_used_where_the_target_has_it(arch: str, used: bool) -> None:
    (kernel, *_) = on_unit(CASES["odd"])
    with config.override(RAMMER_CC=None):
        compiler = c_compiler()
    text = translation_unit([emit(kernel, BYTES)], BYTES)
    made = compiler.compile_shared(text, arch_flags(arch, compiler.family, host()))
    assert bool(VPDPBUSD.search(made)) == used


@pytest.mark.parametrize(("source", "target"), [(DType.I32, DType.U8), (DType.I32, DType.I16), (DType.U8, DType.U8)])
def test_small_integers_are_stored_by_vectors(source: DType, target: DType) -> None:
    """Also those of a last piece; numbers that are not held wrap around, as they do one by one."""
    kind = "transpose" if source is target else "cast"
    attrs = {"perm": (1, 0, 2)} if source is target else {"dtype": target}
    op = operation(kind, t(3, 7, 75, dtype=source), **attrs)
    kernels = candidates(op, BYTES)
    assert all("VECTOR(vb, out" in emit(k, BYTES).text or "VECTOR(vs, out" in emit(k, BYTES).text for k in kernels)
    check(op, kernels, spec=BYTES)
    inputs = {"x": np.random.default_rng(3).integers(-(2**31), 2**31, (3, 7, 75)).astype(source.numpy)}
    (wanted,) = evaluate_expr(op.expr, inputs)
    built = compile_all({"only": (op, kernels)}, BYTES)
    for kernel, symbol in built.kernels["only"][1]:
        np.testing.assert_array_equal(Runner(kernel, built.library, symbol, inputs).run()[0], wanted)


@pytest.mark.parametrize(("kind", "dtype"), [("and", DType.BOOL), ("max", DType.I8), ("less", DType.U8)])
def test_bytes_are_computed_as_bytes(kind: str, dtype: DType) -> None:
    """Not as int32: neighbouring vectors are stored as one."""
    op = operation(kind, t(5, 133, dtype=dtype), t(5, 133, dtype=dtype))
    kernels = candidates(op, BYTES)
    assert all("rammer_bytes[32]" in emit(k, BYTES).text for k in kernels)
    check(op, kernels, spec=BYTES)


STOPS = """
INLINE void add_products(vn *sums, vn a, vn b) {  /* as vpmaddubsw: pairs that no int16 holds are cut off */
  for (long c = 0; c < 16; c++) for (int k = 0; k < 4; k += 2) {
    int pair = 0;
    for (int n = k; n < k + 2; n++) pair += (int)(a[c] >> (8 * n) & 255) * (int8_t)(b[c] >> (8 * n));
    (*sums)[c] += (unsigned)imax(-32768, imin(pair, 32767));
  }
}
#define add_products exact_products
"""


def test_a_trial_sees_sums_that_are_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path))
    device = CpuVDevice(device=2, arch=BYTES.arch)
    kernels = [k for name in ("odd", "conv-odd") for k in on_unit(CASES[name], device.spec)]
    assert len({k.operation for k in kernels}) == 2
    assert not device.rkernels_wrong(kernels)
    text = unit_text.BYTES.replace("#if defined(__AVX512VNNI__)", STOPS + "#if defined(__AVX512VNNI__)", 1)
    text = text.replace("#define EACH(", "#undef add_products\n#define EACH(", 1)
    monkeypatch.setattr("rammer.vdevice.cpu.codegen.emit.TEXTS", ((VNNI, text),))
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path / "again"))
    assert set(CpuVDevice(device=2, arch=BYTES.arch).rkernels_wrong(kernels)) == set(kernels)
