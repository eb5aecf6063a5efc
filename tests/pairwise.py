"""Choose few combinations of parameters in which every two values meet.

Known as: pairwise testing, covering array of strength two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product

import pytest

Combination = tuple[str, ...]


def cover(axes: Sequence[Iterable[str]], possible: Callable[..., bool] = lambda *_: True) -> list[Combination]:
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


def parameters(*axes: Sequence[str], possible: Callable[..., bool] = lambda *_: True) -> list[object]:
    """Return the whole product as pytest's parameters; possible combinations outside of the cover are slow."""
    chosen = set(cover(axes, possible))
    return [pytest.param(*c, marks=[pytest.mark.slow] * (possible(*c) and c not in chosen)) for c in product(*axes)]
