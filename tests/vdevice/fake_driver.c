/* A GPU's driver without a GPU, for exported projects: libcuda.so.1, or with -DHIP libamdhip64.so.
 *
 * A launch runs a program's text, which the emulator compiled: $FAKE_CODE is that library. Work is done when the stream is
 * synchronised, so that an array which is given away too early is seen. Memory of the GPU cannot be touched between calls.
 * $FAKE_FAIL is NAME or NAME:N: the N-th call of that function fails. $FAKE_MULTIPROCESSORS is their number. What is not
 * given back when the process ends is told, with exit status 7. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef HIP
#define NAME(cuda, hip) hip
enum { MULTIPROCESSORS = 63, CLOCK_KHZ = 10017 };
#else
#define NAME(cuda, hip) cuda
enum { MULTIPROCESSORS = 16, CLOCK_KHZ = -1 };
#endif
enum { MOST = 64, NUM_GPUS = 2, FAILED = 999, DYNAMIC_SHARED = 8, WORDS = 8 };

typedef unsigned long long address;
typedef struct {
  const void *stream, *bounds, *waits, *args;
  void *state;
  long program, span;
  unsigned long long limit_ns;
} arguments; /* simt_arguments of the emulator */
typedef struct {
  enum { COPY, CLEAR, LAUNCH } what;
  void *to;
  const void *from;
  size_t bytes;
  arguments given;
  long blocks, threads, shared;
} job;

static struct { char *at; size_t bytes; } memory[MOST];
static struct { int used, jobs; job queue[MOST]; } streams[MOST];
static int contexts, modules;
int fake_reads; /* copies from the GPU */
static __thread void *current;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int (*run)(const arguments *, long, long, long, long, long);

static int fails(const char *name) {
  static int calls;
  const char *wanted = getenv("FAKE_FAIL"), *colon = wanted ? strchr(wanted, ':') : NULL;
  const size_t length = colon ? (size_t)(colon - wanted) : wanted ? strlen(wanted) : 0;
  return length == strlen(name) && !memcmp(wanted, name, length) && ++calls == (colon ? atoi(colon + 1) : 1);
}
static int take(void) { return pthread_mutex_lock(&lock); }
static void give(int *held) { pthread_mutex_unlock(&lock + *held); }
#define CHECK(is_right) \
  __attribute__((cleanup(give))) int held = take(); \
  if (fails(__func__) || !(is_right)) return FAILED

static void allow(int access) {
  for (int n = 0; n < MOST; n++)
    if (memory[n].at) mprotect(memory[n].at, memory[n].bytes, access);
}

static int on_gpu(address at, size_t bytes) {
  for (int n = 0; n < MOST; n++)
    if (memory[n].at && (char *)at >= memory[n].at && (char *)at + bytes <= memory[n].at + memory[n].bytes) return 1;
  return 0;
}

static int is_stream(const int *stream) {
  for (int n = 0; n < MOST; n++)
    if (stream == &streams[n].used) return streams[n].used;
  return 0;
}

static int is_busy(const int *stream) {
  for (int n = 0; n < MOST; n++)
    if (stream == &streams[n].used) return streams[n].jobs;
  return 0;
}

/* Whether work that has not begun copies from or to a block. */
static int is_used(const char *begin, size_t bytes) {
  for (int n = 0; n < MOST; n++)
    for (const job *j = streams[n].queue; j < streams[n].queue + streams[n].jobs; j++) {
      const char *to = j->to, *from = j->from;
      if ((to >= begin && to < begin + bytes) || (from >= begin && from < begin + bytes)) return 1;
    }
  return 0;
}

static int enqueue(int *stream, job one) {
  for (int n = 0; n < MOST; n++)
    if (stream == &streams[n].used && streams[n].jobs < MOST) return streams[n].queue[streams[n].jobs++] = one, 0;
  return FAILED;
}

int NAME(cuInit, hipInit)(unsigned flags) { CHECK(!flags); return 0; }
int NAME(cuDeviceGet, hipDeviceGet)(int *device, int number) {
  CHECK(number >= 0 && number < NUM_GPUS);
  *device = number;
  return 0;
}
int NAME(cuDeviceGetAttribute, hipDeviceGetAttribute)(int *value, int which, int device) {
  const char *count = getenv("FAKE_MULTIPROCESSORS");
  CHECK(device >= 0 && device < NUM_GPUS && (which == MULTIPROCESSORS || which == CLOCK_KHZ));
  *value = which == CLOCK_KHZ ? 100000 : count ? atoi(count) : 4;
  return 0;
}
int NAME(cuDevicePrimaryCtxRetain, hipDevicePrimaryCtxRetain)(void **context, int device) {
  CHECK(device >= 0);
  contexts++;
  *context = &contexts;
  return 0;
}
int NAME(cuDevicePrimaryCtxRelease_v2, hipDevicePrimaryCtxRelease)(int device) {
  CHECK(device >= 0);
  contexts--;
  return 0;
}
int NAME(cuCtxGetCurrent, hipCtxGetCurrent)(void **context) {
  CHECK(contexts);
  *context = current;
  return 0;
}
int NAME(cuCtxSetCurrent, hipCtxSetCurrent)(void *context) {
  CHECK(!context || (context == &contexts && contexts));
  current = context;
  return 0;
}
int NAME(cuStreamCreate, hipStreamCreateWithFlags)(void **stream, unsigned flags) {
  int n = 0;
  CHECK(current && flags == 1);
  while (streams[n].used) n++;
  streams[n].used = 1;
  *stream = &streams[n].used;
  return 0;
}
int NAME(cuStreamDestroy_v2, hipStreamDestroy)(void *stream) {
  CHECK(current && is_stream(stream) && !is_busy(stream));
  *(int *)stream = 0;
  return 0;
}
int NAME(cuStreamSynchronize, hipStreamSynchronize)(void *stream) {
  int failed = 0, at = 0;
  CHECK(current && is_stream(stream));
  while (stream != &streams[at].used) at++;
  const int count = streams[at].jobs;
  streams[at].jobs = 0;
  allow(PROT_READ | PROT_WRITE);
  for (int n = 0; n < count && !failed; n++) {
    const job *j = streams[at].queue + n;
    if (j->what == CLEAR) memset(j->to, 0, j->bytes);
    else if (j->what == COPY) memcpy(j->to, j->from, j->bytes);
    else failed = run(&j->given, j->blocks, j->threads, j->shared, 1, 0);
  }
  allow(PROT_NONE);
  return failed ? FAILED : 0;
}
int NAME(cuMemAlloc_v2, hipMalloc)(address *at, size_t bytes) {
  CHECK(current && bytes);
  for (int n = 0; n < MOST; n++) {
    if (memory[n].at) continue;
    memory[n].bytes = bytes;
    memory[n].at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory[n].at, 0xff, bytes);
    mprotect(memory[n].at, bytes, PROT_NONE);
    *at = (address)memory[n].at;
    return 0;
  }
  return FAILED;
}
int NAME(cuMemFree_v2, hipFree)(address at) {
  CHECK(current);
  for (int n = 0; n < MOST; n++)
    if ((address)memory[n].at == at && at && !is_used(memory[n].at, memory[n].bytes)) {
      munmap(memory[n].at, memory[n].bytes);
      memory[n].at = NULL;
      return 0;
    }
  return FAILED;
}
int NAME(cuMemsetD8Async, hipMemsetD8Async)(address to, unsigned char value, size_t bytes, void *stream) {
  CHECK(current && !value && is_stream(stream) && on_gpu(to, bytes));
  return enqueue(stream, (job){.what = CLEAR, .to = (void *)to, .bytes = bytes});
}
int NAME(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)(address to, const void *from, size_t bytes, void *stream) {
  CHECK(current && bytes && is_stream(stream) && on_gpu(to, bytes) && !on_gpu((address)from, 1));
  return enqueue(stream, (job){.what = COPY, .to = (void *)to, .from = from, .bytes = bytes});
}
int NAME(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)(void *to, address from, size_t bytes, void *stream) {
  CHECK(current && bytes && is_stream(stream) && on_gpu(from, bytes) && !on_gpu((address)to, 1));
  fake_reads++;
  return enqueue(stream, (job){.what = COPY, .to = to, .from = (const void *)from, .bytes = bytes});
}
int NAME(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)(address to, address from, size_t bytes, void *stream) {
  CHECK(current && bytes && is_stream(stream) && on_gpu(from, bytes) && on_gpu(to, bytes));
  return enqueue(stream, (job){.what = COPY, .to = (void *)to, .from = (const void *)from, .bytes = bytes});
}
int NAME(cuModuleLoadData, hipModuleLoadData)(void **module, const void *code) {
  void *library = (dlopen("libm.so.6", RTLD_NOW | RTLD_GLOBAL), dlopen(getenv("FAKE_CODE"), RTLD_NOW));
  CHECK(current && !memcmp(code, "\177ELF", 4) && library);
  void *found = dlsym(library, "simt_run");
  memcpy(&run, &found, sizeof run);
  modules++;
  *module = library;
  return 0;
}
int NAME(cuModuleUnload, hipModuleUnload)(void *module) {
  CHECK(current);
  modules--;
  return dlclose(module);
}
int NAME(cuModuleGetFunction, hipModuleGetFunction)(void **function, void *module, const char *name) {
  CHECK(current && module && !strcmp(name, "rammer_run"));
  *function = &run;
  return 0;
}
int NAME(cuOccupancyMaxActiveBlocksPerMultiprocessor, hipModuleOccupancyMaxActiveBlocksPerMultiprocessor)(
    int *blocks, void *function, int threads, size_t shared) {
  CHECK(current && function == &run && threads > 0 && shared < 1 << 20);
  *blocks = 1;
  return 0;
}
#ifndef HIP
int cuFuncSetAttribute(void *function, int which, int value) {
  CHECK(current && function == &run && which == DYNAMIC_SHARED && value >= 0);
  return 0;
}
#endif
int NAME(cuLaunchCooperativeKernel, hipModuleLaunchCooperativeKernel)(
    void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned shared,
    void *stream, void **given) {
  CHECK(current && function == &run && y == 1 && z == 1 && ty == 1 && tz == 1 && is_stream(stream));
  job one = {.what = LAUNCH, .blocks = x, .threads = threads, .shared = shared};
  one.given = (arguments){*(void **)given[0], *(void **)given[1], *(void **)given[2], *(void **)given[3],
                          *(void **)given[4], *(int *)given[5],   *(int *)given[6],
                          *(unsigned long long *)given[7]};
  return enqueue(stream, one);
}

__attribute__((destructor)) static void tell(void) {
  int blocks = 0, open = 0;
  for (int n = 0; n < MOST; n++) blocks += memory[n].at != NULL, open += streams[n].used;
  if (!contexts && !modules && !blocks && !open && !current) return;
  fprintf(stderr, "left: %d contexts, %d current, %d streams, %d modules, %d blocks of memory\n", contexts, current != NULL, open,
          modules, blocks);
  fflush(NULL);
  _exit(7);
}
