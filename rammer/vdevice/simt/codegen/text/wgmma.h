#ifdef __CUDA_ARCH_FEAT_SM90_ALL
INLINE unsigned mk_scratch_at(const void *p) {
  unsigned at;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(p));
  return at;
}
INLINE void mk_show_units() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
struct __align__(8) mk_u2 { unsigned x, y; };
INLINE void mk_put_bf16x1(bf16 *p, int at, vf v) { *(mk_u2 *)(p + at) = {mk_bf16x2(v.x, v.y), mk_bf16x2(v.z, v.w)}; }
INLINE float mk_near(float x) { return __uint_as_float(mk_tf32_near(x)); }
INLINE vf mk_near(vf v) { return mk_vf(mk_near(v.x), mk_near(v.y), mk_near(v.z), mk_near(v.w)); }
INLINE void mk_put_f32x1(float *p, int at, vf v) { V(p[at]) = mk_near(v); }
INLINE void mk_put_f32x2(float *p, int at, vf v) {
  const vf first = mk_near(v);
  p += at + (at & ~31);
  V(p[0]) = first;
  V(p[32]) = v - first;
}
