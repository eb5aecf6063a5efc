// Copies that are made later, for one thread of a SIMT program on the host. No header is included.
#define SIMT_LATER 256
#define SIMT_GROUPS 8
struct simt_later {  // copies that a thread has begun, and where its groups end
  struct { char *to; const char *from; int bytes; } copies[SIMT_LATER];
  int count, groups, ends[SIMT_GROUPS];
};
static void simt_done(simt_later *q, int count) {  // the first ones
  for (int n = 0; n < count; n++)
    for (int b = 0; b < q->copies[n].bytes; b++) q->copies[n].to[b] = q->copies[n].from ? q->copies[n].from[b] : 0;
  for (int n = count; n < q->count; n++) q->copies[n - count] = q->copies[n];
  q->count -= count;
}
static void simt_later_copy(simt_later *q, void *to, const void *from, int bytes) {
  if (q->count == SIMT_LATER) {  // early is allowed, too
    simt_done(q, q->count);
    q->groups = 0;
  }
  q->copies[q->count].to = (char *)to;
  q->copies[q->count].from = (const char *)from;
  q->copies[q->count++].bytes = bytes;
}
static void simt_later_await(simt_later *q, int groups) {
  if (q->groups == SIMT_GROUPS) {
    simt_done(q, q->ends[0]);
    for (int n = 1, first = q->ends[0]; n < q->groups; n++) q->ends[n - 1] = q->ends[n] - first;
    q->groups--;
  }
  q->ends[q->groups++] = q->count;
  const int over = q->groups - groups;
  if (over <= 0) return;
  const int first = q->ends[over - 1];
  simt_done(q, first);
  for (int n = over; n < q->groups; n++) q->ends[n - over] = q->ends[n] - first;
  q->groups -= over;
}
