"""Sequences and optional values: what they mean against ONNX's evaluator, and malformed uses, each refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from rammer.errors import ModelError
from rammer.frontend.onnx import Source
from rammer.ir.semantics.evaluate import evaluate_graph

F32 = np.float32


def made(*nodes: str, body: Any = None, **weights: Any) -> ModelProto:
    """Nodes "Op inputs -> outputs attribute=value …" with input x: float32[5, 3], and output y."""
    protos = []
    for line in nodes:
        left, right = line.split("->")
        op, *inputs = left.split()
        attrs = {k: eval(v) for k, v in (part.split("=") for part in right.split() if "=" in part)}
        attrs |= {"body": body} if op == "SequenceMap" else {}
        outputs = [part for part in right.split() if "=" not in part]
        protos.append(helper.make_node(op, ["" if i == "_" else i for i in inputs], outputs, **attrs))
    graph = helper.make_graph(
        protos,
        "sequences",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 3])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def plus(op: str = "Add") -> Any:
    port = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "abc"]
    return helper.make_graph([helper.make_node(op, ["a", "b"], ["c"])], "body", port[:2], port[2:])


GOOD = {
    "split, and one of them": made("SplitToSequence x -> s", "SequenceAt s i -> y", i=np.array(-2)),
    "split by lengths": made(
        "SplitToSequence x n -> s axis=-1", "SequenceAt s i -> y", n=np.array([2, 0, 1]), i=np.array(0)
    ),
    "the last one is shorter": made(
        "SplitToSequence x n -> s axis=0", "SequenceAt s i -> y", n=np.array(2), i=np.array(2)
    ),
    "without the dimension": made(
        "SplitToSequence x -> s keepdims=0 axis=1", "ConcatFromSequence s -> y axis=1 new_axis=1"
    ),
    "insert, erase, join": made(
        "SequenceEmpty -> e",
        "SequenceInsert e x -> one",
        "Neg x -> m",
        "SequenceInsert one m i -> two",
        "SequenceInsert two m -> three",
        "SequenceErase three i -> s",
        "ConcatFromSequence s -> y axis=-1",
        i=np.array(0),
    ),
    "length": made("SequenceConstruct x x x -> s", "SequenceErase s -> t", "SequenceLength t -> y"),
    "map": made(
        "SequenceConstruct x x -> s", "SequenceMap s x -> t", "ConcatFromSequence t -> y axis=0", body=plus("Mul")
    ),
    "identity": made("SequenceConstruct x x -> s", "Identity s -> t", "SequenceLength t -> y"),
}
BAD = {
    "a position behind the end": (
        made("SequenceConstruct x -> s", "SequenceAt s i -> y", i=np.array(1)),
        "position 1 does not exist in a sequence of 1",
    ),
    "a huge position": (made("SequenceConstruct x -> s", "SequenceErase s i -> y", i=np.array(-(2**62))), "position -"),
    "erased from an empty one": (made("SequenceEmpty -> s", "SequenceErase s -> y"), "no element"),
    "joined from an empty one": (made("SequenceEmpty -> s", "ConcatFromSequence s -> y axis=0"), "empty"),
    "a tensor as a sequence": (made("SequenceLength x -> y"), "does not allow|a tensor, and no sequence"),
    "a sequence as a tensor": (made("SequenceConstruct x -> s", "Neg s -> y"), "is a sequence, which opset"),
    "lengths that do not add up": (made("SplitToSequence x n -> y", n=np.array([2, 2])), "do not make up the 5"),
    "a negative length": (made("SplitToSequence x n -> y", n=np.array([7, -2])), "do not make up"),
    "pieces of nothing": (made("SplitToSequence x n -> y", n=np.array(0)), "must be positive"),
    "another element type": (
        made("SequenceEmpty -> s dtype=7", "SequenceInsert s x -> y"),
        "float32 tensor is inserted into a sequence of int64",
    ),
    "sequences of several lengths": (
        made("SequenceConstruct x -> s", "SequenceConstruct x x -> t", "SequenceMap s t -> y", body=plus()),
        "input 1 has 2 elements, input 0 has 1",
    ),
    "a missing optional value": (made("OptionalGetElement _ -> y"), "missing"),
}


@pytest.mark.parametrize("name", GOOD)
def test_sequences_mean_what_the_standard_says(name: str) -> None:
    x = np.random.default_rng(2).standard_normal((5, 3)).astype(F32)
    (wanted,) = ReferenceEvaluator(GOOD[name]).run(None, {"x": x})
    found = evaluate_graph(Source(GOOD[name]).load().graph, {"x": x})["y"]
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == np.asarray(wanted).dtype


def test_an_optional_value_is_itself() -> None:
    x = np.ones((5, 3), F32)
    graph = Source(made("Optional x -> o", "OptionalGetElement o -> p", "Neg p -> y")).load().graph
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": x})["y"], -x)


@pytest.mark.parametrize("name", BAD)
def test_malformed_sequences_are_refused(name: str) -> None:
    model, message = BAD[name]
    with pytest.raises(ModelError, match=message) as caught:
        Source(model).load()
    assert caught.value.node
