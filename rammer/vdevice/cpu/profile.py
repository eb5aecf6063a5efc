"""Measured times of rKernels on one vEU, and of whole plans. Paper: §3.3, "Compile-time profiling"."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import Array, DType, TensorType
from rammer.vdevice.base import Progress
from rammer.vdevice.cpu.compile import KernelCompiler
from rammer.vdevice.cpu.memory import aligned, allocate
from rammer.vdevice.cpu.runtime import CpuExecutable, Library, Runtime

ROUNDS = 3  # measurements of a kernel; the least one counts
SHARE_S = 0.003  # seconds for one kernel, where the budget allows it


def measure_kernels(
    kernels: Sequence[RKernel], compiler: KernelCompiler, budget_s: float, progress: Progress
) -> Mapping[RKernel, float]:
    """Microseconds of one rTask, for every kernel in C; what the budget does not reach is left out.

    A kernel runs its rTasks in turn over buffers as large as the operation's, so that caches behave as in a run.
    """
    wanted = [k for k in dict.fromkeys(kernels) if not isinstance(k.body, ForeignSource) or k.body.language == "c"]
    if not wanted:
        return {}
    compiled = compiler.compile(wanted, progress)
    runtime = Runtime(compiler.runtime())
    libraries = {name: Library(data) for name, data in compiled.objects.items()}
    address = {k: libraries[name].address(symbol) for k, (name, symbol) in compiled.where.items()}
    share_s = min(SHARE_S, budget_s / len(wanted))
    deadline = time.monotonic() + 2 * budget_s
    buffers = _Buffers(wanted)
    found: dict[RKernel, float] = {}
    done = 0
    for operation, group in _by_operation(wanted):
        if time.monotonic() > deadline:
            break
        buffers.fill(operation)
        calls = [(k, address[k], buffers.arguments(k)) for k in group]
        for _ in range(ROUNDS):  # candidates in turn: a slow moment of the machine hits all of them
            for kernel, function, args in calls:
                limit = int(share_s / ROUNDS * 1e9)
                ns = runtime.measure(function, args.ctypes.data, buffers.scratch, kernel.num_rtasks, limit)
                found[kernel] = min(found.get(kernel, float("inf")), ns / 1000)
        done += len(group)
        progress("profile", done, len(wanted))
    return found


def measure_plan(plan: ExecutionPlan, executable: CpuExecutable, budget_s: float = 0.2) -> float:
    """Microseconds of the fastest of several runs, copies of inputs and outputs not counted."""
    types = plan.graph.types
    inputs = {t: np.zeros(types[t].shape, types[t].dtype.numpy) for t in plan.graph.inputs}
    best, deadline = float("inf"), time.monotonic() + budget_s
    for n in range(1000):
        best = min(best, executable.run_timed(inputs)[1].total_us)
        if n >= 3 and time.monotonic() > deadline:
            break
    return best


def _by_operation(kernels: Sequence[RKernel]) -> Iterator[tuple[Operation, list[RKernel]]]:
    groups: dict[Operation, list[RKernel]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.operation, []).append(kernel)
    yield from groups.items()


class _Buffers:
    """Memory for one operation at a time: numbers around one, which no function turns into NaN or denormals."""

    def __init__(self, kernels: Sequence[RKernel]) -> None:
        self._kernels = kernels
        largest = max(sum(aligned(t.nbytes) for t in _types(k)) for k in kernels)
        self._memory = allocate(largest)
        self._scratch = allocate(max(k.scratch_bytes for k in kernels))
        self.scratch = self._scratch.ctypes.data
        self._filled: list[DType] = []

    def fill(self, operation: Operation) -> None:
        """Give every argument of the operation sensible values."""
        kernels = [k for k in self._kernels if k.operation is operation]
        for kernel in kernels:
            at = 0
            for kind in _types(kernel):
                _fill(self._memory[at : at + kind.nbytes].view(kind.dtype.numpy), kind.dtype)
                at += aligned(kind.nbytes)

    def arguments(self, kernel: RKernel) -> Array:
        """Addresses of the kernel's arguments."""
        addresses, at = [], self._memory.ctypes.data
        for kind in _types(kernel):
            addresses.append(at)
            at += aligned(kind.nbytes)
        return np.array(addresses, np.int64)


def _types(kernel: RKernel) -> list[TensorType]:
    return [*kernel.operation.outputs, *kernel.input_types()]


_PATTERN = np.random.default_rng(0).uniform(0.25, 1.0, 4096)


def _fill(out: Array, dtype: DType) -> None:
    if not dtype.is_float:
        out[:] = 1  # a valid index nearly everywhere, and nothing divides by it in vain
        return
    pattern = _PATTERN.astype(dtype.numpy)
    whole = out.size // pattern.size * pattern.size
    out[:whole].reshape(-1, pattern.size)[:] = pattern
    out[whole:] = pattern[: out.size - whole]
