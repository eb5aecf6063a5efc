"""Draw extents as ordinary models have them, and odd ones."""

from __future__ import annotations

from math import prod
from random import Random

from rammer.ir.tensor import Shape

CHANNELS = (1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512)
MOST_ELEMENTS = 1 << 18
IMAGES = (7, 8, 14, 16, 28, 32, 56, 64, 112, 224)


def extent(random: Random, high: int, low: int = 1) -> int:
    """Return an extent in low…high: small ones as likely as large ones."""
    if high <= low:
        return low
    return min(high, int(low * (high / low + 1e-9) ** random.random() + random.random()))


def batch(random: Random) -> int:
    return random.choice((1, 1, 1, 1, 2, 2, 3, 4, 5, 7, 8))


def rows(random: Random) -> int:
    """Return a batch size that may be large."""
    return random.choice((16, 32, 36, 64, 100, 128, 256)) if random.random() < 0.15 else extent(random, 40)


def channels(random: Random, high: int = 512) -> int:
    fitting = [c for c in CHANNELS if c <= high]
    return random.choice(fitting) if random.random() < 0.6 else extent(random, high)


def sequence(random: Random, high: int = 200) -> int:
    return extent(random, high)


def image(random: Random) -> tuple[int, int]:
    height = random.choice(IMAGES) if random.random() < 0.5 else extent(random, 224)
    return height, height if random.random() < 0.7 else extent(random, 224)


def any_shape(random: Random) -> Shape:
    """Return a shape of rank 0 to 5, with some extents of 1."""
    while True:
        rank = random.choice((0, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5))
        shape = tuple(1 if random.random() < 0.15 else extent(random, 200) for _ in range(rank))
        if prod(shape) <= MOST_ELEMENTS:
            return shape


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
