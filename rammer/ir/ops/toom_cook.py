"""Compute the matrices of F(m, r), which sums over windows with fewer products, by Toom and Cook's construction.

Known as: Winograd convolution. Paper: Lavin and Gray 2015, arXiv:1509.09308. With `m` outputs of `r` taps, y = A' ((G
w) * (B' x)), product by product.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import prod
from typing import NamedTuple

# Points in sixteenths, by their number without the one at infinity. They keep errors small, by the mean of
# |A|² |B|² |G|² along the products and by measured sums. B' has fewer numbers if points come in pairs, and if 0 is one
# of them: this holds for the 5 points that kernels look up (`kernels.winograd`).
POINTS = {2: (10, -10), 3: (0, 16, -16), 4: (6, -6, 20, -20), 5: (0, 11, -11, 24, -24), 6: (4, -4, 14, -14, 28, -28)}


class Matrices(NamedTuple):
    """Matrices row by row: B' of the input, G of the weights, A' of the results."""

    data: tuple[float, ...]
    weights: tuple[float, ...]
    results: tuple[float, ...]


@cache
def matrices(outputs: int, taps: int) -> Matrices:
    """Return the matrices of F(outputs, taps). Raises KeyError where no points are known."""
    size = outputs + taps - 1
    points = [Fraction(p, 16) for p in POINTS[size - 1]]

    def polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
        c = [Fraction(1)]
        for q in roots:
            c = [(c[i - 1] if i else Fraction(0)) - q * (c[i] if i < len(c) else 0) for i in range(len(c) + 1)]
        return c + [Fraction(0)] * (size - len(c))

    others = [[q for q in points if q != p] for p in points]
    scale = [prod((p - q for q in rest), start=Fraction(1)) for p, rest in zip(points, others, strict=True)]
    b = [*map(polynomial, others), polynomial(points)]
    g = [[p**j / n for j in range(taps)] for p, n in zip(points, scale, strict=True)]
    g.append([Fraction(j // (taps - 1)) for j in range(taps)])
    a = [[*(p**i for p in points), Fraction(int(i == outputs - 1))] for i in range(outputs)]
    return Matrices(_flat(b), _flat(g), _flat(a))


def _flat(rows: list[list[Fraction]]) -> tuple[float, ...]:
    return tuple(float(v) for row in rows for v in row)
