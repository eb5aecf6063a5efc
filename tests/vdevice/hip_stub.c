/* A libamdhip64.so without a GPU: device memory is the host's, and a launch runs a program's text, which the emulator
   compiled: a code object is 64 bytes of an ELF file's head, then the path of that library. $STUB_FAIL names a function
   that fails, $STUB_CODE its error code, $STUB_GPU the GPU in whose memory everything lies. */
typedef unsigned long size_t;
typedef void *P;
void *dlopen(const char *, int), *dlsym(void *, const char *), *calloc(size_t, size_t), *memcpy(void *, const void *, size_t);
void *memset(void *, int, size_t);
void free(void *);
int dlclose(void *);
char *getenv(const char *);
int strcmp(const char *, const char *), atoi(const char *), memcmp(const void *, const void *, size_t);
char *strcpy(char *, const char *);

/* Read by the tests. */
int stub_memory, stub_modules, stub_events, stub_streams, stub_graphs;
int stub_launches, stub_cooperative, stub_mallocs, stub_captures, stub_replays, stub_waits, stub_uncached, stub_blocks = 1;

static int code(const char *name) {
  const char *fail = getenv("STUB_FAIL"), *number = getenv("STUB_CODE");
  return fail && !strcmp(fail, name) && number ? atoi(number) : 0;
}
#define CHECK if (code(__func__)) return code(__func__)

int hipGetDeviceCount(int *n) { CHECK; *n = 1; return 0; }
int hipSetDevice(int d) { CHECK; return d ? 101 : 0; }
int hipGetDevicePropertiesR0600(P p, int d) {
  CHECK;
  char *c = p;
  const char *arch = getenv("STUB_ARCH");
  memset(p, 0, 1472);
  strcpy(c, "Stub MI50");
  *(size_t *)(c + 288) = 16ul << 30;
  *(int *)(c + 308) = 64;
  *(int *)(c + 348) = 1725000;
  *(int *)(c + 388) = 60;
  *(int *)(c + 608) = 1000000;
  *(int *)(c + 612) = 4096;
  *(int *)(c + 616) = 4 << 20;
  *(int *)(c + 688) = 1;
  strcpy(c + 1160, arch ? arch : "gfx906:sramecc+:xnack-");
  return d ? 101 : 0;
}
int hipDeviceGetAttribute(int *v, int a, int d) { CHECK; *v = 25000; return 0; }
int hipPointerGetAttributes(int *p, P at) { CHECK; p[0] = 2; p[1] = getenv("STUB_GPU") ? atoi(getenv("STUB_GPU")) : 0; return 0; }

int hipMalloc(P *p, size_t n) {
  CHECK;
  *p = calloc(1, n + 128);
  memset(*p, 255, n);
  stub_memory++;
  stub_mallocs++;
  return 0;
}
int hipExtMallocWithFlags(P *p, size_t n, unsigned flags) { stub_uncached += flags == 3; return hipMalloc(p, n); }
int hipFree(P p) { stub_memory--; free(p); return 0; }
int hipMemcpy(P d, P s, size_t n, int k) { CHECK; memcpy(d, s, n); return 0; }
int hipMemcpyAsync(P d, P s, size_t n, int k, P stream) { CHECK; memcpy(d, s, n); return stream ? 0 : 1; }
int hipMemsetAsync(P d, int v, size_t n, P stream) { CHECK; memset(d, v, n); return stream ? 0 : 1; }
int hipDeviceSynchronize(void) { CHECK; return 0; }

int hipStreamCreateWithFlags(P *s, unsigned flags) { CHECK; *s = calloc(1, 16); stub_streams++; return flags == 1 ? 0 : 1; }
int hipStreamDestroy(P s) { stub_streams--; free(s); return 0; }
int hipStreamSynchronize(P s) { CHECK; return 0; }
int hipStreamWaitEvent(P s, P e, unsigned flags) { CHECK; stub_waits++; return 0; }
int hipEventCreate(P *e) { CHECK; *e = calloc(1, 16); stub_events++; return 0; }
int hipEventRecord(P e, P s) { CHECK; return 0; }
int hipEventSynchronize(P e) { CHECK; return 0; }
int hipEventDestroy(P e) { stub_events--; free(e); return 0; }
int hipEventElapsedTime(float *ms, P a, P b) { CHECK; *ms = 0.5f; return 0; }

int hipModuleLoadData(P *m, const char *image) {
  CHECK;
  if (memcmp(image, "\177ELF", 4)) return 200;
  *m = dlopen(image + 64, 2);
  stub_modules += *m != 0;
  return *m ? 0 : 200;
}
int hipModuleUnload(P m) { stub_modules--; return dlclose(m); }
int hipModuleGetFunction(P *f, P m, const char *name) {
  CHECK;
  *f = dlsym(m, "simt_run");
  return strcmp(name, "rammer_run") ? 500 : 0;
}
int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *n, P f, int threads, size_t shared) { CHECK; *n = stub_blocks; return 0; }

/* While a stream is captured, launches are kept, to be run with the graph. */
struct launch { int (*run)(long *, long, long, long, long, long); long args[8], blocks, threads, shared; };
struct graph { struct launch launches[64]; int count; } *capturing;

static int go(struct launch *l) { return l->run(l->args, l->blocks, l->threads, l->shared, 1, 0) ? 719 : 0; }
static int launch(P f, unsigned blocks, unsigned threads, unsigned shared, P stream, P *v) {
  struct launch l = {f, {*(long *)v[0], *(long *)v[1], *(long *)v[2], *(long *)v[3], *(long *)v[4], *(int *)v[5], *(int *)v[6],
                     *(long *)v[7]}, blocks, threads, shared};
  if (!stream) return 1;
  stub_launches++;
  if (capturing) capturing->launches[capturing->count++] = l;
  return capturing ? 0 : go(&l);
}
int hipModuleLaunchKernel(P f, unsigned a, unsigned b, unsigned c, unsigned x, unsigned y, unsigned z, unsigned shared,
                          P s, P *v, P *extra) {
  CHECK;
  return b * c * y * z != 1 || extra ? 1 : launch(f, a, x, shared, s, v);
}
int hipModuleLaunchCooperativeKernel(P f, unsigned a, unsigned b, unsigned c, unsigned x, unsigned y, unsigned z,
                                     unsigned shared, P s, P *v) {
  CHECK;
  stub_cooperative++;
  return b * c * y * z != 1 ? 1 : launch(f, a, x, shared, s, v);
}
int hipStreamBeginCapture(P s, int mode) {
  CHECK;
  if (capturing || mode != 2) return 1;
  capturing = calloc(1, sizeof *capturing);
  stub_captures++;
  stub_graphs++;
  return 0;
}
int hipStreamEndCapture(P s, P *graph) { CHECK; *graph = capturing; capturing = 0; return *graph ? 0 : 1; }
int hipGraphInstantiateWithFlags(P *ready, struct graph *g, unsigned long flags) {
  CHECK;
  *ready = memcpy(calloc(1, sizeof *g), g, sizeof *g);
  stub_graphs++;
  return 0;
}
int hipGraphLaunch(struct graph *g, P stream) {
  CHECK;
  stub_replays++;
  for (int n = 0; n < g->count; n++)
    if (go(&g->launches[n])) return 719;
  return 0;
}
int hipGraphDestroy(P g) { stub_graphs--; free(g); return 0; }
int hipGraphExecDestroy(P g) { stub_graphs--; free(g); return 0; }
int hipInit(unsigned flags) { return 0; }
