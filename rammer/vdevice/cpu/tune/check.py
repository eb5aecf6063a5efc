"""Test rKernels before use: run them in a child process on seeded data, and compare with the expression's meaning."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log2, prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.errors import DeviceError
from rammer.forkpool import run_isolated
from rammer.ir.expr import Cast, Load, TensorExpr, loads, nodes
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation, flops
from rammer.ir.semantics.evaluate import sampled_places, stored_at
from rammer.ir.semantics.rounding import Bounded, bounded_as, unexplained
from rammer.ir.tensor import Array, DType, TensorType, element
from rammer.ir.tile import Apply, TileProgram, statements
from rammer.vdevice.base import Progress
from rammer.vdevice.cpu.codegen.compile import KernelCompiler, in_c
from rammer.vdevice.cpu.tune.seeded import NumberFile, Seeded, Seeds, TrialMemory, bytes_at, padded
from rammer.vdevice.profiles import profile_store, recipe_keys

POINTS = 10  # elements of each output that are compared
MOST_FLOPS = 2e8  # that NumPy computes for these elements
MOST_MAPPED = 1 << 34  # bytes of an rKernel's tensors; only written pages take memory
MOST_WRITTEN = 1 << 30  # bytes of written pages
MOST_SUMMED = 1 << 26  # terms of one element's sum
PATIENCE_S = 30.0  # CPU time of one rKernel
PATIENCE = 20.0  # limit of wall-clock time, as a multiple of PATIENCE_S: other processes may take the CPU
RESULTS_STEP = 2.0**-9  # relative rounding of bf16, of factors that an rKernel has computed itself
HEADER = 64  # bytes of the shared memory: the number of the current trial, and the kernel's status

Places: TypeAlias = NDArray[np.int64]  # an index per column


@dataclass(frozen=True)
class Sample:
    """Sampled elements of an operation's outputs, with their expected values."""

    inputs: Mapping[str, Seeded]
    places: Places
    stored: list[NDArray[np.int64]]  # physical indices of the places, an array for each dimension
    wanted: tuple[Bounded, ...]  # by output: for each place a value and its rounding bound


def sample(
    operation: Operation,
    kinds: Sequence[TensorType],
    narrow: DType | None,
    seeds: Seeds,
    seed: int = 0,
    form: TensorExpr | None = None,
    step: float = 0.0,
) -> Sample:
    """Return seeded inputs as they lie in memory, and the values at corners, edges and in the middle.

    `narrow`: a dtype in which all inputs are exact, because the rKernel rounds them to it. `form` is the expression
    that the rKernel computes; rounding bounds follow it, with computed factors rounded by a relative `step`.
    """
    expr = operation.expr
    places = _places(expr, seed)
    for positive in (False, True):  # some functions are NaN below 0: at least half of a sample must be finite
        inputs = _inputs(operation, kinds, seeds, positive, narrow)
        wanted = bounded_as(expr, form, inputs, places, factor_step=step, random=True)
        if all(2 * np.isfinite(w.value).sum() >= len(places) for w in wanted):
            break
    return Sample(inputs, places, stored_at(expr, inputs, places), tuple(wanted))


def _places(expr: TensorExpr, seed: int) -> Places:
    each = flops(expr) / max(prod(expr.root.shape), 1)
    return sampled_places(expr, int(min(max(MOST_FLOPS / max(each, 1), 3), POINTS)), seed)


def _inputs(
    operation: Operation, kinds: Sequence[TensorType], seeds: Seeds, positive: bool, narrow: DType | None
) -> dict[str, Seeded]:
    """Return inputs for which sums of products stay about 1, and indices that are in bounds."""
    expr = operation.expr
    depth = max((prod(e for _, e in s.reduce) for s in expr.stages if s.reduce and s.combine == "sum"), default=1)
    extents = [d.extent for s in expr.stages for ld, _ in loads(s.body) for d in ld.dynamic]
    extents += [1 for _ in expr.into.dynamic] if expr.into else []  # all rows go to the first place
    widened = {
        n.arg.tensor
        for s in expr.stages
        if s.reduce
        for n in nodes(s.body)
        if isinstance(n, Cast) and isinstance(n.arg, Load) and n.dtype.itemsize > 1
    }
    values: dict[str, Seeded] = {}
    for n, ((name, _), kind, static) in enumerate(zip(expr.inputs, kinds, operation.static, strict=True)):
        if kind.dtype.part.is_float:
            small = kind.rank > 1 and (static or n == len(expr.inputs) - 1)
            exponent = round(-log2(max(depth, 1)) / 2) if small else 0
            values[name] = seeds.floats(kind, n, exponent, positive, narrow)
        elif kind.dtype is DType.BOOL:
            values[name] = seeds.integers(kind, n, 0, 2)
        elif name in widened and kind.dtype in (DType.I8, DType.U8):  # the full range: finds sums that saturate
            limits = np.iinfo(kind.dtype.value)
            values[name] = seeds.integers(kind, n, int(limits.min), int(limits.max) + 1)
        else:
            values[name] = seeds.integers(kind, n, 0 if extents else 1, min([*extents, 4]))
    return values


def _unwritten(values: Array) -> NDArray[np.bool_]:
    """Return which floats were not stored: all bits set, which no computed NaN of more than one byte has."""
    bits = values.view(np.uint8).reshape(len(values), values.dtype.itemsize)
    left: NDArray[np.bool_] = (bits == 0xFF).all(axis=1) & (values != values) & (values.itemsize > 1)
    return left


def check_kernels(
    kernels: Sequence[RKernel], compiler: KernelCompiler, machine: str, every: frozenset[RKernel], progress: Progress
) -> dict[RKernel, str]:
    """Return the errors of C kernels, each tested once on this `machine`. Verdicts are cached."""
    tried = in_c(kernels)
    store = profile_store(machine, compiler.toolchain)
    recipes = recipe_keys(tried, compiler.spec)
    keys = {k: f"{'every' if k in every else 'some'} {recipe}" for k, recipe in recipes.items()}
    known = store.verdicts(keys.values())
    missing = [k for k in tried if keys[k] not in known]
    if missing:
        compiled = compiler.compile(missing, progress)
        address = {k: compiled.address(k) for k in missing}
        with Seeds() as seeds:
            found = try_out(trials(missing, address, every, seeds))
        store.put_verdicts({keys[k]: found.get(k, "") for k in missing})
        known |= {keys[k]: found.get(k, "") for k in missing}
    return {k: known[key] for k, key in keys.items() if known[key]}


def untested(kernels: Iterable[RKernel], every: frozenset[RKernel]) -> dict[RKernel, str]:
    """Return why C kernels are not tested, or why only some rTasks of those in `every` are."""
    why = {}
    for kernel in in_c(kernels):
        if what := _too_large(kernel):
            why[kernel] = f"it is not tried out, as {what}"
        elif kernel in every and not _all_fit(kernel):
            why[kernel] = "only some of its rTasks are tried out, as all would write too much"
    return why


def _too_large(kernel: RKernel) -> str:
    inputs, outputs = kernel.input_types(), kernel.operation.outputs
    written = _nbytes(t for t in inputs if padded(t)) + kernel.scratch_bytes
    written += _nbytes(outputs) * min(POINTS, kernel.num_rtasks) // max(kernel.num_rtasks, 1)
    if written > MOST_WRITTEN or _nbytes((*inputs, *outputs)) > MOST_MAPPED:
        return f"its tensors take {_nbytes((*inputs, *outputs)) / 2**30:.1f} GiB"
    summed = max(prod(e for _, e in s.reduce) for s in kernel.operation.expr.stages)
    return f"an element is made of {summed} others" if summed > MOST_SUMMED else ""


def _all_fit(kernel: RKernel) -> bool:
    return _nbytes(kernel.operation.outputs) <= MOST_WRITTEN


def _nbytes(kinds: Iterable[TensorType]) -> int:
    return sum(kind.nbytes for kind in kinds)


@dataclass(frozen=True)
class KernelTrial:
    """An rKernel, its machine code, and the rTasks to run."""

    kernel: RKernel
    address: int
    sample: Sample
    rtasks: tuple[int, ...]
    nothing: NumberFile  # initial content of outputs and scratch


def trials(
    kernels: Iterable[RKernel], address: Mapping[RKernel, int], every: frozenset[RKernel], seeds: Seeds
) -> list[KernelTrial]:
    """Return the trial of each kernel: the rTasks of sampled elements, or all rTasks."""
    samples: dict[Hashable, Sample] = {}
    made = []
    for kernel in kernels:
        if _too_large(kernel):
            continue
        step = _results_step(kernel)
        recipe = kernel.operation, kernel.input_types(), _rounding(kernel)
        key = *recipe, kernel.form, step
        if key not in samples:
            samples[key] = sample(*recipe, seeds, form=kernel.form, step=step)
        whole = kernel in every and _all_fit(kernel)
        tasks = range(kernel.num_rtasks) if whole else dict.fromkeys(_owners(kernel, samples[key].places))
        made.append(KernelTrial(kernel, address[kernel], samples[key], tuple(tasks), seeds.nothing()))
    return made


def _rounding(kernel: RKernel) -> DType | None:
    """Return a dtype whose numbers the rKernel's instructions do not round; None if they round nothing."""
    body = kernel.body.body if isinstance(kernel.body, TileProgram) else ()
    used = [s.instruction for s in statements(body) if isinstance(s, Apply) and s.instruction.precision != "fp32"]
    rounds = any(i.encoding is None or i.encoding.parts == 1 for i in used)
    return DType.BF16 if rounds else None  # tf32 has more digits; inputs split in two parts need a nonzero second part


def _results_step(kernel: RKernel) -> float:
    """Return the relative rounding of factors that the rKernel itself computes; 0.0 if no instruction rounds them."""
    if not isinstance(kernel.body, TileProgram):
        return 0.0
    own = {b.name for b in kernel.body.scratch}
    copies = [s for s in statements(kernel.body.body) if isinstance(s, Apply) and s.instruction.copies]
    rounds = any(s.operands[-1].buffer in own and s.instruction.precision != "fp32" for s in copies)
    return RESULTS_STEP if rounds else 0.0


def _owners(kernel: RKernel, places: Places) -> list[int]:
    """Return for each place the rTask whose box holds it."""
    axes = [a for a, _ in kernel.operation.expr.root.axes]
    found = []
    for place in places.tolist():
        number = 0
        for digit in kernel.body.digits:  # the largest step of an axis first; smaller ones split the rest
            within = [d.step for d in kernel.body.digits if d.axis == digit.axis and d.step > digit.step]
            at = place[axes.index(digit.axis)] % min(within) if within else place[axes.index(digit.axis)]
            number += at // digit.step * digit.stride
        found.append(number)
    return found


def try_out(tried: Sequence[KernelTrial]) -> dict[RKernel, str]:
    """Run the trials. Returns the errors of rKernels that crash, hang or compute wrong values."""
    wrong: dict[RKernel, str] = {}
    results, start = _Results(tried), 0
    while start < len(tried):
        start, ended = results.run(tried, start)
        if start < len(tried):
            wrong[tried[start].kernel] = ended
            start += 1
    for trial, outputs in zip(tried, results.outputs, strict=True):
        if trial.kernel not in wrong and (what := _differs(trial, outputs)):
            wrong[trial.kernel] = what
    return wrong


class _Results:
    """The sampled elements, in memory shared with the child that computes them."""

    def __init__(self, tried: Sequence[KernelTrial]) -> None:
        sizes = [[len(t.sample.places) * o.dtype.itemsize for o in t.kernel.operation.outputs] for t in tried]
        shared = mmap.mmap(-1, HEADER + sum(-(-n // 8) * 8 for row in sizes for n in row))
        whole = np.frombuffer(shared, np.uint8)
        self._progress = whole[:8].view(np.int64)
        self._status = whole.ctypes.data + 8
        self.outputs: list[list[Array]] = []
        at = HEADER
        for trial, row in zip(tried, sizes, strict=True):
            arrays = []
            for nbytes, kind in zip(row, trial.kernel.operation.outputs, strict=True):
                arrays.append(whole[at : at + nbytes].view(kind.dtype.numpy))
                at += -(-nbytes // 8) * 8
            self.outputs.append(arrays)

    def run(self, tried: Sequence[KernelTrial], start: int) -> tuple[int, str]:
        """Run the trials from `start` in a child. Returns the first that failed, and how it ended.

        Raises DeviceError if there is not enough memory.
        """
        self._progress[0] = start
        try:
            work = partial(self._work, tried, start)
            ended = run_isolated(work, lambda: int(self._progress[0]), PATIENCE * PATIENCE_S)
        except OSError as error:
            name, why = tried[int(self._progress[0])].kernel.name, os.strerror(error.errno or 0)
            hint = "RAMMER_CHECK=0 tries none out"
            raise DeviceError(f"rKernel {name!r} cannot be tried out: {why}", hint=hint) from error
        slow = f"it did not come back within {PATIENCE_S:g} s of computing"
        return int(self._progress[0]), slow if ended.how.endswith("SIGPROF") else ended.how

    def _work(self, tried: Sequence[KernelTrial], start: int) -> None:
        """Run trials in the child, which may crash."""
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p)
        for n, trial in enumerate(tried[start:], start):
            kinds = trial.kernel.operation.outputs
            region = TrialMemory(
                [kind.nbytes for kind in kinds],
                list(trial.sample.inputs.values()),
                trial.kernel.scratch_bytes,
                trial.nothing,
            )
            arguments = np.array(region.starts[:-1], np.int64)
            run: Any = prototype(trial.address)
            signal.setitimer(signal.ITIMER_PROF, PATIENCE_S)
            flat = [bytes_at(at, k.nbytes).view(k.dtype.numpy) for k, at in zip(kinds, region.starts, strict=False)]
            there = [element(kind, trial.sample.stored) for kind in kinds]
            owners = np.array(_owners(trial.kernel, trial.sample.places) if trial.kernel.is_foreign else [])
            for rtask in trial.rtasks:
                run(arguments.ctypes.data, region.starts[-1], rtask, self._status)
                if trial.kernel.is_foreign:  # its boxes are not proven: take each element right after its rTask
                    own = owners == rtask
                    for result, values, at in zip(self.outputs[n], flat, there, strict=True):
                        result[own] = values[at][own]
            for result, values, at in zip(self.outputs[n], flat, there, strict=True):
                before, result[:] = result.copy(), values[at]
                if trial.kernel.is_foreign:
                    rows, others = (a.view(np.uint8).reshape(len(a), a.dtype.itemsize) for a in (result, before))
                    rows[np.any(rows != others, axis=1)] = 0xFF
            region.unmap()
            self._progress[0] = n + 1


def _differs(trial: KernelTrial, outputs: Sequence[Array]) -> str:
    """Return the first sampled element that is wrong, as text; "" if all are right."""
    expr = trial.kernel.operation.expr
    sample, step = trial.sample, _results_step(trial.kernel)
    bound = partial(bounded_as, expr, trial.kernel.form, sample.inputs, factor_step=step, random=True, careful=True)
    for n, (name, _) in enumerate(expr.outputs):
        left = np.flatnonzero(_unwritten(outputs[n]))
        first = int(left[0]) if len(left) else unexplained(outputs[n], sample.wanted[n], n, sample.places, bound)
        if first is not None:
            what = "not written" if len(left) else str(outputs[n][first])
            return f"{name}{sample.places[first].tolist()} is {what} and should be {sample.wanted[n].value[first]}"
    return ""
