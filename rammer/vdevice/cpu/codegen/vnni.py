"""Describe products of bytes, summed in int32 exactly: by AVX512-VNNI, plain AVX-512, and AVX2.

VNNI adds four products of an unsigned and a signed byte to each int32 of a vector; the saturating form is not used.
Without VNNI even and odd bytes, widened to int16, are multiplied and added in pairs; the form for bytes saturates.
Vectors lie along the columns: of signed bytes (weights), or of unsigned ones (pixels of an image, whose channels are
strided). Sums of a block stay in registers for all of its terms. If the compiler's target lacks it, a loop emulates it.
"""

from __future__ import annotations

from typing import TypeAlias

from rammer.ir.instruction import Instruction, copy, multiply
from rammer.ir.tensor import Digit, DType, Layout

Blocks: TypeAlias = tuple[tuple[int, int, float], ...]  # rows, vectors and gain of each
TERMS, LANES, ROWS = 4, 16, 8
COPIED = 0.5  # bytes in the time of a float32 multiply-add: estimated
GIVEN = Layout((Digit(0), Digit(1), Digit(1, 1, 1)))  # rows and terms with any strides
# Terms lie in groups of four. Their padding has no effect, because that of weights is zero.
FOURS, IN_FOUR = Digit(1, TERMS), Digit(1, 1, TERMS)
BY_ROWS = Layout((Digit(0, ROWS), Digit(0, 1, ROWS), FOURS, IN_FOUR))  # of whole blocks, row by row
BY_VECTORS = Layout((Digit(0, LANES), FOURS, Digit(0, 1, LANES), IN_FOUR))


def _transposed(layout: Layout) -> Layout:
    """Return the layout of [term, column], given that of [column, term]."""
    return Layout(tuple(Digit(1 - d.dim, d.div, d.mod) for d in layout.digits))


def _block(rows: int, vectors: int, gain: float, *, of_places: bool) -> Instruction:
    """Return a product of bytes, by vectors of weights or of pixels.

    Its sums and a vector of each operand fill registers.
    """
    columns = LANES * vectors
    sums = Layout((Digit(0, rows), Digit(0, 1, rows), Digit(1)))
    panel = Layout((FOURS, Digit(0, 1, rows if of_places else columns), IN_FOUR))
    layouts = (panel, _transposed(BY_VECTORS)) if of_places else (BY_ROWS, _transposed(panel))
    kinds = (DType.I8, DType.U8) if of_places else (DType.U8, DType.I8)
    name = f"{rows}x{columns}_{'i8u8' if of_places else 'u8i8'}"
    return multiply(name, (rows, columns, TERMS), (sums, *layouts), dtypes=(DType.I32, *kinds), gain=gain)


BLOCKS = ((8, 3, 4.0), (8, 2, 3.8), (8, 1, 3.5), (4, 4, 3.8), (1, 4, 2.5))  # rows, vectors, and estimated gains
PLACES = ((6, 4, 4.0), (8, 3, 4.0), (8, 2, 3.8), (8, 1, 3.5))
PAIRS = ((4, 1, 1.2), (1, 2, 0.9))  # with AVX2, of two of its vectors; measured on Zen 3
PAIRS_512 = ((8, 3, 0.75), (8, 2, 0.74), (8, 1, 0.6), (4, 4, 0.74), (1, 4, 0.5))  # measured on a Skylake


def _table(rows: str, adjacent: int, blocks: Blocks, places: Blocks) -> tuple[Instruction, ...]:
    """Return copies of rows, with at least so many `adjacent` terms, and of places with any strides; and products."""
    beside = Layout((Digit(0), Digit(1, adjacent), Digit(1, 1, adjacent)))
    return (
        copy(rows, (ROWS, TERMS), BY_ROWS, beside, dtype=DType.U8, gain=COPIED),
        copy("bytes_places", (LANES, TERMS), BY_VECTORS, GIVEN, dtype=DType.U8, gain=COPIED),
        *(_block(*block, of_places=False) for block in blocks),
        *(_block(*block, of_places=True) for block in places),
    )


VNNI = _table("bytes_rows", LANES, BLOCKS, PLACES)
AVX512 = _table("bytes_rows", LANES, PAIRS_512, PAIRS_512[:3])
AVX2 = _table("bytes_rows_8", LANES // 2, PAIRS, PAIRS)
