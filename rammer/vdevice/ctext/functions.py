"""Define the functions that kernels call, for all backends that print C: floats (s…), doubles (d…), integers (i…).

Text uses INLINE, INFINITY, fixed-width types, bf16 (16 bits) and the functions of <math.h>. It is valid C and C++. In
templates F_ stands for float, I_ for an integer of the same bits, P_ for the prefix of names; the same templates make
the CPU's vector functions.
"""

from __future__ import annotations

from collections.abc import Iterable

from rammer.vdevice.ctext.files import text_of

ONE = ("floor", "ceil", "sqrt", "exp", "log", "sin", "cos", "tanh", "erf")  # named as in <math.h>
LIBM = {**{name: f"{name}f" for name in ONE}, "round": "rintf", "abs": "fabsf"}

BITS = """\
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
"""

# Complex numbers: complex64 is 8 bytes, complex128 is a type C128 of each language.
COMPLEX = """\
INLINE float c64_real(uint64_t x) { return sfloat((int)(uint32_t)x); }
INLINE float c64_imag(uint64_t x) { return sfloat((int)(uint32_t)(x >> 32)); }
INLINE uint64_t c64_complex(float re, float im) { return (uint64_t)(uint32_t)sbits(im) << 32 | (uint32_t)sbits(re); }
"""

# For a type of half floats, HALF.
HALF_BITS = """\
INLINE int hbits(float x) { union { HALF h; uint16_t i; } u; u.h = (HALF)x; return u.i; }
INLINE float hfloat(int x) { union { HALF h; uint16_t i; } u; u.i = (uint16_t)x; return (float)u.h; }
"""

# Templates. They use `sel`, `splat`, `sqrt` and `abs`, to be defined before.
SIMPLE = """\
/* The inner selection is an instruction. The outer one tests b, which has no row of maxima behind it: of 16 in a row
   that test a, clang has too many ways to go. */
INLINE F_ P_max(F_ a, F_ b) { return P_sel(b != b, b, P_sel(b > a, b, a)); }
INLINE F_ P_min(F_ a, F_ b) { return P_sel(b != b, b, P_sel(b < a, b, a)); }
INLINE F_ P_maxc(F_ x, F_ c) { return P_sel(c > x, c, x); }    /* c is no NaN */
INLINE F_ P_minc(F_ x, F_ c) { return P_sel(c < x, c, x); }
INLINE I_ P_is_nan(F_ x) { return x != x; }
INLINE I_ P_is_inf(F_ x) { return P_abs(x) == INFINITY; }
INLINE F_ P_sign(F_ x) { return P_sel(x > 0, P_splat(1.0f), P_sel(x < 0, P_splat(-1.0f), x)); }
"""

# Templates without library calls, equal for each lane. They also use `bits`, `float` (of bits) and `int` (to float).
ABS = """\
INLINE F_ P_abs(F_ x) { return P_float(P_bits(x) & 0x7fffffff); }
"""
POWER = """\
INLINE F_ P_power(F_ x, F_ t) {  /* x * 2^n, t = 1.5 * 2^23 + n: in two steps, for subnormal ones */
  I_ i = P_bits(t) - 0x4b400000, h = i >> 1;
  return x * P_float((h + 127) << 23) * P_float((i - h + 127) << 23);
}
"""
POLYNOMIALS = text_of("rammer.vdevice.ctext", "text", "polynomials.h")
# Fitted to erf(x) / x for the least relative error, 1.3e-8; with float32's rounding 3.5e-7.
ERF = """\
INLINE F_ P_erf(F_ x) {  /* x times a quotient of polynomials in x^2; 1 from 3.8325 on */
  F_ y = P_minc(P_maxc(x, P_splat(-3.8325f)), P_splat(3.8325f)), z = y * y;
  F_ p = ((((2.12310988e-6f * z + 2.85940798e-4f) * z + 3.65272793e-3f) * z + 5.24184406e-2f) * z
          + 1.87307969e-1f) * z + 1.12837911f;
  F_ q = ((((3.88979242e-5f * z + 1.14169763e-3f) * z + 1.47424452e-2f) * z + 1.12900317e-1f) * z
          + 4.99330282e-1f) * z + 1.0f;
  y = P_sel(x > 3.8325f, P_splat(1.0f), P_minc(P_maxc(y * p / q, P_splat(-1.0f)), P_splat(1.0f)));
  return P_sel(x < -3.8325f, P_splat(-1.0f), y);  /* exactly: else x (1 + erf(x)) grows with -x */
}
"""

# Coefficients are fitted for the least relative error, and rounded one at a time, lowest first.
ARCS = """\
INLINE F_ P_with_sign(F_ a, F_ x) { return P_float(P_bits(a) | (P_bits(x) & (int)0x80000000)); }
INLINE F_ P_atan(F_ x) {  /* by 1 / x beyond 1; the polynomial's relative error is 4.2e-10 */
  F_ a = P_abs(x), t = P_sel(a > 1.0f, -1.0f / a, a), z = t * t;
  F_ p = ((((1.1496947845444083e-3f * z - 7.4989148415625095e-3f) * z + 2.292798087000847e-2f) * z
          - 4.5151565223932266e-2f) * z + 6.774845719337463e-2f) * z - 8.82595032453537e-2f;
  p = (((p * z + 1.1062277853488922e-1f) * z - 1.4280469715595245e-1f) * z + 1.9999721646308899e-1f) * z
      - 3.33333283662796e-1f;
  p = t + t * (z * p);
  return P_with_sign(P_sel(a > 1.0f, 1.57079637f + (p - 4.37113883e-8f), p), x);
}
INLINE F_ P_arc(F_ s, F_ z) {  /* asin(s), s <= 1/2 and z = s * s; the polynomial's relative error is 5e-9 */
  F_ p = (((4.221179708838463e-2f * z + 2.415209263563156e-2f) * z + 4.54760417342186e-2f) * z
          + 7.495252043008804e-2f) * z + 1.6666753590106964e-1f;
  return s + s * (z * p);
}
INLINE F_ P_asin(F_ x) {  /* beyond 1/2: pi / 2 - 2 asin(sqrt((1 - x) / 2)), where 1 - x is exact */
  F_ a = P_abs(x), z = P_sel(a > 0.5f, (1.0f - a) * 0.5f, a * a), p = P_arc(P_sel(a > 0.5f, P_sqrt(z), a), z);
  return P_with_sign(P_sel(a > 0.5f, 2.0f * (0.785398185f - p) - 4.37113883e-8f, p), x);
}
INLINE F_ P_acos(F_ x) {
  F_ a = P_abs(x), z = P_sel(a > 0.5f, (1.0f - a) * 0.5f, a * a), p = P_arc(P_sel(a > 0.5f, P_sqrt(z), a), z);
  F_ outer = P_sel(x < 0, 3.14159274f - (2.0f * p + 8.74227766e-8f), 2.0f * p);
  return P_sel(a > 0.5f, outer, 1.57079637f - (P_with_sign(p, x) + 4.37113883e-8f));
}
"""

# Templates that compute in doubles, and round once. D_ stands for double, L_ for its bits, W_ for the prefix of their
# names. They use P_double and P_single (conversions), P_most (the largest lane of integers), P_sin_large and
# P_cos_large, which replace results for arguments of 2^20 and more, and P_fmod_any, for operands of any size.
THROUGH_DOUBLES = """\
INLINE F_ P_half_turn(D_ r, L_ n) {  /* (-1)^n sin(r), |r| <= pi / 2; the polynomial's relative error is 1.9e-11 */
  D_ z = r * r;
  D_ p = ((((-2.3909483638619995e-8 * z + 2.752663312530149e-6) * z - 1.9840894400893373e-4) * z
          + 8.333331325939428e-3) * z - 0.1666666663179154) * z;
  return P_single(W_float(W_bits(r * (p + 1.0)) ^ (n << 63)));
}
INLINE F_ P_sin(F_ x) {  /* the number of half turns is the last digits of t; below 2^20 its product by pi is exact */
  D_ y = P_double(x), t = y * 0.31830988618379067 + 6755399441055744.0, n = t - 6755399441055744.0;
  F_ s = P_half_turn((y - n * 3.1415926534682512) - n * 1.2154201013012384e-10, W_bits(t));
  return P_most(P_bits(x) & 0x7fffffff) < 0x49800000 ? s : P_sin_large(x, s);
}
INLINE F_ P_cos(F_ x) {
  D_ y = P_double(x), t = (y * 0.31830988618379067 - 0.5) + 6755399441055744.0, n = (t - 6755399441055744.0) + 0.5;
  F_ s = P_half_turn((y - n * 3.1415926534682512) - n * 1.2154201013012384e-10, ~W_bits(t));
  return P_most(P_bits(x) & 0x7fffffff) < 0x49800000 ? s : P_cos_large(x, s);
}
INLINE D_ P_log2(D_ x) {  /* of x > 0: e + log2(m), m from sqrt(1/2) to sqrt(2); relative error 1.7e-10 */
  L_ e = (W_bits(x) - 0x3fe6a09e667f3bcd) >> 52;
  D_ m = W_float(W_bits(x) - (e << 52)) - 1.0;
  D_ p = ((((9.692650810080246e-2 * m - 0.17155054205854814) * m + 0.1736195910353288) * m - 0.17854918644469794) * m
          + 0.20472638018049563) * m - 0.24047853995121862;
  p = ((((p * m + 0.2885981404109539) * m - 0.3606743375032213) * m + 0.48089731550349574) * m - 0.7213475087319808) * m
      + 1.4426950458506502;
  return p * m + (W_float(e + 0x4338000000000000) - 6755399441055744.0);
}
INLINE F_ P_exp2(D_ t) {  /* relative error 1.9e-9; beyond 2^200 there is no float */
  t = W_sel(t > 200.0, W_splat(200.0), t);
  t = W_sel(t < -200.0, W_splat(-200.0), t);
  D_ n = t + 6755399441055744.0, f = t - (n - 6755399441055744.0);
  D_ p = (((((1.5478017602887917e-4 * f + 1.3400431669676471e-3) * f + 9.617994531728513e-3) * f
          + 5.550327215758588e-2) * f + 0.24022651504890802) * f + 0.693147206709651) * f + 0.9999999999190897;
  return P_single(W_float(W_bits(p) + (W_bits(n) << 52)));
}
INLINE F_ P_pow(F_ x, F_ y) {  /* 2^(y log2|x|), with a sign if y is odd */
  F_ a = P_abs(x), half = y * 0.5f;
  D_ wide = P_double(a), power = W_sel(wide == 0.0, W_splat(-INFINITY), P_log2(wide));
  F_ r = P_exp2(W_sel(wide < INFINITY, power, wide) * P_double(y));
  I_ odd = (P_round(y) == y) & (P_round(half) != half);
  r = P_sel((x < 0.0f) & (a != INFINITY) & (P_round(y) != y), P_splat(NAN), P_sel(odd, P_with_sign(r, x), r));
  return P_sel((y == 0.0f) | (x == 1.0f) | ((a == 1.0f) & (P_abs(y) == INFINITY)), P_splat(1.0f), r);
}
INLINE F_ P_fmod(F_ x, F_ y) {  /* x - n y; exact, as n < 2^29 has few enough digits for a product by a float's 24 */
  F_ a = P_abs(x), b = P_abs(y);
  D_ wide = P_double(b), r = P_double(a) - W_floor(P_double(a) / wide) * wide;
  F_ found = P_with_sign(P_single(W_sel(r < 0.0, r + wide, r)), x);  /* a quotient may be rounded up to n */
  F_ far = P_sel((a < b * 536870912.0f) & (b < INFINITY), P_splat(0.0f), P_splat(1.0f));
  return P_most(P_bits(far)) ? P_fmod_any(x, y) : found;
}
"""

POW = "INLINE float spow(float x, float y) { return powf(x, y); }\n"
REMAINDER = "INLINE float sfmod(float x, float y) { return fmodf(x, y); }\n"

DOUBLES = """\
INLINE int64_t dbits(double x) { union { double f; int64_t i; } u; u.f = x; return u.i; }
INLINE double dfloat(int64_t x) { union { double f; int64_t i; } u; u.i = x; return u.f; }
INLINE double dmax(double a, double b) { return a > b || a != a ? a : b; }
INLINE double dmin(double a, double b) { return a < b || a != a ? a : b; }
INLINE double dsign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
INLINE double dsigmoid(double x) { return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); }
#define dabs fabs
#define dfloor floor
#define dceil ceil
#define dround rint
#define dsqrt sqrt
#define dexp exp
#define dlog log
#define dsin sin
#define dcos cos
#define dasin asin
#define dacos acos
#define datan atan
#define derf erf
#define dtanh tanh
#define dpow pow
#define dfmod fmod
INLINE uint64_t to_uint64(double x) { return x < 9223372036854775808.0 ? (uint64_t)(int64_t)x : (uint64_t)x; }
#define dis_nan(x) ((x) != (x))
#define dis_inf(x) (fabs(x) == INFINITY)
"""

INTEGERS = """\
#define imax(a, b) ((a) > (b) ? (a) : (b))
#define imin(a, b) ((a) < (b) ? (a) : (b))
#define isign(a) (((a) > 0) - ((a) < 0))
INLINE int64_t iabs(int64_t a) { return a < 0 ? (int64_t)(0 - (uint64_t)a) : a; }
INLINE int64_t idiv(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b; }
INLINE int64_t ifmod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
INLINE int64_t imod(int64_t a, int64_t b) { int64_t r = ifmod(a, b); return r && (r < 0) != (b < 0) ? r + b : r; }
INLINE int64_t ishift_left(int64_t a, int64_t b) { return b < 0 || b > 63 ? 0 : (int64_t)((uint64_t)a << b); }
INLINE int64_t ishift_right(int64_t a, int64_t b) { return a >> (b < 0 || b > 63 ? 63 : b); }
INLINE int64_t ipow(int64_t a, int64_t b) {
  if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;  /* 1 / a^n, toward zero */
  uint64_t r = 1, x = (uint64_t)a;
  for (; b > 0; b >>= 1, x *= x) if (b & 1) r *= x;
  return (int64_t)r;
}
INLINE int32_t idot_bytes(int64_t a, int64_t b) {
  int32_t sum = 0;
  for (int n = 0; n < 32; n += 8) sum += (int32_t)(a >> n & 255) * (int8_t)(b >> n);
  return sum;
}
INLINE int32_t ijoin_bytes(int32_t a, int32_t b, int32_t c, int32_t d) {
  return (int32_t)((uint32_t)(a & 255) | (uint32_t)(b & 255) << 8 | (uint32_t)(c & 255) << 16 | (uint32_t)d << 24);
}
#define umax imax
#define umin imin
#define usign(a) ((a) > 0)
#define uabs(a) (a)
#define ufmod umod
INLINE uint64_t udiv(uint64_t a, uint64_t b) { return b == 0 ? 0 : a / b; }
INLINE uint64_t ushift_left(uint64_t a, uint64_t b) { return b > 63 ? 0 : a << b; }
INLINE uint64_t ushift_right(uint64_t a, uint64_t b) { return b > 63 ? 0 : a >> b; }
INLINE uint64_t umod(uint64_t a, uint64_t b) { return b == 0 ? 0 : a % b; }
INLINE uint64_t upow(uint64_t a, uint64_t b) {
  uint64_t r = 1;
  for (; b > 0; b >>= 1, a *= a) if (b & 1) r *= a;
  return r;
}
"""

INDICES = """\
INLINE DIVIDEND floor_div(DIVIDEND a, DIVISOR b) { return a / b - (a % b < 0); }
INLINE DIVIDEND floor_mod(DIVIDEND a, DIVISOR b) { return a % b + (a % b < 0 ? b : 0); }
INLINE INDEX at(INDEX i, INDEX extent, int *status) {  /* a checked index; negative ones count from the end */
  i = i < 0 ? i + extent : i;
  if (i < 0 || i >= extent) { *status = 1; return 0; }
  return i;
}
"""


def library(names: Iterable[str]) -> str:
    """Return float functions that call the C library."""
    return "".join(f"INLINE float s{name}(float x) {{ return {LIBM[name]}(x); }}\n" for name in names)


def instance(template: str, number: str = "float", bits: str = "int", prefix: str = "s") -> str:
    """Return a template's text for floats, or for vectors of them."""
    return template.replace("F_", number).replace("I_", bits).replace("P_", prefix)


def wide_instance(template: str, wide: str = "double", bits: str = "int64_t", prefix: str = "d") -> str:
    """Return a template's text for doubles, or for vectors of them; `instance` replaces the rest."""
    return template.replace("D_", wide).replace("L_", bits).replace("W_", prefix)


def indices(index: str, dividend: str = "", divisor: str = "") -> str:
    """Return quotients and checks of indices of a type; `dividend` and `divisor` may have others."""
    text = INDICES.replace("DIVIDEND", dividend or index).replace("DIVISOR", divisor or index)
    return text.replace("INDEX", index)
