"""What synchronisation and launches cost on an NVIDIA GPU: the kinds of barrier, a launch, a node of a graph.

Every block signals its own round and waits for its left neighbour's, a thousand times: a round is one hop. Each spin
gives up after a second, so that a mistake costs a second and not the GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rammer.errors import RammerError
from rammer.vdevice.cuda.build import compile_cubin
from rammer.vdevice.cuda.driver import device_errors, load_cupy

ROUNDS = 1000
THREADS = 256
CLUSTER = 8  # blocks; all GPUs from sm_90 on have clusters of so many
LINE = 32  # words of a cache line
LAUNCHES = 200
REPEATS = 7
BYTES = 1 << 30  # of a copy that no cache holds

HEAD = """\
typedef unsigned long long u64;
#define INLINE static __device__ __forceinline__
INLINE u64 now() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
INLINE unsigned relaxed(unsigned *p) {
  unsigned v; asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
INLINE unsigned acquire(unsigned *p) {
  unsigned v; asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
INLINE void release(unsigned *p, unsigned v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
INLINE unsigned arrive(unsigned *p) {
  unsigned v; asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"(p) : "memory"); return v; }
INLINE u64 load64(u64 *p) {
  u64 v; asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory"); return v; }
INLINE void store64(u64 *p, u64 v) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(p), "l"(v) : "memory"); }
#define SPIN(condition) { u64 t = now(); while (!(condition)) if (now() - t > 1000000000ull) { *late = 1; break; } }
"""
# The counter is the megakernel's own barrier: its acquire is a second way to L2 behind the poll. If every poll
# acquires, L1 is emptied by each of them. `line` holds a cache line per block, `late` whether a spin gave up.
BODIES = {
    "counter": """
    __syncthreads();
    if (threadIdx.x == 0) {
      release(mine, n);
      SPIN(relaxed(left) >= n)
      acquire(left);
    }
    __syncthreads();""",
    "counter whose polls acquire": """
    __syncthreads();
    if (threadIdx.x == 0) {
      release(mine, n);
      SPIN(acquire(left) >= n)
    }
    __syncthreads();""",
    "data as flag": """
    if (threadIdx.x == 0) store64((u64 *)mine, (u64)n << 32 | n);
    if (threadIdx.x == 0) SPIN(load64((u64 *)left) >> 32 >= n)
    __syncthreads();""",
    "whole grid": """
    __syncthreads();
    if (threadIdx.x == 0) {
      arrive(line);
      SPIN(relaxed(line) >= n * gridDim.x)
      acquire(line);
    }
    __syncthreads();""",
    "cluster": """
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");""",
}
EMPTY = 'extern "C" __global__ void micro() {}\n'


def barrier_text(kind: str) -> str:
    """The kernel of a kind of barrier."""
    shape = f"__attribute__((cluster_dims({CLUSTER}, 1, 1))) " if kind == "cluster" else ""
    return (
        f'{HEAD}extern "C" __global__ {shape}void __launch_bounds__({THREADS}, 1)\n'
        "micro(unsigned *line, unsigned *late) {\n"
        f"  unsigned *mine = line + {LINE} * (1 + blockIdx.x);\n"
        f"  unsigned *left = line + {LINE} * (1 + (blockIdx.x + gridDim.x - 1) % gridDim.x);\n"
        f"  for (unsigned n = 1; n <= {ROUNDS} && !*(volatile unsigned *)late; n++) {{{BODIES[kind]}\n  }}\n}}\n"
    )


@dataclass(frozen=True)
class Micro:
    """A result: microseconds, or GB/s; `failed` says why there is none."""

    what: str
    median: float | None = None
    least: float | None = None
    unit: str = "us"
    failed: str = ""


def measure(number: int, arch: str, num_sms: int) -> list[Micro]:
    """All microbenchmarks on a GPU; one that fails does not stop the others. Raises DeviceError without a GPU."""
    cupy = load_cupy()
    found = []
    steps: dict[str, Callable[[Any, str, int], list[Micro]]] = {
        **{f"barrier: {kind}": _barrier(kind) for kind in BODIES},
        "launch": _launches,
        "copy": _copies,
    }
    for what, step in steps.items():
        try:
            with device_errors(cupy, f"measure {what}"), cupy.cuda.Device(number):
                found += step(cupy, arch, num_sms)
        except RammerError as error:
            found.append(Micro(what, failed=error.what))
    return found


def hop_costs(found: list[Micro]) -> dict[str, float]:
    """For `rammer show --hops --hop-costs`: a fence is what a counter takes more than data that says it is there."""
    us = {m.what.removeprefix("barrier: ").partition(",")[0]: m.median for m in found}
    counter, flag = us.get("counter"), us.get("data as flag")
    return {} if counter is None or flag is None else {"fence_us": max(counter - flag, 0.0), "poll_us": flag}


def _function(cupy: Any, text: str, arch: str) -> Any:
    module = cupy.cuda.Module()
    module.load(compile_cubin(text, arch).data)
    return module.get_function("micro")


def _elapsed_ms(cupy: Any, stream: Any, enqueue: Callable[[], None]) -> float:
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record(stream)
    enqueue()
    end.record(stream)
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end))


def _barrier(kind: str) -> Callable[[Any, str, int], list[Micro]]:
    def step(cupy: Any, arch: str, num_sms: int) -> list[Micro]:
        blocks = num_sms // CLUSTER * CLUSTER if kind == "cluster" else num_sms
        function = _function(cupy, barrier_text(kind), arch)
        stream = cupy.cuda.Stream(non_blocking=True)
        line, late = cupy.zeros(LINE * (1 + blocks), np.uint32), cupy.zeros(1, np.uint32)
        times = []
        for _ in range(1 + REPEATS):
            line.set(np.zeros(line.shape, np.uint32))
            cupy.cuda.runtime.deviceSynchronize()

            def enqueue() -> None:
                together = kind != "cluster"
                function((blocks,), (THREADS,), (line, late), stream=stream, enable_cooperative_groups=together)

            times.append(1e3 * _elapsed_ms(cupy, stream, enqueue) / ROUNDS)
            if int(late.get()[0]):
                raise RammerError("a spin gave up after a second")
        return [Micro(f"barrier: {kind}, {blocks} blocks", statistics.median(times[1:]), min(times[1:]))]

    return step


def _launches(cupy: Any, arch: str, num_sms: int) -> list[Micro]:
    function = _function(cupy, EMPTY, arch)
    stream = cupy.cuda.Stream(non_blocking=True)

    def launch(together: bool) -> None:
        function((num_sms,), (THREADS,), (), stream=stream, enable_cooperative_groups=together)

    def back_to_back(together: bool) -> None:
        for _ in range(LAUNCHES):
            launch(together)

    def single_us() -> float:
        start = time.perf_counter()
        launch(True)
        stream.synchronize()
        return 1e6 * (time.perf_counter() - start)

    found = []
    for what, together in (("launch, back to back", False), ("cooperative launch, back to back", True)):
        times = [
            1e3 * _elapsed_ms(cupy, stream, partial(back_to_back, together)) / LAUNCHES for _ in range(1 + REPEATS)
        ]
        found.append(Micro(what, statistics.median(times[1:]), min(times[1:])))
    alone = [single_us() for _ in range(50)][10:]
    found.append(
        Micro("cooperative launch, until the host knows that it is done", statistics.median(alone), min(alone))
    )
    for what, together in (("node of a graph", False), ("cooperative node of a graph", True)):
        with stream:
            stream.begin_capture()
            back_to_back(together)
            graph = stream.end_capture()
        replay = partial(graph.launch, stream)
        times = [1e3 * _elapsed_ms(cupy, stream, replay) / LAUNCHES for _ in range(1 + REPEATS)]
        found.append(Micro(what, statistics.median(times[1:]), min(times[1:])))
    return found


def _copies(cupy: Any, arch: str, num_sms: int) -> list[Micro]:
    """Reading and writing, counted both: the rate that bytes cannot beat."""
    stream = cupy.cuda.Stream(non_blocking=True)
    source, target = cupy.zeros(BYTES, np.uint8), cupy.zeros(BYTES, np.uint8)
    cupy.cuda.runtime.deviceSynchronize()
    times = [
        _elapsed_ms(cupy, stream, lambda: target.data.copy_from_device_async(source.data, BYTES, stream))
        for _ in range(1 + REPEATS)
    ]
    rates = [2 * BYTES / (ms * 1e6) for ms in times[1:]]
    return [Micro("copy in device memory, bytes read and written", statistics.median(rates), max(rates), "GB/s")]


def compiled(arch: str) -> list[Micro]:
    """Only whether the kernels compile: what can be checked without a GPU."""
    found = []
    for kind in BODIES:
        try:
            code = compile_cubin(barrier_text(kind), arch).resources
            found.append(Micro(f"barrier: {kind}", failed=f"compiled for {arch} ({code.registers} registers), not run"))
        except RammerError as error:
            found.append(Micro(f"barrier: {kind}", failed=error.what))
    return found
