"""Import com.microsoft operators into which optimizers fuse several standard ones."""

from __future__ import annotations

from math import prod
from typing import Any

from rammer.frontend.onnx.handlers.contrib import contrib
from rammer.frontend.onnx.handlers.contrib_quantized import channels_first, quantized, real, require_numbers
from rammer.frontend.onnx.handlers.neural import average_pool, conv, gemm, max_pool
from rammer.frontend.onnx.handlers.quantized import qlinear_conv, quantize, shifted, spread
from rammer.frontend.onnx.handlers.recurrent import ACTIVATIONS, activated
from rammer.frontend.onnx.handlers.reduction import reduced
from rammer.frontend.onnx.node import Handler, Node, handler_for
from rammer.frontend.onnx.ports import Value
from rammer.frontend.onnx.signature import NEWEST_OPSET
from rammer.ir.tensor import DType, TensorId

WINDOW: dict[str, Any] = {"auto_pad": "NOTSET", "kernel_shape": tuple, "pads": tuple, "strides": tuple}
POOL = {**WINDOW, "kernel_shape": ()}


def _standard(handler: Handler, n: Node, *operands: Value | None) -> TensorId:
    """Call the handler of a standard operator with these operands, and the attributes that the node has."""
    n.inputs = operands
    n.attrs = {name: value for name, value in n.attrs.items() if value is not None}
    found = handler(n)
    assert isinstance(found, str)
    return found


@contrib("QLinearSoftmax", inputs=(5, 5), axis=-1, opset=int)
def qlinear_softmax(n: Node) -> TensorId:
    """Compute a quantized softmax. Before opset 13 (an attribute), it is over all axes from `axis` on."""
    shape, x = n.shape(), real(n, 0)
    axis = n.axis(n.attrs["axis"], len(shape))
    if n.attrs["opset"] is None:
        raise n.fail("attribute 'opset' is missing")
    if n.attrs["opset"] < 13:
        flat = n.reshape(x, (*shape[:axis], prod(shape[axis:])))
        found = n.reshape(n.add("softmax", flat, axis=axis), shape)
    else:
        found = n.add("softmax", x, axis=axis)
    return quantized(n, found, 3, n.dtype())


@contrib("QLinearWhere", inputs=(9, 9))
def qlinear_where(n: Node) -> TensorId:
    return quantized(n, n.add("where", n.tensor(0), real(n, 1), real(n, 4)), 7, n.dtype(1))


@contrib("QLinearAveragePool", inputs=(4, 5), **POOL, ceil_mode=0, channels_last=0, count_include_pad=0)
def qlinear_average_pool(n: Node) -> TensorId:
    require_numbers(n, 3)
    dtype, scale, zero, x = n.dtype(), n.tensor(3), n.optional(4), real(n, 0)
    return quantize(n, channels_first(n, x, lambda found: _standard(average_pool, n, found)), scale, zero, 0, dtype)


@contrib("NhwcMaxPool", inputs=(1, 1), **POOL, ceil_mode=0, dilations=tuple)
def nhwc_max_pool(n: Node) -> TensorId:
    """Pool one channel with one more dimension, that of channels, in which windows have an extent of 1."""
    shape, rank = n.shape(), len(n.shape()) - 2
    for name in ("kernel_shape", "strides", "dilations"):
        n.attrs[name] = (*n.attrs[name], 1) if n.attrs[name] else None
    if pads := n.attrs["pads"]:
        n.attrs["pads"] = (*pads[:rank], 0, *pads[rank:], 0)
    found = _standard(max_pool, n, n.reshape(n.tensor(0), (*shape[:1], 1, *shape[1:])))
    return n.reshape(found, (*shape[:1], *n.type(found).shape[2:]))


@contrib("QLinearConv", inputs=(8, 9), **WINDOW, dilations=tuple, group=1, channels_last=0)
def nhwc_qlinear_conv(n: Node) -> TensorId:
    rest = n.inputs[1:]
    return channels_first(n, n.tensor(0), lambda found: _standard(qlinear_conv, n, found, *rest))


@contrib("FusedConv", inputs=(2, 4), **WINDOW, dilations=tuple, group=1, activation=str, activation_params=tuple)
def fused_conv(n: Node) -> TensorId:
    """Compute a convolution, add an optional operand, and apply an activation."""
    more, kind, parameters = n.optional(3), n.attrs["activation"], tuple(n.attrs["activation_params"] or ())
    found = _standard(conv, n, *(n.tensor(p) for p in range(3) if n.has(p)))
    found = found if more is None else n.add("add", found, more)
    return found if kind is None else _activated(n, found, kind, parameters)


@contrib(
    "FusedGemm",
    inputs=(2, 3),
    alpha=1.0,
    beta=1.0,
    transA=0,
    transB=0,
    activation=str,
    activation_alpha=float,
    activation_beta=float,
    activation_gamma=float,
)
def fused_gemm(n: Node) -> TensorId:
    kind = n.attrs["activation"]
    given = [n.attrs[f"activation_{name}"] for name in ("alpha", "beta", "gamma")]
    return _activated(n, _standard(gemm, n, *n.inputs), kind or "", tuple(v for v in given if v is not None))


def _activated(n: Node, x: TensorId, kind: str, parameters: tuple[float, ...]) -> TensorId:
    if kind == "Clip" and len(parameters) == 2:
        return n.add("clip", x, low=parameters[0], high=parameters[1])
    if kind == "Selu":
        named = dict(zip(("alpha", "gamma"), parameters, strict=False))
        return n.add("selu", x, **({"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875} | named))
    if kind.lower() not in ACTIVATIONS:
        known = ", ".join(sorted((*ACTIVATIONS, "clip", "selu")))
        raise n.fail(f"activation {kind!r} of {len(parameters)} parameters", hint=known)
    function, defaults = ACTIVATIONS[kind.lower()]
    return activated(n, (function, *(parameters or defaults)[: len(defaults)]), x)


@contrib("QGemm", inputs=(6, 9), alpha=1.0, transA=0, transB=0)
def q_gemm(n: Node) -> TensorId:
    """Compute (a - za) (b - zb) + c in int32 and dequantize it; quantize again if the node has an output scale."""
    trans_a, trans_b = bool(n.attrs["transA"]), bool(n.attrs["transB"])
    a = shifted(n, n.tensor(0), n.optional(2), -1 if trans_a else -2)
    b = shifted(n, n.tensor(3), n.optional(5), -2 if trans_b else -1)
    total = n.add("matmul", a, b, trans_a=trans_a, trans_b=trans_b)
    if n.has(6):
        total = n.add("add", total, n.tensor(6))
    scale = n.add("mul", spread(n, n.tensor(1), total, -2), spread(n, n.tensor(4), total, -1))
    scale = n.add("mul", scale, n.like(n.attrs["alpha"], scale))
    found = n.add("mul", n.cast(total, DType.F32), scale)
    return quantized(n, found, 7, n.dtype()) if n.has(7) else found


@contrib("DynamicQuantizeMatMul", inputs=(3, 5))
def dynamic_quantize_matmul(n: Node) -> TensorId:
    """Multiply by quantized weights. The other operand is quantized by its own range, extended to contain 0."""
    bytes_of_x, scale, begin = bytes_by_range(n, n.tensor(0))
    total = n.product(shifted(n, bytes_of_x, begin, -2), shifted(n, n.tensor(1), n.optional(3), -1))
    found = n.add("mul", n.cast(total, n.dtype()), n.add("mul", scale, spread(n, n.tensor(2), total, -1)))
    return n.add("add", found, n.tensor(4)) if n.has(4) else found


def bytes_by_range(n: Node, x: TensorId) -> tuple[TensorId, TensorId, TensorId]:
    """Quantize numbers to unsigned bytes by their range, extended to contain 0.

    Return them, their scale and zero point.
    """
    axes, zero = tuple(range(n.type(x).rank)), n.like(0, x)
    low, high = (n.add(fn, reduced(n, x, fn, axes), zero) for fn in ("min", "max"))
    span = n.add("sub", high, low)
    scale = n.add("where", n.add("equal", span, zero), n.like(1, x), n.add("div", span, n.like(255, x)))
    begin = n.add("clip", n.add("round", n.add("div", n.add("neg", low), scale)), low=0.0, high=255.0)
    begin = n.cast(begin, DType.U8)
    return quantize(n, x, scale, begin, 0, DType.U8), scale, begin


# operators that are the standard's: number of operands, attributes with their defaults
_AS_STANDARD: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "GatherND": ((2, 2), {}),
    "GridSample": ((2, 2), {"mode": "bilinear", "padding_mode": "zeros", "align_corners": 0}),
    "Pad": ((2, 3), {"mode": "constant"}),
    "Trilu": ((1, 2), {"upper": 1}),
}


def _as_standard(n: Node) -> TensorId:
    handler = handler_for("", n.op, NEWEST_OPSET)
    assert handler is not None
    return _standard(handler, n, *n.inputs)


for _op, (_inputs, _defaults) in _AS_STANDARD.items():
    contrib(_op, inputs=_inputs, **_defaults)(_as_standard)


@contrib("CDist", inputs=(2, 2), metric="sqeuclidean")
def cdist(n: Node) -> TensorId:
    """Return the distance of each row of one matrix to each row of another."""
    a, b = n.tensor(0), n.tensor(1)
    if n.attrs["metric"] not in ("euclidean", "sqeuclidean") or n.type(a).rank != 2 or n.type(b).rank != 2:
        raise n.fail(f"metric {n.attrs['metric']!r} of {n.type(a)} and {n.type(b)}", hint="euclidean or sqeuclidean")
    apart = n.add("sub", n.reshape(a, (n.shape(0)[0], 1, n.shape(0)[1])), b)
    square = n.reduce(n.add("mul", apart, apart), "sum", (2,), keepdims=False)
    return square if n.attrs["metric"] == "sqeuclidean" else n.add("sqrt", square)
