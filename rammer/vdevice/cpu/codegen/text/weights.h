/* `vlow_bits`: numbers of up to four bits, minus a constant, looked up in a vector of 16 floats. `vadd_dot_bytes`: adds
   to each number of a the products of its four bytes, unsigned ones of b and signed ones of c. */
#if defined(__AVX512F__) && LANES == 16
INLINE vf vlow_bits(vi x, int mask, float zero) {
  vf all;
  #pragma unroll
  for (int n = 0; n < 16; n++) all[n] = (float)(n & mask) - zero;
#if defined(__clang__)
  return __builtin_ia32_permvarsf512(all, x);
#else
  return __builtin_shuffle(all, x);
#endif
}
#else
INLINE vf vlow_bits(vi x, int mask, float zero) { return __builtin_convertvector(x & mask, vf) - zero; }
#endif
#if defined(__AVX512VNNI__) && LANES == 16
INLINE vi vadd_dot_bytes(vi a, vi b, vi c) { __asm__("vpdpbusd %2, %1, %0" : "+v"(a) : "v"(b), "v"(c)); return a; }
#else
INLINE vi vadd_dot_bytes(vi a, vi b, vi c) {
  #pragma unroll
  for (int n = 0; n < 32; n += 8) a += (b >> n & 255) * (c << (24 - n) >> 24);
  return a;
}
#endif
INLINE int four_bytes(const void *p) { int n; memcpy(&n, p, 4); return n; }  /* every CPU has the first one lowest */
INLINE vi vi_dot_bytes(vi b, vi c) { return vadd_dot_bytes(vi_splat(0), b, c); }
