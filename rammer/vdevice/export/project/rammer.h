/* Run models that rammer has exported. One page of C: no Python, no compiler, no memory taken after `open`.
 *
 *   rammer_program *vad;
 *   if (rammer_open(&vad_model, NULL, &vad) != RAMMER_OK) ...
 *   const void *inputs[] = {samples};
 *   void *outputs[] = {probability};
 *   rammer_run(vad, inputs, outputs);
 *
 * All functions may be called from several threads; runs of one program take turns. */
#ifndef RAMMER_H
#define RAMMER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A program built with one minor version runs with libraries of the same major version and a later minor one: structs
 * below keep their fields, and only rammer_options gets new ones, behind the others. */
#define RAMMER_MAJOR 1
#define RAMMER_MINOR 1
#define RAMMER_VERSION (1000 * RAMMER_MAJOR + RAMMER_MINOR)

typedef enum rammer_status {
  RAMMER_OK = 0,
  RAMMER_BAD_INDEX = 1,  /* an input has an index out of range; outputs are undefined */
  RAMMER_STALLED = 2,    /* a thread did not get on: please report it */
  RAMMER_BAD_ARGUMENT = 3,
  RAMMER_NO_MEMORY = 4,
  RAMMER_NO_THREAD = 5,
  RAMMER_NO_CPU = 6,     /* the library holds no code for this CPU or GPU, or the GPU cannot hold all blocks at once */
  RAMMER_NO_WEIGHTS = 7, /* their file cannot be read, or is another model's */
  RAMMER_BAD_MODEL = 8,  /* the model was exported for another major version than the library's, or a later minor one */
  RAMMER_BAD_VERSION = 9, /* the calling program was built for such a version */
  RAMMER_NO_DEVICE = 10, /* no GPU of this number, or no driver for it (since 1.1) */
  RAMMER_DEVICE_FAILED = 11 /* the GPU's driver reports an error (since 1.1) */
} rammer_status;

/* Element types, with ONNX's numbers. */
typedef enum rammer_type {
  RAMMER_FLOAT32 = 1, RAMMER_UINT8 = 2, RAMMER_INT8 = 3, RAMMER_UINT16 = 4, RAMMER_INT16 = 5, RAMMER_INT32 = 6,
  RAMMER_INT64 = 7, RAMMER_BOOL = 9, RAMMER_FLOAT16 = 10, RAMMER_FLOAT64 = 11, RAMMER_UINT32 = 12,
  RAMMER_UINT64 = 13, RAMMER_COMPLEX64 = 14, RAMMER_COMPLEX128 = 15, RAMMER_BFLOAT16 = 16,
  RAMMER_OTHER = 0 /* stored as bytes: float8, float4 */
} rammer_type;

typedef struct rammer_port {
  const char *name;
  rammer_type type;
  int rank;
  const size_t *shape;
  size_t bytes;
} rammer_port;

typedef struct rammer_model rammer_model;     /* constant data, in the library that was exported */
typedef struct rammer_program rammer_program; /* a model with memory to run in */
typedef struct rammer_stream rammer_stream;   /* runs of a program that share a state */

/* Threads of the host's, for lanes that run side by side: call work(argument, n) once for each n < count, on any threads,
 * also in turn on one, and return when all calls have returned. */
typedef void (*rammer_work)(void *argument, int n);
typedef void (*rammer_parallel)(void *host, int count, rammer_work work, void *argument);

typedef struct rammer_options {
  size_t size;              /* sizeof(rammer_options) */
  int version;              /* RAMMER_VERSION */
  int threads;              /* 0: run in the calling thread alone. 1 (default): as many as the model was compiled for */
  const char *weights_file; /* weights.bin; NULL: the weights in the library, or these: */
  const void *weights;      /* aligned to 64 bytes, and valid until the program is closed */
  size_t weights_bytes;
  void *memory;             /* rammer_memory() bytes, aligned to 128; NULL: taken from the system */
  size_t memory_bytes;
  rammer_parallel parallel; /* since 1.1: the host's threads in place of the library's; NULL: those */
  void *host;               /* the first argument of `parallel` */
  int device;               /* since 1.1: the number of the GPU */
} rammer_options;
#define RAMMER_DEFAULTS {sizeof(rammer_options), RAMMER_VERSION, 1, 0, 0, 0, 0, 0, 0, 0, 0} /* rammer_options o = RAMMER_DEFAULTS; */

int rammer_version(void);                        /* RAMMER_VERSION of the library */
const char *rammer_text(rammer_status);          /* what a status means */
const char *rammer_failed(const rammer_program *); /* the operator of the last RAMMER_BAD_INDEX, or "" */

size_t rammer_memory(const rammer_model *);      /* bytes that a program takes, without weights; 0: no code for this CPU */
rammer_status rammer_open(const rammer_model *, const rammer_options *, rammer_program **); /* NULL: the defaults */
void rammer_close(rammer_program *);             /* of NULL: nothing. Close its streams before */
const char *rammer_arch(const rammer_program *); /* the instruction set whose code was chosen */

/* What a run takes and gives, in order. State is not among them. */
size_t rammer_inputs(const rammer_model *, const rammer_port **);
size_t rammer_outputs(const rammer_model *, const rammer_port **);
size_t rammer_state(const rammer_model *, const rammer_port **); /* values that a run leaves for the next one */

/* Run once. Arrays are dense and in row-major order. A call with the same addresses as the last one costs least.
 * An array that is not aligned to its elements is copied.
 * A program with state has one stream of its own, which this runs. */
rammer_status rammer_run(rammer_program *, const void *const *inputs, void *const *outputs);

/* Another stream of runs, which begins with zeros. `memory`: rammer_stream_memory() bytes, aligned to 128, or NULL. */
size_t rammer_stream_memory(const rammer_program *);
rammer_status rammer_open_stream(rammer_program *, void *memory, rammer_stream **);
void rammer_close_stream(rammer_stream *);
rammer_status rammer_run_stream(rammer_stream *, const void *const *inputs, void *const *outputs);
rammer_stream *rammer_own_stream(rammer_program *);
void rammer_reset(rammer_stream *);              /* begin again with zeros */
void *rammer_value(rammer_stream *, size_t);     /* a value of the state, to be read or set between runs */

#ifdef __cplusplus
}
#endif
#endif
