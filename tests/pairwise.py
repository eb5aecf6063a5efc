"""Choose few combinations of parameters in which every two values meet.

Known as: pairwise testing, covering array of strength two.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations, product

import pytest

Combination = tuple[Hashable, ...]


def cover(axes: Sequence[Iterable[Hashable]], possible: Callable[..., bool] = lambda *_: True) -> list[Combination]:
    """Return combinations that hold every pair of values of two axes that some possible combination holds.

    Greedy: takes the combination with the largest number of new pairs, the first of equal ones.
    """
    left = {c: set(combinations(enumerate(c), 2)) for c in product(*axes) if possible(*c)}
    chosen = []
    while left:
        best = max(left, key=lambda c: len(left[c]))
        if not (new := left.pop(best)):
            break
        chosen.append(best)
        for pairs in left.values():
            pairs -= new
    return chosen


def pairs(*, possible: Callable[..., bool] = lambda *_: True, **axes: Iterable[Hashable]) -> pytest.MarkDecorator:
    """Parametrize a test with the whole product of its arguments' values; what the cover leaves out is slow."""
    values = [list(axis) for axis in axes.values()]
    chosen = set(cover(values, possible))
    marks = {c: [pytest.mark.slow] if possible(*c) and c not in chosen else [] for c in product(*values)}
    return pytest.mark.parametrize(tuple(axes), [pytest.param(*c, marks=marks[c]) for c in marks])
