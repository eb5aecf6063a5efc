"""Import com.microsoft attention: heads side by side in rows, several kinds of masks, and caches."""

from __future__ import annotations

from math import sqrt

import numpy as np

from rammer.frontend.onnx.handlers.contrib import contrib
from rammer.frontend.onnx.handlers.indexing import inside, with_rows
from rammer.frontend.onnx.handlers.quantized import scaled, shifted
from rammer.frontend.onnx.handlers.rotary import rotated
from rammer.frontend.onnx.node import Node
from rammer.ir.tensor import DType, TensorId


@contrib("MultiHeadAttention", inputs=(3, 8), num_heads=int, mask_filter_value=-10000.0, scale=0.0, unidirectional=0)
def multi_head_attention(n: Node) -> list[TensorId]:
    heads, shape = n.attrs["num_heads"] or 0, n.shape()
    if heads < 1 or len(shape) != 3 or shape[2] % heads or not n.has(2):
        raise n.fail(f"{heads} heads of query {n.type(n.tensor(0))}", hint="query, key and value need rank 3")
    bias: list[TensorId | None] = [None] * 3
    if n.has(3):
        widths = [n.shape(0)[-1]] * 2 + [n.shape(3)[0] - 2 * shape[2]]
        starts = [0, shape[2], 2 * shape[2]]
        bias = [n.slice(n.tensor(3), (start,), (width,)) for start, width in zip(starts, widths, strict=True)]
    q, k, v = (_heads(n, n.tensor(p), heads, bias[p]) for p in range(3))
    old = 0
    if n.has(6) and n.has(7):
        old = n.shape(6)[2]
        k, v = n.concat([n.tensor(6), k], 2), n.concat([n.tensor(7), v], 2)
    return [_attended(n, q, k, v, _scores_mask(n, 4, 5, q, k, old)), k, v]


@contrib(
    "Attention",
    inputs=(2, 6),
    num_heads=int,
    unidirectional=0,
    qkv_hidden_sizes=tuple,
    mask_filter_value=-10000.0,
    scale=0.0,
    do_rotary=0,
    rotary_embedding_dim=0,
    past_present_share_buffer=0,
)
def attention(n: Node) -> list[TensorId]:
    """Compute attention whose queries, keys and values are one product of the input."""
    made = n.product(n.tensor(0), n.tensor(1))
    return _attention(n, n.add("add", made, n.tensor(2)) if n.has(2) else made, 3, 4, 5)


@contrib(
    "QAttention",
    inputs=(5, 9),
    num_heads=int,
    unidirectional=0,
    mask_filter_value=-10000.0,
    scale=0.0,
    do_rotary=0,
    past_present_share_buffer=0,
)
def q_attention(n: Node) -> list[TensorId]:
    """Compute attention like Attention, with a product of bytes."""
    total = n.product(shifted(n, n.tensor(0), n.optional(6), -2), shifted(n, n.tensor(1), n.optional(7), -1))
    made = n.add("add", scaled(n, total, (n.tensor(3), -2), (n.tensor(4), -1)), n.tensor(2))
    return _attention(n, made, 5, 8, None)


def _attention(n: Node, made: TensorId, mask: int, past: int, bias: int | None) -> list[TensorId]:
    """Compute attention from queries, keys and values side by side. Others are places of operands."""
    heads, (batch, _, _), weight = n.attrs["num_heads"] or 0, n.shape(), n.shape(1)
    sizes = n.attrs.get("qkv_hidden_sizes") or (weight[1] // 3,) * 3
    unfit = len(sizes) != 3 or min(sizes) < 1 or sum(sizes) != weight[1] or sizes[0] != sizes[1]
    other = n.attrs["do_rotary"] or n.attrs["past_present_share_buffer"]
    if heads < 1 or unfit or any(s % heads for s in sizes) or other:
        raise n.fail(f"{heads} heads of sizes {list(sizes)} from weight {n.type(n.tensor(1))} are not supported")
    starts = (0, sizes[0], 2 * sizes[0])
    q, k, v = (_heads(n, n.cut(made, 2, start, size), heads, None) for start, size in zip(starts, sizes, strict=True))
    old = 0
    if n.has(past):
        _, _, _, old, size = n.shape(past)
        cut = (1, batch, heads, old, size)
        before = [n.reshape(n.slice(n.tensor(past), (p, 0, 0, 0, 0), cut), cut[1:]) for p in range(2)]
        k, v = n.concat([before[0], k], 2), n.concat([before[1], v], 2)
    results = [_attended(n, q, k, v, _scores_mask(n, mask, bias, q, k, old))]
    if n.wants(1):
        results.append(n.concat([n.reshape(t, (1, *n.type(t).shape)) for t in (k, v)], 0))
    return results


@contrib(
    "GroupQueryAttention",
    inputs=(7, 11),
    num_heads=int,
    kv_num_heads=int,
    scale=0.0,
    softcap=0.0,
    local_window_size=-1,
    do_rotary=0,
    rotary_interleaved=0,
    smooth_softmax=-1,
    qk_output=0,
    k_quant_type="NONE",
    v_quant_type="NONE",
    kv_cache_bit_width=0,
)
def group_query_attention(n: Node) -> list[TensorId]:
    """Compute causal attention with a cache: new keys follow those of each sequence, whose length is a run-time value.

    `total_sequence_length` decides the cache's shape, so it must be known at compile time.
    """
    heads, groups = n.attrs["num_heads"] or 0, n.attrs["kv_num_heads"] or 0
    batch, length, width = n.shape()
    packed = not n.has(1)
    parts = heads + 2 * groups if packed else heads
    other = (n.attrs[name] for name in ("qk_output", "kv_cache_bit_width"))  # types of quantized caches follow these
    if min(heads, groups) < 1 or heads % groups or width % parts or n.attrs["smooth_softmax"] > 0 or any(other):
        raise n.fail(f"{heads} heads in {groups} groups of query {n.type(n.tensor(0))} are not supported")
    size = width // parts
    if packed:
        cuts = ((0, heads), (heads, groups), (heads + groups, groups))
        q, k, v = (_heads(n, n.cut(n.tensor(0), 2, at * size, many * size), many, None) for at, many in cuts)
    else:
        q, k, v = (_heads(n, n.tensor(p), many, None) for p, many in ((0, heads), (1, groups), (2, groups)))
    total = int(n.scalar(6, "total_sequence_length"))
    extent = max(total, n.shape(3)[2] if n.has(3) else 0)
    if not length <= total:
        raise n.fail(f"total_sequence_length is {total}, less than the {length} that are new")
    ends = n.add("add", n.reshape(n.cast(n.tensor(5), DType.I64), (batch,)), n.constant(1))
    first = n.constant(np.zeros(batch, np.int64))
    if length < total:  # decoding, not a prompt
        first = inside(n, n.add("sub", ends, n.constant(length)), extent - length + 1)
    places = n.add("add", n.reshape(first, (batch, 1)), n.constant(np.arange(length)))
    if n.attrs["do_rotary"]:
        positions, pairs = n.tensor(9) if n.has(9) else places, bool(n.attrs["rotary_interleaved"])
        tables = [n.add("gather", n.tensor(p), positions, axis=0) for p in (7, 8)]
        q, k = (rotated(n, t, *tables, along=2, interleaved=pairs) for t in (q, k))
    k, v = (_cached(n, n.tensor(p) if n.has(p) else None, t, first, extent) for p, t in ((3, k), (4, v)))
    at = n.constant(np.arange(extent))
    here = n.reshape(places, (batch, 1, length, 1))
    seen = n.add("less_equal", at, here)
    if (window := n.attrs["local_window_size"]) >= 0:
        seen = n.add("and", seen, n.add("less", n.add("sub", here, n.constant(window)), at))
    grouped = n.reshape(q, (batch, groups, heads // groups * length, size))
    scores = n.product(n.add("mul", grouped, n.like(n.attrs["scale"] or 1 / sqrt(size), q)), k, trans_b=True)
    scores = n.reshape(scores, (batch, heads, length, extent))
    if cap := n.attrs["softcap"]:
        scores = n.add("mul", n.add("tanh", n.add("mul", scores, n.like(1 / cap, scores))), n.like(cap, scores))
    scores = n.add("add", scores, n.tensor(10)) if n.has(10) else scores
    scores = n.add("where", seen, scores, n.like(-np.inf, scores))
    weights = n.reshape(n.add("softmax", scores, axis=3), (batch, groups, heads // groups * length, extent))
    return [_rows(n, n.reshape(n.product(weights, v), (batch, heads, length, n.type(v).shape[3]))), k, v]


def _heads(n: Node, x: TensorId, heads: int, bias: TensorId | None) -> TensorId:
    """Return [batch, length, heads · size] as [batch, heads, length, size]; a tensor of that shape as it is."""
    shape = n.type(x).shape
    if len(shape) == 4 and shape[1] == heads:
        if bias is None:
            return x
        return n.add("add", x, n.reshape(bias, (heads, 1, shape[3])))
    if len(shape) != 3 or shape[2] % heads:
        raise n.fail(f"{n.type(x)} has no {heads} heads", hint="keys and values of rank 3, or of rank 4, are supported")
    x = n.add("add", x, bias) if bias is not None else x
    return n.transpose(n.reshape(x, (*shape[:2], heads, shape[2] // heads)), (0, 2, 1, 3))


def _rows(n: Node, x: TensorId) -> TensorId:
    batch, heads, length, size = n.type(x).shape
    return n.reshape(n.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))


def _attended(n: Node, q: TensorId, k: TensorId, v: TensorId, masks: list[TensorId]) -> TensorId:
    size = n.type(q).shape[3]
    scores = n.product(n.add("mul", q, n.like(n.attrs["scale"] or 1 / sqrt(size), q)), k, trans_b=True)
    for mask in masks:
        scores = n.add("add", scores, mask)
    return _rows(n, n.product(n.add("softmax", scores, axis=3), v))


def _scores_mask(n: Node, mask: int, bias: int | None, q: TensorId, k: TensorId, old: int) -> list[TensorId]:
    """Return what is added to scores: the bias, `mask_filter_value` where the mask is zero, -inf above the diagonal."""
    (batch, _, length, _), extent = n.type(q).shape, n.type(k).shape[2]
    found = [n.tensor(bias)] if bias is not None and n.has(bias) else []
    if n.has(mask):
        kept, shape = n.tensor(mask), n.shape(mask)
        if shape == (batch,):  # lengths
            kept = n.add("less", n.constant(np.arange(extent), n.type(kept).dtype), n.reshape(kept, (batch, 1)))
        elif shape in ((batch, extent), (batch, length, extent)):
            kept = n.add("less", n.constant(0, n.type(kept).dtype), kept)
        else:
            raise n.fail(f"mask {n.type(kept)} is not supported", hint=f"{[batch, extent]} is, or {[batch]}")
        kept = n.reshape(kept, (batch, 1, length if len(shape) == 3 else 1, extent))
        found.append(n.add("where", kept, n.like(0, q), n.like(n.attrs["mask_filter_value"], q)))
    if n.attrs["unidirectional"]:
        later = np.arange(extent) > old + np.arange(length)[:, None]
        found.append(n.like_array(np.where(later, -np.inf, 0.0), q))
    return found


def _cached(n: Node, past: TensorId | None, new: TensorId, first: TensorId, extent: int) -> TensorId:
    """Return [batch, groups, extent, size]: new rows from `first` on, and the past's rows elsewhere."""
    batch, old = n.type(new).shape[0], 0 if past is None else n.type(past).shape[2]
    base, missing = past or n.like(0, new), (0, 0, 0, 0, 0, 0, extent - old, 0)
    if past is not None and extent > old:
        base = n.add("pad", past, pads=missing, mode="constant", value=0.0)
    source = n.add("sub", n.constant(np.arange(extent)), n.reshape(first, (batch, 1)))
    found = with_rows(n, base, new, source, 2)
    if past is None or extent > old:
        return found
    return n.builder.could_update(found, past, new, first, moves=(0, 1, -1, 3), how="linear")
