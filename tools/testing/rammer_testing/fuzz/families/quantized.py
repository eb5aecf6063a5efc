"""Generate quantised operators, and float operators between Dequantize and Quantize."""

from __future__ import annotations

from math import prod
from typing import Any

from rammer_testing.fuzz import sizes
from rammer_testing.fuzz.families.elementwise import typical
from rammer_testing.fuzz.families.windows import window
from rammer_testing.fuzz.sketch import CONTRIB, FLOAT, I8, I32, U8, Sketch, Unfit


def start(s: Sketch) -> None:
    s.input(typical(s), FLOAT)


def scale(s: Sketch, shape: tuple[int, ...] = ()) -> str:
    """Return scales for which no result lies on a rounding tie."""
    return s.constant(s.numpy.uniform(0.011, 0.047, shape), FLOAT)


def zero(s: Sketch, dtype: int, shape: tuple[int, ...] = ()) -> str:
    return s.constant(s.numpy.integers(100, 150, shape) if dtype == U8 else s.numpy.integers(-9, 9, shape), dtype)


def zeros(s: Sketch, dtype: int, extent: int = 0, *, absent: bool = False) -> str:
    """Return a zero point: a scalar, a vector of one, 0, none, or with an `extent` one per row or column."""
    form = s.random.choice(["scalar", "scalar", "one", "nothing", *["absent"] * absent, *["vector"] * 3 * bool(extent)])
    if form == "absent":
        return ""
    if form == "nothing":
        return s.constant(0, dtype)
    return zero(s, dtype, {"scalar": (), "one": (1,), "vector": (extent,)}[form])


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
    """Return a value of bytes with one of these ranks, quantised from floats if there is none. Raises Unfit."""
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
    """Add MatMulInteger or QLinearMatMul, with zero points of any form."""
    x = quantized(s, 2, 3)
    *lead, terms = s.shape(x)
    n, dtype = columns(s), s.random.choice((U8, I8))
    work, rows = prod(lead) * terms * n, lead[0] if len(lead) == 1 else 0
    w = bytes_of(s, (terms, n), dtype)
    if s.chance(0.5):
        both = [zeros(s, s.dtype(x), rows if s.chance(0.3) else 0, absent=True), zeros(s, dtype, n, absent=True)]
        y = s.node("MatMulInteger", x, w, *(both if any(both) else ()), work=work)
        s.node("Mul", s.node("Cast", y, to=FLOAT), s.constant(1e-4 / terms**0.5, FLOAT))
    else:
        per_column = (n,) if s.chance(0.4) else ()
        per_row = (rows,) if rows and s.chance(0.2) else ()
        given = [x, scale(s, per_row), zeros(s, s.dtype(x), *per_row)]
        given += [w, scale(s, per_column), zeros(s, dtype, *per_column)]
        s.node("QLinearMatMul", *given, *result(s, terms, s.dtype(x)), work=work)


def columns(s: Sketch) -> int:
    """Return a number of columns as weights have it: up to 16, or any number of channels."""
    return s.random.randint(1, 16) if s.chance(0.4) else sizes.channels(s.random)


def result(s: Sketch, terms: int, like: int) -> tuple[str, str]:
    """Return scale and zero point of a sum of `terms` products of bytes, mostly of type `like`."""
    to = s.constant(float(s.numpy.uniform(0.9, 1.3)) * terms**0.5 * 0.05, FLOAT)
    return to, zero(s, like if s.chance(0.8) else s.random.choice((U8, I8)))


def integer_convolution(s: Sketch) -> None:
    """Add ConvInteger or QLinearConv, with zero points of any form."""
    x = quantized(s, 4)
    _, into, *inner = s.shape(x)
    group = s.random.choice((1, 1, into))
    out = sizes.channels(s.random, 128) if group == 1 else group
    attrs = window(s, tuple(inner))
    terms = into // group * prod(attrs["kernel_shape"])
    dtype = s.random.choice((U8, I8))
    w = bytes_of(s, (out, into // group, *attrs["kernel_shape"]), dtype)
    if s.chance(0.4):
        both = [zeros(s, s.dtype(x), absent=True), zeros(s, dtype, out, absent=True)]
        y = s.node("ConvInteger", x, w, *(both if any(both) else ()), group=group, **attrs)
        y = s.node("Mul", s.node("Cast", y, to=FLOAT), s.constant(1e-4 / terms**0.5, FLOAT))
    else:
        per_channel = (out,) if s.chance(0.4) else ()
        operands = [x, scale(s), zeros(s, s.dtype(x)), w, scale(s, per_channel)]
        operands += [zeros(s, dtype, *per_channel), *result(s, terms, s.dtype(x))]
        if s.chance(0.5):
            operands.append(s.constant(s.numpy.integers(-500, 500, out), I32))
        y = s.node("QLinearConv", *operands, group=group, **attrs)
    s.spend(prod(s.shape(y)) * terms)


def around(s: Sketch) -> None:
    """Add a float product between Dequantize and Quantize, with quantised weights."""
    x = s.node("DequantizeLinear", b := quantized(s, 2, 3), scale(s), zero(s, s.dtype(b)))
    *lead, terms = s.shape(x)
    n = sizes.channels(s.random)
    w = s.node("DequantizeLinear", bytes_of(s, (terms, n), I8), scale(s, (n,)), zero(s, I8, (n,)), axis=1)
    y = s.node("MatMul", x, w, work=prod(lead) * terms * n)
    if s.chance(0.5):
        y = s.node("Relu", y)
    s.node("QuantizeLinear", y, s.constant(0.033 * terms**0.5, FLOAT), zero(s, U8))


def narrow(s: Sketch) -> None:
    """Add a product by up to 16 columns of byte weights; one to three QuantizeLinear read it, maybe an activation."""
    x = s.pick(lambda k: k.rank in (2, 3) and k.dtype in (FLOAT, U8, I8))
    if s.dtype(x) != FLOAT:
        x = s.node("DequantizeLinear", x, scale(s), zero(s, s.dtype(x)))
    *lead, terms = s.shape(x)
    n, dtype = s.random.choice((1, 2, 3, 4, 7, 8, 12, 16)), s.random.choice((I8, I8, U8))
    along, form = ((n,), {"axis": 1}) if s.chance(0.6) else ((), {})
    given = [bytes_of(s, (terms, n), dtype), scale(s, along), *([zero(s, dtype, along)] if s.chance(0.8) else [])]
    y = s.node("MatMul", x, s.node("DequantizeLinear", *given, **form), work=prod(lead) * terms * n)
    if s.chance(0.3):
        y = s.node("Add", y, s.weights(n, terms=1))
    if s.chance(0.2):
        s.node(s.random.choice(("Relu", "Sigmoid", "Neg")), y)
    for _ in range(s.random.randint(1, 3)):
        step = s.constant(float(s.numpy.uniform(0.02, 0.05)) * terms**0.5)
        s.node("QuantizeLinear", y, step, zero(s, s.random.choice((U8, I8))))


def contrib(s: Sketch) -> None:
    """Add QGemm or MatMulIntegerToFloat of ONNX Runtime's domain, which take a zero point per column."""
    x = quantized(s, 2)
    rows, terms = s.shape(x)
    n, dtype = (terms if s.chance(0.3) else columns(s)), s.random.choice((U8, I8))
    s.spend(rows * terms * n)
    per_column = (n,) if s.chance(0.6) else ()
    if s.chance(0.3):
        given = [x, bytes_of(s, (terms, n), dtype), scale(s), scale(s, per_column)]
        given += [zeros(s, s.dtype(x), absent=True), zeros(s, dtype, *per_column, absent=True)]
        given += [s.weights(n, terms=1)] if s.chance(0.5) else []
        s.trust("MatMulIntegerToFloat", given, [(FLOAT, (rows, n))], domain=CONTRIB)
        return
    transposed = s.random.randint(0, 1)
    given = [x, scale(s), zeros(s, s.dtype(x))]
    given += [bytes_of(s, (n, terms) if transposed else (terms, n), dtype), scale(s, per_column)]
    given.append(zero(s, dtype, per_column) if s.chance(0.8) else s.constant(s.numpy.integers(0, 1, per_column), dtype))
    bias = s.constant(s.numpy.integers(-500, 500, (n,)), I32) if s.chance(0.5) else ""
    attrs: dict[str, Any] = {"transB": transposed, "domain": CONTRIB, **({"alpha": 0.5} if s.chance(0.2) else {})}
    if s.chance(0.6):
        to, _ = result(s, terms, s.dtype(x))
        s.trust("QGemm", [*given, bias, to, zeros(s, s.dtype(x))], [(s.dtype(x), (rows, n))], **attrs)
    else:
        s.trust("QGemm", [*given, bias] if bias else given, [(FLOAT, (rows, n))], **attrs)


def pointwise(s: Sketch) -> None:
    """Add QLinearAdd or QLinearMul of ONNX Runtime's domain."""
    x = quantized(s)
    other = bytes_of(s, s.shape(x)[s.random.randint(0, s.rank(x)) :], s.dtype(x))
    given = [part for v in (x, other) for part in (v, scale(s), zero(s, s.dtype(x)))]
    given += [s.constant(float(s.numpy.uniform(0.05, 0.1))), zero(s, s.dtype(x))]
    s.trust(s.random.choice(("QLinearAdd", "QLinearMul")), given, [(s.dtype(x), s.shape(x))], domain=CONTRIB)


def rows(s: Sketch) -> None:
    """Add the input of products by narrow weights."""
    s.input((sizes.rows(s.random), sizes.channels(s.random)))


def given_bytes(s: Sketch) -> None:
    """Add the input of products of bytes."""
    dtype, r = s.random.choice((U8, I8)), s.random
    image = (sizes.batch(r), sizes.channels(r, 96), *sizes.image(r))
    shape = r.choice(((sizes.rows(r), sizes.channels(r)), (sizes.rows(r), sizes.channels(r)), image))
    s.input(shape, dtype, *((0, 255) if dtype == U8 else (-128, 127)))


STEPS = (
    *((3, quantize), (2, dequantize), (1, dynamic), (3, integer_product), (3, integer_convolution), (2, around)),
    *((1, narrow), (1, contrib), (1, pointwise)),
)
COLUMNS = ((6, narrow), (1, quantize), (1, dequantize), (1, around))
ZEROS = ((4, integer_product), (3, integer_convolution), (4, contrib), (1, pointwise), (1, quantize))
SIZE = (1, 5)
