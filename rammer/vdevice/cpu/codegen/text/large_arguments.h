INLINE vl vd_bits(vd x) { return (vl)x; }
INLINE vd vd_float(vl x) { return (vd)x; }
INLINE vd vdouble(vf x) { return __builtin_convertvector(x, vd); }
INLINE vf vsingle(vd x) { return __builtin_convertvector(x, vf); }
INLINE int vmost(vi x) { return vi_fold_max(x); }
INLINE double dsel(int m, double a, double b) { return m ? a : b; }
INLINE double dsplat(double x) { return x; }
INLINE double sdouble(float x) { return (double)x; }
INLINE float ssingle(double x) { return (float)x; }
INLINE int smost(int x) { return x; }
#define EACH(name) INLINE float s##name##_large(float x, float y) { return name##f(x); } \
  static __attribute__((noinline)) vf v##name##_large(vf x, vf y) { \
    ROLLED for (int i = 0; i < LANES; i++) if (!(fabsf(x[i]) < 1048576.0f)) y[i] = name##f(x[i]); return y; }
EACH(sin)
EACH(cos)
#undef EACH
INLINE float sfmod_any(float x, float y) { return fmodf(x, y); }
static __attribute__((noinline)) vf vfmod_any(vf x, vf y) {
  ROLLED for (int i = 0; i < LANES; i++) x[i] = fmodf(x[i], y[i]);
  return x;
}
