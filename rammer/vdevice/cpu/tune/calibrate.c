// What a core does when nothing holds it up: cycles, multiply-adds, reads, stores, and lines of another core.

typedef unsigned long long u64;
typedef long long i64;

#if defined(__AVX512F__)
enum { BYTES = 64 };
#elif defined(__AVX__)
enum { BYTES = 32 };
#else
enum { BYTES = 16 };
#endif
enum { CHAINS = 12 };  // more than latency x ports of any current core, and few enough for 16 registers
enum { LINE = 64 };

typedef float vec __attribute__((vector_size(BYTES)));

#define EXPORT __attribute__((visibility("default")))

// Floating-point operations done by `iterations` rounds; the caller times it.
EXPORT double rammer_multiply_add(i64 iterations, float *sink) {
  vec acc[CHAINS], a, b;
  for (int i = 0; i < BYTES / 4; i++) a[i] = 0.999f, b[i] = 0.001f;
  for (int c = 0; c < CHAINS; c++) acc[c] = a + (float)c;
  for (i64 n = 0; n < iterations; n++)
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) acc[c] = acc[c] * a + b;
  for (int c = 1; c < CHAINS; c++) acc[0] += acc[c];
  *sink = acc[0][0];
  return 2.0 * iterations * CHAINS * (BYTES / 4);
}

// Bytes read by `passes` over a buffer of `bytes`, a multiple of 8 vectors.
EXPORT double rammer_read(const char *buffer, i64 bytes, i64 passes, float *sink) {
  vec acc[8] = {0};
  for (i64 p = 0; p < passes; p++) {
    const vec *v = (const vec *)buffer;
    for (i64 i = 0; i < bytes / BYTES; i += 8)
#pragma GCC unroll 8
      for (int c = 0; c < 8; c++) acc[c] += v[i + c];
    __asm__ volatile("" ::: "memory");
  }
  for (int c = 1; c < 8; c++) acc[0] += acc[c];
  *sink = acc[0][0];
  return (double)bytes * passes;
}

// The same of lines that are asked for as what is read once, as far ahead as kernels do (prefetch.py).
EXPORT double rammer_read_once(const char *buffer, i64 bytes, i64 passes, float *sink) {
  vec acc[8] = {0};
  for (i64 p = 0; p < passes; p++)
    for (i64 i = 0; i < bytes; i += 8 * BYTES) {
#pragma GCC unroll 8
      for (int at = 0; at < 8 * BYTES; at += LINE) __builtin_prefetch(buffer + i + at + 8192, 0, 0);
#pragma GCC unroll 8
      for (int c = 0; c < 8; c++) acc[c] += *(const vec *)(buffer + i + c * BYTES);
    }
  for (int c = 1; c < 8; c++) acc[0] += acc[c];
  *sink = acc[0][0];
  return (double)bytes * passes;
}

// Cycles of `iterations` rounds of additions that wait for each other, one in a cycle.
EXPORT double rammer_count(i64 iterations, i64 *sink) {
  i64 x = 0, one = 1;
  __asm__ volatile("" : "+r"(one));  // a register: some cores add constants in no time
  for (i64 n = 0; n < iterations; n++)
#pragma GCC unroll 64
    for (int c = 0; c < 64; c++) {
      x += one;
      __asm__ volatile("" : "+r"(x));
    }
  *sink = x;
  return 64.0 * iterations;
}

// Bytes stored by `passes` over a buffer of `bytes`, a multiple of 8 vectors.
EXPORT double rammer_fill(char *buffer, i64 bytes, i64 passes, float *sink) {
  vec v = {*sink};
  for (i64 p = 0; p < passes; p++) {
    for (i64 i = 0; i < bytes / BYTES; i++) ((vec *)buffer)[i] = v;
    __asm__ volatile("" ::: "memory");
  }
  return (double)bytes * passes;
}

EXPORT void rammer_write(char *buffer, i64 bytes) {
  for (i64 at = 0; at < bytes; at += LINE) *(volatile i64 *)(buffer + at) = at;
}

// Two threads take turns: number `side` of them waits until the other one has counted a line up, and does the same.
EXPORT void rammer_take_turns(u64 *line, i64 rounds, i64 side) {
  for (i64 r = 0; r < rounds; r++) {
    while (__atomic_load_n(line, __ATOMIC_ACQUIRE) != (u64)(2 * r + side)) __asm__ volatile("" ::: "memory");
    __atomic_store_n(line, (u64)(2 * r + side + 1), __ATOMIC_RELEASE);
  }
}
