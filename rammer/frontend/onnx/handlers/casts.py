"""Cast to types whose saturation and rounding are attributes of the node."""

from __future__ import annotations

import numpy as np

from rammer.frontend.onnx.node import Node
from rammer.ir.tensor import DType, TensorId

ROUND_MODES = ("up", "down", "nearest")


def narrow_float(n: Node, x: TensorId, dtype: DType, *, saturate: bool = True, mode: str = "up") -> TensorId:
    """Cast `x` to `dtype`. `saturate` applies to 8-bit floats, `mode` to powers of two (F8E8M0)."""
    if n.type(x).dtype is dtype:
        return x
    if dtype is DType.F8E8M0:
        return _power_of_two(n, n.cast(x, DType.F32), saturate, mode)
    if dtype.is_float and dtype.only_stored and saturate:
        if n.type(x).dtype.only_stored or not n.type(x).dtype.is_float:
            x = n.cast(x, DType.F32)
        largest = float(dtype.info.max)
        x = n.add("clip", x, low=-largest, high=largest)
    return n.cast(x, dtype)


def _power_of_two(n: Node, x: TensorId, saturate: bool, mode: str) -> TensorId:
    """Round `x`, float32, to a power of two. Negative numbers become NaN; too small ones too, unless `saturate`."""
    if mode not in ROUND_MODES:
        raise n.fail(f"round_mode is {mode!r}", hint=f"one of {', '.join(ROUND_MODES)}")
    info = DType.F8E8M0.info
    least = n.like(float(info.smallest_normal), x)
    outside = n.add("less", x, n.like(0, x) if saturate else least)
    if saturate:
        x = n.add("clip", x, low=float(info.smallest_normal), high=float(info.max))
    nearest = n.cast(n.cast(x, DType.F8E8M0), DType.F32)
    if mode == "up":
        nearest = n.add("where", n.add("less", nearest, x), n.add("add", nearest, nearest), nearest)
    elif mode == "down":
        half = n.add("mul", nearest, n.like(0.5, x))
        nearest = n.add("where", n.add("less", x, nearest), half, nearest)
    return n.cast(n.add("where", outside, n.like(np.nan, x), nearest), DType.F8E8M0)
