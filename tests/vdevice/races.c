// The runtime under a sanitizer: programs of 4, 2 and 3 vEUs, each called by a thread of its own. The first two share a
// pool, which grows while one of them runs; the third has another pool on the same turn. Every program has three
// rPrograms, in which every rTask waits for the row before it; of those in every second row others may do parts, and the
// first one is slow. Now and then workers rest, and the caller walks their lanes.
#include "system.c"
#include "runtime.c"
enum { PROGRAMS = 3, ROWS = 40, RUNS = 200, MOST = 4, PARTS = 6, SLOW_NS = 20000, RESTS_NS = 500000 };
void *aligned_alloc(unsigned long, unsigned long);
void *memset(void *, int, unsigned long);
void free(void *);
int nanosleep(const struct timespec *, struct timespec *);

typedef struct {
  pool *p;
  int veus, failure;
  long cell[ROWS + 1][MOST][PARTS];
  slot slots[PROGRAMS * MOST * ROWS * 2];
  position waits[PROGRAMS * MOST * ROWS * MOST];
  i64 bounds[PROGRAMS * MOST + 1], cpus[MOST], report[9];
  u64 times[PROGRAMS * MOST * ROWS * 4];
  char scratch[MOST * 128];
  char *args[1];
  table t;
} net;

static void row(char *const *args, char *scratch, i64 rtask, int *status) {
  net *n = (net *)args[0];
  i64 *taken = ((context *)status)->taken;
  *scratch = 1;  // which is the vEU's own
  for (i64 k = -1;;) {
    k = taken ? __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED) : k + 1;
    if (k >= PARTS) return;
    long sum = *scratch;
    for (int v = 0; v < n->veus; v++) sum += n->cell[rtask / n->veus][v][k];
    n->cell[rtask / n->veus + 1][rtask % n->veus][k] = sum % 1000003;
    if (taken && rtask % n->veus == 0)
      for (i64 since = now_ns(); now_ns() - since < SLOW_NS;) pause();
  }
}
static const kernel_fn kernels[] = {row};
static const ahead nothing;

static void draw(net *n, pool *p, int veus) {
  int at = 0, w = 0;
  for (int lane = 0; lane < PROGRAMS * veus; lane++) {
    n->bounds[lane] = at;
    for (int k = 0; k < ROWS; k++) {
      int first = w;
      for (int v = 0; k && v < veus; v++)
        if (v != lane % veus) n->waits[w++] = (position){v, 2 * k - 1};
      n->slots[at++] = (slot){.kernel = -1, .rtask = w - first, .args = first};
      n->slots[at++] = (slot){.rtask = k * veus + lane % veus, .flags = PUBLISH, .tickets = k % 2 ? PARTS : 0};
    }
  }
  n->bounds[PROGRAMS * veus] = at;
  for (int v = 0; v < veus; v++) n->cpus[v] = -1;
  n->args[0] = (char *)n;
  n->p = p;
  n->veus = veus;
  n->t = (table){.num_veus = veus, .num_programs = PROGRAMS, .bounds = n->bounds, .slots = n->slots, .waits = n->waits,
                 .kernels = kernels, .args = n->args, .aheads = &nothing, .scratch = n->scratch, .scratch_stride = 128,
                 .num_cpus = veus, .cpus = n->cpus, .spin_ns = 200000, .watchdog_ns = 20000000000ll, .patience = 32, .times = n->times,
                 .report = n->report};
}

static void *call(void *argument) {
  net *n = argument;
  for (int run = 0; run < RUNS && !n->failure; run++) {
    for (int v = 0; v < n->veus; v++)
      for (int k = 0; k < PARTS; k++) n->cell[0][v][k] = run;
    for (int v = 1; v < n->veus && run % 5 == 1; v++) {
      const i64 until = now_ns() + RESTS_NS;
      STORE(&n->p->lanes[v].rests_until, until);
      STORE(&n->p->rests_until, until);
    }
    if (rammer_run(n->p, &n->t, run % 3 == 0)) n->failure = 1;
    long wanted = run;
    for (int k = 0; k < ROWS; k++) wanted = (1 + n->veus * wanted) % 1000003;
    for (int v = 0; v < n->veus; v++)
      for (int k = 0; k < PARTS; k++)
        if (n->cell[ROWS][v][k] != wanted) n->failure = 2;
    struct timespec pause = {0, 1000000};
    if (run % 20 == 0) nanosleep(&pause, 0);  // long enough for the workers to fall asleep
  }
  return 0;
}

static pool *open_pool(turn *of, int veus, const i64 *cpus) {
  unsigned long size = (rammer_pool_bytes(MOST) + 127) / 128 * 128;
  pool *p = memset(aligned_alloc(128, size), 0, size);
  rammer_open(p, of);
  return rammer_grow(p, veus, cpus) ? 0 : p;
}

int main(void) {
  static turn of;
  static net wide, narrow, other;
  i64 cpus[MOST] = {-1, -1, -1, -1};
  pool *shared = open_pool(&of, 2, cpus), *own = open_pool(&of, 3, cpus);
  if (!shared || !own) return 1;
  draw(&narrow, shared, 2);
  draw(&wide, shared, 4);
  draw(&other, own, 3);
  thread callers[3];
  opaque attributes;
  pthread_attr_init(&attributes);
  if (pthread_create(&callers[0], &attributes, call, &narrow)) return 1;
  if (pthread_create(&callers[1], &attributes, call, &other)) return 1;
  struct timespec pause = {0, 3000000};
  nanosleep(&pause, 0);
  if (rammer_grow(shared, 4, cpus)) return 1;
  if (pthread_create(&callers[2], &attributes, call, &wide)) return 1;
  for (int n = 0; n < 3; n++) pthread_join(callers[n], 0);
  if (narrow.failure || wide.failure || other.failure) return 2;
  if (!rammer_helped(shared, 1) || !rammer_helped(own, 2)) return 5;
  if (!rammer_close(shared, 0) || !rammer_close(own, 0)) return 3;
  if (rammer_run(shared, &wide.t, 0) != CLOSED) return 4;
  free(shared);
  free(own);
  return 0;
}
