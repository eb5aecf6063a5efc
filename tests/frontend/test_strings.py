"""Strings and maps in sessions, against ONNX Runtime: devices compute with codes of strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import rammer
from rammer.errors import InputError, ModelError, RammerError
from rammer.frontend.onnx.text import decode, encode
from rammer.ir.tensor import Array

WORDS = np.array([["red", "green", "blue"], ["red", "violet", ""]], object)
OTHERS = np.array([["red", "gr\u00fcn", "blue"], ["white", "violet", "black"]], object)
X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def model(
    nodes: list[Any],
    inputs: dict[str, Array],
    outputs: dict[str, int],
    constants: dict[str, Array] | None = None,
    version: int = 3,
) -> ModelProto:
    code = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "O": TensorProto.STRING, "b": TensorProto.BOOL}
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, code[v.dtype.kind], v.shape) for n, v in inputs.items()],
        [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()],
        [numpy_helper.from_array(v, n) for n, v in (constants or {}).items()],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 19), helper.make_opsetid("ai.onnx.ml", version)]
    )
    made.ir_version = 9
    return made


def agrees(made: ModelProto, values: dict[str, Array], target: str = "interpreter") -> list[Any]:
    wanted = onnxruntime.InferenceSession(made.SerializeToString()).run(None, values)
    with rammer.Session(made, target) as session:
        found = session.run(None, values)
        again = session.run(None, values)
    for a, b, c in zip(found, wanted, again, strict=True):
        if isinstance(b, list):
            assert [row.keys() for row in a] == [row.keys() for row in b]
            numbers = [[[row[k] for k in b[0]] for row in rows] for rows in (a, b, c)]
            np.testing.assert_allclose(numbers[0], numbers[1], rtol=1e-5)
            assert numbers[0] == numbers[2]
        else:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(a, c)
    return found


def test_strings_move_and_are_compared() -> None:
    """Strings that the model has never seen come out as they went in."""
    nodes = [
        helper.make_node("Equal", ["a", "b"], ["same"]),
        helper.make_node("Where", ["same", "a", "c"], ["mixed"]),
        helper.make_node("Concat", ["mixed", "b"], ["joined"], axis=0),
        helper.make_node("Gather", ["joined", "at"], ["y"], axis=1),
        helper.make_node("Identity", ["c"], ["z"]),
    ]
    constants = {"c": np.array(["none"], object), "at": np.array([2, 0])}
    made = model(nodes, {"a": WORDS, "b": OTHERS}, {"same": 9, "y": 8, "z": 8}, constants)
    found = agrees(made, {"a": WORDS, "b": OTHERS}, "cpu")
    assert found[1][0, 0] == "blue" and "violet" not in found[1]


ENCODERS: list[tuple[str, dict[str, Any], Array, int]] = [
    ("LabelEncoder", {"keys_strings": ["red", "blue"], "values_int64s": [4, 6], "default_int64": -3}, WORDS, 7),
    ("LabelEncoder", {"keys_strings": ["red", ""], "values_strings": ["rot", "\u00fc"]}, WORDS, 8),
    ("LabelEncoder", {"keys_int64s": [1, 2], "values_strings": ["a", "b"]}, np.array([1, 5, 2]), 8),
    ("OneHotEncoder", {"cats_strings": ["red", "green", "x"], "zeros": 1}, WORDS, 1),
    ("CategoryMapper", {"cats_strings": ["red", "x"], "cats_int64s": [4, 2], "default_int64": 9}, WORDS, 7),
]


@pytest.mark.parametrize(("op", "attrs", "x", "kind"), ENCODERS)
def test_strings_are_looked_up(op: str, attrs: dict[str, Any], x: Array, kind: int) -> None:
    made = model([helper.make_node(op, ["x"], ["y"], domain="ai.onnx.ml", **attrs)], {"x": x}, {"y": kind})
    agrees(made, {"x": x}, "cpu" if op == "OneHotEncoder" else "interpreter")


def test_an_unknown_category_is_an_error_if_none_may_be_missing() -> None:
    attrs = {"cats_strings": ["red", "green", "blue"], "zeros": 0}
    made = model(
        [helper.make_node("OneHotEncoder", ["x"], ["y"], domain="ai.onnx.ml", **attrs)], {"x": WORDS}, {"y": 1}
    )
    known = np.array([["red", "blue", "green"]] * 2, object)
    agrees(made, {"x": known})
    with rammer.Session(made, "interpreter") as session, pytest.raises(RammerError, match=r"out of range|outside"):
        session.run(None, {"x": WORDS})


@pytest.mark.parametrize("labels", [{"classlabels_strings": ["a", "b", "c"]}, {"classlabels_ints": [7, 2, 5]}])
def test_labels_and_maps(labels: dict[str, Any]) -> None:
    """As exporters of scikit-learn end a classifier."""
    random = np.random.default_rng(2)
    attrs = {"coefficients": random.normal(size=12).tolist(), "intercepts": [0.0] * 3, "post_transform": "SOFTMAX"}
    keys = {name.replace("_ints", "_int64s"): value for name, value in labels.items()}
    nodes = [
        helper.make_node("LinearClassifier", ["x"], ["label", "p"], domain="ai.onnx.ml", **attrs, **labels),
        helper.make_node("ZipMap", ["p"], ["maps"], domain="ai.onnx.ml", **keys),
    ]
    text = "classlabels_strings" in labels
    made = model(nodes, {"x": X}, {"label": 8 if text else 7})
    key = TensorProto.STRING if text else TensorProto.INT64
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(key, value))
    made.graph.output.append(helper.make_value_info("maps", kind))
    agrees(made, {"x": X})
    kinds = [port.type for port in rammer.Session(made, "interpreter").get_outputs()]
    wanted = [port.type for port in onnxruntime.InferenceSession(made.SerializeToString()).get_outputs()]
    assert kinds == wanted
    if text:
        with pytest.raises(ModelError, match="output 'label' has strings"):
            rammer.compile(made, "interpreter")
    else:  # a program has a matrix with a column for each key
        with rammer.compile(made, "interpreter") as program:
            assert program.run({"x": X})["maps"].shape == (5, 3)


def test_strings_pass_branches_that_values_decide() -> None:
    """The model is cut there, and each part has codes of its own."""
    branches = {
        name: helper.make_graph(
            [helper.make_node("Gather", ["a", f"at_{name}"], ["r"], axis=1)],
            name,
            [],
            [helper.make_tensor_value_info("r", TensorProto.STRING, None)],
        )
        for name in ("then_branch", "else_branch")
    }
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], **branches),
    ]
    constants = {"zero": np.array(0, np.float32), "at_then_branch": np.array([0]), "at_else_branch": np.array([1, 2])}
    made = model(nodes, {"a": WORDS, "x": X}, {"y": 8}, constants)
    for sign in (1, -1):
        agrees(made, {"a": WORDS, "x": abs(X) * np.float32(sign)})


@pytest.mark.parametrize(
    ("op", "attrs", "message"),
    [
        ("Cast", {"to": TensorProto.FLOAT}, "input 0 .'input'. has strings"),
        ("Unique", {}, "input 0 .'X'. has strings"),
        ("StringConcat", {}, "StringConcat"),
    ],
)
def test_what_computes_with_strings_is_refused(op: str, attrs: dict[str, Any], message: str) -> None:
    made = model([helper.make_node(op, ["x"] * (1 + (op == "StringConcat")), ["y"], **attrs)], {"x": WORDS}, {"y": 8})
    with pytest.raises(ModelError, match=message), rammer.Session(made, "interpreter") as session:
        session.run(None, {"x": WORDS})


def test_only_strings_have_codes() -> None:
    made = model([helper.make_node("Identity", ["x"], ["y"])], {"x": WORDS}, {"y": 8})
    with rammer.Session(made, "interpreter") as session, pytest.raises(InputError, match="3 is a int"):
        session.run(None, {"x": np.array([["a", "b", 3]] * 2, object)})


def test_codes_tell_strings_apart() -> None:
    words: dict[int, str] = {}
    codes = encode(WORDS, words)
    assert np.array_equal(decode(codes, words), WORDS)
    words[int(codes[0, 0])] = "another"
    with pytest.raises(InputError, match="'red' and 'another' have the same code"):
        encode(WORDS, words)


def test_a_string_that_decides_a_branch_is_compared_by_its_text() -> None:
    """Not by where Python has put it: other strings come to lie there."""
    one, two = (helper.make_node("Constant", [], [f"r{n}"], value_float=float(n)) for n in (1, 2))
    branches = [
        helper.make_graph([node], "branch", [], [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, ())])
        for node in (one, two)
    ]
    nodes = [
        helper.make_node("Equal", ["text", "red"], ["same"]),
        helper.make_node("If", ["same"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    red = np.array("red", object)
    made = model(nodes, {"text": red}, {"y": TensorProto.FLOAT}, {"red": red})
    with rammer.Session(made, "cpu", device=1) as session:
        for n in range(200):
            text = "red" if n % 3 else f"other {n}"
            (y,) = session.run(None, {"text": np.array(str(bytearray(text, "ascii"), "ascii"), object)})
            assert y == (1 if n % 3 else 2), (n, text)


def test_strings_are_no_state() -> None:
    node = helper.make_node("Identity", ["text"], ["y"])
    made = model([node], {"text": WORDS}, {"y": TensorProto.STRING})
    with pytest.raises(InputError, match="'text', which has strings"):
        rammer.Session(made, "interpreter", state={"y": "text"})
