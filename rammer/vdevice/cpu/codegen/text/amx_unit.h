enum { PART = 512 };                              /* numbers of a matrix; three parts make as many float32 */
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define MLOAD(m, from) MTAKE(m, from, 16)
#define MSTORE(m, to, step) \
  __asm__ volatile("tilestored %%tmm" #m ", (%0,%1,1)" :: "r"(to), "r"(4L * (step)) : "memory")
#define MTAKE(m, from, step) \
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
