"""CUDA C++ of the microbenchmarks: a round of each kind of hand-over, and what is measured of memory and launches.

A spin asks only itself whether it takes too long: a round has no access to memory but those of its hand-over.
"""

from __future__ import annotations

ROUNDS = 1000
THREADS = 256
CLUSTER = 8  # blocks; all GPUs from sm_90 on have clusters of so many
LINE = 32  # words of a cache line
CHASED = 8192  # lines of 128 bytes that L2 holds

HEAD = """\
typedef unsigned long long u64;
#define INLINE static __device__ __forceinline__
INLINE u64 now() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
INLINE unsigned relaxed(unsigned *p) {
  unsigned v; asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
INLINE unsigned acquire(unsigned *p) {
  unsigned v; asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
INLINE void release(unsigned *p, unsigned v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
INLINE unsigned arrive(unsigned *p) {
  unsigned v; asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"(p) : "memory"); return v; }
INLINE u64 load64(u64 *p) {
  u64 v; asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory"); return v; }
INLINE void store64(u64 *p, u64 v) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(p), "l"(v) : "memory"); }
// When a spin began, or 0 to give up: after a second, or when another one did.
static __device__ __noinline__ u64 patient(u64 since, unsigned *late) {
  const u64 time = now();
  if (!since) since = time;
  if (time - since < 1000000000ull && !relaxed(late)) return since;
  *late = 1;
  return 0;
}
// The thread that gives up ends; syncs of its block do not count it any more.
#define SPIN(condition) { u64 since = 0; for (unsigned polls = 1; !(condition); polls++) \\
  if (!(polls & 1023) && !(since = patient(since, late))) return; }
"""
CLUSTERS = """\
INLINE unsigned shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
INLINE unsigned mapped(unsigned at, unsigned rank) {
  unsigned v; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(v) : "r"(at), "r"(rank)); return v; }
INLINE void expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory"); }
INLINE void send(unsigned at, u64 value, unsigned barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];"
               :: "r"(at), "l"(value), "r"(barrier) : "memory"); }
INLINE void put(unsigned at, unsigned value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(at), "r"(value) : "memory"); }
INLINE void tell(unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory"); }
INLINE bool arrived(unsigned barrier, unsigned phase) {
  unsigned done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
               " selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(barrier), "r"(phase) : "memory");
  return done; }
#define TOGETHER asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" \\
  ::: "memory");
"""
# The counter is the megakernel's own barrier: its acquire is a second way to L2 behind the poll. If every poll
# acquires, L1 is emptied by each of them. `line` holds a cache line per block, `late` whether a spin gave up.
ALONE = {
    "counter": """
    __syncthreads();
    if (threadIdx.x == 0) {
      release(mine, n);
      SPIN(relaxed(left) >= n)
      acquire(left);
    }
    __syncthreads();""",
    "counter whose polls acquire": """
    __syncthreads();
    if (threadIdx.x == 0) {
      release(mine, n);
      SPIN(acquire(left) >= n)
    }
    __syncthreads();""",
    "data as flag": """
    if (threadIdx.x == 0) store64((u64 *)mine, (u64)n << 32 | n);
    if (threadIdx.x == 0) SPIN(load64((u64 *)left) >> 32 >= n)
    __syncthreads();""",
    "whole grid": """
    __syncthreads();
    if (threadIdx.x == 0) {
      arrive(line);
      SPIN(relaxed(line) >= n * gridDim.x)
      acquire(line);
    }
    __syncthreads();""",
    "counter that is there already": """
    __syncthreads();
    if (threadIdx.x == 0) {
      release(mine, n);
      SPIN(relaxed(mine) >= n)
      acquire(mine);
    }
    __syncthreads();""",
    "two block syncs": """
    __syncthreads();
    asm volatile("" ::: "memory");
    __syncthreads();""",
}
# A block hands over to its partner, which hands over to it: two barriers in turns are enough.
CLUSTERED = {
    "cluster": """
    TOGETHER""",
    "cluster, relaxed": """
    asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory");""",
    "cluster, a message": """
    const unsigned at = 8 * (n & 1);
    if (threadIdx.x == 0) {
      expect(own + at, 8);
      send(far + 8 * 2 + at, n, far + at);
      SPIN(arrived(own + at, n - 1 >> 1 & 1))
    }
    __syncthreads();""",
    "cluster, a message to each of its blocks": """
    const unsigned at = 8 * (n & 1);
    if (threadIdx.x == 0) expect(own + at, 8 * 8);
    if (threadIdx.x < 8) send(each + 8 * (2 + 8 * (n & 1) + rank), n, each + at);
    if (threadIdx.x == 0) SPIN(arrived(own + at, n - 1 >> 1 & 1))
    __syncthreads();""",
    "cluster, a message that each thread awaits": """
    const unsigned at = 8 * (n & 1);
    if (threadIdx.x == 0) { expect(own + at, 8); send(far + 8 * 2 + at, n, far + at); }
    SPIN(arrived(own + at, n - 1 >> 1 & 1))
    if (n & 1) __syncthreads();  // else a warp might be two rounds late, and miss a phase""",
    "cluster, a store and an arrival": """
    const unsigned at = 8 * (n & 1);
    if (threadIdx.x == 0) {
      put(far + 8 * 2 + at, n);
      tell(far + at);
      SPIN(arrived(own + at, n - 1 >> 1 & 1))
    }
    __syncthreads();""",
}
KINDS = ALONE | CLUSTERED
MEETING = """\
  __shared__ __align__(16) u64 room[2 + 2 * 8];
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const unsigned own = shared(room), far = mapped(own, rank ^ 1), each = mapped(own, threadIdx.x & 7);
  if (threadIdx.x == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; mbarrier.init.shared::cta.b64 [%0+8], 1;"
                 " fence.mbarrier_init.release.cluster;" :: "r"(own) : "memory");
  TOGETHER
"""
EMPTY = 'extern "C" __global__ void micro() {}\n'
FOLLOWING = """\
extern "C" __global__ void micro() {
  asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");
}
"""


def barrier_text(kind: str) -> str:
    """The kernel of a kind of hand-over."""
    together = kind in CLUSTERED
    shape = f"__attribute__((cluster_dims({CLUSTER}, 1, 1))) " if together else ""
    neighbours = (
        f"  unsigned *mine = line + {LINE} * (1 + blockIdx.x);\n"
        f"  unsigned *left = line + {LINE} * (1 + (blockIdx.x + gridDim.x - 1) % gridDim.x);\n"
    )
    return (
        f'{HEAD}{CLUSTERS * together}extern "C" __global__ {shape}void __launch_bounds__({THREADS}, 1)\n'
        f"micro(unsigned *line, unsigned *late) {{\n{MEETING if together else neighbours}"
        f"#pragma unroll 1\n  for (unsigned n = 1; n <= {ROUNDS}; n++) {{{KINDS[kind]}\n  }}\n"
        f"{'  TOGETHER' * together}\n}}\n"
    )


def chase_text() -> str:
    """A thread that loads line after line from L2, with the clocks of each load behind the lines."""
    return (
        f'{HEAD}extern "C" __global__ void micro(unsigned *line, unsigned *clocks) {{\n'
        f"#pragma unroll 1\n  for (unsigned n = 0; n < 2 * {CHASED}; n++) {{\n"
        "    unsigned begin, end;\n"
        '    asm volatile("mov.u32 %0, %%clock;" : "=r"(begin) :: "memory");\n'
        f"    if (relaxed(line + {LINE} * (n % {CHASED}))) return;\n"
        '    asm volatile("mov.u32 %0, %%clock;" : "=r"(end) :: "memory");\n'
        f"    clocks[n % {CHASED}] = end - begin;\n"
        "  }\n}\n"
    )
