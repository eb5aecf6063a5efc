"""The meaning of each ONNX operator, in rOperators."""

from __future__ import annotations

from rammer.frontend.onnx.handlers import (
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
    sequence,
    sort,
)

__all__ = [
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
    "sequence",
    "sort",
]
