"""Describe AVX512-BF16, which multiplies pairs of bf16 numbers and sums in float32.

Rows are rounded while they are copied. Weights are rounded at compile time; other columns are copied, too. A block's
sums stay in registers for all of its terms. If the compiler's target lacks the instruction, vectors of float32 emulate
it.
"""

from __future__ import annotations

from rammer.ir.instruction import Instruction, copy, multiply
from rammer.ir.tensor import Digit, DType, Encoding, Layout

TERMS, LANES, ROWS = 32, 16, 8
ROUNDED = Encoding(DType.BF16, 1, ROWS * TERMS)
COPIED = 0.25  # elements rounded in the time of a float32 multiply-add: measured on Zen 5, 0.17 to 0.28
GIVEN = Layout((Digit(0), Digit(1, LANES), Digit(1, 1, LANES)))  # rows, and columns in groups of 16 with any stride
BY_ROWS = Layout((Digit(0, ROWS), Digit(1, TERMS), Digit(0, 1, ROWS), Digit(1, 1, TERMS)), ROUNDED)
WIDTH = 32  # of the block whose columns may be copied: it divides 64, and almost divides 1,500
WHEREVER = Layout((Digit(0), Digit(1), Digit(1, 1, 1)))  # columns and terms, one of them contiguous
SUMS = Layout((Digit(0, ROWS), Digit(0, 1, ROWS), Digit(1)))
BLOCKS = ((3, 2.0), (2, 2.0), (1, 1.3))  # vectors of columns, and gains: measured on Zen 5, 384 terms, warm


def _panel(vectors: int) -> tuple[Digit, ...]:
    """Return the layout of [column, term] in blocks of terms, in pairs of terms."""
    across = (Digit(0, LANES, vectors),) if vectors > 1 else ()
    return Digit(1, TERMS), *across, Digit(1, 2, TERMS // 2), Digit(0, 1, LANES), Digit(1, 1, 2)


def _block(vectors: int, gain: float) -> Instruction:
    """Return a product with columns in pairs of terms.

    Its sums, a vector of each column and one of a row fill registers.
    """
    digits = tuple(Digit(1 - d.dim, d.div, d.mod) for d in _panel(vectors))
    sizes = ROWS, LANES * vectors, TERMS
    layouts = SUMS, BY_ROWS, Layout(digits, ROUNDED)
    return multiply(f"{sizes[0]}x{sizes[1]}_bf16", sizes, layouts, precision="bf16", gain=gain)


BY_COLUMNS = Layout((Digit(0, WIDTH), *_panel(WIDTH // LANES)), ROUNDED)
AVX512_BF16 = (
    copy("rounded_rows", (ROWS, TERMS), BY_ROWS, GIVEN, "bf16", gain=COPIED),
    copy("rounded_columns", (WIDTH, TERMS), BY_COLUMNS, WHEREVER, "bf16", gain=COPIED),
    *(_block(*block) for block in BLOCKS),
)
