"""List forms of operators on bytes, and of those of com.microsoft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.operators.case import (
    CACHES,
    IMAGES,
    MICROSOFT,
    NONE,
    ROWS,
    SEQUENCES,
    SQUARES,
    Case,
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
    typed,
    width,
)


def _spread(terms: Callable[[Shape], int]) -> Given:
    """Return the scale with which sums of so many products of bytes use the range of a byte."""
    return number(lambda s: 0.008 * float(np.sqrt(terms(s))))


COLOURS: tuple[Shape, ...] = ((1, 3, 16, 16), (1, 3, 64, 64), (1, 3, 224, 224), (3, 3, 75, 43))
BYTE = (number(0.02), number(50, "uint8"))  # scale and zero point
BYTES = (X, *BYTE)
UINT8 = ("uint8",)


def _weights(shape: Callable[[Shape], Shape]) -> tuple[Given, Given, Given]:
    """Return signed bytes with a scale."""
    return of(shape, True, "int8"), number(0.01), number(0, "int8")


def _byte_conv(name: str, out: Callable[[int], int], k: int, group: bool = False, **more: Any) -> list[Case]:
    shapes = more.pop("shapes", IMAGES)
    weights = _weights(lambda s: (out(s[1]), 1 if group else s[1], k, k))
    scales = (_spread(lambda s: k * k * (1 if group else s[1])), number(128, "uint8"))
    bias = of(lambda s: (out(s[1]),), True, "int32")
    own = {"pads": [k // 2] * 4, **({"group": lambda s: s[1]} if group else {}), **more}
    return forms(f"QLinearConv, {name}", shapes, *BYTES, *weights, *scales, bias, types=UINT8, **own)


QUANTISED = [
    *_byte_conv("1x1", lambda c: c, 1),
    *_byte_conv("3x3", lambda c: c, 3),
    *_byte_conv("strided", lambda c: 2 * c, 3, strides=[2, 2]),
    *_byte_conv("depthwise", lambda c: c, 3, True),
    *_byte_conv("of colours", lambda c: 32, 3, strides=[2, 2], shapes=COLOURS),
    *_byte_conv("of colours, every place", lambda c: 32, 3, shapes=COLOURS),
    *_byte_conv("of colours, 7x7", lambda c: 64, 7, strides=[2, 2], shapes=COLOURS),
    *forms("ConvInteger", IMAGES, X, of(lambda s: (s[1], s[1], 3, 3), True, "int8"), types=UINT8, pads=[1] * 4),
    *forms(
        "QLinearMatMul",
        SQUARES,
        *BYTES,
        *_weights(lambda s: (s[1], s[1])),
        _spread(lambda s: s[1]),
        number(128, "uint8"),
        types=UINT8,
    ),
    *forms("DynamicQuantizeMatMul", SQUARES, X, *_weights(lambda s: (s[1], s[1])), domain=MICROSOFT),
    *forms("QLinearAdd", ROWS, *BYTES, *BYTES, number(0.04), number(90, "uint8"), types=UINT8, domain=MICROSOFT),
    *forms(
        "QLinearAdd, images", IMAGES, *BYTES, *BYTES, number(0.04), number(90, "uint8"), types=UINT8, domain=MICROSOFT
    ),
    *forms("QLinearSigmoid", ROWS, *BYTES, number(1 / 256), number(0, "uint8"), types=UINT8, domain=MICROSOFT),
    *forms("QLinearLeakyRelu", ROWS, *BYTES, *BYTE, types=UINT8, domain=MICROSOFT, alpha=0.1),
    *forms(
        "QLinearGlobalAveragePool", IMAGES, *BYTES, number(0.005), number(50, "uint8"), types=UINT8, domain=MICROSOFT
    ),
    *forms(
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
    *forms("MaxPool, bytes", IMAGES, X, types=UINT8, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    *forms("Pad, bytes", IMAGES, X, fixed(lambda s: [0, 0, 1, 1, 0, 0, 1, 1]), types=UINT8),
    *forms("Concat, bytes", IMAGES, X, X, types=UINT8, axis=1),
]


def _blocks(s: Shape) -> int:
    return -(-s[1] // 32)


def _nibbles(shape: Callable[[Shape], Shape]) -> Given:
    return Given(lambda r, s, k: r.integers(0, 256, shape(s)).astype(np.uint8), True)


def _block_scales(shape: Callable[[Shape], Shape]) -> Given:
    return Given(lambda r, s, k: (r.random(shape(s)) / 8 / np.sqrt(s[1])).astype(np.float32), True)


NIBBLES = (_nibbles(lambda s: (s[1], _blocks(s), 16)), _block_scales(lambda s: (s[1] * _blocks(s),)))
TOKENS: tuple[Shape, ...] = ((1, 8), (1, 64), (4, 256), (3, 75))  # batch, positions
QUERIES: tuple[Shape, ...] = ((1, 4, 64), (1, 48, 256), (1, 256, 512), (3, 28, 96))  # batch, positions, features
CONTRIB = [
    *forms(
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
    *forms(
        "FusedGemm",
        SQUARES,
        X,
        of(lambda s: (s[1], s[1]), True, scale=True),
        of(channels, True),
        macs=lambda s: s[0] * s[1] ** 2,
        activation="Relu",
    ),
    *forms(
        "FusedConv",
        IMAGES,
        X,
        conv_weights(3),
        of(channels, True),
        macs=lambda s: 9 * pixels(s) * s[1] ** 2,
        pads=[1] * 4,
        activation="Relu",
    ),
    *forms(
        "MatMulNBits", SQUARES, X, *NIBBLES, macs=lambda s: s[0] * s[1] ** 2, K=width, N=width, bits=4, block_size=32
    ),
    *forms("MatMulNBits, a row", SQUARES, of(lambda s: (1, s[1])), *NIBBLES, K=width, N=width, bits=4, block_size=32),
    *forms(
        "GatherBlockQuantized",
        SQUARES,
        _nibbles(lambda s: (s[1], 16 * _blocks(s))),
        picked(lambda s: (s[0],), width),
        _block_scales(lambda s: (s[1], _blocks(s))),
        types=UINT8,
        bits=4,
        block_size=32,
        quantize_axis=1,
    ),
    *forms(
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
    *forms(
        "GroupQueryAttention, a step",
        CACHES,
        of(lambda s: (s[0], 1, 2 * s[1] * s[3])),
        *[of(lambda s: (s[0], 1, s[1] * s[3]))] * 2,
        *[of(lambda s: s)] * 2,
        Given(lambda r, s, k: np.full(s[0], s[2], np.int32)),
        fixed(lambda s: s[2] + 1, "int32"),
        outputs=3,
        num_heads=lambda s: 2 * s[1],
        kv_num_heads=width,
    ),
    *forms(
        "MultiHeadAttention, a step",
        CACHES,
        *[of(lambda s: (s[0], 1, s[1] * s[3]))] * 3,
        *[NONE] * 3,
        *[of(lambda s: s)] * 2,
        outputs=3,
        num_heads=width,
    ),
    *forms(
        "QAttention",
        QUERIES,
        X,
        of(lambda s: (s[2], 3 * s[2]), True, "int8"),
        of(lambda s: (3 * s[2],), True, "float32"),
        number(0.02),
        number(lambda s: 0.01 / np.sqrt(s[2])),
        NONE,
        number(50, "uint8"),
        number(0, "int8"),
        types=UINT8,
        num_heads=4,
    ),
    *forms(
        "CDist",
        ((8, 32), (128, 64), (1024, 256), (75, 333)),
        X,
        X,
        macs=lambda s: s[0] * s[0] * s[1],
        metric="euclidean",
    ),
    *forms("QLinearMul", ROWS, *BYTES, *BYTES, number(0.04), number(90, "uint8"), types=UINT8),
    replace(
        forms("QLinearSoftmax", ROWS, *BYTES, number(1 / 256), number(0, "uint8"), types=UINT8)[0],
        attrs={"axis": -1, "opset": 13},
    ),
    *forms("QLinearWhere", ROWS, typed("bool"), *[typed("uint8"), *BYTE] * 2, *BYTE),
    *forms("QLinearConcat", IMAGES, *BYTE, *BYTES, *BYTES, types=UINT8, axis=1),
    *forms(
        "QGemm",
        SQUARES,
        *BYTES,
        *_weights(lambda s: (s[1], s[1])),
        of(channels, True, "int32"),
        _spread(width),
        number(128, "uint8"),
        types=UINT8,
        transB=1,
    ),
    *forms(
        "MatMulIntegerToFloat",
        SQUARES,
        X,
        of(lambda s: (s[1], s[1]), True, "int8"),
        number(0.02),
        number(0.01),
        number(50, "uint8"),
        number(0, "int8"),
        types=UINT8,
    ),
    *forms(
        "DynamicQuantizeLSTM",
        SEQUENCES,
        X,
        *[of(lambda s: (1, s[2], 4 * s[2]), True, "int8")] * 2,
        *[NONE] * 5,
        *[number(lambda s: [0.015 / np.sqrt(s[2])]), number(lambda s: [0], "int8")] * 2,
        hidden_size=lambda s: s[2],
    ),
    *forms(
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
