"""Run kernels of many threads on the host: one fiber per thread, compared with the meaning of the expression."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kernel_harness import CACHE, Runner, check_boxes, compare, random_inputs

from rammer.ir.device import Execution, MemoryLevel, VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import Array
from rammer.vdevice.simt.codegen.mma import LATER, SM_80
from rammer.vdevice.simt.codegen.prelude import CUDA, prelude
from rammer.vdevice.simt.codegen.printer import emit
from rammer.vdevice.simt.emulator.compile import part
from rammer.vdevice.simt.instructions import folds

GPU = VDeviceSpec(
    "gpu",
    num_veus=132,
    languages=("cuda",),
    execution=Execution.SIMT,
    lanes=4,
    registers=255,
    max_threads=256,
    subgroup_size=32,
    scratch_bytes=48 << 10,
    kept_reads=5,
    memory=(MemoryLevel("L2", 50 << 20, "device", 5500.0),),
    clock_ghz=3.5,
    instructions=(*SM_80, LATER, *folds(32)),
)
SMALL = VDeviceSpec(
    "small",
    num_veus=3,
    languages=("cuda",),
    execution=Execution.SIMT,
    lanes=4,
    registers=64,
    max_threads=32,
    subgroup_size=8,
    scratch_bytes=16 << 10,
    instructions=folds(8),
)
FLAGS = ("-O0", "-std=c++20", "-shared", "-fPIC", "-w", "-fno-strict-aliasing")
COMPILER = [found] if (found := shutil.which("g++")) else [sys.executable, "-m", "ziglang", "c++"]

HOST = """\
#define SIMT_HOST
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#undef INT64_MIN
#define __device__
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define INLINE static inline
#define MK_TASK extern "C"
#define MK_DIVIDE(a, b) ((a) / (b))
#define MK_TENSOR(type, args, n) ((type)(args)[n])
#define MK_COLD static
#define MK_HERE(tid) (tid)
static ucontext_t home, fibers[1024];
static char *stacks[1024];
static int current, syncs[1024], done[1024];
static void mk_sync() { syncs[current]++; swapcontext(&fibers[current], &home); }
static void mk_sync_part(int) { mk_sync(); }
static float mk_half_to_float(unsigned short h) { _Float16 x; memcpy(&x, &h, 2); return x; }
static unsigned short mk_float_to_half(float f) { _Float16 x = f; unsigned short h; memcpy(&h, &x, 2); return h; }
static float fragments[1024][16];
static void meet() { swapcontext(&fibers[current], &home); }
struct simt_index { int x; };
#define threadIdx (simt_index{current})
#define simt_fragment(thread) fragments[thread]
#define simt_sync(barrier, threads) meet()
static float tf32(float x) { unsigned u; memcpy(&u, &x, 4); u = (u + 0x1000) & ~0x1fffu; memcpy(&x, &u, 4); return x; }
static float cut(float x) { unsigned u; memcpy(&u, &x, 4); u &= ~0x1fffu; memcpy(&x, &u, 4); return x; }
static float bfloat(float x) {
  unsigned u; memcpy(&u, &x, 4); u = (u + 0x7fff + (u >> 16 & 1)) & ~0xffffu; memcpy(&x, &u, 4); return x;
}
static void mma(float *c, const float *a, const float *b, int steps, float (*round)(float)) {
  int tid = current, g = tid % 32 / 4, t = tid % 4;
  for (int i = 0; i < 2 * steps; i++) fragments[tid][i] = round(a[i]);
  for (int i = 0; i < steps; i++) fragments[tid][8 + i] = round(b[i]);
  meet();
  float (*wave)[16] = fragments + tid / 32 * 32;
  for (int h = 0; h < 2; h++) for (int e = 0; e < 2; e++) for (int i = 0; i < steps; i++) for (int n = 0; n < 4; n++)
    c[2 * h + e] += wave[4 * g + n][2 * i + h] * wave[4 * (2 * t + e) + n][8 + i];
  meet();
}
static float as_it_is(float x) { return x; }
static void mfma(float *c, const float *a, const float *b, int n, float (*round)(float)) {  // 16 x 16, 4n terms
  int tid = current, lane = tid % 64;
  for (int i = 0; i < n; i++) fragments[tid][i] = round(a[i]), fragments[tid][8 + i] = round(b[i]);
  meet();
  float (*wave)[16] = fragments + tid / 64 * 64;
  for (int r = 0; r < 4; r++) for (int k = 0; k < 4 * n; k++)
    c[r] += wave[4 * (lane / 16) + r + 16 * (k / n)][k % n] * wave[lane % 16 + 16 * (k / n)][8 + k % n];
  meet();
}
static void mk_wmma_bf16(float *c, const float *a, const float *b) {  // waves of 32, 16 x 16, 16 terms
  int tid = current, lane = tid % 32;
  for (int i = 0; i < 8; i++) fragments[tid][i] = bfloat(a[i]), fragments[tid][8 + i] = bfloat(b[i]);
  meet();
  float (*wave)[16] = fragments + tid / 32 * 32;
  for (int r = 0; r < 8; r++) for (int k = 0; k < 16; k++)
    c[r] += wave[8 * (lane / 16) + r + 16 * (k / 8)][k % 8] * wave[lane % 16 + 16 * (k / 8)][8 + k % 8];
  meet();
}
static void mk_mfma_f32(float *c, const float *a, const float *b) { mfma(c, a, b, 1, as_it_is); }
static void mk_mfma_bf16(float *c, const float *a, const float *b) { mfma(c, a, b, 4, bfloat); }
static void mk_mma_tf32(float *c, const float *a, const float *b) { mma(c, a, b, 2, tf32); }
static void mk_mma_tf32x3(float *c, const float *a, const float *b) {
  float x[4], y[2], less_x[4], less_y[2];
  for (int n = 0; n < 4; n++) x[n] = tf32(a[n]), less_x[n] = cut(a[n] - x[n]);
  for (int n = 0; n < 2; n++) y[n] = tf32(b[n]), less_y[n] = cut(b[n] - y[n]);
  mma(c, less_x, y, 2, as_it_is), mma(c, x, less_y, 2, as_it_is), mma(c, x, y, 2, tf32);
}
static void mk_mma_bf16(float *c, const float *a, const float *b) { mma(c, a, b, 4, bfloat); }
static void mk_show_units() {}
template <class V> static void mk_put_bf16x1(uint16_t *p, int at, V v) {
  for (int n = 0; n < 4; n++) { unsigned u; float f = bfloat(v[n]); memcpy(&u, &f, 4); p[at + n] = u >> 16; }
}
template <class V> static void mk_put_f32x1(float *p, int at, V v) {
  for (int n = 0; n < 4; n++) p[at + n] = tf32(v[n]);
}
template <class V> static void mk_put_f32x2(float *p, int at, V v) {  // 32 first parts, 32 others
  p += at / 32 * 64 + at % 32;
  for (int n = 0; n < 4; n++) p[n] = tf32(v[n]), p[32 + n] = v[n] - p[n];
}
static float wide(uint16_t h) { unsigned u = h << 16; float f; memcpy(&f, &u, 4); return f; }
static float wide(float x) { return cut(x); }
template <class T> struct matrix {  // pieces of 8 lines of 16 bytes
  const T *p; int along, down;  // bytes from piece to piece
  float operator()(int line, int term) const {
    enum { W = 16 / sizeof(T) };
    return wide(p[(line / 8 * down + term / W * along) / sizeof(T) + line % 8 * W + term % W]);
  }
};
template <class T> static void wgmma(float *c, int columns, int k, matrix<T> a, matrix<T> b) {
  int t = current % 128, row = t / 32 * 16 + t % 32 / 4;
  for (int n = 0; n < columns / 8; n++) for (int h = 0; h < 2; h++) for (int e = 0; e < 2; e++)
    for (int i = 0; i < k; i++) c[4 * n + 2 * h + e] += a(row + 8 * h, i) * b(8 * n + t % 4 * 2 + e, i);
}
#define WGMMA(name, n) \\
template <int S, int AK, int AM, int BK, int BN> \\
static void mk_wgmma_##name##_n##n(float *c, const void *a, const void *b)
#define WGMMAS(n) \\
WGMMA(bf16, n) { wgmma<uint16_t>(c, n, 16 * S, {(uint16_t *)a, AK, AM}, {(uint16_t *)b, BK, BN}); } \\
WGMMA(tf32, n) { wgmma<float>(c, n, 8 * S, {(float *)a, AK, AM}, {(float *)b, BK, BN}); } \\
WGMMA(tf32x2, n) { \\
  matrix<float> x{(float *)a, AK, AM}, y{(float *)b, BK, BN}, less_x{x.p + 32, AK, AM}, less_y{y.p + 32, BK, BN}; \\
  wgmma(c, n, 8 * S, less_x, y), wgmma(c, n, 8 * S, x, less_y), wgmma(c, n, 8 * S, x, y); }
WGMMAS(64) WGMMAS(128) WGMMAS(256)
LATER_COPIES
static simt_later laters[1024];
static void simt_copy_later(void *to, const void *from, int n) { simt_later_copy(&laters[current], to, from, n); }
static void simt_await(int groups) { simt_later_await(&laters[current], groups); }
typedef void Task(void *const *, char *, int, int, int *);
static Task *task;
static void *const *task_args;
static char *task_scratch;
static int task_number, *task_status;
static void enter() {
  task(task_args, task_scratch, task_number, current, task_status);
  done[current] = 1;
  swapcontext(&fibers[current], &home);
}
extern "C" int simt_run(Task *fn, int threads, void *const *args, char *scratch, int rtask, int *status) {
  task = fn, task_args = args, task_scratch = scratch, task_number = rtask, task_status = status;
  for (int t = 0; t < threads; t++) {
    if (!stacks[t]) stacks[t] = (char *)malloc(1 << 16);
    getcontext(&fibers[t]);
    fibers[t].uc_stack.ss_sp = stacks[t], fibers[t].uc_stack.ss_size = 1 << 16, fibers[t].uc_link = &home;
    syncs[t] = done[t] = 0;
    makecontext(&fibers[t], enter, 0);
  }
  for (int round = 0;; round++) {  // every other round backwards, so that missing syncs show
    int left = 0;
    for (int n = 0; n < threads; n++) {
      current = round % 2 ? threads - 1 - n : n;
      if (!done[current]) swapcontext(&home, &fibers[current]);
      left += !done[current];
    }
    if (!left) break;
    if (left < threads) return -1;  // some threads wait for others that have left
  }
  for (int t = 1; t < threads; t++) if (syncs[t] != syncs[0]) return -1;
  return syncs[0];
}
""".replace("LATER_COPIES", part("later.h"))


class SimtRunner(Runner):
    """One kernel whose rTasks run as fibers; `syncs` holds how many block syncs the last one made."""

    def __init__(self, kernel: RKernel, lib: ctypes.CDLL, symbol: str, inputs: dict[str, Array]) -> None:
        super().__init__(kernel, lib, symbol, inputs)
        self.start = lib.simt_run
        self.start.argtypes = [ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int, ctypes.c_void_p]
        self.syncs = 0

    def __call__(self, rtask: int) -> None:
        self.scratch[...] = 0xFF  # every number in it is NaN
        self.syncs = self.start(
            ctypes.cast(self.function, ctypes.c_void_p),
            self.kernel.num_threads,
            ctypes.cast(self.pointers, ctypes.c_void_p),
            self.scratch.ctypes.data,
            rtask,
            ctypes.addressof(self.context),
        )
        assert self.syncs == self.kernel.num_block_syncs, f"{self.kernel.name}: {self.syncs} syncs in rTask {rtask}"


class Built(NamedTuple):
    library: ctypes.CDLL
    kernels: dict[str, tuple[Operation, list[tuple[RKernel, str]]]]


def build(cases: Mapping[str, tuple[Operation, Sequence[RKernel]]]) -> Built:
    """All kernels of all cases in one library, compiled once per text."""
    emitted = {name: [emit(k, CUDA, k.num_threads) for k in kernels] for name, (_, kernels) in cases.items()}
    texts = {e.symbol: e.text for es in emitted.values() for e in es}
    text = HOST + prelude(replace(CUDA, instructions=())) + "\n".join(texts.values())
    base = CACHE / hashlib.sha256(f"{text}{FLAGS}{COMPILER}{platform.machine()}".encode()).hexdigest()[:20]
    target = base.with_suffix(".so")
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        base.with_suffix(".cpp").write_text(text)
        fresh = base.with_suffix(f".{os.getpid()}.so")
        command = [*COMPILER, *FLAGS, str(base.with_suffix(".cpp")), "-o", str(fresh)]
        made = subprocess.run(command, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr[:4000]
        fresh.rename(target)
    found = {
        name: (op, [(k, e.symbol) for k, e in zip(kernels, emitted[name], strict=True)])
        for name, (op, kernels) in cases.items()
    }
    return Built(ctypes.CDLL(str(target)), found)


def check(built: Built, name: str, rtol: float = 2e-5, boxes: bool = True) -> None:
    """Every kernel gives the expression's value; each rTask writes exactly its box, after as many syncs as it says."""
    op, kernels = built.kernels[name]
    inputs = random_inputs(op)
    wanted = evaluate_expr(op.expr, inputs)
    assert kernels
    for kernel, symbol in kernels:
        runner = SimtRunner(kernel, built.library, symbol, inputs)
        for got, want in zip(runner.run(), wanted, strict=True):
            compare(got, want, rtol, f"{kernel.name} {op.expr.inputs}")
        assert runner.context.status == 0
        if boxes:
            check_boxes(kernel, SimtRunner(kernel, built.library, symbol, inputs))
