"""Compute with complex numbers as pairs of real ones. Linear operators apply to each part."""

from __future__ import annotations

from rammer.frontend.onnx.node import Node
from rammer.ir.tensor import DType, TensorId


def parts(n: Node, x: TensorId) -> TensorId:
    """Return complex numbers as pairs along a last dimension of 2; real ones as they are."""
    return n.add("view_as_real", x) if n.type(x).dtype.is_complex else x


def from_parts(n: Node, x: TensorId, dtype: DType) -> TensorId:
    """Undo `parts`, for a tensor of type `dtype`."""
    return n.add("view_as_complex", x) if dtype.is_complex else x


def channels(n: Node, x: TensorId) -> TensorId:
    """Return [batch, channels, …] complex numbers as twice as many real channels, all real parts first."""
    if not n.type(x).dtype.is_complex:
        return x
    batch, count, *rest = n.type(x).shape
    planes = n.transpose(parts(n, x), (0, len(rest) + 2, *range(1, len(rest) + 2)))
    return n.reshape(planes, (batch, 2 * count, *rest))


def of_channels(n: Node, x: TensorId, dtype: DType) -> TensorId:
    """Undo `channels`, for a tensor of type `dtype`."""
    if not dtype.is_complex:
        return x
    batch, count, *rest = n.type(x).shape
    pairs = n.transpose(n.reshape(x, (batch, 2, count // 2, *rest)), (0, *range(2, len(rest) + 3), 1))
    return from_parts(n, pairs, dtype)


def combined(n: Node, fn: str, a: TensorId, b: TensorId) -> TensorId:
    """Return add, mul, max or min of two tensors of one type.

    The larger real part decides between complex numbers (NumPy).
    """
    dtype = n.type(a).dtype
    if not dtype.is_complex:
        return n.add(fn, a, b)
    if fn == "add":
        return from_parts(n, n.add("add", parts(n, a), parts(n, b)), dtype)
    (a_real, a_imag), (b_real, b_imag) = (_real_and_imaginary(n, x) for x in (a, b))
    if fn == "mul":
        real = n.add("sub", n.add("mul", a_real, b_real), n.add("mul", a_imag, b_imag))
        imag = n.add("add", n.add("mul", a_real, b_imag), n.add("mul", a_imag, b_real))
        return from_parts(n, n.stack([real, imag], len(n.type(real).shape)), dtype)
    beyond, level = ("greater", "greater_equal") if fn == "max" else ("less", "less_equal")
    equal = n.add("and", n.add("equal", a_real, b_real), n.add(level, a_imag, b_imag))
    first = n.add("or", n.add(beyond, a_real, b_real), equal)
    a_nan, b_nan = (n.add("or", *(n.add("is_nan", p) for p in pair)) for pair in ((a_real, a_imag), (b_real, b_imag)))
    return n.add("where", n.add("or", a_nan, n.add("and", n.add("not", b_nan), first)), a, b)


def folded(n: Node, fn: str, x: TensorId, axis: int) -> TensorId:
    """Reduce an axis, without keeping it. Complex numbers are combined by halves, real ones in one reduction."""
    if not n.type(x).dtype.is_complex:
        return n.reduce(x, {"add": "sum", "mul": "prod"}.get(fn, fn), (axis,), keepdims=False)
    while (extent := n.type(x).shape[axis]) > 1:
        half = extent // 2
        both = combined(n, fn, *(n.cut(x, axis, part * half, half) for part in range(2)))
        if extent % 2:
            both = n.concat([both, n.cut(x, axis, 2 * half, 1)], axis)
        x = both
    return n.reshape(x, [e for d, e in enumerate(n.type(x).shape) if d != axis])


def _real_and_imaginary(n: Node, x: TensorId) -> tuple[TensorId, TensorId]:
    """Return the real and the imaginary parts."""
    shape, pairs = n.type(x).shape, parts(n, x)
    real, imag = (n.slice(pairs, (*(0,) * len(shape), part), (*shape, 1)) for part in range(2))
    return n.reshape(real, shape), n.reshape(imag, shape)
