// A GPU's C++ on the host: what the text of a SIMT program needs in place of its device's primitives.
// The threads of a block are fibers; see runtime.h. No header is included, so that no C++ library is needed.
#define SIMT_HOST 1
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define INLINE static inline __attribute__((always_inline, unused))
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

extern "C" {
#define ONE(name) double name(double); float name##f(float);
#define TWO(name) double name(double, double); float name##f(float, float);
ONE(exp) ONE(log) ONE(sin) ONE(cos) ONE(atan) ONE(tanh) ONE(erf) ONE(sqrt) ONE(fabs) ONE(floor) ONE(ceil) ONE(rint)
TWO(pow) TWO(fmod) TWO(copysign)
#undef ONE
#undef TWO
}

struct simt_index { unsigned x, y, z; };
struct simt_thread { simt_index thread, block, block_dim, grid_dim; };
// After a fiber has waited, another OS thread's registers must not be believed: always through a call.
extern "C" simt_thread *simt_self();
#define threadIdx (simt_self()->thread)
#define blockIdx (simt_self()->block)
#define blockDim (simt_self()->block_dim)
#define gridDim (simt_self()->grid_dim)

extern "C" {
void simt_sync(int barrier, int threads);
void simt_pause();
void simt_progress();
char *simt_arena();
unsigned long long simt_now_ns(), simt_clock_ns();
float *simt_fragment(int thread);
void simt_copy_later(void *to, const void *from, int bytes), simt_await(int groups);
void simt_cluster_sync(), simt_open_box(char *box), simt_expect(char *box, int bytes);
int simt_arrived(char *box, int parity);
void simt_put(const float *at, const char *box, unsigned rank, float v);
}
#define __syncthreads() simt_sync(0, (int)blockDim.x)
#define MK_ARENA simt_arena()
#define MK_SHARED
#define MK_HERE(tid) (tid)
#define MK_TENSOR(type, args, n) ((type)(args)[n])
#define MK_COLD static __noinline__
#define MK_CLUSTER(n)
#define mk_cluster_sync() simt_cluster_sync()
#define mk_open_box(box) simt_open_box(box)
#define mk_expect(box, bytes) simt_expect(box, bytes)
#define mk_arrived(box, parity) simt_arrived(box, parity)
#define mk_put(at, box, rank, v) simt_put(at, box, rank, v)
#define MK_WAVE(tid) (tid)
#define MK_DIVIDE(a, b) ((a) / (b))
#define MK_PATIENCE 0
#define mk_pause() simt_pause()
#define mk_ahead(p) ((void)*(const volatile char *)(p))  // a hint that must not lead out of memory
#define mk_now_ns() simt_now_ns()
#define mk_clock() simt_clock_ns()
#define mk_time_ns() simt_clock_ns()  // the other one may stand still
#define mk_sync() __syncthreads()
#define mk_sync_part(threads) simt_sync(1, threads)
#define mk_release() __atomic_thread_fence(__ATOMIC_RELEASE)
#define mk_acquire() __atomic_thread_fence(__ATOMIC_ACQUIRE)

INLINE unsigned mk_load_relaxed(const unsigned *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
INLINE unsigned mk_load_acquire(const unsigned *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
INLINE void mk_store_relaxed(unsigned *p, unsigned v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); simt_progress(); }
INLINE void mk_store_release(unsigned *p, unsigned v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); simt_progress(); }
INLINE unsigned mk_exchange(unsigned *p, unsigned old, unsigned v) {
  __atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return old;
}
INLINE unsigned mk_arrive(unsigned *p) { simt_progress(); return __atomic_fetch_add(p, 1u, __ATOMIC_ACQ_REL); }
INLINE float mk_half_to_float(unsigned short h) {
  unsigned sign = (unsigned)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023, u;
  float f;
  if (e == 0) { f = (float)(int)m * 5.9604644775390625e-8f; __builtin_memcpy(&u, &f, 4); }
  else if (e == 31) u = 0x7f800000 | m << 13 | (m ? 0x400000 : 0);
  else u = (e + 112) << 23 | m << 13;
  u |= sign;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
INLINE unsigned short mk_float_to_half(float x) {  // to nearest, ties to even
  unsigned u;
  __builtin_memcpy(&u, &x, 4);
  unsigned short sign = u >> 16 & 0x8000, h;
  u &= 0x7fffffff;
  if (u > 0x7f800000) h = 0x7e00 | (u >> 13 & 0x3ff);
  else if (u >= 0x477ff000) h = 0x7c00;
  else if (u < 0x38800000) {  // subnormal: let the float adder round, an ulp of 0.5 is 2^-24
    float f;
    __builtin_memcpy(&f, &u, 4);
    f += 0.5f;
    __builtin_memcpy(&u, &f, 4);
    h = u - 0x3f000000;
  } else h = (u + 0xfff + (u >> 13 & 1) - (112u << 23)) >> 13;
  return h | sign;
}
// What instructions of waves round their operands to.
INLINE float simt_round(float x, unsigned half, unsigned cut) {
  unsigned u;
  __builtin_memcpy(&u, &x, 4);
  if ((u & 0x7f800000) != 0x7f800000) u = (u + half) & ~cut;
  __builtin_memcpy(&x, &u, 4);
  return x;
}
INLINE float simt_tf32(float x) { return simt_round(x, 0x1000, 0x1fff); }  // ties away from zero
INLINE float simt_tf32_cut(float x) { return simt_round(x, 0, 0x1fff); }
INLINE float simt_bf16(float x) {
  unsigned u;
  __builtin_memcpy(&u, &x, 4);
  return simt_round(x, 0x7fff + (u >> 16 & 1), 0xffff);
}
