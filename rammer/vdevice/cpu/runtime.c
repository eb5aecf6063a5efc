// The CPU vDevice: one thread per vEU walks its lane of a table; step counters order rTasks of different vEUs.
// Paper: §4.2.3. No libc header is included, so that no libc is needed to compile this (see toolchain.py).

typedef long long i64;
typedef unsigned long long u64;
typedef void (*kernel_fn)(char *const *args, char *scratch, long rtask, int *status);

enum { DONE = 0, BAD_INDEX = 1, STALLED = 2, STUCK = 3, NO_THREAD = 4 };
enum { MEASURED_PASSES = 4 };
enum { PUBLISH = 1 };  // slot flag: another vEU waits for this slot

// A slot of a lane. A barrier-rTask has kernel -1, its first wait in `args` and the number of waits in `rtask`.
typedef struct { int kernel, rtask, args, flags, ahead; } slot;
typedef struct { int veu, order; } position;
typedef struct { const char *from; i64 lines; } ahead;  // what an rTask asks for while it computes

// What a kernel is told besides its arguments, and where it reports: kernels that ask ahead know what follows `status`.
typedef struct { int status; ahead next; } context;

// What does not change between runs; filled in by runtime.py, which has the same struct.
typedef struct {
  i64 num_veus, num_programs;
  const i64 *bounds;  // slots of program p, vEU v: bounds[p * num_veus + v] up to the next entry
  const slot *slots;
  const position *waits;
  const kernel_fn *kernels;
  char *const *args;
  const ahead *aheads;  // the first one is nothing
  char *scratch;
  i64 scratch_stride;
  const i64 *cpus;  // the CPU of each vEU, or -1
  i64 spin_ns, watchdog_ns;
  i64 patience;  // loads of a counter before the waiter starts to yield
  u64 *times;    // begin and end of every slot, in ticks; or null
} table;

// One per vEU. What another vEU polls has a cache line of its own (and its neighbour, which CPUs fetch along).
typedef struct {
  _Alignas(128) i64 step;  // slots completed, counted on from the base of the dispatch
  _Alignas(128) unsigned done;  // the last dispatch completed
  _Alignas(128) context now;
  i64 failed;  // the first slot with a bad index, or -1
  i64 begun;   // slots begun, counted like `step`; only watchdogs read it
} lane;

typedef struct {
  table t;
  _Alignas(128) unsigned go;  // number of the dispatch; workers start when it changes
  i64 program, base;
  int timed, stop;
  _Alignas(128) int sleepers;
  int abort;
  i64 report[8];  // of a stall: program, vEU, order, awaited vEU, awaited order, slots it had begun; ticks of the run
  int num_threads, lost;
  _Alignas(128) char lanes[];
} pool;

#define INLINE static inline __attribute__((always_inline))
#define LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define STORE(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)

// ---- the operating system ----

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
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__) || defined(__riscv))
long syscall(long, ...);
int sched_getcpu(void);
#if defined(__x86_64__)
enum { FUTEX = 202, SETAFFINITY = 203, GETAFFINITY = 204 };
#else
enum { FUTEX = 98, SETAFFINITY = 122, GETAFFINITY = 123 };
#endif
INLINE void sleep_while(unsigned *word, unsigned value) { syscall(FUTEX, word, 128, value, (void *)0, (void *)0, 0); }
INLINE void wake_all(unsigned *word) { syscall(FUTEX, word, 129, 0x7fffffff, (void *)0, (void *)0, 0); }
typedef struct { unsigned long bits[128]; } cpu_mask;
static void pin(i64 cpu) {
  cpu_mask only = {{0}};
  if (cpu < 0 || cpu >= (i64)sizeof only * 8) return;
  only.bits[cpu / 64] = 1ul << cpu % 64;
  syscall(SETAFFINITY, 0, sizeof only, &only);  // a CPU that was taken away meanwhile: run where we may
}
// The caller keeps its own affinity, but must not start on the CPU of a worker: it would share it for milliseconds.
static void leave_workers(const table *t) {
  if (t->cpus[0] < 0) return;
  int here = sched_getcpu();
  for (i64 v = 1; v < t->num_veus; v++)
    if (t->cpus[v] == here) {
      cpu_mask before = {{0}};
      if (syscall(GETAFFINITY, 0, sizeof before, &before) <= 0) return;
      pin(t->cpus[0]);
      syscall(SETAFFINITY, 0, sizeof before, &before);
      return;
    }
}
#else
int usleep(unsigned);
INLINE void sleep_while(unsigned *word, unsigned value) { if (LOAD(word) == value) usleep(50); }
INLINE void wake_all(unsigned *word) { (void)word; }
static void pin(i64 cpu) { (void)cpu; }
static void leave_workers(const table *t) { (void)t; }
#endif

INLINE void pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

static i64 now_ns(void) {
  struct timespec t;
  clock_gettime(MONOTONIC, &t);
  return t.sec * 1000000000ll + t.nsec;
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
  return now_ns();
#endif
}

// ---- one lane ----

INLINE lane *lane_of(pool *p, i64 veu) { return (lane *)p->lanes + veu; }

static void set_report(pool *p, i64 veu, i64 order, position on, i64 begun) {
  i64 report[6] = {p->program, veu, order, on.veu, on.order, begun > p->base ? begun - p->base : 0};
  for (int i = 0; i < 6; i++) p->report[i] = report[i];
}

// Whether a lane has begun no slot for too long. A pause of the whole process counts little.
typedef struct { i64 begun, last, waited; } watchdog;
static int overdue(watchdog *w, const lane *l, i64 limit) {
  i64 begun = __atomic_load_n(&l->begun, __ATOMIC_RELAXED), now = now_ns(), passed = now - w->last;
  w->waited = begun != w->begun || !w->last ? 0 : w->waited + (passed < limit / 16 ? passed : limit / 16);
  w->begun = begun;
  w->last = now;
  return w->waited > limit;
}

// Wait until `on` has completed. False: the run was stopped.
static int __attribute__((noinline)) await_slowly(pool *p, i64 veu, i64 order, position on, i64 base) {
  const lane *other = lane_of(p, on.veu);
  watchdog dog = {0, 0, 0};
  for (;;) {
    for (int i = 0; i < 16; i++) {
      if (LOAD(&other->step) - base > on.order) return 1;
      pause();
    }
    if (LOAD(&p->abort)) return 0;
    sched_yield();
    if (overdue(&dog, other, p->t.watchdog_ns)) {
      int none = 0;  // the first to notice reports
      if (__atomic_compare_exchange_n(&p->abort, &none, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        set_report(p, veu, order, on, dog.begun);
      return 0;
    }
  }
}

INLINE int await(pool *p, i64 veu, i64 order, position on, i64 base) {
  const i64 *step = &lane_of(p, on.veu)->step;
  for (i64 i = 0; i < p->t.patience; i++) {
    if (LOAD(step) - base > on.order) return 1;
    pause();
  }
  return await_slowly(p, veu, order, on, base);
}

INLINE void walk(pool *p, i64 veu, int timed) {
  const table *t = &p->t;
  lane *me = lane_of(p, veu);
  const i64 base = p->base;
  const i64 *bounds = t->bounds + p->program * t->num_veus + veu;
  const slot *first = t->slots + bounds[0], *end = t->slots + bounds[1];
  char *scratch = t->scratch + veu * t->scratch_stride;
  for (const slot *s = first; s < end; s++) {
    u64 begin = timed ? ticks() : 0;
    __atomic_store_n(&me->begun, base + (s - first) + 1, __ATOMIC_RELAXED);
    if (s->kernel < 0) {
      for (int w = 0; w < s->rtask; w++)
        if (!await(p, veu, s - first, t->waits[s->args + w], base)) return;
    } else {
      me->now.next = t->aheads[s->ahead];
      t->kernels[s->kernel](t->args + s->args, scratch, s->rtask, &me->now.status);
      if (__builtin_expect(me->now.status, 0)) {
        me->now.status = 0;
        if (me->failed < 0) me->failed = s - t->slots;
      }
    }
    if (s->flags & PUBLISH) STORE(&me->step, base + (s - first) + 1);
    if (timed) t->times[2 * (s - t->slots)] = begin, t->times[2 * (s - t->slots) + 1] = ticks();
  }
}

static void run_lane(pool *p, i64 veu) {
  if (p->timed) walk(p, veu, 1);
  else walk(p, veu, 0);
}

// ---- workers ----

typedef struct { pool *p; i64 veu; } start;

static unsigned next_dispatch(pool *p, unsigned seen) {
  i64 since = now_ns();
  for (;;) {
    for (int i = 0; i < 64; i++) {
      unsigned go = LOAD(&p->go);
      if (go != seen) return go;
      pause();
    }
    if (p->t.patience < 1000) sched_yield();  // more vEUs than CPUs
    if (now_ns() - since < p->t.spin_ns) continue;
    // Either dispatch() sees us in `sleepers`, or we see its new `go`: both sides are sequentially consistent.
    __atomic_add_fetch(&p->sleepers, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&p->go, __ATOMIC_SEQ_CST) == seen) sleep_while(&p->go, seen);
    __atomic_sub_fetch(&p->sleepers, 1, __ATOMIC_SEQ_CST);
  }
}

static void *worker(void *argument) {
  start *s = argument;
  pool *p = s->p;
  lane *me = lane_of(p, s->veu);
  pin(p->t.cpus[s->veu]);
  for (unsigned seen = 0;;) {
    seen = next_dispatch(p, seen);
    if (p->stop) return 0;
    run_lane(p, s->veu);
    STORE(&me->done, seen);
  }
}

INLINE void announce(pool *p) {
  __atomic_store_n(&p->go, p->go + 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&p->sleepers, __ATOMIC_SEQ_CST)) wake_all(&p->go);
}

// Wait for a worker to finish its lane. False: it does not come back.
static int join(pool *p, i64 veu) {
  lane *other = lane_of(p, veu);
  for (i64 i = 0; i < p->t.patience; i++) {
    if (LOAD(&other->done) == p->go) return 1;
    pause();
  }
  watchdog dog = {0, 0, 0};
  while (LOAD(&other->done) != p->go) {
    sched_yield();
    if (overdue(&dog, other, 2 * p->t.watchdog_ns)) {  // a waiting worker's own watchdog comes first
      set_report(p, veu, -1, (position){-1, -1}, dog.begun);
      p->lost = 1;
      return 0;
    }
  }
  return 1;
}

// ---- entry points ----

#define EXPORT __attribute__((visibility("default")))

EXPORT i64 rammer_pool_bytes(i64 num_veus) { return sizeof(pool) + num_veus * (sizeof(lane) + sizeof(thread) + sizeof(start)); }

INLINE thread *threads_of(pool *p) { return (thread *)(lane_of(p, p->t.num_veus)); }

// Stop and join the workers. False: a lost worker is still in some kernel, and the memory must stay.
EXPORT int rammer_close(pool *p) {
  if (p->lost) return 0;
  p->stop = 1;
  announce(p);
  for (int i = 0; i < p->num_threads; i++) pthread_join(threads_of(p)[i], 0);
  p->num_threads = 0;
  return 1;
}

// `memory`: zeroed, 128-byte aligned, rammer_pool_bytes() long; it belongs to the pool until rammer_close.
EXPORT int rammer_open(pool *p, const table *t) {
  p->t = *t;
  start *starts = (start *)(threads_of(p) + t->num_veus);
  opaque attributes, all, before;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 8 << 20);  // musl's default is too small for kernels
  sigfillset(&all);
  pthread_sigmask(SETMASK, &all, &before);  // signals belong to the threads that know Python
  int failed = 0;
  for (i64 v = 1; v < t->num_veus && !failed; v++) {
    starts[v] = (start){p, v};
    failed = pthread_create(&threads_of(p)[p->num_threads], &attributes, worker, &starts[v]);
    p->num_threads += !failed;
  }
  pthread_sigmask(SETMASK, &before, (opaque *)0);
  pthread_attr_destroy(&attributes);
  if (failed) rammer_close(p);
  return failed ? NO_THREAD : DONE;
}

// Run every rProgram, one after another: each is a dispatch of its own and a join of all vEUs.
static int run_all(pool *p, int timed) {
  const table *t = &p->t;
  const i64 *bounds = t->bounds;
  if (p->lost) return STUCK;
  if (t->num_veus > 1) leave_workers(t);
  for (i64 v = 0; v < t->num_veus; v++) lane_of(p, v)->failed = -1;
  p->abort = 0;
  p->timed = timed;
  for (i64 program = 0; program < t->num_programs; program++, bounds += t->num_veus) {
    p->program = program;
    if (bounds[1] == bounds[t->num_veus]) {  // all in lane 0: a plain call
      run_lane(p, 0);
    } else {
      announce(p);
      run_lane(p, 0);
      for (i64 v = 1; v < t->num_veus; v++)
        if (!join(p, v)) return STUCK;
    }
    p->base += bounds[t->num_veus] - bounds[0] + 1;  // counters only grow: no reset, no stale value
    if (p->abort) return STALLED;
  }
  int result = DONE;
  for (i64 v = 0; v < t->num_veus; v++) {
    lane *l = lane_of(p, v);
    if (l->failed >= 0 && (result == DONE || l->failed < p->report[0])) {
      result = BAD_INDEX;
      p->report[0] = l->failed;
    }
  }
  return result;
}

EXPORT int rammer_run(pool *p, int timed) {
  p->report[6] = ticks();
  int result = run_all(p, timed);
  p->report[7] = ticks();
  return result;
}

EXPORT const i64 *rammer_report(pool *p) { return p->report; }
EXPORT i64 rammer_now_ns(void) { return now_ns(); }
EXPORT u64 rammer_ticks(void) { return ticks(); }

// Nanoseconds of one rTask: all rTasks in turn, the best of a few passes, as far as `limit_ns` goes. The first pass
// finds cold caches.
EXPORT double rammer_measure(kernel_fn kernel, char *const *args, char *scratch, i64 num_rtasks, i64 limit_ns) {
  context now = {0, {0, 0}};
  double best = 0;
  i64 start = now_ns(), end = start, chunk = 1;
  for (int pass = 0; pass < MEASURED_PASSES && (!pass || end - start < limit_ns); pass++) {
    i64 done = 0, begin = end = now_ns();
    while (done < num_rtasks && end - start < limit_ns) {
      i64 stop = done + chunk < num_rtasks ? done + chunk : num_rtasks;
      for (; done < stop; done++) kernel(args, scratch, done, &now.status);
      i64 passed = now_ns();
      if (passed - end < 20000) chunk *= 2;  // so that reading the clock does not count
      end = passed;
    }
    double mean = (double)(end - begin) / done;
    if (!pass || (done == num_rtasks && mean < best)) best = mean;
  }
  return best;
}
