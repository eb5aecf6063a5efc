"""Generate 16-bit stages between float32 ones: each result is rounded before it is read."""

from __future__ import annotations

from math import prod

from rammer_testing.fuzz import sizes
from rammer_testing.fuzz.families import elementwise
from rammer_testing.fuzz.sketch import BFLOAT, FLOAT, HALF, Sketch, Unfit

NARROW = (HALF, BFLOAT)
ALONE = ("Neg", "Abs", "Relu", "Identity")
PAIRED = ("Mul", "Mul", "Add", "Sub", "Max", "Min")
SMOOTH = ("Tanh", "Sigmoid", "Softplus", "Erf", "Softsign", "Exp", "Gelu", "Mish", "HardSwish", "Elu")


def start(s: Sketch) -> None:
    r = s.random
    shape = r.choice(
        (
            lambda: (sizes.rows(r), sizes.channels(r, 640)),
            lambda: (sizes.batch(r), sizes.sequence(r), sizes.channels(r, 384)),
            lambda: (sizes.batch(r), sizes.channels(r, 64), *sizes.image(r)),
        )
    )()
    s.input(shape, r.choice((FLOAT, FLOAT, HALF, BFLOAT)))


def exact(s: Sketch, x: str) -> str:
    """Add one operation, rounded once, so that its result is exact to the last bit."""
    if s.chance(0.25):
        return s.node(s.random.choice(ALONE), x)
    if s.chance(0.1):
        return s.node("Sqrt", s.node("Abs", x))
    y = elementwise.other(s, x)
    return s.node(s.random.choice(PAIRED), *((x, y) if s.chance(0.7) else (y, x)))


def wide(s: Sketch) -> str:
    """Return a float32 value; cast a narrower one."""
    x = s.pick(lambda k: k.dtype in (FLOAT, *NARROW))
    return x if s.dtype(x) == FLOAT else s.node("Cast", x, to=FLOAT)


def stage(s: Sketch) -> None:
    """Add float32 → 16 bits → some operations → float32, and readers of that."""
    x = wide(s)
    if s.chance(0.5):
        x = exact(s, x)
    x = s.node("Cast", x, to=s.random.choice(NARROW))
    for _ in range(s.random.randint(0, 3)):
        x = exact(s, x)
    if s.chance(0.2):
        x = s.node("Cast", s.node("Cast", x, to=s.random.choice((*NARROW, FLOAT))), to=s.dtype(x))
    x = s.node("Cast", x, to=FLOAT)
    for _ in range(s.random.randint(0, 2)):
        x = exact(s, x)


def on(s: Sketch) -> None:
    """Compute on a 16-bit value that several operators read."""
    x = s.pick(lambda k: k.dtype in NARROW)
    for _ in range(s.random.randint(1, 2)):
        y = exact(s, x)
        if s.chance(0.6):
            exact(s, s.node("Cast", y, to=FLOAT))


def smooth(s: Sketch) -> None:
    """Add an activation in 16 bits between casts."""
    y = s.node(s.random.choice(SMOOTH), s.node("Cast", wide(s), to=s.random.choice(NARROW)))
    exact(s, s.node("Cast", y, to=FLOAT))


def product(s: Sketch) -> None:
    """Add a product in float32 whose result is cast, or one in 16 bits."""
    x, dtype = wide(s), s.random.choice(NARROW)
    if s.rank(x) < 2:
        raise Unfit
    terms, work = s.shape(x)[-1], prod(s.shape(x))
    n = sizes.channels(s.random, 256)
    if s.chance(0.7):
        y = s.node("Cast", s.node("MatMul", x, s.weights(terms, n), work=work * n), to=dtype)
    else:
        y = s.node("MatMul", s.node("Cast", x, to=dtype), s.weights(terms, n, dtype=dtype), work=work * n)
    s.node("Cast", exact(s, y), to=FLOAT)


def read(s: Sketch) -> None:
    """Add a softmax, norm or sum of a rounded value."""
    x = s.node("Cast", exact(s, s.node("Cast", wide(s), to=s.random.choice(NARROW))), to=FLOAT)
    form = s.random.choice(("softmax", "norm", "sum"))
    if form == "softmax":
        s.node("Softmax", x, axis=-1)
    elif form == "norm":
        s.node("LayerNormalization", x, s.constant(s.numpy.uniform(0.5, 1.5, s.shape(x)[-1:]), FLOAT), axis=-1)
    else:
        s.node("ReduceSum", x, s.constant([-1]), keepdims=s.random.randint(0, 1))


STEPS = ((8, stage), (4, on), (2, smooth), (2, product), (1, read))
SIZE = (1, 4)
