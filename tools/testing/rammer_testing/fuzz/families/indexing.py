"""Generate reads and writes by index, sorting and selection."""

from __future__ import annotations

import numpy as np

from rammer_testing.fuzz import sizes
from rammer_testing.fuzz.families.elementwise import bounds, typical
from rammer_testing.fuzz.sketch import BOOL, DOUBLE, FLOAT, FLOATS, HALF, I32, I64, Sketch, Unfit


def start(s: Sketch) -> None:
    dtype = s.random.choice((FLOAT,) * 10 + (DOUBLE, HALF, I32, I64))
    s.input(typical(s), dtype, *bounds(dtype))


def some(s: Sketch) -> tuple[str, int]:
    """Return a value, and one of its axes."""
    x = s.pick(lambda k: k.rank > 0 and k.dtype != BOOL)
    return x, s.random.randrange(s.rank(x))


def indices(s: Sketch, shape: tuple[int, ...], extent: int) -> str:
    """Return indices into an axis, some of them negative: mostly an input, or a constant."""
    dtype = s.random.choice((I64, I64, I32))
    if s.chance(0.7):
        return s.input(shape, dtype, -extent, extent - 1)
    return s.constant(s.numpy.integers(-extent, extent, shape), dtype)


def gather(s: Sketch) -> None:
    x, axis = some(s)
    shape = s.random.choice(((), (s.random.randint(1, 40),), (s.random.randint(1, 8), s.random.randint(1, 20))))
    s.node("Gather", x, indices(s, shape, s.shape(x)[axis]), axis=axis)


def gather_elements(s: Sketch) -> None:
    x, axis = some(s)
    shape = tuple(
        sizes.extent(s.random, e) if n != axis else sizes.extent(s.random, e + 3) for n, e in enumerate(s.shape(x))
    )
    s.node("GatherElements", x, indices(s, shape, s.shape(x)[axis]), axis=axis)


def gather_nd(s: Sketch) -> None:
    x = s.pick(lambda k: k.rank > 0 and k.dtype != BOOL)
    shape = s.shape(x)
    batch = s.random.choice((0, 0, 1)) if len(shape) > 1 else 0
    depth = s.random.randint(1, len(shape) - batch)
    lead = (*shape[:batch], sizes.extent(s.random, 30))
    low = min(shape[batch : batch + depth])
    s.node("GatherND", x, s.input((*lead, depth), I64, -low, low - 1), batch_dims=batch)


def scatter(s: Sketch) -> None:
    """Add a scatter with distinct indices, or with a reduction of repeated ones."""
    x, axis = some(s)
    shape = list(s.shape(x))
    extent = shape[axis]
    shape[axis] = sizes.extent(s.random, extent)
    total = int(np.prod(shape))
    if total > 1 << 17:
        raise Unfit
    order = np.argsort(s.numpy.random((total // shape[axis], extent)), axis=1)[:, : shape[axis]]
    moved = [e for n, e in enumerate(shape) if n != axis]
    places = np.moveaxis(order.reshape(*moved, shape[axis]), -1, axis)
    updates = s.input(shape, s.dtype(x), *bounds(s.dtype(x)))
    how = s.random.choice(("none", "none", "add", "max", "min", "mul"))
    if how in ("add", "max", "min") and s.chance(0.5):
        s.node("ScatterElements", x, s.constant(s.numpy.integers(0, extent, shape)), updates, axis=axis, reduction=how)
    else:
        s.node("ScatterElements", x, s.constant(places.astype(np.int64)), updates, axis=axis, reduction=how)


def scatter_nd(s: Sketch) -> None:
    x = s.pick(lambda k: k.rank > 0 and k.dtype != BOOL)
    shape = s.shape(x)
    depth = s.random.randint(1, min(2, len(shape)))
    places = list(np.ndindex(*shape[:depth])) if np.prod(shape[:depth]) <= 5000 else []
    if not places:
        raise Unfit
    count = sizes.extent(s.random, min(len(places), 40))
    chosen = np.array(s.random.sample(places, count), np.int64)
    updates = s.input((count, *shape[depth:]), s.dtype(x), *bounds(s.dtype(x)))
    how = s.random.choice(("none", "none", "add", "max", "min"))
    s.node("ScatterND", x, s.constant(chosen), updates, reduction=how)


def top(s: Sketch) -> None:
    x, axis = some(s)
    if s.dtype(x) not in (*FLOATS, I32, I64):
        raise Unfit
    k = sizes.extent(s.random, min(s.shape(x)[axis], 64))
    largest = s.random.randint(0, 1)
    s.multi("TopK", x, s.constant([k]), outputs=2, axis=axis, largest=largest, sorted=1)


def one_hot(s: Sketch) -> None:
    depth = sizes.extent(s.random, 60)
    shape = (sizes.batch(s.random), sizes.sequence(s.random))
    where = s.input(shape, I64, -depth, depth - 1)
    s.node("OneHot", where, s.constant(np.int64(depth)), s.constant([0.0, 1.5]), axis=s.random.choice((-1, 0, 1)))


def lookup(s: Sketch) -> None:
    """Add a lookup of rows in a table, as of embeddings."""
    words, width = sizes.extent(s.random, 3000), sizes.channels(s.random)
    tokens = s.input((sizes.batch(s.random), sizes.sequence(s.random)), I64, 0, words - 1)
    s.node("Gather", s.weights(words, width, terms=1), tokens, axis=0)


def masked(s: Sketch) -> None:
    """Add a selection by a comparison."""
    x = s.pick(lambda k: k.dtype in (FLOAT, DOUBLE))
    mask = s.node("Greater", x, s.constant(0.1, s.dtype(x)))
    s.node("Where", mask, x, s.node("Mul", x, s.constant(0.1, s.dtype(x))))


STEPS = (
    *((4, gather), (3, gather_elements), (2, gather_nd), (3, scatter), (2, scatter_nd), (3, top), (1, one_hot)),
    *((2, lookup), (1, masked)),
)
SIZE = (1, 6)
