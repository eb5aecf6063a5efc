"""Asking ahead, in kernels: a recorder in place of the instruction."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cpus import runnable
from kernel_harness import SPEC, Runner, check, library, random_inputs

from rammer.ir.expr import Load, Stage, TensorExpr
from rammer.ir.index import var
from rammer.ir.operator import OpDef, Operation, Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import TensorType, channel_blocked
from rammer.kernels import candidates
from rammer.vdevice.cpu.codegen import amx
from rammer.vdevice.cpu.codegen.emit import emit, translation_unit
from rammer.vdevice.cpu.runtime.table import LINE_BYTES

UNIT_SPEC = replace(SPEC, arch=runnable("x86-64-amx"), instructions=amx.AMX, clock_ghz=1 / 64)
PACE = 32  # lines of a block: sums of 128 products, a line for 4 of them
MARGIN = 1 << 20  # bytes: a kernel asks for the panel after its last one, too, wherever that is

# requests with the hint of the second cache are kept in memory, for everybody to read
MOST = 1 << 18
RECORDER = f"""
long num_asked; const void *asked_for[{MOST}];
static void record(const void *p, int hint) {{ if (hint == 2) asked_for[num_asked++ % {MOST}] = p; }}
#define __builtin_prefetch(p, write, hint) record(p, hint)
"""


def static(op: Operation, *which: bool) -> Operation:
    made = Operations(OPS)
    op = made.define(op.kind, op.inputs)
    return made.retype(op, op.inputs, op.outputs, which)


def matmul() -> Operation:
    made = Operations(OPS)
    return static(made.define("matmul", (TensorType((40, 128)), TensorType((128, 96)))), False, True)


def cell() -> Operation:
    types = (TensorType((4, 4, 128)), TensorType((4, 128)), TensorType((4, 128)), TensorType((4, 128, 128)))
    return static(Operations(OPS).define("lstm_cell", types), False, False, False, True)


def unit_matmul() -> Operation:
    made = Operations(OPS)
    return static(made.define("matmul", (TensorType((96, 128)), TensorType((128, 128)))), False, True)


def grouped_conv() -> Operation:
    """Blocks inside more loops than their own."""
    blocked = channel_blocked(4, 16)
    x, w = TensorType((1, 256, 16, 16), layout=blocked), TensorType((256, 64, 3, 3))
    made = Operations(OPS)
    op = made.define("conv", (x, w), attributes(pads=(1, 1, 1, 1), group=4))
    outputs = tuple(TensorType(t.shape, t.dtype, blocked) for t in op.outputs)
    return made.retype(op, (x, w), outputs, (False, True))


@pytest.mark.parametrize("make", [matmul, cell, grouped_conv, unit_matmul], ids=lambda f: f.__name__)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_each_line_is_asked_for_once(make: Callable[[], Operation], share: float) -> None:
    op = make()
    spec = UNIT_SPEC if make is unit_matmul else SPEC
    inputs = random_inputs(op)
    asking = 0
    for kernel in candidates(op, spec):
        emitted = emit(kernel, spec)
        if not emitted.capacity:
            continue
        asking += 1
        lib = library(RECORDER + translation_unit([emitted], spec), spec.arch)
        runner = Runner(kernel, lib, emitted.symbol, inputs)
        lines = int(emitted.capacity * share)
        memory = np.zeros(MARGIN + (lines + PACE) * LINE_BYTES + MARGIN, np.uint8)[MARGIN:-MARGIN]
        runner.context.start, runner.context.lines = memory.ctypes.data, lines
        number = ctypes.c_long.in_dll(lib, "num_asked")
        number.value = 0  # the library is one that an earlier test used, too
        runner(0)
        assert number.value <= MOST
        asked_for = (ctypes.c_size_t * number.value).in_dll(lib, "asked_for")
        found = [address - memory.ctypes.data for address in asked_for]
        found = [offset for offset in found if 0 <= offset < memory.nbytes]  # panels of the kernel's own are elsewhere
        assert found == [LINE_BYTES * n for n in range(len(found))]  # in order, each once
        assert lines <= len(found) < lines + PACE  # blocks ask whole
        assert runner.context.status == 0
    assert asking


@pytest.mark.parametrize("names", [("next", "soon"), ("asked", "ahead"), ("context", "along"), ("turn", "lines")])
def test_operands_may_have_any_name(names: tuple[str, str]) -> None:
    """A plugin's operand is read, and not what the kernel asks with."""
    left, right = names
    i, j, k = var("i"), var("j"), var("k")
    rows, inner, columns = 40, 128, 96

    def express(a: TensorType, b: TensorType) -> TensorExpr:
        product = Load(left, (i, k)) * Load(right, (k, j))
        stage = Stage("o", (("i", rows), ("j", columns)), product, (("k", inner),))
        return TensorExpr("product", ((left, a), (right, b)), (stage,), (("o", TensorType((rows, columns))),))

    made = Operations({"product": OpDef("product", express)})
    op = made.define("product", (TensorType((rows, inner)), TensorType((inner, columns))))
    kernels = candidates(op, SPEC)
    assert any(emit(kernel, SPEC).capacity for kernel in kernels)
    check(op, kernels)
