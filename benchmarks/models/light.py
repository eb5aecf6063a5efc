"""The nine real topologies of the onnx package ("light" models), with seeded random weights instead of one constant.

Their own expected outputs are one repeated number, which a transposed weight or a missing wait would not change.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.models.store import CACHE, Arrays, BuiltModel, reuse, source_digest
from rammer.errors import RammerError, did_you_mean

SEED = 20
FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)

LARGEST = ("resnet50", "densenet121", "vgg19", "inception_v2", "squeezenet")  # the ones that are compared with peers

# Role of a weight by the operator that reads it and the input's position.
ROLES = {
    ("Conv", 1): "kernel",
    ("Gemm", 1): "matrix",
    ("BatchNormalization", 1): "scale",
    ("BatchNormalization", 4): "variance",
    ("Mul", 1): "scale",
}

# Measured: what brings the standard deviation of the logits to 1 ... 2, so that no softmax is a single 1.
LOGIT_GAIN = {"densenet121": 0.5, "inception_v1": 0.4, "inception_v2": 0.4, "shufflenet": 0.15, "squeezenet": 0.5}


def load(name: str, seed: int = SEED) -> onnx.ModelProto:
    """Return the model with new seeded values for every float weight; ConstantOfShape weights become initializers."""
    if name not in NAMES:
        hint = did_you_mean(name, NAMES) or f"known: {', '.join(NAMES)}"
        raise RammerError(f"no light model named {name!r}", hint=hint)
    model = onnx.load(FOLDER / f"light_{name}.onnx")
    graph = model.graph
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    constants = {n.output[0]: shapes[n.input[0]] for n in graph.node if n.op_type == "ConstantOfShape"}
    refilled = {t.name: tuple(t.dims) for t in graph.initializer if t.data_type == TensorProto.FLOAT}
    refilled.update({output: tuple(int(d) for d in shape) for output, shape in constants.items()})
    draw = _Weights(graph, seed, LOGIT_GAIN.get(name, 1.0))

    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    used = {name for node in nodes for name in node.input}
    kept = [t for t in graph.initializer if t.name in used and t.name not in refilled]
    inputs = [v for v in graph.input if v.name not in shapes or (v.name in used and v.name not in refilled)]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    graph.input.extend(inputs)
    for weight, shape in refilled.items():
        if weight in used:
            graph.initializer.append(numpy_helper.from_array(draw(weight, shape), weight))
            # An initializer of IR version 3 is also an input.
            graph.input.append(helper.make_tensor_value_info(weight, TensorProto.FLOAT, shape))
    return model


def example_inputs(model: onnx.ModelProto, seed: int = SEED) -> Arrays:
    """Return seeded normal values for every input that has no initializer."""
    weights = {t.name for t in model.graph.initializer}
    rng = np.random.default_rng(seed)
    return {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim], np.float32)
        for value in model.graph.input
        if value.name not in weights
    }


def build(name: str, cache: Path = CACHE) -> BuiltModel:
    """Write the refilled model, and return it with ONNX Runtime's unoptimized outputs. Needs onnxruntime."""
    import onnxruntime  # type: ignore[import-untyped, import-not-found, unused-ignore]

    def make() -> tuple[bytes, Arrays, Arrays]:
        model = load(name)
        inputs, content = example_inputs(model), model.SerializeToString()
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_outputs()]
        return content, inputs, dict(zip(names, session.run(names, inputs), strict=True))

    made_by = {"source": source_digest([Path(__file__)]), "onnxruntime": onnxruntime.__version__}
    return reuse(f"light_{name}", made_by, make, cache)


class _Weights:
    """Random values by role: He-scaled kernels, positive variances, small biases; smaller before a residual sum."""

    def __init__(self, graph: onnx.GraphProto, seed: int, logit_gain: float) -> None:
        self._seed = seed
        views = {n.output[0]: n.input[0] for n in graph.node if n.op_type in ("Unsqueeze", "Reshape")}
        readers = [(views.get(name, name), node, i) for node in graph.node for i, name in enumerate(node.input)]
        self._readers = {name: (node, i) for name, node, i in readers if node.op_type not in ("Unsqueeze", "Reshape")}
        classifier = [node for node in graph.node if node.op_type in ("Conv", "Gemm")][-1]
        self._gain = {views.get(classifier.input[1], classifier.input[1]): np.float32(logit_gain)}
        self._before_sum = {name for node in graph.node if node.op_type == "Sum" for name in node.input}

    def __call__(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        return self._draw(name, shape) * self._gain.get(name, np.float32(1))

    def _draw(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        rng = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        node, position = self._readers[name]
        match ROLES.get((node.op_type, position), "bias"):
            case "kernel":
                return rng.standard_normal(shape, np.float32) * np.float32((2 / np.prod(shape[1:])) ** 0.5)
            case "matrix":
                transposed = any(a.name == "transB" and a.i for a in node.attribute)
                fan_in = shape[-1] if transposed else shape[-2]
                return rng.standard_normal(shape, np.float32) * np.float32(fan_in**-0.5)
            case "variance":
                return rng.uniform(0.8, 1.2, shape).astype(np.float32)
            case "scale":
                tamed = 0.3 if self._before_sum.intersection(node.output) else 1.0
                return (tamed * rng.uniform(0.8, 1.2, shape)).astype(np.float32)
            case _:
                return rng.standard_normal(shape, np.float32) * np.float32(0.1)
