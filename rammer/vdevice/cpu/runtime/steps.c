// A loop whose body is a program: many runs in one call, without the caller's language between them. It goes behind
// runtime.c.

enum { STEPS_NS = 20000000 };  // after which the caller gets a turn, to see signals

// Arguments of rTasks that lie in a port, and how far behind its begin. None if the port is copied.
typedef struct { i64 count; const i64 *at, *offset; } arguments;

// Where a port of the body is in each step: in step n, row (n + shift) % period. The arguments are pointed there; if there
// are none, the row is copied to or from `home`.
typedef struct { arguments direct; char *home, *rows; i64 nbytes, stride, shift, period; } rows;

// The ports that are read come first. `again` is the condition in the program's memory: the loop goes on while all its
// bytes are set.
typedef struct {
  char **args;
  const rows *ports;
  i64 num_read, num_written;
  const char *again;
  i64 again_bytes;
} loop;

// How far a loop has come: the next step, and whether it goes on.
typedef struct { i64 step, alive; } progress;

static void point(char **args, const arguments *direct, char *to) {
  for (i64 n = 0; n < direct->count; n++) args[direct->at[n]] = to + direct->offset[n];
}

// Take steps until `end`, until the condition is false, until one fails, or for STEPS_NS.
EXPORT int rammer_steps(pool *p, const table *t, const loop *l, progress *now, i64 end) {
  const rows *written = l->ports + l->num_read, *last = written + l->num_written;
  for (const i64 since = now_ns(); now->alive && now->step < end && now_ns() - since < STEPS_NS;) {
    for (const rows *r = l->ports; r < last; r++) {
      char *row = r->rows + (now->step + r->shift) % r->period * r->stride;
      if (r->direct.count) point(l->args, &r->direct, row);
      else if (r < written) __builtin_memcpy(r->home, row, r->nbytes);
    }
    const int code = rammer_run(p, t, 0);
    if (code != DONE) return code;
    for (const rows *r = written; r < last; r++)
      if (!r->direct.count)
        __builtin_memcpy(r->rows + (now->step + r->shift) % r->period * r->stride, r->home, r->nbytes);
    now->step++;
    for (i64 n = 0; n < l->again_bytes; n++) now->alive &= l->again[n] != 0;
  }
  return DONE;
}
