"""Models of the catalogue, quantised by ONNX Runtime's own tools: statically from seeded samples, or dynamically."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import catalog
from rammer.ir.tensor import Array

MODELS = {  # name: of the catalogue, and how it is quantised
    "mobilenet": ("today_mobilenet_v2", "static"),
    "minilm": ("today_minilm_128", "dynamic"),
    "minilm_static": ("today_minilm_128", "static"),
    "hifi_gan": ("today_vocoder", "static"),
    "lstm": ("lstm_tc_lstm", "dynamic"),
}
SAMPLES = 4  # inputs that ranges are taken from


class Quantised(NamedTuple):
    """A model in float32 and in bytes, with inputs, and what the one in float32 makes of them."""

    plain: Path
    quantised: bytes
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
    kinds: Any = quantization.QuantType
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        ready, made = Path(folder) / "ready.onnx", Path(folder) / "made.onnx"
        quant_pre_process(str(built.path), str(ready), skip_symbolic_shape=True)
        if how == "dynamic":
            quantization.quantize_dynamic(ready, made, weight_type=kinds.QInt8)
        else:
            options = {"quant_format": quantization.QuantFormat.QDQ, "per_channel": True}
            types = {"activation_type": kinds.QUInt8, "weight_type": kinds.QInt8}
            quantization.quantize_static(ready, made, _Samples(built.inputs), **options, **types)
        return Quantised(built.path, made.read_bytes(), built.inputs, built.outputs)


def error(results: dict[str, Array], wanted: dict[str, Array]) -> float:
    """The root mean square of what results differ by, over that of those wanted; of the worst output."""
    squares = {name: float(np.mean(np.square(value, dtype=np.float64))) for name, value in wanted.items()}
    off = {name: float(np.mean(np.square(results[name] - value, dtype=np.float64))) for name, value in wanted.items()}
    return max(float(np.sqrt(off[name] / squares[name])) for name in wanted)
