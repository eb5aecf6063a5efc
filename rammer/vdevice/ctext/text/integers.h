#define imax(a, b) ((a) > (b) ? (a) : (b))
#define imin(a, b) ((a) < (b) ? (a) : (b))
#define isign(a) (((a) > 0) - ((a) < 0))
INLINE int64_t iabs(int64_t a) { return a < 0 ? (int64_t)(0 - (uint64_t)a) : a; }
INLINE int64_t idiv(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b; }
INLINE int64_t ifmod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
INLINE int64_t imod(int64_t a, int64_t b) { int64_t r = ifmod(a, b); return r && (r < 0) != (b < 0) ? r + b : r; }
INLINE int64_t ishift_left(int64_t a, int64_t b) { return b < 0 || b > 63 ? 0 : (int64_t)((uint64_t)a << b); }
INLINE int64_t ishift_right(int64_t a, int64_t b) { return a >> (b < 0 || b > 63 ? 63 : b); }
INLINE int64_t ipow(int64_t a, int64_t b) {
  if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;  /* 1 / a^n, toward zero */
  uint64_t r = 1, x = (uint64_t)a;
  for (; b > 0; b >>= 1, x *= x) if (b & 1) r *= x;
  return (int64_t)r;
}
INLINE int32_t idot_bytes(int64_t a, int64_t b) {
  int32_t sum = 0;
  for (int n = 0; n < 32; n += 8) sum += (int32_t)(a >> n & 255) * (int8_t)(b >> n);
  return sum;
}
INLINE int32_t ijoin_bytes(int32_t a, int32_t b, int32_t c, int32_t d) {
  return (int32_t)((uint32_t)(a & 255) | (uint32_t)(b & 255) << 8 | (uint32_t)(c & 255) << 16 | (uint32_t)d << 24);
}
#define umax imax
#define umin imin
#define usign(a) ((a) > 0)
#define uabs(a) (a)
#define ufmod umod
INLINE uint64_t udiv(uint64_t a, uint64_t b) { return b == 0 ? 0 : a / b; }
INLINE uint64_t ushift_left(uint64_t a, uint64_t b) { return b > 63 ? 0 : a << b; }
INLINE uint64_t ushift_right(uint64_t a, uint64_t b) { return b > 63 ? 0 : a >> b; }
INLINE uint64_t umod(uint64_t a, uint64_t b) { return b == 0 ? 0 : a % b; }
INLINE uint64_t upow(uint64_t a, uint64_t b) {
  uint64_t r = 1;
  for (; b > 0; b >>= 1, a *= a) if (b & 1) r *= a;
  return r;
}
