struct __align__(16) vf {  // 16 bytes: the widest access of a thread
  float x, y, z, w;
  __device__ __forceinline__ float &operator[](int i) { return (&x)[i]; }
};
struct vi { int x, y, z, w; };
#define V(place) (*(vf *)&(place))
INLINE vf mk_vf(float x, float y, float z, float w) { vf v; v.x = x; v.y = y; v.z = z; v.w = w; return v; }
INLINE vi mk_vi(int x, int y, int z, int w) { vi v; v.x = x; v.y = y; v.z = z; v.w = w; return v; }
INLINE vf splat(float x) { return mk_vf(x, x, x, x); }
INLINE vi mask(int x) { x = x != 0; return mk_vi(x, x, x, x); }
#define ARITHMETIC(op) \
  INLINE vf operator op(vf a, vf b) { return mk_vf(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w); } \
  INLINE vf operator op(float a, vf b) { return mk_vf(a op b.x, a op b.y, a op b.z, a op b.w); } \
  INLINE vf operator op(vf a, float b) { return mk_vf(a.x op b, a.y op b, a.z op b, a.w op b); }
ARITHMETIC(+) ARITHMETIC(-) ARITHMETIC(*) ARITHMETIC(/)
#define COMPARISON(op) \
  INLINE vi operator op(vf a, vf b) { return mk_vi(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w); } \
  INLINE vi operator op(float a, vf b) { return splat(a) op b; } \
  INLINE vi operator op(vf a, float b) { return a op splat(b); }
COMPARISON(==) COMPARISON(<) COMPARISON(<=) COMPARISON(>) COMPARISON(>=)
#define MASKS(op) INLINE vi operator op(vi a, vi b) { return mk_vi(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w); }
MASKS(&) MASKS(|) MASKS(^)
INLINE vi operator~(vi a) { return mk_vi(!a.x, !a.y, !a.z, !a.w); }
INLINE vf operator-(vf a) { return mk_vf(-a.x, -a.y, -a.z, -a.w); }
template <class T> INLINE vf &operator+=(vf &a, T b) { a = a + b; return a; }
INLINE vf vsel(vi m, vf a, vf b) { return mk_vf(m.x ? a.x : b.x, m.y ? a.y : b.y, m.z ? a.z : b.z, m.w ? a.w : b.w); }
#define ONE(fn) INLINE vf v##fn(vf a) { return mk_vf(s##fn(a.x), s##fn(a.y), s##fn(a.z), s##fn(a.w)); }
#define TWO(fn) INLINE vf v##fn(vf a, vf b) { \
  return mk_vf(s##fn(a.x, b.x), s##fn(a.y, b.y), s##fn(a.z, b.z), s##fn(a.w, b.w)); }
ONE(abs) ONE(sign) ONE(floor) ONE(ceil) ONE(round) ONE(sqrt)
ONE(exp) ONE(log) ONE(erf) ONE(sigmoid) ONE(tanh) ONE(sin) ONE(cos) ONE(asin) ONE(acos) ONE(atan)
TWO(max) TWO(min) TWO(maxc) TWO(minc) TWO(pow)
INLINE vi vis_nan(vf a) { return mk_vi(sis_nan(a.x), sis_nan(a.y), sis_nan(a.z), sis_nan(a.w)); }
INLINE vi vis_inf(vf a) { return mk_vi(sis_inf(a.x), sis_inf(a.y), sis_inf(a.z), sis_inf(a.w)); }
#define FOLD(fn, step) INLINE float fold_##fn(vf v) { \
  float a = v.x, b = v.z; v.x = step; a = v.y; b = v.w; v.y = step; a = v.x; b = v.y; return step; }
FOLD(add, a + b) FOLD(mul, a * b) FOLD(max, smax(a, b)) FOLD(min, smin(a, b))
#define LANES(make) mk_vf(make(0), n > 1 ? make(1) : 0.0f, n > 2 ? make(2) : 0.0f, n > 3 ? make(3) : 0.0f)
#define PLAIN(i) p[i]
#define HALF(i) (float)p[i]
#define BRAIN(i) from_bf16(p[i])
#define STEP(i) p[(i) * step]
INLINE vf vload(const float *p, int n) { return LANES(PLAIN); }  // the first n lanes; zero in the others
INLINE vf vload_h(const f16 *p, int n) { return LANES(HALF); }
INLINE vf vload_b(const bf16 *p, int n) { return LANES(BRAIN); }
INLINE vf vgather(const float *p, int64_t step, int n) { return LANES(STEP); }
#define STORE(i, value) if (n > i) p[i] = value;
INLINE void vstore(float *p, vf v, int n) { STORE(0, v.x) STORE(1, v.y) STORE(2, v.z) STORE(3, v.w) }
INLINE void vstore_h(f16 *p, vf v, int n) {
  STORE(0, (f16)v.x) STORE(1, (f16)v.y) STORE(2, (f16)v.z) STORE(3, (f16)v.w)
}
INLINE void vstore_b(bf16 *p, vf v, int n) {
  STORE(0, to_bf16(v.x)) STORE(1, to_bf16(v.y)) STORE(2, to_bf16(v.z)) STORE(3, to_bf16(v.w))
}
#define PUT(i, value) if (n > i) p[(i) * step] = value;
INLINE void vscatter(float *p, int64_t step, vf v, int n) { PUT(0, v.x) PUT(1, v.y) PUT(2, v.z) PUT(3, v.w) }
INLINE vf vfirst(int n, vf a, vf b) {  // n lanes of a, then b
  return mk_vf(n > 0 ? a.x : b.x, n > 1 ? a.y : b.y, n > 2 ? a.z : b.z, n > 3 ? a.w : b.w);
}
INLINE vf vround_h(vf a) { return mk_vf((float)(f16)a.x, (float)(f16)a.y, (float)(f16)a.z, (float)(f16)a.w); }
INLINE vf vround_b(vf a) {
  return mk_vf(from_bf16(to_bf16(a.x)), from_bf16(to_bf16(a.y)), from_bf16(to_bf16(a.z)), from_bf16(to_bf16(a.w)));
}
