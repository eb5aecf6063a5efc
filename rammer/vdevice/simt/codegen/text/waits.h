struct __align__(16) Instr { int fn, rtask, args, nargs, wait, nwaits, step, order; };
struct Wait { int veu, order; };
struct Run { unsigned *state; unsigned base; int program, veu; unsigned long long limit_ns; };

// Behind the state of a text that is to be profiled: four clocks of every instruction, when its wait began, its task
// began and its task ended; of a lane's last one the time and the clock at its begin and at its end.
#ifdef MK_PROFILE
#define MK_STAMP(n, which, what) if (tid == 0)   ((unsigned long long *)(state + $LINE * (1 + 2 * gridDim.x)))[4 * (n) + which] = what;
#ifndef mk_time_ns
#define mk_time_ns() mk_now_ns()
#endif
#else
#define MK_STAMP(n, which, what)
#endif

// When the wait began, or 0 to give up: another vEU did, or nothing came for too long. The first to notice reports.
MK_COLD unsigned long long mk_overdue(Run run, Wait on, int order, unsigned long long since) {
  unsigned *report = run.state;
  if (mk_load_relaxed(report + 2)) return 0;
  unsigned long long now = mk_now_ns();
  if (since == 1) since = now;
  if (now - since <= run.limit_ns) return since;
  if (mk_exchange(report + 2, 0, 1) == 0) {
    mk_store_relaxed(report + 4, run.program);
    mk_store_relaxed(report + 5, run.veu);
    mk_store_relaxed(report + 6, order);
    mk_store_relaxed(report + 7, on.veu);
    mk_store_relaxed(report + 8, on.order);
    mk_store_relaxed(report + 9, mk_load_relaxed(run.state + $LINE * (1 + on.veu)) - run.base);
  }
  return 0;
}

// Whether a poll is the last one: nothing came for too long, or another vEU gave up. It then stops the block.
INLINE bool mk_gives_up(Run run, Wait on, int order, unsigned polls, unsigned long long *since,
                        volatile MK_SHARED int *stop) {
  mk_pause();
  if (polls & MK_PATIENCE) return false;
  *since = mk_overdue(run, on, order, *since);
  if (*since) return false;
  mk_store_relaxed(run.state + $LINE * (1 + gridDim.x + run.veu) + 2, order + 1);
  *stop = 1;
  return true;
}

// A barrier-rTask: the first n threads poll a counter each. Spins are relaxed; one acquire follows.
// `near` has the first $AHEAD of the list.
INLINE void mk_wait(Run run, const MK_SHARED int *near, const Wait *waits, int n, int order, int tid,
                    volatile MK_SHARED int *stop) {
  for (int w = tid; w < n; w += $THREADS) {
    Wait on;
    if (w < $AHEAD) on.veu = near[2 * w], on.order = near[2 * w + 1];
    else on = waits[w];
    if (on.veu == run.veu) continue;  // lanes share lists; its own slots lie behind it
    const unsigned *step = run.state + $LINE * (1 + on.veu);
    unsigned long long since = 1;
    for (unsigned polls = 1; (int)(mk_load_relaxed(step) - run.base) <= on.order; polls++)
      if (mk_gives_up(run, on, order, polls, &since, stop)) return;
    mk_load_acquire(step);
  }
}

INLINE void mk_bad_index(Run run, int order) {
  unsigned *line = run.state + $LINE * (1 + gridDim.x + run.veu);
  if (mk_exchange(line, 0, order + 1) == 0) mk_store_relaxed(line + 1, run.program);
  mk_store_relaxed(run.state + 3, 1);
}

// The last block to finish moves the epoch past every counter of this run.
INLINE void mk_finish(Run run, int span, int tid) {
  if (tid == 0 && mk_arrive(run.state + 1) == gridDim.x - 1) {
    mk_store_relaxed(run.state + 1, 0);
    mk_store_release(run.state, run.base + span);
  }
}

