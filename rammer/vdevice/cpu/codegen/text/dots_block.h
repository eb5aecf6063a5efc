#define EACH(n, count) _Pragma("unroll") for (int n = 0; n < count; n++)
#define ROUNDED_BLOCK(form, vectors) \
typedef vf rammer_sums_##form[8][vectors];                                      \
INLINE void rammer_add_##form##_bf16(rammer_sums_##form sums, const bf16 *a, const bf16 *b, long blocks) { \
  for (int k = 0; k < 16; k++) {                                                \
    vu y[vectors];                                                              \
    EACH(v, vectors) y[v] = *(const vu *)&b[512 * v + 32 * k];                  \
    EACH(r, 8) {                                                                \
      vu x = *(const pair *)&a[32 * r + 2 * k] - (vu){0};                       \
      EACH(v, vectors) add_pairs(&sums[r][v], x, y[v]);                         \
    }                                                                           \
  }                                                                             \
}                                                                               \
INLINE void rammer_end_##form(rammer_sums_##form sums, float *restrict to) {    \
  EACH(r, 8) EACH(v, vectors) V(to[16 * (vectors * r + v)]) = sums[r][v];       \
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
