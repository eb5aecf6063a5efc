"""Measure rKernels on one vEU while its neighbours run the same. Paper: §3.3, "Compile-time profiling"."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from rammer.errors import DeviceError
from rammer.ir.kernel import RKernel
from rammer.ir.tensor import Array
from rammer.vdevice.base import Progress
from rammer.vdevice.image.arena import aligned
from rammer.vdevice.profiles import kernel_key, profile_store
from rammer.vdevice.simt.codegen.megakernel import program_text
from rammer.vdevice.simt.codegen.printer import EmittedFunction, emit, in_language
from rammer.vdevice.simt.codegen.table import END, LINE, ONLY_WAIT, header_bytes
from rammer.vdevice.simt.runtime.driver import Driver, run_arguments, uploaded

if TYPE_CHECKING:
    from rammer.vdevice.simt.device import GpuVDevice

BATCH = 24  # kernels of one compiler call
TASKS = 32  # of a vEU in one launch: enough to hide the launch's time
LONG_AGO = -1 << 30
PASSED = (0, LONG_AGO), (1, LONG_AGO)  # slots of two vEUs, complete already; each vEU skips itself
SHORTEST_US = 0.05
LIMIT_NS = 1e9


def measure_kernels(
    kernels: Sequence[RKernel], vdevice: GpuVDevice, budget_s: float, progress: Progress
) -> Mapping[RKernel, float]:
    """Return microseconds of one rTask, for each kernel in the GPU's language that the budget reaches.

    Times are cached by model of GPU and by compiler. Raises ToolchainError, DeviceError.
    """
    dialect, gpu = vdevice.dialect, vdevice.gpu
    wanted = in_language(kernels, dialect)
    if not wanted:
        return {}
    block = max(max(k.num_threads, len(k.argument_types())) for k in wanted)
    block = -(-block // dialect.subgroup_size) * dialect.subgroup_size
    emitted = {k: emit(k, dialect, block) for k in wanted}
    device = f"{gpu.name} {gpu.arch}, {vdevice.spec.num_veus} vEUs of {block} threads"
    store = profile_store(device, vdevice.platform.compiler())
    keys = {k: kernel_key(k, emitted[k].text) for k in wanted}
    known = store.get(keys.values())
    found = {k: known[key] for k, key in keys.items() if key in known}
    missing = [k for k in wanted if k not in found]
    deadline = time.monotonic() + 2 * budget_s
    for first in range(0, len(missing), BATCH):
        if time.monotonic() > deadline:
            break
        times = _measure(missing[first : first + BATCH], emitted, vdevice, block)
        store.put({keys[k]: us for k, us in times.items()})
        found |= times
        progress("profile", min(first + BATCH, len(missing)), len(missing))
    if missing:
        progress("profile", len(missing), len(missing))  # also where the time ended before
    return found


def _measure(
    batch: Sequence[RKernel], emitted: Mapping[RKernel, EmittedFunction], vdevice: GpuVDevice, block: int
) -> dict[RKernel, float]:
    functions = list(dict.fromkeys(emitted[k] for k in batch))
    max_args = max(len(k.argument_types()) for k in batch)
    shared = header_bytes(max_args) + aligned(max(k.scratch_bytes for k in batch))
    num_veus = vdevice.spec.num_veus
    code = vdevice.machine_code(program_text(functions, vdevice.dialect, block, max_args))
    try:
        vdevice.check_fits(num_veus, block, shared, code.resources)
    except DeviceError:
        if len(batch) == 1:
            raise
        middle = len(batch) // 2  # many kernels in one text may need more registers than one
        first, rest = (_measure(part, emitted, vdevice, block) for part in (batch[:middle], batch[middle:]))
        return {**first, **rest}
    nbytes = max(sum(aligned(t.nbytes) for t in k.argument_types()) for k in batch)
    with closing(vdevice.driver()) as driver, driver.using("time kernels"):
        timer = DeviceTimer(driver, code.data, block, shared, num_veus, nbytes)
        waits, slots = (timer.launch_us(*lanes(ONLY_WAIT, num_veus, 0, num_veus, n), [0]) for n in (len(PASSED), 0))
        empty = timer.launch_us(*lanes(0, 0, 0, num_veus), [0]) + waits - slots  # a wait is not part of its rTask
        times = {}
        for k in batch:
            offsets = np.cumsum([0, *(aligned(t.nbytes) for t in k.argument_types())])[:-1].tolist()
            table, bounds = lanes(functions.index(emitted[k]), k.num_rtasks, len(offsets), num_veus, len(PASSED))
            times[k] = max((timer.launch_us(table, bounds, offsets) - empty) / TASKS, SHORTEST_US)
        return times


class DeviceTimer:
    """Timer of the tasks of one compiled text.

    Every vEU runs tasks one after another. Each follows a wait that is already satisfied, and that empties the first
    cache as in a plan. `nbytes`: the most memory that one kernel's arguments take.
    """

    def __init__(self, driver: Driver, code: bytes, threads: int, shared_bytes: int, veus: int, nbytes: int) -> None:
        self._driver, self._num_veus = driver, veus
        self._kernel = driver.load(code, threads, shared_bytes)
        self._memory = driver.allocate(nbytes, zeros=True)  # zeros are valid indices, and not denormal
        self._state = driver.allocate(4 * LINE * (1 + 2 * veus), zeros=True)
        self._waits = uploaded(driver, np.array(PASSED, np.int32))

    def launch_us(self, streams: Array, bounds: Array, offsets: Sequence[int], rounds: int = 3) -> float:
        """Return the least microseconds of a launch; `offsets` are the bytes where arguments begin."""
        driver = self._driver
        table, lane_bounds = uploaded(driver, streams), uploaded(driver, bounds)
        args = uploaded(driver, self._memory + np.array(offsets, np.int64))
        head = (table, lane_bounds, self._waits, args, self._state)
        arguments = run_arguments(*head, 0, len(streams), driver.ticks(LIMIT_NS))
        driver.synchronize()
        found = [driver.time_us(lambda: self._kernel.launch(self._num_veus, arguments)) for _ in range(1 + rounds)]
        return min(found[1:])


def lanes(function: int, num_rtasks: int, num_args: int, num_veus: int, num_waits: int = 0) -> tuple[Array, Array]:
    """Return instructions and bounds: `TASKS` rTasks, with `num_waits` waits each, on the first `num_rtasks` vEUs."""
    rows: list[tuple[int, ...]] = []
    bounds = [0]
    for veu in range(num_veus):
        if veu < num_rtasks:
            stride = min(num_veus, num_rtasks)
            rtasks = ((veu + n * stride) % num_rtasks for n in range(TASKS))
            rows += [(function, rtask, 0, num_args, 0, num_waits, 0, n) for n, rtask in enumerate(rtasks)]
        rows.append((END, *(0,) * 7))
        bounds.append(len(rows))
    rows += [(END, *(0,) * 7)] * 2  # prefetched, never run
    return np.array(rows, np.int32), np.array(bounds, np.int32)
