// The part of <math.h> that kernels may use. The functions are in the process already; see toolchain.py.
#ifndef RAMMER_MATH_H
#define RAMMER_MATH_H
#define ONE(name) double name(double); float name##f(float);
#define TWO(name) double name(double, double); float name##f(float, float);
ONE(acos) ONE(asin) ONE(atan) ONE(acosh) ONE(asinh) ONE(atanh) ONE(cos) ONE(sin) ONE(tan) ONE(cosh) ONE(sinh) ONE(tanh)
ONE(exp) ONE(exp2) ONE(expm1) ONE(log) ONE(log2) ONE(log10) ONE(log1p) ONE(sqrt) ONE(cbrt) ONE(erf) ONE(erfc)
ONE(fabs) ONE(floor) ONE(ceil) ONE(trunc) ONE(round) ONE(rint) ONE(nearbyint) ONE(tgamma) ONE(lgamma)
TWO(pow) TWO(fmod) TWO(remainder) TWO(atan2) TWO(hypot) TWO(fmax) TWO(fmin) TWO(fdim) TWO(copysign)
double fma(double, double, double);
float fmaf(float, float, float);
double ldexp(double, int);
float ldexpf(float, int);
long lrint(double);
long lrintf(float);
#undef ONE
#undef TWO
#define INFINITY __builtin_inff()
#define HUGE_VAL __builtin_huge_val()
#define NAN __builtin_nanf("")
#define M_PI 3.14159265358979323846
#define M_SQRT1_2 0.70710678118654752440
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)
#endif
