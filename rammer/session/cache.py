"""Cache programs by signature: compile each on first use, and close it once it is evicted and idle.

Known as: an LRU cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rammer.errors import closed
from rammer.runtime.program import Program

RequestT = TypeVar("RequestT")
InfoT = TypeVar("InfoT")


@dataclass
class CachedProgram(Generic[InfoT]):
    """A compiled signature and the caller's `info` about it. `program` is None if there is nothing to run."""

    program: Program | None
    info: InfoT
    signature: str
    compile_s: float
    counts: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # bounded output -> axis, output of its size
    runs: int = 0
    used: int = 0  # number of the last run, of all that the cache has seen
    users: int = 0  # threads that run it now
    evicted: bool = False

    def close_unused(self) -> None:
        """Close an evicted program if no thread runs it."""
        if self.program and self.evicted and not self.users:
            self.program.close()


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts so far. A miss is a run that had to compile first."""

    hits: int = 0
    misses: int = 0
    compiled_ahead: int = 0
    evictions: int = 0
    compile_s: float = 0.0


class ProgramCache(Generic[RequestT, InfoT]):
    """The `limit` programs used last. Safe to use from several threads.

    One thread compiles at a time, because compiling measures times. `key` gives a request's signature. It may
    distinguish more requests after a compilation than before it, so `_add` calls it again.
    """

    def __init__(
        self, limit: int, key: Callable[[RequestT], Hashable], compile: Callable[[RequestT], CachedProgram[InfoT]]
    ) -> None:
        self._limit, self._key, self._compile = limit, key, compile
        self._kept: dict[Hashable, CachedProgram[InfoT]] = {}
        self._used = 0
        self._hits = self._misses = self._ahead = self._evictions = 0
        self._compile_s = 0.0
        self._lock = threading.Lock()  # guards everything above, held briefly
        self._compiling = threading.Lock()
        self._closed = False

    def acquire(self, request: RequestT, *, ahead: bool = False) -> tuple[CachedProgram[InfoT], bool]:
        """Return the program of a signature, and whether it had to be compiled. It stays open until `release`."""
        kept = self._find(request, ahead)
        if kept is not None:
            return kept, False
        with self._compiling:
            kept = self._find(request, ahead)  # another thread may have compiled it
            return (kept, False) if kept is not None else (self._add(request, ahead), True)

    def reacquire(self, kept: CachedProgram[InfoT]) -> bool:
        """Acquire a program that was acquired before. False if it was evicted."""
        with self._lock:
            if not kept.evicted:
                kept.users += 1
                self._count(kept, 1)
            return not kept.evicted

    def release(self, kept: CachedProgram[InfoT], more: int = 0) -> None:
        """Report that a run is done, and `more` like it; -1 if there was none."""
        with self._lock:
            kept.users -= 1
            self._count(kept, more)
        kept.close_unused()

    def count(self, kept: CachedProgram[InfoT]) -> None:
        """Report a run of a program that was not acquired."""
        with self._lock:
            self._count(kept, 1)

    def _count(self, kept: CachedProgram[InfoT], runs: int) -> None:
        kept.runs += runs
        self._hits += runs
        kept.used = self._used = self._used + 1

    def counts(self) -> Counts:
        """Return hits, misses, evictions and seconds of compilation."""
        with self._lock:
            return Counts(self._hits, self._misses, self._ahead, self._evictions, self._compile_s)

    def kept(self) -> tuple[CachedProgram[InfoT], ...]:
        """Return the programs, the one used last at the end."""
        with self._lock:
            return tuple(sorted(self._kept.values(), key=lambda kept: kept.used))

    def close(self) -> None:
        """Close every program once its runs end. Later requests raise InputError."""
        with self._lock:
            self._closed = True
        self._shrink(0)

    def _find(self, request: RequestT, ahead: bool) -> CachedProgram[InfoT] | None:
        with self._lock:
            if self._closed:
                raise closed("session", "open another one")
            kept = self._kept.get(self._key(request))
            if kept is not None:
                kept.users += 1
                self._count(kept, int(not ahead))
            return kept

    def _add(self, request: RequestT, ahead: bool) -> CachedProgram[InfoT]:
        kept = self._compile(request)
        kept.users, kept.runs = 1, int(not ahead)
        with self._lock:
            self._compile_s += kept.compile_s
            self._misses += not ahead
            self._ahead += ahead
            kept.used = self._used = self._used + 1
            self._kept[self._key(request)] = kept
            limit = 0 if self._closed else self._limit
        self._shrink(limit)
        return kept

    def _shrink(self, limit: int) -> None:
        """Evict the least recently used programs."""
        out = []
        with self._lock:
            while len(self._kept) > limit:
                out.append(self._kept.pop(min(self._kept, key=lambda key: self._kept[key].used)))
                out[-1].evicted = True
                self._evictions += 1
        for kept in out:
            kept.close_unused()
