"""Generate attention as exporters write it and as one operator, and feed-forward blocks around it."""

from __future__ import annotations

from typing import Any

import numpy as np

from rammer_testing.fuzz import sizes
from rammer_testing.fuzz.sketch import FLOAT, HALF, I64, Sketch, Unfit


def start(s: Sketch) -> None:
    r = s.random
    heads = r.choice((1, 2, 3, 4, 6, 8, 12))
    width = heads * r.choice((4, 7, 8, 16, 24, 32, 40, 64))
    s.input((sizes.batch(r), sizes.sequence(r), min(width, 768)), r.choice((FLOAT,) * 12 + (HALF,)))


def dense(s: Sketch, x: str, n: int, *, bias: bool) -> str:
    """Add x W (+ b) over the last axis."""
    *lead, terms = s.shape(x)
    y = s.node("MatMul", x, s.weights(terms, n, dtype=s.dtype(x)), work=float(np.prod(lead)) * terms * n)
    return s.node("Add", y, s.weights(n, terms=4, dtype=s.dtype(x))) if bias else y


def attend(s: Sketch) -> None:
    """Add self-attention: one product for queries, keys and values, or three; split heads; a mask; a product behind."""
    x = s.floats(3)
    b, length, width = s.shape(x)
    fitting = [h for h in (1, 2, 3, 4, 6, 8, 12) if width % h == 0]
    heads, dtype, bias = s.random.choice(fitting), s.dtype(x), s.chance(0.6)
    size = width // heads
    form = s.random.choice(("split", "split", "view", "view first", "separate"))
    if form == "separate":
        parts = [split_heads(s, dense(s, x, width, bias=bias), heads) for _ in range(3)]
    elif form == "split":
        joint = dense(s, x, 3 * width, bias=bias)
        parts = [split_heads(s, p, heads) for p in s.multi("Split", joint, outputs=3, axis=2, num_outputs=3)]
    elif form == "view first":
        flat = s.node("Reshape", x, s.constant([b * length, width]))
        joint = s.node("Reshape", dense(s, flat, 3 * width, bias=bias), s.constant([b, length, 3 * width]))
        parts = [split_heads(s, p, heads) for p in s.multi("Split", joint, outputs=3, axis=2, num_outputs=3)]
    else:
        joint = s.node("Reshape", dense(s, x, 3 * width, bias=bias), s.constant([b, length, 3, heads, size]))
        joint = s.node("Transpose", joint, perm=[2, 0, 3, 1, 4])
        parts = [s.node("Gather", joint, s.constant(n), axis=0) for n in range(3)]
    q, k, v = parts
    products = b * heads * length * length * size
    scores = s.node("MatMul", q, s.node("Transpose", k, perm=[0, 1, 3, 2]), work=products)
    scores = s.node("Mul", scores, s.constant(size**-0.5, dtype))
    if s.chance(0.4):
        keep = np.tril(np.ones((length, length), bool))
        scores = s.node("Where", s.constant(keep), scores, s.constant(-1e4, dtype))
    elif s.chance(0.3):
        scores = s.node("Add", scores, s.input((b, 1, 1, length), dtype, -1, 1))
    mixed = s.node("MatMul", s.node("Softmax", scores, axis=-1), v, work=products)
    mixed = s.node("Transpose", mixed, perm=[0, 2, 1, 3])
    y = dense(s, s.node("Reshape", mixed, s.constant([b, length, width])), width, bias=bias)
    if s.chance(0.6):
        s.node("Add", x, y)


def split_heads(s: Sketch, x: str, heads: int) -> str:
    """Reshape [batch, length, width] to [batch, heads, length, size]."""
    b, length, width = s.shape(x)
    return s.node("Transpose", s.node("Reshape", x, s.constant([b, length, heads, width // heads])), perm=[0, 2, 1, 3])


def operator(s: Sketch) -> None:
    """Add ONNX's Attention; keys and values may have fewer heads than queries."""
    x = s.floats(3)
    b, length, width = s.shape(x)
    heads = s.random.choice([h for h in (1, 2, 3, 4, 6, 8) if width % h == 0])
    kv_heads = s.random.choice(sizes.divisors(heads))
    kv = kv_heads * (width // heads)
    keys = [dense(s, x, kv, bias=False) for _ in range(2)]
    attrs: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": kv_heads, "is_causal": int(s.chance(0.4))}
    s.node("Attention", x, *keys, work=2 * b * heads * length * length * width // heads, **attrs)


def cross(s: Sketch) -> None:
    """Add cross-attention: queries on another sequence."""
    x = s.floats(3)
    b, _, width = s.shape(x)
    q = s.input((b, sizes.extent(s.random, 40), width), s.dtype(x), -1, 1)
    n, m = s.shape(q)[1], s.shape(x)[1]
    scores = s.node("MatMul", q, s.node("Transpose", x, perm=[0, 2, 1]), work=b * n * m * width)
    scaled = s.node("Div", scores, s.constant(width**0.5, s.dtype(x)))
    s.node("MatMul", s.node("Softmax", scaled, axis=2), x, work=b * n * m * width)


def feed_forward(s: Sketch) -> None:
    x = s.floats(3)
    width = s.shape(x)[-1]
    y = dense(s, x, sizes.channels(s.random), bias=True)
    form = s.random.choice(("gelu", "erf", "relu", "silu"))
    if form == "gelu":
        y = s.node("Gelu", y, approximate=s.random.choice(("none", "tanh")))
    elif form == "erf":
        half, dtype = s.node("Erf", s.node("Div", y, s.constant(2**0.5, s.dtype(y)))), s.dtype(y)
        y = s.node("Mul", s.node("Mul", y, s.node("Add", half, s.constant(1.0, dtype))), s.constant(0.5, dtype))
    elif form == "relu":
        y = s.node("Relu", y)
    else:
        y = s.node("Mul", y, s.node("Sigmoid", y))
    s.node("Add", x, dense(s, y, width, bias=True))


def norm(s: Sketch) -> None:
    x = s.floats(3)
    n, dtype = s.shape(x)[-1], s.dtype(x)
    numbers = [s.constant(s.numpy.uniform(low, 1.5, n), dtype) for low in (0.5, -1.0)]
    s.node("LayerNormalization", x, *numbers, axis=-1)


def embed(s: Sketch) -> None:
    """Add embeddings of tokens and positions, summed."""
    b, length = sizes.batch(s.random), sizes.sequence(s.random)
    width, words = sizes.channels(s.random), sizes.extent(s.random, 2000, 2)
    tokens = s.input((b, length), I64, 0, words - 1)
    found = s.node("Gather", s.weights(words, width, terms=1), tokens, axis=0)
    s.node("Add", found, s.weights(length, width, terms=1))


def cached(s: Sketch) -> None:
    """Add one step of a decoder: cached keys, with a new one appended."""
    x = s.floats(3)
    b, length, width = s.shape(x)
    if length > 4:
        raise Unfit
    before = s.input((b, sizes.sequence(s.random), width), s.dtype(x), -1, 1)
    keys = s.node("Concat", before, dense(s, x, width, bias=False), axis=1)
    m = s.shape(keys)[1]
    scores = s.node("MatMul", x, s.node("Transpose", keys, perm=[0, 2, 1]), work=b * length * m * width)
    s.node("MatMul", s.node("Softmax", scores, axis=-1), keys, work=b * length * m * width)


STEPS = ((6, attend), (2, operator), (1, cross), (3, feed_forward), (2, norm), (1, embed), (1, cached))
SIZE = (1, 3)
