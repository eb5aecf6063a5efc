template <int STEPS, int A_TERMS, int A_LINES, int B_TERMS, int B_LINES>
INLINE void mk_$NAME(float *c, const void *a, const void *b) {
  const int lane = (int)threadIdx.x % $THREADS;
  const int parts[][2] = {$PARTS};
  for (int n = 0; n < STEPS; n++) for (const auto &part : parts) {
    const uint64_t x = mk_matrix<A_TERMS, A_LINES>(a) + n * (A_TERMS >> 3) + part[0];
    const uint64_t y = mk_matrix<B_TERMS, B_LINES>(b) + n * (B_TERMS >> 3) + part[1];
    for (int r = 0; r < $SUMS; r++) {
      const int row = $ROW, column = $COLUMN;
      for (int term = 0; term < $TERMS; term++)
        c[r] += simt_number<$TYPE>(x, row, term) * simt_number<$TYPE>(y, column, term);
    }
  }
}
