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
INLINE unsigned mk_shared_at(const void *p) {
  unsigned at;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(p));
  return at;
}
INLINE void mk_cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
INLINE void mk_open_box(char *box) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(mk_shared_at(box))
               : "memory");
}
INLINE void mk_expect(char *box, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(mk_shared_at(box)), "r"(bytes) : "memory");
}
INLINE bool mk_arrived(char *box, int parity) {
  unsigned ok;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
               " selp.u32 %0, 1, 0, p; }" : "=r"(ok) : "r"(mk_shared_at(box)), "r"(parity) : "memory");
  return ok;
}
INLINE void mk_put(const float *at, const char *box, unsigned rank, float v) {
  asm volatile("{ .reg .u32 a, b; mapa.shared::cluster.u32 a, %0, %2; mapa.shared::cluster.u32 b, %1, %2;"
               " st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [a], %3, [b]; }"
               :: "r"(mk_shared_at(at)), "r"(mk_shared_at(box)), "r"(rank), "f"(v) : "memory");
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
