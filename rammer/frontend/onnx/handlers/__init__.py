"""The meaning of each ONNX operator, in rOperators."""

from __future__ import annotations

from rammer.frontend.onnx.handlers import (
    control,
    elementwise,
    indexing,
    layout,
    neural,
    normalization,
    recurrent,
    reduction,
    resize,
)

__all__ = [
    "control",
    "elementwise",
    "indexing",
    "layout",
    "neural",
    "normalization",
    "recurrent",
    "reduction",
    "resize",
]
