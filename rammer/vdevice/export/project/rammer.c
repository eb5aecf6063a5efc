/* Open and run exported models: rammer.h over the engine of each plan. */
#include "engine.h"
#include "memory.h"
#pragma GCC diagnostic ignored "-Wunused-function"
#include "system.h"

/* ---- plans and memory ---- */

static const rammer_engine *engine_of(const rammer_model *m, const rammer_plan *plan) {
  return m->version > 1000 * RAMMER_MAJOR ? plan->engine : &rammer_cpu;
}

static size_t lay_out_stream(const rammer_model *m, rammer_stream *s, char *memory, size_t used) {
  const size_t bytes = rammer_value_at(m, m->num_state);
  char *first = rammer_part(memory, &used, 1, bytes), *second = rammer_part(memory, &used, 1, bytes);
  if (memory) s->values[0] = first, s->values[1] = second;
  return used;
}

/* Lay a program out in its memory; with NULL, only count its bytes. */
static size_t lay_out(const rammer_model *m, const rammer_plan *plan, char *memory) {
  const rammer_engine *engine = engine_of(m, plan);
  size_t used = 0;
  rammer_program *p = (rammer_program *)(void *)rammer_part(memory, &used, 1, sizeof(rammer_program));
  char *turns = rammer_part(memory, &used, 1, sizeof(turn));
  char *at = rammer_part(memory, &used, m->num_inputs + m->num_outputs, sizeof(char *));
  if (p) {
    p->model = m;
    p->plan = plan;
    p->engine = engine;
    p->turns = turns;
    p->at = (const char **)(void *)at;
    p->own.program = p;
    p->failed = -1;
  }
  used = engine->lay_out(m, plan, memory, used, p);
  return lay_out_stream(m, p ? &p->own : 0, memory, used);
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
    case RAMMER_NO_CPU: return "the library has no code for this CPU or GPU";
    case RAMMER_NO_WEIGHTS: return "the weights cannot be read, or are another model's";
    case RAMMER_BAD_MODEL: return "the model was exported for another version of rammer.h than the library's";
    case RAMMER_BAD_VERSION: return "the program was built for another version of rammer.h than the library's";
    case RAMMER_NO_DEVICE: return "there is no such GPU, or no driver for it";
    case RAMMER_DEVICE_FAILED: return "the GPU's driver reports an error";
  }
  return "unknown status";
}

static int suits_version(int version) { return version / 1000 == RAMMER_MAJOR && version <= RAMMER_VERSION; }

/* With a GPU's plan, also the bytes of the plans that follow: `open` tells whether it runs here. */
size_t rammer_memory(const rammer_model *m) {
  size_t most = 0;
  int suits = SUITS_NOT;
  for (i64 n = 0; m && suits_version(m->version) && n < m->num_plans && suits != SUITS; n++) {
    suits = engine_of(m, m->plans[n])->suits(m->plans[n]);
    if (suits != SUITS_NOT && lay_out(m, m->plans[n], 0) > most) most = lay_out(m, m->plans[n], 0);
  }
  return most;
}

static rammer_status open_plan(const rammer_model *m, const rammer_plan *plan, const rammer_options *o,
                               rammer_program **made) {
  const size_t bytes = lay_out(m, plan, 0);
  rammer_status status = RAMMER_NO_WEIGHTS;
  rammer_program *p;
  char *memory;
  if (o->memory && (o->memory_bytes < bytes || (size_t)o->memory % ALIGNMENT)) return RAMMER_BAD_ARGUMENT;
  memory = o->memory ? __builtin_memset(o->memory, 0, bytes) : rammer_system_take(bytes);
  if (!memory) return RAMMER_NO_MEMORY;
  lay_out(m, plan, memory);
  p = (rammer_program *)(void *)memory;
  p->bytes = o->memory ? 0 : bytes;
  if ((p->weights = found_weights(m, o, &p->mapped))) status = p->engine->open(p, o);
  if (status) rammer_close(p);
  else *made = p;
  return status;
}

rammer_status rammer_open(const rammer_model *m, const rammer_options *given, rammer_program **made) {
  rammer_options o = RAMMER_DEFAULTS;
  rammer_status status = RAMMER_NO_CPU;
  if (given && !suits_version(given->version)) return RAMMER_BAD_VERSION;
  if (given && given->size > sizeof o) return RAMMER_BAD_ARGUMENT;
  if (given) __builtin_memcpy(&o, given, given->size);
  if (!m || !made) return RAMMER_BAD_ARGUMENT;
  *made = NULL;
  if (!suits_version(m->version)) return RAMMER_BAD_MODEL;
  for (i64 n = 0; n < m->num_plans && (status == RAMMER_NO_CPU || status == RAMMER_NO_DEVICE); n++)
    if (engine_of(m, m->plans[n])->suits(m->plans[n])) status = open_plan(m, m->plans[n], &o, made);
  return status;
}

void rammer_close(rammer_program *p) {
  if (!p) return;
  p->engine->close(p);
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
  return s->values[which] + rammer_value_at(s->program->model, number);
}

static rammer_status settle(rammer_stream *s, int copies) {
  const rammer_program *p = s->program;
  rammer_status status;
  if (!p->engine->settle) return RAMMER_OK;
  take((turn *)p->turns);
  status = p->engine->settle(s, copies);
  give((turn *)p->turns);
  return status;
}

static rammer_status run_in_turn(rammer_stream *s, const void *const *inputs, void *const *outputs) {
  rammer_program *p = s->program;
  const rammer_model *m = p->model;
  i64 taken = 0, given = 0;
  rammer_status status;
  for (i64 n = 0; n < m->num_inputs; n++) {
    const int state = m->inputs[n].state;
    if (!(p->at[n] = state < 0 ? inputs[taken++] : value(s, s->now, state))) return RAMMER_BAD_ARGUMENT;
  }
  for (i64 n = 0; n < m->num_outputs; n++) {
    const int state = m->outputs[n].state;
    const char *to = state < 0 ? outputs[given++] : value(s, !s->now, state);
    if (!(p->at[m->num_inputs + n] = to)) return RAMMER_BAD_ARGUMENT;
  }
  p->running = s;
  if ((status = p->engine->run(p)) == RAMMER_OK) s->now = !s->now;
  return status;
}

rammer_status rammer_run_stream(rammer_stream *s, const void *const *inputs, void *const *outputs) {
  rammer_status status;
  if (!s || (!inputs && s->program->model->num_inputs > s->program->model->num_state) ||
      (!outputs && s->program->model->num_outputs > s->program->model->num_state))
    return RAMMER_BAD_ARGUMENT;
  take((turn *)s->program->turns);
  status = run_in_turn(s, inputs, outputs);
  give((turn *)s->program->turns);
  return status;
}

rammer_status rammer_run(rammer_program *p, const void *const *inputs, void *const *outputs) {
  return p ? rammer_run_stream(&p->own, inputs, outputs) : RAMMER_BAD_ARGUMENT;
}

/* ---- streams ---- */

size_t rammer_stream_memory(const rammer_program *p) {
  size_t used = 0;
  rammer_part(0, &used, 1, sizeof(rammer_stream));
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
  rammer_part(0, &used, 1, sizeof(rammer_stream));
  lay_out_stream(p->model, s, taken, used);
  s->program = p;
  s->bytes = memory ? 0 : bytes;
  return RAMMER_OK;
}

void rammer_close_stream(rammer_stream *s) {
  if (!s) return;
  settle(s, 0);
  if (s->bytes) rammer_system_give(s, s->bytes);
}

rammer_stream *rammer_own_stream(rammer_program *p) { return &p->own; }

void rammer_reset(rammer_stream *s) {
  settle(s, 0);
  __builtin_memset(s->values[s->now], 0, rammer_value_at(s->program->model, s->program->model->num_state));
}

void *rammer_value(rammer_stream *s, size_t number) {
  if (number >= (size_t)s->program->model->num_state || settle(s, 1)) return NULL;
  return value(s, s->now, (int)number);
}
