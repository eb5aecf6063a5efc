INLINE unsigned mk_tf32(float x) {
  unsigned r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}
INLINE unsigned mk_bf16x2(float low, float high) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
INLINE void mk_mma_of_tf32(float *c, const unsigned *a, const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
INLINE void mk_mma_tf32(float *c, const float *a, const float *b) {
  const unsigned x[] = {mk_tf32(a[0]), mk_tf32(a[1]), mk_tf32(a[2]), mk_tf32(a[3])};
  const unsigned y[] = {mk_tf32(b[0]), mk_tf32(b[1])};
  mk_mma_of_tf32(c, x, y);
}
// The parts of a float32: to nearest, in two instructions and not in cvt.rna's four, and the rest, of which the unit
// takes no notice of the last 13 bits. Of a NaN the first part may be a zero, the rest is the NaN.
INLINE unsigned mk_tf32_near(float x) { return (__float_as_uint(x) + 0x1000u) & 0xffffe000u; }
INLINE unsigned mk_tf32_rest(float x) { return __float_as_uint(x - __uint_as_float(mk_tf32_near(x))); }
INLINE void mk_mma_tf32x3(float *c, const float *a, const float *b) {  // the small products first
  unsigned x[4], y[2], less_x[4], less_y[2];
#pragma unroll
  for (int n = 0; n < 4; n++) x[n] = mk_tf32_near(a[n]), less_x[n] = mk_tf32_rest(a[n]);
#pragma unroll
  for (int n = 0; n < 2; n++) y[n] = mk_tf32_near(b[n]), less_y[n] = mk_tf32_rest(b[n]);
  mk_mma_of_tf32(c, less_x, y);
  mk_mma_of_tf32(c, x, less_y);
  mk_mma_of_tf32(c, x, y);
}
INLINE void mk_mma_bf16(float *c, const float *a, const float *b) {  // terms in an order of ours, the same for a and b
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(mk_bf16x2(a[0], a[2])), "r"(mk_bf16x2(a[1], a[3])), "r"(mk_bf16x2(a[4], a[6])),
        "r"(mk_bf16x2(a[5], a[7])), "r"(mk_bf16x2(b[0], b[1])), "r"(mk_bf16x2(b[2], b[3])));
}
