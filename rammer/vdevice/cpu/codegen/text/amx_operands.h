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
