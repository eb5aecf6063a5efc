"""Cache results about operations and rKernels by identity, to be dropped after a compilation.

Known as: memoization. The next compilation has other objects, so it cannot use these results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from typing import Any, TypeVar

Found = TypeVar("Found")

_caches: list[_lru_cache_wrapper[Any]] = []


def remembered(most: int) -> Callable[[Callable[..., Found]], _lru_cache_wrapper[Found]]:
    """Cache up to `most` results of a function until `forget`.

    Plain `lru_cache` would keep operations and rKernels alive that are unused elsewhere.
    """

    def wrap(function: Callable[..., Found]) -> _lru_cache_wrapper[Found]:
        cached = lru_cache(most)(function)
        _caches.append(cached)
        return cached

    return wrap


def forget() -> None:
    """Drop all cached results; later calls compute them again."""
    for cached in _caches:
        cached.cache_clear()
