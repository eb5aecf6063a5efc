/* What rammer.c asks of the engine that runs a plan: cpu.c or gpu.c. Not for callers. */
#ifndef RAMMER_ENGINE_H
#define RAMMER_ENGINE_H

#include "model.h"

enum { ALIGNMENT = 128 };
static const long long WATCHDOG_NS = 60000000000;

struct rammer_stream {
  rammer_program *program;
  char *values[2]; /* what the next run reads, and where it writes: they change places */
  int now;
  size_t bytes; /* to be given back to the system, or 0 */
};

struct rammer_program {
  const rammer_model *model;
  const rammer_plan *plan;
  const rammer_engine *engine;
  void *machine;          /* the engine's own */
  void *turns;            /* runs take turns */
  const char *weights;
  const char **at;        /* of inputs, then outputs: what this run reads and writes */
  rammer_stream *running; /* whose state this run takes */
  int failed;             /* the operator of the last bad index, or -1 */
  size_t bytes;           /* to be given back to the system, or 0 */
  int mapped;
  rammer_stream own;
};

enum { SUITS_NOT = 0, SUITS = 1, OPEN_TELLS = 2 };

struct rammer_engine {
  int (*suits)(const rammer_plan *); /* whether the plan runs here */
  /* Lay the machine out at `memory + used`; return the bytes used then. With NULL, only count. */
  size_t (*lay_out)(const rammer_model *, const rammer_plan *, char *memory, size_t used, rammer_program *);
  rammer_status (*open)(rammer_program *, const rammer_options *); /* if it fails, `close` comes next */
  void (*close)(rammer_program *);                                 /* also of what was never opened */
  rammer_status (*run)(rammer_program *);                          /* with the arrays of `at` */
  /* Let the host's values be the stream's state, as they are or with `copies` as runs left them. NULL: always so. */
  rammer_status (*settle)(rammer_stream *, int copies);
};

static inline size_t rammer_aligned(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* Where a value of the state begins among all of them. */
static inline size_t rammer_value_at(const rammer_model *m, long long number) {
  size_t at = 0;
  for (long long n = 0; n < number; n++) at += rammer_aligned(m->state[n].bytes);
  return at;
}

static inline char *rammer_part(char *memory, size_t *used, long long count, size_t each) {
  char *found = memory ? memory + *used : 0;
  *used += rammer_aligned((size_t)count * each);
  return found;
}

#endif
