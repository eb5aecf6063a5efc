"""Parts of rTasks, done by others: kernels of every operator, of which others have taken the first tickets."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from cpus import runnable
from kernel_harness import SLOW_SPEC, SPEC, Built, Runner, compare, compile_all, operation, random_inputs
from test_every_operator import cases, t

from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import Array, channel_blocked
from rammer.ir.verify.kernel import proven
from rammer.kernels import candidates
from rammer.vdevice.cpu.codegen import amx, tickets
from rammer.vdevice.cpu.codegen.emit import emit

BLOCK = channel_blocked(4, 16)
UNIT_SPEC = replace(SPEC, arch=runnable("x86-64-amx"), instructions=amx.AMX, clock_ghz=1 / 64)


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Every iteration has a ticket, however short it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tickets, "LEAST_STEPS", 1)
        patch.setattr(tickets, "FEWEST", 2)
        yield


TAKEN: dict[str, Callable[[int], int]] = {
    "none": lambda count: 0,
    "one": lambda count: min(1, count),
    "all but one": lambda count: max(count - 1, 0),
    "all": lambda count: count,
}


def blocked(channels: int, out: int, size: int, filter: int) -> Operation:
    x, w = t(1, channels, size, size + 2, layout=BLOCK), t(out, channels, filter, filter)
    pads = (filter // 2,) * 4
    return operation("conv", x, w, t(out), static=("w", "bias"), out_layout=BLOCK, pads=pads)


LARGER = {
    "conv": blocked(64, 96, 29, 3),
    "conv-1x1": blocked(128, 160, 14, 1),
    "conv-5x5": blocked(16, 32, 17, 5),
    "matmul": operation("matmul", t(75, 128), t(128, 192), static=("b",)),
    "layer_norm": operation("layer_norm", t(75, 200), t(200), axis=1, epsilon=1e-5),
}


def handed(op: Operation, kernels: list[RKernel], built: Built, symbols: list[str], spec: object) -> int:
    """Check the kernels of an operation that have tickets; how many there were."""
    inputs = random_inputs(op)
    wanted = evaluate_expr(op.expr, inputs)
    seen = 0
    for kernel, symbol in zip(kernels, symbols, strict=True):
        counts = emit(kernel, spec).tickets  # type: ignore[arg-type]
        if not counts or kernel.operation.expr.into or proven(kernel)[1]:
            continue
        seen += 1
        for taken in TAKEN:
            first, second = (_after(taken, Runner(kernel, built.library, symbol, inputs), counts, n) for n in (0, 0xFF))
            for got, other, want in zip(first, second, map(_comparable, wanted), strict=True):
                left = (got != other) & ((got == got) | (other == other))  # what was there before
                whole = taken in ("none", "all")
                assert not want.size or not whole or left.any() == left.all() == (taken == "all"), (kernel.name, taken)
                compare(np.where(left, want, got), want, 2e-5, f"{kernel.name}, {taken} taken before")
    return seen


@pytest.mark.parametrize(
    ("lanes", "half"), [(16, 0), (8, 1), *(pytest.param(*rest, marks=pytest.mark.slow) for rest in ((16, 1), (8, 0)))]
)
def test_parts_of_every_operator_do_not_need_those_before(lanes: int, half: int) -> None:
    """A thread takes tickets from some number on, with scratch of NaN: it stores all their results, to the last.

    Fast tests take every other operation on each of two archs, slow ones the rest.
    """
    arch = "x86-64-avx512" if lanes == 16 else "x86-64-avx2"
    spec = replace(SLOW_SPEC, arch=runnable(arch), lanes=lanes, registers=2 * lanes)
    found = {name: (op, candidates(op, spec)) for name, op in [*cases(lanes).items()][half::2]}
    built = compile_all(found, spec)
    seen = {op.kind for name, (op, ks) in found.items() if handed(op, ks, built, _symbols(built, name), spec)}
    wanted = {found[name][0].kind for name in ("softmax-middle", "layer_norm") if name in found}
    assert len(seen) > 50 and wanted and wanted | {"conv", "matmul", "max_pool"} <= seen


@pytest.mark.parametrize("name", LARGER)
def test_parts_of_larger_operators(name: str) -> None:
    """The same of loops inside of loops, of Winograd's form and of the matrix unit."""
    op, seen = LARGER[name], 0
    for spec in (SLOW_SPEC, UNIT_SPEC):
        kernels = candidates(op, spec)
        built = compile_all({name: (op, kernels)}, spec)
        seen += handed(op, kernels, built, _symbols(built, name), spec)
    assert seen


def _after(taken: str, runner: Runner, counts: Sequence[int], fill: int) -> list[Array]:
    """Results where others took some tickets of each rTask before, on scratch of NaN and memory of `fill`."""
    for array in runner.outputs:
        array.view(np.uint8)[...] = fill
    for rtask, count in enumerate(counts):
        counter = ctypes.c_int64(TAKEN[taken](count))
        runner.context.taken = ctypes.pointer(counter)
        runner.scratch[...] = 0xFF
        runner(rtask)
        assert counter.value <= count + 1, runner.kernel.name  # at most as many, and each vEU takes one too many
    assert runner.context.status == 0
    return [_comparable(r) for r in runner.results()]


def _comparable(array: Array) -> Array:
    return array.view(np.uint8) if array.dtype == bool else array


def _symbols(built: Built, name: str) -> list[str]:
    return [symbol for _, symbol in built.kernels[name][1]]
