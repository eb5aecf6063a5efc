// A program with its tables and memory from a file, run once: for sanitizers, which want a process of
// their own, and for other machines, which have an emulator.

extern "C" {
int open(const char *, int, ...);
long read(int, void *, unsigned long), write(int, const void *, unsigned long);
void _exit(int);
}

struct simt_file {
  long veus, threads, shared, programs, memory, args, instructions, bounds, waits, seed;  // sizes in bytes
  long spans[64];
};

static SIMT_UNSEEN char *simt_section(int file, long bytes, unsigned long at_least) {
  char *to = simt_pages(bytes + at_least + 128);
  for (long got = 0, n; got < bytes; got += n)
    if ((n = read(file, to + got, bytes - got)) <= 0) _exit(3);
  return to;
}

int main(int argc, char **argv) {
  int file = open(argv[1], 0);
  simt_file *head = (simt_file *)simt_section(file, sizeof(simt_file), 0);
  char *memory = simt_section(file, head->memory, 128);
  long *args = (long *)simt_section(file, head->args, 0);
  for (long n = 0; n < head->args / 8; n++) args[n] += args[n] < -(1l << 60) ? 1l << 62 : (long)memory;
  simt_arguments a;
  a.stream = (const Instr *)simt_section(file, head->instructions, 0);
  int *bounds = (int *)simt_section(file, head->bounds, 0);
  a.waits = (const Wait *)simt_section(file, head->waits, 0);
  a.args = (void *const *)args;
  a.state = (unsigned *)simt_pages((1 + 2 * head->veus) * 128);
  a.limit_ns = 1;
  for (long p = 0; p < head->programs; p++) {
    a.bounds = bounds + p * head->veus;
    a.program = p;
    a.span = head->spans[p];
    int code = simt_run(&a, head->veus, head->threads, head->shared, 1, head->seed);
    if (code || a.state[2]) return 4;
  }
  return argc > 2 && write(1, memory, head->memory) != head->memory ? 5 : 0;
}
