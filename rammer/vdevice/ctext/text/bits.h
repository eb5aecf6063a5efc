INLINE int sbits(float x) { union { float f; int i; } u; u.f = x; return u.i; }
INLINE float sfloat(int x) { union { float f; int i; } u; u.i = x; return u.f; }
INLINE float from_bf16(bf16 x) { return sfloat((int)((uint32_t)x << 16)); }
INLINE bf16 to_bf16(float f) {  /* to nearest, ties to even; NaN stays NaN */
  uint32_t u = (uint32_t)sbits(f);
  return f != f ? (bf16)((u >> 16) | 64) : (bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
INLINE float sint(int x) { return (float)x; }
INLINE float ssel(int m, float a, float b) { return m ? a : b; }
INLINE float ssplat(float x) { return x; }
INLINE int ssel_i(int m, int a, int b) { return m ? a : b; }
INLINE int ssplat_i(int x) { return x; }
