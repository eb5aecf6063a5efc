"""Padding is accepted only where it changes nothing: whatever lies behind the true extent, NaN included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from rammer.errors import ModelError
from rammer.frontend.onnx import load
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.session.buckets import cut, length_name, masked, require_prefix

RNG = np.random.default_rng(0)
F32 = np.float32


def weight(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(F32)


def made(nodes: str, shape: str, **weights: Any) -> ModelProto:
    """Nodes "Op inputs -> outputs attribute=value …", one a line; the input is x, the output y; n is padded."""
    protos = []
    for line in filter(None, map(str.strip, nodes.split(";"))):
        left, right = line.split("->")
        op, *inputs = left.split()
        outputs = [part for part in right.split() if "=" not in part]
        attrs = {k: eval(v) for k, v in (part.split("=") for part in right.split() if "=" in part)}
        protos.append(helper.make_node(op, ["" if i == "_" else i for i in inputs], outputs, **attrs))
    dims = [int(e) if e.isdigit() else e for e in shape.split()]
    graph = helper.make_graph(
        protos,
        "padded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


ONE = np.array([1])
HEADS = np.array([0, 0, 2, 4])
EXACT = {
    "dense": made("MatMul x w -> h; Add h b -> s; Relu s -> y", "n 5", w=weight(5, 3), b=weight(3)),
    "gemm": made("Gemm x w b -> y transB=1", "n 5", w=weight(3, 5), b=weight(3)),
    "matmul of rows": made("MatMul w x -> y", "4 n", w=weight(2, 4)),
    "images": made(
        "Conv x w -> c pads=[1,1,1,1]; Relu c -> r; GlobalAveragePool r -> p; Flatten p -> y",
        "n 3 6 5",
        w=weight(4, 3, 3, 3),
    ),
    "pool": made("MaxPool x -> y kernel_shape=[2,2] strides=[2,2]", "n 3 6 5"),
    "softmax of features": made("Softmax x -> s axis=-1; ReduceSum s one -> y keepdims=0", "n 7", one=ONE),
    "norm of features": made("LayerNormalization x s b -> y axis=-1", "2 n 6", s=weight(6), b=weight(6)),
    "heads": made("Reshape x h -> r; Transpose r -> y perm=[0,2,1,3]", "3 n 8", h=HEADS),
    "rows and back": made(
        "Reshape x two -> r; MatMul r w -> m; Reshape m three -> y",
        "n 3 4",
        two=np.array([-1, 4]),
        three=np.array([-1, 3, 2]),
        w=weight(4, 2),
    ),
    "positions": made(
        "Shape x -> s start=1 end=2; Squeeze s -> e; Range zero e one -> p; Gather w p -> v; Add x v -> y",
        "2 n 3",
        w=weight(40, 3),
        zero=np.array(0),
        one=np.array(1),
    ),
    "slice from the front": made("Slice x b e a -> y", "n 6", b=np.array([1]), e=np.array([3]), a=ONE),
    "another dimension": made("Concat x x -> y axis=1", "n 3"),
    "merged and taken apart": made(
        "Reshape x f -> r; MatMul r w -> m; Relu m -> a; Reshape a b -> y",
        "3 n 4",
        f=np.array([-1, 4]),
        w=weight(4, 2),
        b=np.array([3, -1, 2]),
    ),
    "joined, and one of them": made("Concat x x x -> t axis=0; Tanh t -> u; Split u -> a y b axis=0", "n 3"),
    **{
        f"{op}{' ' + more if more else ''}": made(
            f"{op} x w r b -> {outputs} hidden_size=3 {more}",
            shape,
            w=weight(ways, gates * 3, 2),
            r=weight(ways, gates * 3, 3),
            b=weight(ways, gates * 6),
        )
        for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
        for more, ways, shape, outputs in (
            ("", 1, "4 n 2", "_ y"),
            ("direction='bidirectional'", 2, "4 n 2", "y"),
            ("layout=1", 1, "n 4 2", "y"),
        )
    },
    "layers of steps": made(
        "LSTM x w r -> a hidden_size=3; Squeeze a one -> s; GRU s v q -> _ h hidden_size=3; Squeeze h zero -> y",
        "4 n 2",
        w=weight(1, 12, 2),
        r=weight(1, 12, 3),
        v=weight(1, 9, 3),
        q=weight(1, 9, 3),
        one=ONE,
        zero=np.array([0]),
    ),
    "sequences of all lengths": made(
        "ReduceSum x a -> l keepdims=0; Abs l -> p; Min p m -> k; Cast k -> i to=6; LSTM x w r _ i -> y hidden_size=3",
        "4 n 2",
        a=np.array([0, 2]),
        m=F32(4),
        w=weight(1, 12, 2),
        r=weight(1, 12, 3),
    ),
    "attention over a fixed length": made(
        "Transpose x -> t perm=[0,2,1]; MatMul x t -> m; Softmax m -> s axis=-1; MatMul s x -> y", "n 5 4"
    ),
}
REFUSED = {  # with the output of the node that is named
    "mean": (made("ReduceMean x -> y axes=[0]", "n 5"), "y"),
    "norm along it": (made("LayerNormalization x s -> y axis=0", "n", s=weight(1)), "y"),
    "a sum over what two of them became": (made("Concat x x -> t axis=0; ReduceSum t -> y", "n 5"), "y"),
    **{
        f"{what} over what was merged": (
            made(
                f"Reshape x f -> t; {nodes}",
                "3 n 4",
                f=np.array([-1, 4]),
                zero=np.array(0),
                one=ONE,
                four=np.array([4]),
                two=np.array([2, -1]),
                o=np.array(1),
                w=weight(96, 4),
            ),
            output,
        )
        for what, nodes, output in (
            ("softmax", "Softmax t -> y axis=0", "y"),
            ("a running sum", "CumSum t zero -> y", "y"),
            ("a slice", "Slice t one four -> s; Relu s -> y", "s"),
            ("another shape", "Reshape t two -> y", "y"),
            ("windows", "Transpose t -> u; Unsqueeze u one -> v; MaxPool v -> y kernel_shape=[2]", "y"),
            (
                "places",
                "Shape t -> s; Gather s zero -> e; Range zero e o -> r; Gather w r -> p; Add t p -> a; Relu a -> y",
                "a",
            ),
        )
    },
    "convolution along it": (made("Conv x w -> y pads=[1,1,1,1]", "1 3 n 5", w=weight(2, 3, 3, 3)), "y"),
    "two of them": (made("Concat x x -> y axis=0", "n 3"), "y"),
    "its end": (made("Slice x b e -> y", "n 3", b=np.array([-1]), e=np.array([1000])), "y"),
    "reversed": (made("Slice x b e a b -> y", "n 3", b=np.array([-1]), e=np.array([-1000]), a=np.array([0])), "y"),
    "merged behind another": (made("Reshape x f -> y", "3 n 4", f=np.array([-1, 4])), "y"),
    "its extent": (made("Shape x -> s; Cast s -> f to=1; Mul x f -> y", "n 2"), "y"),
    "steps": (made("LSTM x w r -> a y hidden_size=3", "n 1 2", w=weight(1, 12, 2), r=weight(1, 12, 3)), "a"),
}
MASKED = {
    "sum": made("ReduceSum x -> y", "n 5"),
    "largest": made("ReduceMax x -> y axes=[0]", "n 5"),
    "smallest integer": made("Cast x -> i to=7; ReduceMin i -> s axes=[0]; Cast s -> y to=1", "n 5"),
    "product": made("ReduceProd x -> y axes=[0] keepdims=0", "n 5"),
    "length": made("ReduceL2 x -> y axes=[0]", "n 5"),
    "logarithm of a sum": made("ReduceLogSumExp x -> y axes=[0]", "n 5"),
    "softmax": made("Softmax x -> y axis=0", "n 5"),
    "its logarithm": made("LogSoftmax x -> y axis=0", "n 5"),
    "softmax of minus infinity": made("Log x -> l; Abs l -> a; Log a -> b; Softmax b -> y axis=0", "n 5"),
    "attention over it": made("Transpose x -> t perm=[1,0]; MatMul x t -> m; Softmax m -> s; MatMul s x -> y", "n 4"),
    "a product over it": made("Transpose x -> t perm=[1,0]; MatMul t x -> y", "n 4"),
}
SIZES = [(1, 2), (2, 3), (3, 8), (5, 32), (7, 7)]


def pair(model: ModelProto, n: int, padded: int) -> tuple[Any, Any]:
    return load(model, dims={"n": n}), load(model, dims={"n": padded})


@pytest.mark.parametrize(("n", "larger"), SIZES)
@pytest.mark.parametrize("name", EXACT)
def test_padding_changes_nothing_where_it_is_accepted(name: str, n: int, larger: int) -> None:
    exact, padded = pair(EXACT[name], n, larger)
    require_prefix(exact, padded)
    x = RNG.standard_normal(exact.types["x"].shape).astype(F32)
    filled = np.full(padded.types["x"].shape, np.nan, F32)
    filled[tuple(slice(e) for e in x.shape)] = x
    wanted = evaluate_graph(exact, {"x": x})["y"]
    with np.errstate(all="ignore"):
        found = cut(evaluate_graph(padded, {"x": filled})["y"], wanted.shape)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("n", "larger"), SIZES[:-1])
@pytest.mark.parametrize("name", MASKED)
def test_masks_make_reductions_exact(name: str, n: int, larger: int) -> None:
    exact, padded = pair(MASKED[name], n, larger)
    masks = require_prefix(exact, padded, {"n": (n, larger)})
    assert masks
    with pytest.raises(ModelError, match="reduces a padded dimension"):
        require_prefix(exact, padded)
    x = RNG.standard_normal(exact.types["x"].shape).astype(F32)
    with np.errstate(all="ignore"):
        wanted = evaluate_graph(exact, {"x": x})["y"]
        for junk in (np.nan, np.inf, -3.0):
            filled = np.full(padded.types["x"].shape, junk, F32)
            filled[tuple(slice(e) for e in x.shape)] = x
            given = {"x": filled, length_name("n"): np.array(n)}
            found = cut(evaluate_graph(masked(padded, masks), given)["y"], wanted.shape)
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_padding_is_refused_by_name_where_it_would_matter(name: str) -> None:
    model, output = REFUSED[name]
    for n, larger in SIZES[1:-1]:
        with pytest.raises(ModelError, match="would depend on padding") as caught:
            require_prefix(*pair(model, n, larger), {"n": (n, larger)})
        assert caught.value.node == f"→{output}" and caught.value.op
