"""Compile kernels for any arch, run every rTask, and compare with the meaning of the expression."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from typing import NamedTuple

import caches
import numpy as np
from cpus import runnable

from rammer.ir.analysis.dependency import writes
from rammer.ir.analysis.intervals import expand
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation, Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import Array, DType, TensorType, pack, unpack
from rammer.ir.tile import TileProgram
from rammer.vdevice.cpu.codegen.compile import arch_flags
from rammer.vdevice.cpu.codegen.emit import EmittedKernel, emit, function, translation_unit
from rammer.vdevice.cpu.codegen.prefetch import prefetched
from rammer.vdevice.cpu.codegen.printer import CpuPrinter
from rammer.vdevice.cpu.host import host
from rammer.vdevice.toolchain import c_compiler, fingerprint, headers_fingerprint, parallel_jobs
from rammer.vdevice.toolchain.objects import share

CACHE = caches.CACHE / "kernels"
# The last of opposite flags counts. Texts are long, runs short; zig adds a sanitizer to -O0, which needs a library.
FLAGS = ("-O0", "-ffp-contract=on", "-fno-sanitize=undefined")
CALLS = 4  # of the compiler for many kernels, side by side
MANY = 16
SPEC = VDeviceSpec(
    "cpu",
    num_veus=2,
    languages=("c",),
    arch=runnable("x86-64-avx512"),
    lanes=16,
    registers=32,
    memory=(MemoryLevel("L1", 48 << 10, "veu", 500.0), MemoryLevel("L2", 2 << 20, "veu", 250.0)),
    clock_ghz=2.2,
)

SLOW_SPEC = replace(SPEC, num_veus=3, clock_ghz=1e-5)  # so slow that nothing is too small to be cut into tasks


def operation(
    kind: str, *types: TensorType, static: Sequence[str] = (), out_layout: object = None, **attrs: object
) -> Operation:
    """An operation of the registry; `static` names its constant inputs."""
    made = Operations(OPS)
    op = made.define(kind, types, attributes(**attrs))
    names = [n for n, _ in op.expr.inputs]
    outputs = tuple(TensorType(t.shape, t.dtype, out_layout) for t in op.outputs) if out_layout else op.outputs
    return made.retype(op, types, outputs, tuple(n in static for n in names))


class Libraries:
    """Functions of several libraries, as of one."""

    def __init__(self, loaded: Sequence[ctypes.CDLL]) -> None:
        self._loaded = loaded

    def __getattr__(self, symbol: str) -> object:
        found = [getattr(lib, symbol) for lib in self._loaded if hasattr(lib, symbol)]
        assert found, f"no library has {symbol}"
        return found[0]


def library(text: str, arch: str = SPEC.arch) -> ctypes.CDLL:
    """The shared library of a C text, compiled once per text, arch and compiler."""
    compiler = c_compiler()
    flags = (*FLAGS, *arch_flags(arch, compiler.family, host()))
    target = CACHE / f"{fingerprint(compiler.version, headers_fingerprint(), text, *flags)[:20]}.so"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}.so")
        fresh.write_bytes(compiler.compile_shared(text, flags))
        fresh.rename(target)
    return ctypes.CDLL(str(target))


def aligned(array: Array, pad: int = 0) -> Array:
    """A flat copy that starts on a 64-byte boundary."""
    raw = np.zeros(array.nbytes + 128 + pad, np.uint8)
    skip = -raw.ctypes.data % 64
    view = raw[skip : skip + array.nbytes].view(array.dtype)
    view[...] = np.ascontiguousarray(array).ravel()
    return view


def random_inputs(op: Operation, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    values = {}
    for name, kind in op.expr.inputs:
        if kind.dtype.is_float:
            numbers = np.asarray(rng.standard_normal(kind.shape))
            unsigned = kind.dtype is DType.F8E8M0 or op.outputs[0].dtype.value.startswith("uint")
            if op.kind == "cast" and unsigned:
                numbers = np.abs(numbers)  # what becomes of others, and of NaN, depends on the machine
            values[name] = numbers.astype(kind.dtype.numpy)
        elif kind.dtype is DType.BOOL:
            values[name] = rng.random(kind.shape) < 0.5
        elif kind.dtype.is_complex:
            parts = rng.standard_normal((2, *kind.shape))
            values[name] = (parts[0] + 1j * parts[1]).astype(kind.dtype.numpy)
        else:
            low, high = max(-5, int(kind.dtype.info.min)), min(5, int(kind.dtype.info.max))
            values[name] = rng.integers(low, high + 1, kind.shape).astype(kind.dtype.numpy)
    return values


class Context(ctypes.Structure):
    """`context` of runtime.c: a kernel's report, memory that it may ask for ahead of its use, and taken tickets."""

    _fields_ = (
        ("status", ctypes.c_int),
        ("start", ctypes.c_void_p),
        ("lines", ctypes.c_int64),
        ("taken", ctypes.POINTER(ctypes.c_int64)),
    )


def buffers(kernel: RKernel, inputs: Mapping[str, Array]) -> tuple[list[Array], list[Array]]:
    """Memory of the outputs, filled with what no kernel computes, and of the inputs as the kernel reads them."""
    outputs = []
    for kind in kernel.operation.outputs:
        fill = np.full(prod(kind.physical_shape), np.nan if kind.dtype.is_float else 77).astype(kind.dtype.numpy)
        outputs.append(aligned(fill))
    arrays = []
    for (name, _), kind in zip(kernel.operation.expr.inputs, kernel.input_types(), strict=True):
        value = inputs[name]
        if kind.layout is not None:
            value = pack(value, kind.layout)
            if dict(kernel.packing).get(name) is None and kind.dtype.is_float and kind.layout.pads(kind.shape):
                value = np.where(pack(np.ones(kind.shape, bool), kind.layout), value, np.nan).astype(value.dtype)
        arrays.append(aligned(value))
    if kernel.operation.expr.into:
        outputs = arrays[:1]  # an update's result is the memory of what it updates
    return outputs, arrays


class Runner:
    """One kernel, its arrays, and its compiled function."""

    def __init__(self, kernel: RKernel, lib: ctypes.CDLL | Libraries, symbol: str, inputs: dict[str, Array]) -> None:
        self.kernel = kernel
        self.function = getattr(lib, symbol)
        self.function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p]
        outputs, arrays = buffers(kernel, inputs)
        self.outputs, self.arrays = outputs, arrays
        self.pointers = (ctypes.c_void_p * (len(outputs) + len(arrays)))(*(a.ctypes.data for a in (*outputs, *arrays)))
        self.scratch = aligned(np.full(max(kernel.scratch_bytes, 64), 0xFF, np.uint8))
        self.context = Context(0, self.scratch.ctypes.data, 100)

    def __call__(self, rtask: int) -> None:
        self.function(self.pointers, self.scratch.ctypes.data, rtask, ctypes.addressof(self.context))

    def run(self) -> list[Array]:
        for task in range(self.kernel.num_rtasks):
            self(task)
        return self.results()

    def results(self) -> list[Array]:
        values = []
        for array, kind in zip(self.outputs, self.kernel.operation.outputs, strict=True):
            values.append(unpack(array, kind.layout, kind.shape) if kind.layout else array.reshape(kind.shape))
        return values


def check(op: Operation, kernels: Sequence[RKernel], *, rtol: float = 2e-5, spec: VDeviceSpec = SPEC) -> None:
    """Every kernel, run task by task, gives the expression's value; each rTask writes exactly its box."""
    check_compiled(compile_all({"only": (op, kernels)}, spec), "only", rtol)


class Built(NamedTuple):
    library: Libraries
    kernels: dict[str, tuple[Operation, list[tuple[RKernel, str]]]]


def compile_all(
    cases: Mapping[str, tuple[Operation, Sequence[RKernel]]], spec: VDeviceSpec = SPEC, *, check: bool = False
) -> Built:
    """All kernels of all cases, for the spec's arch; with `check`, every access is bounds-checked."""
    make = checked_emit if check else emit
    emitted = {name: [make(k, spec) for k in kernels] for name, (_, kernels) in cases.items()}
    texts = [EmittedKernel("", CHECK)] if check else []
    distinct = {e.symbol: e for es in emitted.values() for e in es}
    groups = share({symbol: len(e.text) for symbol, e in distinct.items()}, CALLS if len(distinct) > MANY else 1)
    units = [translation_unit([*texts, *(distinct[symbol] for symbol in group)], spec) for group in groups]
    with ThreadPoolExecutor(parallel_jobs()) as pool:
        built = Libraries(list(pool.map(lambda unit: library(unit, spec.arch), units)))
    found = {
        name: (op, [(k, e.symbol) for k, e in zip(kernels, emitted[name], strict=True)])
        for name, (op, kernels) in cases.items()
    }
    return Built(built, found)


def check_compiled(built: Built, name: str, rtol: float = 2e-5) -> None:
    op, kernels = built.kernels[name]
    inputs = random_inputs(op)
    wanted = evaluate_expr(op.expr, inputs)
    assert kernels
    for kernel, symbol in kernels:
        runner = Runner(kernel, built.library, symbol, inputs)
        for got, want in zip(runner.run(), wanted, strict=True):
            compare(got, want, rtol, f"{kernel.name} {op.expr.inputs}")
        assert runner.context.status == 0
        check_boxes(kernel, Runner(kernel, built.library, symbol, inputs))


def check_boxes(kernel: RKernel, runner: Runner) -> None:
    """rTask by rTask: what changed from the fill lies in box(rtask)."""
    tasks = range(kernel.num_rtasks) if kernel.num_rtasks <= 6 else (0, kernel.num_rtasks // 2, kernel.num_rtasks - 1)
    for task in tasks:
        for array in runner.outputs:
            fill = np.nan if DType(array.dtype.name).is_float else 77
            array[...] = np.full(array.shape, fill).astype(array.dtype)
        before = [a.copy() for a in runner.results()]
        runner(task)
        box = kernel.box(task)
        inside = tuple(slice(*box[a]) for a, _ in kernel.operation.expr.root.axes)
        for old, new in zip(before, runner.results(), strict=True):
            with np.errstate(invalid="ignore"):  # bits of any number: signalling NaN, too
                changed = (old != new) & ~((old != old) & (new != new))
            mask = np.zeros(new.shape, bool)
            if kernel.operation.expr.into:
                mask.reshape(-1)[expand(writes(kernel, 0, task))] = True
            else:
                mask[inside] = True
            assert not (changed & ~mask).any(), f"{kernel.name}: rTask {task} writes outside {box}"


def compare(got: Array, want: Array, rtol: float, what: str) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype, what
    dtype = DType(got.dtype.name)
    if not dtype.is_float:
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    assert (np.isfinite(a) == finite).all(), f"{what}: not finite where it should be"
    np.testing.assert_array_equal(a[~finite], b[~finite], err_msg=what)
    coarse = {1: dtype.epsilon, 2: 4e-3, 4: rtol, 8: 1e-12}[got.dtype.itemsize] * (
        8 if str(got.dtype) == "bfloat16" else 1
    )
    scale = np.abs(b[finite]).max(initial=0)
    error = np.abs(a[finite] - b[finite]).max(initial=0)
    assert error <= coarse * scale + 1e-30, f"{what}: error {error} at scale {scale}"


class CheckedPrinter(CpuPrinter):
    """Sets *status to 2 where an access leaves its buffer, and makes it at element 0 instead."""

    def place(self, buffer: str, index: str, reach: int) -> str:
        sizes = {b.name: b.size for b in (*self.program.arguments, *self.program.scratch)}
        if buffer not in sizes:
            return super().place(buffer, index, reach)
        return f"{buffer}[checked({index}, {reach}, {sizes[buffer]}, status)]"


CHECK = """
INLINE long checked(long i, long reach, long size, int *status) {
  long low = reach > 0 ? i : i + reach + 1, high = reach > 0 ? i + reach : i + 1;
  if (low >= 0 && high <= size) return i;
  *status = 2;
  return reach > 0 ? 0 : -reach - 1;
}
"""


def checked_emit(kernel: RKernel, spec: VDeviceSpec) -> EmittedKernel:
    """The kernel's text with every access checked."""
    assert isinstance(kernel.body, TileProgram)
    return function(CheckedPrinter(prefetched(kernel.body, spec), spec.lanes))
