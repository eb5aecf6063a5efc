#define MK_BLOCKS $CLUSTER
INLINE void mk_open_boxes(char *scratch, int tid) {
  for (int n = tid; n < $COUNT; n += $THREADS) mk_open_box(scratch + $FIRST + n * $STEP);
  mk_cluster_sync();
}
// Every thread sees by itself that all bytes have arrived. They lie in the block's own memory.
INLINE void mk_receive(Run run, void *const *args, int count, char *scratch, int order, int tid,
                       volatile MK_SHARED int *stop) {
  for (int n = 0; n < count; n++, args += $RECEIVE) {
    char *box = scratch + (int64_t)args[0] - $BOX;
    if (tid == 0) mk_expect(box, (int)(int64_t)args[1]);
    const Wait on = {(int)(int64_t)args[3], (int)(int64_t)args[4]};
    unsigned long long since = 1;
    for (unsigned polls = 1; !mk_arrived(box, (int)(int64_t)args[2]); polls++)
      if (mk_gives_up(run, on, order, polls, &since, stop)) return;
  }
}
// A warp for each rank. What other clusters read is copied to memory behind the messages.
INLINE void mk_send(void *const *args, int count, char *scratch, int tid) {
  for (int n = 0; n < count; n++, args += $SEND) {
    const float *from = (const float *)(scratch + (int64_t)args[0]);
    const int words = (int)(int64_t)args[1], ranks = (int)(int64_t)args[2];
    char *box = scratch + (int64_t)args[3] - $BOX;
    for (int rank = tid / $WAVE; rank < MK_BLOCKS; rank += $THREADS / $WAVE)
      if (ranks >> rank & 1)
        for (int i = tid % $WAVE; i < words; i += $WAVE) mk_put(from + i, box, rank, from[i]);
    if (args[4]) {
      float *copy = MK_TENSOR(float *, args, 4);
      for (int i = tid; i < words; i += $THREADS) copy[i] = from[i];
    }
  }
}

