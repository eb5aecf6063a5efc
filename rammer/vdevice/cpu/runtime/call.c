// A whole call from Python in one function: it looks up what is given, checks it, copies it to where the program has
// it, runs, and returns copies of the results. It goes behind steps.c. Python's functions come as pointers and the
// layout of NumPy's arrays as numbers (call.py), so that this needs the headers of neither, and suits any version.

typedef struct object object;  // PyObject

typedef struct {
  object *(*look_up)(object *dict, object *key);  // borrowed, NULL if it is not there
  i64 (*size_of)(object *dict);
  object *(*make_dict)(void);
  int (*put)(object *dict, object *key, object *value);
  object *(*call)(object *callable);
  object *(*make_number)(long value);
  void (*keep)(object *);
  void (*drop)(object *);
  void *(*let_others_run)(void);
  void (*go_on)(void *thread);
  object *none, *dict_type, *array_type;
  i64 type_at, data_at, rank_at, shape_at, dtype_at, flags_at;  // bytes from the begin of an object, of an array
} python;

typedef struct {
  object *name, *dtype;
  char *place;
  i64 nbytes, rank;
  const i64 *shape;
  arguments direct;
} given;

// `make()` gives a new array: before the run if it is written in place, else a copy of the result.
typedef struct { object *name, *make, *array; arguments direct; } made;

typedef struct { char *to; const char *from; i64 nbytes; } copy;

// What a call needs. A bound one has copies, of which the first are made before the run; any other has ports.
typedef struct {
  const python *py;
  pool *const *pool;
  const table *table;
  i64 num_inputs, num_outputs;
  const given *inputs;
  made *outputs;
  const copy *copies;
  char **args;
} call;

static void *(*address_in)(object *number);  // of this process: where a call finds all else

EXPORT void rammer_set_address_in(void *(*function)(object *)) { address_in = function; }

enum { CONTIGUOUS = 1, ALIGNED = 0x100 };  // of an array's flags

#define FIELD(type, object, at) (*(type *)((char *)(object) + (at)))

static int suits(const python *py, const given *port, object *array) {
  if (!array || FIELD(object *, array, py->type_at) != py->array_type) return 0;
  if (FIELD(object *, array, py->dtype_at) != port->dtype || FIELD(int, array, py->rank_at) != port->rank) return 0;
  const i64 *shape = FIELD(const i64 *, array, py->shape_at);
  for (i64 d = 0; d < port->rank; d++)
    if (shape[d] != port->shape[d]) return 0;
  return (~FIELD(int, array, py->flags_at) & (CONTIGUOUS | ALIGNED)) == 0;
}

static void drop_outputs(const call *c) {
  for (made *m = c->outputs; m < c->outputs + c->num_outputs; m++) {
    if (m->array) c->py->drop(m->array);
    m->array = 0;
  }
}

// Makes the arrays that the run writes in place, or all others. 0 if that fails, with an exception.
static int make_outputs(const call *c, int direct) {
  for (made *m = c->outputs; m < c->outputs + c->num_outputs; m++) {
    if ((m->direct.count > 0) != direct) continue;
    m->array = c->py->call(m->make);
    if (!m->array) return 0;
    if (direct) point(c->args, &m->direct, FIELD(char *, m->array, c->py->data_at));
  }
  return 1;
}

static object *results(const call *c) {
  const python *py = c->py;
  object *found = make_outputs(c, 0) ? py->make_dict() : 0;
  for (i64 n = 0; found && n < c->num_outputs; n++)
    if (py->put(found, c->outputs[n].name, c->outputs[n].array)) {
      py->drop(found);
      found = 0;
    }
  return found;
}

static int run_meanwhile(const call *c) {
  void *thread = c->py->let_others_run();
  int code = rammer_run(*c->pool, c->table, 0);
  c->py->go_on(thread);
  return code;
}

static object *nothing(const python *py) {
  py->keep(py->none);
  return py->none;
}

// A dict of outputs; None for inputs that are no arrays just as the program takes them; else the code of what failed.
// `self` is a number: where the call is described.
EXPORT object *rammer_call(object *self, object *inputs) {
  const call *c = address_in(self);
  const python *py = c->py;
  int fits = FIELD(object *, inputs, py->type_at) == py->dict_type && py->size_of(inputs) == c->num_inputs;
  for (i64 n = 0; fits && n < c->num_inputs; n++) {
    object *array = py->look_up(inputs, c->inputs[n].name);
    fits = suits(py, &c->inputs[n], array);
    if (!fits) break;
    char *data = FIELD(char *, array, py->data_at);
    if (c->inputs[n].direct.count) point(c->args, &c->inputs[n].direct, data);
    else __builtin_memcpy(c->inputs[n].place, data, c->inputs[n].nbytes);
  }
  if (!fits) return nothing(py);
  object *found = 0;
  if (make_outputs(c, 1)) {
    int code = run_meanwhile(c);
    found = code == DONE ? results(c) : py->make_number(code);
  }
  drop_outputs(c);
  return found;
}

static void make(const copy *copies, i64 count) {
  for (i64 n = 0; n < count; n++) __builtin_memmove(copies[n].to, copies[n].from, copies[n].nbytes);
}

// The same of arrays that stay where they are: None, or the code of what failed.
EXPORT object *rammer_call_bound(object *self, object *unused) {
  const call *c = address_in(self);
  make(c->copies, c->num_inputs);
  int code = run_meanwhile(c);
  if (code != DONE) return c->py->make_number(code);
  make(c->copies + c->num_inputs, c->num_outputs);
  return nothing(c->py);
}
