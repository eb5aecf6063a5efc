"""Generate values of rank 0: inputs, constants, and computed ones."""

from __future__ import annotations

import numpy as np

from rammer_testing.fuzz.families.elementwise import typical
from rammer_testing.fuzz.sketch import BOOL, FLOAT, I64, Sketch, Unfit

BINARY = ("Add", "Sub", "Mul", "Max", "Min")


def start(s: Sketch) -> None:
    s.input(typical(s), FLOAT)
    s.input((), FLOAT, 0.5, 2.0)


def a_scalar(s: Sketch) -> str:
    """Return a scalar of the model, or a new input."""
    try:
        return s.pick(lambda k: k.dtype == FLOAT and k.rank == 0)
    except Unfit:
        return s.input((), FLOAT, 0.5, 2.0)


def a_tensor(s: Sketch) -> str:
    return s.pick(lambda k: k.dtype == FLOAT and k.rank > 0)


def made(s: Sketch) -> None:
    """Make a scalar of a tensor: reduce, gather, or squeeze."""
    x = a_tensor(s)
    form = s.random.choice(("mean", "mean", "max", "element", "squeeze", "reshape", "count"))
    if form in ("mean", "max"):
        s.node("ReduceMean" if form == "mean" else "ReduceMax", x, keepdims=0)
    elif form == "count":
        s.node("Cast", s.node("Size", x), to=FLOAT)
    else:
        flat = s.node("Reshape", x, s.constant([-1]))
        at = int(s.numpy.integers(-s.shape(flat)[0], s.shape(flat)[0]))
        if form == "element":
            s.node("Gather", flat, s.constant(at) if s.chance(0.6) else s.input((), I64, 0, s.shape(flat)[0] - 1))
        else:
            one = s.node("Gather", flat, s.constant([at]))
            s.node("Squeeze", one) if form == "squeeze" else s.node("Reshape", one, s.constant(np.zeros(0, np.int64)))


def used(s: Sketch) -> None:
    """Combine a tensor and a scalar, or two scalars."""
    x = a_tensor(s) if s.chance(0.7) else a_scalar(s)
    operands = [x, a_scalar(s)]
    s.random.shuffle(operands)
    s.node(s.random.choice(BINARY), *operands)


def bound(s: Sketch) -> None:
    """Use a scalar as a bound, a condition, a divisor or an exponent."""
    x, y = a_tensor(s), a_scalar(s)
    form = s.random.choice(("clip", "where", "div", "pow"))
    if form == "clip":
        s.node("Clip", x, s.constant(-1.0), y) if s.chance(0.5) else s.node("Clip", x, y)
    elif form == "where":
        s.node("Where", s.node("Greater", y, s.constant(1.0)) if s.chance(0.5) else s.input((), BOOL), x, y)
    elif form == "div":
        s.node("Div", x, s.node("Add", s.node("Abs", y), s.constant(0.5)))
    else:
        s.node("Pow", s.node("Add", s.node("Abs", x), s.constant(0.1)), s.node("Tanh", y))


def raised(s: Sketch) -> None:
    """Make a tensor of a scalar: add dimensions, expand, or concatenate."""
    x = a_scalar(s)
    form = s.random.choice(("unsqueeze", "reshape", "expand", "concat"))
    if form == "unsqueeze":
        s.node("Unsqueeze", x, s.constant([0, 1] if s.chance(0.5) else [0]))
    elif form == "reshape":
        s.node("Reshape", x, s.constant([1] * s.random.randint(1, 3)))
    elif form == "expand":
        s.node("Expand", x, s.constant([s.random.randint(1, 9), s.random.randint(1, 40)]))
    else:
        s.node("Concat", *(s.node("Unsqueeze", v, s.constant([0])) for v in (x, a_scalar(s), a_scalar(s))), axis=0)


def alone(s: Sketch) -> None:
    x = a_scalar(s)
    s.node(s.random.choice(("Tanh", "Neg", "Identity", "Sigmoid", "Abs")), x)


STEPS = ((4, made), (4, used), (2, bound), (2, raised), (1, alone))
