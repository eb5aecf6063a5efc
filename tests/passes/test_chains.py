"""Attention becomes one operator where its rows fit, means the same, and is left alone where somebody else reads it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attentions import Attention, drawn
from pass_models import SPEC, Net, assert_same

from rammer.ir.device import Execution, MemoryLevel, VDeviceSpec
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.passes import optimize

THREADS = replace(SPEC, execution=Execution.SIMT, max_threads=256)
ONE = Attention(1, 2, 20, 30, 16, 24)


def kinds(attention: Attention, spec: VDeviceSpec = SPEC, *, shown: bool = False) -> list[str]:
    before = attention.graph(shown=shown)
    after = optimize(before, spec)
    assert_same(before, after)
    return [op.kind for op in after.operators]


@pytest.mark.parametrize("spec", [SPEC, THREADS], ids=["core", "threads"])
@pytest.mark.parametrize("seed", range(24))
def test_attention_is_one_operator(seed: int, spec: VDeviceSpec) -> None:
    """With its transpositions; one of one place is a view, and turns nothing."""
    attention = drawn(seed)
    assert [kind for kind in kinds(attention, spec) if "softmax" in kind] == kinds(attention, spec)


def test_keys_are_turned_beforehand_where_they_have_no_room() -> None:
    small = replace(SPEC, scratch_bytes=16 * (2 * 30 * 4 + 64))
    found = kinds(replace(ONE, steps=True), small)
    assert found[0] == "transpose" and "softmax" in found[1] and len(found) == 2, "in one step"


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        (SPEC, True),
        (replace(SPEC, scratch_bytes=16 * 2 * 30 * 4), False),
        (replace(SPEC, memory=(MemoryLevel("tile", 1 << 18, "veu", managed="scratch"),)), False),
        (replace(THREADS, scratch_bytes=16 * (2 * 30 * 4 + 64)), False),
    ],
    ids=["weights are an output", "rows are too long", "no caches", "too few rows for threads"],
)
def test_it_stays_apart(spec: VDeviceSpec, shown: bool) -> None:
    assert any(kind == "softmax" for kind in kinds(ONE, spec, shown=shown))


def test_one_row_and_columns_of_weights_stay_apart() -> None:
    assert "softmax" in kinds(replace(ONE, rows=1))
    b = Net()
    weights = b.add("softmax", b.add("matmul", b.input("q", (2, 30, 8)), b.input("k", (2, 8, 30))), axis=-1)
    b.output(b.add("matmul", weights, b.input("v", (2, 30, 5)), trans_a=True), "y")
    graph = b.build()
    after = optimize(graph, SPEC)
    assert_same(graph, after)
    assert len(after.operators) == 3


def test_rows_that_a_mask_takes_from_all_are_what_they_were() -> None:
    """NaN in rows of minus infinity, zeros of weights far below the largest, and no overflow."""
    graph = replace(ONE, mask="all").graph()
    rng = np.random.default_rng(5)
    inputs = {t: rng.standard_normal(graph.types[t].shape).astype(np.float32) * 8 for t in graph.inputs}
    inputs["mask"][0, 0, 3] = -np.inf
    inputs["mask"][0, 1, :, :7] = -1e30
    wanted, got = (evaluate_graph(g, inputs)["y"] for g in (graph, optimize(graph, SPEC)))
    assert np.isnan(wanted[0, 3, 0]).all() and np.isnan(wanted).sum() == 24
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
