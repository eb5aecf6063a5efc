"""Generate softmax, reductions and normalisation over any axis."""

from __future__ import annotations

from math import prod
from typing import Any

from rammer_testing.fuzz import sizes
from rammer_testing.fuzz.families.elementwise import typical
from rammer_testing.fuzz.sketch import DOUBLE, FLOAT, HALF, I32, Sketch, Unfit

REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSumExp"),
    *("ReduceSumSquare", "ReduceProd", "ReduceLogSum"),
)


def start(s: Sketch) -> None:
    r = s.random
    shape = typical(s)
    if s.chance(0.15):
        shape = r.choice(((1, 21, 224, 224), (1, 2, 512, 512), (1, 80, 3000), (1, 12, 300, 300), (2, 5000), (1, 1000)))
    elif s.chance(0.25):
        shape = tuple(r.choice((1, 1, 1, 1, 2, 3, 7)) for _ in range(r.randint(2, 5)))
    s.input(shape, r.choice((FLOAT,) * 10 + (DOUBLE, HALF, I32)))


def softmax(s: Sketch) -> None:
    x = s.floats()
    if not s.rank(x):
        raise Unfit
    axis = s.random.randrange(-s.rank(x), s.rank(x))
    s.node(s.random.choice(("Softmax", "Softmax", "Softmax", "LogSoftmax", "Hardmax")), x, axis=axis)


def reduce(s: Sketch) -> None:
    x = s.floats() if s.chance(0.9) else s.pick(lambda k: k.dtype == I32)
    if not s.rank(x):
        raise Unfit
    op = s.random.choice(REDUCTIONS if s.dtype(x) != I32 else ("ReduceSum", "ReduceMax", "ReduceMin"))
    axes = s.random.sample(range(s.rank(x)), s.random.randint(1, s.rank(x)))
    if op == "ReduceProd":
        x = s.node("Add", s.node("Mul", s.node("Tanh", x), s.constant(0.01, s.dtype(x))), s.constant(1.0, s.dtype(x)))
    if op == "ReduceLogSum":
        x = s.node("Add", s.node("Abs", x), s.constant(0.1, s.dtype(x)))
    operands = (x, s.constant(sorted(axes))) if s.chance(0.9) else (x,)
    s.node(op, *operands, keepdims=s.random.randint(0, 1))


def argument(s: Sketch) -> None:
    x = s.floats()
    if not s.rank(x):
        raise Unfit
    axis = s.random.randrange(s.rank(x))
    attrs: dict[str, Any] = {"axis": axis, "keepdims": s.random.randint(0, 1), "select_last_index": int(s.chance(0.2))}
    s.node(s.random.choice(("ArgMax", "ArgMin")), x, **attrs)


def layer_norm(s: Sketch) -> None:
    x = s.floats()
    if not s.rank(x):
        raise Unfit
    axis = s.random.randint(-min(2, s.rank(x)), -1)
    inner, dtype = s.shape(x)[axis:], s.dtype(x)
    scale = s.constant(s.numpy.uniform(0.5, 1.5, inner), dtype)
    if s.opset >= 23 and s.chance(0.4):
        s.node("RMSNormalization", x, scale, axis=axis)
    else:
        bias = s.constant(s.numpy.uniform(-1, 1, inner), dtype) if s.chance(0.8) else ""
        s.node("LayerNormalization", x, scale, bias, axis=axis)


def per_channel(s: Sketch) -> None:
    """Add batch, instance or group normalisation."""
    x = s.pick(lambda k: k.rank >= 3 and k.dtype in (FLOAT, DOUBLE, HALF))
    channels, dtype = s.shape(x)[1], s.dtype(x)

    def numbers(low: float, high: float) -> str:
        return s.constant(s.numpy.uniform(low, high, channels), dtype)

    form = s.random.choice(("batch", "instance", "group"))
    if form == "batch":
        s.node("BatchNormalization", x, numbers(0.5, 1.5), numbers(-1, 1), numbers(-1, 1), numbers(0.5, 2))
    elif form == "instance":
        s.node("InstanceNormalization", x, numbers(0.5, 1.5), numbers(-1, 1))
    else:
        groups = s.random.choice(sizes.divisors(channels))
        s.node("GroupNormalization", x, numbers(0.5, 1.5), numbers(-1, 1), num_groups=groups)


def others(s: Sketch) -> None:
    x = s.pick(lambda k: k.rank >= 1 and k.dtype in (FLOAT, DOUBLE))
    form = s.random.choice(("lp", "lrn", "mvn", "cumsum"))
    axis = s.random.randrange(s.rank(x))
    if form == "lp":
        s.node("LpNormalization", x, axis=axis, p=s.random.randint(1, 2))
    elif form == "lrn":
        if s.rank(x) < 3:
            raise Unfit
        s.node("LRN", x, size=s.random.choice((1, 3, 5)), alpha=0.1, beta=0.75, bias=1.0)
    elif form == "mvn":  # its definition cancels: it needs values that vary
        x = s.input(s.shape(x))
        if s.shape(x)[axis] < 8:
            raise Unfit
        s.node("MeanVarianceNormalization", x, axes=[axis])
    else:
        if s.shape(x)[axis] > 300:
            raise Unfit
        flags: dict[str, Any] = {"exclusive": s.random.randint(0, 1), "reverse": s.random.randint(0, 1)}
        s.node("CumSum", x, s.constant(axis), work=prod(s.shape(x)) * s.shape(x)[axis], **flags)


def by_hand(s: Sketch) -> None:
    """Add a normalisation as exporters write it out."""
    x = s.floats()
    if not s.rank(x):
        raise Unfit
    axes, dtype = s.constant([s.random.randrange(s.rank(x))]), s.dtype(x)
    off = s.node("Sub", x, s.node("ReduceMean", x, axes, keepdims=1))
    variance = s.node("ReduceMean", s.node("Mul", off, off), axes, keepdims=1)
    s.node("Div", off, s.node("Sqrt", s.node("Add", variance, s.constant(1e-2, dtype))))


def masked(s: Sketch) -> None:
    """Add a softmax with a mask."""
    x = s.floats(2, 3, 4)
    mask = s.constant(s.numpy.integers(0, 2, s.shape(x)[-2:]) * -60.0, s.dtype(x))  # exp(-100) is a denormal: 0 here
    s.node("Softmax", s.node("Add", x, mask), axis=-1)


def tokens(s: Sketch) -> None:
    """Add rows as sequences have them, often of odd lengths."""
    r = s.random
    length = r.choice((28, 29, 30, 57, 75)) if s.chance(0.5) else r.randint(2, 200)
    width = r.choice((64, 96, 128, 192, 200, 256, 320, 640)) if s.chance(0.7) else r.randint(3, 640)
    s.input(r.choice(((length, width), (1, length, width), (r.randint(1, 3), length, width))))


def readers(s: Sketch) -> None:
    """Add a norm, softmax or sum read by several operators, each stored or read on."""
    x = s.floats(2, 3, 4)
    width, dtype = s.shape(x)[-1], s.dtype(x)
    forms = ("LayerNormalization", "LayerNormalization", "Softmax", "LogSoftmax", "rms", "LpNormalization")
    form = s.random.choice(forms)
    if form == "LayerNormalization":
        y = s.node(form, x, *(s.weights(width, terms=1, dtype=dtype) for _ in range(s.random.randint(1, 2))), axis=-1)
    elif form == "rms":
        square = s.node("ReduceMean", s.node("Mul", x, x), s.constant([-1]), keepdims=1)
        y = s.node("Div", x, s.node("Sqrt", s.node("Add", square, s.constant(1e-2, dtype))))
    else:
        y = s.node(form, x, axis=-1)
    for _ in range(s.random.randint(2, 4)):
        kind = s.random.choice(("scale", "scale", "shift", "alone", "mix", "sum"))
        if kind in ("scale", "shift"):
            s.node("Mul" if kind == "scale" else "Add", y, s.operand(width, dtype=dtype))
        elif kind == "alone":
            s.node(s.random.choice(("Sigmoid", "Tanh", "Neg", "Relu")), y)
        elif kind == "mix":
            s.node(s.random.choice(("Add", "Mul")), y, x)
        else:
            s.node("ReduceSum", y, s.constant([-1]), keepdims=1)


STEPS = (
    *(
        (5, softmax),
        (6, reduce),
        (1, argument),
        (2, layer_norm),
        (2, per_channel),
        (2, others),
        (1, by_hand),
        (1, masked),
    ),
)
SIZE = (1, 6)
READERS = ((6, readers), (1, softmax), (1, layer_norm), (1, by_hand))
