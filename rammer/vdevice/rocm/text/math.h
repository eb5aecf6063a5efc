#define fabsf __builtin_fabsf
#define floorf __builtin_floorf
#define ceilf __builtin_ceilf
#define rintf __builtin_rintf
#define sqrtf __builtin_sqrtf
#define copysignf __builtin_copysignf
#define fmodf __builtin_fmodf
#define expf __builtin_expf
#define logf __builtin_logf
#define fabs __builtin_fabs
#define floor __builtin_floor
#define ceil __builtin_ceil
#define rint __builtin_rint
#define sqrt __builtin_sqrt
#define copysign __builtin_copysign
#define fmod __builtin_fmod
INLINE double mk_expm1(double x, double *scale) {  // x = n log 2 + r: the series of e^r - 1, and 2^n
  x = x > 1500 ? 1500 : x < -1500 ? -1500 : x;
  double n = rint(x * 1.4426950408889634);
  double r = __builtin_fma(n, -1.90821492927058770002e-10, __builtin_fma(n, -6.93147180369123816490e-01, x));
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  *scale = n;
  return p * r * r + r;
}
INLINE double mk_exp(double x) {
  double n, p = mk_expm1(x, &n);
  return x != x ? x : __builtin_ldexp(1.0 + p, (int)n);
}
INLINE double mk_log(double x) {
  int e;
  double m = __builtin_frexp(x, &e);
  if (m < 0.70710678118654752) { m += m; e--; }
  double f = m - 1, s = f / (2 + f), z = s * s, half = 0.5 * f * f;
  double p = 1.479819860511658591e-01;
  p = p * z + 1.531383769920937332e-01;
  p = p * z + 1.818357216161805012e-01;
  p = p * z + 2.222219843214978396e-01;
  p = p * z + 2.857142874366239149e-01;
  p = p * z + 3.999999999940941908e-01;
  p = p * z + 6.666666666666735130e-01;
  double y = e * 6.93147180369123816490e-01 - ((half - (s * (half + p * z) + e * 1.90821492927058770002e-10)) - f);
  return x == 0 ? -(double)INFINITY : x < 0 ? (double)NAN : x - x != 0 ? x : y;
}
INLINE double mk_wave(double x, int turn) {  // sin(x + turn * pi / 2)
  if (fabs(x) > 1e9) x = fmod(x, 6.283185307179586);
  double n = rint(x * 0.63661977236758134);
  double r = __builtin_fma(n, -6.123233995736766e-17, __builtin_fma(n, -1.5707963267948966, x));
  double z = r * r;
  double s = 1.58969099521155010221e-10;
  s = s * z - 2.50507602534068634195e-08;
  s = s * z + 2.75573137070700676789e-06;
  s = s * z - 1.98412698298579493134e-04;
  s = s * z + 8.33333333332248946124e-03;
  s = s * z - 1.66666666666666324348e-01;
  double c = -1.13596475577881948265e-11;
  c = c * z + 2.08757232129817482790e-09;
  c = c * z - 2.75573143513906633035e-07;
  c = c * z + 2.48015872894767294178e-05;
  c = c * z - 1.38888888888741095749e-03;
  c = c * z + 4.16666666666666019037e-02;
  int q = (int)(int64_t)(x - x == 0 ? n : 0) + turn;
  double y = q & 1 ? 1 - (0.5 * z - c * z * z) : s * z * r + r;
  return x - x != 0 ? (double)NAN : q & 2 ? -y : y;
}
INLINE double mk_sin(double x) { return mk_wave(x, 0); }
INLINE double mk_cos(double x) { return mk_wave(x, 1); }
INLINE double mk_tanh(double x) {
  double n, a = fabs(x), p = mk_expm1(a + a, &n), scale = __builtin_ldexp(1.0, (int)n);
  double t = scale * p + (scale - 1);
  return x != x ? x : copysign(a > 20 ? 1.0 : t / (t + 2), x);
}
INLINE double mk_atan(double x) {  // by angles of 90 and 45 degrees to |t| < 0.415, whose series is short
  double a = fabs(x), t = a > 1 ? 1 / a : a, p = 0;
  int high = t > 0.41421356237309503;
  t = high ? (t - 1) / (t + 1) : t;
  for (int k = 22; k >= 0; k--) p = 1.0 / (2 * k + 1) - t * t * p;
  double y = t * p + (high ? 0.78539816339744828 : 0.0);
  return copysign(a > 1 ? 1.5707963267948966 - y : y, x);
}
INLINE double mk_asin(double x) { return mk_atan(x / sqrt((1 - x) * (1 + x))); }
INLINE double mk_acos(double x) { return 2 * mk_atan(sqrt((1 - x) / (1 + x))); }
INLINE double mk_erf(double x) {  // 2 / sqrt(pi) e^-xx sum of x (2xx)^k / (2k + 1)!!: nothing cancels
  double a = fabs(x), term = a, sum = a;
  if (a > 6) return copysign(1.0, x);
  for (int k = 1; k < 160; k++) {
    term *= 2 * a * a / (2 * k + 1);
    sum += term;
  }
  return copysign(1.1283791670955126 * mk_exp(-a * a) * sum, x);
}
INLINE double mk_pow(double x, double y) {
  double a = fabs(x), h = 0.5 * y;
  int whole = y == floor(y), odd = whole && h != floor(h);
  double m = a == 1 || y == 0 ? 1.0 : mk_exp(y * mk_log(a));
  return y == 0 || x == 1 ? 1.0 : x != x || y != y ? x + y : x < 0 && !whole && a - a == 0 ? (double)NAN
         : odd ? copysign(m, x) : m;
}
INLINE float mk_sinf(float x) { return (float)mk_sin((double)x); }
INLINE float mk_cosf(float x) { return (float)mk_cos((double)x); }
INLINE float mk_powf(float x, float y) { return (float)mk_pow((double)x, (double)y); }
#define exp mk_exp
#define log mk_log
#define sin mk_sin
#define cos mk_cos
#define atan mk_atan
#define asin mk_asin
#define acos mk_acos
#define tanh mk_tanh
#define erf mk_erf
#define pow mk_pow
#define sinf mk_sinf
#define cosf mk_cosf
#define powf mk_powf
#define mk_fsplat(x) (x)
#define mk_fsel(m, a, b) ((m) ? (a) : (b))
#define mk_fminc(x, c) ((c) < (x) ? (c) : (x))
#define mk_fmaxc(x, c) ((c) > (x) ? (c) : (x))
#define erff mk_ferf
