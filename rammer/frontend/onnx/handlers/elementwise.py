"""Import element-wise operators, casts and comparisons, and others that the graph has as they are."""

from __future__ import annotations

from functools import reduce

import numpy as np
from onnx import TensorProto

from rammer.frontend.onnx.handlers.casts import narrow_float
from rammer.frontend.onnx.handlers.random import kept
from rammer.frontend.onnx.node import Handler, Node, handles
from rammer.frontend.onnx.ports import Value
from rammer.frontend.onnx.tensors import element_type
from rammer.ir.tensor import DType, Shape, TensorId

SINH_TERMS = 9  # terms of the series: enough for doubles up to 1

_PLAIN = {
    **{op: op.lower() for op in ("Abs", "Neg", "Sign", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "Not")},
    **{op: op.lower() for op in ("Exp", "Log", "Sin", "Cos", "Asin", "Acos", "Atan", "Erf", "Tanh")},
    **{op: op.lower() for op in ("Sigmoid", "Relu", "Softplus", "Softsign", "Mish")},
    "HardSwish": "hard_swish",
    "IsNaN": "is_nan",
    "BitwiseNot": "bit_not",
}
_WITH_ATTRIBUTES = {
    "LeakyRelu": ("leaky_relu", ("alpha",)),
    "Elu": ("elu", ("alpha",)),
    "Selu": ("selu", ("alpha", "gamma")),
    "HardSigmoid": ("hard_sigmoid", ("alpha", "beta")),
    "Gelu": ("gelu", ("approximate",)),
    "LRN": ("lrn", ("size", "alpha", "beta", "bias")),
}
_BINARY = {
    **{op: op.lower() for op in ("Add", "Sub", "Mul", "Div", "PRelu")},
    **{op: op.lower() for op in ("And", "Or", "Xor", "Equal", "Less", "Greater")},
    **{f"Bitwise{op}": f"bit_{op.lower()}" for op in ("And", "Or", "Xor")},
    "LessOrEqual": "less_equal",
    "GreaterOrEqual": "greater_equal",
}
_LEGACY_BROADCAST = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater")


def _unary(kind: str, names: tuple[str, ...] = ()) -> Handler:
    return lambda n: n.add(kind, n.tensor(0), **{name: n.attrs[name] for name in names})


def _binary(kind: str) -> Handler:
    return lambda n: n.add(kind, n.tensor(0), n.tensor(1))


for _op, _kind in _PLAIN.items():
    handles(_op)(_unary(_kind))
for _op, (_kind, _names) in _WITH_ATTRIBUTES.items():
    handles(_op)(_unary(_kind, _names))
for _op, _kind in _BINARY.items():
    handles(_op, since=7)(_binary(_kind))


@handles(*_LEGACY_BROADCAST)
def legacy_binary(n: Node) -> TensorId:
    """Import binary operators before opset 7: they broadcast only with `broadcast`, the second operand at `axis`."""
    a, b = n.tensor(0), n.tensor(1)
    shape, other = n.shape(0), n.shape(1)
    if n.attrs.get("broadcast"):
        axis = n.attrs["axis"] if n.attrs.get("axis") is not None else -1
        axis = len(shape) - len(other) if axis == -1 else axis + len(shape) * (axis < 0)  # -1: the last dimensions
        if not 0 <= axis <= len(shape) - len(other):
            raise n.fail(f"axis {n.attrs['axis']} does not place {list(other)} in {list(shape)}")
        b = n.reshape(b, (*other, *(1,) * (len(shape) - axis - len(other))))
    elif shape != other:
        raise n.fail(f"operands have shapes {list(shape)} and {list(other)}", hint="set broadcast=1")
    return power(n, a, b) if n.op == "Pow" else n.add(_BINARY[n.op], a, b)


@handles("Pow", since=7)
def pow_(n: Node) -> TensorId:
    return power(n, n.tensor(0), n.tensor(1))


def power(n: Node, base: TensorId, exponent: TensorId) -> TensorId:
    """Return base ** exponent in the base's type.

    Constant exponents become a product, a square root or an attribute.
    """
    dtype, other = n.type(base).dtype, n.type(exponent).dtype
    known = n.builder.value(exponent)
    if known is not None and known.size == 1 and dtype.is_float and n.type(exponent).rank <= n.type(base).rank:
        match float(known.ravel()[0]):
            case 1.0 if n.type(base).rank > 0:
                return base
            case 2.0:
                return n.add("mul", base, base)
            case 0.5:
                return n.add("sqrt", base)
            case number if np.isfinite(number):
                return n.add("power", base, exponent=number)
    if dtype is other:
        return n.add("pow", base, exponent)
    if dtype.is_float:
        return n.add("pow", base, n.cast(exponent, dtype))
    wide = other if other.is_float else DType.I64
    return n.cast(n.add("pow", n.cast(base, wide), n.cast(exponent, wide)), dtype)


@handles("Sum", "Max", "Min")
def variadic(n: Node) -> TensorId:
    operands = n.present()
    return operands[0] if len(operands) == 1 else n.add({"Sum": "add", "Max": "max", "Min": "min"}[n.op], *operands)


@handles("Mean")
def mean(n: Node) -> TensorId:
    total = variadic_sum(n, n.present())
    return n.add("mul", total, n.like(1 / len(n.present()), total))


def variadic_sum(n: Node, operands: list[TensorId]) -> TensorId:
    return reduce(lambda a, b: n.add("add", a, b), operands)


@handles("Mod")
def mod(n: Node) -> TensorId:
    if n.attrs["fmod"] or not n.dtype().is_float:
        return n.add("fmod" if n.attrs["fmod"] else "mod", n.tensor(0), n.tensor(1))
    if n.opset < 28:
        raise n.fail(f"fmod=0 needs integers, not {n.dtype().value}", hint="set fmod=1, or use opset 28")
    rest, divisor = n.add("fmod", n.tensor(0), n.tensor(1)), n.tensor(1)
    zero, negative = n.like(0, rest), n.add("less", divisor, n.like(0, divisor))
    other_sign = n.add("not", n.add("equal", n.add("less", rest, zero), negative))
    signed_zero = n.add("where", negative, n.like(-0.0, rest), zero)
    moved = n.add("where", other_sign, n.add("add", rest, divisor), rest)
    return n.add("where", n.add("equal", rest, zero), signed_zero, moved)


@handles("IsInf")
def is_inf(n: Node) -> TensorId:
    x = n.tensor(0)
    infinite = n.add("is_inf", x)
    if not n.attrs["detect_negative"]:
        infinite = n.add("and", infinite, n.add("greater", x, n.like(0, x)))
    if not n.attrs["detect_positive"]:
        infinite = n.add("and", infinite, n.add("less", x, n.like(0, x)))
    return infinite


@handles("Clip")
def clip_attributes(n: Node) -> TensorId:
    return n.add("clip", n.tensor(0), low=n.attrs.get("min"), high=n.attrs.get("max"))


@handles("Clip", since=11)
def clip(n: Node) -> TensorId:
    """Clip. Known bounds become attributes, so that the operator can be fused; others are scalar tensors.

    The lower bound always applies first: if it is above the upper one, the result is the upper one.
    """
    x = n.tensor(0)
    known: dict[str, float] = {}

    def clipped() -> TensorId:
        return n.add("clip", x, low=known.get("low"), high=known.get("high")) if known else x

    for position, side, kind in ((1, "low", "max"), (2, "high", "min")):
        if not n.has(position):
            continue
        if n.type(n.tensor(position)).size != 1:
            raise n.fail(f"bound {position} is {n.type(n.tensor(position))} instead of a scalar")
        value = n.builder.value(n.tensor(position))
        if value is not None and n.dtype().is_float and not np.isnan(value.astype(np.float64)).any():
            known[side] = float(value.ravel()[0])
        else:
            x, known = n.add(kind, clipped(), n.reshape(n.tensor(position), ())), {}
    return clipped()


@handles("Where")
def where(n: Node) -> TensorId:
    found = n.add("where", n.tensor(0), n.tensor(1), n.tensor(2))
    chosen = _one_place(n, n.tensor(0), n.type(found).shape)
    if chosen is None or n.shape(2) != n.type(found).shape:
        return found
    axis, at = chosen
    shape = n.shape(2)
    rows = (*shape[:axis], 1, *shape[axis + 1 :])
    if n.shape(1)[-len(shape) + axis :][:1] != (1,) and len(n.shape(1)) >= len(shape) - axis:
        return found  # the new value is not a single row
    new = n.tensor(1) if n.shape(1) == rows else n.add("expand", n.tensor(1), shape=rows)
    moves = tuple(-1 if d == axis else d for d in range(len(shape)))
    return n.builder.could_update(found, n.tensor(2), new, at, moves=moves, how="chosen")


def _one_place(n: Node, condition: TensorId, shape: Shape) -> tuple[int, TensorId] | None:
    """Return the axis along which a condition holds at one position only, and that position for each batch.

    Returns None for any other condition. The form is `equal(arange(extent), position)`, reshaped or broadcast.
    """
    kind = n.type(condition)
    long = [d for d, extent in enumerate(kind.shape) if extent > 1]
    while (maker := n.builder.maker(condition)) is not None and maker.kind in ("reshape", "expand"):
        if n.type(maker.inputs[0]).size != kind.size:
            return None
        condition = maker.inputs[0]
    if maker is None or maker.kind != "equal" or not long or len(kind.shape) > len(shape):
        return None
    axis = long[-1] + len(shape) - len(kind.shape)
    extent = kind.shape[long[-1]]
    batches = kind.size // extent
    if extent != shape[axis] or long[:-1] not in ([], [0]) or (long[:-1] and len(kind.shape) < len(shape)) or axis == 0:
        return None
    for known, at in (maker.inputs, maker.inputs[::-1]):
        value = n.builder.value(known)
        counts = value is not None and np.array_equal(value.ravel(), np.arange(extent))
        if counts and n.builder.value(at) is None and n.type(at).size == batches and not n.type(at).dtype.is_float:
            return axis, n.reshape(at, (batches, *(1,) * (len(shape) - 1)))
    return None


@handles("Cast")
def cast_by_name(n: Node) -> TensorId:
    """Cast before opset 6, which names the type by a string."""
    code = dict(TensorProto.DataType.items()).get(n.attrs["to"].upper(), TensorProto.UNDEFINED)
    return n.cast(n.tensor(0), element_type(code, f"attribute 'to', {n.attrs['to']!r},", node=n.label, op=n.op))


@handles("Cast", since=6)
def cast(n: Node) -> TensorId:
    return _cast_by_attributes(n, element_type(n.attrs["to"], "attribute 'to'", node=n.label, op=n.op))


def _cast_by_attributes(n: Node, dtype: DType) -> TensorId:
    """Cast the first input, with the node's attributes for rounding and saturation."""
    saturate, mode = bool(n.attrs.get("saturate", 1)), n.attrs.get("round_mode") or "up"
    return narrow_float(n, n.tensor(0), dtype, saturate=saturate, mode=mode)


@handles("PRelu")
def prelu_per_channel(n: Node) -> TensorId:
    """Import PRelu before opset 7: the slope is a scalar, or one number per channel."""
    slope = n.tensor(1)
    if n.type(slope).size > 1:
        slope = n.reshape(slope, (n.type(slope).size, *(1,) * (len(n.shape()) - 2)))
    return n.add("prelu", n.tensor(0), slope)


@handles("Constant")
def constant(n: Node) -> Value:
    given = {name: value for name, value in n.attrs.items() if value is not None}
    if len(given) != 1:
        raise n.fail(f"has {len(given)} values ({', '.join(given)})", hint="exactly one value attribute is needed")
    ((name, value),) = given.items()
    match name:
        case "value":
            assert isinstance(value, TensorProto)
            return n.literal(value)
        case "sparse_value":
            return n.constant(n.decode(value.sparse_tensor))
        case "value_string" | "value_strings":
            return n.text(value)
        case "value_float" | "value_floats":
            return n.constant(value, DType.F32)
        case "value_int" | "value_ints":
            return n.constant(value, DType.I64)
    raise n.fail(f"attribute {name!r} is not supported", hint="use a dense numeric tensor")


@handles("Dropout")
def dropout(n: Node) -> list[TensorId]:
    """Import Dropout. For inference it is the input itself, and a mask that keeps everything."""
    if n.has(2) and bool(n.scalar(2, "training_mode")):
        ratio = float(n.scalar(1, "ratio")) if n.has(1) else 0.5
        if not 0 <= ratio < 1:
            raise n.fail(f"ratio is {ratio}", hint="at least 0, and less than 1")
        if ratio:
            x, mask = n.tensor(0), kept(n, n.shape(), ratio)
            return [n.add("where", mask, n.add("mul", x, n.like(1 / (1 - ratio), x)), n.like(0, x)), mask]
    results = [n.tensor(0)]
    if n.wants(1):
        dtype = DType.BOOL if n.opset >= 10 else n.dtype()
        results.append(n.builder.constant(np.broadcast_to(np.ones((), dtype.numpy), n.shape())))
    return results


@handles("Celu")
def celu(n: Node) -> TensorId:
    """Compute alpha·elu(x / alpha). ONNX's function body has a constant of one dimension, which a scalar would take."""
    x = n.tensor(0)
    alpha = n.like(n.attrs["alpha"], x)
    return n.add("mul", n.add("elu", n.add("div", x, alpha), alpha=1.0), alpha)


@handles("Shrink")
def shrink(n: Node) -> TensorId:
    x, bias, bound = n.tensor(0), n.attrs["bias"], n.attrs["lambd"]
    upper = n.add("where", n.add("less", n.like(bound, x), x), n.add("sub", x, n.like(bias, x)), n.like(0, x))
    return n.add("where", n.add("less", x, n.like(-bound, x)), n.add("add", x, n.like(bias, x)), upper)


@handles("Tan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh")
def transcendental(n: Node) -> TensorId:
    """Compute by textbook formulas, in forms that are accurate for small x. Terms are halved before they are added."""
    x = n.tensor(0)
    one = n.like(1, x)
    match n.op:
        case "Tan":
            return n.add("div", n.add("sin", x), n.add("cos", x))
        case "Sinh" | "Cosh":
            half = n.like(0.5, x)
            up, down = (n.add("mul", n.add("exp", t), half) for t in (x, n.add("neg", x)))
            if n.op == "Cosh":
                return n.add("add", up, down)
            square, series = n.add("mul", x, x), one
            for k in range(SINH_TERMS, 0, -1):
                term = n.add("mul", square, n.like(1 / (2 * k * (2 * k + 1)), x))
                series = n.add("add", one, n.add("mul", term, series))
            inside = n.add("less", n.add("abs", x), one)
            return n.add("where", inside, n.add("mul", x, series), n.add("sub", up, down))
        case "Asinh":
            size = n.add("abs", x)
            root = n.add("sqrt", n.add("add", n.add("mul", x, x), one))
            square = n.add("mul", size, n.add("div", size, n.add("add", one, root)))
            beyond = n.add("where", n.add("less", size, one), square, n.add("sub", root, one))
            return n.add("mul", n.add("sign", x), _log1p(n, n.add("add", size, beyond)))
        case "Acosh":
            return n.add("log", n.add("add", x, n.add("sqrt", n.add("sub", n.add("mul", x, x), one))))
    return n.add("mul", _log1p(n, n.add("div", n.add("add", x, x), n.add("sub", one, x))), n.like(0.5, x))


def _log1p(n: Node, x: TensorId) -> TensorId:
    """Compute log(1 + x), accurate for small x: a factor corrects the rounding error of 1 + x."""
    moved = n.add("add", n.like(1, x), x)
    step = n.add("sub", moved, n.like(1, x))
    log = n.add("log", moved)
    mended = n.add("where", n.add("equal", step, x), log, n.add("mul", log, n.add("div", x, step)))
    return n.add("where", n.add("equal", step, n.like(0, x)), x, mended)
