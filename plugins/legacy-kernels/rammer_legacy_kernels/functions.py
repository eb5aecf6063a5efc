"""List the functions that a kernel's text may call, and their header-free equivalents on every GPU."""

from __future__ import annotations

from rammer_legacy_kernels.tokens import word_set

# CUDA's names with those of rammer's prelude. Meanings are equal, except for NaN in fmaxf and fminf.
RENAMED = {
    "__expf": "expf",
    "__logf": "logf",
    "__sinf": "sinf",
    "__cosf": "cosf",
    "__powf": "powf",
    "__fdividef": "MK_DIVIDE",
    "fdividef": "MK_DIVIDE",
    "tanhf": "stanh",
    "fmaxf": "smax",
    "fminf": "smin",
    "max": "rk_max",
    "min": "rk_min",
    "fmax": "dmax",
    "fmin": "dmin",
    "abs": "rk_abs",
    "fma": "rk_fma",
    "fmaf": "rk_fma",
    "__fmaf_rn": "rk_fma",
    "__fmul_rn": "rk_mul",
    "__fadd_rn": "rk_add",
    "__fsub_rn": "rk_sub",
    "__fdiv_rn": "rk_div",
    "__frcp_rn": "rk_reciprocal",
    "__fsqrt_rn": "sqrtf",
    "__frsqrt_rn": "rk_rsqrt",
    "rsqrtf": "rk_rsqrt",
    "rsqrt": "rk_rsqrt",
    "__saturatef": "rk_saturate",
    "__mul24": "rk_mul",
    "__int_as_float": "sfloat",
    "__float_as_int": "sbits",
    "exp2f": "rk_exp2",
    "log2f": "rk_log2",
    "log10f": "rk_log10",
    "log1pf": "rk_log1p",
    "roundf": "rk_round",
    "truncf": "rk_trunc",
    "isnan": "rk_isnan",
    "isinf": "rk_isinf",
    "size_t": "uint64_t",
    "uint": "uint32_t",
}
SAME = word_set(
    "expf logf sinf cosf powf sqrtf erff fabsf floorf ceilf rintf fmodf copysignf "
    "exp log sin cos pow sqrt erf tanh fabs floor ceil rint fmod copysign"
)
CASTS = frozenset(("static_cast", "reinterpret_cast", "sizeof", "const_cast"))
CALLED = SAME | RENAMED.keys() | {"__ldg"}

# Once per program, for any number of imported kernels.
HELPERS = """\
#ifndef RK_HELPERS
#define RK_HELPERS
template <class A, class B> INLINE auto rk_max(A a, B b) -> decltype(a + b) { return a > b || a != a ? a : b; }
template <class A, class B> INLINE auto rk_min(A a, B b) -> decltype(a + b) { return a < b || a != a ? a : b; }
template <class A> INLINE A rk_abs(A a) { return a < 0 ? -a : a; }
template <class A, class B, class C> INLINE auto rk_fma(A a, B b, C c) -> decltype(a * b + c) { return a * b + c; }
template <class A, class B> INLINE auto rk_mul(A a, B b) -> decltype(a * b) { return a * b; }
INLINE float rk_add(float a, float b) { return a + b; }
INLINE float rk_sub(float a, float b) { return a - b; }
INLINE float rk_div(float a, float b) { return a / b; }
INLINE float rk_reciprocal(float a) { return 1.0f / a; }
INLINE float rk_rsqrt(float a) { return 1.0f / sqrtf(a); }
INLINE double rk_rsqrt(double a) { return 1.0 / sqrt(a); }
INLINE float rk_saturate(float a) { return a > 1.0f ? 1.0f : a > 0.0f ? a : 0.0f; }
INLINE float rk_exp2(float a) { return expf(a * 0.69314718056f); }
INLINE float rk_log2(float a) { return logf(a) * 1.44269504089f; }
INLINE float rk_log10(float a) { return logf(a) * 0.43429448190f; }
INLINE float rk_log1p(float a) { return (float)log(1.0 + (double)a); }
INLINE float rk_round(float a) { return a < 0 ? ceilf(a - 0.5f) : floorf(a + 0.5f); }
INLINE float rk_trunc(float a) { return a < 0 ? ceilf(a) : floorf(a); }
INLINE int rk_isnan(double a) { return a != a; }
INLINE int rk_isinf(double a) { return a - a != 0 && a == a; }
#endif
"""

# Syncs of partial warps: the unaligned form, which a warp may reach in two groups.
PART = """\
#ifndef RK_PART
#define RK_PART
#ifdef SIMT_HOST
#define rk_sync_part(n) mk_sync_part(n)
#else
INLINE void rk_sync_part(int n) { asm volatile("barrier.sync 1, %0;" :: "r"(n) : "memory"); }
#endif
#endif
"""
