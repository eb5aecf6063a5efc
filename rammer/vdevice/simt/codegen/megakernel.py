"""Emit one persistent kernel per plan: every distinct task once, and a loop in which each block walks its stream.

Known as: persistent threads, megakernel. A vEU is a thread block that runs for the whole rProgram. Paper: §4.1.2,
§4.1.3, Figure 9.
"""

from __future__ import annotations

from collections.abc import Sequence

from rammer.vdevice.simt.codegen.messages import Messages, message_calls, messages_text
from rammer.vdevice.simt.codegen.prelude import Dialect, prelude
from rammer.vdevice.simt.codegen.printer import EmittedFunction
from rammer.vdevice.simt.codegen.table import ABI, AHEAD, END, ENTRY, KEEP, LINE, header_bytes

NO_MESSAGES = Messages()
# Where blocks send each other messages: none leaves while another one may still send to it.
MESSAGES = {
    "CLUSTERED": "MK_CLUSTER($CLUSTER) ",
    "OPENING": "  mk_open_boxes(scratch, tid);\n",
    "LEAVING": "    if (*stop) break;\n",
    "CLOSING": "  mk_cluster_sync();\n",
}


def program_text(
    kernels: Sequence[EmittedFunction],
    dialect: Dialect,
    block: int,
    max_args: int,
    *,
    copies: bool = False,
    messages: Messages = NO_MESSAGES,
) -> str:
    """Return the table-driven program. Its size does not depend on the number of rTasks. `copies`: KEEPs occur."""
    calls = (message_calls(task_call(k, "argv", "now->rtask"), *k.messages) for k in kernels)
    cases = "".join(f"      case {n}: {call} break;\n" for n, call in enumerate(calls))
    if copies:
        cases += f"      case {KEEP}: mk_keep(argv, scratch, tid); break;\n"
    asks = "".join(
        f" case {n}: {k.prefetch}(argv, now->rtask, tid); break;" for n, k in enumerate(kernels) if k.prefetch
    )
    asking = f"      switch (fn) {{{asks} }}\n" if asks else ""
    sends, loop = messages_text(messages), LOOP.replace("CASES", cases).replace("ASKING", asking)
    for name, text in MESSAGES.items():
        loop = loop.replace(name, text.replace("$CLUSTER", str(messages.cluster)) if sends else "")
    texts = {k.symbol: k.text for k in kernels}
    asked = {k.prefetch: k.prefetch_text for k in kernels if k.prefetch}
    qualifier = "__forceinline__" if sum(map(len, texts.values())) <= dialect.inline_limit else "__noinline__"
    parts = [
        f"// rammer, {dialect.language}, ABI {ABI}: {len(texts)} tasks, {block} threads per vEU\n",
        prelude(dialect),
        f"#define MK_TASK static __device__ {qualifier}\n\n",
        "\n".join([*texts.values(), *asked.values()]),
        "\n",
        (COMMON + (COPY if copies else "") + sends + loop)
        .replace("$ENTRY", ENTRY)
        .replace("$THREADS", str(block))
        .replace(
            "$LAST", str(max(block - dialect.subgroup_size, 0))
        )  # the last one waits for the fence, the first polls
        .replace("$SHARES", str(dialect.veus_per_sm))
        .replace("$MAX_ARGS", str(max_args))
        .replace("$HEADER", str(header_bytes(max_args)))
        .replace("$AHEAD", str(min(AHEAD, block)))
        .replace("$LINE", str(LINE))
        .replace("$END", str(END)),
    ]
    return "".join(parts)


def task_call(kernel: EmittedFunction, args: str, rtask: str) -> str:
    """Return the call of a task, guarded so that only its own threads run it."""
    tid = "MK_WAVE(tid)" if kernel.extra_syncs else "tid"
    guard = f"if ({tid} < {kernel.num_threads}) " if kernel.guarded else ""
    rest = f" else for (int n = 0; n < {kernel.extra_syncs}; n++) mk_sync();" if kernel.extra_syncs else ""
    return f"{guard}{kernel.symbol}({args}, scratch, {rtask}, tid, &status);{rest}"


# `state`: line 0 is [epoch, blocks done, stop, bad index, report …]; then a line per vEU with the slots it completed,
# counted on from the epoch; then a line per vEU with [order + 1 and program of its first bad index, slot where it
# stopped]. Counters only grow: no reset, no stale value, and a recorded launch reads the epoch from memory.
COMMON = """\
struct __align__(16) Instr { int fn, rtask, args, nargs, wait, nwaits, step, order; };
struct Wait { int veu, order; };
struct Run { unsigned *state; unsigned base; int program, veu; unsigned long long limit_ns; };

// Behind the state of a text that is to be profiled: four clocks of every instruction, when its wait began, its task
// began and its task ended; of a lane's last one the time and the clock at its begin and at its end.
#ifdef MK_PROFILE
#define MK_STAMP(n, which, what) if (tid == 0) \
  ((unsigned long long *)(state + $LINE * (1 + 2 * gridDim.x)))[4 * (n) + which] = what;
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
    for (unsigned polls = 1; (int)(mk_load_relaxed(step) - run.base) <= on.order; polls++) {
      mk_pause();
      if (polls & MK_PATIENCE) continue;
      since = mk_overdue(run, on, order, since);
      if (!since) {
        mk_store_relaxed(run.state + $LINE * (1 + gridDim.x + run.veu) + 2, order + 1);
        *stop = 1;
        return;
      }
    }
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

"""

# Only in programs in which something is copied.
COPY = """\
// Rows of a constant into the block's own memory, where they stay. Nobody writes the one or reads the other meanwhile.
INLINE void mk_rows(const char *__restrict__ from, char *__restrict__ to, int bytes, int rows, int64_t from_step,
                    int to_step, int unit, int tid) {
  const int each = bytes / unit;
#pragma unroll 4
  for (int i = tid; i < rows * each; i += $THREADS) {
    const int row = i / each, at = i % each * unit;
    const char *source = from + row * from_step + at;
    char *target = to + row * to_step + at;
    if (unit == 16) *(vf *)target = *(const vf *)source;
    else if (unit == 4) *(float *)target = *(const float *)source;
    else *target = *source;
  }
}
MK_TASK void mk_keep(void *const *args, char *scratch, int tid) {
  mk_rows(MK_TENSOR(const char *, args, 0), scratch + (int64_t)args[1], (int)(int64_t)args[2], (int)(int64_t)args[3],
          (int64_t)args[4], (int)(int64_t)args[5], (int)(int64_t)args[6], tid);
}

"""

LOOP = """\
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
"""
