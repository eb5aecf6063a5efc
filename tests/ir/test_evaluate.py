"""The meaning of expressions, evaluated fast: by index arithmetic that equal operators share, and in blocks."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
import pytest

from rammer.frontend.builder import GraphBuilder
from rammer.ir.ops import OPS
from rammer.ir.semantics import evaluate
from rammer.ir.semantics.evaluate import evaluate_box, evaluate_expr, evaluate_graph
from rammer.ir.semantics.functions import FUNCTIONS
from rammer.ir.tensor import TensorType

GROUPS, INTO, OUT = 3, 5, 28  # channels of each group


def test_erf() -> None:
    random = np.random.default_rng(0)
    x = np.concatenate([random.uniform(-7, 7, 20000), np.logspace(-300, 1, 1000), [0.0, 6.0, np.inf, -np.inf, 5e-324]])
    found = FUNCTIONS["erf"](x)
    np.testing.assert_allclose(found, [erf(v) for v in x.tolist()], rtol=5e-16)
    assert np.isnan(FUNCTIONS["erf"](np.nan)) and np.signbit(FUNCTIONS["erf"](-0.0))


@pytest.fixture
def grouped() -> tuple[Any, dict[str, Any], Any]:
    """A convolution of groups, data, and what it gives."""
    random = np.random.default_rng(0)
    x = random.standard_normal((2, GROUPS * INTO, 13, 11)).astype(np.float32)
    w = random.standard_normal((GROUPS * OUT, INTO, 3, 3)).astype(np.float32)
    kinds = [TensorType(a.shape) for a in (x, w)]
    expr = OPS["conv"].express(*kinds, pads=(1, 1, 1, 1), group=GROUPS)
    names = [name for name, _ in expr.inputs]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    parts = windows.reshape(2, GROUPS, INTO, 13, 11, 3, 3)
    wanted = np.einsum("ngchwrs,gocrs->ngohw", parts, w.reshape(GROUPS, OUT, INTO, 3, 3), optimize=True)
    return expr, dict(zip(names, (x, w), strict=True)), wanted.reshape(2, GROUPS * OUT, 13, 11)


def test_groups_are_read_once(grouped: tuple[Any, dict[str, Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each channel that they are computed for."""
    expr, inputs, wanted = grouped
    sizes: list[int] = []
    gathered = evaluate.gathered

    def counted(*given: Any) -> Any:
        found = gathered(*given)
        sizes.append(int(np.prod([n for n, step in zip(found.shape, found.strides, strict=True) if step])))
        return found

    monkeypatch.setattr(evaluate, "gathered", counted)
    (found,) = evaluate_expr(expr, inputs)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    assert max(sizes) == 2 * GROUPS * INTO * 13 * 11 * 9


def test_boxes_that_cut_through_groups(grouped: tuple[Any, dict[str, Any], Any]) -> None:
    expr, inputs, wanted = grouped
    for low, high in ((0, OUT), (OUT, 3 * OUT), (5, 40), (OUT - 1, OUT + 1)):
        spans = [(0, 2), (low, high), (3, 13), (0, 11)]
        box = dict(zip((a for a, _ in expr.root.axes), spans, strict=True))
        (found,) = evaluate_box(expr, inputs, box)
        np.testing.assert_allclose(found, wanted[:, low:high, 3:], rtol=1e-6, atol=1e-6)


def test_equal_operators_share_index_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """So ten times as many steps ask for as much of it; each has its own data, and one weight is converted once."""
    random = np.random.default_rng(0)
    weight = (random.standard_normal((96, 96)) / 10).astype(np.float32)
    start = random.standard_normal((75, 96)).astype(np.float32)
    count = 0
    usual = evaluate.evaluate

    def counted(*given: Any) -> Any:
        nonlocal count
        count += 1
        return usual(*given)

    monkeypatch.setattr(evaluate, "evaluate", counted)
    counts = []
    for steps in (3, 30):
        b = GraphBuilder("steps")
        x, constant = b.input("x", (75, 96)), b.constant(weight)
        wanted = start.astype(np.float64)
        for _ in range(steps):
            x = b.add("tanh", b.add("matmul", x, constant))
            wanted = np.tanh(wanted @ weight)
        b.output(x, "y")
        count = 0
        found = evaluate_graph(b.build(), {"x": start})["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        counts.append(count)
    assert counts[0] == counts[1] > 0
