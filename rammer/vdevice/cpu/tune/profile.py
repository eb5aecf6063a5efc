"""Measure times of rKernels on one vEU. Paper: §3.3, "Compile-time profiling"."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.tensor import Array, DType
from rammer.planner.memory import PAGE
from rammer.vdevice.base import Progress
from rammer.vdevice.cpu.codegen.compile import MEASURE, KernelCompiler, in_c
from rammer.vdevice.image.arena import ALIGNMENT, aligned
from rammer.vdevice.image.memory import allocate
from rammer.vdevice.profiles import kernel_key, profile_store, recipe_keys
from rammer.vdevice.toolchain.library import Library

Operands = Literal["in turn", "near", "shared", "far"]

ROUNDS: Mapping[Operands, int] = {"in turn": 3, "near": 2, "shared": 2, "far": 3}  # of a kernel; the least one counts
SHARE_S: Mapping[Operands, float] = {"in turn": 0.003, "near": 0.001, "shared": 0.001, "far": 0.001}  # for one kernel
PASSING = 2  # times the private cache: bytes to stream so that all other data are evicted


def measure_kernels(
    kernels: Sequence[RKernel],
    compiler: KernelCompiler,
    machine: str,
    budget_s: float,
    progress: Progress,
    *,
    operands: Operands = "in turn",
) -> Mapping[RKernel, float]:
    """Return microseconds of one rTask for each C kernel. Kernels that the time budget does not reach are left out.

    Times are cached for this `machine` (a name of its CPU).

    A kernel runs its rTasks over buffers of the operation's size. `operands` says where data are before an rTask.
    `in turn`: as rTasks leave them that run one after another, repeatedly. `near`: in the private cache, as each rTask
    runs several times in a row. `shared`: in the shared cache, evicted from the private one. `far`: in main memory.
    """
    wanted = in_c(kernels)
    if not wanted:
        return {}
    store = profile_store(machine, compiler.toolchain)
    state = "" if operands == "in turn" else f"{operands} "
    recipes = {k: state + key for k, key in recipe_keys(wanted, compiler.spec).items()}
    known = store.get(recipes.values())
    found = {k: known[key] for k, key in recipes.items() if key in known}
    groups = _unknown(wanted, found)
    if not groups:
        return found
    sources = compiler.sources([k for group in groups for k in group])
    keys = {k: state + kernel_key(k, source.key) for k, source in sources.items()}
    known = store.get(keys.values())
    found |= {k: known[key] for k, key in keys.items() if key in known}
    store.put({recipes[k]: found[k] for k, key in keys.items() if key in known})
    groups = _unknown(wanted, found)
    if not groups:
        return found
    compiled = compiler.compile([k for group in groups for k in group], progress)
    timer = Timer(compiler)
    total = sum(map(len, groups))
    share_s = min(SHARE_S[operands], budget_s / total)
    deadline = time.monotonic() + 2 * budget_s
    buffers = _Buffers(groups, PASSING * compiler.spec.l2.nbytes if operands == "shared" else 0)
    done = 0
    for group in groups:
        if time.monotonic() > deadline:
            break
        args, sizes = buffers.fill(group)
        limit_ns = int(share_s / ROUNDS[operands] * 1e9)
        moved = {"far": (sizes.ctypes.data, len(sizes)), "shared": buffers.passing}.get(operands, ())
        at = args.ctypes.data, *moved, buffers.scratch
        timed = timer.functions[operands]
        runs = {k: partial(timed, compiled.address(k), *at, k.num_rtasks, limit_ns) for k in group}
        found |= _measure_group(group, runs, ROUNDS[operands])
        done += len(group)
        progress("profile", done, total)
    progress("profile", total, total)  # also where the time ended before
    store.put({keys[k]: us for k, us in found.items() if k in keys and keys[k] not in known})
    store.put({recipes[k]: us for k, us in found.items()})
    return found


class Timer:
    """The functions of measure.c: nanoseconds of one rTask, by where operands are.

    "far" also takes the operands' sizes, and "shared" a buffer to stream through the private cache.
    """

    def __init__(self, compiler: KernelCompiler) -> None:
        library = Library(compiler.library(*MEASURE))
        pointer, i64 = ctypes.c_void_p, ctypes.c_int64
        timed, limits = (ctypes.c_double, pointer, pointer), (pointer, i64, i64)
        self.functions: Mapping[Operands, Callable[..., float]] = {
            "in turn": library.function("rammer_measure", *timed, *limits),
            "near": library.function("rammer_measure_near", *timed, *limits),
            "shared": library.function("rammer_measure_shared", *timed, pointer, i64, *limits),
            "far": library.function("rammer_measure_far", *timed, pointer, i64, *limits),
        }


def refused_kernels(
    kernels: Sequence[RKernel], compiler: KernelCompiler, machine: str, progress: Progress
) -> Mapping[RKernel, str]:
    """Return kernels without a time that the C compiler rejects, with the reason.

    Their cached time is infinite, so they are not compiled again. Raises ToolchainError if it compiles none.
    """
    store = profile_store(machine, compiler.toolchain)
    recipes = recipe_keys((k for k in in_c(kernels) if not k.is_foreign), compiler.spec)
    known = store.get(recipes.values())
    before = {k: "the C compiler refused it before" for k, key in recipes.items() if known.get(key) == inf}
    missing = [k for k, key in recipes.items() if key not in known]
    refused = compiler.refused(missing, progress) if missing else {}
    store.put({recipes[k]: inf for k in refused})
    return before | refused


def _unknown(kernels: Sequence[RKernel], found: Mapping[RKernel, float]) -> list[list[RKernel]]:
    """Return the candidates of each operation that has candidates without a time."""
    return [g for g in _by_operation(kernels).values() if any(k not in found for k in g)]


def _measure_group(
    group: Sequence[RKernel], run: Mapping[RKernel, Callable[[], float]], rounds: int
) -> dict[RKernel, float]:
    """Measure all candidates of one operation in turn, so that a slow moment of the machine affects all of them."""
    times: dict[RKernel, float] = {}
    best = float("inf")
    for turn in range(rounds):
        for kernel in group:
            if turn and times[kernel] * kernel.num_rtasks > 2 * best:
                continue  # too slow to be chosen
            us = run[kernel]() / 1000
            times[kernel] = min(times.get(kernel, float("inf")), us)
            best = min(best, times[kernel] * kernel.num_rtasks)
    return times


def _by_operation(kernels: Sequence[RKernel]) -> dict[Operation, list[RKernel]]:
    groups: dict[Operation, list[RKernel]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.operation, []).append(kernel)
    return groups


class _Buffers:
    """Memory for one operation at a time, large enough for each."""

    def __init__(self, groups: Iterable[Sequence[RKernel]], passing: int) -> None:
        groups = list(groups)
        self._memory = allocate(max(sum(_sizes(group)) for group in groups))
        self._scratch = allocate(max(k.scratch_bytes for group in groups for k in group))
        self._passing = allocate(passing)
        self._passing[:] = 1  # touch all pages
        self.scratch = self._scratch.ctypes.data
        self.passing = self._passing.ctypes.data, passing

    def fill(self, group: Sequence[RKernel]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Fill each argument of an operation with valid values. Returns their addresses and their sizes in bytes."""
        addresses, at = [], 0
        sizes = _sizes(group)
        for kind, size in zip(group[0].argument_types(), sizes, strict=True):
            addresses.append(self._memory.ctypes.data + at)
            _fill(self._memory[at : at + size].view(kind.dtype.numpy), kind.dtype)
            at += size
        return np.array(addresses, np.int64), np.array(sizes, np.int64)


def _sizes(group: Sequence[RKernel]) -> list[int]:
    """Return bytes of each argument in the largest packing of the candidates.

    None is a multiple of a page, as in arenas: a load may stall on a store to the same offset of another page (4K
    aliasing).
    """
    each = ([t.nbytes for t in k.argument_types()] for k in group)
    sizes = [aligned(max(sizes)) for sizes in zip(*each, strict=True)]
    return [size if size % PAGE else size + ALIGNMENT for size in sizes]


# Numbers that no function turns into NaN or denormals.
_PATTERN = np.random.default_rng(0).uniform(0.25, 1.0, 4096)


def _fill(out: Array, dtype: DType) -> None:
    if not dtype.is_float:
        out[:] = 1  # a valid index almost everywhere, and a valid divisor
        return
    pattern = _PATTERN.astype(dtype.numpy)
    whole = out.size // pattern.size * pattern.size
    out[:whole].reshape(-1, pattern.size)[:] = pattern
    out[whole:] = pattern[: out.size - whole]
