"""The onnx package's real topologies with random weights: valid, reproducible, and no constant left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks.models import light
from benchmarks.on_paper.floors import IR_OF_CONSTANTS, count
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


@pytest.mark.parametrize("model", ["shufflenet", "densenet121"], indirect=True)  # squeezenet normalizes nothing
def test_variances_are_positive(model: onnx.ModelProto) -> None:
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    least = [weights[n.input[4]].min() for n in model.graph.node if n.op_type == "BatchNormalization"]
    assert len(least) > 40 and min(least) > 0


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


def test_multiply_adds_behind_folded_weights(tmp_path: Path) -> None:
    """The scales of a BatchNormalization are unsqueezed in the graph, in an IR whose initializers are inputs."""
    model = light.load("densenet121")
    scale = [n.input[1] for n in model.graph.node if n.op_type == "Mul"]
    unsqueezed = {n.output[0] for n in model.graph.node if n.op_type == "Unsqueeze"}
    assert model.ir_version < IR_OF_CONSTANTS and unsqueezed.issuperset(scale)
    onnx.save(model, tmp_path / "densenet121.onnx")
    assert count(tmp_path / "densenet121.onnx").macs == pytest.approx(2.83e9, rel=0.01)
