// One block of an imported kernel, alone, its threads as fibers: after runtime.h.
struct check_arguments {
  void *const *args;
  int rtask, status;
};
static void check_thread(void *argument) {
  check_arguments *a = (check_arguments *)argument;
  CHECKED_TASK(a->args, simt_arena(), a->rtask, (int)threadIdx.x, &a->status);
}
extern "C" __attribute__((visibility("default"))) int check_run(void *const *args, int *syncs, long rtask, long threads,
                                                                long arena, long seed) {
  check_arguments a = {args, (int)rtask, 0};
  for (int n = 0; n < 1024; n++) mk_counts[n] = 0;
  int result = simt_launch(1, threads, arena, 1, seed, check_thread, &a);
  for (int n = 0; n < threads; n++) syncs[n] = mk_counts[n];
  return result;
}
