"""List forms of the operators of ONNX's main domain, and of those that other runtimes fuse them into."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from onnx import helper

from benchmarks.operators.case import (
    CACHES,
    FLOAT,
    HALVES,
    HEADS,
    IMAGES,
    KINDS,
    MICROSOFT,
    NONE,
    NUMBERS,
    POSITIVE,
    ROWS,
    SEQUENCES,
    SQUARES,
    UNIT,
    Given,
    Shape,
    X,
    channels,
    conv_weights,
    fixed,
    forms,
    number,
    of,
    picked,
    pixels,
    positive,
    rest,
    typed,
    unit,
    width,
)
from rammer.ir.tensor import Array

ELEMENTWISE = [
    *forms("Abs; Neg; Sign", ROWS, X, types=NUMBERS),
    *forms("Relu; LeakyRelu; Elu; Selu; ThresholdedRelu; HardSigmoid; HardSwish; Sigmoid", ROWS, X, types=HALVES),
    *forms("Softplus; Softsign; Mish; Exp; Floor; Ceil; Round; Tanh; Erf", ROWS, X, types=HALVES),
    *forms("Celu; Sin; Cos; Tan; Sinh; Cosh; Asinh; Atan", ROWS, X),
    *forms("Asin; Acos; Atanh", ROWS, UNIT),
    *forms("Log; Sqrt; Reciprocal", ROWS, POSITIVE, types=HALVES),
    *forms("Acosh", ROWS, POSITIVE),
    *forms("Gelu", ROWS, X, types=HALVES),
    *forms("Gelu, tanh", ROWS, X, approximate="tanh"),
    *forms("IsNaN; IsInf", ROWS, X),
    *forms("Not", ROWS, X, types=("bool",)),
    *forms("BitwiseNot", ROWS, X, types=("int32",)),
    *forms("Shrink", ROWS, X, lambd=0.5, bias=0.1),
    *forms("Clip", ROWS, X, fixed(lambda s: 0, ""), fixed(lambda s: 6, ""), types=("float32", "int8")),
    *forms("PRelu", IMAGES, X, of(lambda s: (s[1], 1, 1), True)),
    *forms("Identity", ROWS, X),
    *forms("Add; Sub; Mul", ROWS, X, X, types=(*NUMBERS, "bfloat16")),
    *forms("Div", ROWS, X, POSITIVE, types=NUMBERS),
    *forms("Max; Min; Mean; Sum", ROWS, X, X, types=HALVES),
    *forms("Mod", ROWS, X, POSITIVE, types=("int32", "int64")),
    *forms("Mod, fmod", ROWS, X, POSITIVE, fmod=1),
    *forms("Pow", ROWS, POSITIVE, X),
    *[c for p in (2, 3, 0.5, -1, 1.7) for c in forms(f"Pow, {p}", ROWS, POSITIVE, fixed(lambda s, p=p: p, ""))],
    *forms("Add, a row; Mul, a row", ROWS, X, of(channels)),
    *forms("Add, a column; Mul, a column", ROWS, X, of(lambda s: (s[0], 1))),
    *forms("Add, a channel", IMAGES, X, of(lambda s: (s[1], 1, 1))),
    *forms("Equal; Less; GreaterOrEqual", ROWS, X, X, types=("float32", "int32", "int64")),
    *forms("And; Or; Xor", ROWS, X, X, types=("bool",)),
    *forms("BitwiseAnd; BitwiseXor", ROWS, X, X, types=("int32",)),
    *forms("BitShift", ROWS, X, fixed(lambda s: 3, ""), types=("uint8",), direction="LEFT"),
    *forms("Where", ROWS, typed("bool"), X, X, types=("float32", "int64")),
]
_CASTS = (
    *("float32 float16", "float32 bfloat16", "float32 int32", "float32 int64", "float32 int8", "float32 uint8"),
    *("float32 bool", "float16 float32", "bfloat16 float32", "int64 float32", "int32 float32", "uint8 float32"),
    *("int64 int32", "int32 int64", "bool float32", "bool int64"),
)
CASTS = [
    case
    for source, to in map(str.split, _CASTS)
    for case in forms(
        f"Cast, {to}", ROWS, POSITIVE, types=(source,), to=int(helper.np_dtype_to_tensor_dtype(KINDS[to]))
    )
]
REDUCTIONS = [
    *[
        case
        for place, axes in (("rows", [-1]), ("columns", [0]), ("all", [0, 1]))
        for case in (
            *forms(f"ReduceSum, {place}; ReduceMean, {place}; ReduceMax, {place}", ROWS, X, fixed(lambda s, a=axes: a)),
            *forms(
                f"ReduceMin, {place}; ReduceProd, {place}; ReduceSumSquare, {place}",
                ROWS,
                UNIT,
                fixed(lambda s, a=axes: a),
            ),
            *forms(
                f"ReduceL1, {place}; ReduceL2, {place}; ReduceLogSumExp, {place}", ROWS, X, fixed(lambda s, a=axes: a)
            ),
        )
    ],
    *forms("ReduceMean, channels", IMAGES, X, fixed(lambda s: [1])),
    *forms("ReduceMean, pixels", IMAGES, X, fixed(lambda s: [2, 3])),
    *forms("ReduceSum, integers; ReduceMax, integers", ROWS, X, fixed(lambda s: [-1]), types=("int32", "int64")),
    *forms("ArgMax, rows; ArgMin, rows", ROWS, X, axis=-1),
    *forms("ArgMax, columns", ROWS, X, axis=0),
    *forms("ArgMax, channels", IMAGES, X, axis=1),
    *forms("Softmax, rows; LogSoftmax, rows; Hardmax, rows", ROWS, X, types=FLOAT, axis=-1),
    *forms("Softmax, columns; LogSoftmax, columns", ROWS, X, axis=0),
    *forms("Softmax, channels", IMAGES, X, axis=1),
    *forms("Softmax, halves", ROWS, X, types=("float16",), axis=-1),
    *forms("CumSum, rows", ROWS, X, fixed(lambda s: 1), types=("float32", "int32", "int64")),
    *forms("CumSum, columns", ROWS, X, fixed(lambda s: 0)),
    *forms("CumSum, exclusive", ROWS, X, fixed(lambda s: 1), exclusive=1),
    *forms("CumSum, reverse", ROWS, X, fixed(lambda s: 1), reverse=1),
]
NORMS = [
    *forms("LayerNormalization", ROWS, X, of(channels, True), of(channels, True), types=HALVES),
    *forms("RMSNormalization", ROWS, X, of(channels, True), opset=23),
    *forms("LpNormalization", ROWS, X, axis=-1),
    *forms("MeanVarianceNormalization", IMAGES, X),
    *forms("InstanceNormalization", IMAGES, X, of(channels, True), of(channels, True)),
    *forms(
        "BatchNormalization",
        IMAGES,
        X,
        *[of(channels, True)] * 3,
        Given(lambda r, s, k: positive(r, (s[1],), k), True),
    ),
    *forms("LRN", IMAGES, X, size=5),
    *forms("SkipLayerNormalization", SEQUENCES, X, X, *[of(lambda s: s[2:], True)] * 2, domain=MICROSOFT),
    *forms("SkipSimplifiedLayerNormalization", SEQUENCES, X, X, of(lambda s: s[2:], True), domain=MICROSOFT),
    *forms("FastGelu; BiasGelu", ROWS, X, of(channels, True), domain=MICROSOFT),
    *forms("QuickGelu", ROWS, X, domain=MICROSOFT),
]
INDEXING = [
    *forms("TopK, all", ROWS, X, fixed(lambda s: [s[-1]]), outputs=2, types=("float32", "int64")),
    *forms("TopK, 1", ROWS, X, fixed(lambda s: [1]), outputs=2),
    *forms("TopK, 8", ROWS, X, fixed(lambda s: [8]), outputs=2, types=("float32", "int64")),
    *forms("TopK, 64", ROWS, X, fixed(lambda s: [64]), outputs=2),
    *forms("TopK, smallest 8", ROWS, X, fixed(lambda s: [8]), outputs=2, largest=0),
    *forms("TopK, columns", ROWS, X, fixed(lambda s: [1]), outputs=2, axis=0),
    *forms("Gather, rows", ROWS, X, picked(lambda s: (s[0],), lambda s: s[0]), types=("float32", "float16", "int64")),
    *forms("Gather, columns", ROWS, X, picked(lambda s: (s[1],), lambda s: s[1]), axis=1),
    *forms("GatherElements", ROWS, X, picked(lambda s: s, lambda s: s[1]), axis=1),
    *forms("GatherND", ROWS, X, picked(lambda s: (s[0], 1), lambda s: s[0])),
    *forms("GatherND, elements", ROWS, X, picked(lambda s: (s[1], 2), lambda s: s[0])),
    *forms("ScatterND", ROWS, X, picked(lambda s: (s[0], 1), lambda s: s[0]), X),
    *forms("ScatterND, elements", ROWS, X, picked(lambda s: (s[1], 2), lambda s: s[0]), of(channels)),
    *forms("ScatterND, add", ROWS, X, picked(lambda s: (s[0], 1), lambda s: s[0]), X, reduction="add"),
    *forms("ScatterElements", ROWS, X, picked(lambda s: s, lambda s: s[1]), X, axis=1),
    *forms("ScatterElements, add", ROWS, X, picked(lambda s: s, lambda s: s[1]), X, axis=1, reduction="add"),
    *forms(
        "OneHot",
        SQUARES,
        picked(lambda s: (s[0],), lambda s: s[1]),
        fixed(lambda s: s[1]),
        fixed(lambda s: [0, 1], "float32"),
    ),
    *forms("Trilu", ROWS, X),
    *forms("ReverseSequence", SEQUENCES, X, picked(lambda s: (s[1],), lambda s: s[0])),
]
LAYOUT = [
    *forms("Transpose, 10", ROWS, X, types=("float32", "float16", "int8"), perm=[1, 0]),
    *forms("Transpose, 0231", IMAGES, X, perm=[0, 2, 3, 1]),
    *forms("Transpose, 0213", HEADS, X, perm=[0, 2, 1, 3]),
    *forms("Concat, rows", ROWS, X, X, types=("float32", "int64"), axis=0),
    *forms("Concat, columns", ROWS, X, X, axis=1),
    *forms("Split", ROWS, X, outputs=2, axis=1, num_outputs=2),
    *forms("Slice", ROWS, X, *[fixed(lambda s, v=v: [v]) for v in (3, -2, 1)]),
    *forms("Slice, every second", ROWS, X, *[fixed(lambda s, v=v: [v]) for v in (0, 1 << 40, 1, 2)]),
    *forms("Slice, reversed", ROWS, X, *[fixed(lambda s, v=v: [v]) for v in (-1, -(1 << 40), 1, -1)]),
    *[
        c
        for m in ("constant", "edge", "reflect", "wrap")
        for c in forms(f"Pad, {m}", ROWS, X, fixed(lambda s: [0, 5, 0, 7]), mode=m)
    ],
    *forms("Pad, image", IMAGES, X, fixed(lambda s: [0, 0, 1, 1, 0, 0, 1, 1])),
    *forms("Pad, image reflected", IMAGES, X, fixed(lambda s: [0, 0, 3, 3, 0, 0, 3, 3]), mode="reflect"),
    *forms("Tile", ROWS, X, fixed(lambda s: [2, 2])),
    *forms("Expand", ROWS, of(rest), fixed(lambda s: s)),
    *forms("DepthToSpace", ((1, 8, 7, 7), (1, 32, 40, 40), (1, 64, 160, 160), (1, 20, 43, 37)), X, blocksize=2),
    *forms("SpaceToDepth", ((1, 8, 8, 6), (1, 32, 40, 40), (1, 64, 160, 160), (1, 19, 42, 36)), X, blocksize=2),
    *[
        case
        for how, factor in (("2", 2.0), ("half", 0.5), ("1.5", 1.5))
        for case in (
            *forms(
                f"Resize, nearest {how}",
                IMAGES,
                X,
                NONE,
                fixed(lambda s, f=factor: [1, 1, f, f], "float32"),
                mode="nearest",
            ),
            *forms(
                f"Resize, linear {how}",
                IMAGES,
                X,
                NONE,
                fixed(lambda s, f=factor: [1, 1, f, f], "float32"),
                mode="linear",
            ),
            *forms(
                f"Resize, cubic {how}",
                IMAGES,
                X,
                NONE,
                fixed(lambda s, f=factor: [1, 1, f, f], "float32"),
                mode="cubic",
            ),
        )
    ],
    *forms(
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
    *forms("Resize, rows", tuple((1, *s) for s in ROWS), X, NONE, fixed(lambda s: [1, 1, 2], "float32"), mode="linear"),
    *forms("GridSample", IMAGES, X, Given(lambda r, s, k: unit(r, (s[0], *s[2:], 2), k)), opset=20),
]
POOLS = [
    *forms("MaxPool; AveragePool", IMAGES, X, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    *forms("MaxPool, 2x2; AveragePool, 2x2", IMAGES, X, kernel_shape=[2, 2], strides=[2, 2]),
    *forms("LpPool", IMAGES, X, kernel_shape=[2, 2], strides=[2, 2]),
    *forms("GlobalAveragePool; GlobalMaxPool", IMAGES, X),
]
PRODUCTS = [
    *forms("Conv, 1x1", IMAGES, X, conv_weights(1), macs=lambda s: pixels(s) * s[1] ** 2),
    *forms("Conv, 3x3", IMAGES, X, conv_weights(3), pads=[1] * 4, macs=lambda s: 9 * pixels(s) * s[1] ** 2),
    *forms(
        "Conv, strided",
        IMAGES,
        X,
        conv_weights(3),
        pads=[1] * 4,
        strides=[2, 2],
        macs=lambda s: 9 * pixels(s) * s[1] ** 2 // 4,
    ),
    *forms(
        "Conv, dilated",
        IMAGES,
        X,
        conv_weights(3),
        pads=[2] * 4,
        dilations=[2, 2],
        macs=lambda s: 9 * pixels(s) * s[1] ** 2,
    ),
    *forms(
        "Conv, depthwise",
        IMAGES,
        X,
        of(lambda s: (s[1], 1, 3, 3), True, scale=True),
        pads=[1] * 4,
        group=lambda s: s[1],
    ),
    *forms("ConvTranspose", IMAGES, X, conv_weights(2), strides=[2, 2], macs=lambda s: 4 * pixels(s) * s[1] ** 2),
    *forms(
        "ConvTranspose, SAME_LOWER",
        IMAGES,
        X,
        conv_weights(3),
        strides=[2, 2],
        auto_pad="SAME_LOWER",
        macs=lambda s: 9 * pixels(s) * s[1] ** 2,
    ),
    *forms(
        "MatMul",
        SQUARES,
        X,
        of(lambda s: (s[1], s[1]), True, scale=True),
        types=HALVES,
        macs=lambda s: s[0] * s[1] ** 2,
    ),
    *forms("MatMul, two inputs", SQUARES, X, of(lambda s: (s[1], s[1]), scale=True), macs=lambda s: s[0] * s[1] ** 2),
    *forms("MatMul, a row", SQUARES, of(lambda s: (1, s[1])), of(lambda s: (s[1], s[1]), True, scale=True)),
    *forms("MatMul, heads", HEADS, X, of(lambda s: (*s[:2], s[3], s[2])), macs=lambda s: prod(s) * s[2]),
    *forms(
        "Gemm",
        SQUARES,
        X,
        of(lambda s: (s[1], s[1]), True, scale=True),
        of(channels, True),
        transB=1,
        macs=lambda s: s[0] * s[1] ** 2,
    ),
    *forms("Einsum", HEADS, X, X, equation="bhik,bhjk->bhij", macs=lambda s: prod(s) * s[2]),
    *forms("MatMulInteger", SQUARES, X, of(lambda s: (s[1], s[1]), True, "int8"), types=("uint8",)),
    *forms("QuantizeLinear", ROWS, X, fixed(lambda s: 0.02, "float32"), fixed(lambda s: 3, "int8")),
    *forms(
        "DequantizeLinear", ROWS, X, fixed(lambda s: 0.02, "float32"), fixed(lambda s: 3, ""), types=("int8", "uint8")
    ),
    *forms("DynamicQuantizeLinear", ROWS, X, outputs=3),
    *forms(
        "LSTM", SEQUENCES, X, *[of(lambda s: (1, 4 * s[2], s[2]), True, scale=True)] * 2, hidden_size=lambda s: s[2]
    ),
    *forms("GRU", SEQUENCES, X, *[of(lambda s: (1, 3 * s[2], s[2]), True, scale=True)] * 2, hidden_size=lambda s: s[2]),
    *forms("Attention", HEADS, X, X, X, opset=23, macs=lambda s: 2 * prod(s) * s[2]),
]


def _boxes(rng: np.random.Generator, s: Shape, k: np.dtype[Any]) -> Array:
    """Return a box for each row: two corners."""
    corners = rng.random((s[0], 2, 2)) * 30
    return np.concatenate([corners[:, 0], corners[:, 0] + corners[:, 1] + 1], 1).astype(np.float32)


RARE = [
    *forms("Greater; LessOrEqual", ROWS, X, X),
    *forms("BitwiseOr", ROWS, X, X, types=("int32",)),
    *forms("ReduceLogSum, rows", ROWS, POSITIVE, fixed(lambda s: [-1])),
    *forms("GlobalLpPool", IMAGES, X),
    *forms(
        "GroupNormalization",
        ((1, 8, 7, 7), (1, 32, 40, 40), (1, 64, 160, 160), (1, 18, 43, 37)),
        X,
        of(channels, True),
        of(channels, True),
        opset=21,
        num_groups=2,
    ),
    *forms("RNN", SEQUENCES, X, *[of(lambda s: (1, s[2], s[2]), True, scale=True)] * 2, hidden_size=lambda s: s[2]),
    *forms(
        "RotaryEmbedding",
        HEADS,
        X,
        *[of(lambda s: (s[0], s[2], s[3] // 2), True)] * 2,
        opset=23,
    ),
    *forms("DFT", ROWS, of(lambda s: (*s, 1)), opset=20, onesided=1),
    *forms(
        "STFT",
        ((1, 512, 1), (1, 4096, 1), (1, 48000, 1), (3, 3001, 1)),
        X,
        fixed(lambda s: 64),
        of(lambda s: (256,), True),
    ),
    *forms("Det", ((5, 3, 3), (100, 4, 4), (1000, 8, 8), (75, 5, 5)), X),
    *forms(
        "RoiAlign",
        IMAGES,
        X,
        Given(lambda r, s, k: _boxes(r, (s[1],), k)),
        picked(lambda s: (s[1],), lambda s: s[0]),
        output_height=7,
        output_width=7,
        sampling_ratio=2,
    ),
    *forms(
        "Col2Im",
        ((1, 18, 36), (1, 72, 36 * 36), (1, 576, 156 * 156), (1, 171, 41 * 41)),
        X,
        fixed(lambda s: [round(s[2] ** 0.5) + 2] * 2),
        fixed(lambda s: [3, 3]),
    ),
    *forms(
        "DeformConv",
        IMAGES,
        X,
        conv_weights(3),
        of(lambda s: (s[0], 18, *s[2:])),
        opset=22,
        pads=[1] * 4,
        macs=lambda s: 9 * pixels(s) * s[1] ** 2,
    ),
    *forms("CenterCropPad", ROWS, X, fixed(lambda s: [s[0], s[1] - 6])),
    *forms("AffineGrid", IMAGES, of(lambda s: (s[0], 2, 3)), fixed(lambda s: s)),
    *forms("NonZero", ROWS, typed("bool")),
    *forms("Unique", ROWS, X, types=("int64",)),
    *forms("Compress", ROWS, X, of(lambda s: (s[0],), kind="bool"), axis=0),
    *forms(
        "NonMaxSuppression",
        ((8, 4), (100, 4), (5000, 4), (333, 4)),
        Given(lambda r, s, k: _boxes(r, s, k)[None]),
        Given(lambda r, s, k: r.random((1, 1, s[0])).astype(np.float32)),
        fixed(lambda s: [100]),
        number(lambda s: [0.5]),
        number(lambda s: [0.1]),
    ),
    *forms("FusedMatMul", HEADS, X, X, transB=1, domain=MICROSOFT, macs=lambda s: prod(s) * s[2]),
    *forms("MultiHeadAttention", SEQUENCES, X, X, X, num_heads=lambda s: 3 if s[2] % 8 else 8, domain=MICROSOFT),
]
MORE = [
    *forms("SimplifiedLayerNormalization", ROWS, X, of(channels, True), axis=-1),
    *forms("Swish", ROWS, X, types=HALVES, opset=24),
    *forms("CumProd, rows", ROWS, UNIT, fixed(lambda s: 1), opset=26),
    *forms(
        "Attention, a step",
        CACHES,
        *[of(lambda s: (s[0], s[1], 1, s[3]))] * 3,
        NONE,
        *[of(lambda s: s)] * 2,
        outputs=3,
        opset=23,
    ),
    *forms("TensorScatter", HEADS, X, of(lambda s: (*s[:2], 2, s[3])), opset=24),
    *forms("Upsample", IMAGES, X, fixed(lambda s: [1, 1, 2, 2], "float32"), opset=9, mode="nearest"),
    *forms(
        "MaxUnpool",
        IMAGES,
        X,
        Given(lambda r, s, k: 4 * np.arange(prod(s)).reshape(s)),
        kernel_shape=[2, 2],
        strides=[2, 2],
    ),
    *forms(
        "MaxRoiPool",
        IMAGES,
        X,
        Given(lambda r, s, k: np.concatenate([np.zeros((s[1], 1), np.float32), _boxes(r, (s[1],), k)], 1)),
        pooled_shape=[7, 7],
    ),
    *forms("SoftmaxCrossEntropyLoss", ROWS, X, picked(lambda s: (s[0],), width)),
    *forms("Reshape", ROWS, X, fixed(lambda s: [s[1], s[0]])),
    *forms("EyeLike", ROWS, X),
    *forms("CastLike", ROWS, X, typed("float16")),
]
