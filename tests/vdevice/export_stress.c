/* Run the exported model MODEL from several threads at once: programs that share the pool, streams of one program, one
 * thread alone; and over the threads of hosts, with as many as there are lanes, fewer, or none. Each must give what the first program gave. Every array is a block of its own, so that a sanitizer sees
 * an access beyond its end; some are not aligned. Argument: weights.bin. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rammer.h"

extern const rammer_model MODEL;
enum { THREADS = 4, TURNS = 3, RUNS = 3, MOST_PORTS = 64 };

static size_t num_inputs, num_outputs;
static const rammer_port *inputs_of, *outputs_of;
static unsigned char *wanted[RUNS][MOST_PORTS];
static rammer_program *shared;
static void *weights;
static size_t weights_bytes;

static void must(int is_so, const char *what) {
  if (is_so) return;
  fprintf(stderr, "wrong: %s\n", what);
  exit(1);
}

static void *block(size_t bytes, size_t alignment) {
  void *found = NULL;
  must(!posix_memalign(&found, alignment, bytes ? bytes : 1), "no memory");
  return found;
}

/* Fill with numbers between -1 and 1; integers are zero, as they may be indices. */
static void fill(const rammer_port *port, unsigned char *to, int run) {
  size_t n;
  memset(to, 0, port->bytes);
  for (n = 0; port->type == RAMMER_FLOAT32 && n < port->bytes / 4; n++) {
    const float x = (float)((n * 37 + (size_t)run * 11) % 101) / 50.0f - 1.0f;
    memcpy(to + 4 * n, &x, 4);
  }
}

/* Run RUNS times from a state of zeros. `off`: bytes by which arrays are not aligned. */
static void follow(rammer_stream *stream, size_t off, int is_first) {
  const void *inputs[MOST_PORTS];
  void *outputs[MOST_PORTS];
  int run;
  size_t n;
  for (run = 0; run < RUNS; run++) {
    for (n = 0; n < num_inputs; n++) {
      unsigned char *at = (unsigned char *)block(inputs_of[n].bytes + off, 16) + off;
      fill(inputs_of + n, at, run);
      inputs[n] = at;
    }
    for (n = 0; n < num_outputs; n++) outputs[n] = (unsigned char *)block(outputs_of[n].bytes + off, 16) + off;
    must(rammer_run_stream(stream, inputs, outputs) == RAMMER_OK, "a run failed");
    for (n = 0; n < num_outputs; n++) {
      if (is_first) memcpy(wanted[run][n] = block(outputs_of[n].bytes, 16), outputs[n], outputs_of[n].bytes);
      else must(!memcmp(wanted[run][n], outputs[n], outputs_of[n].bytes), outputs_of[n].name);
      free((unsigned char *)outputs[n] - off);
    }
    for (n = 0; n < num_inputs; n++) free((unsigned char *)(size_t)inputs[n] - off);
  }
}

/* ---- hosts ---- */

enum { IN_TURN, BACKWARDS, A_THREAD_EACH, SECOND_LATE, TWO_THREADS, LAST_ALONE, NOTHING, HOSTS };
typedef struct { rammer_work work; void *argument; int first, step, count, wait_us; } calls;

static void *make_calls(void *of) {
  const calls *c = of;
  int n;
  if (c->wait_us) usleep((useconds_t)c->wait_us);
  for (n = c->first; n < c->count; n += c->step) c->work(c->argument, n);
  return NULL;
}

static void offer(void *host, int count, rammer_work work, void *argument) {
  const int kind = *(const int *)host;
  pthread_t made[64];
  calls all[64];
  int n, threads = kind == TWO_THREADS ? 2 : kind == A_THREAD_EACH || kind == SECOND_LATE ? count : 0;
  for (n = 0; n < threads; n++) {
    all[n].work = work;
    all[n].argument = argument;
    all[n].first = n;
    all[n].step = threads;
    all[n].count = count;
    all[n].wait_us = kind == SECOND_LATE && n == 1 ? 3000 : 0;
    must(!pthread_create(made + n, NULL, make_calls, all + n), "no thread");
  }
  for (n = 0; n < threads; n++) pthread_join(made[n], NULL);
  for (n = 0; kind == IN_TURN && n < count; n++) work(argument, n);
  for (n = count; kind == BACKWARDS && n; n--) work(argument, n - 1);
  if (kind == LAST_ALONE) work(argument, count - 1);
}

static void follow_hosts(void) {
  int kind;
  for (kind = 0; kind < HOSTS; kind++) {
    rammer_options options = RAMMER_DEFAULTS;
    rammer_program *program;
    options.parallel = offer;
    options.host = &kind;
    must(rammer_open(&MODEL, &options, &program) == RAMMER_OK, "a program cannot be opened");
    follow(rammer_own_stream(program), 0, 0);
    rammer_reset(rammer_own_stream(program));
    follow(rammer_own_stream(program), 1, 0);
    rammer_close(program);
  }
}

static void *work(void *argument) {
  const int mine = *(int *)argument;
  int turn;
  for (turn = 0; turn < TURNS; turn++) {
    const size_t off = turn == 1 ? 1 : 0;
    rammer_options options = RAMMER_DEFAULTS;
    rammer_program *program;
    rammer_stream *stream;
    options.threads = mine != 2;
    options.weights = weights;
    options.weights_bytes = weights_bytes;
    if (mine % 2) { /* a stream of the shared program */
      void *memory = turn ? block(rammer_stream_memory(shared), 128) : NULL;
      must(rammer_open_stream(shared, memory, &stream) == RAMMER_OK, "a stream cannot be opened");
      follow(stream, off, 0);
      rammer_reset(stream);
      must(!*rammer_failed(shared), "a run without a bad index failed");
      follow(stream, off, 0);
      rammer_close_stream(stream);
      free(memory);
    } else {
      options.memory_bytes = rammer_memory(&MODEL);
      options.memory = block(options.memory_bytes, 128);
      must(rammer_open(&MODEL, &options, &program) == RAMMER_OK, "a program cannot be opened");
      follow(rammer_own_stream(program), off, 0);
      rammer_close(program);
      free(options.memory);
    }
  }
  return NULL;
}

int main(int count, char **arguments) {
  pthread_t threads[THREADS];
  int numbers[THREADS], n, run;
  size_t port;
  FILE *file = count > 1 ? fopen(arguments[1], "rb") : NULL;
  must(file && !fseek(file, 0, SEEK_END), "no weights.bin");
  weights_bytes = (size_t)ftell(file);
  weights = block(weights_bytes, 64);
  rewind(file);
  must(fread(weights, 1, weights_bytes, file) == weights_bytes, "weights.bin cannot be read");
  fclose(file);
  num_inputs = rammer_inputs(&MODEL, &inputs_of);
  num_outputs = rammer_outputs(&MODEL, &outputs_of);
  must(num_inputs <= MOST_PORTS && num_outputs <= MOST_PORTS, "too many ports");
  for (run = 0; run < 2; run++) { /* the pool ends and begins again */
    must(rammer_open(&MODEL, NULL, &shared) == RAMMER_OK, "the program cannot be opened");
    follow(rammer_own_stream(shared), 0, !run);
    if (!run) rammer_close(shared);
  }
  follow_hosts();
  for (n = 0; n < THREADS; n++) numbers[n] = n;
  for (n = 0; n < THREADS; n++) must(!pthread_create(threads + n, NULL, work, numbers + n), "no thread");
  for (n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
  rammer_close(shared);
  for (run = 0; run < RUNS; run++)
    for (port = 0; port < num_outputs; port++) free(wanted[run][port]);
  free(weights);
  printf("%d threads gave the same\n", THREADS);
  return 0;
}
