"""The meaning of each ONNX operator, in rOperators."""

from __future__ import annotations

from rammer.frontend.onnx.handlers import (
    bits,
    control,
    einsum,
    elementwise,
    indexing,
    layout,
    neural,
    normalization,
    quantized,
    recurrent,
    reduction,
    resize,
    sampling,
    selection,
    signal,
    sort,
)

__all__ = [
    "bits",
    "control",
    "einsum",
    "elementwise",
    "indexing",
    "layout",
    "neural",
    "normalization",
    "quantized",
    "recurrent",
    "reduction",
    "resize",
    "sampling",
    "selection",
    "signal",
    "sort",
]
