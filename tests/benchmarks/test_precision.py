"""The benchmark of rounding errors: a product whose errors are known."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from benchmarks.on_paper.precision import errors


def test_errors_of_a_product() -> None:
    """x is exact in bf16 and w is not: whether products or only weights are rounded, the error is that of w."""
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (64, 96)).astype(np.float32)
    w = rng.normal(size=(96, 160)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (64, 160))],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    products, weights = errors(model, {"x": x}, "x86-64-avx512bf16@here")
    assert 1e-4 < weights < 1e-2
    assert abs(products - weights) < 1e-6
