"""Sums over windows with fewer products: the matrices of F(m, r), by Toom and Cook's construction.

Paper: Lavin and Gray 2015, arXiv:1509.09308. With `m` outputs of `r` taps, y = A' ((G w) * (B' x)), product by product.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import prod
from typing import NamedTuple

# By how many there are, but for the one at infinity: those that keep the error small.
POINTS: dict[int, tuple[Fraction | int, ...]] = {
    2: (0, -1),
    3: (0, 1, -1),
    4: (0, 1, -1, 2),
    5: (0, 1, -1, Fraction(1, 2), -2),
    6: (0, 1, -1, 2, -2, Fraction(-1, 2)),
}


class Matrices(NamedTuple):
    """Row by row: B' of the input, G of the weights, A' of the results."""

    data: tuple[float, ...]
    weights: tuple[float, ...]
    results: tuple[float, ...]


@cache
def matrices(outputs: int, taps: int) -> Matrices:
    """Those of F(outputs, taps). Raises KeyError where no points are known."""
    size = outputs + taps - 1
    points = [Fraction(p) for p in POINTS[size - 1]]

    def polynomial(roots: list[Fraction]) -> list[Fraction]:
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
