"""Define the tensor-core and asynchronous-copy instructions of NVIDIA GPUs: fragment layouts, and their CUDA text."""

from __future__ import annotations

from dataclasses import replace

from rammer.ir.instruction import Instruction, copy, multiply
from rammer.ir.tensor import Digit, Layout

WAVE = 32


def _mma(precision: str, terms: int, gain: float) -> Instruction:
    """Return the instruction sums[16, 8] += a[16, terms] b[terms, 8] of one warp.

    Thread 4g + t holds rows and columns g, and pairs of columns and terms t. Terms are permuted so that both formats
    read scratch without bank conflicts. The order of terms does not change the sum.
    """
    eight, four = Digit(0, 1, 8), Digit(1, 1, 4)
    sums = Layout((eight, Digit(1, 2), Digit(0, 8), Digit(1, 1, 2)))
    a = Layout((eight, four, Digit(1, 4), Digit(0, 8)))
    b = Layout((Digit(1), Digit(0, 1, 4), Digit(0, 4)))
    return multiply(
        f"mma_{precision}", (16, 8, terms), (sums, a, b), threads=WAVE, accumulates=True, precision=precision, gain=gain
    )


_ROW = Layout((Digit(0), Digit(1)))
LATER = replace(copy("copy_later", (1, 4), _ROW, _ROW), later=True)  # cp.async
SM_80 = (_mma("tf32", 8, 4.0), _mma("bf16", 16, 8.0))
# As exact as sums in float32: tf32(x) plus 11 bits of x - tf32(x) differ from x by 2^-23 of it, and the omitted
# product is as small. An infinity becomes NaN.
SM_80_FP32 = replace(_mma("tf32", 8, 4.0 / 3), name="mma_tf32x3", precision="fp32", split_dtype="tf32")
