/* Check the exported model: run it on stored inputs, and compare with stored outputs. Also an example of rammer.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "@NAME@.h"

extern const unsigned char @NAME@_check[];
#ifndef RAMMER_CHECK_RUNS /* that are timed */
#define RAMMER_CHECK_RUNS 100
#endif
enum { INPUTS = @INPUTS@, OUTPUTS = @OUTPUTS@, RUNS = RAMMER_CHECK_RUNS };
static const size_t input_at[INPUTS + 1] = {@INPUT_AT@}, output_at[OUTPUTS + 1] = {@OUTPUT_AT@};
static const double tolerance[OUTPUTS + 1] = {@TOLERANCES@};
static _Alignas(128) unsigned char results[@RESULT_BYTES@];

#ifdef RAMMER_CHECK_MEMORY /* bytes: a system without memory of its own to take */
static _Alignas(128) unsigned char memory[RAMMER_CHECK_MEMORY];
#endif

static double number(const rammer_port *port, const unsigned char *all, size_t n) {
  float f;
  double d;
  unsigned short h;
  unsigned bits;
  int e;
  switch (port->type) {
    case RAMMER_FLOAT32:
      memcpy(&f, all + 4 * n, 4);
      return (double)f;
    case RAMMER_FLOAT64:
      memcpy(&d, all + 8 * n, 8);
      return d;
    case RAMMER_BFLOAT16:
      memcpy(&h, all + 2 * n, 2);
      bits = (unsigned)h << 16;
      memcpy(&f, &bits, 4);
      return (double)f;
    case RAMMER_FLOAT16:
      memcpy(&h, all + 2 * n, 2);
      e = h >> 10 & 31;
      d = e == 31 ? (h & 1023 ? NAN : INFINITY) : e ? ldexp(1024 + (h & 1023), e - 25) : ldexp(h & 1023, -24);
      return h >> 15 ? -d : d;
    default: return 0;
  }
}

static size_t width(rammer_type type) {
  return type == RAMMER_FLOAT64 ? 8 : type == RAMMER_FLOAT32 ? 4 : type == RAMMER_FLOAT16 || type == RAMMER_BFLOAT16 ? 2 : 0;
}

static int differs(const rammer_port *port, const unsigned char *got, const unsigned char *want, double most) {
  const size_t each = width(port->type);
  size_t n;
  if (!each) return memcmp(got, want, port->bytes) != 0;
  for (n = 0; n < port->bytes / each; n++) {
    const double a = number(port, got, n), b = number(port, want, n);
    if (!(fabs(a - b) <= most) && !(a == b) && !(a != a && b != b)) {
      printf("%s[%lu] is %.9g and should be %.9g, give or take %.2g\n", port->name, (unsigned long)n, a, b, most);
      return 1;
    }
  }
  return 0;
}

static double seconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int main(int count, char **arguments) {
  rammer_options options = RAMMER_DEFAULTS;
  rammer_program *program;
  const rammer_port *ports;
  const void *inputs[INPUTS + 1];
  void *outputs[OUTPUTS + 1];
  rammer_status status;
  int n, wrong = 0;
  double began;
  options.weights_file = count > 1 && arguments[1][0] != '-' ? arguments[1] : NULL;
  options.threads = count > 2 ? 0 : 1;
#ifdef RAMMER_CHECK_MEMORY
  options.memory = memory;
  options.memory_bytes = sizeof memory;
#endif
  status = rammer_open(&@NAME@_model, &options, &program);
  if (status) {
    printf("@NAME@: %s\n", rammer_text(status));
    return 2;
  }
  for (n = 0; n < INPUTS; n++) inputs[n] = @NAME@_check + input_at[n];
  rammer_outputs(&@NAME@_model, &ports);
  for (n = 0; n < OUTPUTS; n++) outputs[n] = results + (output_at[n] - output_at[0]);
  status = rammer_run(program, inputs, outputs);
  for (n = 0; n < OUTPUTS && !status; n++)
    wrong += differs(&ports[n], outputs[n], @NAME@_check + output_at[n], tolerance[n]);
  began = seconds();
  for (n = 0; n < RUNS && !status; n++) status = rammer_run(program, inputs, outputs);
  if (status) printf("@NAME@: %s %s\n", rammer_text(status), rammer_failed(program));
  else
    printf("@NAME@: %d of %d outputs right (%s), %.1f us a run\n", OUTPUTS - wrong, OUTPUTS,
           rammer_arch(program), (seconds() - began) * 1e6 / (double)RUNS);
  rammer_close(program);
  return status ? 2 : wrong != 0;
}
