"""Microbenchmarks that need more of CUDA's driver than cupy has, and those of our own loop of instructions."""

from __future__ import annotations

import importlib
import statistics
from contextlib import closing
from typing import Any

from benchmarks.gpu.micro_results import Micro
from benchmarks.gpu.micro_texts import EMPTY, FOLLOWING, THREADS
from rammer.errors import DeviceError
from rammer.vdevice.cuda.build import compile_cubin
from rammer.vdevice.cuda.driver import CudaDriver
from rammer.vdevice.simt.codegen.megakernel import header_bytes, program_text
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.table import ONLY_WAIT
from rammer.vdevice.simt.tune.profile import PASSED, TASKS, DeviceTimer, lanes

LAUNCHES = 200
REPEATS = 7
SHARED_BYTES = 200 << 10  # of a block with resident weights


def clusters(cupy: Any, arch: str, num_sms: int) -> list[Micro]:
    """How many clusters of 8 and of 16 blocks the GPU holds at once, a block on each multiprocessor."""
    driver = _driver()
    function, keep = _function(cupy, EMPTY, arch)
    attributes = driver.CUfunction_attribute
    _checked(
        driver.cuFuncSetAttribute(function, attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
        driver.cuFuncSetAttribute(function, attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, SHARED_BYTES),
    )
    found = []
    for size in (4, 8, 16):
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = num_sms // size * size, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
        config.sharedMemBytes = SHARED_BYTES
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = size, 1, 1
        config.attrs, config.numAttrs = [attribute], 1
        status, count = driver.cuOccupancyMaxActiveClusters(function, config)
        _checked((status,))
        found.append(Micro(f"clusters of {size} blocks at once", float(count), float(count), "clusters"))
    del keep
    return found


def following(cupy: Any, arch: str, num_sms: int) -> list[Micro]:
    """A node of a graph whose blocks begin while those of the node before end."""
    driver = _driver()
    function, keep = _function(cupy, FOLLOWING, arch)
    stream = cupy.cuda.Stream(non_blocking=True)
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    found = []
    for what, count in (("node of a graph of the same kernels", 0), ("programmatic node of a graph", 1)):
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = num_sms, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
        config.hStream = driver.CUstream(stream.ptr)
        if count:  # a list that is emptied is freed twice by the bindings
            config.attrs, config.numAttrs = [attribute], count
        with stream:
            stream.begin_capture()
            try:
                for _ in range(LAUNCHES):
                    _checked(driver.cuLaunchKernelEx(config, function, 0, 0))
            finally:
                graph = stream.end_capture()
        times = []
        for _ in range(1 + REPEATS):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(1e3 * float(cupy.cuda.get_elapsed_time(begin, end)) / LAUNCHES)
        found.append(Micro(what, statistics.median(times[1:]), min(times[1:])))
    del keep
    return found


def slots(cupy: Any, arch: str, num_sms: int) -> list[Micro]:
    """An instruction without a task, and one that waits for what has been there long; the launch of no instructions."""
    block, found = THREADS, []
    code = compile_cubin(program_text([], CUDA, block, 0), arch)
    with closing(CudaDriver(cupy.cuda.runtime.getDevice())) as driver, driver.using("time slots"):
        timer = DeviceTimer(driver, code.data, block, header_bytes(0), num_sms, 256)

        def us(instructions: int, waits: int) -> float:
            return timer.launch_us(*lanes(ONLY_WAIT, instructions, 0, num_sms, waits), [0], REPEATS)

        nothing, empty, waiting = us(0, 0), us(num_sms, 0), us(num_sms, len(PASSED))
        found.append(Micro("launch of the loop without instructions", nothing, nothing))
        found.append(Micro("an empty slot", (empty - nothing) / TASKS, (empty - nothing) / TASKS))
        found.append(Micro("a wait for what is there, of a slot", (waiting - empty) / TASKS, (waiting - empty) / TASKS))
    return found


def _driver() -> Any:
    """The bindings of CUDA's driver. Raises ImportError."""
    return importlib.import_module("cuda.bindings.driver")


def _function(cupy: Any, text: str, arch: str) -> tuple[Any, Any]:
    """A kernel as the driver has it, and what keeps it loaded."""
    module = cupy.cuda.Module()
    module.load(compile_cubin(text, arch).data)
    function = module.get_function("micro")
    return _driver().CUfunction(function.ptr), (module, function)


def _checked(*statuses: tuple[Any, ...]) -> None:
    for status, *_ in statuses:
        if int(status):
            raise DeviceError(f"the driver says {status.name}")
