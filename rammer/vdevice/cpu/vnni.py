"""Instructions of x86 CPUs that multiply bytes and sum in int32, exactly: a table, and their C text.

AVX512-VNNI adds four products of an unsigned and a signed byte to each int32 of a vector; the form that stops at the
largest int32 is not used. Sums of a block stay in registers for all of its terms. Where the compiler's target lacks
it, the same is a loop.
"""

from __future__ import annotations

from rammer.ir.instruction import Instruction, copy, multiply
from rammer.ir.tensor import Digit, DType, Layout

TERMS, LANES, ROWS = 4, 16, 8
# Rows of whole blocks, terms by fours; of these, columns of a panel side by side. What pads them counts for nothing,
# as the weights' padding is zero.
GIVEN = Layout((Digit(0), Digit(1), Digit(1, 1, 1)))  # wherever they are
PACKED = Layout((Digit(0, ROWS), Digit(0, 1, ROWS), Digit(1, TERMS), Digit(1, 1, TERMS)))


def _block(rows: int, vectors: int, gain: float) -> Instruction:
    """A product of bytes: as many sums as fit the registers beside a vector of each panel's columns."""
    columns = LANES * vectors
    sums = Layout((Digit(0, rows), Digit(0, 1, rows), Digit(1)))
    weights = Layout((Digit(0, TERMS), Digit(1, 1, columns), Digit(0, 1, TERMS)))
    name, dtypes = f"{rows}x{columns}_u8i8", (DType.I32, DType.U8, DType.I8)
    return multiply(name, (rows, columns, TERMS), (sums, PACKED, weights), dtypes=dtypes, gain=gain)


BLOCKS = ((8, 3, 4.0), (8, 2, 3.8), (8, 1, 3.5), (4, 4, 3.8), (1, 4, 2.5))  # rows, vectors, and estimated gains
VNNI = (
    copy("bytes_rows", (ROWS, TERMS), PACKED, GIVEN, dtype=DType.U8),
    *(_block(*block) for block in BLOCKS),
)

TEXT = """\
typedef unsigned vn __attribute__((vector_size(64), aligned(4), may_alias));  /* sums that wrap around */
typedef uint32_t four __attribute__((may_alias, aligned(1)));                  /* terms of a row */
#if defined(__AVX512VNNI__)
INLINE void add_products(vn *sums, vn a, vn b) { __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(a), "v"(b)); }
#else
INLINE void add_products(vn *sums, vn a, vn b) {
  for (long c = 0; c < 16; c++) for (int k = 0; k < 4; k++)
    (*sums)[c] += (unsigned)((int)(a[c] >> (8 * k) & 255) * (int8_t)(b[c] >> (8 * k)));
}
#endif
#define BYTES_BLOCK(rows, vectors, name) \\
INLINE void rammer_##name(int32_t *restrict to, const uint8_t *restrict a, const int8_t *restrict b, long steps) { \\
  vn sums[rows][vectors];                                                       \\
  _Pragma("unroll") for (int r = 0; r < rows; r++)                              \\
    _Pragma("unroll") for (int v = 0; v < vectors; v++) sums[r][v] = (vn){0};   \\
  for (long k = 0; k < steps; k++) {                                            \\
    vn y[vectors];                                                              \\
    _Pragma("unroll") for (int v = 0; v < vectors; v++) y[v] = *(const vn *)&b[64 * (vectors * k + v)]; \\
    _Pragma("unroll") for (int r = 0; r < rows; r++) {                          \\
      vn x = *(const four *)&a[4 * (steps * r + k)] - (vn){0};                  \\
      _Pragma("unroll") for (int v = 0; v < vectors; v++) add_products(&sums[r][v], x, y[v]); \\
    }                                                                           \\
  }                                                                             \\
  _Pragma("unroll") for (int r = 0; r < rows; r++)                              \\
    _Pragma("unroll") for (int v = 0; v < vectors; v++) *(vn *)&to[16 * (vectors * r + v)] = sums[r][v]; \\
}
BLOCKS
#undef BYTES_BLOCK
/* Rows side by side, each filled up to whole fours; `step` from row to row and `next` from term to term. */
static void rammer_bytes_rows(
    uint8_t *restrict to, const uint8_t *restrict from, long step, long next, long rows, long depth) {
  const long width = (depth + 3) / 4 * 4;
  for (long r = 0; r < rows; r++) {
    memset(&to[r * width + depth], 0, width - depth);
    if (next == 1) memcpy(&to[r * width], &from[r * step], depth);
    else for (long k = 0; k < depth; k++) to[r * width + k] = from[r * step + k * next];
  }
}
""".replace(
    "BLOCKS\n",
    "".join(f"BYTES_BLOCK({rows}, {vectors}, {rows}x{LANES * vectors}_u8i8)\n" for rows, vectors, _ in BLOCKS),
)
