"""Attention by products of bf16, its operands rounded in scratch: at odd sizes, proven, as near as rounding allows."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from attentions import Attention, drawn
from cpus import runnable
from kernel_harness import SLOW_SPEC, SPEC, Runner, check_boxes, compile_all, library, random_inputs
from rammer_testing.mutate.tiles import mutants
from stages import operations

from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import Array, DType, pack
from rammer.ir.tile import TileProgram
from rammer.ir.verify.kernel import proven
from rammer.kernels import candidates
from rammer.vdevice.cpu.codegen import amx, dots
from rammer.vdevice.cpu.codegen.emit import prelude
from rammer.vdevice.cpu.host import ARCHES, host

DOTS = replace(
    SLOW_SPEC, arch=runnable("x86-64-avx512bf16"), instructions=dots.AVX512_BF16, precision="bf16", num_veus=2
)
AMX = replace(DOTS, arch=runnable("x86-64-amx"), instructions=amx.AMX)
both = pytest.mark.parametrize("spec", [DOTS, AMX], ids=["vectors", "matrices"])
CASES = {
    "encoder": Attention(1, 2, 75, 75, 64, 64),
    "ViT": Attention(1, 3, 197, 197, 64, 64),
    "Swin": Attention(5, 3, 49, 49, 32, 32),
    "cross, keys as columns": Attention(2, 2, 75, 29, 32, 64, cut=False, mask="length"),
    "a mask of all": Attention(1, 3, 29, 200, 64, 32, steps=True, mask="all"),
    "cut by rows": Attention(1, 1, 200, 93, 32, 32, scaled=False),
    "keys as columns": Attention(1, 2, 31, 131, 64, 64, cut=False),
}
ELSEWHERE = [a.name for a in ARCHES.values() if host().runs(a)][-1]  # the plainest CPU of this machine's kind
COPIES = {s.arch: [i for i in s.instructions if i.copies and i.precision == "bf16"] for s in (DOTS, AMX)}


def operation(attention: Attention, spec: VDeviceSpec = DOTS) -> Operation:
    (op,) = (op for op in operations(attention.graph(), spec) if "softmax" in op.kind)
    return op


def on_unit(op: Operation, spec: VDeviceSpec = DOTS) -> list[RKernel]:
    return [k for k in candidates(op, spec) if "_bf16_" in k.name]


def rounded(x: Array) -> Array:
    return x.astype(DType.BF16.numpy).astype(np.float32)


@pytest.mark.parametrize("arch", [DOTS.arch, f"x86-64-avx512bf16@{ELSEWHERE}", AMX.arch, f"x86-64-amx@{ELSEWHERE}"])
@pytest.mark.parametrize("depth", [32, 75, 31, 1])
@pytest.mark.parametrize("many", [32, 75, 7])
def test_copies_lie_as_their_layouts_say_with_zeros_behind(many: int, depth: int, arch: str) -> None:
    """Rows that lie in lines; columns whose terms lie in lines, and columns that lie beside each other."""
    spec = AMX if "amx" in arch.partition("@")[0] else DOTS
    rows, columns = sorted(COPIES[spec.arch], key=lambda copy: "columns" in copy.name)
    text = prelude(spec) + "".join(
        f"void {i.name}(bf16 *a, float *x, long s, long t, long n, long k) {{ rammer_{i.name}(a, x, s, t, n, k); }}\n"
        for i in (rows, columns)
    )
    lib = library(text, arch)
    x = np.random.default_rng(many).standard_normal((many, depth)).astype(np.float32)
    for copy, source, steps in ((rows, x, (depth, 16)), (columns, x, (depth, 1)), (columns, x.T, (1, many))):
        whole = [-(-n // size) * size for n, (_, size) in zip(x.shape, copy.axes, strict=True)]
        wide = np.zeros(whole, np.float32)
        wide[:many, :depth] = x
        layout = copy.meaning.outputs[0][1].layout
        assert layout is not None
        wanted = pack(wide, layout)
        made = np.zeros_like(wanted)
        lines = np.full(source.size + 32, np.nan, np.float32)  # nothing behind the last number counts
        lines[: source.size] = source.ravel()
        to, given = (ctypes.c_void_p(array.ctypes.data) for array in (made, lines))
        getattr(lib, copy.name)(to, given, *map(ctypes.c_long, (*steps, many, depth)))
        np.testing.assert_array_equal(made.view(np.uint16), wanted.view(np.uint16))


@both
@pytest.mark.parametrize("name", CASES)
def test_attention_is_near(name: str, spec: VDeviceSpec) -> None:
    """Within a hundredth of its largest value, and of operands that bf16 holds just by what weights are rounded."""
    op = operation(CASES[name], spec)
    kernels = on_unit(op, spec)
    built = compile_all({name: (op, kernels)}, spec, check=True)
    assert kernels and all(k.fits(spec) for k in kernels)
    plain = {n: x / 4 for n, x in random_inputs(op).items()}  # the weights of larger scores move by more
    exact = {n: rounded(x) for n, x in plain.items()}
    for kernel, symbol in built.kernels[name][1]:
        for inputs, low, high in ((plain, 1e-5, 1e-2), (exact, 1e-5, 4e-3)):
            runner = Runner(kernel, built.library, symbol, inputs)
            (got,), (wanted,) = runner.run(), evaluate_expr(op.expr, inputs)
            assert low < np.abs(got - wanted).max() / np.abs(wanted).max() < high, kernel.name
            assert runner.context.status == 0
        check_boxes(kernel, Runner(kernel, built.library, symbol, exact))


@both
@pytest.mark.parametrize("name", CASES)
def test_it_is_proven(name: str, spec: VDeviceSpec) -> None:
    for kernel in on_unit(operation(CASES[name], spec), spec):
        assert not proven(kernel)[1], f"{kernel.name}: {proven(kernel)[1][0]}"


def test_a_changed_number_is_found() -> None:
    kernel = on_unit(operation(Attention(1, 2, 26, 37, 32, 32, mask="all")))[0]
    changed = list(mutants(kernel, 40, seed=1))
    found = sum(bool(proven(mutant)[1]) for _, mutant in changed)
    assert found >= 0.9 * len(changed)


@pytest.mark.parametrize("seed", range(12))
def test_wherever_it_is_offered_it_fits(seed: int) -> None:
    small = replace(DOTS, scratch_bytes=1 << 15)
    for spec in (DOTS, small, replace(DOTS, num_veus=3), AMX):
        for kernel in on_unit(operation(drawn(seed), spec), spec):
            assert kernel.fits(spec) and not proven(kernel)[1]


def test_both_matrices_of_whispers_encoder_have_room() -> None:
    """In half of a cache of 1 MiB, beside eight rows of 1,500 scores and as many weights; in 256 KiB they have none."""
    spec = replace(DOTS, scratch_bytes=512 << 10)
    op = operation(Attention(1, 6, 1500, 1500, 64, 64), spec)
    kernels = on_unit(op, spec)
    assert kernels and all("_8x32_" in k.name and k.fits(spec) for k in kernels)
    assert all(isinstance(k.body, TileProgram) and len(k.body.scratch) == 10 for k in kernels)
    less = replace(DOTS, scratch_bytes=256 << 10)
    assert not on_unit(op, less) and candidates(op, less)


def test_nothing_is_rounded_unasked() -> None:
    op = operation(CASES["ViT"], SPEC)
    assert not on_unit(op, SPEC)
    assert not on_unit(op, replace(DOTS, precision="fp32"))
