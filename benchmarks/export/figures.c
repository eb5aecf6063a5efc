/* Measure the exported model MODEL, as told on the standard input. Argument: weights.bin, mapped at `open`.
 * `open N`: microseconds of the fastest of N opens; `run N`: mean microseconds of N runs in a row; `allocations N`:
 * calls of malloc and the like during N runs; `memory`: bytes that open and a run have added to the process, and bytes
 * that rammer_memory() names. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "rammer.h"

extern const rammer_model MODEL;
enum { MOST_PORTS = 64 };

/* The functions of libc behind the standard ones, which count. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
static long allocations;
static void count(void) { __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED); }
void *malloc(size_t bytes) { return count(), __libc_malloc(bytes); }
void *calloc(size_t number, size_t bytes) { return count(), __libc_calloc(number, bytes); }
void *realloc(void *block, size_t bytes) { return count(), __libc_realloc(block, bytes); }
void *memalign(size_t alignment, size_t bytes) { return count(), __libc_memalign(alignment, bytes); }
void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void **found, size_t alignment, size_t bytes) {
  return (*found = memalign(alignment, bytes)) ? 0 : 12;
}

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* Memory that this process has for itself: no code that it shares with others. Nothing is given back until the end, so
 * this is the peak, too. */
static long own_bytes(void) {
  char line[256];
  long kilobytes = 0, each;
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "Private_Clean: %ld", &each) == 1 || sscanf(line, "Private_Dirty: %ld", &each) == 1)
      kilobytes += each;
  if (file) fclose(file);
  return kilobytes * 1024;
}

static void must(int is_so, const char *what) {
  if (is_so) return;
  fprintf(stderr, "wrong: %s\n", what);
  exit(1);
}

int main(int argc, char **arguments) {
  const rammer_port *ports;
  const void *inputs[MOST_PORTS];
  void *outputs[MOST_PORTS];
  rammer_options options = RAMMER_DEFAULTS;
  rammer_program *program;
  char command[32];
  long number = 0, before, n;
  size_t port, num_ports = rammer_inputs(&MODEL, &ports), i;
  (void)argc;
  options.weights_file = arguments[1];
  must(num_ports <= MOST_PORTS && rammer_outputs(&MODEL, NULL) <= MOST_PORTS, "too many ports");
  for (port = 0; port < num_ports; port++) {
    char *at = aligned_alloc(64, (ports[port].bytes + 63) / 64 * 64);
    inputs[port] = memset(at, 0, ports[port].bytes);
    for (i = 0; ports[port].type == RAMMER_FLOAT32 && i < ports[port].bytes / 4; i++) {
      const float x = (float)(i * 37 % 101) / 50.0f - 1.0f;
      memcpy(at + 4 * i, &x, 4);
    }
  }
  num_ports = rammer_outputs(&MODEL, &ports);
  for (port = 0; port < num_ports; port++) {
    outputs[port] = aligned_alloc(64, (ports[port].bytes + 63) / 64 * 64);
    memset(outputs[port], 0, ports[port].bytes);
  }
  before = own_bytes();
  must(rammer_open(&MODEL, &options, &program) == RAMMER_OK, "the program cannot be opened");
  must(rammer_run(program, inputs, outputs) == RAMMER_OK, "a run failed");
  setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
  while (scanf("%31s %ld", command, &number) > 0) {
    if (!strcmp(command, "memory"))
      printf("%ld %lu\n", own_bytes() - before, (unsigned long)rammer_memory(&MODEL));
    else if (!strcmp(command, "open")) {
      double best = 1e30;
      for (n = 0; n < number; n++) {
        rammer_program *other;
        const double began = now_us();
        must(rammer_open(&MODEL, &options, &other) == RAMMER_OK, "the program cannot be opened");
        best = now_us() - began < best ? now_us() - began : best;
        rammer_close(other);
      }
      printf("%.3f\n", best);
    } else {
      const long begun = __atomic_load_n(&allocations, __ATOMIC_RELAXED);
      const double began = now_us();
      for (n = 0; n < number; n++) must(rammer_run(program, inputs, outputs) == RAMMER_OK, "a run failed");
      if (!strcmp(command, "run")) printf("%.3f\n", (now_us() - began) / (double)number);
      else printf("%ld\n", __atomic_load_n(&allocations, __ATOMIC_RELAXED) - begun);
    }
  }
  rammer_close(program);
  return 0;
}
