"""rKernels tried out before they are used: in a child process, on seeded data, against what the expression means."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rammer.ir.evaluate import evaluate_box
from rammer.ir.expr import TensorExpr, loads
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation, flops
from rammer.ir.tensor import Array, DType, TensorType, pack
from rammer.ir.tile import TileProgram
from rammer.vdevice.base import Progress
from rammer.vdevice.cpu.compile import KernelCompiler
from rammer.vdevice.library import Library
from rammer.vdevice.placement import aligned
from rammer.vdevice.profiles import profile_store, recipe_keys

POINTS = 10  # elements of every output that are compared
MOST_FLOPS = 2e8  # of the elements that are computed in NumPy
MOST_BYTES = 1 << 28  # of one operation's tensors: larger ones are not tried out
BATCH_BYTES = 1 << 29  # of the tensors that one child process works on
PATIENCE_S = 30.0  # how long one rKernel may take
SPREAD = 65_521  # a prime: numbers repeat in no dimension's rhythm
MOVED, SLACK = 32, 8.0  # at most so many runs of rounded inputs; a value may be so many times farther off than it moves
PAGE = mmap.PAGESIZE

Box = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Sample:
    """Elements of an operation's outputs and what they should be."""

    inputs: Mapping[str, Array]
    places: tuple[tuple[int, ...], ...]
    wanted: tuple[Array, ...]  # by output, a value for each place
    allowed: tuple[float, ...]  # by output: how far a value may be off, by rounding


def sample(operation: Operation, seed: int = 0) -> Sample:
    """Seeded inputs, and the values at corners, edges and in the middle."""
    expr = operation.expr
    places = _places(expr, seed)
    for positive in (False, True):  # some functions have no value below 0: most of a sample must be numbers
        inputs = _inputs(operation, seed, positive)
        with np.errstate(all="ignore"):
            values = [evaluate_box(expr, inputs, _box(expr, place)) for place in places]
        wanted = tuple(np.array([v[n].reshape(()) for v in values]) for n in range(len(expr.outputs)))
        if all(2 * np.isfinite(w.astype(np.float64)).sum() >= len(w) for w in wanted):
            break
    return Sample(inputs, places, wanted, tuple(_allowance(expr, w) for w in wanted))


def _box(expr: TensorExpr, place: Sequence[int]) -> Box:
    return {axis: (p, p + 1) for (axis, _), p in zip(expr.root.axes, place, strict=True)}


def _places(expr: TensorExpr, seed: int) -> tuple[tuple[int, ...], ...]:
    shape = expr.root.shape
    if 0 in shape:
        return ()
    random = np.random.default_rng(seed)
    each = flops(expr) / max(prod(shape), 1)
    count = int(min(max(MOST_FLOPS / max(each, 1), 3), POINTS))
    rows = [tuple(0 for _ in shape), tuple(e - 1 for e in shape), tuple(e // 2 for e in shape)]
    while len(rows) < count:
        ends = [(0, min(1, e - 1), int(random.integers(e)), max(e - 2, 0), e - 1) for e in shape]
        rows.append(tuple(int(random.choice(end)) for end in ends))
    return tuple(dict.fromkeys(rows[:count]))


def _inputs(operation: Operation, seed: int, positive: bool) -> dict[str, Array]:
    """Numbers of which sums of products stay about 1, and indices that are inside of what they index."""
    expr = operation.expr
    random = np.random.default_rng(seed)
    normal = random.standard_normal(SPREAD)
    depth = max((prod(e for _, e in s.reduce) for s in expr.stages if s.reduce and s.combine == "sum"), default=1)
    extents = [d.extent for s in expr.stages for ld, _ in loads(s.body) for d in ld.dynamic]
    values: dict[str, Array] = {}
    for n, ((name, kind), static) in enumerate(zip(expr.inputs, operation.static, strict=True)):
        if kind.dtype.is_float:
            scale = depth**-0.5 if kind.rank > 1 and (static or n == len(expr.inputs) - 1) else 1.0
            pattern: Array = np.roll(np.abs(normal) + 0.1 if positive else normal, 7919 * n) * scale
        elif kind.dtype is DType.BOOL:
            pattern = random.random(SPREAD) < 0.5
        else:
            pattern = random.integers(0 if extents else 1, min([*extents, 4]), SPREAD)
        values[name] = np.resize(pattern.astype(kind.dtype.numpy), kind.shape)
    return values


def _allowance(expr: TensorExpr, wanted: Array) -> float:
    """What rounding explains: grows with the depth of the sums, and with the largest value."""
    if wanted.dtype.kind in "iub":
        return 0.0
    depth = sum(prod(e for _, e in s.reduce) for s in expr.stages if s.reduce)
    narrow = min((k.dtype.itemsize for _, k in (*expr.inputs, *expr.outputs) if k.dtype.is_float), default=4)
    epsilon = {2: 2.0**-8, 4: 2.0**-23, 8: 2.0**-52}[narrow]
    finite = wanted.astype(np.float64)
    scale = np.abs(finite[np.isfinite(finite)]).max(initial=0.0)
    return float((64 + depth**0.5 * 8 if narrow < 8 else 256 + depth) * epsilon * max(scale, 1e-3))


def _rounds_to(
    got: float, allowed: float, expr: TensorExpr, inputs: Mapping[str, Array], place: Sequence[int], output: int
) -> bool:
    """Whether a value moves about as far when its inputs move by a rounding: the logarithm of a sum near 1 by all."""
    random = np.random.default_rng(0)

    def value(given: Mapping[str, Array]) -> float:
        with np.errstate(all="ignore"):
            return float(evaluate_box(expr, given, _box(expr, place))[output].reshape(()))

    def near(array: Array, kind: TensorType) -> Array:
        if not kind.dtype.is_float:
            return array
        epsilon = {2: 2.0**-8, 4: 2.0**-23, 8: 2.0**-52}[kind.dtype.itemsize]
        return (array * (1 + epsilon * random.choice((-2.0, -1.0, 1.0, 2.0), array.shape))).astype(array.dtype)

    still = value(inputs)
    for _ in range(MOVED):
        allowed = max(allowed, SLACK * abs(value({n: near(inputs[n], kind) for n, kind in expr.inputs}) - still))
        if abs(got - still) <= allowed:
            return True
    return False


def check_kernels(
    kernels: Sequence[RKernel], compiler: KernelCompiler, machine: str, every: frozenset[RKernel], progress: Progress
) -> dict[RKernel, str]:
    """What is wrong with kernels in C, each tried out once on this `machine`; what was found is kept in the cache."""
    tried = [k for k in dict.fromkeys(kernels) if isinstance(k.body, TileProgram)]
    store = profile_store(machine, compiler.toolchain)
    recipes = recipe_keys(tried, compiler.spec)
    keys = {k: f"{'every' if k in every else 'some'} {recipe}" for k, recipe in recipes.items()}
    with store:
        known = store.verdicts(keys.values())
    missing = [k for k in tried if keys[k] not in known]
    if missing:
        compiled = compiler.compile(missing, progress)
        libraries = {name: Library(data) for name, data in compiled.objects.items()}
        address = {k: libraries[name].address(symbol) for k, (name, symbol) in compiled.where.items()}
        found = try_out(trials(missing, address, every))
        with store:
            store.put_verdicts({keys[k]: found.get(k, "") for k in missing})
        known |= {keys[k]: found.get(k, "") for k in missing}
    return {k: known[key] for k, key in keys.items() if known[key]}


@dataclass(frozen=True)
class Trial:
    """An rKernel, its machine code, and the rTasks that are tried."""

    kernel: RKernel
    address: int
    sample: Sample
    rtasks: tuple[int, ...]


def trials(kernels: Iterable[RKernel], address: Mapping[RKernel, int], every: frozenset[RKernel]) -> Iterator[Trial]:
    """What to run of each kernel: the rTasks of sampled elements, or all. Very large operations are left out."""
    samples: dict[Operation, Sample] = {}
    for kernel in kernels:
        operation = kernel.operation
        if sum(t.nbytes for t in _types(kernel)) > MOST_BYTES:
            continue
        if operation not in samples:
            samples[operation] = sample(operation)
        tasks = range(kernel.num_rtasks) if kernel in every else _rtasks(kernel, samples[operation].places)
        yield Trial(kernel, address[kernel], samples[operation], tuple(tasks))


def _types(kernel: RKernel) -> list[TensorType]:
    return [*kernel.operation.outputs, *kernel.input_types()]


def _rtasks(kernel: RKernel, places: Sequence[tuple[int, ...]]) -> list[int]:
    """The rTasks whose boxes hold the places."""
    axes = [a for a, _ in kernel.operation.expr.root.axes]
    found: dict[int, None] = {}
    for place in places:
        number = 0
        for digit in kernel.body.digits:  # the largest step of an axis first: what is left is for smaller ones
            within = [d.step for d in kernel.body.digits if d.axis == digit.axis and d.step > digit.step]
            at = place[axes.index(digit.axis)] % min(within) if within else place[axes.index(digit.axis)]
            number += at // digit.step * digit.stride
        found[number] = None
    return list(found)


def try_out(tried: Iterable[Trial]) -> dict[RKernel, str]:
    """What is wrong with those rKernels that crash, do not come back, or compute something else."""
    wrong: dict[RKernel, str] = {}
    for batch in _batches(tried):
        memory = _Memory(batch)
        start = 0
        while start < len(batch):
            start, ended = memory.run(batch, start)
            if start < len(batch):
                wrong[batch[start].kernel] = ended
                start += 1
        for n, trial in enumerate(batch):
            if trial.kernel not in wrong and (what := memory.differs(n, trial)):
                wrong[trial.kernel] = what
    return wrong


def _batches(tried: Iterable[Trial]) -> Iterator[list[Trial]]:
    batch: list[Trial] = []
    used = 0
    for trial in tried:
        size = sum(_room(t.nbytes) for t in _types(trial.kernel)) + _room(trial.kernel.scratch_bytes)
        if batch and used + size > BATCH_BYTES:
            yield batch
            batch, used = [], 0
        batch.append(trial)
        used += size
    if batch:
        yield batch


def _room(nbytes: int) -> int:
    """Whole pages, and one more that nobody may touch."""
    return -(-max(nbytes, 1) // PAGE) * PAGE + PAGE


class _Memory:
    """The tensors of a batch, shared with the child that works on them, each right before a page out of bounds."""

    def __init__(self, batch: Sequence[Trial]) -> None:
        sizes = [[*(t.nbytes for t in _types(trial.kernel)), trial.kernel.scratch_bytes] for trial in batch]
        self._map = mmap.mmap(-1, 2 * PAGE + sum(_room(n) for row in sizes for n in row))
        whole = np.frombuffer(self._map, np.uint8)
        base = whole.ctypes.data
        self._progress = whole[:8].view(np.int64)
        self._status = base + 64
        at = PAGE
        self.outputs: list[list[Array]] = []
        self._arguments: list[NDArray[np.int64]] = []
        self._scratch: list[int] = []
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for trial, row in zip(batch, sizes, strict=True):
            starts = []
            for nbytes in row:
                end = at + _room(nbytes) - PAGE
                starts.append((end - aligned(nbytes)) if nbytes else at)
                protect(base + end, PAGE, 0)
                at = end + PAGE
            kinds = _types(trial.kernel)
            arrays = [whole[s : s + k.nbytes] for s, k in zip(starts, kinds, strict=False)]
            count = len(trial.kernel.operation.outputs)
            self.outputs.append(arrays[:count])
            for array in arrays[:count]:
                array[:] = 0xFF  # NaN, or what nobody computes
            names = [n for n, _ in trial.kernel.operation.expr.inputs]
            for array, name, kind in zip(arrays[count:], names, kinds[count:], strict=True):
                value = trial.sample.inputs[name]
                packed = pack(value, kind.layout) if kind.layout else value
                array[:] = np.ascontiguousarray(packed).reshape(-1).view(np.uint8)
            whole[starts[-1] : starts[-1] + row[-1]] = 0xFF
            self._arguments.append(np.array([base + s for s in starts[:-1]], np.int64))
            self._scratch.append(base + starts[-1])

    def run(self, batch: Sequence[Trial], start: int) -> tuple[int, str]:
        """Run the trials from `start` on in a child: the first one that did not end well, and how it ended."""
        self._progress[0] = start
        with warnings.catch_warnings():  # the child runs kernels only, whatever threads there are here
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            try:
                self._work(batch, start)
            finally:
                os._exit(0)
        deadline, seen = time.monotonic() + PATIENCE_S, start
        while True:
            done, code = os.waitpid(child, os.WNOHANG)
            now = int(self._progress[0])
            if done:
                ended = signal.Signals(os.WTERMSIG(code)).name if os.WIFSIGNALED(code) else "an error"
                return now, f"it ended by {ended}"
            if now != seen:
                deadline, seen = time.monotonic() + PATIENCE_S, now
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return now, f"it did not come back within {PATIENCE_S:g} s"
            time.sleep(0.0005)

    def _work(self, batch: Sequence[Trial], start: int) -> None:
        """In the child, which may crash: nobody wants to read how."""
        faulthandler.disable()
        kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p)
        for n in range(start, len(batch)):
            run: Any = kernel(batch[n].address)
            for rtask in batch[n].rtasks:
                run(self._arguments[n].ctypes.data, self._scratch[n], rtask, self._status)
            self._progress[0] = n + 1

    def differs(self, number: int, trial: Trial) -> str:
        """The first sampled element that is not what it should be."""
        kernel = trial.kernel
        for n, (name, kind) in enumerate(kernel.operation.expr.outputs):
            flat = self.outputs[number][n].view(kind.dtype.numpy)
            wanted, allowed = trial.sample.wanted[n], trial.sample.allowed[n]
            for place, want in zip(trial.sample.places, wanted, strict=True):
                got = flat[_element(kind, place)]
                if not _agrees(got, want, allowed) and not _rounds_to(
                    float(got), allowed, kernel.operation.expr, trial.sample.inputs, place, n
                ):
                    return f"{name}{list(place)} is {got} and should be {want}"
        return ""


def _element(kind: TensorType, place: Sequence[int]) -> int:
    """Where a place lies in memory."""
    index = place
    if kind.layout is not None:
        index = [place[d.dim] // d.div % d.mod if d.mod else place[d.dim] // d.div for d in kind.layout.digits]
    flat = 0
    for at, extent in zip(index, kind.physical_shape, strict=True):
        flat = flat * extent + at
    return flat


def _agrees(got: Any, want: Any, allowed: float) -> bool:
    if got == want or (got != got and want != want):
        return True
    return bool(allowed) and abs(float(got) - float(want)) <= allowed
