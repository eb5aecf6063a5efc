"""Taking weights out of a serialized model changes nothing about what is read."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from rammer.errors import ModelError
from rammer.frontend.onnx import load, wire


def _model(*tensors: TensorProto) -> ModelProto:
    nodes = [helper.make_node("Identity", [t.name], [f"y{n}"]) for n, t in enumerate(tensors)]
    outputs = [helper.make_tensor_value_info(f"y{n}", t.data_type, list(t.dims)) for n, t in enumerate(tensors)]
    graph = helper.make_graph(nodes, "g", [], outputs, list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def _tensor(name: str, size: int) -> TensorProto:
    return numpy_helper.from_array(np.arange(size, dtype=np.float32), name)


def _joined(rest: bytes, weights: dict[str, memoryview]) -> ModelProto:
    model = ModelProto()
    model.ParseFromString(rest)
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            assert not tensor.HasField("raw_data")
            tensor.raw_data = bytes(weights[tensor.name])
    return model


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LARGE", 8)


def test_large_weights_are_views_of_the_file() -> None:
    model = _model(_tensor("a", 40_000), _tensor("b", 3), _tensor("c", 20_000))
    data = model.SerializeToString()
    rest, weights = wire.take_weights(data)
    assert set(weights) == {"a", "c"} and len(rest) < 1000
    assert all(view.obj is data for view in weights.values())
    assert _joined(rest, weights) == model
    graph = load(data)
    for name, size in (("a", 40_000), ("b", 3), ("c", 20_000)):
        np.testing.assert_array_equal(graph.constants[name], np.arange(size, dtype=np.float32))


@pytest.mark.usefixtures("small")
def test_what_is_unusual_stays_in_the_model() -> None:
    a, twin, nameless, values = _tensor("a", 9), _tensor("a", 8), _tensor("", 9), _tensor("v", 0)
    values.float_data.extend([1.0] * 9)
    data = _model(a, nameless, values).SerializeToString()
    assert set(wire.take_weights(data)[1]) == {"a"}
    same_name = _model(a, twin).SerializeToString()
    assert wire.take_weights(same_name) == (same_name, {})
    two_graphs = data + data  # protobuf merges them
    assert wire.take_weights(two_graphs) == (two_graphs, {})
    tensor = a.SerializeToString() + TensorProto(raw_data=b"\0" * 36).SerializeToString()
    repeated = wire._sized(wire.GRAPH, wire._sized(wire.INITIALIZER, tensor))  # of which the last counts
    assert wire.take_weights(repeated) == (repeated, {})
    assert wire.take_weights(tensor) == (tensor, {})  # no model at all


@pytest.mark.usefixtures("small")
def test_sizes_are_checked_as_before() -> None:
    wrong = _tensor("a", 9)
    wrong.dims[0] = 10
    with pytest.raises(ModelError, match=r"tensor 'a' has 36 bytes of data; float32\[10\] needs 40"):
        load(_model(wrong).SerializeToString())


@pytest.mark.usefixtures("small")
@settings(max_examples=300)
@given(st.data())
def test_damaged_models_read_the_same(data: st.DataObject) -> None:
    whole = bytearray(_model(_tensor("a", 5), _tensor("b", 7)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    expected: ModelProto | None = ModelProto()
    try:
        expected.ParseFromString(damaged)
    except DecodeError:
        expected = None
    rest, weights = wire.take_weights(damaged)
    if expected is None:
        with pytest.raises(DecodeError):
            ModelProto().ParseFromString(rest)
    else:
        assert _joined(rest, weights) == expected
