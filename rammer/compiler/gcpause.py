"""Run the garbage collector less often during compilation, and empty caches afterwards.

Compiling allocates very many objects, and hardly any cycles.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from rammer.ir.remembered import forget

YOUNG = 100_000  # objects that are allocated between two collections of the youngest; Python's default is 700 or 2,000

_lock = Lock()
_inside = 0
_usual = (0, 0, 0)


@contextmanager
def seldom() -> Iterator[None]:
    """Run the collector less often inside of the block, in any thread. If it is off, it stays off.

    Memoized results on operations and rKernels are dropped when the last thread leaves.
    """
    global _inside, _usual
    with _lock:
        if not _inside:
            _usual = gc.get_threshold()
            if _usual[0]:
                gc.set_threshold(max(_usual[0], YOUNG), *_usual[1:])
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                gc.set_threshold(*_usual)
                forget()
