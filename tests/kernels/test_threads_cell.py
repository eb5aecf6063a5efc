"""Cells of recurrent networks on many threads: what they are made of, as numbers; results are those of `check`."""

from __future__ import annotations

import re

import numpy as np
import onnx.parser
import pytest
from kernel_harness import operation
from simt_harness import GPU, build, check
from stages import operations
from test_every_operator import t

import rammer
from rammer.ir.operator import Operation
from rammer.ir.verify.kernel import prove
from rammer.kernels import candidates
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.printer import emit
from rammer_viz.demo import lstm_stack

SHAPES = [(1, 128), (1, 256), (3, 200), (1, 75), (2, 640), (1, 30)]  # batch, units


def cell(batch: int, units: int) -> Operation:
    state = t(batch, units)
    return operation("lstm_cell", t(batch, 4, units), state, state, t(4, units, units), static=("r",))


@pytest.fixture(scope="module")
def built():
    cases = {f"{b}x{u}": cell(b, u) for b, u in SHAPES}
    return build({name: (op, candidates(op, GPU)) for name, op in cases.items()})


@pytest.mark.parametrize("name", [f"{b}x{u}" for b, u in SHAPES])
def test_cells_compute_the_expression(built, name: str) -> None:
    check(built, name, boxes=False)


@pytest.mark.parametrize(("batch", "units"), SHAPES)
def test_no_thread_waits_for_another_wave(batch: int, units: int) -> None:
    """A cell had six block syncs of its own; and its proof holds."""
    kernels = [k for k in candidates(cell(batch, units), GPU) if "_cell" in k.name.removeprefix("lstm_cell")]
    assert kernels
    for kernel in kernels:
        assert kernel.num_block_syncs == 0 and kernel.scratch_bytes == 0, kernel.name
        assert prove(kernel) == (), kernel.name


@pytest.mark.parametrize("units", [128, 200, 256])
def test_loads_are_vectors_and_come_first(units: int) -> None:
    """Weights and state by 16 bytes; the input's part and the old state before the sums, which hide them."""
    kernel = next(k for k in candidates(cell(1, units), GPU) if "_cell8" in k.name)
    text = emit(kernel, CUDA, 256).text
    assert re.findall(r"[^V(]\b[hr]\[", text.split("{", 1)[1]) == []
    assert text.index("gx[") < text.index("c[") < text.index("V(h[") < text.index("mk_fold_sum<")
    assert text.count("mk_fold_sum<") == 1 and "mk_sync" not in text


def test_products_of_one_row_fold_too() -> None:
    """A reduction was a tree with three block syncs, of loads of single numbers."""
    op = operation("matmul", t(1, 256), t(1024, 256), trans_b=True, static=("b",))
    for kernel in candidates(op, GPU):
        assert kernel.num_block_syncs == 0, kernel.name
        assert "V(a[" in emit(kernel, CUDA, 256).text, kernel.name


@pytest.mark.parametrize("units", [75, 100])
def test_sums_of_all_gates_in_tasks_of_twenty_units(units: int) -> None:
    """Where tasks of 16 are too many for all vEUs, and of 32 more than they have room for."""
    products = {op for op in operations(rammer.from_onnx(lstm_stack(2, 3, units)), GPU) if op.kind == "gate_matmul"}
    assert products
    for op in products:
        kernels = [k for k in candidates(op, GPU) if "_sum" in k.name]
        assert {-(-units // k.num_rtasks) for k in kernels} == {-(-units // -(-units // n)) for n in (20, 32)}
        assert all(k.num_block_syncs == 0 and prove(k) == () for k in kernels)
        check(build({"sums": (op, kernels)}), "sums", boxes=False)


def test_a_sum_that_is_a_result_leaves_its_registers() -> None:
    """Statistics: a sum, and what is made of it; as a cell it was never stored."""
    text = """<ir_version: 10, opset_import: ["" : 24]> pool (float[1, 192] a, float[1, 192, 300] x)
        => (float[1, 192] mean, float[1, 192] deviation) {
          axes = Constant <value_ints = [2]> ()
          mean = ReduceSum <keepdims = 0> (x, axes)
          squared = Mul (mean, mean)
          left = Sub (a, squared)
          deviation = Sqrt (left) }"""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 192, 300), np.float32)
    a = np.float32(1) + x.sum(2) ** 2
    with rammer.compile(onnx.parser.parse_model(text), "cuda", device="emulator:4", tune_seconds=0) as program:
        assert any("sqrt" in op.kind and len(op.outputs) == 2 for op in program.plan.graph.operators), "not fused"
        found = program.run({"a": a, "x": x})
    np.testing.assert_allclose(found["mean"], x.sum(2), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["deviation"], np.ones((1, 192)), rtol=1e-2)
