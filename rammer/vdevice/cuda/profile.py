"""Measured times of rKernels on one vEU, while its neighbours do the same. Paper: §3.3, "Compile-time profiling"."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from rammer.errors import ToolchainError
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.tensor import Array, TensorType
from rammer.vdevice.base import Progress
from rammer.vdevice.cuda.build import OPTIONS, Cubin, compile_cubin, nvrtc_version
from rammer.vdevice.cuda.driver import Kernel, device_errors, load_cupy
from rammer.vdevice.cuda.spec import Gpu
from rammer.vdevice.placement import aligned
from rammer.vdevice.profiles import kernel_key, profile_store
from rammer.vdevice.simt.megakernel import header_bytes, program_text
from rammer.vdevice.simt.prelude import CUDA
from rammer.vdevice.simt.printer import EmittedKernel, emit
from rammer.vdevice.simt.table import END, LINE

BATCH = 24  # kernels of one compiler call
TASKS = 32  # of a vEU in one launch: many enough that launching does not count
SHORTEST_US = 0.05


def measure_kernels(
    kernels: Sequence[RKernel], number: int, gpu: Gpu, num_veus: int, budget_s: float, progress: Progress
) -> Mapping[RKernel, float]:
    """Microseconds of one rTask, for every kernel in CUDA C++; what the budget does not reach is left out.

    Times are kept in the cache, for this model of GPU. Raises ToolchainError, DeviceError.
    """
    wanted = [k for k in dict.fromkeys(kernels) if not isinstance(k.body, ForeignSource) or k.body.language == "cuda"]
    if not wanted:
        return {}
    block = max(max(k.num_threads, len(_types(k))) for k in wanted)
    block = -(-block // CUDA.wave) * CUDA.wave
    emitted = {k: emit(k, CUDA, block) for k in wanted}
    device = f"{gpu.name} {gpu.arch}, {num_veus} vEUs of {block} threads"
    store = profile_store(device, f"{nvrtc_version()} {' '.join(OPTIONS)}")
    keys = {k: kernel_key(k, emitted[k].text) for k in wanted}
    with store:
        known = store.get(keys.values())
    found = {k: known[key] for k, key in keys.items() if key in known}
    missing = [k for k in wanted if k not in found]
    deadline = time.monotonic() + 2 * budget_s
    for first in range(0, len(missing), BATCH):
        if time.monotonic() > deadline:
            break
        batch = missing[first : first + BATCH]
        times = _measure_batch(batch, emitted, number, gpu, num_veus, block)
        with store:
            store.put({keys[k]: us for k, us in times.items()})
        found |= times
        progress("profile", min(first + BATCH, len(missing)), len(missing))
    return found


def _measure_batch(
    batch: Sequence[RKernel], emitted: Mapping[RKernel, EmittedKernel], number: int, gpu: Gpu, num_veus: int, block: int
) -> dict[RKernel, float]:
    functions = list(dict.fromkeys(emitted[k] for k in batch))
    max_args = max(len(_types(k)) for k in batch)
    cubin: Cubin = compile_cubin(program_text(functions, CUDA, block, max_args), gpu.arch)
    if cubin.resources.registers * block > 65536:
        raise ToolchainError("kernels to be timed need too many registers", hint="kernels with fewer threads")
    shared = header_bytes(max_args) + aligned(max(k.scratch_bytes for k in batch))
    nbytes = max(sum(aligned(t.nbytes) for t in _types(k)) for k in batch)
    timer = KernelTimer(number, cubin.data, block, shared, num_veus, nbytes)
    empty = timer.launch_us(*lanes(0, 0, 0, num_veus), [0])
    times = {}
    for k in batch:
        offsets = np.cumsum([0, *(aligned(t.nbytes) for t in _types(k))])[:-1].tolist()
        table, bounds = lanes(functions.index(emitted[k]), k.num_rtasks, len(offsets), num_veus)
        times[k] = max((timer.launch_us(table, bounds, offsets) - empty) / TASKS, SHORTEST_US)
    return times


class KernelTimer:
    """Times tasks of one compiled text: every vEU runs some of them in turn, waiting for nobody. `nbytes` is the most
    memory that one kernel's arguments take.
    """

    def __init__(self, number: int, cubin: bytes, threads: int, shared_bytes: int, num_veus: int, nbytes: int) -> None:
        self._cupy = cupy = load_cupy()
        self._device = cupy.cuda.Device(number)
        self._num_veus = num_veus
        with device_errors(cupy, "load kernels"), self._device:
            self._kernel = Kernel(cupy, cubin, threads, shared_bytes)
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._memory = cupy.zeros(max(nbytes, 1), np.uint8)  # zeros are valid indices, and no slow numbers
            self._state = cupy.zeros(LINE * (1 + 2 * num_veus), np.uint32)
            self._waits = cupy.zeros((1, 2), np.int32)

    def launch_us(self, streams: Array, bounds: Array, offsets: Sequence[int], rounds: int = 3) -> float:
        """Least microseconds of a launch; `offsets` are the bytes where arguments begin."""
        cupy, found = self._cupy, []
        with device_errors(cupy, "time kernels"), self._device:
            args = cupy.asarray(self._memory.data.ptr + np.array(offsets, np.int64))
            table, lanes = cupy.asarray(streams), cupy.asarray(bounds)
            cupy.cuda.runtime.deviceSynchronize()
            limit_ns = np.uint64(10**9)
            head = (table, lanes, self._waits, args, self._state, np.int32(0), np.int32(len(streams)), limit_ns)
            for _ in range(1 + rounds):
                begin, end = cupy.cuda.Event(), cupy.cuda.Event()
                begin.record(self._stream)
                self._kernel.launch(self._num_veus, head, self._stream)
                end.record(self._stream)
                end.synchronize()
                found.append(1000 * float(cupy.cuda.get_elapsed_time(begin, end)))
        return float(min(found[1:]))


def lanes(function: int, num_rtasks: int, num_args: int, num_veus: int) -> tuple[Array, Array]:
    """Instructions and bounds: `TASKS` rTasks on each vEU that gets any, no waits."""
    rows: list[tuple[int, ...]] = []
    bounds = [0]
    for veu in range(num_veus):
        if veu < num_rtasks:
            stride = min(num_veus, num_rtasks)
            rows += [(function, (veu + n * stride) % num_rtasks, 0, num_args, 0, 0, 0, n) for n in range(TASKS)]
        rows.append((END, *(0,) * 7))
        bounds.append(len(rows))
    rows += [(END, *(0,) * 7)] * 2  # read ahead, never run
    return np.array(rows, np.int32), np.array(bounds, np.int32)


def _types(kernel: RKernel) -> list[TensorType]:
    return [*kernel.operation.outputs, *kernel.input_types()]
