"""Describe AVX512-BF16, which multiplies pairs of bf16 numbers and sums in float32: a table, and its C text.

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

# For vectors of 16 numbers; `rounded` converts a vector to bf16.
COPIES = """\
INLINE vf some(const float *x, long count) { return count < 16 ? vload(x, imax(count, 0)) : V(*x); }  /* zeros behind */
typedef uint32_t pair __attribute__((may_alias));
INLINE vu pairs(vf low, vf high) {
  return __builtin_convertvector(rounded(low), vu) | __builtin_convertvector(rounded(high), vu) << 16;
}
/* Panels of 32 columns, by pairs of terms; `step` from column to column, `next` from term to term: one of them is 1. */
static void rammer_rounded_columns(
    bf16 *restrict to, const float *restrict from, long step, long next, long columns, long depth) {
  const long blocks = (depth + 31) / 32;
  for (long c = 0; c < (columns + 31) / 32 * 32; c += 16) for (long k = 0; k < depth; k += 32) {
    bf16 *part = to + (c / 32 * blocks + k / 32) * 1024 + c % 32 * 32;
    const float *start = &from[c * step + k * next];
    const long wide = columns - c, deep = depth - k;
    if (step == 1) for (int n = 0; n < 32; n += 2) {
      vf low = some(&start[n * next], n < deep ? wide : 0);
      *(vu *)&part[16 * n] = pairs(low, some(&start[(n + 1) * next], n + 1 < deep ? wide : 0));
    } else {
      bf16 column[16][32];
      for (int i = 0; i < 16; i++) for (int n = 0; n < 32; n += 16)
        *(vw *)&column[i][n] = rounded(some(&start[i * step + n], i < wide ? deep - n : 0));
      for (int n = 0; n < 32; n += 2) for (int i = 0; i < 16; i++)
        *(pair *)&part[16 * n + 2 * i] = *(const pair *)&column[i][n];
    }
  }
}
"""

TEXT = (
    """\
#if defined(__AVX512BF16__) && !defined(EMULATED)
INLINE void add_pairs(vf *sums, vu a, vu b) { __asm__("vdpbf16ps %2, %1, %0" : "+v"(*sums) : "v"(a), "v"(b)); }
INLINE vw rounded(vf x) { vw part; __asm__("vcvtneps2bf16 %1, %0" : "=v"(part) : "v"(x)); return part; }
#else
INLINE void add_pairs(vf *sums, vu a, vu b) {
  *sums += (vf)(a & 0xffff0000) * (vf)(b & 0xffff0000);
  *sums += (vf)(a << 16) * (vf)(b << 16);
}
INLINE vw rounded(vf x) { return vbf16(x); }
#endif
"""
    + COPIES
    + """\
#define EACH(n, count) _Pragma("unroll") for (int n = 0; n < count; n++)
#define ROUNDED_BLOCK(form, vectors) \\
typedef vf rammer_sums_##form[8][vectors];                                      \\
INLINE void rammer_add_##form##_bf16(rammer_sums_##form sums, const bf16 *a, const bf16 *b, long blocks) { \\
  for (int k = 0; k < 16; k++) {                                                \\
    vu y[vectors];                                                              \\
    EACH(v, vectors) y[v] = *(const vu *)&b[512 * v + 32 * k];                  \\
    EACH(r, 8) {                                                                \\
      vu x = *(const pair *)&a[32 * r + 2 * k] - (vu){0};                       \\
      EACH(v, vectors) add_pairs(&sums[r][v], x, y[v]);                         \\
    }                                                                           \\
  }                                                                             \\
}                                                                               \\
INLINE void rammer_end_##form(rammer_sums_##form sums, float *restrict to) {    \\
  EACH(r, 8) EACH(v, vectors) V(to[16 * (vectors * r + v)]) = sums[r][v];       \\
}
ROUNDED_BLOCK(8x48, 3)
ROUNDED_BLOCK(8x32, 2)
ROUNDED_BLOCK(8x16, 1)
#define rammer_begin_8x48(sums, to) rammer_sums_8x48 sums = {0}
#define rammer_begin_8x32(sums, to) rammer_sums_8x32 sums = {0}
#define rammer_begin_8x16(sums, to) rammer_sums_8x16 sums = {0}
#define rammer_resume_8x48(sums, to) rammer_sums_8x48 sums; memcpy(sums, to, sizeof sums)
#define rammer_resume_8x32(sums, to) rammer_sums_8x32 sums; memcpy(sums, to, sizeof sums)
#define rammer_resume_8x16(sums, to) rammer_sums_8x16 sums; memcpy(sums, to, sizeof sums)
INLINE void rammer_unit_begin(void) {}
INLINE void rammer_unit_end(void) {}
static void rammer_rounded_rows(
    bf16 *restrict to, const float *restrict from, long step, long next, long rows, long depth) {
  for (long r = 0; r < rows; r++) {
    bf16 *row = to + 256 * (r / 8 * ((depth + 31) / 32)) + r % 8 * 32;
    long k = 0;
    for (; k + 16 <= depth; k += 16)
      *(vw *)&row[k / 32 * 256 + k % 32] = rounded(V(from[r * step + k / 16 * next]));
    for (; k < (depth + 31) / 32 * 32; k += 16)
      *(vw *)&row[k / 32 * 256 + k % 32] = rounded(some(&from[r * step + k / 16 * next], depth - k));
  }
}
#undef EACH
#undef ROUNDED_BLOCK
"""
)
