"""List the forms of operators that `operators.run` measures: models of one node, at several sizes and types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from onnx import ModelProto, helper, numpy_helper

from rammer.ir.tensor import Array

Shape: TypeAlias = tuple[int, ...]
Draw: TypeAlias = Callable[[np.random.Generator, Shape, np.dtype[Any]], Array]

SIZES = ("step", "layer", "map", "odd")
ROWS: tuple[Shape, ...] = ((1, 384), (48, 1024), (1024, 2048), (75, 333))
IMAGES: tuple[Shape, ...] = ((1, 8, 7, 7), (1, 32, 40, 40), (1, 64, 160, 160), (1, 19, 43, 37))
SEQUENCES: tuple[Shape, ...] = ((4, 1, 96), (24, 1, 256), (64, 8, 512), (28, 3, 75))  # steps, batch, features
HEADS: tuple[Shape, ...] = ((1, 2, 8, 16), (1, 8, 64, 64), (2, 16, 256, 64), (3, 5, 28, 40))
SQUARES: tuple[Shape, ...] = ((8, 32), (128, 384), (1024, 1024), (75, 333))
KINDS = {name: np.dtype(name) for name in ("float32", "float16", "int8", "uint8", "int32", "int64", "bool")}
KINDS["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
FLOAT, HALVES, NUMBERS = ("float32",), ("float32", "float16"), ("float32", "float16", "int32", "int64")
ALL = (*NUMBERS, "int8", "bool")
MICROSOFT = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Given:
    """An operand: an array drawn for the first operand's shape and type. Those that are `fixed` are initializers."""

    draw: Draw
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """A form of an operator: the first word of its name, up to a comma.

    Attributes that are functions get the first operand's shape, as `macs` does, which counts multiply-adds. Without it
    the floor is the bytes of inputs and outputs.
    """

    name: str
    shapes: tuple[Shape, ...]
    operands: tuple[Given, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    types: tuple[str, ...] = FLOAT
    outputs: int = 1
    macs: Callable[[Shape], int] | None = None
    domain: str = ""
    opset: int = 20

    @property
    def op(self) -> str:
        """The operator."""
        return self.name.partition(",")[0]

    def made(self, size: str, dtype: str) -> tuple[ModelProto, dict[str, Array]]:
        """Return the model at a size and type, and its inputs. An empty initializer stands for a missing operand."""
        rng, shape, kind = np.random.default_rng(7), self.shapes[SIZES.index(size)], KINDS[dtype]
        arrays = [np.asarray(given.draw(rng, shape, kind)) for given in self.operands]
        names = [f"x{n}" if a.size else "" for n, a in enumerate(arrays)]
        outputs = [f"y{n}" for n in range(self.outputs)]
        attrs = {name: value(shape) if callable(value) else value for name, value in self.attrs.items()}
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **attrs)
        given = [(n, a, g.fixed) for n, a, g in zip(names, arrays, self.operands, strict=True) if n]
        graph = helper.make_graph(
            [node],
            self.op,
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a, f in given
                if not f
            ],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            [numpy_helper.from_array(a, n) for n, a, fixed in given if fixed],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10), {n: a for n, a, f in given if not f}


def drawn(rng: np.random.Generator, shape: Shape, kind: np.dtype[Any]) -> Array:
    """Return normal numbers, integers from -100 or 1 to 99, or truth values."""
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind in "iu":
        return rng.integers(1 if kind.kind == "u" else -100, 100, shape).astype(kind)
    return rng.standard_normal(shape, np.float32).astype(kind)


def positive(rng: np.random.Generator, shape: Shape, kind: np.dtype[Any]) -> Array:
    """Return numbers from 1 on: for logarithms, roots and divisors."""
    return (np.abs(drawn(rng, shape, np.dtype(np.float32))) + 1).astype(kind)


def unit(rng: np.random.Generator, shape: Shape, kind: np.dtype[Any]) -> Array:
    """Return numbers from -1 to 1."""
    return rng.uniform(-1, 1, shape).astype(kind)


X, POSITIVE, UNIT, NONE = Given(drawn), Given(positive), Given(unit), Given(lambda r, s, k: np.zeros(0, k), True)


def of(shape: Callable[[Shape], Shape], fixed: bool = False, kind: str = "", scale: bool = False) -> Given:
    """Return an operand whose shape follows from the first one's. `scale`: so that sums over it have unit variance."""

    def draw(rng: np.random.Generator, s: Shape, k: np.dtype[Any]) -> Array:
        array = drawn(rng, shape(s), KINDS[kind] if kind else k)
        return (array / max(1.0, float(np.sqrt(prod(shape(s)[1:]))))).astype(array.dtype) if scale else array

    return Given(draw, fixed)


def fixed(value: Callable[[Shape], Any], kind: str = "int64") -> Given:
    """Return a constant operand that follows from the first one's shape; without a kind, of the first one's type."""
    return Given(lambda rng, s, k: np.asarray(value(s), KINDS[kind] if kind else k), True)


def picked(shape: Callable[[Shape], Shape], below: Callable[[Shape], int], kind: str = "int64") -> Given:
    """Return random indices below a bound."""
    return Given(lambda rng, s, k: rng.integers(0, below(s), shape(s)).astype(kind))


def typed(kind: str, shape: Callable[[Shape], Shape] = lambda s: s) -> Given:
    """Return numbers of a type of their own."""
    return of(shape, kind=kind)


def _cases(
    names: str, shapes: tuple[Shape, ...], *operands: Given, types: tuple[str, ...] = FLOAT, **more: Any
) -> list[Case]:
    """Return a case for each name of a list separated by `;`: of the fields of a case, and of attributes."""
    own = {key: more.pop(key) for key in ("outputs", "macs", "domain", "opset") if key in more}
    return [Case(name.strip(), shapes, operands, more, types, **own) for name in names.split(";")]


def _rest(s: Shape) -> Shape:
    return (1, *s[1:])


def _channels(s: Shape) -> Shape:
    return (s[1],)


def _pixels(s: Shape) -> int:
    return s[0] * s[2] * s[3]


ELEMENTWISE = [
    *_cases("Abs; Neg; Sign", ROWS, X, types=NUMBERS),
    *_cases("Relu; LeakyRelu; Elu; Selu; ThresholdedRelu; HardSigmoid; HardSwish; Sigmoid", ROWS, X, types=HALVES),
    *_cases("Softplus; Softsign; Mish; Exp; Floor; Ceil; Round; Tanh; Erf", ROWS, X, types=HALVES),
    *_cases("Celu; Sin; Cos; Tan; Sinh; Cosh; Asinh; Atan", ROWS, X),
    *_cases("Asin; Acos; Atanh", ROWS, UNIT),
    *_cases("Log; Sqrt; Reciprocal", ROWS, POSITIVE, types=HALVES),
    *_cases("Acosh", ROWS, POSITIVE),
    *_cases("Gelu", ROWS, X, types=HALVES),
    *_cases("Gelu, tanh", ROWS, X, approximate="tanh"),
    *_cases("IsNaN; IsInf", ROWS, X),
    *_cases("Not", ROWS, X, types=("bool",)),
    *_cases("BitwiseNot", ROWS, X, types=("int32",)),
    *_cases("Shrink", ROWS, X, lambd=0.5, bias=0.1),
    *_cases("Clip", ROWS, X, fixed(lambda s: 0, ""), fixed(lambda s: 6, ""), types=("float32", "int8")),
    *_cases("PRelu", IMAGES, X, of(lambda s: (s[1], 1, 1), True)),
    *_cases("Identity", ROWS, X),
    *_cases("Add; Sub; Mul", ROWS, X, X, types=(*NUMBERS, "bfloat16")),
    *_cases("Div", ROWS, X, POSITIVE, types=NUMBERS),
    *_cases("Max; Min; Mean; Sum", ROWS, X, X, types=HALVES),
    *_cases("Mod", ROWS, X, POSITIVE, types=("int32", "int64")),
    *_cases("Mod, fmod", ROWS, X, POSITIVE, fmod=1),
    *_cases("Pow", ROWS, POSITIVE, X),
    *[c for p in (2, 3, 0.5, -1, 1.7) for c in _cases(f"Pow, {p}", ROWS, POSITIVE, fixed(lambda s, p=p: p, ""))],
    *_cases("Add, a row; Mul, a row", ROWS, X, of(_channels)),
    *_cases("Add, a column; Mul, a column", ROWS, X, of(lambda s: (s[0], 1))),
    *_cases("Add, a channel", IMAGES, X, of(lambda s: (s[1], 1, 1))),
    *_cases("Equal; Less; GreaterOrEqual", ROWS, X, X, types=("float32", "int32", "int64")),
    *_cases("And; Or; Xor", ROWS, X, X, types=("bool",)),
    *_cases("BitwiseAnd; BitwiseXor", ROWS, X, X, types=("int32",)),
    *_cases("BitShift", ROWS, X, fixed(lambda s: 3, ""), types=("uint8",), direction="LEFT"),
    *_cases("Where", ROWS, typed("bool"), X, X, types=("float32", "int64")),
]
_CASTS = (
    *("float32 float16", "float32 bfloat16", "float32 int32", "float32 int64", "float32 int8", "float32 uint8"),
    *("float32 bool", "float16 float32", "bfloat16 float32", "int64 float32", "int32 float32", "uint8 float32"),
    *("int64 int32", "int32 int64", "bool float32", "bool int64"),
)
CASTS = [
    case
    for source, to in map(str.split, _CASTS)
    for case in _cases(
        f"Cast, {to}", ROWS, POSITIVE, types=(source,), to=int(helper.np_dtype_to_tensor_dtype(KINDS[to]))
    )
]
REDUCTIONS = [
    *[
        case
        for place, axes in (("rows", [-1]), ("columns", [0]), ("all", [0, 1]))
        for case in (
            *_cases(
                f"ReduceSum, {place}; ReduceMean, {place}; ReduceMax, {place}", ROWS, X, fixed(lambda s, a=axes: a)
            ),
            *_cases(
                f"ReduceMin, {place}; ReduceProd, {place}; ReduceSumSquare, {place}",
                ROWS,
                UNIT,
                fixed(lambda s, a=axes: a),
            ),
            *_cases(
                f"ReduceL1, {place}; ReduceL2, {place}; ReduceLogSumExp, {place}", ROWS, X, fixed(lambda s, a=axes: a)
            ),
        )
    ],
    *_cases("ReduceMean, channels", IMAGES, X, fixed(lambda s: [1])),
    *_cases("ReduceMean, pixels", IMAGES, X, fixed(lambda s: [2, 3])),
    *_cases("ReduceSum, integers; ReduceMax, integers", ROWS, X, fixed(lambda s: [-1]), types=("int32", "int64")),
    *_cases("ArgMax, rows; ArgMin, rows", ROWS, X, axis=-1),
    *_cases("ArgMax, columns", ROWS, X, axis=0),
    *_cases("ArgMax, channels", IMAGES, X, axis=1),
    *_cases("Softmax, rows; LogSoftmax, rows; Hardmax, rows", ROWS, X, types=FLOAT, axis=-1),
    *_cases("Softmax, columns; LogSoftmax, columns", ROWS, X, axis=0),
    *_cases("Softmax, channels", IMAGES, X, axis=1),
    *_cases("Softmax, halves", ROWS, X, types=("float16",), axis=-1),
    *_cases("CumSum, rows", ROWS, X, fixed(lambda s: 1), types=("float32", "int32", "int64")),
    *_cases("CumSum, columns", ROWS, X, fixed(lambda s: 0)),
    *_cases("CumSum, exclusive", ROWS, X, fixed(lambda s: 1), exclusive=1),
    *_cases("CumSum, reverse", ROWS, X, fixed(lambda s: 1), reverse=1),
]
NORMS = [
    *_cases("LayerNormalization", ROWS, X, of(_channels, True), of(_channels, True), types=HALVES),
    *_cases("RMSNormalization", ROWS, X, of(_channels, True), opset=23),
    *_cases("LpNormalization", ROWS, X, axis=-1),
    *_cases("MeanVarianceNormalization", IMAGES, X),
    *_cases("InstanceNormalization", IMAGES, X, of(_channels, True), of(_channels, True)),
    *_cases(
        "BatchNormalization",
        IMAGES,
        X,
        *[of(_channels, True)] * 3,
        Given(lambda r, s, k: positive(r, (s[1],), k), True),
    ),
    *_cases("LRN", IMAGES, X, size=5),
    *_cases("SkipLayerNormalization", SEQUENCES, X, X, *[of(lambda s: s[2:], True)] * 2, domain=MICROSOFT),
    *_cases("SkipSimplifiedLayerNormalization", SEQUENCES, X, X, of(lambda s: s[2:], True), domain=MICROSOFT),
    *_cases("FastGelu; BiasGelu", ROWS, X, of(_channels, True), domain=MICROSOFT),
    *_cases("QuickGelu", ROWS, X, domain=MICROSOFT),
]
INDEXING = [
    *_cases("TopK, all", ROWS, X, fixed(lambda s: [s[-1]]), outputs=2, types=("float32", "int64")),
    *_cases("TopK, 1", ROWS, X, fixed(lambda s: [1]), outputs=2),
    *_cases("TopK, 8", ROWS, X, fixed(lambda s: [8]), outputs=2, types=("float32", "int64")),
    *_cases("TopK, 64", ROWS, X, fixed(lambda s: [64]), outputs=2),
    *_cases("TopK, smallest 8", ROWS, X, fixed(lambda s: [8]), outputs=2, largest=0),
    *_cases("TopK, columns", ROWS, X, fixed(lambda s: [1]), outputs=2, axis=0),
    *_cases("Gather, rows", ROWS, X, picked(lambda s: (s[0],), lambda s: s[0]), types=("float32", "float16", "int64")),
    *_cases("Gather, columns", ROWS, X, picked(lambda s: (s[1],), lambda s: s[1]), axis=1),
    *_cases("GatherElements", ROWS, X, picked(lambda s: s, lambda s: s[1]), axis=1),
    *_cases("GatherND", ROWS, X, picked(lambda s: (s[0], 1), lambda s: s[0])),
    *_cases("GatherND, elements", ROWS, X, picked(lambda s: (s[1], 2), lambda s: s[0])),
    *_cases("ScatterND", ROWS, X, picked(lambda s: (s[0], 1), lambda s: s[0]), X),
    *_cases("ScatterND, elements", ROWS, X, picked(lambda s: (s[1], 2), lambda s: s[0]), of(_channels)),
    *_cases("ScatterND, add", ROWS, X, picked(lambda s: (s[0], 1), lambda s: s[0]), X, reduction="add"),
    *_cases("ScatterElements", ROWS, X, picked(lambda s: s, lambda s: s[1]), X, axis=1),
    *_cases("ScatterElements, add", ROWS, X, picked(lambda s: s, lambda s: s[1]), X, axis=1, reduction="add"),
    *_cases(
        "OneHot",
        SQUARES,
        picked(lambda s: (s[0],), lambda s: s[1]),
        fixed(lambda s: s[1]),
        fixed(lambda s: [0, 1], "float32"),
    ),
    *_cases("Trilu", ROWS, X),
    *_cases("ReverseSequence", SEQUENCES, X, picked(lambda s: (s[1],), lambda s: s[0])),
]
LAYOUT = [
    *_cases("Transpose, 10", ROWS, X, types=("float32", "float16", "int8"), perm=[1, 0]),
    *_cases("Transpose, 0231", IMAGES, X, perm=[0, 2, 3, 1]),
    *_cases("Transpose, 0213", HEADS, X, perm=[0, 2, 1, 3]),
    *_cases("Concat, rows", ROWS, X, X, types=("float32", "int64"), axis=0),
    *_cases("Concat, columns", ROWS, X, X, axis=1),
    *_cases("Split", ROWS, X, outputs=2, axis=1, num_outputs=2),
    *_cases("Slice", ROWS, X, *[fixed(lambda s, v=v: [v]) for v in (3, -2, 1)]),
    *_cases("Slice, every second", ROWS, X, *[fixed(lambda s, v=v: [v]) for v in (0, 1 << 40, 1, 2)]),
    *_cases("Slice, reversed", ROWS, X, *[fixed(lambda s, v=v: [v]) for v in (-1, -(1 << 40), 1, -1)]),
    *[
        c
        for m in ("constant", "edge", "reflect", "wrap")
        for c in _cases(f"Pad, {m}", ROWS, X, fixed(lambda s: [0, 5, 0, 7]), mode=m)
    ],
    *_cases("Pad, image", IMAGES, X, fixed(lambda s: [0, 0, 1, 1, 0, 0, 1, 1])),
    *_cases("Pad, image reflected", IMAGES, X, fixed(lambda s: [0, 0, 3, 3, 0, 0, 3, 3]), mode="reflect"),
    *_cases("Tile", ROWS, X, fixed(lambda s: [2, 2])),
    *_cases("Expand", ROWS, of(_rest), fixed(lambda s: s)),
    *_cases("DepthToSpace", ((1, 8, 7, 7), (1, 32, 40, 40), (1, 64, 160, 160), (1, 20, 43, 37)), X, blocksize=2),
    *_cases("SpaceToDepth", ((1, 8, 8, 6), (1, 32, 40, 40), (1, 64, 160, 160), (1, 19, 42, 36)), X, blocksize=2),
    *[
        case
        for how, factor in (("2", 2.0), ("half", 0.5), ("1.5", 1.5))
        for case in (
            *_cases(
                f"Resize, nearest {how}",
                IMAGES,
                X,
                NONE,
                fixed(lambda s, f=factor: [1, 1, f, f], "float32"),
                mode="nearest",
            ),
            *_cases(
                f"Resize, linear {how}",
                IMAGES,
                X,
                NONE,
                fixed(lambda s, f=factor: [1, 1, f, f], "float32"),
                mode="linear",
            ),
            *_cases(
                f"Resize, cubic {how}",
                IMAGES,
                X,
                NONE,
                fixed(lambda s, f=factor: [1, 1, f, f], "float32"),
                mode="cubic",
            ),
        )
    ],
    *_cases(
        "Resize, not_larger",
        IMAGES,
        X,
        NONE,
        NONE,
        fixed(lambda s: [s[2] * 2, s[3] * 3]),
        mode="linear",
        axes=[2, 3],
        keep_aspect_ratio_policy="not_larger",
    ),
    *_cases(
        "Resize, rows", tuple((1, *s) for s in ROWS), X, NONE, fixed(lambda s: [1, 1, 2], "float32"), mode="linear"
    ),
    *_cases("GridSample", IMAGES, X, Given(lambda r, s, k: unit(r, (s[0], *s[2:], 2), k)), opset=20),
]
POOLS = [
    *_cases("MaxPool; AveragePool", IMAGES, X, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    *_cases("MaxPool, 2x2; AveragePool, 2x2", IMAGES, X, kernel_shape=[2, 2], strides=[2, 2]),
    *_cases("LpPool", IMAGES, X, kernel_shape=[2, 2], strides=[2, 2]),
    *_cases("GlobalAveragePool; GlobalMaxPool", IMAGES, X),
]


def _conv(k: int) -> Given:
    return of(lambda s: (s[1], s[1], k, k), True, scale=True)


PRODUCTS = [
    *_cases("Conv, 1x1", IMAGES, X, _conv(1), macs=lambda s: _pixels(s) * s[1] ** 2),
    *_cases("Conv, 3x3", IMAGES, X, _conv(3), pads=[1] * 4, macs=lambda s: 9 * _pixels(s) * s[1] ** 2),
    *_cases(
        "Conv, strided",
        IMAGES,
        X,
        _conv(3),
        pads=[1] * 4,
        strides=[2, 2],
        macs=lambda s: 9 * _pixels(s) * s[1] ** 2 // 4,
    ),
    *_cases(
        "Conv, dilated", IMAGES, X, _conv(3), pads=[2] * 4, dilations=[2, 2], macs=lambda s: 9 * _pixels(s) * s[1] ** 2
    ),
    *_cases(
        "Conv, depthwise",
        IMAGES,
        X,
        of(lambda s: (s[1], 1, 3, 3), True, scale=True),
        pads=[1] * 4,
        group=lambda s: s[1],
    ),
    *_cases("ConvTranspose", IMAGES, X, _conv(2), strides=[2, 2], macs=lambda s: 4 * _pixels(s) * s[1] ** 2),
    *_cases(
        "ConvTranspose, SAME_LOWER",
        IMAGES,
        X,
        _conv(3),
        strides=[2, 2],
        auto_pad="SAME_LOWER",
        macs=lambda s: 9 * _pixels(s) * s[1] ** 2,
    ),
    *_cases(
        "MatMul",
        SQUARES,
        X,
        of(lambda s: (s[1], s[1]), True, scale=True),
        types=HALVES,
        macs=lambda s: s[0] * s[1] ** 2,
    ),
    *_cases("MatMul, two inputs", SQUARES, X, of(lambda s: (s[1], s[1]), scale=True), macs=lambda s: s[0] * s[1] ** 2),
    *_cases("MatMul, a row", SQUARES, of(lambda s: (1, s[1])), of(lambda s: (s[1], s[1]), True, scale=True)),
    *_cases("MatMul, heads", HEADS, X, of(lambda s: (*s[:2], s[3], s[2])), macs=lambda s: prod(s) * s[2]),
    *_cases(
        "Gemm",
        SQUARES,
        X,
        of(lambda s: (s[1], s[1]), True, scale=True),
        of(_channels, True),
        transB=1,
        macs=lambda s: s[0] * s[1] ** 2,
    ),
    *_cases("Einsum", HEADS, X, X, equation="bhik,bhjk->bhij", macs=lambda s: prod(s) * s[2]),
    *_cases("MatMulInteger", SQUARES, X, of(lambda s: (s[1], s[1]), True, "int8"), types=("uint8",)),
    *_cases("QuantizeLinear", ROWS, X, fixed(lambda s: 0.02, "float32"), fixed(lambda s: 3, "int8")),
    *_cases(
        "DequantizeLinear", ROWS, X, fixed(lambda s: 0.02, "float32"), fixed(lambda s: 3, ""), types=("int8", "uint8")
    ),
    *_cases("DynamicQuantizeLinear", ROWS, X, outputs=3),
    *_cases(
        "LSTM", SEQUENCES, X, *[of(lambda s: (1, 4 * s[2], s[2]), True, scale=True)] * 2, hidden_size=lambda s: s[2]
    ),
    *_cases(
        "GRU", SEQUENCES, X, *[of(lambda s: (1, 3 * s[2], s[2]), True, scale=True)] * 2, hidden_size=lambda s: s[2]
    ),
    *_cases("Attention", HEADS, X, X, X, opset=23, macs=lambda s: 2 * prod(s) * s[2]),
]


def _number(value: float | Callable[[Shape], float], kind: str = "float32") -> Given:
    return fixed(value if callable(value) else lambda s: value, kind)


def _spread(terms: Callable[[Shape], int]) -> Given:
    """Return the scale with which sums of so many products of bytes use the range of a byte."""
    return _number(lambda s: 0.008 * float(np.sqrt(terms(s))))


COLOURS: tuple[Shape, ...] = ((1, 3, 16, 16), (1, 3, 64, 64), (1, 3, 224, 224), (3, 3, 75, 43))
BYTE = (_number(0.02), _number(50, "uint8"))  # scale and zero point
BYTES = (X, *BYTE)
UINT8 = ("uint8",)


def _weights(shape: Callable[[Shape], Shape]) -> tuple[Given, Given, Given]:
    """Return signed bytes with a scale."""
    return of(shape, True, "int8"), _number(0.01), _number(0, "int8")


def _byte_conv(name: str, out: Callable[[int], int], k: int, group: bool = False, **more: Any) -> list[Case]:
    shapes = more.pop("shapes", IMAGES)
    weights = _weights(lambda s: (out(s[1]), 1 if group else s[1], k, k))
    scales = (_spread(lambda s: k * k * (1 if group else s[1])), _number(128, "uint8"))
    bias = of(lambda s: (out(s[1]),), True, "int32")
    own = {"pads": [k // 2] * 4, **({"group": lambda s: s[1]} if group else {}), **more}
    return _cases(f"QLinearConv, {name}", shapes, *BYTES, *weights, *scales, bias, types=UINT8, **own)


QUANTISED = [
    *_byte_conv("1x1", lambda c: c, 1),
    *_byte_conv("3x3", lambda c: c, 3),
    *_byte_conv("strided", lambda c: 2 * c, 3, strides=[2, 2]),
    *_byte_conv("depthwise", lambda c: c, 3, True),
    *_byte_conv("of colours", lambda c: 32, 3, strides=[2, 2], shapes=COLOURS),
    *_byte_conv("of colours, every place", lambda c: 32, 3, shapes=COLOURS),
    *_byte_conv("of colours, 7x7", lambda c: 64, 7, strides=[2, 2], shapes=COLOURS),
    *_cases("ConvInteger", IMAGES, X, of(lambda s: (s[1], s[1], 3, 3), True, "int8"), types=UINT8, pads=[1] * 4),
    *_cases(
        "QLinearMatMul",
        SQUARES,
        *BYTES,
        *_weights(lambda s: (s[1], s[1])),
        _spread(lambda s: s[1]),
        _number(128, "uint8"),
        types=UINT8,
    ),
    *_cases("DynamicQuantizeMatMul", SQUARES, X, *_weights(lambda s: (s[1], s[1])), domain=MICROSOFT),
    *_cases("QLinearAdd", ROWS, *BYTES, *BYTES, _number(0.04), _number(90, "uint8"), types=UINT8, domain=MICROSOFT),
    *_cases(
        "QLinearAdd, images", IMAGES, *BYTES, *BYTES, _number(0.04), _number(90, "uint8"), types=UINT8, domain=MICROSOFT
    ),
    *_cases("QLinearSigmoid", ROWS, *BYTES, _number(1 / 256), _number(0, "uint8"), types=UINT8, domain=MICROSOFT),
    *_cases("QLinearLeakyRelu", ROWS, *BYTES, *BYTE, types=UINT8, domain=MICROSOFT, alpha=0.1),
    *_cases(
        "QLinearGlobalAveragePool", IMAGES, *BYTES, _number(0.005), _number(50, "uint8"), types=UINT8, domain=MICROSOFT
    ),
    *_cases(
        "QLinearAveragePool",
        IMAGES,
        *BYTES,
        *BYTE,
        types=UINT8,
        domain=MICROSOFT,
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1] * 4,
    ),
    *_cases("MaxPool, bytes", IMAGES, X, types=UINT8, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    *_cases("Pad, bytes", IMAGES, X, fixed(lambda s: [0, 0, 1, 1, 0, 0, 1, 1]), types=UINT8),
    *_cases("Concat, bytes", IMAGES, X, X, types=UINT8, axis=1),
]


def _boxes(rng: np.random.Generator, s: Shape, k: np.dtype[Any]) -> Array:
    """Return a box for each row: two corners."""
    corners = rng.random((s[0], 2, 2)) * 30
    return np.concatenate([corners[:, 0], corners[:, 0] + corners[:, 1] + 1], 1).astype(np.float32)


RARE = [
    *_cases("Greater; LessOrEqual", ROWS, X, X),
    *_cases("BitwiseOr", ROWS, X, X, types=("int32",)),
    *_cases("ReduceLogSum, rows", ROWS, POSITIVE, fixed(lambda s: [-1])),
    *_cases("GlobalLpPool", IMAGES, X),
    *_cases(
        "GroupNormalization",
        ((1, 8, 7, 7), (1, 32, 40, 40), (1, 64, 160, 160), (1, 18, 43, 37)),
        X,
        of(_channels, True),
        of(_channels, True),
        opset=21,
        num_groups=2,
    ),
    *_cases("RNN", SEQUENCES, X, *[of(lambda s: (1, s[2], s[2]), True, scale=True)] * 2, hidden_size=lambda s: s[2]),
    *_cases(
        "RotaryEmbedding",
        HEADS,
        X,
        *[of(lambda s: (s[0], s[2], s[3] // 2), True)] * 2,
        opset=23,
    ),
    *_cases("DFT", ROWS, of(lambda s: (*s, 1)), opset=20, onesided=1),
    *_cases(
        "STFT",
        ((1, 512, 1), (1, 4096, 1), (1, 48000, 1), (3, 3001, 1)),
        X,
        fixed(lambda s: 64),
        of(lambda s: (256,), True),
    ),
    *_cases("Det", ((5, 3, 3), (100, 4, 4), (1000, 8, 8), (75, 5, 5)), X),
    *_cases(
        "RoiAlign",
        IMAGES,
        X,
        Given(lambda r, s, k: _boxes(r, (s[1],), k)),
        picked(lambda s: (s[1],), lambda s: s[0]),
        output_height=7,
        output_width=7,
        sampling_ratio=2,
    ),
    *_cases(
        "Col2Im",
        ((1, 18, 36), (1, 72, 36 * 36), (1, 576, 156 * 156), (1, 171, 41 * 41)),
        X,
        fixed(lambda s: [round(s[2] ** 0.5) + 2] * 2),
        fixed(lambda s: [3, 3]),
    ),
    *_cases(
        "DeformConv",
        IMAGES,
        X,
        _conv(3),
        of(lambda s: (s[0], 18, *s[2:])),
        opset=22,
        pads=[1] * 4,
        macs=lambda s: 9 * _pixels(s) * s[1] ** 2,
    ),
    *_cases("CenterCropPad", ROWS, X, fixed(lambda s: [s[0], s[1] - 6])),
    *_cases("AffineGrid", IMAGES, of(lambda s: (s[0], 2, 3)), fixed(lambda s: s)),
    *_cases("NonZero", ROWS, typed("bool")),
    *_cases("Unique", ROWS, X, types=("int64",)),
    *_cases("Compress", ROWS, X, of(lambda s: (s[0],), kind="bool"), axis=0),
    *_cases(
        "NonMaxSuppression",
        ((8, 4), (100, 4), (5000, 4), (333, 4)),
        Given(lambda r, s, k: _boxes(r, s, k)[None]),
        Given(lambda r, s, k: r.random((1, 1, s[0])).astype(np.float32)),
        fixed(lambda s: [100]),
        _number(lambda s: [0.5]),
        _number(lambda s: [0.1]),
    ),
    *_cases("FusedMatMul", HEADS, X, X, transB=1, domain=MICROSOFT, macs=lambda s: prod(s) * s[2]),
    *_cases("MultiHeadAttention", SEQUENCES, X, X, X, num_heads=lambda s: 3 if s[2] % 8 else 8, domain=MICROSOFT),
]


def _width(s: Shape) -> int:
    return s[1]


def _blocks(s: Shape) -> int:
    return -(-s[1] // 32)


def _nibbles(shape: Callable[[Shape], Shape]) -> Given:
    return Given(lambda r, s, k: r.integers(0, 256, shape(s)).astype(np.uint8), True)


def _block_scales(shape: Callable[[Shape], Shape]) -> Given:
    return Given(lambda r, s, k: (r.random(shape(s)) / 8 / np.sqrt(s[1])).astype(np.float32), True)


NIBBLES = (_nibbles(lambda s: (s[1], _blocks(s), 16)), _block_scales(lambda s: (s[1] * _blocks(s),)))
TOKENS: tuple[Shape, ...] = ((1, 8), (1, 64), (4, 256), (3, 75))  # batch, positions
QUERIES: tuple[Shape, ...] = ((1, 4, 64), (1, 48, 256), (1, 256, 512), (3, 28, 96))  # batch, positions, features
CACHES: tuple[Shape, ...] = ((1, 2, 16, 16), (1, 4, 256, 64), (1, 8, 2048, 128), (3, 5, 75, 40))  # of keys
CONTRIB = [
    *_cases(
        "EmbedLayerNormalization",
        TOKENS,
        picked(lambda s: s, lambda s: 99, "int32"),
        NONE,
        of(lambda s: (99, 384), True, "float32"),
        of(lambda s: (s[1], 384), True, "float32"),
        NONE,
        *[of(lambda s: (384,), True, "float32")] * 2,
        outputs=2,
    ),
    *_cases(
        "FusedGemm",
        SQUARES,
        X,
        of(lambda s: (s[1], s[1]), True, scale=True),
        of(_channels, True),
        macs=lambda s: s[0] * s[1] ** 2,
        activation="Relu",
    ),
    *_cases(
        "FusedConv",
        IMAGES,
        X,
        _conv(3),
        of(_channels, True),
        macs=lambda s: 9 * _pixels(s) * s[1] ** 2,
        pads=[1] * 4,
        activation="Relu",
    ),
    *_cases(
        "MatMulNBits", SQUARES, X, *NIBBLES, macs=lambda s: s[0] * s[1] ** 2, K=_width, N=_width, bits=4, block_size=32
    ),
    *_cases(
        "MatMulNBits, a row", SQUARES, of(lambda s: (1, s[1])), *NIBBLES, K=_width, N=_width, bits=4, block_size=32
    ),
    *_cases(
        "GatherBlockQuantized",
        SQUARES,
        _nibbles(lambda s: (s[1], 16 * _blocks(s))),
        picked(lambda s: (s[0],), _width),
        _block_scales(lambda s: (s[1], _blocks(s))),
        types=UINT8,
        bits=4,
        block_size=32,
        quantize_axis=1,
    ),
    *_cases(
        "GroupQueryAttention",
        QUERIES,
        X,
        *[of(lambda s: (*s[:2], s[2] // 2))] * 2,
        NONE,
        NONE,
        fixed(lambda s: [s[1] - 1] * s[0], "int32"),
        fixed(lambda s: s[1], "int32"),
        outputs=3,
        num_heads=4,
        kv_num_heads=2,
    ),
    *_cases(
        "GroupQueryAttention, a step",
        CACHES,
        of(lambda s: (s[0], 1, 2 * s[1] * s[3])),
        *[of(lambda s: (s[0], 1, s[1] * s[3]))] * 2,
        *[of(lambda s: s)] * 2,
        Given(lambda r, s, k: np.full(s[0], s[2], np.int32)),
        fixed(lambda s: s[2] + 1, "int32"),
        outputs=3,
        num_heads=lambda s: 2 * s[1],
        kv_num_heads=_width,
    ),
    *_cases(
        "MultiHeadAttention, a step",
        CACHES,
        *[of(lambda s: (s[0], 1, s[1] * s[3]))] * 3,
        *[NONE] * 3,
        *[of(lambda s: s)] * 2,
        outputs=3,
        num_heads=_width,
    ),
    *_cases(
        "QAttention",
        QUERIES,
        X,
        of(lambda s: (s[2], 3 * s[2]), True, "int8"),
        of(lambda s: (3 * s[2],), True, "float32"),
        _number(0.02),
        _number(lambda s: 0.01 / np.sqrt(s[2])),
        NONE,
        _number(50, "uint8"),
        _number(0, "int8"),
        types=UINT8,
        num_heads=4,
    ),
    *_cases(
        "CDist",
        ((8, 32), (128, 64), (1024, 256), (75, 333)),
        X,
        X,
        macs=lambda s: s[0] * s[0] * s[1],
        metric="euclidean",
    ),
    *_cases("QLinearMul", ROWS, *BYTES, *BYTES, _number(0.04), _number(90, "uint8"), types=UINT8),
    replace(
        _cases("QLinearSoftmax", ROWS, *BYTES, _number(1 / 256), _number(0, "uint8"), types=UINT8)[0],
        attrs={"axis": -1, "opset": 13},
    ),
    *_cases("QLinearWhere", ROWS, typed("bool"), *[typed("uint8"), *BYTE] * 2, *BYTE),
    *_cases("QLinearConcat", IMAGES, *BYTE, *BYTES, *BYTES, types=UINT8, axis=1),
    *_cases(
        "QGemm",
        SQUARES,
        *BYTES,
        *_weights(lambda s: (s[1], s[1])),
        of(_channels, True, "int32"),
        _spread(_width),
        _number(128, "uint8"),
        types=UINT8,
        transB=1,
    ),
    *_cases(
        "MatMulIntegerToFloat",
        SQUARES,
        X,
        of(lambda s: (s[1], s[1]), True, "int8"),
        _number(0.02),
        _number(0.01),
        _number(50, "uint8"),
        _number(0, "int8"),
        types=UINT8,
    ),
    *_cases(
        "DynamicQuantizeLSTM",
        SEQUENCES,
        X,
        *[of(lambda s: (1, s[2], 4 * s[2]), True, "int8")] * 2,
        *[NONE] * 5,
        *[_number(lambda s: [0.015 / np.sqrt(s[2])]), _number(lambda s: [0], "int8")] * 2,
        hidden_size=lambda s: s[2],
    ),
    *_cases(
        "NhwcMaxPool",
        ((1, 7, 7, 8), (1, 40, 40, 32), (1, 160, 160, 64), (1, 43, 37, 19)),
        X,
        types=UINT8,
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1] * 4,
    ),
]
CONTRIB = [replace(case, domain=MICROSOFT) for case in CONTRIB]
MORE = [
    *_cases("SimplifiedLayerNormalization", ROWS, X, of(_channels, True), axis=-1),
    *_cases("Swish", ROWS, X, types=HALVES, opset=24),
    *_cases("CumProd, rows", ROWS, UNIT, fixed(lambda s: 1), opset=26),
    *_cases(
        "Attention, a step",
        CACHES,
        *[of(lambda s: (s[0], s[1], 1, s[3]))] * 3,
        NONE,
        *[of(lambda s: s)] * 2,
        outputs=3,
        opset=23,
    ),
    *_cases("TensorScatter", HEADS, X, of(lambda s: (*s[:2], 2, s[3])), opset=24),
    *_cases("Upsample", IMAGES, X, fixed(lambda s: [1, 1, 2, 2], "float32"), opset=9, mode="nearest"),
    *_cases(
        "MaxUnpool",
        IMAGES,
        X,
        Given(lambda r, s, k: 4 * np.arange(prod(s)).reshape(s)),
        kernel_shape=[2, 2],
        strides=[2, 2],
    ),
    *_cases(
        "MaxRoiPool",
        IMAGES,
        X,
        Given(lambda r, s, k: np.concatenate([np.zeros((s[1], 1), np.float32), _boxes(r, (s[1],), k)], 1)),
        pooled_shape=[7, 7],
    ),
    *_cases("SoftmaxCrossEntropyLoss", ROWS, X, picked(lambda s: (s[0],), _width)),
    *_cases("Reshape", ROWS, X, fixed(lambda s: [s[1], s[0]])),
    *_cases("EyeLike", ROWS, X),
    *_cases("CastLike", ROWS, X, typed("float16")),
]
GROUPS = (ELEMENTWISE, CASTS, REDUCTIONS, NORMS, INDEXING, LAYOUT, POOLS, PRODUCTS, QUANTISED, RARE, CONTRIB, MORE)
CASES = {case.name: case for group in GROUPS for case in group}
