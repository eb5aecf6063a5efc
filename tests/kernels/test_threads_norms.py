"""Layer normalisation inside of products of many threads: the same numbers, proven; rows that others read stay."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernel_harness import compare, random_inputs
from simt_harness import GPU, SMALL, SimtRunner, build, check
from stages import operations

sys.path.append(str(Path(__file__).parents[1] / "passes"))
from pass_models import Net, assert_same

from rammer.ir.device import Execution
from rammer.ir.graph import Graph
from rammer.ir.semantics.evaluate import evaluate_expr, evaluate_graph
from rammer.ir.verify.kernel import proven
from rammer.kernels import candidates
from rammer.passes import optimize

SPECS = {"gpu": replace(GPU, num_veus=7), "small": SMALL}
CORE = replace(GPU, execution=Execution.SIMD, max_threads=1)
SIZES = {"three products": (5, 2, 64, (24, 16, 20)), "odd": (37, 1, 48, (40,)), "wide": (70, 1, 192, (128,))}


def graph(rows: int, batch: int, terms: int, widths: tuple[int, ...], *, also: str = "", axis: int = 2) -> Graph:
    """Products of normal rows; `also`: something else reads the rows."""
    b, draw = Net(3), np.random.default_rng(7)

    def constant(*shape: int) -> str:
        return b.constant((draw.standard_normal(shape) * 0.2 + 0.3).astype(np.float32))

    x = b.input("x", (batch, rows, terms))
    normal = b.add("layer_norm", x, constant(terms), constant(terms), axis=axis, epsilon=1e-3)
    for n, width in enumerate(widths):
        y = b.add("add", b.add("matmul", normal, constant(terms, width)), constant(width))
        b.output(b.add("gelu", y) if n == 0 else y, f"y{n}")
    if also:
        b.output(b.add(also, normal), "also")
    return b.build()


CASES = {
    f"{size} {spec} {n}": (op, SPECS[spec])
    for size, sizes in SIZES.items()
    for spec in SPECS
    for n, op in enumerate(operations(graph(*sizes), SPECS[spec]))
}


@pytest.fixture(scope="module")
def built():
    return build({name: (op, candidates(op, spec)) for name, (op, spec) in CASES.items()})


@pytest.mark.parametrize("name", CASES)
def test_each_candidate_is_right_and_proven(built, name: str) -> None:
    op, spec = CASES[name]
    assert op.kind.startswith("layer_norm+matmul")
    check(built, name, rtol=1e-4)
    for kernel in candidates(op, spec):
        assert not proven(kernel)[1], f"{kernel.name}: {proven(kernel)[1][0]}"


def test_rows_far_from_zero_are_right() -> None:
    """Of kernels whose rows have a mean of ten deviations: float64's numbers, but for a digit."""
    (op,) = operations(graph(*SIZES["odd"]), SMALL)
    made, name = build({"far": (op, candidates(op, SMALL))}), op.expr.inputs[0][0]
    inputs = random_inputs(op)
    inputs[name] = inputs[name] + np.float32(10)
    (wanted,) = evaluate_expr(op.expr, inputs)
    for kernel, symbol in made.kernels["far"][1]:
        (got,) = SimtRunner(kernel, made.library, symbol, inputs).run()
        compare(got, wanted, 1e-3, kernel.name)


@pytest.mark.parametrize("size", SIZES)
def test_graphs_mean_the_same(size: str) -> None:
    before = graph(*SIZES[size])
    assert_same(before, optimize(before, GPU))


def test_rows_far_from_zero_keep_their_digits() -> None:
    """A mean of ten deviations costs a digit."""
    before = graph(9, 1, 256, (32,))
    x = (np.random.default_rng(2).standard_normal((1, 9, 256)) + 10).astype(np.float32)
    wanted, got = (evaluate_graph(g, {"x": x})["y0"] for g in (before, optimize(before, GPU)))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("also", "spec"),
    [
        ("relu", GPU),
        ("", replace(GPU, numerics="strict")),
        ("", replace(GPU, precision="tf32")),
        ("", replace(GPU, precision="bf16")),
        ("", replace(GPU, execution=SMALL.execution.SIMD, max_threads=1)),
    ],
    ids=["another reader", "strict", "tf32", "bf16", "cores"],
)
def test_it_stays_separate(also: str, spec) -> None:
    before = graph(5, 1, 32, (24,), also=also)
    after = optimize(before, spec)
    assert_same(before, after)
    assert not any("layer_norm+matmul" in op.kind for op in after.operators)
