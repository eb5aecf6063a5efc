INLINE vl vl_mask(int x) { return (vl){0} - (x != 0); }
INLINE vl vd_is_nan(vd x) { return x != x; }
INLINE vl vd_is_inf(vd x) { return vd_abs(x) == INFINITY; }
#define EACH(name, scalar) INLINE vd vd_##name(vd x) { double t[LANES]; memcpy(t, &x, sizeof t); \
  ROLLED for (int i = 0; i < LANES; i++) t[i] = scalar(t[i]); memcpy(&x, t, sizeof t); return x; }
EACH(exp, dexp)
EACH(log, dlog)
EACH(tanh, dtanh)
EACH(sigmoid, dsigmoid)
EACH(erf, derf)
EACH(sin, dsin)
EACH(cos, dcos)
EACH(asin, dasin)
EACH(acos, dacos)
EACH(atan, datan)
#undef EACH
#define EACH(name, scalar) INLINE vd vd_##name(vd x, vd y) { \
  double s[LANES], t[LANES]; memcpy(s, &x, sizeof s); memcpy(t, &y, sizeof t); \
  ROLLED for (int i = 0; i < LANES; i++) s[i] = scalar(s[i], t[i]); \
  memcpy(&x, s, sizeof s); return x; }
EACH(pow, dpow)
EACH(fmod, dfmod)
#undef EACH
#if defined(__clang__)
#define EACH(name, scalar) INLINE vd vd_##name(vd x) { return __builtin_elementwise_##scalar(x); }
#else
#define EACH(name, scalar) INLINE vd vd_##name(vd x) { for (int i = 0; i < LANES; i++) x[i] = scalar(x[i]); return x; }
#endif
EACH(floor, floor)
EACH(ceil, ceil)
EACH(round, rint)
EACH(sqrt, sqrt)
#undef EACH
