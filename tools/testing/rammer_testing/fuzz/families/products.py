"""Generate products by constants and run-time operands, batched, Gemm, Einsum, and operators around them."""

from __future__ import annotations

from math import prod
from typing import Any

from rammer_testing.fuzz import sizes
from rammer_testing.fuzz.sketch import DOUBLE, FLOAT, HALF, Sketch, Unfit


def start(s: Sketch) -> None:
    r = s.random
    shape = r.choice(
        (
            lambda: (sizes.rows(r), sizes.channels(r)),
            lambda: (sizes.batch(r), sizes.sequence(r), sizes.channels(r)),
            lambda: (sizes.batch(r), sizes.channels(r), sizes.extent(r, 60), sizes.channels(r, 96)),
        )
    )()
    s.input(shape, r.choice((FLOAT,) * 12 + (DOUBLE, HALF)))


def width(s: Sketch) -> int:
    return s.random.choice((1, 600)) if s.chance(0.05) else sizes.channels(s.random)


def matmul(s: Sketch) -> None:
    """Add a product by a constant or an input."""
    x = s.floats()
    if not s.rank(x):
        raise Unfit
    *lead, terms = s.shape(x)
    n = width(s)
    if s.chance(0.15) and len(lead) > 1:
        shape: tuple[int, ...] = (*(1 if s.chance(0.3) else e for e in lead[:-1]), terms, n)
    elif s.chance(0.05):
        shape, n = (terms,), 1
    else:
        shape = (terms, n)
    y = s.node("MatMul", x, s.operand(*shape, dtype=s.dtype(x), terms=terms), work=prod(lead) * terms * n)
    if s.chance(0.4) and len(shape) > 1:
        y = s.node("Add", y, s.operand(n, dtype=s.dtype(x)))
    if s.chance(0.3):
        s.node(s.random.choice(("Relu", "Tanh", "Sigmoid", "Gelu")), y)


def pair(s: Sketch) -> None:
    """Add a product of two computed operands."""
    x = s.floats(2, 3, 4)
    *lead, m, terms = s.shape(x)
    y = s.pick(lambda k: k.dtype == s.dtype(x) and k.rank in (2, k.rank) and k.rank >= 2 and k.shape[-1] == terms)
    if s.shape(y)[:-2] not in ((), tuple(lead)):
        raise Unfit
    perm = list(range(s.rank(y)))
    perm[-2:] = perm[-1], perm[-2]
    n = s.shape(y)[-2]
    scaled = s.node("Mul", x, s.constant(terms**-0.5, s.dtype(x)))
    s.node("MatMul", scaled, s.node("Transpose", y, perm=perm), work=prod(lead) * m * n * terms)


def gemm(s: Sketch) -> None:
    x = s.floats(2)
    trans_a, trans_b = s.random.randint(0, 1) if s.chance(0.3) else 0, s.random.randint(0, 1)
    m, terms = s.shape(x)[::-1] if trans_a else s.shape(x)
    n, dtype = width(s), s.dtype(x)
    w = s.operand(*((n, terms) if trans_b else (terms, n)), dtype=dtype, terms=terms)
    bias = s.random.choice(((n,), (1, n), (m, 1), (m, n), (1,), None))
    attrs: dict[str, Any] = {"alpha": 0.5, "beta": 2.0} if s.chance(0.2) else {}
    operands = [x, w] + ([s.operand(*bias, dtype=dtype)] if bias else [])
    y = s.node("Gemm", *operands, transA=trans_a, transB=trans_b, work=m * n * terms, **attrs)
    if s.chance(0.4):
        s.node(s.random.choice(("Relu", "Tanh", "Softsign")), y)


def einsum(s: Sketch) -> None:
    """Add an Einsum with an equation that models use."""
    x = s.floats(2, 3, 4)
    shape, n = s.shape(x), sizes.channels(s.random, 128)
    letters = "abcd"[: len(shape)]
    terms = shape[-1]
    form = s.random.choice(("last", "last", "batched", "both", "middle", "sum", "diagonal"))
    dtype = s.dtype(x)

    def w(*extents: int) -> str:
        return s.operand(*extents, dtype=dtype, terms=terms)

    if form == "last":
        y, work = ((f"{letters},{letters[-1]}z->{letters[:-1]}z"), w(terms, n)), prod(shape) * n
    elif form == "batched" and len(shape) > 2:
        y, work = (f"{letters},a{letters[-1]}z->{letters[:-1]}z", w(shape[0], terms, n)), prod(shape) * n
    elif form == "both" and len(shape) > 2:
        terms = shape[-1] * shape[-2]
        y, work = (f"{letters},{letters[-2:]}z->{letters[:-2]}z", w(*shape[-2:], n)), prod(shape) * n
    elif form == "middle" and len(shape) > 2:
        terms = shape[1]
        y, work = (f"{letters},zb->{letters.replace('b', 'z')}", w(n, terms)), prod(shape) * n
    elif form == "sum":
        terms = shape[0]
        y, work = (f"{letters},a->{letters[1:][::-1]}", w(terms)), prod(shape)
    else:
        y, work = (f"{letters},{letters}->{letters[0]}", w(*shape)), prod(shape)
    s.node("Einsum", x, y[1], equation=y[0], work=work)


def heads(s: Sketch) -> None:
    """Add a product, maybe a view of it, and equal parts of that."""
    x = s.floats(2, 3)
    *lead, terms = s.shape(x)
    parts = s.random.choice((2, 3, 3, 4))
    n = sizes.channels(s.random, 192) * parts
    y = s.node("MatMul", x, s.operand(terms, n, dtype=s.dtype(x), terms=terms), work=prod(lead) * terms * n)
    if s.chance(0.5):
        y = s.node("Add", y, s.operand(n, dtype=s.dtype(x)))
    axis = len(lead)
    if s.chance(0.6):
        y = (
            s.node("Unsqueeze", y, s.constant([0]))
            if s.chance(0.5)
            else s.node("Reshape", y, s.constant([1, *lead, n]))
        )
        axis += 1
    values = s.multi("Split", y, outputs=parts, axis=axis, num_outputs=parts)
    for value in values:
        if s.chance(0.5):
            s.node(s.random.choice(("Tanh", "Relu", "Sigmoid", "Neg")), value)
    s.node("Add", values[0], values[-1])


def tall(s: Sketch) -> None:
    """Add a transpose before a product, as in attention and in convolutions by products."""
    x = s.floats(2, 3, 4)
    perm = list(range(s.rank(x)))
    perm[-2:] = perm[-1], perm[-2]
    s.node("Transpose", x, perm=perm)
    matmul(s)


STEPS = ((6, matmul), (2, pair), (3, gemm), (2, einsum), (3, heads), (1, tall))
