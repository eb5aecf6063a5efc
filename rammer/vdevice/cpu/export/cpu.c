/* Run exported plans on CPUs: the engine over the runtime that Python's programs have, too. */
#include "engine.h"

#pragma GCC diagnostic ignored "-Wunused-function"
#define EXPORT static
#define rammer_open pool_open
#define rammer_close pool_close
#define rammer_run pool_run
#include "system.h"
#include "runtime.h"
#undef rammer_open
#undef rammer_close
#undef rammer_run

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

enum { MOST_VEUS = MOST_OF_HOST };
enum { SPIN_NS = 3000000, SPIN_CROWDED_NS = 200000, PATIENCE = 4096, PATIENCE_CROWDED = 32 };

typedef struct {
  table table;
  pool *pool; /* NULL: slots run one after another in the calling thread */
  turn *turns; /* of the pool, if it is the program's own */
  char **args, *arena;
  char **pointed; /* of inputs, then outputs: where the arguments of a port point */
  i64 report[9];
  i64 cpus[MOST_VEUS];
  int shares; /* the pool of the process */
} cpu;

INLINE cpu *cpu_of(const rammer_program *p) { return p->machine; }

/* ---- all programs with several threads share a pool ---- */

static _Alignas(ALIGNMENT) char process_pool[sizeof(pool) + MOST_VEUS * sizeof(lane)];
static turn process_turn, process_lock;
static int process_users, process_lost; /* lost: a thread still uses the pool */

static int join_pool(cpu *c, i64 num_veus) {
  pool *shared = (pool *)(void *)process_pool;
  int failed;
  take(&process_lock);
  if (process_lost) {
    give(&process_lock);
    return 1;
  }
  if (!process_users) {
    __builtin_memset(process_pool, 0, sizeof process_pool);
    pool_open(shared, &process_turn);
  }
  failed = rammer_grow(shared, num_veus, c->cpus);
  process_users++;
  give(&process_lock);
  c->pool = shared;
  c->shares = 1;
  return failed;
}

static void leave_pool(void) {
  take(&process_lock);
  if (!--process_users) process_lost = !pool_close((pool *)(void *)process_pool, WATCHDOG_NS);
  give(&process_lock);
}

/* ---- the CPU ---- */

#if defined(__x86_64__)
static int suits_cpu(const rammer_plan *plan) {
  unsigned word[4], low, high;
  for (const rammer_cpu_bit *b = plan->bits; b->leaf; b++)
    if (!__get_cpuid_count(b->leaf, b->subleaf, word, word + 1, word + 2, word + 3) || !(word[b->word] >> b->bit & 1))
      return 0;
  if (!plan->xcr0) return 1;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & plan->xcr0) != plan->xcr0) return 0;
  return !(plan->xcr0 >> 18 & 1) || may_use_tiles();
}
#else
static int suits_cpu(const rammer_plan *plan) { return !plan->bits->leaf; }
#endif

/* ---- memory ---- */

static size_t lay_out(const rammer_model *m, const rammer_plan *plan, char *memory, size_t used, rammer_program *p) {
  cpu *c = (cpu *)(void *)rammer_part(memory, &used, 1, sizeof(cpu));
  char *turns = rammer_part(memory, &used, 1, sizeof(turn));
  char *pool_at = rammer_part(memory, &used, 1, sizeof(pool) + (size_t)plan->num_veus * sizeof(lane));
  char *args = rammer_part(memory, &used, plan->num_args, sizeof(char *));
  char *prefetches = rammer_part(memory, &used, plan->num_prefetches, sizeof(ahead));
  char *pointed = rammer_part(memory, &used, m->num_inputs + m->num_outputs, sizeof(char *));
  char *arena = rammer_part(memory, &used, plan->arena_bytes, 1);
  char *scratch = rammer_part(memory, &used, plan->num_veus, (size_t)plan->scratch_stride);
  if (c) {
    p->machine = c;
    c->turns = (turn *)(void *)turns;
    c->pool = (pool *)(void *)pool_at;
    c->args = (char **)(void *)args;
    c->table.aheads = (ahead *)(void *)prefetches;
    c->pointed = (char **)(void *)pointed;
    c->arena = arena;
    c->table.scratch = scratch;
  }
  return used;
}

static char *placed(const rammer_program *p, rammer_place at) {
  return at.base < 0 ? cpu_of(p)->arena + at.offset : (char *)(size_t)p->weights + p->plan->constants[at.base] + at.offset;
}

/* Threads may run on any CPU. */
static void leave_cpus(cpu *c) {
  for (i64 v = 0; v < MOST_VEUS; v++) c->cpus[v] = -1;
}

static void fill_table(rammer_program *p) {
  const rammer_plan *plan = p->plan;
  cpu *c = cpu_of(p);
  ahead *prefetches = (ahead *)(size_t)c->table.aheads;
  const i64 num_cpus = allowed_cpus(c->cpus, MOST_VEUS);
  const int enough = num_cpus < 0 || num_cpus >= plan->num_veus;
  if (!enough || plan->num_veus == 1) leave_cpus(c);
  for (i64 n = 0; n < plan->num_args; n++) c->args[n] = placed(p, plan->args[n]);
  for (i64 n = 0; n < plan->num_prefetches; n++) {
    prefetches[n].from = placed(p, plan->prefetches[n].at);
    prefetches[n].lines = plan->prefetches[n].lines;
  }
  c->table.num_veus = plan->num_veus;
  c->table.num_programs = plan->num_programs;
  c->table.bounds = plan->bounds;
  c->table.slots = (const slot *)plan->slots;
  c->table.waits = (const position *)plan->waits;
  c->table.kernels = (const kernel_fn *)plan->kernels;
  c->table.args = c->args;
  c->table.scratch_stride = plan->scratch_stride;
  c->table.num_cpus = plan->num_veus;
  c->table.cpus = c->cpus;
  c->table.spin_ns = enough ? SPIN_NS : SPIN_CROWDED_NS;
  c->table.watchdog_ns = WATCHDOG_NS;
  c->table.patience = enough ? PATIENCE : PATIENCE_CROWDED;
  c->table.report = c->report;
  c->table.keeps_subnormals = plan->keeps_subnormals;
}

static rammer_status open_cpu(rammer_program *p, const rammer_options *o) {
  const i64 num_veus = p->plan->num_veus;
  cpu *c = cpu_of(p);
  fill_table(p);
  if (!o->threads || !RAMMER_THREADS) c->pool = 0;
  else if (num_veus > MOST_VEUS) return RAMMER_NO_THREAD;
  else if (num_veus == 1 || o->parallel) {
    pool_open(c->pool, c->turns);
    c->pool->parallel = o->parallel;
    c->pool->host = o->host;
    if (o->parallel) leave_cpus(c);
  } else if (join_pool(c, num_veus)) return RAMMER_NO_THREAD;
  return RAMMER_OK;
}

static void close_cpu(rammer_program *p) {
  if (RAMMER_THREADS && cpu_of(p)->shares) leave_pool();
}

/* ---- runs ---- */

static int overlaps(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

/* Whether an output may be computed where the caller wants it: no other port of this call lies there. */
static int lies_alone(const rammer_model *m, const char *const *at, i64 output) {
  const i64 mine = m->num_inputs + output;
  for (i64 n = 0; n < m->num_inputs + m->num_outputs; n++) {
    const size_t bytes = n < m->num_inputs ? m->inputs[n].port.bytes : m->outputs[n - m->num_inputs].port.bytes;
    if (n != mine && overlaps(at[mine], m->outputs[output].port.bytes, at[n], bytes)) return 0;
  }
  return 1;
}

/* Whether a port may lie there: kernels read and write whole elements. */
static int is_aligned(const char *at, rammer_type type) {
  switch (type) {
    case RAMMER_UINT8: case RAMMER_INT8: case RAMMER_BOOL: case RAMMER_OTHER: return 1;
    case RAMMER_UINT16: case RAMMER_INT16: case RAMMER_FLOAT16: case RAMMER_BFLOAT16: return (size_t)at % 2 == 0;
    case RAMMER_FLOAT32: case RAMMER_INT32: case RAMMER_UINT32: case RAMMER_COMPLEX64: return (size_t)at % 4 == 0;
    default: return (size_t)at % 8 == 0;
  }
}

static void point(cpu *c, i64 port, const rammer_home *home, char *to) {
  if (c->pointed[port] == to) return;
  for (i64 n = 0; n < home->num_args; n++) c->args[home->args[n].number] = to + home->args[n].offset;
  c->pointed[port] = to;
}

static rammer_status run_cpu(rammer_program *p) {
  const rammer_model *m = p->model;
  const rammer_plan *plan = p->plan;
  const char **at = p->at;
  cpu *c = cpu_of(p);
  int code;
  for (i64 n = 0; n < m->num_inputs; n++) {
    const rammer_home *home = plan->inputs + n;
    const int direct = home->num_args && is_aligned(at[n], m->inputs[n].port.type);
    if (home->num_args) point(c, n, home, direct ? (char *)(size_t)at[n] : placed(p, home->at));
    if (!direct) __builtin_memcpy(placed(p, home->at), at[n], m->inputs[n].port.bytes);
  }
  for (i64 n = 0; n < m->num_outputs; n++) {
    const rammer_home *home = plan->outputs + n;
    char *to = (char *)(size_t)at[m->num_inputs + n];
    const int direct = is_aligned(to, m->outputs[n].port.type) && lies_alone(m, at, n);
    if (home->num_args) point(c, m->num_inputs + n, home, direct ? to : placed(p, home->at));
  }
  code = RAMMER_THREADS && c->pool ? pool_run(c->pool, &c->table, 0)
                 : (c->report[0] = rammer_run_slots(&c->table, plan->steps, plan->num_steps)) < 0 ? DONE : BAD_INDEX;
  if (code == BAD_INDEX) STORE(&p->failed, plan->operators[c->report[0]]);
  if (code != DONE) return code == BAD_INDEX ? RAMMER_BAD_INDEX : RAMMER_STALLED;
  for (i64 n = 0; n < m->num_outputs; n++) {
    const rammer_home *home = plan->outputs + n;
    char *to = (char *)(size_t)at[m->num_inputs + n];
    if (!home->num_args || c->pointed[m->num_inputs + n] != to)
      __builtin_memmove(to, placed(p, home->at), m->outputs[n].port.bytes);
  }
  return RAMMER_OK;
}

const rammer_engine rammer_cpu = {suits_cpu, lay_out, open_cpu, close_cpu, run_cpu, 0};
