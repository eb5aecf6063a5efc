// The CPU vDevice: one thread per vEU walks its lane of a table; step counters order rTasks of different vEUs.
// Programs share the threads of a pool, and take turns; vEU 0 is the thread that calls. Paper: §4.2.3. It goes behind
// system.c.

typedef void (*kernel_fn)(char *const *args, char *scratch, i64 rtask, int *status);

enum { DONE = 0, BAD_INDEX = 1, STALLED = 2, STUCK = 3, LOST = 4, CLOSED = 5, NO_THREAD = 6 };
enum { PUBLISH = 1 };  // slot flag: another vEU waits for this slot
enum { LATE_NS = 20000000 };  // for which a late vEU waits after a call that has not waited for it
enum { LOOK = 16, LONG_LOOK = 256 };  // loads of a counter, after which a waiter looks whether it can help, or stand in
enum { STARVED_NS = 200000 };  // in which a thread that is awaited computes for a quarter at least
enum { RESTS = 8 };  // times the wait for it a worker rests then
enum { SHORTEST = 8 };  // where a report has the ticks of the shortest run, or 0

// A slot of a lane. A barrier-rTask has kernel -1, its first wait in `args` and the number of waits in `rtask`. Of an
// rTask with tickets others may do parts.
typedef struct { int kernel, rtask, args, flags, ahead, tickets; } slot;
typedef struct { int veu, order; } position;
typedef struct { const char *from; i64 lines; } ahead;  // what an rTask asks for while it computes

// What a kernel is told besides its arguments, and where it reports: kernels that ask ahead know what follows `status`,
// and those of which others may do parts: these have tickets, of which so many are `taken`.
typedef struct { int status; ahead next; i64 *taken; } context;

// A program: what does not change between its runs; filled in by runtime.py, which has the same struct.
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
  i64 num_cpus;
  const i64 *cpus;  // the CPU of each vEU or -1, also of those that only wider programs have
  i64 spin_ns, watchdog_ns;
  i64 patience;  // loads of a counter before the waiter starts to yield
  u64 *times;    // begin and end of every slot, in ticks
  i64 *report;   // of a stall: program, vEU, order, awaited vEU, awaited order, slots it had begun; ticks of the run, of
                 // its begin and its end; ticks of the shortest run
  i64 keeps_subnormals;  // else vEUs take numbers below the normal ones for zero: many CPUs need a hundred times as long
} table;

// One per vEU. What another vEU polls has a cache line of its own (and its neighbour, which CPUs fetch along).
typedef struct {
  _Alignas(128) i64 step;  // slots completed, counted on from the base of the dispatch
  _Alignas(128) u64 done;  // the last dispatch completed
  unsigned asleep;
  _Alignas(128) i64 taken;  // tickets of the slot that is open
  _Alignas(128) const slot *open;  // while its rTask runs, others may do parts of it
  i64 helping;  // vEUs that found it open, or look whether it is
  _Alignas(128) context now;
  i64 failed;  // the first slot with a bad index, or -1
  i64 begun;   // slots begun, counted like `step`; only watchdogs read it
  i64 cpu;     // of the worker, or -1
  i64 id;      // of its thread, for the system
  i64 rests_until;  // it got too little time on its CPU, and walks no lane until then; or 0
  i64 long_gaps;  // how many dispatches in a row came later than it may spin
  i64 in_vain; // how often the worker spun for its whole time and then fell asleep
  i64 helped;  // how often it found parts of another vEU's rTask to do
  _Alignas(128) u64 claimed;  // the last dispatch whose lane somebody walks: the worker, or the caller in its place
  u64 walks;  // the last one that the worker walks
  const slot *next;  // of a lane that the caller walks
  thread thread;
  struct pool *pool;
  char *scratch;  // of the program that runs: nobody else computes there
  u64 idle;  // the dispatch in which it waits, in timed runs
  i64 awaited;  // what for: the step of a vEU, as vEU << 32 | order; or -1, the ends of all lanes
} lane;

// What a host offers: call work(p, v) once for each v < count, on any threads, and return when all have returned.
typedef void parallel(void *host, int count, void (*work)(void *p, int v), void *p);

typedef struct pool {
  turn *turn;
  _Alignas(128) u64 go;  // number of the dispatch, and in CALLED the number of vEUs that it calls
  const table *t;
  i64 program, base;
  int timed;
  i64 late;  // the vEU whose first and last slot begin late, as a test of what others wait for; or a negative number
  _Alignas(128) int sleepers;
  int abort, lost, running, closing;
  i64 num_veus;  // vEU 0 included, which has no thread here
  parallel *parallel;  // of a host, whose threads walk the lanes; or NULL
  void *host;
  i64 claimed;   // lanes that the caller walks
  i64 rests_until;  // the same of the worker that rests longest
  lane lanes[];
} pool;

enum { CALLED = 0xffff, EVERYBODY_OUT = 0xffff };  // a dispatch that ends all workers

// The caller keeps its own affinity, but must not start on the CPU of a worker that computes or spins: it would share it
// for milliseconds.
static void leave_workers(const pool *p) {
  const table *t = p->t;
  if (t->cpus[0] < 0) return;
  const i64 here = current_cpu(), num_veus = LOAD(&p->num_veus);
  for (i64 v = 1; v < num_veus && v < t->num_cpus; v++)
    if (t->cpus[v] == here && (v < t->num_veus || !LOAD(&p->lanes[v].asleep))) {
      move_to(t->cpus[0]);
      return;
    }
}

// ---- one lane ----


static void set_report(pool *p, i64 veu, i64 order, position on, i64 begun) {
  i64 report[6] = {p->program, veu, order, on.veu, on.order, begun > p->base ? begun - p->base : 0};
  for (int i = 0; i < 6; i++) p->t->report[i] = report[i];
}

// Stop the run; the first to notice reports.
static void stall(pool *p, i64 veu, i64 order, position on, i64 begun) {
  int none = 0;
  if (__atomic_compare_exchange_n(&p->abort, &none, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    set_report(p, veu, order, on, begun);
}

// Whether no slot was begun for too long. A pause of the whole process counts little.
typedef struct { i64 begun, last, waited; } watchdog;
static int overdue(watchdog *w, i64 begun, i64 limit) {
  i64 now = now_ns(), passed = now - w->last;
  w->waited = begun != w->begun || !w->last ? 0 : w->waited + (passed < limit / 16 ? passed : limit / 16);
  w->begun = begun;
  w->last = now;
  return w->waited > limit;
}

INLINE void compute(const table *t, lane *me, const slot *s) {
  t->kernels[s->kernel](t->args + s->args, me->scratch, s->rtask, &me->now.status);
  if (__builtin_expect(me->now.status, 0)) {
    me->now.status = 0;
    if (me->failed < 0 || s - t->slots < me->failed) me->failed = s - t->slots;
  }
}

// Do parts of another vEU's rTask, if it has some left. It waits for us, as we count as helping before we look.
static void __attribute__((noinline)) help(pool *p, i64 veu, lane *other) {
  const table *t = p->t;
  lane *me = &p->lanes[veu];
  ADD_IN_ORDER(&other->helping, 1);
  const slot *s = LOAD_IN_ORDER(&other->open);
  if (s && LOAD_ALONE(&other->taken) + 1 < s->tickets) {  // its owner comes to the last one
    me->helped++;
    me->now.next = *t->aheads;
    me->now.taken = &other->taken;
    compute(t, me, s);
    me->now.taken = 0;
  }
  ADD_IN_ORDER(&other->helping, -1);
}

// ---- lanes whose workers do not begin ----
//
// The CPU of a worker may be taken by another process, for milliseconds. The caller then claims the lane, and walks it
// beside its own: while it waits, it computes slots of claimed lanes whose own waits are over. A worker that comes late
// finds its lane claimed.

INLINE int claims(lane *l, u64 go) {
  u64 before = LOAD_IN_ORDER(&l->claimed);
  return before < go && REPLACE_IN_ORDER(&l->claimed, &before, go);
}

INLINE const i64 *bounds_of(const pool *p, i64 veu) { return p->t->bounds + p->program * p->t->num_veus + veu; }

INLINE int is_over(const pool *p, position on) { return LOAD(&p->lanes[on.veu].step) - p->base > on.order; }

// Claim a lane for this thread, unless another one has begun. False: it has.
static int begin_lane(pool *p, lane *l, u64 go) {
  if (!claims(l, go)) return 0;
  l->scratch = p->t->scratch + (l - p->lanes) * p->t->scratch_stride;
  l->next = p->t->slots + bounds_of(p, l - p->lanes)[0];
  return 1;
}

static void claim(pool *p, lane *l, u64 go) { p->claimed += begin_lane(p, l, go); }

// Claim the lanes of all workers that rest.
static void claim_resting(pool *p, u64 go) {
  const i64 now = now_ns();
  if (now > LOAD(&p->rests_until)) STORE(&p->rests_until, 0);
  else
    for (i64 v = 1; v < p->t->num_veus; v++)
      if (now < LOAD(&p->lanes[v].rests_until)) claim(p, &p->lanes[v], go);
}

// Compute the next slot of a lane that this thread has claimed. False: it has to wait.
static int step_lane(pool *p, i64 v) {
  const table *t = p->t;
  lane *l = &p->lanes[v];
  const slot *s = l->next, *first = t->slots + bounds_of(p, v)[0], *end = t->slots + bounds_of(p, v)[1];
  if (LOAD(&p->abort)) s = end;
  for (int w = 0; s < end && s->kernel < 0 && w < s->rtask; w++)
    if (!is_over(p, t->waits[s->args + w])) return 0;
  if (s < end) {
    STORE_ALONE(&l->begun, p->base + (s - first) + 1);
    l->now.next = t->aheads[s->ahead];
    if (s->kernel >= 0) compute(t, l, s);
    if (s->flags & PUBLISH) STORE(&l->step, p->base + (s - first) + 1);
  }
  l->next = s + 1 < end ? s + 1 : 0;
  if (!l->next) STORE(&l->done, p->go);
  return 1;
}

// Compute at most one slot of each lane that the caller has claimed. False: none could be.
static int walk_claimed(pool *p) {
  int walked = 0;
  for (i64 v = 1; v < p->t->num_veus; v++)
    if (p->lanes[v].next && step_lane(p, v)) {
      walked = 1;
      p->claimed -= !p->lanes[v].next;
    }
  return walked;
}

// The caller's part of a wait for another lane. It claims one that has not begun for as long as the shortest run took:
// which is when waiting has cost as much as it could win.
static int __attribute__((noinline)) stand_in(pool *p, lane *other, u64 *since) {
  const u64 now = ticks(), shortest = (u64)p->t->report[SHORTEST];
  if (!*since) *since = now;
  if (shortest && now - *since >= shortest && !p->timed && !other->next && LOAD(&other->done) != p->go)
    claim(p, other, p->go);
  return p->claimed && walk_claimed(p);
}

// Let another thread run in the place of one that waits for `other`. If that one gets too little time on its own CPU, it
// may run on any, and the waiter sleeps, as the system moves threads to idle CPUs. For some time the caller walks its lane.
typedef struct { i64 begin, since, cpu_ns; } share;
static void give_way(pool *p, lane *other, share *s) {
  const i64 now = now_ns(), passed = now - s->since;
  const u64 go = LOAD(&p->go);
  if (passed < STARVED_NS || (LOAD(&other->claimed) == go && LOAD(&other->walks) != go)) {  // the caller walks that lane
    yield();
    return;
  }
  const i64 cpu_ns = other == p->lanes || other->cpu < 0 ? -1 : cpu_ns_of(LOAD(&other->id));  // of pinned ones
  const int starves = s->since && cpu_ns >= 0 && (cpu_ns - s->cpu_ns) * 4 < passed;
  *s = (share){s->begin ? s->begin : now, now, cpu_ns};
  if (!starves) {
    yield();
    return;
  }
  const i64 until = now + RESTS * (now - s->begin);
  if (!LOAD(&other->rests_until)) unpin(LOAD(&other->id), p->t->cpus, p->t->num_cpus);
  STORE(&other->rests_until, until);
  if (until > LOAD(&p->rests_until)) STORE(&p->rests_until, until);
  nap();
}

// ---- waits ----

// Wait until `on` has completed. False: the run was stopped.
static int __attribute__((noinline)) await_slowly(pool *p, i64 veu, i64 order, position on, i64 base, u64 since) {
  lane *other = &p->lanes[on.veu];
  watchdog dog = {0, 0, 0};
  share got = {0, 0, 0};
  for (;;) {
    for (int i = 0; i < LOOK; i++) {
      if (LOAD(&other->step) - base > on.order) return 1;
      pause();
    }
    if (LOAD(&p->abort)) return 0;
    if (LOAD(&other->open)) help(p, veu, other);
    if (veu || !stand_in(p, other, &since)) give_way(p, other, &got);
    if (overdue(&dog, LOAD_ALONE(&other->begun), p->t->watchdog_ns)) {
      stall(p, veu, order, on, dog.begun);
      return 0;
    }
  }
}

INLINE int await(pool *p, i64 veu, i64 order, position on, i64 base, int timed) {
  lane *other = &p->lanes[on.veu];
  u64 since = 0;
  for (i64 i = 1; i <= p->t->patience; i++) {
    if (LOAD(&other->step) - base > on.order) return 1;
    if (timed) STORE(&p->lanes[veu].awaited, (i64)on.veu << 32 | on.order), STORE(&p->lanes[veu].idle, p->go);
    pause();
    if (i % LOOK) continue;
    if (LOAD(&other->open)) help(p, veu, other);
    if (!veu && (p->claimed || i % LONG_LOOK == 0)) stand_in(p, other, &since);
  }
  return await_slowly(p, veu, order, on, base, since);
}

// The rTask of a slot, of which others may do parts. False: one of these does not come back.
static int __attribute__((noinline)) compute_openly(pool *p, i64 veu, const slot *s, i64 order) {
  lane *me = &p->lanes[veu];
  me->taken = 0;
  me->now.taken = &me->taken;
  STORE(&me->open, s);
  compute(p->t, me, s);
  me->now.taken = 0;
  STORE_IN_ORDER(&me->open, 0);
  watchdog dog = {0, 0, 0};
  for (i64 i = 1; LOAD_IN_ORDER(&me->helping); i++) {
    pause();
    if (i % p->t->patience) continue;
    yield();
    if (LOAD(&p->abort)) return 0;
    if (overdue(&dog, LOAD_ALONE(&me->begun), p->t->watchdog_ns)) {
      stall(p, veu, order, (position){(int)veu, (int)order}, dog.begun);
      return 0;
    }
  }
  return 1;
}

// Whether a lane waits for what is not there yet. One that has just got it may still look as if it waited.
static int is_held_up(const pool *p, const lane *other, u64 go) {
  if (LOAD(&other->idle) != go) return 0;
  const i64 on = LOAD(&other->awaited);
  return on < 0 || LOAD(&p->lanes[on >> 32].step) - p->base <= (on & 0xffffffff);
}

// Hold a vEU back until each other one waits, or has come to its end. A call that ends without it is wrong, and its
// results are read before this vEU goes on.
static void __attribute__((noinline)) come_late(const pool *p, i64 veu) {
  const i64 *bounds = p->t->bounds + p->program * p->t->num_veus;
  i64 ended = 0;
  for (i64 v = 0; v < p->t->num_veus && !LOAD(&p->abort);) {
    const u64 go = LOAD(&p->go);
    const lane *other = &p->lanes[v];
    if (v == veu || bounds[v] == bounds[v + 1] || is_held_up(p, other, go) || LOAD(&other->done) == go) v++;
    else yield();
    if (!LOAD_IN_ORDER(&p->running)) {
      if (!ended) ended = now_ns();
      if (now_ns() - ended > LATE_NS) return;
    }
  }
}

INLINE void walk(pool *p, i64 veu, int timed) {
  const table *t = p->t;
  lane *me = &p->lanes[veu];
  const i64 base = p->base;
  const i64 *bounds = t->bounds + p->program * t->num_veus + veu;
  const slot *first = t->slots + bounds[0], *end = t->slots + bounds[1];
  for (const slot *s = first; s < end; s++) {
    if (timed && p->late == veu && (s == first || s == end - 1)) come_late(p, veu);
    u64 begin = timed ? ticks() : 0;
    STORE_ALONE(&me->begun, base + (s - first) + 1);
    if (s->kernel < 0) {
      for (int w = 0; w < s->rtask; w++)
        if (!await(p, veu, s - first, t->waits[s->args + w], base, timed)) return;
      if (timed) STORE(&me->idle, 0);
    } else {
      me->now.next = t->aheads[s->ahead];
      if (timed || !s->tickets) compute(t, me, s);  // what is timed is each slot's own
      else if (!compute_openly(p, veu, s, s - first)) return;
    }
    if (s->flags & PUBLISH) STORE(&me->step, base + (s - first) + 1);
    if (timed) t->times[2 * (s - t->slots)] = begin, t->times[2 * (s - t->slots) + 1] = ticks();
  }
}

// How the program's rTasks compute with subnormal numbers; and again as the thread did before.
INLINE control begin_rtasks(const table *t) {
  const control before = float_control();
  if (!t->keeps_subnormals && before != (before | FLUSH)) set_float_control(before | FLUSH);
  return before;
}
INLINE void end_rtasks(control before) {
  if (float_control() != before) set_float_control(before);  // the caller's are its own
}

static void run_lane(pool *p, i64 veu) {
  p->lanes[veu].scratch = p->t->scratch + veu * p->t->scratch_stride;
  const control before = begin_rtasks(p->t);
  if (p->timed) walk(p, veu, 1);
  else walk(p, veu, 0);
  end_rtasks(before);
}

// ---- workers ----

INLINE int calls(u64 go, i64 veu) { return (i64)(go & CALLED) > veu; }

// Wait for a dispatch after `last` that calls this vEU. A worker without a CPU of its own is in the way of those that
// are called instead, and a whole pool in the way of another one that has the turn.
//
// Whoever calls seldom gains nothing from it: after two gaps that were longer, a worker sleeps at once, until it was
// called sooner again.
static u64 next_dispatch(pool *p, i64 veu, u64 last, i64 spin_ns, int crowded) {
  lane *me = &p->lanes[veu];
  u64 go = last;
  const i64 since = now_ns();
  const int spins = me->long_gaps < 2 && !LOAD(&me->rests_until);
  while (spins && now_ns() - since < spin_ns && LOAD(&p->turn->holder) == p) {
    for (int i = 0; i < 64; i++) {
      if ((go = LOAD(&p->go)) != last && calls(go, veu)) {
        me->long_gaps = 0;
        return go;
      }
      pause();
    }
    if (go != last && me->cpu < 0) break;
    if (crowded) yield();
  }
  const int vain = spins && spin_ns && now_ns() - since >= spin_ns;
  ADD_IN_ORDER(&p->sleepers, 1);
  for (;;) {  // either dispatch() sees us asleep, or we see that it calls us
    STORE_IN_ORDER(&me->asleep, 1);
    if ((go = LOAD_IN_ORDER(&p->go)) != last && calls(go, veu)) break;
    sleep_while(&me->asleep, 1, ANYBODY);
  }
  ADD_IN_ORDER(&p->sleepers, -1);
  STORE(&me->asleep, 0);
  me->in_vain += vain;
  if (spin_ns) me->long_gaps = now_ns() - since < spin_ns ? 0 : me->long_gaps + 1;
  return go;
}

WORKER(worker, argument) {
  lane *me = argument;
  pool *p = me->pool;
  i64 veu = me - p->lanes, spin_ns = 0;
  int crowded = 0;
  STORE(&me->id, thread_id());
  pin(me->cpu);
  for (u64 go = 0;;) {
    go = next_dispatch(p, veu, go, spin_ns, crowded);
    if ((go & CALLED) == EVERYBODY_OUT) return 0;
    if (!claims(me, go)) continue;  // the run may be over
    STORE(&me->walks, go);
    if (LOAD(&me->rests_until)) {
      pin(me->cpu);
      STORE(&me->rests_until, 0);
    }
    spin_ns = p->t->spin_ns;
    crowded = p->t->patience < 1000;
    run_lane(p, veu);
    STORE(&me->done, go);
  }
}

// Call the first `num_veus` vEUs; `called` says so, or EVERYBODY_OUT.
static void dispatch(pool *p, u64 called, i64 num_veus) {
  const u64 go = (p->go | CALLED) + 1 + called;
  if (LOAD(&p->rests_until) && called != EVERYBODY_OUT && !p->timed) claim_resting(p, go);
  STORE_IN_ORDER(&p->go, go);
  if (LOAD_IN_ORDER(&p->sleepers))
    for (i64 v = 1; v < num_veus; v++)
      if (!p->lanes[v].next && LOAD_IN_ORDER(&p->lanes[v].asleep)) {
        STORE(&p->lanes[v].asleep, 0);
        wake(&p->lanes[v].asleep, ANYBODY);
      }
}

// Do parts of what a worker is at, if it may be helped.
INLINE void help_worker(pool *p, lane *other) {
  if (!LOAD(&other->open)) return;
  const control before = begin_rtasks(p->t);
  help(p, 0, other);
  end_rtasks(before);
}

INLINE int stand_in_for_worker(pool *p, lane *other, u64 *since) {
  const control before = begin_rtasks(p->t);
  const int walked = stand_in(p, other, since);
  end_rtasks(before);
  return walked;
}

// Wait for a worker to finish its lane. False: it does not come back.
static int join(pool *p, i64 veu) {
  lane *other = &p->lanes[veu];
  u64 since = 0;
  STORE(&p->lanes[0].awaited, -1);
  STORE(&p->lanes[0].idle, p->go);
  for (i64 i = 1; i <= p->t->patience; i++) {
    if (LOAD(&other->done) == p->go) return 1;
    pause();
    if (i % LOOK == 0) help_worker(p, other);
    if (i % LONG_LOOK == 0 || p->claimed) stand_in_for_worker(p, other, &since);
  }
  watchdog dog = {0, 0, 0};
  share got = {0, 0, 0};
  while (LOAD(&other->done) != p->go) {
    help_worker(p, other);
    if (!stand_in_for_worker(p, other, &since)) give_way(p, other, &got);
    if (overdue(&dog, LOAD_ALONE(&other->begun), 2 * p->t->watchdog_ns)) {  // a waiting worker's own watchdog comes first
      set_report(p, veu, -1, (position){-1, -1}, dog.begun);
      p->lost = 1;
      return 0;
    }
  }
  return 1;
}

// ---- threads of a host ----
//
// A host may have fewer threads than a program has vEUs, or call all work from one. So no thread counts on another one's
// coming: while its lanes wait, it begins those that nobody has begun.

enum { MOST_OF_HOST = 64 };  // vEUs of a program

// Walk lanes until each is begun, and those that this thread has begun are over. The first is that of vEU `v`.
static void take_part(void *of, int v) {
  pool *p = of;
  const table *t = p->t;
  const control before = begin_rtasks(t);
  watchdog dog = {0, 0, 0};
  u64 mine = 0;
  for (i64 idle = 0;;) {
    u64 left = 0;
    int walked = 0;
    for (i64 n = 0; n < t->num_veus; n++)
      if (mine >> n & 1) {
        walked |= step_lane(p, n);
        if (p->lanes[n].next) left |= 1ull << n;
      }
    mine = left;
    if (walked) {
      idle = 0;
      continue;
    }
    idle++;
    for (i64 n = 0; !walked && n < t->num_veus && (!mine || idle % LONG_LOOK == 0); n++) {
      const i64 other = (v + n) % t->num_veus;
      if ((walked = begin_lane(p, &p->lanes[other], p->go))) mine |= 1ull << other;
    }
    if (!mine) break;
    if (walked || idle % LONG_LOOK) {
      pause();
      continue;
    }
    yield();
    i64 begun = 0;
    for (i64 n = 0; n < t->num_veus; n++) begun += LOAD_ALONE(&p->lanes[n].begun);
    if (overdue(&dog, begun, t->watchdog_ns)) stall(p, v, -1, (position){-1, -1}, p->base);
  }
  end_rtasks(before);
}

// ---- entry points ----

#ifndef EXPORT
#define EXPORT __attribute__((visibility("default")))
#endif

EXPORT i64 rammer_pool_bytes(i64 most_veus) { return (i64)sizeof(pool) + most_veus * (i64)sizeof(lane); }

// `p`: zeroed, 128-byte aligned, rammer_pool_bytes() long; it belongs to the pool until rammer_close.
EXPORT void rammer_open(pool *p, turn *of) {
  p->turn = of;
  p->num_veus = 1;
}

// Threads for `num_veus` vEUs in all; programs that need fewer may run meanwhile.
EXPORT int rammer_grow(pool *p, i64 num_veus, const i64 *cpus) {
  int failed = 0;
  for (i64 v; (v = p->num_veus) < num_veus && !failed;) {
    lane *l = &p->lanes[v];
    l->cpu = cpus[v];
    l->pool = p;
    failed = start(&l->thread, worker, l);
    STORE(&p->num_veus, v + !failed);
  }
  return failed ? NO_THREAD : DONE;
}

// Begin no more runs, wait for the one in progress, and join the workers. False: a run that takes too long, or a lost
// worker in some kernel, still uses the memory.
EXPORT int rammer_close(pool *p, i64 patience_ns) {
  STORE_IN_ORDER(&p->closing, 1);
  for (i64 since = now_ns(); LOAD_IN_ORDER(&p->running); yield())
    if (now_ns() - since > patience_ns) return 0;
  if (p->lost) return 0;
  dispatch(p, EVERYBODY_OUT, p->num_veus);
  for (i64 v = 1; v < p->num_veus; v++) join_thread(p->lanes[v].thread);
  return 1;
}

// Run every rProgram, one after another: each is a dispatch of its own and a join of all its vEUs.
static int run_all(pool *p) {
  const table *t = p->t;
  const i64 *bounds = t->bounds;
  if (t->num_veus > 1) leave_workers(p);
  for (i64 v = 0; v < t->num_veus; v++) p->lanes[v].failed = -1;
  p->abort = 0;
  for (i64 program = 0; program < t->num_programs; program++, bounds += t->num_veus) {
    p->program = program;
    if (bounds[1] == bounds[t->num_veus]) {  // all in lane 0: a plain call
      run_lane(p, 0);
    } else {
      if (p->parallel) {
        p->go += CALLED + 1;
        p->parallel(p->host, (int)t->num_veus, take_part, p);
        take_part(p, 0);  // what the host left out
      } else {
        dispatch(p, (u64)t->num_veus, t->num_veus);
        run_lane(p, 0);
      }
      for (i64 v = !p->parallel; v < t->num_veus; v++)
        if (!join(p, v)) return STUCK;
    }
    p->base += bounds[t->num_veus] - bounds[0] + 1;  // counters only grow: no reset, no stale value
    if (p->abort) return STALLED;
  }
  int result = DONE;
  for (i64 v = 0; v < t->num_veus; v++) {
    lane *l = &p->lanes[v];
    if (l->failed >= 0 && (result == DONE || l->failed < t->report[0])) {
      result = BAD_INDEX;
      t->report[0] = l->failed;
    }
  }
  return result;
}

// Wait for the program's turn and run it. `how`: 1 with times and without help, 2 + v also with a late vEU v.
EXPORT int rammer_run(pool *p, const table *t, int how) {
  turn *of = p->turn;
  take(of);
  STORE_IN_ORDER(&p->running, 1);
  int result = p->lost ? LOST : LOAD_IN_ORDER(&p->closing) ? CLOSED : DONE;
  if (result == DONE) {
    if (of->holder != p) STORE(&of->holder, p);
    p->t = t;
    p->timed = how > 0;
    p->late = how - 2;
    t->report[6] = (i64)ticks();
    result = run_all(p);
    t->report[7] = (i64)ticks();
    const i64 taken = t->report[7] - t->report[6];
    if (result == DONE && (taken < t->report[SHORTEST] || !t->report[SHORTEST])) t->report[SHORTEST] = taken;
  }
  STORE(&p->running, 0);
  give(of);
  return result;
}

// Run slots, [slot, vEU], one after another in this thread, so that a caller sees what each leaves behind. The first with
// a bad index, or -1.
EXPORT i64 rammer_run_slots(const table *t, const i64 (*slots)[2], i64 count) {
  lane me;
  me.failed = -1;
  me.now = (context){0, t->aheads[0], 0};
  const control before = begin_rtasks(t);
  for (i64 n = 0; n < count; n++) {
    me.scratch = t->scratch + slots[n][1] * t->scratch_stride;
    compute(t, &me, t->slots + slots[n][0]);
  }
  end_rtasks(before);
  return me.failed;
}

EXPORT i64 rammer_sleepers(pool *p) { return LOAD(&p->sleepers); }
EXPORT i64 rammer_in_vain(pool *p, i64 veu) { return p->lanes[veu].in_vain; }
EXPORT i64 rammer_helped(pool *p, i64 veu) { return p->lanes[veu].helped; }
EXPORT i64 rammer_now_ns(void) { return now_ns(); }
EXPORT u64 rammer_ticks(void) { return ticks(); }
