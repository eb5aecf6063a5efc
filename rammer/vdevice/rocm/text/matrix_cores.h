typedef float mk_f4 __attribute__((ext_vector_type(4)));
typedef short mk_s4 __attribute__((ext_vector_type(4)));
#if defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__)
INLINE void mk_mfma_f32(float *c, const float *a, const float *b) {
  mk_f4 sums = {c[0], c[1], c[2], c[3]};
  sums = __builtin_amdgcn_mfma_f32_16x16x4f32(a[0], b[0], sums, 0, 0, 0);
  for (int r = 0; r < 4; r++) c[r] = sums[r];
}
#endif
#if defined(__gfx90a__) || defined(__gfx942__)
INLINE mk_s4 mk_bf16x4(const float *p) {
  return mk_s4{(short)to_bf16(p[0]), (short)to_bf16(p[1]), (short)to_bf16(p[2]), (short)to_bf16(p[3])};
}
INLINE void mk_mfma_bf16(float *c, const float *a, const float *b) {
  mk_f4 sums = {c[0], c[1], c[2], c[3]};
  sums = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(mk_bf16x4(a), mk_bf16x4(b), sums, 0, 0, 0);
  for (int r = 0; r < 4; r++) c[r] = sums[r];
}
#endif
#if defined(__gfx1201__)
typedef float mk_f8 __attribute__((ext_vector_type(8)));
typedef short mk_s8 __attribute__((ext_vector_type(8)));
INLINE mk_s8 mk_bf16x8(const float *p) {
  mk_s8 x;
  for (int r = 0; r < 8; r++) x[r] = (short)to_bf16(p[r]);
  return x;
}
INLINE void mk_wmma_bf16(float *c, const float *a, const float *b) {
  mk_f8 sums;
  for (int r = 0; r < 8; r++) sums[r] = c[r];
  sums = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(mk_bf16x8(a), mk_bf16x8(b), sums);
  for (int r = 0; r < 8; r++) c[r] = sums[r];
}
#endif
