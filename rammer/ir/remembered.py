"""Cache results of functions until a compilation ends, and results of methods for as long as their object lives.

Known as: memoization. Results about operations and rKernels are cached by identity. The next compilation has other
objects, so it cannot use these results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache, wraps
from typing import Any, TypeVar, cast

Found = TypeVar("Found")
Method = TypeVar("Method", bound=Callable[..., Any])

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


def memoized(method: Method) -> Method:
    """Cache the results of a method in its object, by its arguments, which are positional."""
    name = f"results of {method.__qualname__}"

    @wraps(method)
    def found(self: object, *arguments: Any) -> Any:
        results = vars(self).setdefault(name, {})
        if arguments not in results:
            results[arguments] = method(self, *arguments)
        return results[arguments]

    return cast(Method, found)
