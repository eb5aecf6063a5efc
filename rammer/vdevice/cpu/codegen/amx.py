"""Describe AMX and AVX512-BF16 products of bf16 numbers with float32 sums.

AMX has eight tile registers, each a matrix of 16 rows of 64 bytes; four hold sums, the others operands. A block of 32
terms takes three products for operands in two parts, or six for three, ordered so that many operands stay in registers.
If the compiler's target lacks AMX, these instructions are loops over matrices in memory; all other text is the same.
"""

from __future__ import annotations

from dataclasses import replace

from rammer.ir.instruction import Instruction, copy, multiply
from rammer.ir.tensor import Digit, DType, Encoding, Layout
from rammer.vdevice.cpu.codegen.dots import BY_COLUMNS, WHEREVER, WIDTH

# A float32 is the exact sum of three bf16 parts. Of their nine products, three are below the precision of float32 and
# are skipped; sums are float32, so the result is as exact as in float32. Two parts are a float32 within 2^-16 (tf32:
# 2^-11) and need half the products.
BF16X3, BF16X2, BF16 = (Encoding(DType.BF16, parts, 512) for parts in (3, 2, 1))
WAKE_US = 3.0  # measured: an idle unit powers down
TERMS = 32
# Multiply-adds of the unit in the time of encoding an element: measured, 50 to 110; 30 to 50 for three parts, 9 to 13
# in place.
ENCODING, CUTTING, IN_PLACE = 64, 40, 12
WIDE_COST = 1.15  # measured: time of a wide block's sums, relative to a tall block's
SUMS = Layout((Digit(0, 16), Digit(0, 1, 16), Digit(1)))  # rows of whole matrices
GIVEN = Layout((Digit(0), Digit(1, 16), Digit(1, 1, 16)))  # rows, and columns in groups of 16 with any stride


def _unit(
    encoding: Encoding, precision: str, gain: float, ending: str = "", encoded: float = ENCODING
) -> tuple[Instruction, ...]:
    """Return a copy of rows and two products.

    Copying an element takes the time of `encoded` multiply-adds. `gain` is that of tall blocks of sums. Columns lie in
    pairs of terms.
    """
    rows = Layout((Digit(0, 16), Digit(1, TERMS), Digit(0, 1, 16), Digit(1, 1, TERMS)), encoding)
    made = [copy(f"split_rows{ending}", (16, TERMS), rows, GIVEN, precision, gain=gain / encoded)]
    for height, width, rate in ((32, 32, gain), (16, 64, gain / WIDE_COST)):
        blocks, pairs = (Digit(0, TERMS), Digit(1, 16, width // 16)), (Digit(0, 2, TERMS // 2), Digit(1, 1, 16))
        layouts = SUMS, rows, Layout((*blocks, *pairs, Digit(0, 1, 2)), encoding)
        name, sizes = f"{height}x{width}{ending}", (height, width, TERMS)
        made.append(replace(multiply(name, sizes, layouts, precision=precision, gain=rate), wake_us=WAKE_US))
    return tuple(made)


def _encoder(product: Instruction) -> Instruction:
    """Return a copy that encodes columns in a product's own order, given as float32."""
    width, own = product.extent("column"), product.layout_of(True)
    assert own is not None
    lie = replace(own, digits=(Digit(0, width), *own.digits))
    sides, gain = (lie, replace(lie, encoding=None)), product.gain / IN_PLACE
    return copy(f"split_{width}_columns", (width, TERMS), *sides, product.precision, gain=gain)


# Gains of whole rKernels in a run: measured for three parts, otherwise estimated. Single blocks with warm operands gain
# 2.9, 5.4 and 12 on a core of Emerald Rapids, but with these gains too many short products went to the unit.
ROUNDED = 7.0
PARTED = _unit(BF16X3, "fp32", 1.5, encoded=CUTTING)
AMX = (
    *PARTED,
    *(_encoder(i) for i in PARTED if i.multiplies),
    *_unit(BF16X2, "tf32", 2.8, "_bf16x2"),
    *_unit(BF16, "bf16", ROUNDED, "_bf16"),
    # tall blocks order columns as AVX512-BF16 does, so one text copies both
    copy(
        "split_columns_bf16",
        (WIDTH, TERMS),
        replace(BY_COLUMNS, encoding=BF16),
        WHEREVER,
        "bf16",
        gain=ROUNDED / ENCODING,
    ),
)
