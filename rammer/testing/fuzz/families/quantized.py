"""Quantised operators, and float operators between Dequantize and Quantize."""

from __future__ import annotations

from math import prod

from rammer.testing.fuzz import sizes
from rammer.testing.fuzz.families.elementwise import typical
from rammer.testing.fuzz.families.windows import window
from rammer.testing.fuzz.sketch import FLOAT, I8, I32, U8, Sketch, Unfit


def start(s: Sketch) -> None:
    s.input(typical(s), FLOAT)


def scale(s: Sketch, shape: tuple[int, ...] = ()) -> str:
    """Scales that put no result on a tie."""
    return s.constant(s.numpy.uniform(0.011, 0.047, shape), FLOAT)


def zero(s: Sketch, dtype: int, shape: tuple[int, ...] = ()) -> str:
    return s.constant(s.numpy.integers(100, 150, shape) if dtype == U8 else s.numpy.integers(-9, 9, shape), dtype)


def bytes_of(s: Sketch, shape: tuple[int, ...], dtype: int) -> str:
    return s.constant(s.numpy.integers(*((0, 256) if dtype == U8 else (-127, 128)), shape), dtype)


def quantize(s: Sketch) -> None:
    x, dtype = s.floats(), s.random.choice((U8, I8))
    if s.dtype(x) != FLOAT:
        raise Unfit
    if s.rank(x) > 1 and s.chance(0.25):
        axis = s.random.randrange(s.rank(x))
        along = (s.shape(x)[axis],)
        s.node("QuantizeLinear", x, scale(s, along), zero(s, dtype, along), axis=axis)
    else:
        s.node("QuantizeLinear", x, scale(s), zero(s, dtype))


def quantized(s: Sketch, *ranks: int) -> str:
    """A value of bytes of one of these ranks, made if there is none. Raises Unfit."""
    try:
        return s.pick(lambda k: k.dtype in (U8, I8) and (not ranks or k.rank in ranks))
    except Unfit:
        x = s.pick(lambda k: k.dtype == FLOAT and (not ranks or k.rank in ranks))
        return s.node("QuantizeLinear", x, scale(s), zero(s, s.random.choice((U8, I8))))


def dequantize(s: Sketch) -> None:
    x = quantized(s)
    s.node("DequantizeLinear", x, scale(s), zero(s, s.dtype(x)))


def dynamic(s: Sketch) -> None:
    x = s.pick(lambda k: k.dtype == FLOAT)
    y, step, middle = s.multi("DynamicQuantizeLinear", x, outputs=3)
    s.node("DequantizeLinear", y, step, middle)


def integer_product(s: Sketch) -> None:
    x = quantized(s, 2, 3)
    *lead, terms = s.shape(x)
    n, dtype = sizes.channels(s.random), s.random.choice((U8, I8))
    work = prod(lead) * terms * n
    if s.chance(0.5):
        zeros = [zero(s, s.dtype(x)), zero(s, dtype)] if s.chance(0.7) else []
        y = s.node("MatMulInteger", x, bytes_of(s, (terms, n), dtype), *zeros, work=work)
        s.node("Mul", s.node("Cast", y, to=FLOAT), s.constant(1e-4 / terms**0.5, FLOAT))
    else:
        w, out = bytes_of(s, (terms, n), dtype), s.random.choice((U8, I8))
        to = s.constant(float(s.numpy.uniform(0.9, 1.3)) * terms**0.5 * 0.05, FLOAT)
        s.node(
            "QLinearMatMul", x, scale(s), zero(s, s.dtype(x)), w, scale(s), zero(s, dtype), to, zero(s, out), work=work
        )


def integer_convolution(s: Sketch) -> None:
    x = quantized(s, 4)
    _, into, *inner = s.shape(x)
    group = s.random.choice((1, 1, into))
    out = sizes.channels(s.random, 128) if group == 1 else group
    attrs = window(s, tuple(inner))
    terms = into // group * prod(attrs["kernel_shape"])
    dtype = s.random.choice((U8, I8))
    w = bytes_of(s, (out, into // group, *attrs["kernel_shape"]), dtype)
    if s.chance(0.4):
        y = s.node("ConvInteger", x, w, zero(s, s.dtype(x)), zero(s, dtype), group=group, **attrs)
        y = s.node("Mul", s.node("Cast", y, to=FLOAT), s.constant(1e-4 / terms**0.5, FLOAT))
    else:
        to = s.constant(float(s.numpy.uniform(0.9, 1.3)) * terms**0.5 * 0.05, FLOAT)
        per_channel = (out,) if s.chance(0.4) else ()
        operands = [x, scale(s), zero(s, s.dtype(x)), w, scale(s, per_channel), zero(s, dtype), to, zero(s, s.dtype(x))]
        if s.chance(0.5):
            operands.append(s.constant(s.numpy.integers(-500, 500, out), I32))
        y = s.node("QLinearConv", *operands, group=group, **attrs)
    s.spend(prod(s.shape(y)) * terms)


def around(s: Sketch) -> None:
    """A float product between Dequantize and Quantize, its weights quantised, too."""
    x = s.node("DequantizeLinear", b := quantized(s, 2, 3), scale(s), zero(s, s.dtype(b)))
    *lead, terms = s.shape(x)
    n = sizes.channels(s.random)
    w = s.node("DequantizeLinear", bytes_of(s, (terms, n), I8), scale(s, (n,)), zero(s, I8, (n,)), axis=1)
    y = s.node("MatMul", x, w, work=prod(lead) * terms * n)
    if s.chance(0.5):
        y = s.node("Relu", y)
    s.node("QuantizeLinear", y, s.constant(0.033 * terms**0.5, FLOAT), zero(s, U8))


STEPS = ((3, quantize), (2, dequantize), (1, dynamic), (3, integer_product), (3, integer_convolution), (2, around))
SIZE = (1, 5)
