/* Open and run exported models: rammer.h over the runtime that Python's programs have, too. */
#include "model.h"
#include "memory.h"

#define EXPORT static __attribute__((unused))
#define rammer_open pool_open
#define rammer_close pool_close
#define rammer_run pool_run
#include "runtime.h"
#undef rammer_open
#undef rammer_close
#undef rammer_run

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

enum { MOST_VEUS = 64, ALIGNMENT = 128 };
enum { SPIN_NS = 3000000, SPIN_CROWDED_NS = 200000, PATIENCE = 4096, PATIENCE_CROWDED = 32 };
static const i64 WATCHDOG_NS = 60000000000;

struct rammer_stream {
  rammer_program *program;
  char *values[2]; /* what the next run reads, and where it writes: they change places */
  int now;
  size_t bytes; /* to be given back to the system, or 0 */
};

struct rammer_program {
  const rammer_model *model;
  const rammer_plan *plan;
  table table;
  pool *pool; /* NULL: slots run one after another in the calling thread */
  turn *turns; /* of runs; of the pool, if it is the program's own */
  char **args, *arena;
  const char *weights;
  char **pointed;  /* of inputs, then outputs: where the arguments of a port point */
  const char **at; /* likewise: what this run reads and writes */
  i64 report[9];
  i64 cpus[MOST_VEUS];
  int failed; /* the operator of the last bad index, or -1 */
  size_t bytes; /* to be given back to the system, or 0 */
  int mapped, shares;
  rammer_stream own;
};

/* ---- all programs with several threads share a pool ---- */

static _Alignas(ALIGNMENT) char process_pool[sizeof(pool) + MOST_VEUS * sizeof(lane)];
static turn process_turn, process_lock;
static int process_users, process_lost; /* lost: a thread still uses the pool */

static int join_pool(rammer_program *p) {
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
  failed = rammer_grow(shared, p->plan->num_veus, p->cpus);
  process_users++;
  give(&process_lock);
  p->pool = shared;
  p->shares = 1;
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

static const rammer_plan *chosen(const rammer_model *model) {
  for (i64 n = 0; n < model->num_plans; n++)
    if (suits_cpu(model->plans[n])) return model->plans[n];
  return 0;
}

/* ---- memory ---- */

static char *part(char *memory, size_t *used, i64 count, size_t each) {
  char *found = memory ? memory + *used : 0;
  *used += ((size_t)count * each + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return found;
}

static size_t state_bytes(const rammer_model *m) {
  size_t total = 0;
  for (i64 n = 0; n < m->num_state; n++) total += (m->state[n].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return total;
}

static size_t lay_out_stream(const rammer_model *m, rammer_stream *s, char *memory, size_t used) {
  char *first = part(memory, &used, 1, state_bytes(m)), *second = part(memory, &used, 1, state_bytes(m));
  if (memory) s->values[0] = first, s->values[1] = second;
  return used;
}

/* Lay a program out in its memory; with NULL, only count its bytes. */
static size_t lay_out(const rammer_model *m, const rammer_plan *plan, char *memory) {
  size_t used = 0;
  rammer_program *p = (rammer_program *)(void *)part(memory, &used, 1, sizeof(rammer_program));
  char *turns_at = part(memory, &used, 2, sizeof(turn));
  char *pool_at = part(memory, &used, 1, sizeof(pool) + sizeof(lane));
  char *args = part(memory, &used, plan->num_args, sizeof(char *));
  char *prefetches = part(memory, &used, plan->num_prefetches, sizeof(ahead));
  char *pointed = part(memory, &used, m->num_inputs + m->num_outputs, sizeof(char *));
  char *at = part(memory, &used, m->num_inputs + m->num_outputs, sizeof(char *));
  char *arena = part(memory, &used, plan->arena_bytes, 1);
  char *scratch = part(memory, &used, plan->num_veus, (size_t)plan->scratch_stride);
  if (p) {
    p->model = m;
    p->plan = plan;
    p->turns = (turn *)(void *)turns_at;
    p->pool = (pool *)(void *)pool_at;
    p->args = (char **)(void *)args;
    p->table.aheads = (ahead *)(void *)prefetches;
    p->pointed = (char **)(void *)pointed;
    p->at = (const char **)(void *)at;
    p->arena = arena;
    p->table.scratch = scratch;
  }
  return lay_out_stream(m, p ? &p->own : 0, memory, used);
}

static char *placed(const rammer_program *p, rammer_place at) {
  return at.base < 0 ? p->arena + at.offset : (char *)(size_t)p->weights + p->plan->constants[at.base] + at.offset;
}

static void fill_table(rammer_program *p) {
  const rammer_plan *plan = p->plan;
  ahead *prefetches = (ahead *)(size_t)p->table.aheads;
  const i64 num_cpus = allowed_cpus(p->cpus, MOST_VEUS);
  const int enough = num_cpus < 0 || num_cpus >= plan->num_veus;
  if (!enough || plan->num_veus == 1)
    for (i64 v = 0; v < MOST_VEUS; v++) p->cpus[v] = -1;
  for (i64 n = 0; n < plan->num_args; n++) p->args[n] = placed(p, plan->args[n]);
  for (i64 n = 0; n < plan->num_prefetches; n++) {
    prefetches[n].from = placed(p, plan->prefetches[n].at);
    prefetches[n].lines = plan->prefetches[n].lines;
  }
  p->table.num_veus = plan->num_veus;
  p->table.num_programs = plan->num_programs;
  p->table.bounds = plan->bounds;
  p->table.slots = (const slot *)plan->slots;
  p->table.waits = (const position *)plan->waits;
  p->table.kernels = (const kernel_fn *)plan->kernels;
  p->table.args = p->args;
  p->table.scratch_stride = plan->scratch_stride;
  p->table.num_cpus = plan->num_veus;
  p->table.cpus = p->cpus;
  p->table.spin_ns = enough ? SPIN_NS : SPIN_CROWDED_NS;
  p->table.watchdog_ns = WATCHDOG_NS;
  p->table.patience = enough ? PATIENCE : PATIENCE_CROWDED;
  p->table.report = p->report;
  p->table.keeps_subnormals = plan->keeps_subnormals;
}

static const char *found_weights(const rammer_model *m, const rammer_options *o, int *mapped) {
  const void *found = o->weights_file ? rammer_system_map(o->weights_file, m->weights_bytes) : o->weights;
  *mapped = o->weights_file && found;
  if (!o->weights_file && !found) found = m->weights;
  else if (!o->weights_file && o->weights_bytes != m->weights_bytes) found = 0;
  if (!found || (size_t)found % 64 || __builtin_memcmp(found, m->weights_header, RAMMER_HEADER)) {
    if (*mapped) rammer_system_unmap(found, m->weights_bytes);
    return *mapped = 0, (const char *)0;
  }
  return found;
}

/* ---- the interface ---- */

int rammer_version(void) { return RAMMER_VERSION; }

const char *rammer_text(rammer_status status) {
  switch (status) {
    case RAMMER_OK: return "done";
    case RAMMER_BAD_INDEX: return "an input has an index out of range";
    case RAMMER_STALLED: return "a thread did not get on";
    case RAMMER_BAD_ARGUMENT: return "an argument is NULL, of the wrong size or not aligned";
    case RAMMER_NO_MEMORY: return "not enough memory";
    case RAMMER_NO_THREAD: return "no thread could be started";
    case RAMMER_NO_CPU: return "the library has no code for this CPU";
    case RAMMER_NO_WEIGHTS: return "the weights cannot be read, or are another model's";
    case RAMMER_BAD_MODEL: return "the model was exported for another version of rammer.h than the library's";
    case RAMMER_BAD_VERSION: return "the program was built for another version of rammer.h than the library's";
  }
  return "unknown status";
}

static int suits_version(int version) { return version / 1000 == RAMMER_MAJOR && version <= RAMMER_VERSION; }

size_t rammer_memory(const rammer_model *m) {
  const rammer_plan *plan = m && suits_version(m->version) ? chosen(m) : 0;
  return plan ? lay_out(m, plan, 0) : 0;
}

rammer_status rammer_open(const rammer_model *m, const rammer_options *given, rammer_program **made) {
  rammer_options o = RAMMER_DEFAULTS;
  const rammer_plan *plan;
  rammer_program *p;
  char *memory;
  size_t bytes;
  if (given && !suits_version(given->version)) return RAMMER_BAD_VERSION;
  if (given && given->size > sizeof o) return RAMMER_BAD_ARGUMENT;
  if (given) __builtin_memcpy(&o, given, given->size);
  if (!m || !made) return RAMMER_BAD_ARGUMENT;
  *made = NULL;
  if (!suits_version(m->version)) return RAMMER_BAD_MODEL;
  if (!(plan = chosen(m))) return RAMMER_NO_CPU;
  bytes = lay_out(m, plan, 0);
  if (o.memory && (o.memory_bytes < bytes || (size_t)o.memory % ALIGNMENT)) return RAMMER_BAD_ARGUMENT;
  memory = o.memory ? __builtin_memset(o.memory, 0, bytes) : rammer_system_take(bytes);
  if (!memory) return RAMMER_NO_MEMORY;
  lay_out(m, plan, memory);
  p = (rammer_program *)(void *)memory;
  p->bytes = o.memory ? 0 : bytes;
  p->own.program = p;
  p->failed = -1;
  if (!(p->weights = found_weights(m, &o, &p->mapped))) {
    rammer_close(p);
    return RAMMER_NO_WEIGHTS;
  }
  fill_table(p);
  if (!o.threads || !RAMMER_THREADS) p->pool = NULL;
  else if (plan->num_veus == 1) pool_open(p->pool, p->turns + 1);
  else if (plan->num_veus > MOST_VEUS || join_pool(p)) {
    rammer_close(p);
    return RAMMER_NO_THREAD;
  }
  *made = p;
  return RAMMER_OK;
}

void rammer_close(rammer_program *p) {
  if (!p) return;
  if (RAMMER_THREADS && p->shares) leave_pool();
  if (p->mapped) rammer_system_unmap(p->weights, p->model->weights_bytes);
  if (p->bytes) rammer_system_give(p, p->bytes);
}

const char *rammer_arch(const rammer_program *p) { return p->plan->arch; }

const char *rammer_failed(const rammer_program *p) {
  const int failed = LOAD(&p->failed);
  return failed < 0 ? "" : p->plan->names[failed];
}

static size_t listed(i64 count, const rammer_port *all, const rammer_port **ports) {
  if (ports) *ports = all;
  return (size_t)count;
}
size_t rammer_inputs(const rammer_model *m, const rammer_port **ports) {
  return listed(m->num_inputs - m->num_state, m->taken, ports);
}
size_t rammer_outputs(const rammer_model *m, const rammer_port **ports) {
  return listed(m->num_outputs - m->num_state, m->given, ports);
}
size_t rammer_state(const rammer_model *m, const rammer_port **ports) { return listed(m->num_state, m->state, ports); }

/* ---- runs ---- */

static char *value(const rammer_stream *s, int which, int number) {
  const rammer_model *m = s->program->model;
  char *at = s->values[which];
  for (int n = 0; n < number; n++) at += (m->state[n].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return at;
}

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

static void point(rammer_program *p, i64 port, const rammer_home *home, char *to) {
  if (p->pointed[port] == to) return;
  for (i64 n = 0; n < home->num_args; n++) p->args[home->args[n].number] = to + home->args[n].offset;
  p->pointed[port] = to;
}

static rammer_status run_in_turn(rammer_stream *s, const void *const *inputs, void *const *outputs) {
  rammer_program *p = s->program;
  const rammer_model *m = p->model;
  const rammer_plan *plan = p->plan;
  const char **at = p->at;
  i64 taken = 0, given = 0;
  int code;
  for (i64 n = 0; n < m->num_inputs; n++) {
    const int state = m->inputs[n].state;
    at[n] = state < 0 ? inputs[taken++] : value(s, s->now, state);
    if (!at[n]) return RAMMER_BAD_ARGUMENT;
  }
  for (i64 n = 0; n < m->num_outputs; n++) {
    const int state = m->outputs[n].state;
    at[m->num_inputs + n] = state < 0 ? outputs[given++] : value(s, !s->now, state);
    if (!at[m->num_inputs + n]) return RAMMER_BAD_ARGUMENT;
  }
  for (i64 n = 0; n < m->num_inputs; n++) {
    const rammer_home *home = plan->inputs + n;
    const int direct = home->num_args && is_aligned(at[n], m->inputs[n].port.type);
    if (home->num_args) point(p, n, home, direct ? (char *)(size_t)at[n] : placed(p, home->at));
    if (!direct) __builtin_memcpy(placed(p, home->at), at[n], m->inputs[n].port.bytes);
  }
  for (i64 n = 0; n < m->num_outputs; n++) {
    const rammer_home *home = plan->outputs + n;
    char *to = (char *)(size_t)at[m->num_inputs + n];
    const int direct = is_aligned(to, m->outputs[n].port.type) && lies_alone(m, at, n);
    if (home->num_args) point(p, m->num_inputs + n, home, direct ? to : placed(p, home->at));
  }
  code = RAMMER_THREADS && p->pool ? pool_run(p->pool, &p->table, 0)
                 : (p->report[0] = rammer_run_slots(&p->table, plan->steps, plan->num_steps)) < 0 ? DONE : BAD_INDEX;
  if (code == BAD_INDEX) STORE(&p->failed, plan->operators[p->report[0]]);
  if (code != DONE) return code == BAD_INDEX ? RAMMER_BAD_INDEX : RAMMER_STALLED;
  for (i64 n = 0; n < m->num_outputs; n++) {
    const rammer_home *home = plan->outputs + n;
    char *to = (char *)(size_t)at[m->num_inputs + n];
    if (!home->num_args || p->pointed[m->num_inputs + n] != to)
      __builtin_memmove(to, placed(p, home->at), m->outputs[n].port.bytes);
  }
  s->now = !s->now;
  return RAMMER_OK;
}

rammer_status rammer_run_stream(rammer_stream *s, const void *const *inputs, void *const *outputs) {
  rammer_status status;
  if (!s || (!inputs && s->program->model->num_inputs > s->program->model->num_state) ||
      (!outputs && s->program->model->num_outputs > s->program->model->num_state))
    return RAMMER_BAD_ARGUMENT;
  take(s->program->turns);
  status = run_in_turn(s, inputs, outputs);
  give(s->program->turns);
  return status;
}

rammer_status rammer_run(rammer_program *p, const void *const *inputs, void *const *outputs) {
  return p ? rammer_run_stream(&p->own, inputs, outputs) : RAMMER_BAD_ARGUMENT;
}

/* ---- streams ---- */

size_t rammer_stream_memory(const rammer_program *p) {
  size_t used = 0;
  part(0, &used, 1, sizeof(rammer_stream));
  return lay_out_stream(p->model, 0, 0, used);
}

rammer_status rammer_open_stream(rammer_program *p, void *memory, rammer_stream **made) {
  size_t used = 0;
  rammer_stream *s;
  const size_t bytes = p ? rammer_stream_memory(p) : 0;
  char *taken;
  if (!p || !made || (size_t)memory % ALIGNMENT) return RAMMER_BAD_ARGUMENT;
  taken = memory ? __builtin_memset(memory, 0, bytes) : rammer_system_take(bytes);
  *made = s = (rammer_stream *)(void *)taken;
  if (!s) return RAMMER_NO_MEMORY;
  part(0, &used, 1, sizeof(rammer_stream));
  lay_out_stream(p->model, s, taken, used);
  s->program = p;
  s->bytes = memory ? 0 : bytes;
  return RAMMER_OK;
}

void rammer_close_stream(rammer_stream *s) {
  if (s && s->bytes) rammer_system_give(s, s->bytes);
}

rammer_stream *rammer_own_stream(rammer_program *p) { return &p->own; }

void rammer_reset(rammer_stream *s) { __builtin_memset(s->values[s->now], 0, state_bytes(s->program->model)); }

void *rammer_value(rammer_stream *s, size_t number) {
  return number < (size_t)s->program->model->num_state ? value(s, s->now, (int)number) : NULL;
}
