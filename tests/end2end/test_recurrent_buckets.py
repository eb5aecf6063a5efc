"""Buckets of sequences: steps behind the true end change no state, in either direction, whatever is masked already."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import rammer
from rammer.errors import ModelError
from rammer.session.buckets import require_specialized, step_masks

F32 = np.float32
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUTS = 10


def network(
    op: str, direction: str = "forward", lengths: bool = False, hidden: int = 24, layers: int = 1, behind: str = ""
) -> ModelProto:
    """Layers of a recurrent network, and what comes `behind` the last one: an operator over the steps."""
    random, directions = np.random.default_rng(4), 2 if direction == "bidirectional" else 1
    nodes, weights, x, width = [], dict[str, Any](), "x", INPUTS
    for n in range(layers):
        shapes = {"w": (GATES[op] * hidden, width), "r": (GATES[op] * hidden, hidden), "b": (2 * GATES[op] * hidden,)}
        names = {f"{name}{n}": shape for name, shape in shapes.items()}
        weights |= {
            name: (random.standard_normal((directions, *shape)) / 5).astype(F32) for name, shape in names.items()
        }
        states = [f"h{n}", f"c{n}"] if op == "LSTM" else [f"h{n}"]
        given = [x, *names, *(["lens"] if lengths else [])]
        nodes.append(helper.make_node(op, given, [f"y{n}", *states], hidden_size=hidden, direction=direction))
        x, width = f"z{n}", directions * hidden
        if n + 1 < layers:
            nodes.append(helper.make_node("Transpose", [f"y{n}"], [f"t{n}"], perm=[0, 2, 1, 3]))
            nodes.append(helper.make_node("Reshape", [f"t{n}", "joined"], [x]))
    weights["joined"] = np.array([0, 0, width])
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["seq", "batch", INPUTS])]
    if lengths:
        ports.append(helper.make_tensor_value_info("lens", TensorProto.INT32, ["batch"]))
    outputs = [f"y{layers - 1}", *states]
    if behind:
        nodes.append(helper.make_node(behind, [f"y{layers - 1}", "axes"], ["pooled"], name="behind", keepdims=0))
        weights["axes"], outputs = np.array([0]), ["pooled"]
    graph = helper.make_graph(
        nodes,
        "network",
        ports,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def agrees(session: rammer.Session, model: ModelProto, sizes: tuple[tuple[int, int], ...]) -> None:
    """Run sequences of these steps and batches, and compare with ONNX Runtime."""
    random, options = np.random.default_rng(1), onnxruntime.SessionOptions()
    options.log_severity_level = 4
    peer = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for seq, batch in sizes:
        given: dict[str, Any] = {"x": random.standard_normal((seq, batch, INPUTS)).astype(F32)}
        if "lens" in {p.name for p in session.get_inputs()}:
            given["lens"] = random.integers(1, seq + 1, batch).astype(np.int32)
        for found, wanted in zip(session.run(None, given), peer.run(None, given), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lengths", [False, True], ids=["all steps", "lengths"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_one_program_for_sequences_of_any_length(op: str, direction: str, lengths: bool) -> None:
    model = network(op, direction, lengths)
    with rammer.Session(model, "interpreter", buckets={"seq": [8], "batch": [4]}) as session:
        agrees(session, model, ((5, 3), (8, 4), (7, 4), (1, 1), (8, 2)))
        assert session.report().misses == 1


def test_layers_on_a_cpu() -> None:
    """Two layers in both directions, and the sum over the steps, by one program for each bucket."""
    for behind in ("", "ReduceSum"):
        model = network("GRU", "bidirectional", True, hidden=20, layers=2, behind=behind)
        with rammer.Session(model, "cpu", buckets={"seq": [6, 12]}, device=2, tune_seconds=0) as session:
            agrees(session, model, ((5, 3), (12, 3), (6, 3), (1, 3), (11, 3)))
            assert session.report().misses == 2


def test_what_needs_the_number_of_steps_is_refused() -> None:
    model = network("LSTM", behind="ReduceMean")
    with (
        rammer.Session(model, "interpreter", buckets={"seq": [8]}) as session,
        pytest.raises(ModelError, match="'behind': its results would depend on padding"),
    ):
        agrees(session, model, ((5, 3),))


def test_a_mask_that_is_wrong_is_refused() -> None:
    """Steps that are masked one too early or too late are other graphs; so are steps without a mask."""
    source = rammer.Session(network("GRU", lengths=True), "interpreter")._source
    shapes = [{"x": (steps, 3, INPUTS), "lens": (3,)} for steps in (5, 8)]
    small, large = (source.load(shapes=shape) for shape in shapes)
    (mask,) = step_masks(small.steps, large.steps, {"seq": (5, 8)})
    assert not step_masks(small.steps, large.steps, {"seq": (5, 8), "other": (5, 8)})  # which of them, is not known
    lengths = {mask.label: "length of seq"}
    graphs = [source.load(shapes=shape, step_lengths=lengths).graph for shape in shapes]
    require_specialized(graphs[0], graphs[1], {"length of seq": np.array(5)}, {})
    for length in (4, 6):
        with pytest.raises(ModelError, match="padding"):
            require_specialized(small.graph, graphs[1], {"length of seq": np.array(length)}, {})
    with pytest.raises(ModelError, match="padding"):
        require_specialized(small.graph, large.graph, {}, {})
