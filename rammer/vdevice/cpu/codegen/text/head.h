#include <math.h>
#include <stdint.h>
#include <string.h>
typedef float vf __attribute__((vector_size(VBYTES), aligned(4), may_alias));
typedef int vi __attribute__((vector_size(VBYTES), aligned(4), may_alias));
typedef unsigned vu __attribute__((vector_size(VBYTES), aligned(4), may_alias));
typedef _Float16 vh __attribute__((vector_size(HBYTES), aligned(2), may_alias));
typedef uint16_t vw __attribute__((vector_size(HBYTES), aligned(2), may_alias));
typedef uint16_t bf16;
#define INLINE static inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define ROLLED _Pragma("clang loop unroll(disable) vectorize(disable)") /* small code where speed does not matter */
#else
#define ROLLED
#endif
typedef struct { const char *from; long long lines; } rammer_ahead;  /* `ahead` and `context` of runtime.c */
typedef struct { int status; rammer_ahead next; long long *taken; } rammer_context;
typedef struct { long long *taken; long mine, first; } rammer_parts;  /* tickets: those of all vEUs, and one's own */
INLINE long rammer_take(const rammer_parts *p) {
#if __GCC_ATOMIC_LLONG_LOCK_FREE == 2    /* else there is one thread, and all tickets are its own */
  if (p->taken) return __atomic_fetch_add(p->taken, 1, __ATOMIC_RELAXED);
#endif
  return p->mine + 1;
}
INLINE rammer_parts *rammer_begun(long long *taken, rammer_parts *p) {
  p->taken = taken; p->mine = -1; p->mine = rammer_take(p); p->first = 0;
  return p;
}
#define VECTOR(type, x) (*(type *)&(x))           /* the vector that starts at element x */
#define V(x) VECTOR(vf, x)
#if (LANES == 8 && defined(__F16C__)) || (LANES == 16 && defined(__AVX512F__))  /* else clang computes in halves */
INLINE vf from_half(vh x) { vf y; __asm__("vcvtph2ps %1, %0" : "=v"(y) : "v"((vw)x)); return y; }
INLINE vf from_halves(const vh *p) { vf y; __asm__("vcvtph2ps %1, %0" : "=v"(y) : "m"(*p)); return y; }
#else
INLINE vf from_half(vh x) { return __builtin_convertvector(x, vf); }
INLINE vf from_halves(const vh *p) { return from_half(*p); }
#endif
#define VH(x) from_halves((vh *)&(x))
#define VB(x) from_bits(__builtin_convertvector(*(vw *)&(x), vi) << 16)
INLINE vf splat(float x) { return x - (vf){0}; }
INLINE vf vsplat(float x) { return splat(x); }
INLINE vi mask(int x) { return (vi){0} - (x != 0); }
INLINE vf from_bits(vi x) { return (vf)x; }
INLINE vi vsplat_i(int x) { return x - (vi){0}; }
INLINE vi vsel_i(vi m, vi a, vi b) { return (a & m) | (b & ~m); }
INLINE vf vsel(vi m, vf a, vf b) { return (vf)vsel_i(m, (vi)a, (vi)b); }
INLINE vi vbits(vf x) { return (vi)x; }
INLINE vf vfloat(vi x) { return (vf)x; }
INLINE vf vint(vi x) { return __builtin_convertvector(x, vf); }
INLINE vi vtruncated(vf x) {                      /* the low byte is right: other floats are multiples of 256 */
#if !defined(__x86_64__) && !defined(__i386__)   /* there they become the lowest integer, elsewhere others */
  x = vsel((x < 2147483648.0f) & (x > -2147483648.0f), x, splat(0.0f));
#endif
  return __builtin_convertvector(x, vi);
}
INLINE vi vclipped(vf x, int low, int high) {     /* after truncation: stores of bytes have instructions for it */
  vi i = __builtin_convertvector(vsel(x > 1073741824.0f, splat(1073741824.0f), x), vi);
  i = vsel_i(i < low, vsplat_i(low), i);
  return vsel_i(i > high, vsplat_i(high), i);
}
INLINE int sclipped(float x, int low, int high) {
  int i = (int)(x > 1073741824.0f ? 1073741824.0f : x);
  return i < low ? low : i > high ? high : i;
}
INLINE vw vbf16(vf x) {
  vu u = (vu)x, r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return __builtin_convertvector((vu)vsel_i((vi)(x != x), (vi)((u >> 16) | 64), (vi)r), vw);
}
INLINE vf vround_h(vf x) { return from_half(__builtin_convertvector(x, vh)); }
INLINE vf vround_b(vf x) { return from_bits(__builtin_convertvector(vbf16(x), vi) << 16); }
#if LANES == 16 && defined __AVX512F__           /* lanes that are masked out touch no memory */
#define MASKED(how, p, v, mask) __builtin_ia32_##how##ups512_mask(p, v, mask)
#endif
INLINE vf vload(const float *p, int n) {          /* the first n lanes; zero in the others */
  vf v = {0};
#ifdef MASKED
  if (n & (n - 1)) return MASKED(load, p, v, (1 << n) - 1);
#endif
  for (int k = LANES / 2, i = 0; k; k /= 2) if (n & k) { memcpy((char *)&v + 4 * i, p + i, 4 * k); i += k; }
  return v;
}
INLINE void vstore(float *p, vf v, int n) {
#ifdef MASKED
  if (n & (n - 1)) { MASKED(store, p, v, (1 << n) - 1); return; }
#endif
  for (int k = LANES / 2, i = 0; k; k /= 2) if (n & k) { memcpy(p + i, (char *)&v + 4 * i, 4 * k); i += k; }
}
INLINE vf vload_h(const _Float16 *p, int n) { vh v = {0}; memcpy(&v, p, 2 * n); return from_half(v); }
INLINE vf vload_b(const bf16 *p, int n) {
  vw v = {0}; memcpy(&v, p, 2 * n);
  return from_bits(__builtin_convertvector(v, vi) << 16);
}
INLINE void vstore_h(_Float16 *p, vf v, int n) { vh h = __builtin_convertvector(v, vh); memcpy(p, &h, 2 * n); }
INLINE void vstore_b(bf16 *p, vf v, int n) { vw h = vbf16(v); memcpy(p, &h, 2 * n); }
#ifdef MASKED
INLINE vf vsecond(const float *p, int first, int end) {       /* every second number, to lanes from the first on */
  vf v = {0};
  const unsigned there = ((1ull << (2 * end - 1)) - 1) & ~((1ull << 2 * first) - 1);
  vf a = MASKED(load, p, v, there & 0xffff), b = MASKED(load, p + 16, v, there >> 16);
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
#endif
INLINE vf vgather(const float *p, long step, int n) {
  vf v = {0};
#ifdef MASKED
  if (__builtin_constant_p(step) && step == 2) return vsecond(p, 0, n);
#endif
  for (int i = 0; i < n; i++) v[i] = p[i * step];
  return v;
}
INLINE vf vload_from(const float *p, int first, int n) {  /* n lanes from the first on; zero in the others */
  vf v = {0};
#ifdef MASKED
  return MASKED(load, p - first, v, ((1 << n) - 1) << first);
#endif
  for (int k = LANES / 2, i = 0; k; k /= 2) if (n & k) { memcpy((char *)&v + 4 * (first + i), p + i, 4 * k); i += k; }
  return v;
}
INLINE vf vgather_from(const float *p, long step, int first, int n) {
  vf v = {0};
#ifdef MASKED
  if (__builtin_constant_p(step) && step == 2) return vsecond(p - 2 * first, first, first + n);
#endif
  for (int i = 0; i < n; i++) v[first + i] = p[i * step];
  return v;
}
INLINE void vscatter(float *p, long step, vf v, int n) {
  float t[LANES]; memcpy(t, &v, sizeof t);
  ROLLED for (int i = 0; i < n; i++) p[i * step] = t[i];
}
INLINE vf vfirst(int n, vf a, vf b) {             /* n lanes of a, then b */
  vi lane; for (int i = 0; i < LANES; i++) lane[i] = i;
  return vsel(lane < n, a, b);
}
#if defined(__clang__)
#define LANEWISE(name, scalar) INLINE vf v##name(vf x) { return __builtin_elementwise_##scalar(x); }
#else
#define LANEWISE(name, scalar) INLINE vf v##name(vf x) { \
  for (int i = 0; i < LANES; i++) x[i] = scalar##f(x[i]); return x; }
#endif
LANEWISE(floor, floor)
LANEWISE(ceil, ceil)
LANEWISE(round, rint)
LANEWISE(sqrt, sqrt)
#undef LANEWISE
