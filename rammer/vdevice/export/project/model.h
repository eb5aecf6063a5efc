/* What an exported model consists of: the contract of its generated files and the runtime. Not for callers. */
#ifndef RAMMER_MODEL_H
#define RAMMER_MODEL_H

#include "rammer.h"

#define RAMMER_HEADER 128 /* bytes */

typedef void (*rammer_kernel)(char *const *args, char *scratch, long long rtask, int *status);
typedef struct { int kernel, rtask, args, flags, ahead, tickets; } rammer_slot;
typedef struct { int veu, order; } rammer_position;
typedef struct { long long base, offset; } rammer_place;               /* base -1: the arena; -2: a number; else a constant */
typedef struct { rammer_place at; long long lines; } rammer_prefetch;
typedef struct { unsigned leaf, subleaf, word, bit; } rammer_cpu_bit;  /* of CPUID: word 0 to 3 is EAX to EDX */
typedef struct { long long number, offset; } rammer_arg;               /* an argument that points into a port */

typedef struct {
  rammer_port port;
  int state;               /* number of the value that it reads or writes, or -1 */
} rammer_model_port;

/* Where a port lies. With `args` it may lie in the caller's memory instead. */
typedef struct {
  rammer_place at;
  long long num_args;
  const rammer_arg *args;
} rammer_home;

/* How the driver of a platform's GPUs is called. */
typedef struct {
  const char *const *libraries; /* by which the system finds it, up to NULL */
  const char *const *functions; /* in the order of gpu.c's `api`; "": it has none */
  int multiprocessors;          /* the attribute that counts them */
  int clock_khz;                /* that has the rate of the clock that kernels read */
  int assumed_khz;              /* the rate that kernels assume, or 0: it counts nanoseconds */
  int shared_bytes;             /* of a function: how much shared memory a block may have */
} rammer_driver;

/* What a plan for a GPU has in place of slots and kernels: instructions, which blocks of threads walk. */
typedef struct {
  const rammer_driver *driver;
  const unsigned char *code;
  const char *entry;             /* the kernel's name */
  const int (*instructions)[8];  /* function, rTask, first argument, arguments, first wait, waits, step, order */
  const int *bounds;             /* of each lane, in instructions; its last one is an end */
  const rammer_position *waits;
  const int *spans;              /* of each rProgram: what it adds to the epoch */
  long long num_instructions, num_waits, threads, shared_bytes;
  long long weights_begin, weights_bytes; /* the part of weights.bin that has this plan's constants */
} rammer_gpu_plan;

typedef struct rammer_engine rammer_engine; /* what runs a plan: see engine.h */
extern const rammer_engine rammer_cpu, rammer_gpu;

/* A schedule with its machine code, for one instruction set or GPU. */
typedef struct {
  const char *arch;
  const rammer_cpu_bit *bits; /* that the CPU must have, up to an entry of leaf 0 */
  unsigned xcr0;              /* register states that the system must save */
  long long num_veus, num_programs, num_args, num_prefetches, num_steps;
  const long long *bounds;
  const rammer_slot *slots;
  const rammer_position *waits;
  const rammer_kernel *kernels;
  const rammer_place *args;
  const rammer_prefetch *prefetches;
  const long long *constants; /* bytes from the begin of weights.bin */
  const long long (*steps)[2]; /* [slot, vEU] in an order in which one thread can run them */
  const int *operators;        /* of each slot */
  const char *const *names;    /* of operators */
  const rammer_home *inputs, *outputs;
  long long arena_bytes, scratch_stride, keeps_subnormals;
  const rammer_engine *engine; /* from version 1.1 on; before, all plans were for CPUs */
  const rammer_gpu_plan *gpu;  /* or NULL */
} rammer_plan;

struct rammer_model {
  int version;
  const char *name, *hash;
  long long num_inputs, num_outputs, num_state, num_plans;
  const rammer_model_port *inputs, *outputs; /* all, state among them */
  const rammer_port *taken, *given, *state; /* without state, and the state alone */
  const rammer_plan *const *plans;          /* the best first */
  const unsigned char *weights;             /* weights.bin, or NULL: it stays a file */
  size_t weights_bytes;                     /* of weights.bin, whose first RAMMER_HEADER bytes are these: */
  const char *weights_header;
};

#endif
