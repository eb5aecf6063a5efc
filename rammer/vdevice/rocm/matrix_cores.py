"""Define the matrix-core instructions of AMD GPUs: fragment layouts, and their HIP text.

Sources: the ISA references of AMD Instinct MI200, CDNA3 and RDNA4, "Matrix Arithmetic Instructions" and "WMMA". Terms
may be in any order in which both operands agree.
"""

from __future__ import annotations

from rammer.ir.instruction import Instruction, multiply
from rammer.ir.tensor import Digit, Layout


def _product(name: str, wavefront_size: int, neighbours: int, gain: float, precision: str) -> Instruction:
    """Return the instruction sums[16, 16] += a[16, terms] b[terms, 16] of one wave.

    In thread 16q + j, j is the row of `a` or the column of `b` and `sums`. q numbers blocks along the other axis: rows
    of the sums, or neighbouring terms of the operands.
    """
    blocks = wavefront_size // 16
    rows, own = 16 // blocks, neighbours > 1
    sums = Layout((Digit(0, rows), Digit(1), Digit(0, 1, rows)))
    a = Layout((Digit(1, neighbours), Digit(0), *([Digit(1, 1, neighbours)] if own else [])))
    b = Layout((Digit(0, neighbours), Digit(1), *([Digit(0, 1, neighbours)] if own else [])))
    sizes, layouts = (16, 16, blocks * neighbours), (sums, a, b)
    return multiply(name, sizes, layouts, threads=wavefront_size, accumulates=True, precision=precision, gain=gain)


def _f32(gain: float) -> Instruction:
    """Return the exact float32 product: multiply-adds that round once."""
    return _product("mfma_f32", 64, 1, gain, "fp32")


def _bf16(gain: float) -> Instruction:
    return _product("mfma_bf16", 64, 4, gain, "bf16")


# By arch; the vendor's rates, relative to vector multiply-adds.
MATRIX_CORES: dict[str, tuple[Instruction, ...]] = {
    "gfx908": (_f32(2.0),),
    "gfx90a": (_f32(2.0), _bf16(8.0)),
    "gfx942": (_f32(1.0), _bf16(8.0)),
    "gfx1201": (_product("wmma_bf16", 32, 8, 8.0, "bf16"),),
}
