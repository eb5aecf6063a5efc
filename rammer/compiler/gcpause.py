"""Memory while something is compiled: the garbage collector runs less often, and afterwards caches are emptied.

Compiling makes very many objects, and hardly any cycles of them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from rammer.ir.remembered import forget

YOUNG = 100_000  # objects that are made between two collections of the youngest; 700 or 2,000 are usual

_lock = Lock()
_inside = 0
_usual = (0, 0, 0)


@contextmanager
def seldom() -> Iterator[None]:
    """Let the collector run less often inside of it, in any thread; where it is off, it stays off.

    What was remembered of operations and rKernels is forgotten when the last thread is done.
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
