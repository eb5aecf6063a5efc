/* A libamdhip64.so without a GPU: device memory is the host's, and a launch runs the program's text, which the
   emulator compiled into $STUB_PROGRAM. $STUB_FAIL names a function that fails, $STUB_CODE its error code. */
typedef unsigned long size_t;
typedef void *P;
void *dlopen(const char *, int), *dlsym(void *, const char *), *calloc(size_t, size_t), *memcpy(void *, const void *, size_t);
void *memset(void *, int, size_t);
void free(void *);
char *getenv(const char *);
int strcmp(const char *, const char *), atoi(const char *), memcmp(const void *, const void *, size_t);
char *strcpy(char *, const char *);

int stub_allocated, stub_modules, stub_events, stub_launches, stub_cooperative; /* read by the test */

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
int hipMalloc(P *p, size_t n) { CHECK; *p = calloc(1, n + 128); stub_allocated += *p != 0; return *p ? 0 : 2; }
int hipFree(P p) { stub_allocated--; free(p); return 0; }
int hipMemcpy(P d, P s, size_t n, int k) { CHECK; memcpy(d, s, n); return 0; }
int hipModuleLoadData(P *m, const void *image) {
  CHECK;
  *m = (P)0x1000;
  stub_modules++;
  return memcmp(image, "\177ELF", 4) ? 200 : 0;
}
int hipModuleUnload(P m) { stub_modules--; return 0; }
int hipModuleGetFunction(P *f, P m, const char *name) { CHECK; *f = (P)0x2000; return strcmp(name, "rammer_run") ? 500 : 0; }
static int launch(unsigned blocks, unsigned threads, unsigned shared, P *v) {
  long run[8] = {*(long *)v[0], *(long *)v[1], *(long *)v[2], *(long *)v[3], *(long *)v[4], *(int *)v[5], *(int *)v[6],
                 *(long *)v[7]};
  int (*simt)(long *, long, long, long, long, long) = dlsym(dlopen(getenv("STUB_PROGRAM"), 2), "simt_run");
  stub_launches++;
  return simt(run, blocks, threads, shared, 1, 0) ? 719 : 0;
}
int hipModuleLaunchKernel(P f, unsigned a, unsigned b, unsigned c, unsigned x, unsigned y, unsigned z, unsigned shared,
                          P s, P *v, P *extra) {
  CHECK;
  return b * c * y * z != 1 || extra || f != (P)0x2000 ? 1 : launch(a, x, shared, v);
}
#ifndef OLD
int hipModuleLaunchCooperativeKernel(P f, unsigned a, unsigned b, unsigned c, unsigned x, unsigned y, unsigned z,
                                     unsigned shared, P s, P *v) {
  CHECK;
  stub_cooperative++;
  return b * c * y * z != 1 || f != (P)0x2000 ? 1 : launch(a, x, shared, v);
}
#endif
int hipEventCreate(P *e) { CHECK; *e = calloc(1, 16); stub_events++; return 0; }
int hipEventRecord(P e, P s) { CHECK; return 0; }
int hipEventSynchronize(P e) { CHECK; return 0; }
int hipEventDestroy(P e) { stub_events--; free(e); return 0; }
int hipEventElapsedTime(float *ms, P a, P b) { CHECK; *ms = 0.5f; return 0; }
int hipInit(unsigned flags) { return 0; }
