"""C text of CPU kernels: a prelude with vector types and functions, and one C function per rKernel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rammer.errors import LoweringError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.tile import TileProgram
from rammer.vdevice.cfamily import CTYPE, CFamilyPrinter
from rammer.vdevice.cpu import amx
from rammer.vdevice.cpu.printer import CpuPrinter

PLACEHOLDER = "rammer_kernel"


@dataclass(frozen=True, slots=True)
class EmittedKernel:
    """The C function `void symbol(char *const *args, char *scratch, long rtask, int *status)` of an rKernel.

    With a `capacity` it can ask for as many lines ahead of their use; then `status` is the first member of a context.
    """

    symbol: str
    text: str
    capacity: int = 0


def emit(kernel: RKernel, spec: VDeviceSpec) -> EmittedKernel:
    """The C text of a kernel; equal bodies get equal symbols."""
    if isinstance(kernel.body, ForeignSource):
        if kernel.body.language != "c":
            raise LoweringError(f"{kernel.name} is written in {kernel.body.language!r}, not in C")
        return EmittedKernel(kernel.body.symbol, kernel.body.text)
    printer = CpuPrinter(kernel.body, max(spec.lanes, 4))
    text = function(printer, printer.capacity)
    symbol = "k_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return EmittedKernel(symbol, text.replace(PLACEHOLDER, symbol), printer.capacity)


def function(printer: CFamilyPrinter, capacity: int = 0) -> str:
    """A worker with restrict parameters, which compilers believe, and the entry of fixed signature that calls it.

    With a `capacity` the worker gets `rammer_next`, what to ask for.
    """
    program: TileProgram = printer.program
    names = [b.name for b in program.arguments]
    kinds = [
        f"{'' if n < program.num_outputs else 'const '}{CTYPE[b.dtype]} *" for n, b in enumerate(program.arguments)
    ]
    parameters = "".join(f"{k}restrict {b}, " for k, b in zip(kinds, names, strict=True))
    arguments = "".join(f"({k})args[{n}], " for n, k in enumerate(kinds))
    if capacity:
        parameters += "const rammer_ahead *restrict rammer_next, "
        arguments += "&((const rammer_context *)status)->next, "
    lines = [
        f"static void {PLACEHOLDER}_body({parameters}char *restrict scratch, long rtask, int *restrict status) {{",
        *printer.scratch(),
        *printer.body(program.body, 1),
        *printer.end(),
        "}",
        f"void {PLACEHOLDER}(char *const *args, char *scratch, long rtask, int *status) {{",
        f"  {PLACEHOLDER}_body({arguments}scratch, rtask, status);",
        "}",
    ]
    return "\n".join(lines) + "\n"


def translation_unit(kernels: Iterable[EmittedKernel], spec: VDeviceSpec) -> str:
    """One C file with the prelude and the kernels, each symbol once."""
    texts = {k.symbol: k.text for k in kernels}
    return prelude(spec) + "\n" + "\n".join(texts.values())


@lru_cache(maxsize=8)
def _prelude(lanes: int, unit: bool) -> str:
    vector = MATH.replace("F_", "vf").replace("I_", "vi").replace("P_", "v")
    scalar = MATH.replace("F_", "float").replace("I_", "int").replace("P_", "s")
    double = MATH_OF_ALL + MATH_OF_DOUBLES
    return (
        HEAD.replace("LANES", str(lanes)).replace("VBYTES", str(4 * lanes)).replace("HBYTES", str(2 * lanes))
        + vector
        + scalar
        + TAIL.replace("LANES", str(lanes))
        + _typed(LOADS, "vc", "int8_t", lanes, 1)
        + _typed(LOADS, "vb", "uint8_t", lanes, 1)
        + _typed(LOADS, "vs", "int16_t", lanes, 2)
        + _typed(LOADS + MATH_OF_ALL, "vl", "int64_t", lanes, 8)
        + _typed(LOADS + MATH_OF_ALL, "vi", "int", lanes, 4)
        + _typed(LOADS + double, "vd", "double", lanes, 8)
        + _transpose(lanes)
        + (amx.TEXT.replace("LANES", str(lanes)) if unit else "")
    )


def _typed(text: str, vector: str, element: str, lanes: int, size: int) -> str:
    """Functions for vectors of a type; `size` is that of an element."""
    text = text.replace("T_", vector).replace("E_", element).replace("M_", "vl" if size == 8 else "vi")
    return text.replace("LANES", str(lanes)).replace("SIZE", str(size)).replace("BYTES", str(size * lanes))


def _transpose(lanes: int) -> str:
    """A square of `lanes` vectors with rows and columns exchanged: log2(lanes) rounds of two-input shuffles."""
    lines = ["INLINE void vtranspose(float *p, long row, const float *q, long step) {"]
    lines += [f"  vf r{i} = V(q[{i} * step]), t{i};" for i in range(lanes)]
    size = 1
    while size < lanes:
        for i in (i for i in range(lanes) if not i & size):
            low = ", ".join(str(n + lanes - size if n & size else n) for n in range(lanes))
            high = ", ".join(str(n + lanes if n & size else n + size) for n in range(lanes))
            lines.append(
                f"  t{i} = __builtin_shufflevector(r{i}, r{i + size}, {low}); "
                f"t{i + size} = __builtin_shufflevector(r{i}, r{i + size}, {high});"
            )
        lines += ["  " + " ".join(f"r{i} = t{i};" for i in range(lanes))]
        size *= 2
    lines += [f"  V(p[{i} * row]) = r{i};" for i in range(lanes)]
    return "\n".join([*lines, "}", ""])


def prelude(spec: VDeviceSpec) -> str:
    """What every kernel text needs before it: types, parts of vectors, scalar and vector functions."""
    return _prelude(max(spec.lanes, 4), bool(spec.instructions))


HEAD = """\
#include <math.h>
#include <stdint.h>
#include <string.h>
typedef float vf __attribute__((vector_size(VBYTES), aligned(4), may_alias));
typedef int vi __attribute__((vector_size(VBYTES), aligned(4), may_alias));
typedef unsigned vu __attribute__((vector_size(VBYTES), aligned(4), may_alias));
typedef _Float16 vh __attribute__((vector_size(HBYTES), aligned(2), may_alias));
typedef uint16_t vw __attribute__((vector_size(HBYTES), aligned(2), may_alias));
typedef uint16_t bf16;
#define INLINE static inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define ROLLED _Pragma("clang loop unroll(disable) vectorize(disable)") /* small code where speed does not matter */
#else
#define ROLLED
#endif
typedef struct { const char *from; long long lines; } rammer_ahead;  /* `ahead` and `context` of runtime.c */
typedef struct { int status; rammer_ahead next; } rammer_context;
#define VECTOR(type, x) (*(type *)&(x))           /* the vector that starts at element x */
#define V(x) VECTOR(vf, x)
#define VH(x) __builtin_convertvector(*(vh *)&(x), vf)
#define VB(x) from_bits(__builtin_convertvector(*(vw *)&(x), vi) << 16)
INLINE vf splat(float x) { return x - (vf){0}; }
INLINE vf vsplat(float x) { return splat(x); }
INLINE float ssplat(float x) { return x; }
INLINE vi mask(int x) { return (vi){0} - (x != 0); }
INLINE vf from_bits(vi x) { return (vf)x; }
INLINE float from_bf16(bf16 x) { uint32_t u = (uint32_t)x << 16; float f; memcpy(&f, &u, 4); return f; }
INLINE bf16 to_bf16(float f) {                    /* to nearest, ties to even; NaN stays NaN */
  uint32_t u; memcpy(&u, &f, 4);
  return f != f ? (bf16)((u >> 16) | 64) : (bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
INLINE vi vsel_i(vi m, vi a, vi b) { return (a & m) | (b & ~m); }
INLINE vf vsel(vi m, vf a, vf b) { return (vf)vsel_i(m, (vi)a, (vi)b); }
INLINE vi vbits(vf x) { return (vi)x; }
INLINE vf vfloat(vi x) { return (vf)x; }
INLINE vf vint(vi x) { return __builtin_convertvector(x, vf); }
INLINE float ssel(int m, float a, float b) { return m ? a : b; }
INLINE int ssel_i(int m, int a, int b) { return m ? a : b; }
INLINE int sbits(float x) { int i; memcpy(&i, &x, 4); return i; }
INLINE float sfloat(int x) { float f; memcpy(&f, &x, 4); return f; }
INLINE float sint(int x) { return (float)x; }
INLINE vw vbf16(vf x) {
  vu u = (vu)x, r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return __builtin_convertvector((vu)vsel_i((vi)(x != x), (vi)((u >> 16) | 64), (vi)r), vw);
}
INLINE vf vround_h(vf x) { return __builtin_convertvector(__builtin_convertvector(x, vh), vf); }
INLINE vf vround_b(vf x) { return from_bits(__builtin_convertvector(vbf16(x), vi) << 16); }
INLINE vf vload(const float *p, int n) {          /* the first n lanes; zero in the others */
  vf v = {0};
  for (int k = LANES / 2, i = 0; k; k /= 2) if (n & k) { memcpy((char *)&v + 4 * i, p + i, 4 * k); i += k; }
  return v;
}
INLINE void vstore(float *p, vf v, int n) {
  for (int k = LANES / 2, i = 0; k; k /= 2) if (n & k) { memcpy(p + i, (char *)&v + 4 * i, 4 * k); i += k; }
}
INLINE vf vload_h(const _Float16 *p, int n) { vh v = {0}; memcpy(&v, p, 2 * n); return __builtin_convertvector(v, vf); }
INLINE vf vload_b(const bf16 *p, int n) {
  vw v = {0}; memcpy(&v, p, 2 * n);
  return from_bits(__builtin_convertvector(v, vi) << 16);
}
INLINE void vstore_h(_Float16 *p, vf v, int n) { vh h = __builtin_convertvector(v, vh); memcpy(p, &h, 2 * n); }
INLINE void vstore_b(bf16 *p, vf v, int n) { vw h = vbf16(v); memcpy(p, &h, 2 * n); }
INLINE vf vgather(const float *p, long step, int n) {
  vf v = {0};
  for (int i = 0; i < n; i++) v[i] = p[i * step];
  return v;
}
INLINE vf vload_from(const float *p, int first, int n) {  /* n lanes from the first on; zero in the others */
  vf v = {0};
  for (int k = LANES / 2, i = 0; k; k /= 2) if (n & k) { memcpy((char *)&v + 4 * (first + i), p + i, 4 * k); i += k; }
  return v;
}
INLINE vf vgather_from(const float *p, long step, int first, int n) {
  vf v = {0};
  for (int i = 0; i < n; i++) v[first + i] = p[i * step];
  return v;
}
INLINE void vscatter(float *p, long step, vf v, int n) {
  float t[LANES]; memcpy(t, &v, sizeof t);
  ROLLED for (int i = 0; i < n; i++) p[i * step] = t[i];
}
INLINE vf vfirst(int n, vf a, vf b) {             /* n lanes of a, then b */
  vi lane; for (int i = 0; i < LANES; i++) lane[i] = i;
  return vsel(lane < n, a, b);
}
INLINE long floor_div(long a, long b) { return a / b - (a % b < 0); }
INLINE long floor_mod(long a, long b) { return a % b + (a % b < 0 ? b : 0); }
INLINE long at(long i, long extent, int *status) { /* a checked index; negative ones count from the end */
  i = i < 0 ? i + extent : i;
  if ((unsigned long)i >= (unsigned long)extent) { *status = 1; return 0; }
  return i;
}
#if defined(__clang__)
#define ROUNDING(name, scalar) INLINE vf v##name(vf x) { return __builtin_elementwise_##scalar(x); }
#else
#define ROUNDING(name, scalar) INLINE vf v##name(vf x) { \\
  for (int i = 0; i < LANES; i++) x[i] = scalar##f(x[i]); return x; }
#endif
ROUNDING(floor, floor)
ROUNDING(ceil, ceil)
ROUNDING(round, rint)
ROUNDING(sqrt, sqrt)
INLINE float sfloor(float x) { return floorf(x); }
INLINE float sceil(float x) { return ceilf(x); }
INLINE float sround(float x) { return rintf(x); }
INLINE float ssqrt(float x) { return sqrtf(x); }
"""

# one text for float and for vectors of float, so that tails equal bodies bit for bit
MATH = """\
INLINE F_ P_square(F_ x) { return x * x; }
INLINE F_ P_cube(F_ x) { return x * x * x; }
INLINE F_ P_pow_3_4(F_ x) { F_ r = P_sqrt(x); return r * P_sqrt(r); }
INLINE F_ P_max(F_ a, F_ b) { return P_sel((a > b) | (a != a), a, b); }
INLINE F_ P_min(F_ a, F_ b) { return P_sel((a < b) | (a != a), a, b); }
INLINE F_ P_maxc(F_ x, F_ c) { return P_sel(c > x, c, x); }    /* c is no NaN */
INLINE F_ P_minc(F_ x, F_ c) { return P_sel(c < x, c, x); }
INLINE F_ P_abs(F_ x) { return P_float(P_bits(x) & 0x7fffffff); }
INLINE I_ P_is_nan(F_ x) { return x != x; }
INLINE I_ P_is_inf(F_ x) { return P_abs(x) == INFINITY; }
INLINE F_ P_sign(F_ x) { return P_sel(x > 0, P_splat(1.0f), P_sel(x < 0, P_splat(-1.0f), x)); }
INLINE F_ P_exp(F_ x) {  /* 2^n * e^r, |r| <= ln2 / 2 */
  x = P_sel(x > 89.0f, P_splat(89.0f), x);
  x = P_sel(x < -104.0f, P_splat(-104.0f), x);
  F_ t = x * 1.44269504f + 12582912.0f, n = t - 12582912.0f, r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  I_ i = P_bits(t) - 0x4b400000, h = i >> 1;
  F_ p = ((((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r
          + 1.6666665459e-1f) * r + 5.0000001201e-1f;
  return (p * (r * r) + r + 1.0f) * P_float((h + 127) << 23) * P_float((i - h + 127) << 23);
}
INLINE F_ P_log(F_ x) {
  F_ y = P_sel(x < 1.17549435e-38f, x * 8388608.0f, x);
  I_ b = P_bits(y);
  F_ e = P_int(((b >> 23) & 255) - 126) - P_sel(x < 1.17549435e-38f, P_splat(23.0f), P_splat(0.0f));
  F_ m = P_float((b & 0x007fffff) | 0x3f000000);
  e = P_sel(m < 0.707106781f, e - 1.0f, e);
  m = P_sel(m < 0.707106781f, m + m - 1.0f, m - 1.0f);
  F_ z = m * m;
  F_ p = ((((((((7.0376836292e-2f * m - 1.1514610310e-1f) * m + 1.1676998740e-1f) * m - 1.2420140846e-1f) * m
          + 1.4249322787e-1f) * m - 1.6668057665e-1f) * m + 2.0000714765e-1f) * m - 2.4999993993e-1f) * m
          + 3.3333331174e-1f) * m * z;
  p = p - 2.12194440e-4f * e - 0.5f * z;
  F_ r = m + p + 0.693359375f * e;
  r = P_sel(x == 0.0f, x - INFINITY, r);
  r = P_sel(x == INFINITY, x, r);
  return P_sel((x < 0.0f) | (x != x), (x - x) / (x - x), r);
}
INLINE F_ P_sigmoid(F_ x) {  /* as P_exp, where one power of two is enough; infinite from 88.4 on */
  F_ y = P_minc(P_maxc(-x, P_splat(-87.0f)), P_splat(88.7f));
  F_ t = y * 1.44269504f + 12582912.0f, n = t - 12582912.0f, r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  F_ p = ((((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r
          + 1.6666665459e-1f) * r + 5.0000001201e-1f;
  return 1.0f / (1.0f + (p * (r * r) + r + 1.0f) * P_float((P_bits(t) << 23) + 0x3f800000));
}
INLINE F_ P_tanh(F_ x) {  /* x times a quotient of polynomials in x^2 */
  F_ z = x * x;
  F_ p = (((((-2.76076847742355e-16f * z + 2.00018790482477e-13f) * z - 8.60467152213735e-11f) * z
          + 5.12229709037114e-8f) * z + 1.48572235717979e-5f) * z + 6.37261928875436e-4f) * z + 4.89352455891786e-3f;
  F_ q = ((1.19825839466702e-6f * z + 1.18534705686654e-4f) * z + 2.26843463243900e-3f) * z + 4.89352518554385e-3f;
  F_ y = x * p / q;
  y = P_sel(x > 7.9f, P_splat(1.0f), y);
  return P_sel(x < -7.9f, P_splat(-1.0f), y);
}
INLINE F_ P_erf(F_ x) {
  F_ t = P_abs(x), s = x * x;
  F_ r = (-1.72853470e-5f * t + 3.83197126e-4f) * s + (-3.88396438e-3f * t + 2.42546219e-2f);
  r = ((r * t - 1.06777877e-1f) * t - 6.34846687e-1f) * t - 1.28717512e-1f;
  r = 1.0f - P_exp(r * t - t);
  F_ q = ((((-5.96761703e-4f * s + 4.99119423e-3f) * s - 2.67681349e-2f) * s + 1.12819925e-1f) * s
          - 3.76125336e-1f) * s + 1.28379166e-1f;
  return P_sel(t > 0.927734375f, P_sel(x < 0.0f, -r, r), q * x + x);
}
"""

TAIL = """\
#define FOLD(fn, step) INLINE float fold_##fn(vf v) { float t[LANES]; memcpy(t, &v, sizeof t); \\
  for (int k = LANES / 2; k; k /= 2) for (int i = 0; i < k; i++) { float a = t[i], b = t[i + k]; t[i] = step; } \\
  return t[0]; }
FOLD(add, a + b)
FOLD(mul, a * b)
FOLD(max, smax(a, b))
FOLD(min, smin(a, b))
INLINE float ssin(float x) { return sinf(x); }
INLINE float scos(float x) { return cosf(x); }
INLINE float spow(float x, float y) { return powf(x, y); }
INLINE float sfmod(float x, float y) { return fmodf(x, y); }
INLINE float smod(float x, float y) {
  float r = fmodf(x, y);
  return r == 0 ? copysignf(0.0f, y) : (r < 0) != (y < 0) ? r + y : r;
}
INLINE double dmod(double x, double y) {
  double r = fmod(x, y);
  return r == 0 ? copysign(0.0, y) : (r < 0) != (y < 0) ? r + y : r;
}
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
#define derf erf
#define dtanh tanh
#define dpow pow
#define dfmod fmod
#define dis_nan(x) ((x) != (x))
#define dis_inf(x) (fabs(x) == INFINITY)
#define imax(a, b) ((a) > (b) ? (a) : (b))
#define imin(a, b) ((a) < (b) ? (a) : (b))
#define isign(a) (((a) > 0) - ((a) < 0))
INLINE int64_t iabs(int64_t a) { return a < 0 ? (int64_t)(0 - (uint64_t)a) : a; }
INLINE int64_t idiv(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b; }
INLINE int64_t ifmod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
INLINE int64_t imod(int64_t a, int64_t b) { int64_t r = ifmod(a, b); return r && (r < 0) != (b < 0) ? r + b : r; }
INLINE int64_t ipow(int64_t a, int64_t b) {
  if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;  /* 1 / a^n, toward zero */
  uint64_t r = 1, x = (uint64_t)a;
  for (; b > 0; b >>= 1, x *= x) if (b & 1) r *= x;
  return (int64_t)r;
}
"""

# for vectors T_ of E_, whose comparisons are vectors M_
LOADS = """\
typedef E_ T_ __attribute__((vector_size(BYTES), aligned(SIZE), may_alias));
INLINE T_ T__load(const E_ *p, int n) { T_ v = {0}; memcpy(&v, p, SIZE * n); return v; }
"""

MATH_OF_ALL = """\
INLINE void T__store(E_ *p, T_ v, int n) { memcpy(p, &v, SIZE * n); }
INLINE T_ T__splat(E_ x) { return x - (T_){0}; }
INLINE T_ T__sel(M_ m, T_ a, T_ b) { return (T_)(((M_)a & m) | ((M_)b & ~m)); }
INLINE T_ T__first(int n, T_ a, T_ b) {           /* n lanes of a, then b */
  M_ lane; for (int i = 0; i < LANES; i++) lane[i] = i;
  return T__sel(lane < n, a, b);
}
INLINE T_ T__max(T_ a, T_ b) { return T__sel((a > b) | (a != a), a, b); }
INLINE T_ T__min(T_ a, T_ b) { return T__sel((a < b) | (a != a), a, b); }
INLINE T_ T__abs(T_ a) { return T__sel((a < 0) | (a == 0), 0 - a, a); }
INLINE T_ T__sign(T_ a) { return T__sel(a > 0, T__splat(1), T__sel(a < 0, T__splat(-1), a)); }
#define FOLD_(fn, step) INLINE E_ T__fold_##fn(T_ v) { E_ t[LANES]; memcpy(t, &v, sizeof t); \\
  for (int k = LANES / 2; k; k /= 2) for (int i = 0; i < k; i++) { E_ a = t[i], b = t[i + k]; t[i] = step; } \\
  return t[0]; }
FOLD_(add, a + b)
FOLD_(mul, a * b)
FOLD_(max, a > b || a != a ? a : b)
FOLD_(min, a < b || a != a ? a : b)
#undef FOLD_
"""

MATH_OF_DOUBLES = """\
INLINE vl vl_mask(int x) { return (vl){0} - (x != 0); }
INLINE vl vd_is_nan(vd x) { return x != x; }
INLINE vl vd_is_inf(vd x) { return vd_abs(x) == INFINITY; }
#define EACH(name) INLINE vd vd_##name(vd x) { double t[LANES]; memcpy(t, &x, sizeof t); \\
  ROLLED for (int i = 0; i < LANES; i++) t[i] = d##name(t[i]); memcpy(&x, t, sizeof t); return x; }
EACH(exp)
EACH(log)
EACH(tanh)
EACH(sigmoid)
EACH(erf)
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
"""
