// The runtime under a sanitizer: four vEUs, three rPrograms, every rTask waits for the row before it.
#include "runtime.c"
enum { VEUS = 4, PROGRAMS = 3, ROWS = 40, RUNS = 200 };
void *aligned_alloc(unsigned long, unsigned long);
void *memset(void *, int, unsigned long);
void free(void *);
int nanosleep(const struct timespec *, struct timespec *);

static long cell[ROWS + 1][VEUS];

static void row(char *const *args, char *scratch, long rtask, int *status) {
  (void)args, (void)scratch, (void)status;
  long sum = 1;
  for (int v = 0; v < VEUS; v++) sum += cell[rtask / VEUS][v];
  cell[rtask / VEUS + 1][rtask % VEUS] = sum % 1000003;
}

int main(void) {
  static slot slots[PROGRAMS * VEUS * ROWS * 2];
  static position waits[PROGRAMS * VEUS * ROWS * VEUS];
  static i64 bounds[PROGRAMS * VEUS + 1];
  static u64 times[PROGRAMS * VEUS * ROWS * 4];
  static char scratch[VEUS * 128];
  int n = 0, w = 0;
  for (int lane = 0; lane < PROGRAMS * VEUS; lane++) {
    bounds[lane] = n;
    for (int k = 0; k < ROWS; k++) {
      int first = w;
      for (int v = 0; k && v < VEUS; v++)
        if (v != lane % VEUS) waits[w++] = (position){v, 2 * k - 1};
      slots[n++] = (slot){-1, w - first, first, 0};
      slots[n++] = (slot){0, k * VEUS + lane % VEUS, 0, PUBLISH};
    }
  }
  bounds[PROGRAMS * VEUS] = n;
  kernel_fn kernels[] = {row};
  char *args[] = {0};
  i64 cpus[VEUS] = {-1, -1, -1, -1};
  table t = {VEUS, PROGRAMS, bounds, slots, waits, kernels, args, scratch, 128, cpus, 200000, 20000000000ll, 32, times};
  unsigned long size = (rammer_pool_bytes(VEUS) + 127) / 128 * 128;
  pool *p = memset(aligned_alloc(128, size), 0, size);
  if (rammer_open(p, &t)) return 1;
  for (int run = 0; run < RUNS; run++) {
    for (int v = 0; v < VEUS; v++) cell[0][v] = run;
    if (rammer_run(p, run % 3 == 0)) return 2;
    long wanted = run;
    for (int k = 0; k < ROWS; k++) wanted = (1 + VEUS * wanted) % 1000003;
    for (int v = 0; v < VEUS; v++)
      if (cell[ROWS][v] != wanted) return 3;
    struct timespec pause = {0, 1000000};
    if (run % 20 == 0) nanosleep(&pause, 0);  // long enough for the workers to fall asleep
  }
  int closed = rammer_close(p);
  free(p);
  return closed ? 0 : 4;
}
