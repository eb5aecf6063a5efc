"""Emit the text that precedes all kernels of a SIMT program: types, vectors and functions, without any header.

Most of it is the same for every device. A `Dialect` holds the primitives that differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from rammer.ir.device import VDeviceSpec
from rammer.ir.instruction import Instruction
from rammer.vdevice.ctext import functions, minifloats
from rammer.vdevice.simt.codegen import mma, wgmma
from rammer.vdevice.simt.instructions import EMULATED_COPIES, EMULATED_STAGED, FOLDS, emulated, emulated_swap


@dataclass(frozen=True, slots=True)
class Dialect:
    """A C++ for GPUs, as data.

    `primitives` defines what the contract below lists, and the functions of <math.h> that the compiler lacks.
    `partial_sync`: some threads of a block can synchronise without the others. `counted_sync`: where they cannot, the
    other threads run as many block syncs as the task has (§4.2.1 of the paper). `restrict_arguments`: a task's tensors
    may be declared restrict although other blocks write them during this launch. `asks_ahead`: `mk_ahead` exists.
    """

    language: str  # of `VDeviceSpec.languages`
    primitives: str
    partial_sync: bool
    counted_sync: bool = False
    restrict_arguments: bool = True
    asks_ahead: bool = False
    subgroup_size: int = 32  # threads that run in step
    veus_per_sm: int = 1  # blocks on a multiprocessor, which share its registers
    fits: int = 0  # words of sums per thread that surely leave registers for the rest, if operands are staged
    inline_limit: int = 200_000  # characters of tasks; more are called, to save registers and compile time
    instructions: tuple[Instruction, ...] = ()
    units: str = ""  # defines `mk_NAME` of each instruction, over registers of its output and inputs


# The contract of a dialect: what its primitives define.
#
# unsigned mk_load_relaxed(const unsigned *), mk_load_acquire(const unsigned *)   // device scope
# void mk_store_relaxed(unsigned *, unsigned), mk_store_release(unsigned *, unsigned)
# unsigned mk_exchange(unsigned *, unsigned old, unsigned)  // compare and swap: what was there
# float mk_swap<D>(float)  // what the thread of the wave has whose number differs in the bit D
# unsigned mk_arrive(unsigned *)  // add 1, acquire and release: what was there
# void mk_sync(), mk_sync_part(int threads)  // of a block, of its first threads
# void mk_release(), mk_acquire()  // of every thread, before and after a block sync, where the sync is not enough
# void mk_pause()  // in a spin
# void mk_copy_later<BYTES>(void *, const void *, bool)  // see `Store.later`; false: zeros
# void mk_await<GROUPS>()  // see `Sync.pending`
# void mk_show_units()  // staged instructions see what this thread has stored in scratch, behind a block sync
# unsigned mk_scratch_at(const void *)  // where in the block's memory
# void mk_put_ENCODING(type *, int at, vf)  // four elements, as parts in scratch
# void mk_cluster_sync()  // of all blocks of a cluster
# void mk_open_box(char *)  // before messages are sent to it
# void mk_expect(char *box, int bytes)  // of the next messages
# bool mk_arrived(char *box, int parity)  // whether all their bytes are there: each thread sees them then
# void mk_put(const float *at, const char *box, unsigned rank, float)  // store in another block of the cluster
# MK_CLUSTER(n)  // of the program's function: blocks of a cluster
# void mk_ahead(const char *)  // soon this will be read: a hint, if the dialect asks ahead
# unsigned long long mk_now_ns(), mk_clock()  // the same everywhere; as fine as can be, but each vEU's own
# float mk_half_to_float(unsigned short); unsigned short mk_float_to_half(float)
# MK_COLD  // of a function that is hardly ever called
# MK_WAVE(tid)  // the first thread of the wave, where some of its threads could go another way: the whole wave branches
# MK_HERE(tid)  // tid; a compiler may be kept from computing with it outside of the task, in the loop over all tasks
# MK_TENSOR(type, args, n)  // args[n], a pointer to global memory
# MK_ARENA  // char *: the block's shared memory
# MK_SHARED  // of a pointer: it points into that
# MK_DIVIDE(a, b)  // about a / b, where |b| is no extreme
# MK_PATIENCE  // polls between two looks at a clock, 2^n - 1

# Of every GPU.
TYPES = """\
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INLINE static __device__ __forceinline__
"""

CUDA = Dialect(
    "cuda",
    """\
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
"""
    + TYPES
    + """\
INLINE unsigned mk_load_relaxed(const unsigned *p) {
  unsigned v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
INLINE unsigned mk_load_acquire(const unsigned *p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
INLINE void mk_store_relaxed(unsigned *p, unsigned v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
INLINE void mk_store_release(unsigned *p, unsigned v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
INLINE unsigned mk_exchange(unsigned *p, unsigned old, unsigned v) {
  unsigned was;
  asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;" : "=r"(was) : "l"(p), "r"(old), "r"(v) : "memory");
  return was;
}
INLINE unsigned mk_arrive(unsigned *p) {
  unsigned was;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(was) : "l"(p) : "memory");
  return was;
}
INLINE unsigned long long mk_now_ns() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
INLINE unsigned long long mk_clock() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t));
  return t;
}
INLINE void mk_sync() { __syncthreads(); }
INLINE void mk_sync_part(int threads) { asm volatile("bar.sync 1, %0;" :: "r"(threads) : "memory"); }
INLINE void mk_release() {}
INLINE void mk_acquire() {}
INLINE void mk_pause() {}
template <int D> INLINE float mk_swap(float v) {
  asm volatile("shfl.sync.bfly.b32 %0, %0, %1, 31, -1;" : "+f"(v) : "n"(D));
  return v;
}
INLINE void mk_ahead(const char *p) { asm volatile("prefetch.global.L2 [%0];" :: "l"(p)); }
#if __CUDA_ARCH__ >= 800
template <int BYTES> INLINE void mk_copy_later(void *to, const void *from, bool there) {
  unsigned at;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(to));
  const int bytes = there ? BYTES : 0;
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(at), "l"(from), "r"(bytes) : "memory");
  }
}
template <int GROUPS> INLINE void mk_await() {
  asm volatile("cp.async.commit_group; cp.async.wait_group %0;" :: "n"(GROUPS) : "memory");
}
#endif
#define MK_CLUSTER(n) __cluster_dims__(n, 1, 1)
#if __CUDA_ARCH__ >= 900
INLINE unsigned mk_near(const void *p) {
  unsigned at;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(p));
  return at;
}
INLINE void mk_cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
INLINE void mk_open_box(char *box) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(mk_near(box))
               : "memory");
}
INLINE void mk_expect(char *box, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(mk_near(box)), "r"(bytes) : "memory");
}
INLINE bool mk_arrived(char *box, int parity) {
  unsigned ok;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
               " selp.u32 %0, 1, 0, p; }" : "=r"(ok) : "r"(mk_near(box)), "r"(parity) : "memory");
  return ok;
}
INLINE void mk_put(const float *at, const char *box, unsigned rank, float v) {
  asm volatile("{ .reg .u32 a, b; mapa.shared::cluster.u32 a, %0, %2; mapa.shared::cluster.u32 b, %1, %2;"
               " st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [a], %3, [b]; }"
               :: "r"(mk_near(at)), "r"(mk_near(box)), "r"(rank), "f"(v) : "memory");
}
#endif
#define MK_COLD static __device__ __noinline__
INLINE float mk_half_to_float(unsigned short h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
INLINE unsigned short mk_float_to_half(float f) {
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
extern __shared__ __align__(128) char mk_arena[];
#define MK_ARENA mk_arena
#define MK_SHARED
INLINE void *mk_global(void *p) {  // so that loads are of global memory, and not of any
  __builtin_assume(__isGlobal(p));
  return p;
}
#define MK_HERE(tid) (tid)
#define MK_WAVE(tid) (tid)
#define MK_TENSOR(type, args, n) ((type)mk_global((void *)(args)[n]))
#define MK_DIVIDE(a, b) __fdividef(a, b)
#define MK_PATIENCE 255
""",
    partial_sync=True,
    asks_ahead=True,
    fits=48,  # 68 such tiles of densenet121, chosen at random, need at most 187 of 255 registers
    inline_limit=40_000,
    instructions=(*mma.SM_80, mma.SM_80_FP32, *wgmma.SM_90, *wgmma.SM_90_FP32),
    units=mma.TEXT + wgmma.TEXT,
)

HALF = """\
#define INT64_MIN (-9223372036854775807ll - 1)
INLINE float mk_odd(double x) {  // to float, so that rounding once more does not round twice
  float f = (float)x;
  if ((double)f != x && x == x && f - f == 0) f = sfloat((sbits(f) - (fabs((double)f) > fabs(x))) | 1);
  return f;
}
struct f16 {  // computed with as a float
  unsigned short bits;
  f16() = default;
  __device__ explicit f16(float x) : bits(mk_float_to_half(x)) {}
  template <class T> __device__ explicit f16(T x) : bits(mk_float_to_half(mk_odd((double)x))) {}
  __device__ operator float() const { return mk_half_to_float(bits); }
};
"""

# Approximations by the exponential and an inexact division.
QUICK = """\
INLINE float ssigmoid(float x) { return MK_DIVIDE(1.0f, 1.0f + expf(-x)); }
INLINE float stanh(float x) {  // an odd polynomial near 0, where 1 - 2 / (e^2x + 1) loses digits
  float a = fabsf(x), z = x * x;
  float p = ((((-5.70498872745e-3f * z + 2.06390887954e-2f) * z - 5.37397155531e-2f) * z + 1.33314422036e-1f) * z
             - 3.33332819422e-1f) * z * x + x;
  float q = 1.0f - MK_DIVIDE(2.0f, expf(a + a) + 1.0f);
  return a > 0.625f ? (x < 0.0f ? -q : q) : p;
}
"""

COMPLEX128 = """\
struct c128 { double re, im; };
INLINE double c128_real(c128 x) { return x.re; }
INLINE double c128_imag(c128 x) { return x.im; }
INLINE c128 c128_complex(double re, double im) { c128 v; v.re = re; v.im = im; return v; }
"""

# Functions of vectors apply those of scalars to every lane, so that tails equal bodies.
VECTORS = """\
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
#define ARITHMETIC(op) \\
  INLINE vf operator op(vf a, vf b) { return mk_vf(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w); } \\
  INLINE vf operator op(float a, vf b) { return mk_vf(a op b.x, a op b.y, a op b.z, a op b.w); } \\
  INLINE vf operator op(vf a, float b) { return mk_vf(a.x op b, a.y op b, a.z op b, a.w op b); }
ARITHMETIC(+) ARITHMETIC(-) ARITHMETIC(*) ARITHMETIC(/)
#define COMPARISON(op) \\
  INLINE vi operator op(vf a, vf b) { return mk_vi(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w); } \\
  INLINE vi operator op(float a, vf b) { return splat(a) op b; } \\
  INLINE vi operator op(vf a, float b) { return a op splat(b); }
COMPARISON(==) COMPARISON(<) COMPARISON(<=) COMPARISON(>) COMPARISON(>=)
#define MASKS(op) INLINE vi operator op(vi a, vi b) { return mk_vi(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w); }
MASKS(&) MASKS(|) MASKS(^)
INLINE vi operator~(vi a) { return mk_vi(!a.x, !a.y, !a.z, !a.w); }
INLINE vf operator-(vf a) { return mk_vf(-a.x, -a.y, -a.z, -a.w); }
template <class T> INLINE vf &operator+=(vf &a, T b) { a = a + b; return a; }
INLINE vf vsel(vi m, vf a, vf b) { return mk_vf(m.x ? a.x : b.x, m.y ? a.y : b.y, m.z ? a.z : b.z, m.w ? a.w : b.w); }
#define ONE(fn) INLINE vf v##fn(vf a) { return mk_vf(s##fn(a.x), s##fn(a.y), s##fn(a.z), s##fn(a.w)); }
#define TWO(fn) INLINE vf v##fn(vf a, vf b) { \\
  return mk_vf(s##fn(a.x, b.x), s##fn(a.y, b.y), s##fn(a.z, b.z), s##fn(a.w, b.w)); }
ONE(abs) ONE(sign) ONE(floor) ONE(ceil) ONE(round) ONE(sqrt)
ONE(exp) ONE(log) ONE(erf) ONE(sigmoid) ONE(tanh) ONE(sin) ONE(cos) ONE(asin) ONE(acos) ONE(atan)
TWO(max) TWO(min) TWO(maxc) TWO(minc) TWO(pow)
INLINE vi vis_nan(vf a) { return mk_vi(sis_nan(a.x), sis_nan(a.y), sis_nan(a.z), sis_nan(a.w)); }
INLINE vi vis_inf(vf a) { return mk_vi(sis_inf(a.x), sis_inf(a.y), sis_inf(a.z), sis_inf(a.w)); }
#define FOLD(fn, step) INLINE float fold_##fn(vf v) { \\
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
"""


# One text for all devices.
COMMON = (
    "typedef uint16_t bf16;\n"
    + functions.BITS
    + functions.COMPLEX
    + COMPLEX128
    + HALF
    + functions.HALF_BITS.replace("HALF", "f16")
    + functions.library(("floor", "ceil", "round", "sqrt", "abs", "exp", "log", "erf", "sin", "cos"))
    + functions.instance(functions.SIMPLE + functions.ARCS + minifloats.TEMPLATES)
    + QUICK
    + functions.POW
    + functions.REMAINDERS
    + functions.DOUBLES
    + functions.INTEGERS
    + functions.indices("int64_t", "T", "int").replace("INLINE T", "template <class T> INLINE T")
    + VECTORS
)


def cuda(spec: VDeviceSpec) -> Dialect:
    """Return the dialect of NVIDIA's GPUs: the same for all of them."""
    return CUDA


def prelude(dialect: Dialect) -> str:
    """Return the text before all kernels. The emulator defines the primitives itself."""
    host = emulated_swap(dialect.subgroup_size) + EMULATED_COPIES
    text = f"#ifndef SIMT_HOST\n{dialect.primitives}#else\n{host}#endif\n{COMMON}{FOLDS}"
    if units := [i for i in dialect.instructions if i.multiplies]:
        host = "".join(map(emulated, units))
        if any(i.staged for i in units):
            host = EMULATED_STAGED + wgmma.DESCRIPTOR + host
        text += f"#ifdef SIMT_HOST\n{host}#else\n{dialect.units}#endif\n"
    return text
