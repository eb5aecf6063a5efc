"""Count n-grams of numbers, with or without gaps."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import Array, DType, TensorId


@handles("TfIdfVectorizer")
def tf_idf_vectorizer(n: Node) -> TensorId:
    """Count how often each n-gram of the pool is in a row, at all positions and gaps; weighted, or counted once."""
    a, shape = n.attrs, n.shape()
    if not a["pool_int64s"]:
        raise n.fail("the pool holds strings", hint="pool_int64s is supported")
    if len(shape) not in (1, 2) or a["mode"] not in ("TF", "IDF", "TFIDF") or a["max_skip_count"] < 0:
        raise n.fail(f"{n.type(n.tensor(0))} with mode {a['mode']!r} and gaps of {a['max_skip_count']}")
    length = shape[-1]
    x = n.reshape(n.cast(n.tensor(0), DType.I64), (shape[0] if len(shape) == 2 else 1, length))
    parts: list[TensorId] = []
    for size, grams in enumerate(_runs(n), 1):
        if not grams.size:
            continue
        wanted = a["min_gram_length"] <= size <= a["max_gram_length"]
        gaps = range(min(a["max_skip_count"], length) + 1 if size > 1 else 1) if wanted else ()
        found = [n.constant(np.zeros((n.type(x).shape[0], len(grams))), DType.F32)]
        spread = ((gap + 1, length - (size - 1) * (gap + 1)) for gap in gaps)
        found += [_counted(n, x, grams, step, places) for step, places in spread if places > 0]
        parts.append(reduce(lambda p, q: n.add("add", p, q), found))
    counts = n.concat(parts, 1)
    indexes, weights = a["ngram_indexes"], a["weights"] or ()
    width = max(indexes, default=-1) + 1
    if len(indexes) != n.type(counts).shape[1] or min(indexes) < 0 or len(set(indexes)) != len(indexes):
        raise n.fail(f"{len(indexes)} ngram_indexes for {n.type(counts).shape[1]} runs", hint="each needs its own")
    if width * 8 > n.limits.fold_bytes or len(weights) not in (0, len(indexes)):
        raise n.fail(f"{len(weights)} weights of {len(indexes)} runs in {width} columns")
    if a["mode"] == "IDF":
        counts = n.cast(n.add("less", n.like(0, counts), counts), DType.F32)
    if a["mode"] != "TF" and weights:
        counts = n.add("mul", counts, n.constant(weights, DType.F32))
    source = np.full(width, len(indexes))
    source[list(indexes)] = np.arange(len(indexes))
    padded = n.add("pad", counts, pads=(0, 0, 0, 1), mode="constant", value=0.0)
    return n.reshape(n.add("gather", padded, n.constant(source), axis=1), (*shape[:-1], width))


def _runs(n: Node) -> list[Array]:
    """Return the n-grams of the pool by size, from 1 on, one per row."""
    pool = np.array(n.attrs["pool_int64s"], np.int64)
    starts = [*n.attrs["ngram_counts"], len(pool)]
    if starts[0] != 0 or any(b < a for a, b in pairwise(starts)):
        raise n.fail(f"ngram_counts is {starts[:-1]} for a pool of {len(pool)}")
    runs = []
    for size, (start, stop) in enumerate(pairwise(starts), 1):
        if (stop - start) % size:
            raise n.fail(f"{stop - start} numbers are no runs of {size}")
        runs.append(pool[start:stop].reshape(-1, size))
    return runs


def _counted(n: Node, x: TensorId, grams: Array, step: int, places: int) -> TensorId:
    """Return [rows, n-grams]: at how many positions each n-gram begins."""
    rows = n.type(x).shape[0]
    met = []
    for k in range(grams.shape[1]):
        part = n.reshape(n.cut(x, 1, k * step, places), (rows, places, 1))
        met.append(n.add("equal", part, n.constant(grams[:, k])))
    return n.reduce(n.cast(reduce(lambda p, q: n.add("and", p, q), met), DType.F32), "sum", (1,), keepdims=False)
