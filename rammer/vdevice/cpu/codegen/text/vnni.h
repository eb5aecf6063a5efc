typedef unsigned vn __attribute__((vector_size(64), aligned(4), may_alias));  /* sums that wrap around */
typedef uint32_t four __attribute__((may_alias, aligned(1)));                  /* terms of a row */
typedef uint8_t b16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint8_t b8 __attribute__((vector_size(8), aligned(1), may_alias));
typedef uint16_t w8 __attribute__((vector_size(16), aligned(1), may_alias));
#if defined(__AVX512VNNI__)
INLINE void add_products(vn *sums, vn a, vn b) { __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(a), "v"(b)); }
#elif defined(__AVX2__)
typedef short w16 __attribute__((vector_size(32), may_alias));
typedef short w32 __attribute__((vector_size(64), may_alias));
typedef unsigned short u32 __attribute__((vector_size(64), may_alias));
#if defined(__AVX512BW__)  /* sums of two products each; int32 holds them */
INLINE vn pair_products(w32 a, w32 b) {
  vn made; __asm__("vpmaddwd %2, %1, %0" : "=v"(made) : "v"(a), "v"(b)); return made;
}
#else
INLINE vn pair_products(w32 a, w32 b) {
  #define HALF(x, n) __builtin_shufflevector(x, x, n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, n + 9, \
    n + 10, n + 11, n + 12, n + 13, n + 14, n + 15)
  w16 low = (w16)__builtin_ia32_pmaddwd256(HALF(a, 0), HALF(b, 0));
  w16 high = (w16)__builtin_ia32_pmaddwd256(HALF(a, 16), HALF(b, 16));
  #undef HALF
  vn both; memcpy(&both, &low, 32); memcpy((char *)&both + 32, &high, 32);
  return both;
}
#endif
INLINE void add_products(vn *sums, vn a, vn b) {  /* of even bytes, and of odd ones */
  *sums += pair_products((w32)a & 255, (w32)b << 8 >> 8) + pair_products((w32)((u32)a >> 8), (w32)b >> 8);
}
#else
INLINE void add_products(vn *sums, vn a, vn b) {
  for (long c = 0; c < 16; c++) for (int k = 0; k < 4; k++)
    (*sums)[c] += (unsigned)((int)(a[c] >> (8 * k) & 255) * (int8_t)(b[c] >> (8 * k)));
}
#endif
#define EACH(n, count) _Pragma("unroll") for (int n = 0; n < count; n++)
#define BYTES_BLOCK(form, rows, width, vectors, A, B, a_at, b_at, add) \
INLINE void rammer_##rows##x##width##_##form( \
    int32_t *restrict to, const A *restrict a, const B *restrict b, long steps) { \
  vn sums[rows][vectors];                                                       \
  EACH(r, rows) EACH(v, vectors) sums[r][v] = (vn){0};                          \
  for (long k = 0; k < steps; k++) {                                            \
    vn y[vectors];                                                              \
    EACH(v, vectors) y[v] = *(const vn *)&b[64 * (b_at)];                       \
    EACH(r, rows) { vn x = *(const four *)&a[4 * (a_at)] - (vn){0}; EACH(v, vectors) add; } \
  }                                                                             \
  EACH(r, rows) EACH(v, vectors) *(vn *)&to[16 * (vectors * r + v)] = sums[r][v]; \
}
#define BY_WEIGHTS(rows, width, vectors) BYTES_BLOCK(u8i8, rows, width, vectors, uint8_t, int8_t, \
  steps * r + k, vectors * k + v, add_products(&sums[r][v], x, y[v]))
#define BY_PLACES(rows, width, vectors) BYTES_BLOCK(i8u8, rows, width, vectors, int8_t, uint8_t, \
  rows * k + r, steps * v + k, add_products(&sums[r][v], y[v], x))
BLOCKS
/* Rows one after the other, each filled up to whole fours; `step` from row to row, `next` from vector to vector. */
#define BYTES_ROWS(name, beside, bytes) \
static void rammer_##name(uint8_t *restrict to, const uint8_t *restrict from, long step, long next, long rows, long depth) { \
  const long width = (depth + 3) / 4 * 4;                                       \
  for (long r = 0; r < rows; r++, to += width, from += step) {                  \
    long k = 0;                                                                 \
    if (next == beside) memcpy(to, from, k = depth);                            \
    for (; k + beside <= depth; k += beside) *(bytes *)&to[k] = *(const bytes *)&from[k / beside * next]; \
    if (k < depth) memcpy(&to[k], &from[k / beside * next], depth - k);         \
    memset(&to[depth], 0, width - depth);                                       \
  }                                                                             \
}
BYTES_ROWS(bytes_rows, 16, b16)
BYTES_ROWS(bytes_rows_8, 8, b8)
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
    #define ZIP(a, b, half) __builtin_shufflevector(a, b, half, half + 16, half + 1, half + 17, half + 2, half + 18, \
      half + 3, half + 19, half + 4, half + 20, half + 5, half + 21, half + 6, half + 22, half + 7, half + 23)
    #define ZIP2(a, b, half) __builtin_shufflevector((w8)(a), (w8)(b), \
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
#undef BYTES_ROWS
#undef BY_WEIGHTS
#undef BY_PLACES
