"""What was found of operations and rKernels, by identity. Those of one compilation are of no use to the next."""

from __future__ import annotations

from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from typing import Any, TypeVar

Found = TypeVar("Found")

_caches: list[_lru_cache_wrapper[Any]] = []


def remembered(most: int) -> Callable[[Callable[..., Found]], _lru_cache_wrapper[Found]]:
    """Let a function remember `most` results until `forget`: as `lru_cache`, which would keep what nobody else has."""

    def wrap(function: Callable[..., Found]) -> _lru_cache_wrapper[Found]:
        cached = lru_cache(most)(function)
        _caches.append(cached)
        return cached

    return wrap


def forget() -> None:
    """Drop all that is remembered; whoever asks for it is answered anew."""
    for cached in _caches:
        cached.cache_clear()
