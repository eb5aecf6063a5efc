// The other half of the emulator, after the program's text: blocks, fibers, barriers, and who runs next.
//
// A worker is an OS thread that runs the fibers of its blocks in turn. One worker per block (the default) runs blocks
// at the same time; one worker for all of them is deterministic and knows a deadlock when it sees one.

#ifndef SIMT_STACK
#define SIMT_STACK (128 << 10)
#endif

extern "C" {
typedef unsigned long simt_pthread;
struct simt_timespec { long sec, nsec; };
int pthread_create(simt_pthread *, const void *, void *(*)(void *), void *);
int pthread_join(simt_pthread, void **);
int sched_yield(void);
int clock_gettime(int, struct simt_timespec *);
void *mmap(void *, unsigned long, int, int, int, long);
int munmap(void *, unsigned long);
void abort(void);
}

#if defined(__APPLE__)
enum { SIMT_MAP = 0x1042, SIMT_MONOTONIC = 6 };  // private, anonymous, no reserve
#else
enum { SIMT_MAP = 0x4022, SIMT_MONOTONIC = 1 };
#endif
#if defined(__x86_64__)
__asm__(
    ".text\nsimt_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
enum { SIMT_FRAME = 8, SIMT_RETURN = 6 };  // words; the last keeps the stack as a call would
#elif defined(__aarch64__)
__asm__(
    ".text\nsimt_switch:\n"
    "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\n"
    "stp d14,d15,[sp,#144]\nmov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\n"
    "ldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#160\nret\n");
enum { SIMT_FRAME = 20, SIMT_RETURN = 11 };
#else
#error "the emulator switches fibers on x86-64 and aarch64 only"
#endif
extern "C" void simt_switch(void **save, void *to) __asm__("simt_switch");

// Under ThreadSanitizer fibers are threads to it, and only block syncs, atomics and the end order them.
#if defined(__SANITIZE_THREAD__)
#define SIMT_UNSEEN __attribute__((no_sanitize_thread))
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void *);
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_acquire(void *);
void __tsan_release(void *);
}
#else
#define SIMT_UNSEEN
#define __tsan_get_current_fiber() 0
#define __tsan_create_fiber(flags) 0
#define __tsan_destroy_fiber(fiber)
#define __tsan_switch_to_fiber(fiber, flags)
#define __tsan_acquire(clock)
#define __tsan_release(clock)
#endif
enum { SIMT_UNORDERED = 1 };  // a switch is no synchronisation
#define SIMT_FAR SIMT_UNSEEN __attribute__((noinline))  // where the OS thread may have changed its mind about registers

enum { SIMT_READY, SIMT_BLOCKED, SIMT_DONE };
enum { SIMT_OK = 0, SIMT_DIVERGED = 1, SIMT_NO_MEMORY = 2 };
enum { SIMT_BARRIERS = 2 + 32 };  // of the block, of its first threads, of every wave

static SIMT_UNSEEN char *simt_pages(unsigned long bytes) {
  char *p = (char *)mmap(0, bytes, 3, SIMT_MAP, -1, 0);
  return p == (char *)-1 ? 0 : p;
}

// Blocks of a cluster: a message is queued at its receiver, and delivered as late as it may be, when it is awaited; with
// an odd seed at once.
#ifdef MK_BLOCKS
enum { SIMT_MESSAGES = 4096 };
#else
#define MK_BLOCKS 1
enum { SIMT_MESSAGES = 1 };
#endif
struct simt_message { long to, box; float value; };
struct simt_box { int got, expected, armed, phase; };  // the 16 bytes before a place
static int simt_early;

struct simt_block;
struct simt_fiber {
  simt_thread self;
  simt_block *block;
  void *stack, *tsan;
  int state, barrier;
  float fragment[16];  // what the other threads of its wave may read
  simt_later later;
};
struct simt_block {
  simt_fiber *fibers;
  int *order;  // fibers in the order in which they take turns
  int at, count, ready, live;
  int arrived[SIMT_BARRIERS], round[SIMT_BARRIERS];
  char clocks[SIMT_BARRIERS][2];  // whose addresses the sanitizer knows
  char *arena;
  int met, meetings, locked, queued;
  simt_message queue[SIMT_MESSAGES];
};
struct simt_worker {
  simt_block *blocks;
  int count, at, live;
  simt_fiber *now;
  void *home, *home_tsan;
  char ended;
  long pauses;  // since the last progress
  int alone, stuck, result;
};
static __thread simt_worker *simt_me;
static void (*simt_body)(void *);
static void *simt_argument;

extern "C" SIMT_FAR simt_thread *simt_self() { return &simt_me->now->self; }
extern "C" SIMT_FAR char *simt_arena() { return simt_me->now->block->arena; }
extern "C" SIMT_FAR float *simt_fragment(int thread) { return simt_me->now->block->fibers[thread].fragment; }
extern "C" SIMT_FAR void simt_copy_later(void *to, const void *from, int bytes) {
  simt_later_copy(&simt_me->now->later, to, from, bytes);
}
extern "C" SIMT_FAR void simt_await(int groups) { simt_later_await(&simt_me->now->later, groups); }
extern "C" SIMT_FAR void simt_progress() { simt_me->pauses = 0; }

extern "C" SIMT_FAR unsigned long long simt_clock_ns() {
  simt_timespec t;
  clock_gettime(SIMT_MONOTONIC, &t);
  return t.sec * 1000000000ull + t.nsec;
}

// One worker's time stands still until nothing can happen any more; then a limit is over at once.
extern "C" SIMT_FAR unsigned long long simt_now_ns() {
  if (simt_me->alone) return simt_me->stuck ? 1ull << 62 : 2;
  return simt_clock_ns();
}

static SIMT_UNSEEN void simt_go(simt_fiber *to) {
  simt_worker *w = simt_me;
  simt_fiber *from = w->now;
  if (to == from) return;
  w->now = to;
  __tsan_switch_to_fiber(to->tsan, SIMT_UNORDERED);
  simt_switch(&from->stack, to->stack);
}

static SIMT_UNSEEN simt_fiber *simt_next_in(simt_block *b) {  // the next ready fiber, its turn taken
  for (;;) {
    b->at = b->at + 1 == b->count ? 0 : b->at + 1;
    simt_fiber *f = b->fibers + b->order[b->at];
    if (f->state == SIMT_READY) return f;
  }
}

static SIMT_UNSEEN void simt_leave(int result) {  // end of this worker's run
  void *ignored;
  simt_me->result = result;
  __tsan_switch_to_fiber(simt_me->home_tsan, SIMT_UNORDERED);
  simt_switch(&ignored, simt_me->home);
}

// Run something else: a fiber of this block, or after a round of them one of the next block.
static SIMT_FAR void simt_yield(int whole_round) {
  simt_worker *w = simt_me;
  simt_block *b = w->now->block;
  if (b->ready && !whole_round) {
    simt_go(simt_next_in(b));
    return;
  }
  for (int n = 0; n < w->count; n++) {
    w->at = w->at + 1 == w->count ? 0 : w->at + 1;
    if (w->blocks[w->at].ready) {
      simt_go(simt_next_in(w->blocks + w->at));
      return;
    }
  }
  simt_leave(SIMT_DIVERGED);  // every fiber waits at a barrier that not all reach
}

extern "C" SIMT_FAR void simt_sync(int barrier, int threads) {
  simt_fiber *f = simt_me->now;
  simt_block *b = f->block;
  char *clock = &b->clocks[barrier][b->round[barrier] & 1];
  __tsan_release(clock);
  if (++b->arrived[barrier] < threads) {
    f->state = SIMT_BLOCKED;
    f->barrier = barrier;
    b->ready--;
    simt_yield(0);
    __tsan_acquire(clock);
    return;
  }
  __tsan_acquire(clock);
  b->round[barrier]++;
  b->arrived[barrier] = 0;
  for (int n = 0; n < b->count; n++)
    if (b->fibers[n].state == SIMT_BLOCKED && b->fibers[n].barrier == barrier) {
      b->fibers[n].state = SIMT_READY;
      b->ready++;
    }
  simt_progress();
}

// A spin: thread 0 of this very block may have to signal first, so its other fibers come before other blocks.
extern "C" SIMT_FAR void simt_pause() {
  simt_worker *w = simt_me;
  simt_block *b = w->now->block;
  long rounds = 0;
  for (int n = 0; n < w->count; n++) rounds += w->blocks[n].ready;
  if (++w->pauses > 2 * rounds + 64) w->stuck = w->alone;
  int turn = b->at;
  simt_fiber *f = simt_next_in(b);
  if (b->at > turn) {
    simt_go(f);
    return;
  }
  b->at = turn;
  if (!w->alone) sched_yield();
  simt_yield(1);
}

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_write4(void *);
#else
#define __tsan_write4(at)
#endif
static SIMT_UNSEEN void simt_lock(simt_block *b) {
  while (__atomic_exchange_n(&b->locked, 1, __ATOMIC_ACQUIRE)) sched_yield();
}
static SIMT_UNSEEN void simt_unlock(simt_block *b) { __atomic_store_n(&b->locked, 0, __ATOMIC_RELEASE); }
static SIMT_UNSEEN simt_block *simt_rank(unsigned rank) {
  simt_block *b = simt_me->now->block;
  return b - b->fibers->self.block.x % MK_BLOCKS + rank;
}
extern "C" SIMT_FAR void simt_cluster_sync() {
  simt_block *first = simt_rank(0);
  const int round = __atomic_load_n(&first->meetings, __ATOMIC_ACQUIRE);
  __tsan_release(&first->meetings);
  simt_progress();
  if (__atomic_add_fetch(&first->met, 1, __ATOMIC_ACQ_REL) == MK_BLOCKS * first->count) {
    __atomic_store_n(&first->met, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&first->meetings, round + 1, __ATOMIC_RELEASE);
  } else
    while (__atomic_load_n(&first->meetings, __ATOMIC_ACQUIRE) == round) simt_pause();
  __tsan_acquire(&first->meetings);
}
extern "C" SIMT_FAR void simt_open_box(char *box) { *(simt_box *)box = {0, 0, 0, 0}; }
static SIMT_UNSEEN void simt_deliver(simt_block *b, simt_message m) {
  *(float *)(b->arena + m.to) = m.value;
  ((simt_box *)(b->arena + m.box))->got += 4;
}
static SIMT_UNSEEN int simt_complete(simt_block *b, simt_box *box) {  // deliver what is awaited, if all of it is sent
  int waiting = 0, kept = 0;
  for (int n = 0; n < b->queued; n++) waiting += b->arena + b->queue[n].box == (char *)box ? 4 : 0;
  if (!box->armed || box->got + waiting != box->expected) return 0;
  for (int n = 0; n < b->queued; n++)
    if (b->arena + b->queue[n].box == (char *)box) simt_deliver(b, b->queue[n]);
    else b->queue[kept++] = b->queue[n];
  b->queued = kept;
  box->got = box->armed = 0;
  box->phase++;
  simt_progress();
  return 1;
}
extern "C" SIMT_FAR void simt_expect(char *box, int bytes) {
  simt_block *b = simt_me->now->block;
  simt_lock(b);
  ((simt_box *)box)->armed = 1;
  ((simt_box *)box)->expected = bytes;
  simt_unlock(b);
}
extern "C" SIMT_FAR int simt_arrived(char *box, int parity) {
  simt_block *b = simt_me->now->block;
  simt_lock(b);
  simt_box *mine = (simt_box *)box;
  if ((mine->phase & 1) == parity) simt_complete(b, mine);
  const int done = (mine->phase & 1) != parity;
  simt_unlock(b);
  if (done) __tsan_acquire(box);
  return done;
}
extern "C" SIMT_FAR void simt_put(const float *at, const char *box, unsigned rank, float value) {
  simt_block *b = simt_me->now->block, *to = simt_rank(rank);
  const simt_message m = {(char *)at - b->arena, box - b->arena, value};
  simt_lock(to);
  __tsan_release(to->arena + m.box);
  if (simt_early || to->queued == SIMT_MESSAGES) {
    __tsan_write4(to->arena + m.to);
    simt_deliver(to, m);
  } else
    to->queue[to->queued++] = m;
  simt_unlock(to);
  simt_progress();
}

static SIMT_UNSEEN void simt_start() {
  simt_body(simt_argument);
  simt_worker *w = simt_me;
  simt_fiber *f = w->now;
  simt_block *b = f->block;
  f->state = SIMT_DONE;
  b->ready--;
  b->live--;
  w->live--;
  simt_progress();
  __tsan_release(&w->ended);
  if (w->live == 0) simt_leave(SIMT_OK);
  simt_yield(0);
  abort();
}

static SIMT_UNSEEN unsigned simt_random(unsigned *seed) { return (*seed = *seed * 1664525u + 1013904223u) >> 8; }

static SIMT_UNSEEN unsigned long simt_block_bytes(int threads, unsigned long arena) {
  return threads * (sizeof(simt_fiber) + sizeof(int) + SIMT_STACK) + arena + 256;
}

static SIMT_UNSEEN int simt_init(simt_block *b, int number, int blocks, int threads, unsigned long arena, unsigned seed) {
  char *memory = simt_pages(simt_block_bytes(threads, arena));
  if (!memory) return 0;
  b->arena = memory;  // first: on a page boundary
  b->fibers = (simt_fiber *)(memory + (arena + 127) / 128 * 128);
  b->order = (int *)(b->fibers + threads);
  char *stacks = (char *)(((unsigned long)(b->order + threads) + 63) / 64 * 64);
  for (unsigned long n = 0; n < arena; n++) b->arena[n] = (char)0xff;  // NaN
  b->count = b->ready = b->live = threads;
  for (int n = 0; n < SIMT_BARRIERS; n++) b->arrived[n] = b->round[n] = 0;
  for (int n = 0; n < threads; n++) b->order[n] = n;
  unsigned random = seed * 2654435761u + number;
  for (int n = threads - 1; n > 0 && seed; n--) {
    int k = simt_random(&random) % (n + 1), was = b->order[n];
    b->order[n] = b->order[k];
    b->order[k] = was;
  }
  b->at = threads - 1;
  for (int n = 0; n < threads; n++) {
    simt_fiber *f = b->fibers + n;
    f->self.thread = {(unsigned)n, 0, 0};
    f->self.block = {(unsigned)number, 0, 0};
    f->self.block_dim = {(unsigned)threads, 1, 1};
    f->self.grid_dim = {(unsigned)blocks, 1, 1};
    f->block = b;
    f->state = SIMT_READY;
    f->tsan = __tsan_create_fiber(0);
    void **top = (void **)(((unsigned long)stacks + (n + 1ul) * SIMT_STACK) & ~63ul) - SIMT_FRAME;
    for (int k = 0; k < SIMT_FRAME; k++) top[k] = 0;
    top[SIMT_RETURN] = (void *)simt_start;
    f->stack = top;
  }
  return 1;
}

static SIMT_FAR void *simt_work(void *argument) {
  simt_worker *w = (simt_worker *)argument;
  simt_me = w;
  w->now = simt_next_in(w->blocks + w->at);
  w->home_tsan = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(w->now->tsan, SIMT_UNORDERED);
  simt_switch(&w->home, w->now->stack);
  __tsan_acquire(&w->ended);
  return 0;
}

// Run `body(argument)` as every thread of a grid. `deterministic`: one worker; `seed` shuffles the order of turns.
static SIMT_UNSEEN int simt_launch(int blocks, int threads, unsigned long arena, int deterministic, unsigned seed,
                       void (*body)(void *), void *argument) {
  unsigned long size = blocks * (sizeof(simt_block) + sizeof(simt_worker) + sizeof(simt_pthread));
  simt_block *all = (simt_block *)simt_pages(size);
  if (!all) return SIMT_NO_MEMORY;
  simt_worker *workers = (simt_worker *)(all + blocks);
  simt_pthread *handles = (simt_pthread *)(workers + blocks);
  simt_early = seed & 1;
  simt_body = body;
  simt_argument = argument;
  int made = 0, result = SIMT_OK, started = 0;
  while (made < blocks && simt_init(all + made, made, blocks, threads, arena, seed)) made++;
  int count = deterministic ? 1 : blocks;
  if (made < blocks) result = SIMT_NO_MEMORY;
  for (int n = 0; n < count && result == SIMT_OK; n++) {
    simt_worker *w = workers + n;
    w->blocks = all + n;
    w->count = deterministic ? blocks : 1;
    w->live = w->count * threads;
    w->at = seed % w->count;
    w->alone = deterministic;
    if (deterministic) simt_work(w);
    else if (pthread_create(handles + n, 0, simt_work, w)) result = SIMT_NO_MEMORY;
    started += result == SIMT_OK;
  }
  for (int n = 0; n < started; n++) {
    if (!deterministic) pthread_join(handles[n], 0);
    if (result == SIMT_OK) result = workers[n].result;
  }
  for (int n = 0; n < made; n++) {
    for (int k = 0; k < threads; k++) __tsan_destroy_fiber(all[n].fibers[k].tsan);
    munmap(all[n].arena, simt_block_bytes(threads, arena));
  }
  munmap(all, size);
  return result;
}

// ---- the program ----

struct simt_arguments {
  const Instr *stream;
  const int *bounds;
  const Wait *waits;
  void *const *args;
  unsigned *state;
  long program, span;
  unsigned long long limit_ns;
};
static void simt_program(void *argument) {
  simt_arguments a = *(simt_arguments *)argument;
  rammer_run(a.stream, a.bounds, a.waits, a.args, a.state, (int)a.program, (int)a.span, a.limit_ns);
}
extern "C" __attribute__((visibility("default"))) int simt_run(const simt_arguments *a, long blocks, long threads,
                                                               long arena, long deterministic, long seed) {
  return simt_launch(blocks, threads, arena, deterministic, seed, simt_program, (void *)a);
}
