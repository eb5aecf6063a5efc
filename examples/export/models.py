"""Write the models of these examples: `vad.onnx`, a voice detector by loudness, and `stripes.onnx`, a classifier."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(name: str, nodes: list, inputs: dict, outputs: dict, constants: dict) -> None:
    """Write a model of float32 tensors."""
    ports = [
        [helper.make_tensor_value_info(port, TensorProto.FLOAT, shape) for port, shape in side.items()]
        for side in (inputs, outputs)
    ]
    weights = [numpy_helper.from_array(np.asarray(value, np.float32), key) for key, value in constants.items()]
    graph = helper.make_graph([helper.make_node(kind, *rest) for kind, *rest in nodes], name, *ports, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, f"{name}.onnx")


# The level of a frame, smoothed over frames: `h` is the state.
save(
    "vad",
    [
        ("Mul", ["samples", "samples"], ["power"]),
        ("ReduceMean", ["power"], ["mean"]),
        ("Add", ["mean", "least"], ["audible"]),
        ("Log", ["audible"], ["level"]),
        ("Mul", ["level", "new"], ["now"]),
        ("Mul", ["h", "old"], ["before"]),
        ("Add", ["now", "before"], ["h_out"]),
        ("Add", ["h_out", "threshold"], ["above"]),
        ("Sigmoid", ["above"], ["speech"]),
    ],
    {"samples": [1, 512], "h": [1, 1]},
    {"speech": [1, 1], "h_out": [1, 1]},
    {"least": 1e-9, "new": 0.3, "old": 0.7, "threshold": 7},
)
# Edges across and along, by Sobel's filters: horizontal stripes have the former, vertical ones the latter.
across = np.array([[-1, -2, -1], [0, 0, 0], [1, 2, 1]])
save(
    "stripes",
    [
        ("Conv", ["image", "filters"], ["edges"]),
        ("Abs", ["edges"], ["strength"]),
        ("GlobalAveragePool", ["strength"], ["mean"]),
        ("Sub", ["mean", "middle"], ["score"]),
        ("Sigmoid", ["score"], ["classes"]),
    ],
    {"image": [1, 1, 32, 32]},
    {"classes": [1, 2, 1, 1]},
    {"filters": np.stack([across, across.T])[:, None], "middle": 1},
)
