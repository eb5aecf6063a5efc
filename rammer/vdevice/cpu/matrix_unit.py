"""C text of products on the matrix unit of x86 CPUs (AMX), which multiplies bf16 numbers and sums in float32.

A matrix of 16 rows and 64 bytes lies in each of eight registers: four hold sums, the others operands. A block of 32
terms has six products of parts, in an order in which the unit finds many of its operands in registers. Compilers
without the unit get the same in loops, for tests.
"""

from __future__ import annotations

MATRIX_UNIT = """\
enum { PART = 512 };                              /* numbers of a matrix; three parts make as many float32 */
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define MLOAD(m, from) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #m :: "r"(from), "r"(64L) : "memory")
#define MSTORE(m, to, step) \\
  __asm__ volatile("tilestored %%tmm" #m ", (%0,%1,1)" :: "r"(to), "r"(4L * (step)) : "memory")
#define MZERO(m) __asm__ volatile("tilezero %%tmm" #m ::)
#define MSUM(m, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #m ::)
static const struct { uint8_t palette, start, zero[14]; uint16_t bytes[16]; uint8_t rows[16]; } matrices =
  { 1, 0, { 0 }, { 64, 64, 64, 64, 64, 64, 64, 64 }, { 16, 16, 16, 16, 16, 16, 16, 16 } };
INLINE void rammer_unit_begin(void) { __asm__ volatile("ldtilecfg %0" :: "m"(matrices)); }
INLINE void rammer_unit_end(void) { __asm__ volatile("tilerelease" ::); }
INLINE void rammer_clear(float *sums, long count) { MZERO(0); MZERO(1); MZERO(2); MZERO(3); }
INLINE vw part_of(vf x) { vw part; __asm__("vcvtneps2bf16 %1, %0" : "=v"(part) : "v"(x)); return part; }
/* 16 x 64 sums: a matrix of b is loaded once, for all parts of a that it is multiplied by. */
#define FIRST(n) MLOAD(7, b + 3 * PART * n); MSUM(n, 4, 7); MSUM(n, 5, 7); MSUM(n, 6, 7);
#define SECOND(n) MLOAD(7, b + (3 * n + 1) * PART); MSUM(n, 4, 7); MSUM(n, 5, 7);
#define THIRD(n) MLOAD(7, b + (3 * n + 2) * PART); MSUM(n, 4, 7);
INLINE void rammer_add_16x64(float *sums, const bf16 *a, const bf16 *b, long blocks) {
  MLOAD(4, a); MLOAD(5, a + PART); MLOAD(6, a + 2 * PART);
  FIRST(0) FIRST(1) FIRST(2) FIRST(3) SECOND(0) SECOND(1) SECOND(2) SECOND(3) THIRD(0) THIRD(1) THIRD(2) THIRD(3)
}
INLINE void rammer_store_16x64(float *sums) {
  MSTORE(0, sums, 64); MSTORE(1, sums + 16, 64); MSTORE(2, sums + 32, 64); MSTORE(3, sums + 48, 64);
}
/* 32 x 32 sums: from one product of parts to the next, one operand stays. */
#define ROWS(part) MLOAD(4, a + part * PART); MLOAD(5, a + (3 * blocks + part) * PART);
#define COLUMNS(part) MLOAD(6, b + part * PART); MLOAD(7, b + (3 + part) * PART);
#define SQUARE MSUM(0, 4, 6); MSUM(1, 4, 7); MSUM(2, 5, 6); MSUM(3, 5, 7);
INLINE void rammer_add_32x32(float *sums, const bf16 *a, const bf16 *b, long blocks) {
  ROWS(0) COLUMNS(2) SQUARE COLUMNS(1) SQUARE ROWS(1) SQUARE COLUMNS(0) SQUARE ROWS(2) SQUARE ROWS(0) SQUARE
}
INLINE void rammer_store_32x32(float *sums) {
  MSTORE(0, sums, 32); MSTORE(1, sums + 16, 32); MSTORE(2, sums + 512, 32); MSTORE(3, sums + 528, 32);
}
#undef SQUARE                                     /* as the others need arguments, no operand is taken for them */
#else
INLINE void rammer_unit_begin(void) {}
INLINE void rammer_unit_end(void) {}
INLINE void rammer_clear(float *sums, long count) { memset(sums, 0, 4 * count); }
INLINE vw part_of(vf x) { return vbf16(x); }
static void add(float *sums, const bf16 *a, const bf16 *b, long blocks, long rows, long columns) {
  for (long r = 0; r < rows; r++) for (long c = 0; c < columns; c++) for (long k = 0; k < 32; k++) {
    const bf16 *p = a + 3 * PART * blocks * (r / 16) + r % 16 * 32 + k;
    const bf16 *q = b + 3 * PART * (c / 16) + k / 2 * 32 + c % 16 * 2 + k % 2;
    float x[3], y[3];
    for (int n = 0; n < 3; n++) { x[n] = from_bf16(p[n * PART]); y[n] = from_bf16(q[n * PART]); }
    sums[r * columns + c] += x[0] * y[0] + (x[0] * y[1] + x[1] * y[0] + (x[0] * y[2] + x[1] * y[1] + x[2] * y[0]));
  }
}
#define ADD(rows, columns) INLINE void rammer_add_##rows##x##columns( \\
  float *sums, const bf16 *a, const bf16 *b, long blocks) { add(sums, a, b, blocks, rows, columns); }
ADD(16, 64)
ADD(32, 32)
INLINE void rammer_store_16x64(float *sums) {}
INLINE void rammer_store_32x32(float *sums) {}
#endif
static void rammer_split_rows(
    bf16 *restrict to, const float *restrict from, long step, long next, long rows, long depth) {
  for (long r = 0; r < rows; r++) for (long k = 0; k < depth; k += LANES) {
    bf16 *part = to + 3 * PART * (r / 16 * (depth / 32) + k / 32) + r % 16 * 32 + k % 32;
    vf left = V(from[r * step + k / LANES * next]);
    for (int n = 0; n < 3; n++, part += PART) {
      vw rounded = part_of(left);
      *(vw *)part = rounded;
      left -= from_bits(__builtin_convertvector(rounded, vi) << 16);
    }
  }
}
"""
