"""Limits of the importer: what a model may cost, and how its cost is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper
from onnx_models import model, nested_ifs, node

from rammer.errors import ModelError
from rammer.frontend.onnx import Limits, load, parts


def test_limits_are_configurable() -> None:
    many = model([node("Relu", ["x" if n == 0 else f"t{n}"], [f"t{n + 1}"]) for n in range(20)], {"x": (2,)}, ["t20"])
    load(many)
    for limits, message in (
        (Limits(nodes=10), "more than 10 nodes"),
        (Limits(operators=10), "beyond 10 operators"),
        (Limits(tensor_bytes=4), "limit of 4"),
    ):
        with pytest.raises(ModelError, match=message):
            load(many, limits=limits)
    load(nested_ifs(10))
    with pytest.raises(ModelError, match="nested"):
        load(nested_ifs(10), limits=Limits(depth=5))
    with pytest.raises(ModelError, match="limit 10"):
        load(many.SerializeToString(), limits=Limits(file_bytes=10))


def test_loops_with_nothing_in_them_are_counted() -> None:
    """Loops of loops of 50 steps, of which the innermost has no node at all."""

    def body(depth: int) -> Any:
        again = [helper.make_node("Loop", ["trips", "go"], [], body=body(depth - 1))] if depth else []
        step = helper.make_tensor_value_info(f"step{depth}", TensorProto.INT64, [])
        going = helper.make_tensor_value_info(f"going{depth}", TensorProto.BOOL, [])
        return helper.make_graph(again, "body", [step, going], [going])

    loop = helper.make_node("Loop", ["trips", "go"], [], body=body(2))
    made = model([loop, node("Relu")], {"x": (2,)}, constants={"trips": np.array(50), "go": np.array(True)})
    with pytest.raises(ModelError, match="more than 5000 nodes"):
        load(made, limits=Limits(nodes=5000))


@pytest.mark.parametrize("follows", ["the one before", "the step"])
def test_loops_whose_condition_lasts_are_refused_after_one_step(follows: str) -> None:
    """Only a condition that other values decide may end before all steps, and is looked at step by step."""
    condition = node("Identity", ["go"]) if follows == "the one before" else node("Less", ["step", "end"])
    condition.output[0] = "goes"
    inputs = [helper.make_tensor_value_info(*i, []) for i in (("step", TensorProto.INT64), ("go", TensorProto.BOOL))]
    body = helper.make_graph([condition], "body", inputs, [helper.make_tensor_value_info("goes", TensorProto.BOOL, [])])
    loop = helper.make_node("Loop", ["trips", "true"], [], body=body)
    known = {"trips": np.array(1 << 40), "true": np.array(True), "end": np.array(100)}
    made = model([loop, node("Relu")], {"x": (2,)}, constants=known)
    if follows == "the step":
        load(made, limits=Limits(nodes=200))
    with pytest.raises(ModelError, match="more than 10000 steps" if follows == "the one before" else "than 20 nodes"):
        load(made, limits=Limits(nodes=20))


def test_nodes_in_any_order_are_cut_with_linear_work(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def counted(one: NodeProto, depth: int) -> Any:
        nonlocal looks
        looks += 1
        return real(one, depth)

    real = parts.reads
    monkeypatch.setattr(parts, "reads", counted)
    count = 300
    chain = [node("Relu", [f"a{n}"], [f"a{n + 1}"]) for n in range(count)]
    made = model(chain[::-1], {"a0": (2,)}, [f"a{count}"])
    cutter = parts.Cutter(made.graph, 32)
    first, at, last = cutter.split(cutter.whole(), "a100")
    assert [len(first.nodes), at.output[0], len(last.nodes)] == [99, "a100", 200] and last.outputs == (f"a{count}",)
    assert looks < 10 * count
