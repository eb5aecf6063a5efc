// The two loops that measure a core: dependent-chain FMAs, and a streaming read.
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#define CHAINS 12 // more than latency x ports of any current core, and few enough for 16 registers

typedef float vec __attribute__((vector_size(BYTES)));

// Floating-point operations done by `iterations` rounds; the caller times it.
double fma_flops(long iterations, float *sink) {
    vec acc[CHAINS], a, b;
    for (int i = 0; i < BYTES / 4; i++) a[i] = 0.999f, b[i] = 0.001f;
    for (int c = 0; c < CHAINS; c++) acc[c] = a + (float)c;
    for (long n = 0; n < iterations; n++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) acc[c] = acc[c] * a + b;
    for (int c = 1; c < CHAINS; c++) acc[0] += acc[c];
    *sink = acc[0][0];
    return 2.0 * iterations * CHAINS * (BYTES / 4);
}

// Bytes read by `passes` over a buffer of `bytes`, a multiple of 8 vectors.
double read_bytes(const char *buffer, long bytes, long passes, float *sink) {
    vec acc[8] = {0};
    for (long p = 0; p < passes; p++) {
        const vec *v = (const vec *)buffer;
        for (long i = 0; i < bytes / BYTES; i += 8)
#pragma GCC unroll 8
            for (int c = 0; c < 8; c++) acc[c] += v[i + c];
        __asm__ volatile("" ::: "memory");
    }
    for (int c = 1; c < 8; c++) acc[0] += acc[c];
    *sink = acc[0][0];
    return (double)bytes * passes;
}
