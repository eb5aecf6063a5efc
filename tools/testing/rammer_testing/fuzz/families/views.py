"""Generate views and moves: operators that only place elements."""

from __future__ import annotations

import numpy as np

from rammer.ir.tensor import Shape
from rammer_testing.fuzz import sizes
from rammer_testing.fuzz.families.elementwise import typical
from rammer_testing.fuzz.sketch import FLOAT, FLOATS, Sketch, Unfit


def start(s: Sketch) -> None:
    for _ in range(s.random.choice((1, 1, 2))):
        s.input(typical(s) if s.chance(0.7) else sizes.any_shape(s.random), FLOAT)


def another_shape(s: Sketch, shape: Shape) -> Shape:
    """Return a shape with extents merged or split, and ones inserted or removed."""
    found = list(shape)
    for _ in range(s.random.randint(1, 3)):
        change = s.random.choice(("merge", "split", "split", "one", "drop"))
        if change == "merge" and len(found) > 1:
            at = s.random.randrange(len(found) - 1)
            found[at : at + 2] = [found[at] * found[at + 1]]
        elif change == "split" and found and len(found) < 6:
            at = s.random.randrange(len(found))
            d = s.random.choice(sizes.divisors(found[at]))
            found[at : at + 1] = [d, found[at] // d]
        elif change == "one" and len(found) < 6:
            found.insert(s.random.randint(0, len(found)), 1)
        elif change == "drop" and 1 in found:
            found.remove(1)
    return tuple(found)


def reshape(s: Sketch) -> None:
    x = s.pick()
    target: list[int] = list(another_shape(s, s.shape(x)))
    if target and s.chance(0.3):
        target[s.random.randrange(len(target))] = -1
    s.node("Reshape", x, s.constant(np.array(target, np.int64)))


def unsqueeze(s: Sketch) -> None:
    x = s.pick()
    s.node("Unsqueeze", x, s.constant([s.random.randint(0, s.rank(x))]))


def squeeze(s: Sketch) -> None:
    x = s.pick(lambda k: 1 in k.shape)
    s.node("Squeeze", x, s.constant([s.shape(x).index(1)]))


def flatten(s: Sketch) -> None:
    x = s.pick()
    s.node("Flatten", x, axis=s.random.randint(0, s.rank(x)))


def transpose(s: Sketch) -> None:
    x = s.pick(lambda k: k.rank > 1)
    s.node("Transpose", x, perm=s.random.sample(range(s.rank(x)), s.rank(x)))


def split(s: Sketch) -> None:
    """Split into equal or unequal parts."""
    x = s.pick(lambda k: any(e > 1 for e in k.shape))
    axis = s.random.choice([n for n, e in enumerate(s.shape(x)) if e > 1])
    extent = s.shape(x)[axis]
    equal = [d for d in sizes.divisors(extent) if 1 < d <= 6]
    if equal and s.chance(0.7):
        count = s.random.choice(equal)
        parts = [extent // count] * count
    else:
        cuts = sorted(s.random.sample(range(1, extent), min(extent - 1, s.random.randint(1, 3))))
        parts = [b - a for a, b in zip([0, *cuts], [*cuts, extent], strict=True)]
    s.multi("Split", x, s.constant(parts), outputs=len(parts), axis=axis - (s.rank(x) if s.chance(0.3) else 0))


def concat(s: Sketch) -> None:
    x = s.pick(lambda k: k.rank > 0)
    axis = s.random.randrange(s.rank(x))

    def joins(shape: Shape) -> bool:
        return len(shape) == s.rank(x) and all(n == axis or e == s.shape(x)[n] for n, e in enumerate(shape))

    others = [s.pick(lambda k: k.dtype == s.dtype(x) and joins(k.shape)) for _ in range(s.random.randint(1, 3))]
    if s.dtype(x) in FLOATS and s.chance(0.3):
        shape = list(s.shape(x))
        shape[axis] = sizes.extent(s.random, 9)
        others.append(s.operand(*shape, dtype=s.dtype(x)))
    parts = [x, *others]
    s.random.shuffle(parts)
    s.node("Concat", *parts, axis=axis)


def cut(s: Sketch) -> None:
    """Add a Slice, with steps and backwards."""
    x = s.pick(lambda k: k.rank > 0)
    axes = sorted(s.random.sample(range(s.rank(x)), s.random.randint(1, min(3, s.rank(x)))))
    starts, ends, steps = [], [], []
    for axis in axes:
        extent = s.shape(x)[axis]
        a, b = sorted(s.random.sample(range(extent + 1), 2))
        step = s.random.choice((1, 1, 1, 1, 2, 3, -1, -2))
        if step < 0:
            a, b = b - 1, a - 1 - (extent if a == 0 else 0)
        starts.append(a)
        ends.append(b if step < 0 or s.chance(0.7) else s.random.choice((b, 1 << 40 if b == extent else b)))
        steps.append(step)
    s.node("Slice", x, *(s.constant(v) for v in (starts, ends, axes, steps)))


def deeper(s: Sketch) -> None:
    """Add slices of slices along several axes, with other views between; some have other readers."""
    x = s.pick(lambda k: k.rank > 0 and k.size > 1)
    for _ in range(s.random.randint(2, 4)):
        axis = s.random.choice([n for n, e in enumerate(s.shape(x)) if e > 1] or [0])
        extent = s.shape(x)[axis]
        a, b = sorted(s.random.sample(range(extent + 1), 2))
        if s.chance(0.5):  # from one end
            a, b = (0, b) if s.chance(0.5) and b else (a, extent)
        found = s.node("Slice", x, *(s.constant([v]) for v in (a, b, axis, s.random.choice((1, 1, 1, 1, 2)))))
        rest = s.chance(0.4) and a > 0
        if rest:
            other = s.node("Slice", x, *(s.constant([v]) for v in (0, a, axis)))
            found = s.node("Concat", s.node("Neg", found) if s.dtype(x) == FLOAT else found, other, axis=axis)
        if s.dtype(x) in FLOATS and s.chance(0.4):
            s.node(s.random.choice(("Sigmoid", "Tanh", "Neg", "Relu")), found)
        if s.chance(0.2):
            found = s.node("Reshape", found, s.constant([*another_shape(s, s.shape(found))]))
        elif s.chance(0.3) and s.rank(found) > 1:
            found = s.node("Transpose", found, perm=s.random.sample(range(s.rank(found)), s.rank(found)))
        if not s.rank(found):
            break
        x = found


def rotary(s: Sketch) -> None:
    """Add partial rotary embeddings: rotate the first part of each head, and copy the rest."""
    x = s.pick(lambda k: k.rank in (3, 4) and k.shape[-1] >= 8 and k.dtype in FLOATS)
    width, dtype, axis = s.shape(x)[-1], s.dtype(x), s.constant([-1])
    width_rotated = 2 * s.random.randint(1, width // 4)

    def part(value: str, a: int, b: int) -> str:
        return s.node("Slice", value, s.constant([a]), s.constant([b]), axis)

    first = part(x, 0, width_rotated)
    halves = (s.node("Neg", part(first, width_rotated // 2, width_rotated)), part(first, 0, width_rotated // 2))
    angles = (s.shape(x)[-2], width_rotated)
    products = [s.node("Mul", first, s.operand(*angles, dtype=dtype))]
    products.append(s.node("Mul", s.node("Concat", *halves, axis=-1), s.operand(*angles, dtype=dtype)))
    s.node("Concat", s.node("Add", *products), part(x, width_rotated, width), axis=-1)


def pad(s: Sketch) -> None:
    x = s.pick(lambda k: k.rank > 0 and k.dtype in FLOATS)
    mode = s.random.choice(("constant", "constant", "reflect", "edge"))
    shape = s.shape(x)
    before = [s.random.randint(0, min(5, e - 1)) if s.chance(0.5) else 0 for e in shape]
    after = [s.random.randint(0, min(5, e - 1)) if s.chance(0.5) else 0 for e in shape]
    if mode == "constant" and s.chance(0.2):
        at = s.random.randrange(len(shape))
        before[at] = -s.random.randint(0, (shape[at] - 1) // 2)
    operands = [s.constant(before + after)]
    if mode == "constant" and s.chance(0.5):
        operands.append(s.constant(s.random.choice((0.5, -3.0)), s.dtype(x)))
    s.node("Pad", x, *operands, mode=mode)


def take(s: Sketch) -> None:
    """Add a Gather with constant indices."""
    x = s.pick(lambda k: k.rank > 0)
    axis = s.random.randrange(s.rank(x))
    extent = s.shape(x)[axis]
    shape = s.random.choice(((), (1,), (s.random.randint(1, 9),), (2, s.random.randint(1, 5))))
    s.node("Gather", x, s.constant(s.numpy.integers(-extent, extent, shape)), axis=axis)


def expand(s: Sketch) -> None:
    x = s.pick(lambda k: k.rank < 5)
    target = [sizes.extent(s.random, 8) if e == 1 and s.chance(0.8) else e for e in s.shape(x)]
    if s.chance(0.4) or not target:
        target.insert(0, sizes.extent(s.random, 5))
    s.node("Expand", x, s.constant(target))


def tile(s: Sketch) -> None:
    x = s.pick(lambda k: k.rank > 0)
    s.node("Tile", x, s.constant([s.random.choice((1, 1, 2, 3)) for _ in s.shape(x)]))


def depth_to_space(s: Sketch) -> None:
    x = s.floats(4)
    if s.chance(0.5):
        fitting = [b for b in (2, 3, 4) if s.shape(x)[1] % (b * b) == 0]
        if not fitting:
            raise Unfit
        s.node("DepthToSpace", x, blocksize=s.random.choice(fitting), mode=s.random.choice(("DCR", "CRD")))
    else:
        fitting = [b for b in (2, 3, 4) if s.shape(x)[2] % b == 0 == s.shape(x)[3] % b]
        if not fitting:
            raise Unfit
        s.node("SpaceToDepth", x, blocksize=s.random.choice(fitting))


def trilu(s: Sketch) -> None:
    x = s.pick(lambda k: k.rank > 1)
    s.node("Trilu", x, s.constant(np.int64(s.random.randint(-3, 3))), upper=s.random.randint(0, 1))


def crop(s: Sketch) -> None:
    x = s.pick(lambda k: k.rank > 0 and k.dtype in FLOATS)
    axis = s.random.randrange(s.rank(x))
    s.node("CenterCropPad", x, s.constant([sizes.extent(s.random, 2 * s.shape(x)[axis])]), axes=[axis])


def touch(s: Sketch) -> None:
    """Add an element-wise operator, as a model of views alone would be one copy."""
    x = s.pick(lambda k: k.dtype in FLOATS)
    if s.chance(0.5):
        s.node(s.random.choice(("Relu", "Tanh", "Neg", "Abs")), x)
    else:
        shape = s.shape(x)
        s.node(s.random.choice(("Add", "Mul")), x, s.operand(*shape[len(shape) // 2 :], dtype=s.dtype(x)))


def twist(s: Sketch) -> None:
    """Shuffle channels: split, transpose, merge."""
    x = s.pick(lambda k: any(len(sizes.divisors(e)) > 2 for e in k.shape) and k.rank < 5)
    shape = s.shape(x)
    axis = s.random.choice([n for n, e in enumerate(shape) if len(sizes.divisors(e)) > 2])
    group = s.random.choice(sizes.divisors(shape[axis])[1:-1])
    inner = s.node("Reshape", x, s.constant([*shape[:axis], group, shape[axis] // group, *shape[axis + 1 :]]))
    perm = list(range(len(shape) + 1))
    perm[axis], perm[axis + 1] = perm[axis + 1], perm[axis]
    s.node("Reshape", s.node("Transpose", inner, perm=perm), s.constant([*shape]))


STEPS = (
    *((3, reshape), (2, unsqueeze), (1, squeeze), (1, flatten), (3, transpose), (3, split), (3, concat), (3, cut)),
    *((2, pad), (2, take), (2, expand), (1, tile), (1, depth_to_space), (1, trilu), (1, crop), (3, touch), (2, twist)),
)
SLICES = ((6, deeper), (2, rotary), (2, cut), (1, split), (1, concat), (1, transpose), (1, reshape), (1, touch))
