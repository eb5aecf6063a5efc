"""Models of the catalogue, quantised by ONNX Runtime's own tools.

Statically from seeded samples, dynamically, or only the weights of products, to four bits in blocks. Or, as these tools
do not, only the weights of all layers, to bytes by channel or unit. Or all is float16, but for inputs and outputs.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.models import catalog
from rammer.ir.tensor import Array

# Name: of the catalogue, and how it is quantised; of blocks their terms, and whether products may be those of bytes.
BLOCKS = {
    f"{name}_4bit_{block}{'_bytes' * narrow}": (of_catalogue, f"blocks {block} {4 * narrow}")
    for name, of_catalogue in (("llama", "today_llama_256"), ("minilm", "today_minilm_32"))
    for narrow in (False, True)
    for block in (32, 128)
}
HALVES = {
    f"{name}_f16": (f"today_{name}", "half")
    for name in (
        *("keyword", "mobilenet_v2", "efficientnet_b0", "ghostnet", "resnet18", "ocr_detector", "segmenter", "crnn"),
        *("conformer_chunk", "minilm_32", "gpt2_64", "t5_encoder", "vit_tiny", "tcn", "denoiser_16", "vocoder"),
    )
}
MODELS = {
    "mobilenet": ("today_mobilenet_v2", "static"),
    "minilm": ("today_minilm_128", "dynamic"),
    "minilm_static": ("today_minilm_128", "static"),
    "hifi_gan": ("today_vocoder", "static"),
    "lstm": ("lstm_tc_lstm", "dynamic"),
    "mobilenet_weights": ("today_mobilenet_v2", "weights"),
    "lstm_weights": ("lstm_tc_lstm", "weights"),
    **BLOCKS,
    **HALVES,
}
WEIGHTS = {"Conv": ((1, 0),), "Gemm": ((1, 0),), "LSTM": ((1, 1), (2, 1))}  # operands, and their axis of scales
SAMPLES = 4  # inputs that ranges are taken from


class Quantised(NamedTuple):
    """A model in float32 and in bits, with inputs, and what the one in float32 makes of them."""

    plain: Path
    quantised: bytes
    bits: int
    inputs: dict[str, Array]
    wanted: dict[str, Array]


class _Samples:
    """What `quantize_static` takes ranges from."""

    def __init__(self, inputs: dict[str, Array]) -> None:
        rng = np.random.default_rng(0)
        noisy: Iterator[dict[str, Array]] = (
            {
                name: (x + 0.1 * rng.standard_normal(x.shape)).astype(x.dtype) if x.dtype == np.float32 else x
                for name, x in inputs.items()
            }
            for _ in range(SAMPLES - 1)
        )
        self.samples = iter([inputs, *noisy])

    def get_next(self) -> dict[str, Array] | None:
        """The next one; None after the last."""
        return next(self.samples, None)


def quantise(name: str) -> Quantised:
    """Make one of MODELS. Static ones have QuantizeLinear to unsigned bytes, and scales of weights by channel."""
    from onnxruntime import quantization  # type: ignore[import-untyped, import-not-found, unused-ignore]
    from onnxruntime.quantization.shape_inference import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
        quant_pre_process,
    )

    of_catalogue, how = MODELS[name]
    built = catalog.prepare(of_catalogue).built
    if how == "half":
        from onnxruntime.transformers.float16 import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
            convert_float_to_float16,
        )

        halved = convert_float_to_float16(onnx.load(built.path), keep_io_types=True)
        return Quantised(built.path, halved.SerializeToString(), 16, built.inputs, built.outputs)
    kinds: Any = quantization.QuantType
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        ready, made = Path(folder) / "ready.onnx", Path(folder) / "made.onnx"
        quant_pre_process(str(built.path), str(ready), skip_symbolic_shape=True)
        if name in BLOCKS:
            packed = _in_blocks(ready, *map(int, how.split()[1:]))
            return Quantised(built.path, packed, 4, built.inputs, built.outputs)
        if how == "weights":
            return Quantised(built.path, _weights_alone(ready), 8, built.inputs, built.outputs)
        if how == "dynamic":
            quantization.quantize_dynamic(ready, made, weight_type=kinds.QInt8)
        else:
            options = {"quant_format": quantization.QuantFormat.QDQ, "per_channel": True}
            types = {"activation_type": kinds.QUInt8, "weight_type": kinds.QInt8}
            quantization.quantize_static(ready, made, _Samples(built.inputs), **options, **types)
        return Quantised(built.path, made.read_bytes(), 8, built.inputs, built.outputs)


def _in_blocks(path: Path, block: int, level: int) -> bytes:
    """The model with MatMulNBits for products with constants: four bits, zero points by block."""
    from onnxruntime.quantization.matmul_nbits_quantizer import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
        MatMulNBitsQuantizer,
    )

    quantizer = MatMulNBitsQuantizer(onnx.load(path), block_size=block, accuracy_level=level)
    quantizer.process()
    made: bytes = quantizer.model.model.SerializeToString()
    return made


def _weights_alone(path: Path) -> bytes:
    """The model with weights as bytes, each dequantised where it is used."""
    model = onnx.load(path)
    graph, ready = model.graph, []
    constants = {t.name: t for t in graph.initializer}
    for node in graph.node:
        for position, axis in WEIGHTS.get(node.op_type, ()):
            name = node.input[position]
            if name not in constants:
                continue
            values = numpy_helper.to_array(constants[name])
            others = tuple(d for d in range(values.ndim) if d != axis)
            scale = np.maximum(np.abs(values).max(others, keepdims=True), 1e-12) / 127
            whole = np.round(values / scale).astype(np.int8)
            made = {f"{name}_bytes": whole, f"{name}_scale": scale.astype(np.float32).ravel()}
            graph.initializer.extend(numpy_helper.from_array(value, key) for key, value in made.items())
            ready.append(onnx.helper.make_node("DequantizeLinear", [*made], [f"{name}_float"], axis=axis))
            node.input[position] = f"{name}_float"
        ready.append(node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ready]
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [onnx.TensorProto.FromString(t.SerializeToString()) for t in graph.initializer if t.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    serialised: bytes = model.SerializeToString()
    return serialised


def error(results: dict[str, Array], wanted: dict[str, Array]) -> float:
    """The root mean square of what results differ by, over that of those wanted; of the worst output."""
    squares = {name: float(np.mean(np.square(value, dtype=np.float64))) for name, value in wanted.items()}
    off = {name: float(np.mean(np.square(results[name] - value, dtype=np.float64))) for name, value in wanted.items()}
    return max(float(np.sqrt(off[name] / squares[name])) for name in wanted)
