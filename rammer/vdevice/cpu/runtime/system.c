// What runtime.c asks of the CPU and of the operating system. No libc header is included, so that no libc is needed to
// compile this (see toolchain.py). Without threads (RAMMER_THREADS 0) programs run in the thread that calls.

typedef long long i64;
typedef unsigned long long u64;

#define INLINE static inline __attribute__((always_inline))

#if !defined(RAMMER_THREADS) && (defined(__wasm__) || !__STDC_HOSTED__)
#define RAMMER_THREADS 0
#elif !defined(RAMMER_THREADS)
#define RAMMER_THREADS 1
#endif
#if RAMMER_THREADS
#define LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define STORE(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define LOAD_ALONE(p) __atomic_load_n(p, __ATOMIC_RELAXED)  // orders nothing else
#define STORE_ALONE(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)
#define LOAD_IN_ORDER(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)  // with other ..._IN_ORDER: one order for all threads
#define STORE_IN_ORDER(p, v) __atomic_store_n(p, v, __ATOMIC_SEQ_CST)
#define ADD_IN_ORDER(p, v) __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST)
#define REPLACE_IN_ORDER(p, old, v) __atomic_compare_exchange_n(p, old, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
#else  // small CPUs have no atomic operations on 64 bits
#define LOAD(p) (*(p))
#define STORE(p, v) (void)(*(p) = (v))
#define LOAD_ALONE LOAD
#define STORE_ALONE STORE
#define LOAD_IN_ORDER LOAD
#define STORE_IN_ORDER STORE
#define ADD_IN_ORDER(p, v) ((*(p) += (v)) - (v))
#define REPLACE_IN_ORDER(p, old, v) (*(p) == *(old) ? (*(p) = (v), 1) : 0)
#endif

// ---- the CPU ----

#if defined(__x86_64__)
typedef unsigned control;
enum { FLUSH = 0x8040 };  // of MXCSR: results that are subnormal are zero, and so are operands
INLINE control float_control(void) { return __builtin_ia32_stmxcsr(); }
INLINE void set_float_control(control to) { __builtin_ia32_ldmxcsr(to); }
#elif defined(__aarch64__)
typedef u64 control;
enum { FLUSH = 1 << 24 };  // of FPCR: both
INLINE control float_control(void) {
  control now;
  __asm__ volatile("mrs %0, fpcr" : "=r"(now));
  return now;
}
INLINE void set_float_control(control to) { __asm__ volatile("msr fpcr, %0" : : "r"(to)); }
#else
typedef unsigned control;  // of other CPUs nothing is known
enum { FLUSH = 0 };
INLINE control float_control(void) { return 0; }
INLINE void set_float_control(control to) { (void)to; }
#endif

// ---- the operating system: threads, sleeping on a word, CPUs, a clock ----

enum { STACK_BYTES = 8 << 20 };  // of a thread: musl's default is too small for kernels
#define ANYBODY 0xffffffffu      // sleepers on one word tell themselves apart by the bits of `who`

#if !RAMMER_THREADS
typedef int thread;
INLINE void sleep_while(unsigned *word, unsigned value, unsigned who) { (void)word, (void)value, (void)who; }
INLINE void wake(unsigned *word, unsigned who) { (void)word, (void)who; }
INLINE void yield(void) {}
INLINE i64 now_ns(void) { return 0; }
INLINE i64 current_cpu(void) { return -1; }
INLINE void pin(i64 cpu) { (void)cpu; }
INLINE void move_to(i64 cpu) { (void)cpu; }
INLINE int start(thread *made, void *(*run)(void *), void *with) { return (void)made, (void)run, (void)with, 1; }
INLINE void join_thread(thread made) { (void)made; }
#define WORKER(name, argument) static void *name(void *argument)
#elif defined(_WIN32)
typedef void *thread;
#define SYSTEM(type) __declspec(dllimport) type __stdcall
SYSTEM(void *) CreateThread(void *, u64, unsigned long(__stdcall *)(void *), void *, unsigned long, unsigned long *);
SYSTEM(unsigned long) WaitForSingleObject(void *, unsigned long);
SYSTEM(int) CloseHandle(void *);
SYSTEM(long) RtlWaitOnAddress(const void *, const void *, u64, const i64 *);  // WaitOnAddress needs one more library
SYSTEM(void) RtlWakeAddressAll(const void *);
SYSTEM(int) SwitchToThread(void);
SYSTEM(int) QueryPerformanceCounter(i64 *);
SYSTEM(int) QueryPerformanceFrequency(i64 *);
SYSTEM(void *) GetCurrentThread(void);
SYSTEM(u64) SetThreadAffinityMask(void *, u64);
SYSTEM(unsigned long) GetCurrentProcessorNumber(void);
INLINE void sleep_while(unsigned *word, unsigned value, unsigned who) {
  (void)who;
  RtlWaitOnAddress(word, &value, sizeof value, (const i64 *)0);  // for any time
}
INLINE void wake(unsigned *word, unsigned who) {
  (void)who;
  RtlWakeAddressAll(word);
}
INLINE void yield(void) { SwitchToThread(); }
static i64 now_ns(void) {
  i64 now, each_second;
  QueryPerformanceCounter(&now);
  QueryPerformanceFrequency(&each_second);
  return now / each_second * 1000000000 + now % each_second * 1000000000 / each_second;
}
INLINE i64 current_cpu(void) { return (i64)GetCurrentProcessorNumber(); }
static void pin(i64 cpu) {
  if (cpu >= 0 && cpu < 64) SetThreadAffinityMask(GetCurrentThread(), 1ull << cpu);
}
static void move_to(i64 cpu) {
  const u64 before = cpu >= 0 && cpu < 64 ? SetThreadAffinityMask(GetCurrentThread(), 1ull << cpu) : 0;
  if (before) SetThreadAffinityMask(GetCurrentThread(), before);
}
static int start(thread *made, unsigned long(__stdcall *run)(void *), void *with) {
  *made = CreateThread((void *)0, STACK_BYTES, run, with, 0x10000, (unsigned long *)0);  // a reservation
  return !*made;
}
static void join_thread(thread made) {
  WaitForSingleObject(made, 0xffffffffu);
  CloseHandle(made);
}
#define WORKER(name, argument) static unsigned long __stdcall name(void *argument)
#else
typedef unsigned long thread;  // pthread_t is a word on every system we know
typedef struct { _Alignas(16) char space[256]; } opaque;  // larger than any pthread attribute, mutex or signal set
struct timespec { long sec, nsec; };
int pthread_create(thread *, const opaque *, void *(*)(void *), void *);
int pthread_join(thread, void **);
int pthread_attr_init(opaque *);
int pthread_attr_setstacksize(opaque *, unsigned long);
int pthread_attr_destroy(opaque *);
int pthread_sigmask(int, const opaque *, opaque *);
int sigfillset(opaque *);
int sched_yield(void);
int clock_gettime(int, struct timespec *);
#ifdef __linux__
enum { MONOTONIC = 1, SETMASK = 2 };
#else
enum { MONOTONIC = 6, SETMASK = 3 };  // macOS
#endif
INLINE void yield(void) { sched_yield(); }
static i64 now_ns(void) {
  struct timespec t;
  clock_gettime(MONOTONIC, &t);
  return t.sec * 1000000000ll + t.nsec;
}
// Signals stay with the threads that the program knows.
static int start(thread *made, void *(*run)(void *), void *with) {
  opaque attributes, all, before;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  sigfillset(&all);
  pthread_sigmask(SETMASK, &all, &before);
  const int failed = pthread_create(made, &attributes, run, with);
  pthread_sigmask(SETMASK, &before, (opaque *)0);
  pthread_attr_destroy(&attributes);
  return failed;
}
static void join_thread(thread made) { pthread_join(made, (void **)0); }
#define WORKER(name, argument) static void *name(void *argument)
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__) || defined(__riscv))
#define LISTS_CPUS
long syscall(long, ...);
int sched_getcpu(void);
int nanosleep(const struct timespec *, struct timespec *);
#if defined(__x86_64__)
enum { FUTEX = 202, SETAFFINITY = 203, GETAFFINITY = 204, GETTID = 186 };
#else
enum { FUTEX = 98, SETAFFINITY = 122, GETAFFINITY = 123, GETTID = 178 };
#endif
INLINE void sleep_while(unsigned *word, unsigned value, unsigned who) {
  syscall(FUTEX, word, 128 | 9, value, (void *)0, (void *)0, who);
}
INLINE void wake(unsigned *word, unsigned who) {
  syscall(FUTEX, word, 128 | 10, 0x7fffffff, (void *)0, (void *)0, who);
}
typedef struct { unsigned long bits[128]; } cpu_mask;
static void pin(i64 cpu) {
  cpu_mask only = {{0}};
  if (cpu < 0 || cpu >= (i64)sizeof only * 8) return;
  only.bits[cpu / 64] = 1ul << cpu % 64;
  syscall(SETAFFINITY, 0, sizeof only, &only);  // a CPU that was taken away meanwhile: run where we may
}
INLINE i64 current_cpu(void) { return sched_getcpu(); }
INLINE i64 thread_id(void) { return syscall(GETTID); }
// How long a thread of this process has computed.
static i64 cpu_ns_of(i64 id) {
  struct timespec t;
  return clock_gettime((int)(~(unsigned)id << 3 | 6), &t) ? -1 : t.sec * 1000000000ll + t.nsec;
}
// Let a thread of this process run on any of these CPUs.
static void unpin(i64 id, const i64 *cpus, i64 count) {
  cpu_mask may = {{0}};
  for (i64 n = 0; n < count; n++)
    if (cpus[n] >= 0 && cpus[n] < (i64)sizeof may * 8) may.bits[cpus[n] / 64] |= 1ul << cpus[n] % 64;
  syscall(SETAFFINITY, id, sizeof may, &may);
}
static void nap(void) {
  const struct timespec briefly = {0, 50000};
  nanosleep(&briefly, (struct timespec *)0);
}
// List the CPUs that this thread may use, at most so many. Their number, or -1 where it is not known.
static __attribute__((unused)) i64 allowed_cpus(i64 *cpus, i64 most) {
  cpu_mask may = {{0}};
  i64 count = 0;
  if (syscall(GETAFFINITY, 0, sizeof may, &may) <= 0) return -1;
  for (i64 cpu = 0; cpu < (i64)sizeof may * 8; cpu++)
    if (may.bits[cpu / 64] >> cpu % 64 & 1) {
      if (count < most) cpus[count] = cpu;
      count++;
    }
  return count;
}
static void move_to(i64 cpu) {
  cpu_mask before = {{0}};
  if (syscall(GETAFFINITY, 0, sizeof before, &before) <= 0) return;
  pin(cpu);
  syscall(SETAFFINITY, 0, sizeof before, &before);
}
#else
int usleep(unsigned);
INLINE void sleep_while(unsigned *word, unsigned value, unsigned who) {
  (void)who;
  if (LOAD(word) == value) usleep(50);
}
INLINE void wake(unsigned *word, unsigned who) { (void)word, (void)who; }
static void pin(i64 cpu) { (void)cpu; }
INLINE i64 current_cpu(void) { return -1; }
static void move_to(i64 cpu) { (void)cpu; }
#endif
#endif

#if !defined(LISTS_CPUS)
INLINE i64 thread_id(void) { return -1; }
INLINE i64 cpu_ns_of(i64 id) { return (void)id, -1; }
INLINE void unpin(i64 id, const i64 *cpus, i64 count) { (void)id, (void)cpus, (void)count; }
INLINE void nap(void) {}
static __attribute__((unused)) i64 allowed_cpus(i64 *cpus, i64 most) {
  for (i64 n = 0; n < most; n++) cpus[n] = -1;
  return -1;
}
#endif
// Whether this process may use AMX's tile registers: Linux must be asked for them.
static __attribute__((unused)) int may_use_tiles(void) {
#if defined(LISTS_CPUS) && defined(__x86_64__)
  return !syscall(158, 0x1023, 18);  // arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA
#else
  return 0;
#endif
}

INLINE void pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

INLINE u64 ticks(void) {
#if defined(__x86_64__)
  unsigned low, high;
  __asm__ volatile("rdtsc" : "=a"(low), "=d"(high)::"memory");
  return (u64)high << 32 | low;
#elif defined(__aarch64__)
  u64 t;
  __asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(t)::"memory");
  return t;
#else
  return (u64)now_ns();
#endif
}

// ---- turns ----

// Runs that would compute on the same CPUs go one at a time, first come first served. Runtimes of several builds may
// share this struct, so it is part of the ABI.
typedef struct {
  _Alignas(128) unsigned next;     // the ticket of the next thread
  _Alignas(128) unsigned serving;  // the ticket whose turn it is
  _Alignas(128) const void *holder;  // the pool of the last turn: idle vEUs of other pools sleep
} turn;

INLINE void take(turn *of) {
  unsigned mine = ADD_IN_ORDER(&of->next, 1);
  for (unsigned now; (now = LOAD_IN_ORDER(&of->serving)) != mine;) sleep_while(&of->serving, now, 1u << mine % 32);
}

INLINE void give(turn *of) {
  unsigned next = of->serving + 1;
  STORE_IN_ORDER(&of->serving, next);
  if (LOAD_IN_ORDER(&of->next) != next) wake(&of->serving, 1u << next % 32);
}
