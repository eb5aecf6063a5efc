"""Describe AMX and AVX512-BF16 products of bf16 numbers with float32 sums: tables, and their C text.

AMX has eight tile registers, each a matrix of 16 rows of 64 bytes; four hold sums, the others operands. A block of 32
terms takes three products for operands in two parts, or six for three, ordered so that many operands stay in registers.
If the compiler's target lacks AMX, these instructions are loops over matrices in memory; all other text is the same.
"""

from __future__ import annotations

from dataclasses import replace

from rammer.ir.instruction import Instruction, copy, multiply
from rammer.ir.tensor import Digit, DType, Encoding, Layout
from rammer.vdevice.cpu.codegen.dots import BY_COLUMNS, COPIES, WHEREVER, WIDTH

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

TEXT = (
    """\
enum { PART = 512 };                              /* numbers of a matrix; three parts make as many float32 */
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define MLOAD(m, from) MTAKE(m, from, 16)
#define MSTORE(m, to, step) \\
  __asm__ volatile("tilestored %%tmm" #m ", (%0,%1,1)" :: "r"(to), "r"(4L * (step)) : "memory")
#define MTAKE(m, from, step) \\
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #m :: "r"(from), "r"(4L * (step)) : "memory")
#define MZERO(m) __asm__ volatile("tilezero %%tmm" #m ::)
#define MSUM(m, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #m ::)
static const struct { uint8_t palette, start, zero[14]; uint16_t bytes[16]; uint8_t rows[16]; } matrices =
  { 1, 0, { 0 }, { 64, 64, 64, 64, 64, 64, 64, 64 }, { 16, 16, 16, 16, 16, 16, 16, 16 } };
#define TAKE()
#define GIVE()
#define KEEP()
INLINE void rammer_unit_begin(void) { __asm__ volatile("ldtilecfg %0" :: "m"(matrices)); }
INLINE void rammer_unit_end(void) { __asm__ volatile("tilerelease" ::); }
INLINE vw part_of(vf x) { vw part; __asm__("vcvtneps2bf16 %1, %0" : "=v"(part) : "v"(x)); return part; }
#else
typedef union { float sum[16][16]; uint32_t pair[16][16]; bf16 part[PART]; } matrix;
#define TAKE() matrix unit[8]; memcpy(unit, sums, 4 * sizeof *unit);
#define GIVE() TAKE()
#define KEEP() memcpy(sums, unit, 4 * sizeof *unit);
#define MLOAD(m, from) matrix_load(&unit[m], from)
#define MSTORE(m, to, step) for (long r = 0; r < 16; r++) memcpy(to + r * (step), unit[m].sum[r], 64)
#define MTAKE(m, from, step) for (long r = 0; r < 16; r++) memcpy(unit[m].sum[r], from + r * (step), 64)
#define MZERO(m) memset(&unit[m], 0, sizeof *unit)
#define MSUM(m, a, b) matrix_sum(&unit[m], &unit[a], &unit[b])
static void matrix_load(matrix *m, const bf16 *from) {  /* what is too small to be normal counts as zero */
  for (long n = 0; n < PART; n++) m->part[n] = from[n] & 0x7f80 ? from[n] : from[n] & 0x8000;
}
/* Terms of even and of odd number have a sum each, as the unit rounds (which also makes zero of too small sums). */
static void matrix_sum(matrix *m, const matrix *a, const matrix *b) {
  for (long r = 0; r < 16; r++) for (long c = 0; c < 16; c += LANES) {
    vf even = {0}, odd = {0};
    for (long k = 0; k < 16; k++) {
      uint32_t x = a->pair[r][k]; vu y = *(const vu *)&b->pair[k][c];
      even += sfloat(x << 16) * (vf)(y << 16);
      odd += sfloat(x & 0xffff0000) * (vf)(y & 0xffff0000);
    }
    V(m->sum[r][c]) += even + odd;
  }
}
INLINE void rammer_unit_begin(void) {}
INLINE void rammer_unit_end(void) {}
INLINE vw part_of(vf x) { return vbf16(x); }
#endif
/* Sums are matrices of the unit; without one, of the memory that they are stored to. */
INLINE void rammer_clear(float *sums) { TAKE() MZERO(0); MZERO(1); MZERO(2); MZERO(3); KEEP() }
INLINE void rammer_take_16x64(float *sums) {
  TAKE() MTAKE(0, sums, 64); MTAKE(1, sums + 16, 64); MTAKE(2, sums + 32, 64); MTAKE(3, sums + 48, 64); KEEP()
}
INLINE void rammer_take_32x32(float *sums) {
  TAKE() MTAKE(0, sums, 32); MTAKE(1, sums + 16, 32); MTAKE(2, sums + 512, 32); MTAKE(3, sums + 528, 32); KEEP()
}
#define rammer_begin_16x64(sums, to) float *sums = to; rammer_clear(sums)
#define rammer_begin_32x32(sums, to) rammer_begin_16x64(sums, to)
#define rammer_resume_16x64(sums, to) float *sums = to; rammer_take_16x64(sums)
#define rammer_resume_32x32(sums, to) float *sums = to; rammer_take_32x32(sums)
#define rammer_end_16x64(sums, to) rammer_store_16x64(to)
#define rammer_end_32x32(sums, to) rammer_store_32x32(to)
/* 16 x 64 sums: a matrix of b is loaded once, for all parts of a that it is multiplied by. */
#define FIRST(n) MLOAD(7, b + 3 * PART * n); MSUM(n, 4, 7); MSUM(n, 5, 7); MSUM(n, 6, 7);
#define SECOND(n) MLOAD(7, b + (3 * n + 1) * PART); MSUM(n, 4, 7); MSUM(n, 5, 7);
#define THIRD(n) MLOAD(7, b + (3 * n + 2) * PART); MSUM(n, 4, 7);
INLINE void rammer_add_16x64(float *sums, const bf16 *a, const bf16 *b, long blocks) {
  TAKE() MLOAD(4, a); MLOAD(5, a + PART); MLOAD(6, a + 2 * PART);
  FIRST(0) FIRST(1) FIRST(2) FIRST(3) SECOND(0) SECOND(1) SECOND(2) SECOND(3) THIRD(0) THIRD(1) THIRD(2) THIRD(3)
  KEEP()
}
INLINE void rammer_store_16x64(float *sums) {
  GIVE() MSTORE(0, sums, 64); MSTORE(1, sums + 16, 64); MSTORE(2, sums + 32, 64); MSTORE(3, sums + 48, 64);
}
/* 32 x 32 sums: from one product of parts to the next, one operand stays. */
#define ROWS(part) MLOAD(4, a + part * PART); MLOAD(5, a + (3 * blocks + part) * PART);
#define COLUMNS(part) MLOAD(6, b + part * PART); MLOAD(7, b + (3 + part) * PART);
#define SQUARE MSUM(0, 4, 6); MSUM(1, 4, 7); MSUM(2, 5, 6); MSUM(3, 5, 7);
INLINE void rammer_add_32x32(float *sums, const bf16 *a, const bf16 *b, long blocks) {
  TAKE() ROWS(0) COLUMNS(2) SQUARE COLUMNS(1) SQUARE ROWS(1) SQUARE COLUMNS(0) SQUARE ROWS(2) SQUARE ROWS(0) SQUARE
  KEEP()
}
INLINE void rammer_store_32x32(float *sums) {
  GIVE() MSTORE(0, sums, 32); MSTORE(1, sums + 16, 32); MSTORE(2, sums + 512, 32); MSTORE(3, sums + 528, 32);
}
/* Operands of two parts: the product of both second ones is left out. */
#define BOTH(n) MLOAD(7, b + 2 * PART * n); MSUM(n, 4, 7); MSUM(n, 5, 7);
#define OTHER(n) MLOAD(7, b + (2 * n + 1) * PART); MSUM(n, 4, 7);
INLINE void rammer_add_16x64_bf16x2(float *sums, const bf16 *a, const bf16 *b, long blocks) {
  TAKE() MLOAD(4, a); MLOAD(5, a + PART);
  BOTH(0) BOTH(1) BOTH(2) BOTH(3) OTHER(0) OTHER(1) OTHER(2) OTHER(3)
  KEEP()
}
#define HALF_ROWS(part) MLOAD(4, a + part * PART); MLOAD(5, a + (2 * blocks + part) * PART);
#define HALF_COLUMNS(part) MLOAD(6, b + part * PART); MLOAD(7, b + (2 + part) * PART);
INLINE void rammer_add_32x32_bf16x2(float *sums, const bf16 *a, const bf16 *b, long blocks) {
  TAKE() HALF_ROWS(0) HALF_COLUMNS(1) SQUARE HALF_COLUMNS(0) SQUARE HALF_ROWS(1) SQUARE KEEP()
}
/* Operands of one part: rounded. */
#define ONLY(n) MLOAD(7, b + PART * n); MSUM(n, 4, 7);
INLINE void rammer_add_16x64_bf16(float *sums, const bf16 *a, const bf16 *b, long blocks) {
  TAKE() MLOAD(4, a); ONLY(0) ONLY(1) ONLY(2) ONLY(3) KEEP()
}
INLINE void rammer_add_32x32_bf16(float *sums, const bf16 *a, const bf16 *b, long blocks) {
  TAKE() MLOAD(4, a); MLOAD(5, a + blocks * PART); MLOAD(6, b); MLOAD(7, b + PART); SQUARE KEEP()
}
#define rounded part_of
"""
    + COPIES
    + """\
#undef rounded
#define rammer_split_columns_bf16 rammer_rounded_columns
#undef SQUARE                                     /* as the others need arguments, no operand is taken for them */
INLINE void rounded_rows(
    bf16 *restrict to, const float *restrict from, long step, long next, long rows, long depth, long parts) {
  const long blocks = (depth + 31) / 32;
  for (long first = 0; first < rows; first += 16) for (long k = 0; k < depth; k += 32)
    for (long r = first; r < imin(first + 16, rows); r++) {
      bf16 *part = to + parts * PART * (first / 16 * blocks + k / 32) + r % 16 * 32;
      _Pragma("unroll") for (int half = 0; half < 32 / LANES; half++) {
        const float *at = &from[r * step + (k / LANES + half) * next];
        const long deep = depth - k - half * LANES;
        vf left = deep < LANES ? some(at, deep) : V(*at);
        for (int n = 0; n < parts; n++) {
          vw rounded = part_of(left);
          *(vw *)(part + n * PART + half * LANES) = rounded;
          left -= from_bits(__builtin_convertvector(rounded, vi) << 16);
        }
      }
    }
}
typedef uint16_t halves __attribute__((vector_size(64), aligned(2), may_alias));
#define UPPER(a, b) __builtin_shufflevector((halves)(a), (halves)(b), ODD)
/* Three parts take all digits of a float32: to cut them off is as exact as to round, and quicker. */
static void rammer_split_rows(
    bf16 *restrict to, const float *restrict from, long step, long next, long rows, long depth) {
  for (long first = 0; first < rows; first += 16) for (long k = 0; k < depth; k += 32, to += 3 * PART)
    for (long r = first; r < imin(first + 16, rows); r++) {
      const float *at = &from[r * step + k / 16 * next];
      const long deep = depth - k;
      vf a = deep < 16 ? some(at, deep) : V(*at), b = deep < 32 ? some(at + next, deep - 16) : V(at[next]);
      _Pragma("unroll") for (int n = 0; n < 3; n++) {
        *(halves *)(to + r % 16 * 32 + n * PART) = UPPER(a, b);
        a -= from_bits((vi)a & ~0xffff); b -= from_bits((vi)b & ~0xffff);
      }
    }
}
/* Columns that lie as matrices already: `depth` terms of them, in pairs. */
static void rammer_split_32_columns(bf16 *restrict to, const float *restrict from, long columns, long depth) {
  rammer_split_rows(to, from, 32, 16, (depth + 31) / 32 * columns, 32);
}
#define rammer_split_64_columns rammer_split_32_columns
static void rammer_split_rows_bf16x2(
    bf16 *restrict to, const float *restrict from, long step, long next, long rows, long depth) {
  rounded_rows(to, from, step, next, rows, depth, 2);
}
static void rammer_split_rows_bf16(
    bf16 *restrict to, const float *restrict from, long step, long next, long rows, long depth) {
  rounded_rows(to, from, step, next, rows, depth, 1);
}
""".replace("ODD", ", ".join(str(n) for n in range(1, 2 * TERMS, 2)))
)
