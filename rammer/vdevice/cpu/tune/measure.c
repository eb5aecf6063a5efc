// Times of single rTasks on one core, for the profiler. No libc header is included, as in runtime.c.

typedef long long i64;
typedef void (*kernel_fn)(char *const *args, char *scratch, long rtask, int *status);

// What a kernel is told besides its arguments, as in runtime.c: nothing to ask for ahead of its use, and nobody helps.
typedef struct { const char *from; i64 lines; } ahead;
typedef struct { int status; ahead next; i64 *taken; } context;

enum { PASSES = 4 };
enum { LINE = 64 };
#define EXPORT __attribute__((visibility("default")))

struct timespec { long sec, nsec; };
int clock_gettime(int, struct timespec *);
#ifdef __linux__
enum { MONOTONIC = 1 };
#else
enum { MONOTONIC = 6 };  // macOS
#endif

static i64 now_ns(void) {
  struct timespec t;
  clock_gettime(MONOTONIC, &t);
  return t.sec * 1000000000ll + t.nsec;
}

// Nanoseconds of one rTask: all rTasks in turn, the best of a few passes, as far as `limit_ns` goes. The first pass
// finds cold caches.
EXPORT double rammer_measure(kernel_fn kernel, char *const *args, char *scratch, i64 num_rtasks, i64 limit_ns) {
  context now = {0, {0, 0}, 0};
  double best = 0;
  i64 start = now_ns(), end = start, chunk = 1;
  for (int pass = 0; pass < PASSES && (!pass || end - start < limit_ns); pass++) {
    i64 done = 0, begin = end = now_ns();
    while (done < num_rtasks && end - start < limit_ns) {
      i64 stop = done + chunk < num_rtasks ? done + chunk : num_rtasks;
      for (; done < stop; done++) kernel(args, scratch, done, &now.status);
      i64 passed = now_ns();
      if (passed - end < 20000) chunk *= 2;  // so that reading the clock does not count
      end = passed;
    }
    double mean = (double)(end - begin) / done;
    if (!pass || (done == num_rtasks && mean < best)) best = mean;
  }
  return best;
}

// Nanoseconds of one rTask that finds its operands where its last run left them: each rTask several times at once, so
// often that reading the clock does not count.
EXPORT double rammer_measure_near(kernel_fn kernel, char *const *args, char *scratch, i64 num_rtasks, i64 limit_ns) {
  context now = {0, {0, 0}, 0};
  double best = 0;
  i64 start = now_ns();
  for (int pass = 0; pass < PASSES && (!pass || now_ns() - start < limit_ns); pass++) {
    double sum = 0;
    i64 done = 0;
    for (; done < num_rtasks && (!done || now_ns() - start < limit_ns); done++) {
      i64 before = now_ns();
      kernel(args, scratch, done, &now.status);
      i64 begin = now_ns(), took = begin - before, times = took > 20000 ? 1 : 20000 / (took + 100) + 1;
      for (i64 n = 0; n < times; n++) kernel(args, scratch, done, &now.status);
      sum += (double)(now_ns() - begin) / times;
    }
    if (!pass || (done == num_rtasks && sum / done < best)) best = sum / done;
  }
  return best;
}

// Nanoseconds of one rTask where all rTasks follow each other once.
static double sweep(kernel_fn kernel, char *const *args, char *scratch, i64 num_rtasks) {
  context now = {0, {0, 0}, 0};
  i64 begin = now_ns();
  for (i64 done = 0; done < num_rtasks; done++) kernel(args, scratch, done, &now.status);
  return (double)(now_ns() - begin) / num_rtasks;
}

// Nanoseconds of one rTask where all rTasks follow each other once, after `passing` bytes have passed through the core's
// own caches: operands are then in those that cores share, as in a run between other operators.
EXPORT double rammer_measure_shared(
    kernel_fn kernel, char *const *args, const char *passing, i64 bytes, char *scratch, i64 num_rtasks, i64 limit_ns) {
  double best = 0;
  i64 start = now_ns();
  for (int pass = 0; pass < PASSES && (!pass || now_ns() - start < limit_ns); pass++) {
    for (const char *line = passing; line < passing + bytes; line += LINE) *(const volatile char *)line;
    double mean = sweep(kernel, args, scratch, num_rtasks);
    if (!pass || mean < best) best = mean;
  }
  return best;
}

// To main memory: a line, and all lines before what follows.
#if defined(__AVX512VL__)  // whoever has that has clflushopt: many lines at a time, in a fortieth of the time
#define EVICT(line) __asm__ volatile(".byte 0x66; clflush (%0)" ::"r"(line) : "memory")
#define EVICTED() __asm__ volatile("mfence" ::: "memory")
#elif defined(__x86_64__)
#define EVICT(line) __asm__ volatile("clflush (%0)" ::"r"(line) : "memory")
#define EVICTED() __asm__ volatile("mfence" ::: "memory")
#elif defined(__aarch64__)
#define EVICT(line) __asm__ volatile("dc civac, %0" ::"r"(line) : "memory")
#define EVICTED() __asm__ volatile("dsb sy" ::: "memory")
#endif

// Bring the lines of some memory to main memory; 0 where the instruction set has nothing for it.
static int evict(char *const *args, const i64 *sizes, i64 num_args) {
#ifdef EVICT
  for (i64 n = 0; n < num_args; n++)
    for (char *line = args[n], *end = line + sizes[n]; line < end; line += LINE) EVICT(line);
  EVICTED();
  return 1;
#else
  return 0;
#endif
}

// Nanoseconds of one rTask where all rTasks follow each other once and find their operands in main memory: the best of
// a few passes, as far as `limit_ns` goes. 0 where operands cannot be brought there.
EXPORT double rammer_measure_far(
    kernel_fn kernel, char *const *args, const i64 *sizes, i64 num_args, char *scratch, i64 num_rtasks, i64 limit_ns) {
  double best = 0;
  i64 start = now_ns();
  for (int pass = 0; pass < PASSES && (!pass || now_ns() - start < limit_ns); pass++) {
    if (!evict(args, sizes, num_args)) return 0;
    double mean = sweep(kernel, args, scratch, num_rtasks);
    if (!pass || mean < best) best = mean;
  }
  return best;
}
