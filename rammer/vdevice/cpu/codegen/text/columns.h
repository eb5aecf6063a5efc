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
