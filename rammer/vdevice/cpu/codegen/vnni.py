"""Describe AVX512-VNNI, which multiplies bytes and sums in int32 exactly: a table, and its C text.

It adds four products of an unsigned and a signed byte to each int32 of a vector; the saturating form is not used.
Vectors lie along the columns: of signed bytes (weights), or of unsigned ones (pixels of an image, whose channels are
strided). Sums of a block stay in registers for all of its terms. If the compiler's target lacks it, a loop emulates it.
"""

from __future__ import annotations

from rammer.ir.instruction import Instruction, copy, multiply
from rammer.ir.tensor import Digit, DType, Layout

TERMS, LANES, ROWS = 4, 16, 8
COPIED = 0.5  # bytes in the time of a float32 multiply-add: estimated
GIVEN = Layout((Digit(0), Digit(1), Digit(1, 1, 1)))  # rows and terms with any strides
BESIDE = Layout((Digit(0), Digit(1, LANES), Digit(1, 1, LANES)))  # at least LANES adjacent terms
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
VNNI = (
    copy("bytes_rows", (ROWS, TERMS), BY_ROWS, BESIDE, dtype=DType.U8, gain=COPIED),
    copy("bytes_places", (LANES, TERMS), BY_VECTORS, GIVEN, dtype=DType.U8, gain=COPIED),
    *(_block(*block, of_places=False) for block in BLOCKS),
    *(_block(*block, of_places=True) for block in PLACES),
)

TEXT = """\
typedef unsigned vn __attribute__((vector_size(64), aligned(4), may_alias));  /* sums that wrap around */
typedef uint32_t four __attribute__((may_alias, aligned(1)));                  /* terms of a row */
typedef uint8_t b16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t w8 __attribute__((vector_size(16), aligned(1), may_alias));
#if defined(__AVX512VNNI__)
INLINE void add_products(vn *sums, vn a, vn b) { __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(a), "v"(b)); }
#else
INLINE void add_products(vn *sums, vn a, vn b) {
  for (long c = 0; c < 16; c++) for (int k = 0; k < 4; k++)
    (*sums)[c] += (unsigned)((int)(a[c] >> (8 * k) & 255) * (int8_t)(b[c] >> (8 * k)));
}
#endif
#define EACH(n, count) _Pragma("unroll") for (int n = 0; n < count; n++)
#define BYTES_BLOCK(form, rows, width, vectors, A, B, a_at, b_at, add) \\
INLINE void rammer_##rows##x##width##_##form( \\
    int32_t *restrict to, const A *restrict a, const B *restrict b, long steps) { \\
  vn sums[rows][vectors];                                                       \\
  EACH(r, rows) EACH(v, vectors) sums[r][v] = (vn){0};                          \\
  for (long k = 0; k < steps; k++) {                                            \\
    vn y[vectors];                                                              \\
    EACH(v, vectors) y[v] = *(const vn *)&b[64 * (b_at)];                       \\
    EACH(r, rows) { vn x = *(const four *)&a[4 * (a_at)] - (vn){0}; EACH(v, vectors) add; } \\
  }                                                                             \\
  EACH(r, rows) EACH(v, vectors) *(vn *)&to[16 * (vectors * r + v)] = sums[r][v]; \\
}
#define BY_WEIGHTS(rows, width, vectors) BYTES_BLOCK(u8i8, rows, width, vectors, uint8_t, int8_t, \\
  steps * r + k, vectors * k + v, add_products(&sums[r][v], x, y[v]))
#define BY_PLACES(rows, width, vectors) BYTES_BLOCK(i8u8, rows, width, vectors, int8_t, uint8_t, \\
  rows * k + r, steps * v + k, add_products(&sums[r][v], y[v], x))
BLOCKS
/* Rows one after the other, each filled up to whole fours; `step` from row to row, `next` from vector to vector. */
static void rammer_bytes_rows(
    uint8_t *restrict to, const uint8_t *restrict from, long step, long next, long rows, long depth) {
  const long width = (depth + 3) / 4 * 4;
  for (long r = 0; r < rows; r++, to += width, from += step) {
    long k = 0;
    if (next == 16) memcpy(to, from, k = depth);
    for (; k + 16 <= depth; k += 16) *(b16 *)&to[k] = *(const b16 *)&from[k / 16 * next];
    if (k < depth) memcpy(&to[k], &from[k / 16 * next], depth - k);
    memset(&to[depth], 0, width - depth);
  }
}
/* Vectors of places: of each four terms, those of sixteen rows side by side. */
static void rammer_bytes_places(
    uint8_t *restrict to, const uint8_t *restrict from, long step, long next, long rows, long depth) {
  for (long r = 0; r < rows; r += 16) for (long k = 0; k < depth; k += 4, to += 64) {
    b16 term[4] = {0};
    for (long n = 0; n < 4 && k + n < depth; n++) {
      const uint8_t *start = &from[r * step + (k + n) * next];
      if (step == 1 && r + 16 <= rows) term[n] = *(const b16 *)start;
      else for (long i = 0; i < 16 && r + i < rows; i++) term[n][i] = start[i * step];
    }
    #define ZIP(a, b, half) __builtin_shufflevector(a, b, half, half + 16, half + 1, half + 17, half + 2, half + 18, \\
      half + 3, half + 19, half + 4, half + 20, half + 5, half + 21, half + 6, half + 22, half + 7, half + 23)
    #define ZIP2(a, b, half) __builtin_shufflevector((w8)(a), (w8)(b), \\
      half, half + 8, half + 1, half + 9, half + 2, half + 10, half + 3, half + 11)
    b16 first = ZIP(term[0], term[1], 0), second = ZIP(term[2], term[3], 0);
    *(w8 *)to = ZIP2(first, second, 0); *(w8 *)(to + 16) = ZIP2(first, second, 4);
    first = ZIP(term[0], term[1], 8), second = ZIP(term[2], term[3], 8);
    *(w8 *)(to + 32) = ZIP2(first, second, 0); *(w8 *)(to + 48) = ZIP2(first, second, 4);
    #undef ZIP
    #undef ZIP2
  }
}
#undef EACH
#undef BYTES_BLOCK
#undef BY_WEIGHTS
#undef BY_PLACES
""".replace(
    "BLOCKS\n",
    "".join(f"BY_WEIGHTS({rows}, {LANES * vectors}, {vectors})\n" for rows, vectors, _ in BLOCKS)
    + "".join(f"BY_PLACES({rows}, {LANES * vectors}, {vectors})\n" for rows, vectors, _ in PLACES),
)
