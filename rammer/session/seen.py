"""Run a signature that a session has seen before at once: look for its program by the inputs' own types and shapes.

Known as: an inline cache, guards. A program checks its inputs in C; only fixed values are compared here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

import numpy as np

from rammer.session.cache import CachedProgram, InfoT
from rammer.session.outputs import cut_counted


class SeenSignature(Generic[InfoT]):
    """A program with the values of the inputs that are constants in it. `results` are outputs that need no program."""

    def __init__(self, kept: CachedProgram[InfoT], fixed: Mapping[str, Any], results: Mapping[str, Any]) -> None:
        self.kept, self._results, self._counts = kept, results, kept.counts
        self._fixed = [(name, value.dtype, value.shape, value.tobytes()) for name, value in fixed.items()]
        self._try_run = kept.program._try_run if kept.program else self._given

    def run(self, inputs: Any) -> dict[str, Any] | None:
        """Return all outputs; None if the program is closed, or is not one for these inputs."""
        if self._fixed:
            if type(inputs) is not dict:
                return None
            inputs = inputs.copy()
            for name, dtype, shape, data in self._fixed:
                value = inputs.pop(name, None)
                if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
                    return None
                if value.tobytes() != data:
                    return None
        found = self._try_run(inputs)  # type: ignore[misc]  # asked for by `remembered`
        return cut_counted(found, self._counts) if self._counts and found is not None else found

    def _given(self, others: Any) -> dict[str, Any] | None:
        return None if others else {name: value.copy() for name, value in self._results.items()}


class SeenSignatures(Generic[InfoT]):
    """The programs that calls may use without any other check, the one used last first. Safe to use from threads."""

    def __init__(self, count: Callable[[CachedProgram[InfoT]], None]) -> None:
        self._count = count
        self._seen: tuple[SeenSignature[InfoT], ...] = ()

    def run(self, inputs: Any) -> dict[str, Any] | None:
        """Return all outputs; None if no program is known to be the one for these inputs."""
        for seen in self._seen:
            if (found := seen.run(inputs)) is not None:
                self._count(seen.kept)
                if seen is not self._seen[0]:
                    self._seen = (seen, *(other for other in self._seen if other is not seen))
                return found
        return None

    def remember(
        self, kept: CachedProgram[InfoT], given: Mapping[str, Any], results: Mapping[str, Any], outputs: Sequence[str]
    ) -> None:
        """Remember the program that has just run on the `given` arrays, if its calls need no conversion."""
        inputs, found = (
            [[p.name for p in ports] for ports in kept.program.image.ports] if kept.program else [[], [*results]]
        )
        suits = kept.program is None or kept.program._try_run is not None
        known = tuple(seen for seen in self._seen if not seen.kept.evicted)
        sizes = {size for _, size in kept.counts.values()}
        suits = suits and [n for n in found if n not in sizes] == [*outputs] and given.keys() >= {*inputs}
        suits = suits and all(type(v) is np.ndarray and not v.dtype.hasobject for v in given.values())
        if suits and all(seen.kept is not kept for seen in known):
            fixed = {name: value for name, value in given.items() if name not in inputs}
            self._seen = (SeenSignature(kept, fixed, results), *known)

    def forget(self) -> None:
        self._seen = ()
