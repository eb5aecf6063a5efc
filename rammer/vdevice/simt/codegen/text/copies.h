// Rows of a constant into the block's own memory, where they stay. Nobody writes the one or reads the other meanwhile.
INLINE void mk_rows(const char *__restrict__ from, char *__restrict__ to, int bytes, int rows, int64_t from_step,
                    int to_step, int unit, int tid) {
  const int each = bytes / unit;
#pragma unroll 4
  for (int i = tid; i < rows * each; i += $THREADS) {
    const int row = i / each, at = i % each * unit;
    const char *source = from + row * from_step + at;
    char *target = to + row * to_step + at;
    if (unit == 16) *(vf *)target = *(const vf *)source;
    else if (unit == 4) *(float *)target = *(const float *)source;
    else *target = *source;
  }
}
MK_TASK void mk_keep(void *const *args, char *scratch, int tid) {
  mk_rows(MK_TENSOR(const char *, args, 0), scratch + (int64_t)args[1], (int)(int64_t)args[2], (int)(int64_t)args[3],
          (int64_t)args[4], (int)(int64_t)args[5], (int)(int64_t)args[6], tid);
}

