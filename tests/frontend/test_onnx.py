"""The importer: names, shapes, constants, order, functions, and operators with several forms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper
from onnx_models import model, node

from rammer.errors import ModelError
from rammer.frontend.onnx import Node, handles, load
from rammer.frontend.onnx.node import HANDLERS
from rammer.ir.device import VDeviceSpec
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array, DType
from rammer.passes.sort_rows import sort_rows

LIGHT = Path(__import__("onnx").__file__).parent / "backend/test/data/light"


def kinds(made: ModelProto, **options: Any) -> list[str]:
    return [op.kind for op in load(made, **options).operators]


def agrees(made: ModelProto, values: dict[str, Array], **tolerance: float) -> None:
    """The model means the same to ONNX Runtime."""
    for output in made.graph.output:
        if not output.type.HasField("tensor_type"):
            output.type.tensor_type.elem_type = TensorProto.FLOAT
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    seen = evaluate_graph(load(made), values)
    for output, wanted in zip(made.graph.output, session.run(None, values), strict=True):
        assert seen[output.name].shape == wanted.shape and seen[output.name].dtype == wanted.dtype
        np.testing.assert_allclose(seen[output.name], wanted, **({"rtol": 1e-4, "atol": 1e-5} | tolerance))


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def test_names_and_types_come_from_the_model() -> None:
    graph = load(model([node("Relu", ["left"], ["right"])], {"left": ("float16", (2, 3))}, ["right"]))
    assert (graph.inputs, graph.outputs) == (("left",), ("right",))
    assert graph.types["right"].shape == (2, 3) and graph.types["right"].dtype is DType.F16
    assert graph.operators[0].name == "n"


def test_shape_arithmetic_disappears() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["batch"]),
        node("Unsqueeze", ["batch", "axes"], ["first"]),
        node("Concat", ["first", "rest"], ["target"], axis=0),
        node("Cast", ["target"], ["target32"], to=TensorProto.INT32),
        node("Cast", ["target32"], ["target64"], to=TensorProto.INT64),
        node("Reshape", ["x", "target64"], ["y"]),
    ]
    constants = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1, 2])}
    graph = load(model(nodes, {"x": (2, 3, 4)}, constants=constants))
    assert [op.kind for op in graph.operators] == ["reshape"] and not graph.constants
    assert graph.types["y"].shape == (2, 6, 2)


def test_nodes_in_any_order() -> None:
    nodes = [
        node("Relu", ["b"], ["y"], "last"),
        node("Neg", ["a"], ["b"], "middle"),
        node("Abs", ["x"], ["a"], "first"),
    ]
    assert kinds(model(nodes, {"x": (2,)})) == ["abs", "neg", "relu"]


def test_symbolic_dimensions_are_fixed_by_the_caller() -> None:
    made = model([node("Relu")], {"x": ("batch", 3)})
    assert load(made, shapes={"x": (5, 3)}).types["y"].shape == (5, 3)
    for shapes, message in (
        ({"x": (5, 4)}, "extent 4 along axis 1, the model says 3"),
        ({"x": (5,)}, "rank 1, the model says 2"),
        ({"xx": (5, 3)}, r"no input of the model[\s\S]*did you mean 'x'"),
        ({"x": (-5, 3)}, "negative"),
    ):
        with pytest.raises(ModelError, match=message):
            load(made, shapes=shapes)


def test_inputs_can_be_fixed_to_values() -> None:
    made = model([node("Reshape", ["x", "s"])], {"x": (6,), "s": ("int64", (2,))})
    graph = load(made, constants={"s": [2, 3]})
    assert graph.inputs == ("x",) and graph.types["y"].shape == (2, 3)
    with pytest.raises(ModelError, match="declared with shape"):
        load(made, constants={"s": [2, 3, 1]})


def test_every_output_is_computed_and_carries_its_name() -> None:
    """Also an input, a constant, or a tensor that is an output twice."""
    nodes = [
        node("Identity", ["x"], ["same"]),
        node("Identity", ["c"], ["fixed"]),
        node("Relu", ["x"], ["r"]),
        node("Identity", ["r"], ["again"]),
    ]
    outputs = ["same", "fixed", "r", "again"]
    graph = load(model(nodes, {"x": (2,)}, outputs, constants={"c": np.ones(2, np.float32)}))
    assert graph.outputs == tuple(outputs) and set(outputs) <= set(graph.producers)
    seen = evaluate_graph(graph, {"x": np.array([-1, 2], np.float32)})
    assert {k: v.tolist() for k, v in seen.items()} == {
        "same": [-1, 2],
        "fixed": [1, 1],
        "r": [0, 2],
        "again": [0, 2],
    }


def test_uniform_constants_take_no_memory() -> None:
    made = model(
        [node("ConstantOfShape", ["s"], ["c"]), node("Add", ["x", "c"])],
        {"x": (1,)},
        constants={"s": np.array([1 << 28])},
    )
    graph = load(made)
    (value,) = graph.constants.values()
    assert value.nbytes == 1 << 30 and value.strides == (0,)


def test_weights_are_transposed_at_import() -> None:
    made = model(
        [node("Transpose", ["w"], ["t"], "t"), node("MatMul", ["x", "t"])], {"x": (1, 4)}, constants={"w": draw(3, 4)}
    )
    assert kinds(made) == ["matmul"]
    agrees(made, {"x": draw(1, 4)})


def function(inner: str, **attrs: Any) -> Any:
    body = helper.make_node(inner, ["a"], ["b"], **attrs)
    return helper.make_function("own", "F", ["a"], ["b"], [body], [helper.make_opsetid("", 21)])


def test_model_functions_are_inlined_with_their_attributes() -> None:
    body = helper.make_node("LeakyRelu", ["a"], ["b"])
    body.attribute.append(AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="slope"))
    f = helper.make_function("own", "F", ["a"], ["b"], [body], [helper.make_opsetid("", 21)], attributes=["slope"])
    made = model([node("F", domain="own", slope=0.5)], {"x": (2,)}, functions=[f], domains={"own": 1})
    seen = evaluate_graph(load(made), {"x": np.array([-2, 2], np.float32)})
    assert seen["y"].tolist() == [-1, 2]


def test_unsupported_operators_inside_functions_are_listed() -> None:
    made = model([node("F", domain="own")], {"x": (2,)}, functions=[function("NonZero")], domains={"own": 1})
    with pytest.raises(ModelError, match="not known at compile time"):
        load(made)
    made = model([node("F", domain="own")], {"x": (2,)}, functions=[function("StringNormalizer")], domains={"own": 1})
    with pytest.raises(ModelError, match="1 unsupported operator: StringNormalizer"):
        load(made)


def test_operators_without_handler_use_the_standard_definition() -> None:
    """MeanVarianceNormalization is a function of the standard; no handler knows it."""
    agrees(
        model([node("MeanVarianceNormalization")], {"x": (2, 3, 4, 5)}, opset=13), {"x": draw(2, 3, 4, 5)}, atol=1e-4
    )


def test_known_conditions_choose_a_branch() -> None:
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["x"], ["b"])], name, [], [helper.make_tensor_value_info("b", TensorProto.FLOAT, [2])]
        )
        for name, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    for condition, kind in ((True, "relu"), (False, "neg")):
        made = model([node("If", ["c"], **branches)], {"x": (2,)}, constants={"c": np.array(condition)})
        assert kinds(made) == [kind]


@pytest.mark.parametrize(
    ("op", "shape", "constants", "attrs", "opset"),
    [
        ("Softmax", (2, 3, 4), {}, {"axis": 1}, 11),
        ("Softmax", (2, 3, 4), {}, {"axis": 1}, 13),
        ("LogSoftmax", (2, 3, 4), {}, {"axis": -1}, 11),
        ("ReduceSum", (2, 3, 4), {}, {"axes": [0, -1], "keepdims": 0}, 11),
        ("ReduceSum", (2, 3, 4), {"axes": np.array([0, -1])}, {"keepdims": 0}, 13),
        ("ReduceMean", (2, 3, 4), {"axes": np.array([1])}, {}, 18),
        ("ReduceMax", (2, 3, 4), {}, {"axes": [1]}, 13),
        ("Squeeze", (1, 3, 1), {}, {}, 13),
        ("Squeeze", (1, 3, 1), {}, {"axes": [-1]}, 11),
        ("Unsqueeze", (2, 3), {}, {"axes": [0, -1]}, 11),
        ("Unsqueeze", (2, 3), {"axes": np.array([0, -1])}, {}, 13),
        ("Pad", (2, 3), {}, {"pads": [0, 1, 2, 0], "value": 3.0}, 7),
        ("Pad", (2, 3), {"p": np.array([0, 1, 2, 0]), "v": np.array(3, np.float32)}, {}, 13),
        ("Pad", (2, 5), {"p": np.array([0, 2, 0, 1])}, {"mode": "reflect"}, 13),
        ("Pad", (2, 5), {"p": np.array([0, -1, 0, 2])}, {"mode": "edge"}, 13),
        ("Clip", (2, 3), {}, {"min": -0.5, "max": 0.5}, 7),
        ("Clip", (2, 3), {"lo": np.array(-0.5, np.float32)}, {}, 13),
        ("Slice", (4, 5), {}, {"starts": [1, -3], "ends": [1000, -1], "axes": [0, 1]}, 9),
        (
            "Slice",
            (4, 5),
            {"s": np.array([3, 4]), "e": np.array([-1000, 0]), "a": np.array([0, 1]), "t": np.array([-1, -2])},
            {},
            13,
        ),
        ("Gather", (4, 5), {"i": np.array([[0, -1], [2, 1]])}, {"axis": 1}, 13),
        ("Tile", (2, 3), {"r": np.array([2, 3])}, {}, 13),
        ("DepthToSpace", (1, 8, 2, 3), {}, {"blocksize": 2, "mode": "CRD"}, 13),
        ("SpaceToDepth", (1, 2, 4, 6), {}, {"blocksize": 2}, 13),
        ("Trilu", (3, 4), {"k": np.array(1)}, {"upper": 0}, 14),
        ("CumSum", (3, 4), {"a": np.array(1)}, {"exclusive": 1, "reverse": 1}, 14),
        ("CumSum", (77, 3), {"a": np.array(0)}, {"exclusive": 1}, 14),
        ("CumSum", (2, 531), {"a": np.array(1)}, {"reverse": 1}, 14),
        (
            "Conv",
            (1, 4, 9, 9),
            {"w": draw(6, 2, 3, 3), "b": draw(6)},
            {"group": 2, "strides": [2, 2], "auto_pad": "SAME_LOWER"},
            11,
        ),
        ("Conv", (1, 2, 11), {"w": draw(3, 2, 3)}, {"dilations": [3], "pads": [4, 1]}, 11),
        (
            "ConvTranspose",
            (1, 4, 5, 5),
            {"w": draw(4, 3, 3, 2), "b": draw(6)},
            {"group": 2, "strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 0]},
            11,
        ),
        (
            "ConvTranspose",
            (1, 2, 6),
            {"w": draw(2, 3, 4)},
            {"strides": [3], "dilations": [2], "auto_pad": "SAME_UPPER"},
            11,
        ),
        (
            "MaxPool",
            (1, 2, 9, 9),
            {},
            {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
            12,
        ),
        (
            "AveragePool",
            (1, 2, 8, 8),
            {},
            {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 0], "count_include_pad": 1, "ceil_mode": 1},
            19,
        ),
        ("AveragePool", (1, 2, 7), {}, {"kernel_shape": [4], "strides": [3], "auto_pad": "SAME_UPPER"}, 11),
        ("Gemm", (3, 4), {"b": draw(5, 4), "c": draw(5)}, {"transB": 1, "alpha": 0.5, "beta": 2.0}, 13),
        ("InstanceNormalization", (2, 3, 4), {"s": draw(3), "b": draw(3)}, {}, 6),
        ("LayerNormalization", (2, 3, 4), {"s": draw(4), "b": draw(4)}, {"axis": -1}, 17),
        ("LRN", (1, 6, 3, 3), {}, {"size": 5}, 13),
        ("PRelu", (2, 3, 4), {"s": draw(3, 1)}, {}, 9),
        ("Hardmax", (3, 4), {}, {"axis": 0}, 13),
        ("Upsample", (1, 2, 3, 3), {"s": np.array([1, 1, 2, 3], np.float32)}, {"mode": "linear"}, 9),
        (
            "Resize",
            (1, 2, 5, 4),
            {"r": np.array([], np.float32), "e": np.array([], np.float32), "s": np.array([1, 2, 8, 3])},
            {"mode": "cubic"},
            13,
        ),
    ],
)
def test_forms_of_operators(
    op: str, shape: tuple[int, ...], constants: dict[str, Array], attrs: dict[str, Any], opset: int
) -> None:
    agrees(
        model([node(op, ["x", *constants], **attrs)], {"x": shape}, constants=constants, opset=opset),
        {"x": draw(*shape)},
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_gathered_elements_and_scatters(axis: int) -> None:
    index = np.array([[0, -1, 1], [1, 0, -2]])
    made = model([node("GatherElements", ["x", "i"], axis=axis)], {"x": (2, 3), "i": ("int64", (2, 3))}, opset=13)
    agrees(made, {"x": draw(2, 3), "i": index})
    with pytest.raises(Exception, match="outside"):
        evaluate_graph(load(made), {"x": draw(2, 3), "i": index + 5})
    updates = (
        {"i": np.array([[1, 0, 1]]), "u": draw(1, 3)} if axis == 0 else {"i": np.array([[2], [0]]), "u": draw(2, 1)}
    )
    agrees(
        model([node("ScatterElements", ["x", "i", "u"], axis=axis)], {"x": (2, 3)}, constants=updates, opset=13),
        {"x": draw(2, 3)},
    )
    rows = {"i": np.array([[1], [-3]]), "u": draw(2, 4)}
    agrees(model([node("ScatterND", ["x", "i", "u"])], {"x": (3, 4)}, constants=rows, opset=13), {"x": draw(3, 4)})


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda p: p.stem)
def test_real_topologies_import(path: Path) -> None:
    graph = load(path)
    assert len(graph.operators) > 20
    assert graph.types[graph.outputs[0]].shape[:2] == (1, 1000)


def recurrent_body(inputs: list[str], outputs: list[str]) -> Any:
    """h' = tanh(x + h · w), with a weight of its own."""
    nodes = [
        helper.make_node("MatMul", ["h", "w"], ["p"]),
        helper.make_node("Add", ["p", "x"], ["q"]),
        helper.make_node("Tanh", ["q"], ["h2"]),
        helper.make_node("Identity", ["h2"], ["shown"]),
    ]
    if "c2" in outputs:
        nodes.append(helper.make_node("Identity", ["c"], ["c2"]))
    if "i" in inputs:
        nodes.insert(0, helper.make_node("Gather", ["xs", "i"], ["x"], axis=0))
    weight = numpy_helper.from_array(draw(4, 4), "w")
    values = [
        [
            helper.make_value_info(
                name, helper.make_tensor_type_proto(_TYPES.get(name, 1), [] if name in _TYPES else None)
            )
            for name in names
        ]
        for names in (inputs, outputs)
    ]
    return helper.make_graph(nodes, "body", values[0], values[1], [weight])


_TYPES = {"i": TensorProto.INT64, "c": TensorProto.BOOL, "c2": TensorProto.BOOL}


def test_loops_of_known_length_are_unrolled() -> None:
    """The copies share their weight, and equal steps are one operation."""
    scan = node(
        "Scan", ["h0", "xs"], ["last", "y"], num_scan_inputs=1, body=recurrent_body(["h", "x"], ["h2", "shown"])
    )
    body = recurrent_body(["i", "c", "h"], ["c2", "h2", "shown"])
    loop = node("Loop", ["trips", "", "h0"], ["last", "y"], body=body)
    values = {"h0": draw(2, 4), "xs": draw(3, 2, 4)}
    shapes = {"h0": (2, 4), "xs": (3, 2, 4)}
    for made in (
        model([scan], shapes, ["last", "y"], opset=16),
        model([loop], shapes, ["last", "y"], {"trips": np.array(3)}, opset=16),
    ):
        agrees(made, values)
        graph = load(made)
        products = {op.operation for op in graph.operators if op.kind == "matmul"}
        assert len(products) == 1 and len(graph.constants) == 1


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij,bkj->bik", [(2, 3, 4), (2, 5, 4)]),
        ("...ij,...jk", [(2, 1, 3, 4), (5, 4, 2)]),
        ("ij->ji", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("bii", [(2, 3, 3)]),
        ("i,j->ij", [(2,), (3,)]),
        ("ij,ij->ij", [(2, 3), (2, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("bhwc,hkc->bhwk", [(2, 3, 4, 5), (3, 6, 5)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    values = {f"x{n}": draw(*shape) for n, shape in enumerate(shapes)}
    made = model(
        [node("Einsum", list(values), equation=equation)], {f"x{n}": s for n, s in enumerate(shapes)}, opset=13
    )
    seen = evaluate_graph(load(made), values)["y"]
    np.testing.assert_allclose(seen, np.einsum(equation, *values.values()), rtol=1e-4, atol=1e-5)


def test_handlers_can_be_added_for_other_domains() -> None:
    @handles("Twice", domain="own")
    def twice(n: Node) -> str:
        return n.add("add", n.tensor(0), n.tensor(0))

    made = model([node("Twice", domain="own")], {"x": (2,)}, domains={"own": 1})
    try:
        assert kinds(made) == ["add"]
    finally:
        del HANDLERS["own", "Twice"]
    with pytest.raises(ModelError, match=r"own\.Twice"):
        load(made)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("kind", ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"])
def test_reductions_of_all_elements_of_large_tensors(kind: str, keepdims: int) -> None:
    """In parts: fewer operators would leave vEUs idle."""
    x = 1 + draw(3, 28, 832) ** 2 * (1e-4 if kind == "Prod" else 1)
    made = model([node(f"Reduce{kind}", ["x"], ["y"], keepdims=keepdims)], {"x": x.shape}, ["y"], opset=18)
    agrees(made, {"x": x})
    assert kinds(made).count("reduce") == (1 if kind == "LogSum" else 2)


def sorted_places(x: Array, k: int, axis: int, largest: int) -> Array:
    """Of equal elements the first one first; NaN counts as infinity."""
    if x.dtype.kind in "iu":
        return np.argsort(~x if largest else x, axis=axis, kind="stable").take(range(k), axis)
    keys = np.where(np.isnan(x), np.inf, x.astype("f8"))
    return np.argsort(-keys if largest else keys, axis=axis, kind="stable").take(range(k), axis)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i8", "i4", "u4", "u1"])
@pytest.mark.parametrize(
    ("shape", "axis", "k"),
    [
        ((2, 5000), 1, 3),
        ((3001, 2), 0, 700),
        ((1, 2050), -1, 2050),
        ((9, 300), 1, 200),
        ((75, 333), 1, 8),
        ((1, 1, 40000), 2, 1),
        ((2, 9), 1, 0),
    ],
)
def test_top_k_of_any_size(shape: tuple[int, ...], axis: int, k: int, dtype: str, largest: int) -> None:
    """More than one block holds: few values, so that equal ones meet across blocks, infinities and NaN among them."""
    random = np.random.default_rng(0)
    x = random.integers(0, 40, shape).astype(dtype)
    if x.dtype.itemsize >= 4 and x.dtype.kind in "iu":  # few values of either half, negative ones among them
        half = 4 * x.dtype.itemsize
        low = random.choice(random.integers(0, 1 << half, 9), shape).astype(dtype)
        x = (x - np.array(20, dtype)) << np.array(half, dtype) | low
    if x.dtype.kind == "f":
        special = np.array([np.inf, -np.inf, np.nan, -0.0], dtype)
        x = np.where(random.random(shape) < 0.2, random.choice(special, shape), x)
    nodes = [node("TopK", ["x", "k"], ["v", "i"], largest=largest, axis=axis)]
    made = model(nodes, {"x": (x.dtype.name, shape)}, ["v", "i"], {"k": np.array([k])}, 11)
    graph, places = load(made), sorted_places(x, k, axis, largest)
    forms = [sort_rows(graph, VDeviceSpec("test", 2, has_int64=has)) for has in (True, False)]
    for form in [graph, *forms] if x.size * shape[axis] < 1 << 21 else forms:
        seen = evaluate_graph(form, {"x": x})
        np.testing.assert_array_equal(seen["i"], places)
        np.testing.assert_array_equal(seen["v"], np.take_along_axis(x, places, axis))


def test_top_k_before_opset_10() -> None:
    x = np.array([[3, 1, 3, 2, 1]], np.float32)
    made = model([node("TopK", ["x"], ["v", "i"], k=2)], {"x": (1, 5)}, ["v", "i"], opset=9)
    seen = evaluate_graph(load(made), {"x": x})
    assert seen["i"].tolist() == [[0, 2]] and seen["v"].tolist() == [[3, 3]]


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_is_stable(largest: int) -> None:
    x = np.array([[3, 1, 3, 2, 1], [0, 0, 0, 0, 0]], np.float32)
    made = model(
        [node("TopK", ["x", "k"], ["v", "i"], largest=largest)], {"x": (2, 5)}, ["v", "i"], {"k": np.array([3])}, 11
    )
    seen = evaluate_graph(load(made), {"x": x})
    order = np.argsort(-x if largest else x, axis=1, kind="stable")[:, :3]
    assert np.array_equal(seen["i"], order) and np.array_equal(seen["v"], np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("opset", [27, 28])
def test_opsets_that_change_nothing_here(opset: int) -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Gelu", ["m"], ["g"]), node("Softmax", ["g"])]
    made = [model(nodes, {"x": (3, 4)}, constants={"w": draw(4, 5)}, opset=o) for o in (26, opset)]
    before, now = (evaluate_graph(load(m), {"x": draw(3, 4)})["y"] for m in made)
    np.testing.assert_array_equal(now, before)


def test_what_changed_is_told_by_the_opset() -> None:
    """Mod of floating-point numbers, with the sign of the divisor, exists since opset 28."""
    x, y = (np.array(v, np.float32) for v in ([5.5, -5.5, 5.5, -0.0, 3, 3], [2, 2, -2, 3, -np.inf, np.inf]))
    made = [model([node("Mod", ["x", "y"], ["z"])], {"x": (6,), "y": (6,)}, ["z"], opset=o) for o in (27, 28)]
    with pytest.raises(ModelError, match="fmod=0 needs integers"):
        load(made[0])
    found = evaluate_graph(load(made[1]), {"x": x, "y": y})["z"]
    np.testing.assert_array_equal(found, np.mod(x, y))
    assert not np.signbit(found[3])
    with pytest.raises(ModelError, match=r"opset 29; supported are 1…28"):
        load(model([node("Relu")], {"x": (2,)}, opset=29))


def log_of_one_and_exp(x: Array) -> Array:
    return np.asarray(np.logaddexp(0, x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("op", "meant"),
    [("Asinh", np.arcsinh), ("Atanh", np.arctanh), ("Sinh", np.sinh), ("Softplus", log_of_one_and_exp)],
)
def test_functions_lose_nothing_where_they_are_small(op: str, meant: Callable[[Array], Array], dtype: str) -> None:
    """A difference of numbers near 1 would: what follows may compare, divide, or take the logarithm."""
    near = np.geomspace(1e-12, 0.7, 200)
    x = np.concatenate([near, -near, [0.0], np.linspace(-60.0, -1.0, 60) if op == "Softplus" else []]).astype(dtype)
    seen = evaluate_graph(load(model([node(op, "x", "y")], {"x": (dtype, x.shape)})), {"x": x})["y"]
    np.testing.assert_allclose(seen, meant(x.astype(np.float64)), rtol=8 * np.finfo(dtype).eps, atol=0)
