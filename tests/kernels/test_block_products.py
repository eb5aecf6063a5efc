"""Products with weights of a few bits in blocks: decoded in registers, or multiplied as bytes, on any CPU."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cpus import runnable
from kernel_harness import SPEC, Runner, check_boxes, compare, compile_all, operation
from test_byte_products import BYTES

from rammer.ir.device import VDeviceSpec
from rammer.ir.operator import Operation
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import Array, DType, TensorType
from rammer.ir.verify.kernel import prove
from rammer.kernels import candidates
from rammer.passes.quantized.block_weights import words
from rammer.passes.quantized.packed_tables import pack_bits
from rammer.vdevice.cpu.codegen.emit import emit

SPECS = {
    "x86-64-avx512vnni": BYTES,
    "x86-64-avx2": replace(SPEC, arch=runnable("x86-64-avx2"), lanes=8, registers=16),
}
SHAPES = {  # of x, and columns
    "one row": ((1, 576), 192),
    "odd": ((75, 96), 33),
    "batch": ((3, 5, 192), 100),
    "a vector": ((192,), 50),
    "many rows": ((130, 64), 64),
}


def product(shape: tuple[int, ...], columns: int, bits: int, block: int, **attrs: Any) -> Operation:
    """With zero points."""
    per, blocks = 32 // bits, shape[-1] // block
    kinds = (
        TensorType(shape),
        TensorType((shape[-1] // per, columns), DType.I32),
        TensorType((blocks, columns)),
        TensorType((-(-blocks * bits // 8), columns), DType.U8),
    )
    return operation("block_matmul", *kinds, static=("words", "scales", "zeros"), bits=bits, block=block, **attrs)


def drawn(op: Operation) -> tuple[dict[str, Array], Array]:
    """Operands, and the weights that they stand for."""
    rng = np.random.default_rng(5)
    bits, block = op.attr("bits"), op.attr("block")
    x, _, scales, _ = (kind.shape for kind in op.inputs)
    numbers = rng.integers(0, 1 << bits, (x[-1], scales[1])).astype(np.uint8)
    zeros = rng.integers(0, 1 << bits, scales).astype(np.uint8)
    scale = rng.uniform(0.01, 0.02, scales).astype(np.float32)
    inputs = {"x": rng.standard_normal(x).astype(np.float32), "scales": scale}
    inputs |= {"words": words(numbers, bits), "zeros": pack_bits(zeros.T, bits).T}
    weights = (numbers - zeros.astype(np.float64).repeat(block, 0)) * scale.repeat(block, 0)
    return inputs, weights


def rounded(x: Array, block: int) -> Array:
    """Blocks as bytes with a scale each, as numbers again."""
    blocks = x.reshape(*x.shape[:-1], -1, block).astype(np.float64)
    largest = np.abs(blocks).max(-1, keepdims=True)
    return (np.rint(blocks * (127 / largest)) * largest / 127).reshape(x.shape)


@pytest.mark.parametrize("arch", SPECS)
@pytest.mark.parametrize(
    ("bits", "block", "narrow"), [(4, 32, False), (4, 32, True), (4, 16, False), (2, 16, False), (8, 32, True)]
)
def test_products_of_blocks(arch: str, bits: int, block: int, narrow: bool) -> None:
    """Against the weights that words, zero points and scales stand for; every kernel is proven."""
    spec = SPECS[arch]
    cases = {name: product(*SHAPES[name], bits, block, narrow=narrow) for name in SHAPES}
    built = compile_all({name: (op, candidates(op, spec)) for name, op in cases.items()}, spec)
    for name, (op, kernels) in built.kernels.items():
        inputs, weights = drawn(op)
        x = rounded(inputs["x"], block) if narrow else inputs["x"]
        wanted = (x @ weights).astype(np.float32)
        compare(evaluate_expr(op.expr, inputs)[0], wanted, 2e-6, name)
        assert kernels and all("block_matmul_" in k.name and "x" in k.name for k, _ in kernels)
        for kernel, symbol in kernels:
            assert not prove(kernel), kernel.name
            (got,) = Runner(kernel, built.library, symbol, inputs).run()
            compare(got, wanted, 2e-6, f"{name}: {kernel.name}")
            check_boxes(kernel, Runner(kernel, built.library, symbol, inputs))


@pytest.mark.parametrize("narrow", [False, True])
def test_weights_are_decoded_in_registers(narrow: bool) -> None:
    """A word is loaded, shifted, and looked up or masked: nothing of it is stored, and nothing gathered."""
    op = product((1, 576), 192, 4, 32, narrow=narrow)
    text = emit(candidates(op, BYTES)[0], BYTES).text
    (line,) = [line for line in text.splitlines() if "words[" in line and "prefetch" not in line]
    assert re.search("vadd_dot_bytes" if narrow else "vlow_bits", line), line
    assert "vi_shift_right(VECTOR(vi, words[" in line


def test_rows_that_scratch_does_not_hold_are_rounded_by_strips() -> None:
    op = product((75, 576), 96, 4, 32, narrow=True)
    few: VDeviceSpec = replace(BYTES, scratch_bytes=24 << 10)
    kernels = candidates(op, few)
    assert all(k.scratch_bytes <= few.scratch_bytes for k in kernels)
    built = compile_all({"strips": (op, kernels)}, few)
    inputs, weights = drawn(op)
    for kernel, symbol in built.kernels["strips"][1]:
        assert not prove(kernel)
        (got,) = Runner(kernel, built.library, symbol, inputs).run()
        compare(got, (rounded(inputs["x"], 32) @ weights).astype(np.float32), 2e-6, kernel.name)
