struct mk_x { unsigned x; };
#define threadIdx (mk_x{__builtin_amdgcn_workitem_id_x()})
#define blockIdx (mk_x{__builtin_amdgcn_workgroup_id_x()})
#define gridDim (mk_x{__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x()})
#define MK_AGENT __HIP_MEMORY_SCOPE_AGENT
INLINE unsigned mk_load_relaxed(const unsigned *p) { return __hip_atomic_load(p, __ATOMIC_RELAXED, MK_AGENT); }
INLINE unsigned mk_load_acquire(const unsigned *p) { return mk_load_relaxed(p); }  // mk_acquire follows
INLINE void mk_store_relaxed(unsigned *p, unsigned v) { __hip_atomic_store(p, v, __ATOMIC_RELAXED, MK_AGENT); }
// What blocks hand over is in uncached memory, if so compiled: a store that has completed is visible to all.
#ifdef MK_UNCACHED
INLINE void mk_release() { asm volatile("s_waitcnt vmcnt(0)" ::: "memory"); }
INLINE void mk_store_release(unsigned *p, unsigned v) { mk_release(); mk_store_relaxed(p, v); }
#else
INLINE void mk_release() { __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent"); }
INLINE void mk_store_release(unsigned *p, unsigned v) { __hip_atomic_store(p, v, __ATOMIC_RELEASE, MK_AGENT); }
#endif
INLINE unsigned mk_exchange(unsigned *p, unsigned old, unsigned v) {
  __hip_atomic_compare_exchange_strong(p, &old, v, __ATOMIC_RELAXED, __ATOMIC_RELAXED, MK_AGENT);
  return old;
}
INLINE unsigned mk_arrive(unsigned *p) { return __hip_atomic_fetch_add(p, 1u, __ATOMIC_ACQ_REL, MK_AGENT); }
// Of a counter at 100 MHz: where it is slower, the host allows less time.
INLINE unsigned long long mk_now_ns() { return 10 * __builtin_readsteadycounter(); }
INLINE unsigned long long mk_clock() { return __builtin_readcyclecounter(); }
INLINE void mk_sync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
INLINE void mk_acquire() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent"); }
INLINE void mk_pause() { __builtin_amdgcn_s_sleep(1); }
template <int D> INLINE float mk_swap(float v) {
  const int bits = __builtin_bit_cast(int, v);
  if constexpr (D < 32) {
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_swizzle(bits, D << 10 | 31));
  } else {
    const int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute((lane ^ D) << 2, bits));
  }
}
INLINE float mk_half_to_float(unsigned short h) { return (float)__builtin_bit_cast(__fp16, h); }
INLINE unsigned short mk_float_to_half(float f) { return __builtin_bit_cast(unsigned short, (__fp16)f); }
extern __shared__ __align__(128) char mk_arena[];
#define MK_ARENA mk_arena
#define MK_SHARED __attribute__((address_space(3)))  // else some would be read with flat instructions
// Else what many tasks compute from their thread's number would leave the loop, and fill the registers.
#define MK_HERE(tid) mk_here(tid)
INLINE int mk_here(int tid) {
  asm volatile("" : "+v"(tid));
  return tid;
}
#define MK_TENSOR(type, args, n) ((type)((__attribute__((address_space(1))) void *const *)(args))[n])
#define MK_COLD INLINE
#define MK_WAVE(tid) __builtin_amdgcn_readfirstlane(tid)
#define MK_DIVIDE(a, b) ((a) * __builtin_amdgcn_rcpf(b))
#define MK_PATIENCE 255
