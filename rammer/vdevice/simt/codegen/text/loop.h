extern "C" __global__ void CLUSTERED__launch_bounds__($THREADS, $SHARES)
$ENTRY(const Instr *stream, const int *bounds, const Wait *waits, void *const *args, unsigned *state, int program,
       int span, unsigned long long limit_ns) {
  const int tid = threadIdx.x;
  char *arena = MK_ARENA, *scratch = arena + $HEADER;
  volatile MK_SHARED int *stop = (volatile MK_SHARED int *)arena;
  Instr *ring = (Instr *)(arena + 16);  // this slot's, the next one's, the one's after that: not in registers
  Wait *near = (Wait *)(ring + 4);         // what the slot waits for
  void **both = (void **)(near + $AHEAD);  // arguments of this slot and the next
  const Run run = {state, mk_load_relaxed(state), program, (int)blockIdx.x, limit_ns};
  const int *words = (const int *)(stream + bounds[run.veu]);
  if (tid < 16) ((int *)ring)[tid] = words[tid];
  if (tid == 0) *stop = 0;
OPENING  mk_sync();
  if (tid < ring[0].nargs) both[tid] = args[ring[0].args + tid];
  if (tid < ring[0].nwaits && tid < $AHEAD) near[tid] = waits[ring[0].wait + tid];
  mk_sync();
  MK_STAMP(bounds[run.veu + 1] - 1, 0, mk_time_ns())
  MK_STAMP(bounds[run.veu + 1] - 1, 1, mk_clock())
  for (int pc = 0;; pc++) {
    const Instr *now = ring + (pc & 3), *next = ring + (pc + 1 & 3);
    const int fn = now->fn;
    if (fn == $END) break;
    MK_STAMP(bounds[run.veu] + pc, 0, mk_clock())
    // These loads are under way while the slot waits and runs.
    int word = 0;
    if (tid < 8) word = words[8 * (pc + 2) + tid];
    void *argument = 0;
    if (tid < next->nargs) argument = args[next->args + tid];
    Wait coming = {0, 0};
    if (tid < next->nwaits && tid < $AHEAD) coming = waits[next->wait + tid];
    void *const *argv = both + (pc & 1) * $MAX_ARGS;
    if (now->nwaits) {
ASKING      mk_wait(run, (const MK_SHARED int *)near, waits + now->wait, now->nwaits, now->order, tid, stop);
      mk_sync();
      if (*stop) break;
      mk_acquire();
    }
    MK_STAMP(bounds[run.veu] + pc, 1, mk_clock())
    int status = 0;
    switch (fn) {
CASES      default: break;
    }
    if (status) mk_bad_index(run, now->order);
    if (tid < 8) ((int *)(ring + (pc + 2 & 3)))[tid] = word;
    if (tid < next->nargs) both[(~pc & 1) * $MAX_ARGS + tid] = argument;
    if (tid < next->nwaits && tid < $AHEAD) near[tid] = coming;
    if (now->step) mk_release();
    mk_sync();  // the block's writes come before the release, and before its next task
    MK_STAMP(bounds[run.veu] + pc, 2, mk_clock())
    if (tid == $LAST && now->step) mk_store_release(state + $LINE * (1 + run.veu), run.base + now->step);
LEAVING  }
  MK_STAMP(bounds[run.veu + 1] - 1, 2, mk_time_ns())
  MK_STAMP(bounds[run.veu + 1] - 1, 3, mk_clock())
  mk_sync();
CLOSING  mk_finish(run, span, tid);
}
