"""Draw random numbers: each is a hash of its place, the node, the seed and the number of the run.

Known as: a counter-based generator. Programs stay functions of their inputs: one that draws has the input `random_run`,
and another number there gives another draw. Sessions count their runs. A node without a seed gets
one of its model (`Source`), so that all imports of a model draw alike.
"""

from __future__ import annotations

from math import pi, prod
from zlib import crc32

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.tensors import element_type
from rammer.ir.graph import RANDOM_RUN
from rammer.ir.tensor import DType, Shape, TensorId

_BITS = 24  # of a draw: as many as a float32 holds


@handles("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def random(n: Node) -> TensorId:
    a = n.attrs
    shape = n.shape() if n.op.endswith("Like") else tuple(a["shape"])
    code = a["dtype"]
    dtype = element_type(code, "attribute 'dtype'", node=n.label, op=n.op) if code else n.dtype()
    if not dtype.is_float or any(e < 0 for e in shape) or len(shape) > n.limits.rank:
        raise n.fail(f"random {dtype.value}{list(shape)[:20]}", hint="a float type, and a shape")
    first, second = (_unit(n, bits) for bits in _draws(n, shape)[:2])
    if "Uniform" in n.op:
        width = n.like(a["high"] - a["low"], first)
        return n.cast(n.add("add", n.add("mul", first, width), n.like(a["low"], first)), dtype)
    # Box and Muller's transform; the logarithm's operand is never 0
    radius = n.add("sqrt", n.add("mul", n.add("log", n.add("sub", n.like(1, first), first)), n.like(-2, first)))
    normal = n.add("mul", radius, n.add("cos", n.add("mul", second, n.like(2 * pi, second))))
    return n.cast(n.add("add", n.add("mul", normal, n.like(a["scale"], normal)), n.like(a["mean"], normal)), dtype)


@handles("Multinomial")
def multinomial(n: Node) -> TensorId:
    """Draw classes by unnormalised log-probabilities: the highest after adding noise of Gumbel's distribution."""
    count, dtype = n.attrs["sample_size"], element_type(n.attrs["dtype"], "attribute 'dtype'", node=n.label, op=n.op)
    if len(n.shape()) != 2 or count < 1 or dtype.is_float:
        raise n.fail(f"{count} samples of {dtype.value} from {n.type(n.tensor(0))}", hint="a matrix, and integers")
    rows, columns = n.shape()
    unit = _unit(n, _draws(n, (rows, count, columns))[0])
    unit = n.add("add", unit, n.like(2.0 ** -(_BITS + 1), unit))
    noise = n.add("neg", n.add("log", n.add("neg", n.add("log", unit))))
    scores = n.add("add", n.reshape(n.cast(n.tensor(0), DType.F32), (rows, 1, columns)), noise)
    return n.cast(n.add("arg_max", scores, axis=2, keepdims=False, select_last_index=False), dtype)


@handles("Bernoulli", since=15)
def bernoulli(n: Node) -> TensorId:
    """Draw 1 with each element's probability. (The standard's function body draws 0 with it.)"""
    code = n.attrs["dtype"]
    dtype = element_type(code, "attribute 'dtype'", node=n.label, op=n.op) if code else n.dtype()
    return n.cast(n.add("less", _unit(n, _draws(n, n.shape())[0]), n.cast(n.tensor(0), DType.F32)), dtype)


def kept(n: Node, shape: Shape, ratio: float) -> TensorId:
    """Draw which elements stay, where each is dropped with this probability."""
    unit = _unit(n, _draws(n, shape)[0])
    return n.add("less_equal", n.like(ratio, unit), unit)


def _unit(n: Node, bits: TensorId) -> TensorId:
    """Return numbers in [0, 1) from 32 random bits each."""
    high = n.cast(n.add("shift_right", bits, n.constant(32 - _BITS, DType.U32)), DType.F32)
    return n.add("mul", high, n.like(2.0**-_BITS, high))


def _draws(n: Node, shape: Shape) -> list[TensorId]:
    """Return four tensors of 32 random bits, by the hash pcg4d of Jarzynski and Olano (2020)."""
    if prod(shape) >= 1 << 32 or prod(shape) * 4 > n.limits.tensor_bytes:
        raise n.fail(f"draws {prod(shape)} numbers", hint="raise Limits.tensor_bytes; 2^32 are the most")
    if RANDOM_RUN not in n.builder.types:
        n.builder.input(RANDOM_RUN, (), DType.I64)
    given = n.attrs.get("seed")
    seed = n.builder.secret if given is None else crc32(np.float32(given).tobytes())
    place = n.constant(np.arange(prod(shape)).reshape(shape), DType.U32)
    number = len(n.builder.types)  # no other draw of the graph has the same
    v = [place, n.cast(RANDOM_RUN, DType.U32), *(n.constant(k, DType.U32) for k in (seed, number))]
    v = [n.add("add", n.add("mul", t, n.constant(1664525, DType.U32)), n.constant(1013904223, DType.U32)) for t in v]
    for last in (False, True):
        for k, (a, b) in enumerate(((1, 3), (2, 0), (0, 1), (1, 2))):
            v[k] = n.add("add", v[k], n.add("mul", v[a], v[b]))
        if not last:
            v = [n.add("bit_xor", t, n.add("shift_right", t, n.constant(16, DType.U32))) for t in v]
    return v
