"""GRU cells whose candidate reads the reset state become two products, where vEUs would compute gates again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from pass_models import SPEC, Net, assert_same

from rammer.ir.graph import Graph
from rammer.ir.tensor import DType, TensorId
from rammer.passes import optimize
from rammer.passes.recurrent.decompose_resets import decompose_resets


def cells(batch: int, hidden: int, bias: bool = True, steps: int = 3, **attrs: Any) -> Graph:
    """Steps that share their weights; the first state is zero."""
    b = Net()
    r = b.weight(3, hidden, hidden)
    more = [b.weight(3, hidden)] if bias else []
    h: TensorId = b.constant(np.zeros((batch, hidden), np.float32))
    for t in range(steps):
        h = b.add("gru_cell", b.input(f"gx{t}", (batch, 3, hidden)), h, r, *more, **attrs)
    b.output(h, "y")
    return b.build()


def kinds(graph: Graph) -> Counter[str]:
    return Counter(op.kind for op in graph.operators)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("batch", "hidden"), [(1, 128), (3, 75), (8, 96)])
def test_meaning_stays(batch: int, hidden: int, bias: bool) -> None:
    for attrs in ({}, {"activations": ("sigmoid", "relu")}):
        graph = cells(batch, hidden, bias, **attrs)
        found = decompose_resets(graph, SPEC)
        assert kinds(found)["gru_cell"] == 0
        assert_same(graph, found)
        assert_same(graph, optimize(graph, SPEC))


def test_a_step_is_two_operators_that_share_weights() -> None:
    """All vEUs wait twice in a step: for the reset state and for the new one."""
    steps, hidden = 5, 128
    graph = optimize(cells(2, hidden, steps=steps), SPEC)
    assert len(graph.wavefronts()) == 2 * steps + 1  # the first wave is of all steps: of inputs alone
    assert sum(kind.size for kind in map(graph.types.get, graph.constants) if kind) < 4 * hidden * hidden


def test_cells_stay_whole_where_decomposing_costs_more_or_changes_results() -> None:
    """With little work, on one vEU, in narrow types, and with what products and activations cannot express."""
    for veus, hidden, whole in ((1, 512, True), (2, 127, True), (2, 128, False), (64, 91, True), (64, 92, False)):
        found = kinds(decompose_resets(cells(1, hidden), replace(SPEC, num_veus=veus)))
        assert (found["gru_cell"] == 3) == whole, "a vEU computes 8,192 terms again"
    decomposed = partial(decompose_resets, spec=SPEC)
    for attrs in ({"linear_before_reset": True}, {"clip": 1.0}, {"activations": (("elu", 1.0), "tanh")}):
        assert kinds(decomposed(cells(8, 128, **attrs)))["gru_cell"] == 3
    b = Net()
    narrow = [b.input(f"x{n}", shape, DType.F16) for n, shape in enumerate([(8, 3, 128), (8, 128), (3, 128, 128)])]
    b.output(b.add("gru_cell", *narrow), "narrow")
    wide = [b.input(f"w{n}", shape) for n, shape in enumerate([(8, 3, 128), (8, 128), (3, 128, 128)])]
    b.output(b.add("gru_cell", *wide), "weights that are not known")
    assert kinds(decomposed(b.build()))["gru_cell"] == 2
