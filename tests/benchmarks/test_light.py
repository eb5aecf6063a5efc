"""The onnx package's real topologies with random weights: valid, reproducible, and no constant left."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks import light
from rammer.errors import RammerError


@pytest.fixture(scope="module", params=["squeezenet", "shufflenet", "densenet121"])
def model(request: pytest.FixtureRequest) -> onnx.ModelProto:
    return light.load(request.param)


def test_no_weight_is_constant(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model)
    assert all(node.op_type != "ConstantOfShape" for node in model.graph.node)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size > 1:
            assert values.std() > 0, tensor.name


def test_variances_are_positive(model: onnx.ModelProto) -> None:
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            assert numpy_helper.to_array(weights[node.input[4]]).min() > 0


def test_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (light.load("squeezenet", seed).SerializeToString() for seed in (1, 1, 2))
    assert first == again != other


def test_output_is_not_one_number(model: onnx.ModelProto) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="running the model needs onnxruntime")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, light.example_inputs(model))
    assert np.isfinite(output).all()
    assert len(np.unique(output)) > 500 and output.max() < 0.99 * np.abs(output).sum()


def test_unknown_name_suggests_the_closest() -> None:
    with pytest.raises(RammerError, match="did you mean 'vgg19'"):
        light.load("vgg16")
