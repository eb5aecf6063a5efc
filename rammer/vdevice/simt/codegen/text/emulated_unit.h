INLINE void mk_$NAME(float *c, const float *a, const float *b) {
  const int tid = (int)threadIdx.x, lane = tid % $THREADS, first = tid - lane;
  for (int r = 0; r < $FIRST; r++) simt_fragment(tid)[r] = $ROUND(a[r]);
  for (int r = 0; r < $SECOND; r++) simt_fragment(tid)[$FIRST + r] = $ROUND(b[r]);
  simt_sync(2 + tid / $THREADS, $THREADS);
  for (int r = 0; r < $SUMS; r++) {
    const int row = $ROW, column = $COLUMN;
    for (int step = 0; step < $STEPS; step++) for (int term = 0; term < $TERMS; term++) {
      const float x = simt_fragment(first + $FROM_A)[$AT_A], y = simt_fragment(first + $FROM_B)[$FIRST + $AT_B];
      $ADD
    }
  }
  simt_sync(2 + tid / $THREADS, $THREADS);
}
