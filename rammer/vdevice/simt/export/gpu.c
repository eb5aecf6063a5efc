/* Run exported plans on a GPU: an engine over the driver's API. CUDA and HIP have the same functions by other names. */
#include "engine.h"
#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <dlfcn.h>
#endif

enum { LINE = 32, HEAD = 16 };                 /* words of the state: of a lane's line, and of what a run reports first */
enum { STALLED = 2, BAD_INDEX = 3, NOT_BLOCKING = 1 }; /* words of the head; a flag of streams */
enum { ROOM = 256, NUMBER = -2 };

typedef unsigned long long address;
typedef struct {
  int (*init)(unsigned);
  int (*device)(int *, int);
  int (*attribute)(int *, int, int);
  int (*retain)(void **, int);
  int (*release)(int);
  int (*context)(void **); /* of this thread */
  int (*enter)(void *);
  int (*stream)(void **, unsigned);
  int (*end_stream)(void *);
  int (*finish)(void *);
  int (*allocate)(address *, size_t);
  int (*free)(address);
  int (*clear)(address, unsigned char, size_t, void *);
  int (*write)(address, const void *, size_t, void *);
  int (*read)(void *, address, size_t, void *);
  int (*copy)(address, address, size_t, void *);
  int (*load)(void **, const void *);
  int (*unload)(void *);
  int (*find)(void **, void *, const char *);
  int (*blocks)(int *, void *, int, size_t);
  int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **);
  int (*allow)(void *, int, int); /* HIP needs none */
} api;

typedef struct {
  api driver;
  int device;
  void *context, *stream, *module, *kernel;
  address memory, weights, arena, instructions, bounds, waits, args, state, values; /* all in `memory` */
  size_t bytes;
  unsigned long long limit; /* of a wait, in ticks of the clock that kernels read */
  long long *addresses;     /* the host's copy of the arguments */
  unsigned *report;         /* and of the state */
  rammer_stream *held;      /* the stream whose values the GPU holds, or NULL: then all are the host's */
} gpu;

static gpu *gpu_of(const rammer_program *p) { return p->machine; }

static size_t state_words(const rammer_plan *plan) { return (size_t)(LINE * (1 + 2 * plan->num_veus)); }

/* Let the GPU be the current one of this thread; `before` was it. */
static int entered(const gpu *g, void **before) {
  return !g->driver.context(before) && !g->driver.enter(g->context);
}

/* ---- opening ---- */

static int suits_gpu(const rammer_plan *plan) { return plan->gpu ? OPEN_TELLS : SUITS_NOT; }

static size_t lay_out(const rammer_model *m, const rammer_plan *plan, char *memory, size_t used, rammer_program *p) {
  gpu *g = (gpu *)(void *)rammer_part(memory, &used, 1, sizeof(gpu));
  char *addresses = rammer_part(memory, &used, plan->num_args, sizeof(long long));
  char *report = rammer_part(memory, &used, (long long)state_words(plan), sizeof(unsigned));
  (void)m;
  if (g) {
    p->machine = g;
    g->addresses = (long long *)(void *)addresses;
    g->report = (unsigned *)(void *)report;
  }
  return used;
}

/* Find the driver's functions. False: this machine lacks it, or some of them. */
static int found_driver(api *into, const rammer_driver *names) {
  size_t n;
  const char *const *library = names->libraries;
#ifdef _WIN32
  HMODULE from = NULL;
  while (!from && *library) from = LoadLibraryA(*library++);
#else
  void *from = NULL;
  while (!from && *library) from = dlopen(*library++, RTLD_NOW);
#endif
  for (n = 0; from && n < sizeof(api) / sizeof(void *); n++) {
    void *function = NULL;
    if (!*names->functions[n]) continue;
#ifdef _WIN32
    FARPROC found = GetProcAddress(from, names->functions[n]);
    __builtin_memcpy(&function, &found, sizeof function);
#else
    function = dlsym(from, names->functions[n]);
#endif
    if (!function) return 0;
    __builtin_memcpy((char *)into + n * sizeof function, &function, sizeof function);
  }
  return from != NULL;
}

static address placed(const gpu *g, const rammer_plan *plan, rammer_place at) {
  if (at.base == NUMBER) return (address)at.offset;
  if (at.base < 0) return g->arena + (address)at.offset;
  return g->weights + (address)(plan->constants[at.base] - plan->gpu->weights_begin + at.offset);
}

/* Take room from the program's block of memory on the GPU; with an address of 0, only count. */
static address room(gpu *g, long long count, size_t each) {
  const address found = g->memory + g->bytes;
  g->bytes += ((size_t)count * each + ROOM - 1) / ROOM * ROOM;
  return found;
}

static void lay_out_memory(gpu *g, const rammer_model *m, const rammer_plan *plan) {
  const rammer_gpu_plan *on = plan->gpu;
  g->bytes = 0;
  g->weights = room(g, on->weights_bytes, 1);
  g->arena = room(g, plan->arena_bytes, 1);
  g->instructions = room(g, on->num_instructions, sizeof *on->instructions);
  g->bounds = room(g, plan->num_programs * plan->num_veus + 1, sizeof(int));
  g->waits = room(g, on->num_waits + 1, sizeof *on->waits);
  g->args = room(g, plan->num_args, sizeof(long long));
  g->state = room(g, (long long)state_words(plan), sizeof(unsigned));
  g->values = room(g, (long long)rammer_value_at(m, m->num_state), 1);
}

static int wrote(const gpu *g, address to, const void *from, size_t bytes) {
  return !bytes || !g->driver.write(to, from, bytes, g->stream);
}

/* Whether the GPU holds all blocks of a plan at once: they wait for each other. */
static int holds(const gpu *g, const rammer_plan *plan) {
  const rammer_gpu_plan *on = plan->gpu;
  int blocks = 0, multiprocessors = 0;
  if (g->driver.allow && g->driver.allow(g->kernel, on->driver->shared_bytes, (int)on->shared_bytes)) return 0;
  if (g->driver.blocks(&blocks, g->kernel, (int)on->threads, (size_t)on->shared_bytes)) return 0;
  if (g->driver.attribute(&multiprocessors, on->driver->multiprocessors, g->device)) return 0;
  return (long long)blocks * multiprocessors >= plan->num_veus;
}

static rammer_status load(rammer_program *p) {
  const rammer_plan *plan = p->plan;
  const rammer_gpu_plan *on = plan->gpu;
  gpu *g = gpu_of(p);
  const api *driver = &g->driver;
  const int assumed = on->driver->assumed_khz;
  int khz = assumed;
  long long n;
  if (driver->stream(&g->stream, NOT_BLOCKING)) return RAMMER_DEVICE_FAILED;
  if (driver->load(&g->module, on->code) || driver->find(&g->kernel, g->module, on->entry) || !holds(g, plan))
    return RAMMER_NO_CPU;
  if (assumed && (driver->attribute(&khz, on->driver->clock_khz, g->device) || !khz)) khz = assumed;
  g->limit = (unsigned long long)WATCHDOG_NS;
  if (assumed) g->limit = g->limit / (unsigned)assumed * (unsigned)khz;
  lay_out_memory(g, p->model, plan);
  if (driver->allocate(&g->memory, g->bytes)) {
    g->memory = 0;
    return RAMMER_NO_MEMORY;
  }
  lay_out_memory(g, p->model, plan);
  for (n = 0; n < plan->num_args; n++) g->addresses[n] = (long long)placed(g, plan, plan->args[n]);
  if (driver->clear(g->memory, 0, g->bytes, g->stream) ||
      !wrote(g, g->weights, p->weights + on->weights_begin, (size_t)on->weights_bytes) ||
      !wrote(g, g->instructions, on->instructions, (size_t)on->num_instructions * sizeof *on->instructions) ||
      !wrote(g, g->bounds, on->bounds, (size_t)(plan->num_programs * plan->num_veus + 1) * sizeof(int)) ||
      !wrote(g, g->waits, on->waits, (size_t)on->num_waits * sizeof *on->waits) ||
      !wrote(g, g->args, g->addresses, (size_t)plan->num_args * sizeof(long long)) || driver->finish(g->stream))
    return RAMMER_DEVICE_FAILED;
  return RAMMER_OK;
}

static rammer_status open_gpu(rammer_program *p, const rammer_options *o) {
  gpu *g = gpu_of(p);
  const api *driver = &g->driver;
  rammer_status status;
  void *before;
  if (!found_driver(&g->driver, p->plan->gpu->driver) || driver->init(0) || driver->device(&g->device, o->device))
    return RAMMER_NO_DEVICE;
  if (driver->retain(&g->context, g->device)) {
    g->context = NULL;
    return RAMMER_DEVICE_FAILED;
  }
  if (!entered(g, &before)) return RAMMER_DEVICE_FAILED;
  status = load(p);
  driver->enter(before);
  return status;
}

static void close_gpu(rammer_program *p) {
  gpu *g = gpu_of(p);
  void *before;
  if (!g->context) return;
  if (entered(g, &before)) {
    if (g->stream) g->driver.finish(g->stream);
    if (g->memory) g->driver.free(g->memory);
    if (g->module) g->driver.unload(g->module);
    if (g->stream) g->driver.end_stream(g->stream);
    g->driver.enter(before);
  }
  g->driver.release(g->device);
  g->context = NULL;
}

/* ---- runs ---- */

/* The operator of a slot: that of the first instruction of its lane that is not before it. */
static int operator_at(const rammer_plan *plan, unsigned program, long long veu, unsigned order) {
  const long long lane = (long long)program * plan->num_veus + veu;
  int n;
  for (n = plan->gpu->bounds[lane]; n < plan->gpu->bounds[lane + 1] - 1; n++)
    if ((unsigned)plan->gpu->instructions[n][7] >= order) return plan->operators[n];
  return -1;
}

/* What a run has reported. The next one begins with a state of zeros. */
static rammer_status failure(rammer_program *p) {
  const rammer_plan *plan = p->plan;
  gpu *g = gpu_of(p);
  const size_t bytes = state_words(plan) * sizeof(unsigned);
  const int stalled = g->report[STALLED] != 0;
  unsigned first[2] = {~0u, ~0u};
  long long veu;
  if (g->driver.read(g->report, g->state, bytes, g->stream) || g->driver.clear(g->state, 0, bytes, g->stream) ||
      g->driver.finish(g->stream))
    return RAMMER_DEVICE_FAILED;
  if (stalled) return RAMMER_STALLED;
  for (veu = 0; veu < plan->num_veus; veu++) {
    const unsigned *line = g->report + LINE * (1 + plan->num_veus + veu);
    if (!line[0] || line[1] > first[0] || (line[1] == first[0] && line[0] - 1 >= first[1])) continue;
    first[0] = line[1];
    first[1] = line[0] - 1;
    __atomic_store_n(&p->failed, operator_at(plan, first[0], veu, first[1]), __ATOMIC_RELEASE);
  }
  return RAMMER_BAD_INDEX;
}

static int launched(const gpu *g, const rammer_plan *plan, int program) {
  const rammer_gpu_plan *on = plan->gpu;
  address stream = g->instructions, waits = g->waits, args = g->args, state = g->state;
  address bounds = g->bounds + (address)program * (address)plan->num_veus * sizeof(int);
  int span = on->spans[program];
  unsigned long long limit = g->limit;
  void *arguments[] = {&stream, &bounds, &waits, &args, &state, &program, &span, &limit};
  return !g->driver.launch(g->kernel, (unsigned)plan->num_veus, 1, 1, (unsigned)on->threads, 1, 1,
                           (unsigned)on->shared_bytes, g->stream, arguments);
}

/* Copy a stream's values from the GPU, if it holds them, to the host, where they may change. */
static int gave_back(gpu *g, rammer_stream *s) {
  const rammer_model *m = s->program->model;
  int going = 1;
  if (g->held != s) return 1;
  for (long long n = 0; going && n < m->num_state; n++)
    going = !g->driver.read(s->values[s->now] + rammer_value_at(m, n), g->values + rammer_value_at(m, n),
                            m->state[n].bytes, g->stream);
  g->held = NULL;
  return !g->driver.finish(g->stream) && going;
}

static rammer_status run_entered(rammer_program *p) {
  const rammer_model *m = p->model;
  const rammer_plan *plan = p->plan;
  gpu *g = gpu_of(p);
  int going = !g->held || g->held == p->running || gave_back(g, g->held);
  for (long long n = 0; going && n < m->num_inputs; n++) {
    const address to = placed(g, plan, plan->inputs[n].at);
    const size_t bytes = m->inputs[n].port.bytes;
    const int state = m->inputs[n].state;
    going = state >= 0 && g->held ? !g->driver.copy(to, g->values + rammer_value_at(m, state), bytes, g->stream)
                                  : wrote(g, to, p->at[n], bytes);
  }
  for (long long n = 0; going && n < plan->num_programs; n++) going = launched(g, plan, (int)n);
  for (long long n = 0; going && n < m->num_outputs; n++)
    if (m->outputs[n].state < 0)
      going = !g->driver.read((void *)(size_t)p->at[m->num_inputs + n], placed(g, plan, plan->outputs[n].at),
                              m->outputs[n].port.bytes, g->stream);
  if (going) going = !g->driver.read(g->report, g->state, HEAD * sizeof(unsigned), g->stream);
  if (g->driver.finish(g->stream) || !going) return RAMMER_DEVICE_FAILED;
  if (g->report[STALLED] || g->report[BAD_INDEX]) return failure(p);
  for (long long n = 0; going && n < m->num_outputs; n++)
    if (m->outputs[n].state >= 0)
      going = !g->driver.copy(g->values + rammer_value_at(m, m->outputs[n].state), placed(g, plan, plan->outputs[n].at),
                              m->outputs[n].port.bytes, g->stream);
  g->held = m->num_state ? p->running : NULL;
  return going ? RAMMER_OK : RAMMER_DEVICE_FAILED;
}

static rammer_status run_gpu(rammer_program *p) {
  gpu *g = gpu_of(p);
  rammer_status status;
  void *before;
  if (!entered(g, &before)) return RAMMER_DEVICE_FAILED;
  status = run_entered(p);
  g->driver.enter(before);
  return status;
}

static rammer_status settle_gpu(rammer_stream *s, int copies) {
  gpu *g = gpu_of(s->program);
  int going;
  void *before;
  if (g->held != s) return RAMMER_OK;
  if (!copies) g->held = NULL;
  if (!copies) return RAMMER_OK;
  if (!entered(g, &before)) return RAMMER_DEVICE_FAILED;
  going = gave_back(g, s);
  g->driver.enter(before);
  return going ? RAMMER_OK : RAMMER_DEVICE_FAILED;
}

const rammer_engine rammer_gpu = {suits_gpu, lay_out, open_gpu, close_gpu, run_gpu, settle_gpu};
