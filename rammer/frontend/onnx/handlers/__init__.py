"""The meaning of each ONNX operator, in rOperators."""

from __future__ import annotations

from rammer.frontend.onnx.handlers import (
    bits,
    contrib,
    contrib_attention,
    contrib_quantized,
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
    sequence,
    signal,
    sort,
)

__all__ = [
    "bits",
    "contrib",
    "contrib_attention",
    "contrib_quantized",
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
    "sequence",
    "signal",
    "sort",
]
