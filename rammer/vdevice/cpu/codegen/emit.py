"""Emit C text of CPU kernels: a prelude with vector types and functions, and one C function per rKernel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rammer.errors import LoweringError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.tile import NEXT, TileProgram
from rammer.planner.in_place import replaced
from rammer.vdevice.cpu.codegen import amx, dots, vnni
from rammer.vdevice.cpu.codegen.prefetch import capacity, prefetched
from rammer.vdevice.cpu.codegen.printer import TICKETS, CpuPrinter
from rammer.vdevice.ctext import functions, minifloats
from rammer.vdevice.ctext.cfamily import CTYPE
from rammer.vdevice.ctext.definitions import Definitions

PLACEHOLDER = "rammer_kernel"
LARGE = 64  # lines of a body from which it is not inlined into its entry: clang would optimise it a second time
NOINLINE = "__attribute__((noinline)) "


@dataclass(frozen=True, slots=True)
class EmittedKernel:
    """The C function `void symbol(char *const *args, char *scratch, long rtask, int *status)` of an rKernel.

    It can prefetch `capacity` lines for later rTasks. `tickets` has the most tickets of each rTask, for work stealing.
    With either, `status` is the first member of a context.
    """

    symbol: str
    text: str
    capacity: int = 0
    tickets: tuple[int, ...] = ()


def emit(kernel: RKernel, spec: VDeviceSpec) -> EmittedKernel:
    """Return the C text of a kernel. Equal bodies get equal symbols."""
    if isinstance(kernel.body, ForeignSource):
        if kernel.body.language != "c":
            raise LoweringError(f"{kernel.name} is written in {kernel.body.language!r}, not in C")
        return EmittedKernel(kernel.body.symbol, kernel.body.text)
    return function(CpuPrinter(prefetched(kernel.body, spec), spec.lanes))


def function(printer: CpuPrinter) -> EmittedKernel:
    """Return a worker whose parameters are `restrict`, for alias analysis, and its entry of fixed signature.

    An output that may replace an input in place is not `restrict`, and neither is that input. The worker also takes the
    lines to prefetch for later rTasks, and its tickets, if it has any.
    """
    program: TileProgram = printer.program
    lines_ahead, tickets = capacity(program), printer.tickets
    names = [b.name for b in program.arguments]
    kinds = [
        f"{'' if n < program.num_outputs else 'const '}{CTYPE[b.dtype]} *" for n, b in enumerate(program.arguments)
    ]
    shared = replaced(program)
    shared |= {b.name for b in program.arguments[: program.num_outputs] if shared}
    parameters = "".join(f"{k}{'' if b in shared else 'restrict '}{b}, " for k, b in zip(kinds, names, strict=True))
    arguments = "".join(f"({k})args[{n}], " for n, k in enumerate(kinds))
    if lines_ahead:
        parameters += f"const rammer_ahead *restrict {NEXT}, "
        arguments += "&((const rammer_context *)status)->next, "
        names.append(NEXT)
    if tickets:
        parameters += f"rammer_parts *restrict {TICKETS}, "
        arguments += "rammer_begun(((const rammer_context *)status)->taken, &rammer_own), "
        names.append(TICKETS)
    nests = printer.share(f"{PLACEHOLDER}_", ", ".join([*names, "scratch", "status"]))
    body = [*printer.scratch(), *printer.body(program.body, 1), *printer.end()]
    large = len(body) >= LARGE
    lines = []
    for nest in (*nests, *printer.loops):
        head = ", ".join([f"{parameters}char *restrict scratch, int *restrict status", *nest.parameters])
        lines += [f"static {NOINLINE}void {nest.name}({head}) {{", *nest.lines, "}"]
    lines += [
        f"static {NOINLINE * large}void {PLACEHOLDER}_body({parameters}char *restrict scratch, long rtask, "
        "int *restrict status) {",
        *body,
        "}",
        f"void {PLACEHOLDER}(char *const *args, char *scratch, long rtask, int *status) {{",
        *(["  rammer_parts rammer_own;"] if tickets else []),
        f"  {PLACEHOLDER}_body({arguments}scratch, rtask, status);",
        "}",
    ]
    text = "\n".join(lines) + "\n"
    symbol = "k_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return EmittedKernel(symbol, text.replace(PLACEHOLDER, symbol), lines_ahead, tickets)


def translation_unit(kernels: Iterable[EmittedKernel], spec: VDeviceSpec) -> str:
    """Return one C file with the kernels, each symbol once, and the definitions of the prelude that they use."""
    text = "\n".join({k.symbol: k.text for k in kernels}.values())
    return _definitions(prelude(spec)).needed(text) + "\n" + text


@lru_cache(maxsize=8)
def _definitions(text: str) -> Definitions:
    return Definitions(text)


@lru_cache(maxsize=8)
def _prelude(lanes: int, texts: tuple[str, ...]) -> str:
    # one text for floats and for vectors of them, so that loop tails equal bodies bit for bit
    before, after = functions.ABS + functions.SIMPLE, functions.POLYNOMIALS + functions.ERF + functions.ARCS
    power = functions.instance(functions.POWER, "vf", "vi", "v")
    math = before + functions.POWER + after
    double = MATH_OF_ALL + MATH_OF_DOUBLES
    scalars = functions.library(("floor", "ceil", "round", "sqrt")) + functions.instance(math)
    return (
        HEAD.replace("LANES", str(lanes)).replace("VBYTES", str(4 * lanes)).replace("HBYTES", str(2 * lanes))
        + functions.BITS
        + functions.COMPLEX
        + COMPLEX128
        + functions.HALF_BITS.replace("HALF", "_Float16")
        + functions.instance(before, "vf", "vi", "v")
        + f"{POWER}#else\n{power}#endif\n".replace("LANES", str(lanes))
        + functions.instance(after, "vf", "vi", "v")
        + scalars
        + _folds(lanes, "vf", "float")
        + functions.REMAINDERS
        + functions.DOUBLES
        + functions.INTEGERS
        + functions.indices("long")
        + _typed(LOADS, "vc", "int8_t", lanes, 1)
        + _typed(LOADS, "vb", "uint8_t", lanes, 1)
        + _typed(LOADS, "vs", "int16_t", lanes, 2)
        + _typed(LOADS, "vt", "uint16_t", lanes, 2)
        + _typed(LOADS + MATH_OF_ALL + SHIFTS, "vl", "int64_t", lanes, 8)
        + _typed(LOADS + MATH_OF_ALL + SHIFTS, "vi", "int", lanes, 4)
        + _folds(lanes, "vl", "int64_t")
        + _folds(lanes, "vi", "int")
        + BITS_OF_WEIGHTS.replace("LANES", str(lanes))
        + _typed(LOADS + double, "vd", "double", lanes, 8)
        + _folds(lanes, "vd", "double")
        + LARGE_ARGUMENTS.replace("LANES", str(lanes))
        + functions.instance(functions.wide_instance(functions.THROUGH_DOUBLES))
        + functions.instance(functions.wide_instance(functions.THROUGH_DOUBLES, "vd", "vl", "vd_"), "vf", "vi", "v")
        + _transpose(lanes)
        + f"static {NOINLINE}void vturned(float *p, long row, const float *q, int rows, int columns) "
        + f"{{ vtranspose(p, row, q, {lanes}, rows, columns); }}\n"
        + _transpose(lanes, "vb_", "vb", "uint8_t")
        + _transpose(lanes, "vt_", "vt", "uint16_t")
        + _transpose(lanes, "vl_", "vl", "int64_t")
        + functions.instance(minifloats.TEMPLATES)
        + functions.instance(minifloats.TEMPLATES, "vf", "vi", "v")
        + "".join(texts).replace("LANES", str(lanes))
    )


def _typed(text: str, vector: str, element: str, lanes: int, size: int) -> str:
    """Return functions for vectors of a type; `size` is an element's in bytes."""
    text = text.replace("T_", vector).replace("E_", element).replace("M_", "vl" if size == 8 else "vi")
    return text.replace("LANES", str(lanes)).replace("SIZE", str(size)).replace("BYTES", str(size * lanes))


def _folds(lanes: int, vector: str, element: str) -> str:
    """Return functions that reduce a vector's lanes: each step combines the upper half with the lower one."""
    text, (own, of) = "", ("", "v") if vector == "vf" else (f"{vector}_", f"{vector}_")
    for name, step in (("add", "a + b"), ("mul", "a * b"), ("max", f"{of}max(a, b)"), ("min", f"{of}min(a, b)")):
        lines, left = [f"INLINE {element} {own}fold_{name}({vector} a) {{", f"  {vector} b;"], lanes // 2
        while left:
            upper = ", ".join(str((n + left) % lanes) for n in range(lanes))
            lines.append(f"  b = __builtin_shufflevector(a, a, {upper}); a = {step};")
            left //= 2
        text += "\n".join([*lines, "  return a[0];", "}", ""])
    return text


def _transpose(lanes: int, prefix: str = "v", vector: str = "vf", element: str = "float") -> str:
    """Return a function that transposes a square of `lanes` vectors: log2(lanes) rounds of two-input shuffles.

    It stores `rows` rows of `columns` elements each. `vturned` is its outlined form for squares that a kernel computes:
    kernels have one at each edge and share one function.
    """
    declared = f"{element} *p, long row, const {element} *q, long step, int rows, int columns"
    lines = [f"INLINE void {prefix}transpose({declared}) {{"]
    for i in range(lanes):
        text = f"rows < {lanes} ? {prefix}load(q + {i} * step, rows) : VECTOR({vector}, q[{i} * step])"
        lines.append(f"  {vector} r{i} = {i} < columns ? {text} : ({vector}){{0}}, t{i};")
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
    for i in range(lanes):
        part, whole = f"{prefix}store(p + {i} * row, r{i}, columns)", f"VECTOR({vector}, p[{i} * row]) = r{i}"
        lines.append(f"  if ({i} < rows) {{ if (columns < {lanes}) {part}; else {whole}; }}")
    return "\n".join([*lines, "}", ""])


def prelude(spec: VDeviceSpec) -> str:
    """Return the definitions that kernel texts use: types, partial vectors, scalar and vector functions."""
    tables = ((amx.AMX, amx.TEXT), (dots.AVX512_BF16, dots.TEXT), (vnni.VNNI, vnni.TEXT))
    names = {i.name for i in spec.instructions}
    return _prelude(spec.lanes, tuple(text for table, text in tables if names & {i.name for i in table}))


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
typedef struct { int status; rammer_ahead next; long long *taken; } rammer_context;
typedef struct { long long *taken; long mine, first; } rammer_parts;  /* tickets: those of all vEUs, and one's own */
INLINE long rammer_take(const rammer_parts *p) {
#if __GCC_ATOMIC_LLONG_LOCK_FREE == 2    /* else there is one thread, and all tickets are its own */
  if (p->taken) return __atomic_fetch_add(p->taken, 1, __ATOMIC_RELAXED);
#endif
  return p->mine + 1;
}
INLINE rammer_parts *rammer_begun(long long *taken, rammer_parts *p) {
  p->taken = taken; p->mine = -1; p->mine = rammer_take(p); p->first = 0;
  return p;
}
#define VECTOR(type, x) (*(type *)&(x))           /* the vector that starts at element x */
#define V(x) VECTOR(vf, x)
#define VH(x) __builtin_convertvector(*(vh *)&(x), vf)
#define VB(x) from_bits(__builtin_convertvector(*(vw *)&(x), vi) << 16)
INLINE vf splat(float x) { return x - (vf){0}; }
INLINE vf vsplat(float x) { return splat(x); }
INLINE vi mask(int x) { return (vi){0} - (x != 0); }
INLINE vf from_bits(vi x) { return (vf)x; }
INLINE vi vsplat_i(int x) { return x - (vi){0}; }
INLINE vi vsel_i(vi m, vi a, vi b) { return (a & m) | (b & ~m); }
INLINE vf vsel(vi m, vf a, vf b) { return (vf)vsel_i(m, (vi)a, (vi)b); }
INLINE vi vbits(vf x) { return (vi)x; }
INLINE vf vfloat(vi x) { return (vf)x; }
INLINE vf vint(vi x) { return __builtin_convertvector(x, vf); }
INLINE vw vbf16(vf x) {
  vu u = (vu)x, r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return __builtin_convertvector((vu)vsel_i((vi)(x != x), (vi)((u >> 16) | 64), (vi)r), vw);
}
INLINE vf vround_h(vf x) { return __builtin_convertvector(__builtin_convertvector(x, vh), vf); }
INLINE vf vround_b(vf x) { return from_bits(__builtin_convertvector(vbf16(x), vi) << 16); }
#if LANES == 16 && defined __AVX512F__           /* lanes that are masked out touch no memory */
#define MASKED(how, p, v, mask) __builtin_ia32_##how##ups512_mask(p, v, mask)
#endif
INLINE vf vload(const float *p, int n) {          /* the first n lanes; zero in the others */
  vf v = {0};
#ifdef MASKED
  if (n & (n - 1)) return MASKED(load, p, v, (1 << n) - 1);
#endif
  for (int k = LANES / 2, i = 0; k; k /= 2) if (n & k) { memcpy((char *)&v + 4 * i, p + i, 4 * k); i += k; }
  return v;
}
INLINE void vstore(float *p, vf v, int n) {
#ifdef MASKED
  if (n & (n - 1)) { MASKED(store, p, v, (1 << n) - 1); return; }
#endif
  for (int k = LANES / 2, i = 0; k; k /= 2) if (n & k) { memcpy(p + i, (char *)&v + 4 * i, 4 * k); i += k; }
}
INLINE vf vload_h(const _Float16 *p, int n) { vh v = {0}; memcpy(&v, p, 2 * n); return __builtin_convertvector(v, vf); }
INLINE vf vload_b(const bf16 *p, int n) {
  vw v = {0}; memcpy(&v, p, 2 * n);
  return from_bits(__builtin_convertvector(v, vi) << 16);
}
INLINE void vstore_h(_Float16 *p, vf v, int n) { vh h = __builtin_convertvector(v, vh); memcpy(p, &h, 2 * n); }
INLINE void vstore_b(bf16 *p, vf v, int n) { vw h = vbf16(v); memcpy(p, &h, 2 * n); }
#ifdef MASKED
INLINE vf vsecond(const float *p, int first, int end) {       /* every second number, to lanes from the first on */
  vf v = {0};
  const unsigned there = ((1ull << (2 * end - 1)) - 1) & ~((1ull << 2 * first) - 1);
  vf a = MASKED(load, p, v, there & 0xffff), b = MASKED(load, p + 16, v, there >> 16);
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
#endif
INLINE vf vgather(const float *p, long step, int n) {
  vf v = {0};
#ifdef MASKED
  if (__builtin_constant_p(step) && step == 2) return vsecond(p, 0, n);
#endif
  for (int i = 0; i < n; i++) v[i] = p[i * step];
  return v;
}
INLINE vf vload_from(const float *p, int first, int n) {  /* n lanes from the first on; zero in the others */
  vf v = {0};
#ifdef MASKED
  return MASKED(load, p - first, v, ((1 << n) - 1) << first);
#endif
  for (int k = LANES / 2, i = 0; k; k /= 2) if (n & k) { memcpy((char *)&v + 4 * (first + i), p + i, 4 * k); i += k; }
  return v;
}
INLINE vf vgather_from(const float *p, long step, int first, int n) {
  vf v = {0};
#ifdef MASKED
  if (__builtin_constant_p(step) && step == 2) return vsecond(p - 2 * first, first, first + n);
#endif
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
#undef ROUNDING
"""

# Bit for bit as two products, the first of which is exact.
POWER = """\
#if defined(__AVX512F__) && LANES == 16
INLINE vf vpower(vf x, vf t) { return (vf)__builtin_ia32_scalefps512_mask(x, t - 12582912.0f, x, -1, 4); }
"""

# For vectors T_ of E_; comparisons yield vectors M_.
LOADS = """\
typedef E_ T_ __attribute__((vector_size(BYTES), aligned(SIZE), may_alias));
INLINE T_ T__load(const E_ *p, int n) { T_ v = {0}; memcpy(&v, p, SIZE * n); return v; }
INLINE void T__store(E_ *p, T_ v, int n) { memcpy(p, &v, SIZE * n); }
"""

MATH_OF_ALL = """\
INLINE T_ T__splat(E_ x) { return x - (T_){0}; }
INLINE T_ T__sel(M_ m, T_ a, T_ b) { return (T_)(((M_)a & m) | ((M_)b & ~m)); }
INLINE T_ T__first(int n, T_ a, T_ b) {           /* n lanes of a, then b */
  M_ lane; for (int i = 0; i < LANES; i++) lane[i] = i;
  return T__sel(lane < n, a, b);
}
INLINE T_ T__lanes(void) { T_ v; for (int i = 0; i < LANES; i++) v[i] = i; return v; }
INLINE T_ T__max(T_ a, T_ b) { return T__sel((a > b) | (a != a), a, b); }
INLINE T_ T__min(T_ a, T_ b) { return T__sel((a < b) | (a != a), a, b); }
INLINE T_ T__abs(T_ a) { return T__sel((a < 0) | (a == 0), 0 - a, a); }
INLINE T_ T__sign(T_ a) { return T__sel(a > 0, T__splat(1), T__sel(a < 0, T__splat(-1), a)); }
"""

COMPLEX128 = """\
INLINE double c128_real(_Complex double x) { return __real__ x; }
INLINE double c128_imag(_Complex double x) { return __imag__ x; }
INLINE _Complex double c128_complex(double re, double im) { return __builtin_complex(re, im); }
"""

SHIFTS = """\
INLINE T_ T__far(T_ b) { return (b < 0) | (b > 8 * SIZE - 1); }  /* by a negative amount, or by all bits and more */
INLINE T_ T__shift_left(T_ a, T_ b) { T_ far = T__far(b); return (a << (b & ~far)) & ~far; }
INLINE T_ T__shift_right(T_ a, T_ b) { T_ far = T__far(b); return a >> T__sel(far, T__splat(8 * SIZE - 1), b); }
"""

# `vlow_bits`: numbers of up to four bits, minus a constant, looked up in a vector of 16 floats. `vadd_dot_bytes`: adds
# to each number of a the products of its four bytes, unsigned ones of b and signed ones of c.
BITS_OF_WEIGHTS = """\
#if defined(__AVX512F__) && LANES == 16
INLINE vf vlow_bits(vi x, int mask, float zero) {
  vf all;
  #pragma unroll
  for (int n = 0; n < 16; n++) all[n] = (float)(n & mask) - zero;
#if defined(__clang__)
  return __builtin_ia32_permvarsf512(all, x);
#else
  return __builtin_shuffle(all, x);
#endif
}
#else
INLINE vf vlow_bits(vi x, int mask, float zero) { return __builtin_convertvector(x & mask, vf) - zero; }
#endif
#if defined(__AVX512VNNI__) && LANES == 16
INLINE vi vadd_dot_bytes(vi a, vi b, vi c) { __asm__("vpdpbusd %2, %1, %0" : "+v"(a) : "v"(b), "v"(c)); return a; }
#else
INLINE vi vadd_dot_bytes(vi a, vi b, vi c) {
  #pragma unroll
  for (int n = 0; n < 32; n += 8) a += (b >> n & 255) * (c << (24 - n) >> 24);
  return a;
}
#endif
INLINE int four_bytes(const void *p) { int n; memcpy(&n, p, 4); return n; }  /* every CPU has the first one lowest */
INLINE vi vi_dot_bytes(vi b, vi c) { return vadd_dot_bytes(vi_splat(0), b, c); }
"""

# Beyond 2^20, sine and cosine call the C library.
LARGE_ARGUMENTS = """\
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
#define EACH(name) INLINE float s##name##_large(float x, float y) { return name##f(x); } \\
  static __attribute__((noinline)) vf v##name##_large(vf x, vf y) { \\
    ROLLED for (int i = 0; i < LANES; i++) if (!(fabsf(x[i]) < 1048576.0f)) y[i] = name##f(x[i]); return y; }
EACH(sin)
EACH(cos)
#undef EACH
"""

MATH_OF_DOUBLES = """\
INLINE vl vl_mask(int x) { return (vl){0} - (x != 0); }
INLINE vl vd_is_nan(vd x) { return x != x; }
INLINE vl vd_is_inf(vd x) { return vd_abs(x) == INFINITY; }
#define EACH(name, scalar) INLINE vd vd_##name(vd x) { double t[LANES]; memcpy(t, &x, sizeof t); \\
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
INLINE vd vd_pow(vd x, vd y) {
  double s[LANES], t[LANES]; memcpy(s, &x, sizeof s); memcpy(t, &y, sizeof t);
  ROLLED for (int i = 0; i < LANES; i++) s[i] = dpow(s[i], t[i]);
  memcpy(&x, s, sizeof s); return x;
}
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
