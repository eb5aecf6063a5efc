"""Import rotary position embeddings: the pairs of numbers of each head are rotated by the angles of their position.

Source: Su et al., RoFormer (arXiv 2104.09864), §3.2.
"""

from __future__ import annotations

import numpy as np

from rammer.frontend.onnx.handlers.contrib import contrib
from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, TensorId


@handles("RotaryEmbedding", since=23)
def rotary_embedding(n: Node) -> TensorId:
    cos, sin = (n.add("gather", n.tensor(p), n.tensor(3), axis=0) if n.has(3) else n.tensor(p) for p in (1, 2))
    return _of_heads(n, cos, sin, n.attrs["num_heads"] or 0)


@contrib(
    "RotaryEmbedding",
    inputs=(4, 4),
    interleaved=0,
    num_heads=0,
    rotary_embedding_dim=0,
    scale=1.0,
    is_packed_batching=0,
)
def rotary_embedding_of_positions(n: Node) -> TensorId:
    shape, places, table = n.shape(), n.shape(1), n.shape(2)
    if n.attrs["scale"] != 1 or n.attrs["is_packed_batching"] or len(shape) not in (3, 4) or len(table) != 2:
        raise n.fail(f"{n.type(n.tensor(0))}, scale {n.attrs['scale']} is not supported", hint="rank 3 or 4, scale 1")
    length, given = shape[-2], n.tensor(1)
    if places == (1,):
        given = n.reshape(n.add("add", given, n.constant([range(length)], DType.I64)), (1, length))
    elif places != (shape[0], length):
        raise n.fail(f"position_ids {n.type(given)} do not fit {n.type(n.tensor(0))}")
    cos, sin = (n.add("gather", n.tensor(p), given, axis=0) for p in (2, 3))
    return _of_heads(n, cos, sin, n.attrs["num_heads"] or shape[-1] // max(2 * table[1], 1))


def _of_heads(n: Node, cos: TensorId, sin: TensorId, heads: int) -> TensorId:
    """Rotate an operand [batch, heads, length, size], or [batch, length, heads * size]."""
    x, shape, width = n.tensor(0), n.shape(), 2 * n.type(cos).shape[-1]
    if len(shape) == 3 and heads > 0 and shape[2] % heads == 0:
        x = n.reshape(x, (*shape[:2], heads, shape[2] // heads))
    if n.type(x).rank != 4 or n.attrs["rotary_embedding_dim"] not in (0, None, width):
        raise n.fail(f"{heads} heads of {n.type(x)} do not fit {n.type(cos)}")
    made = rotated(n, x, cos, sin, along=1 if len(shape) == 3 else 2, interleaved=bool(n.attrs["interleaved"]))
    return n.reshape(made, shape)


def rotated(n: Node, x: TensorId, cos: TensorId, sin: TensorId, *, along: int, interleaved: bool) -> TensorId:
    """Rotate pairs of the last dimension of x, of rank 4, by the angles of positions along a dimension.

    Tables are [batch or 1, length, pairs]. (a, b) becomes (a cos - b sin, b cos + a sin). The two numbers of a pair are
    adjacent if `interleaved`; else one is in the first half of what is rotated, and one in the second half.
    """
    shape, table = n.type(x).shape, n.type(cos).shape
    if n.type(sin).shape != table or table[:-1] not in ((shape[0], shape[along]), (1, shape[along])):
        raise n.fail(f"tables {n.type(cos)} and {n.type(sin)} do not fit {n.type(x)}")
    half, pair = table[2], 4 if interleaved else 3
    if shape[3] < 2 * half:
        raise n.fail(f"tables {n.type(cos)} do not fit heads of {shape[3]}")
    numbers = (*shape[:3], half, 2) if interleaved else (*shape[:3], 2, half)
    own = n.reshape(n.cut(x, 3, 0, 2 * half), numbers)
    ways = tuple(-1 if d == pair else 1 for d in range(5))
    other = n.add("slice", own, starts=tuple(int(way < 0) for way in ways), steps=ways, shape=numbers)
    places = (table[0], *(table[1] if d == along else 1 for d in (1, 2)))
    c, s = (n.reshape(t, (*places, half, 1) if interleaved else (*places, 1, half)) for t in (cos, sin))
    signs = n.like_array(np.array([-1.0, 1.0]).reshape((1, 2) if interleaved else (2, 1)), x)
    made = n.add("add", n.add("mul", own, c), n.add("mul", other, n.add("mul", s, signs)))
    made = n.reshape(made, (*shape[:3], 2 * half))
    return n.concat([made, n.cut(x, 3, 2 * half, shape[3] - 2 * half)], 3) if shape[3] > 2 * half else made
