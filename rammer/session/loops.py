"""Run the loops over one body: with its program, or with one whose growing values have bounds.

A carried value that grows by Concat in each step (tokens, a cache) has memory for a power of two of rows. One program
then serves all its lengths, if the proof of growing_cache.py holds; a longer loop goes on with the next power. Bodies
for which this is not exact are left to the caller, which compiles them for each length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from rammer.errors import ClosedError, InputError, ModelError
from rammer.ir.graph import RANDOM_RUN
from rammer.ir.tensor import Array, NamedArrays
from rammer.session.buckets import REMEMBERED, length_name, place_name
from rammer.session.driven import DrivenLoop, Fail
from rammer.vdevice.base import TakesSteps

if TYPE_CHECKING:
    from rammer.session import Session
    from rammer.session.cache import CachedProgram

FIRST_STEPS = 256  # for which growing values have memory at first, if the loop may take more
FACTOR = 4  # and how much more they get whenever it is full

READY = 8  # most loops that keep their buffers
LEAST_STEPS = 8  # at least so many
Axes: TypeAlias = Mapping[str, tuple[int, int]]  # input -> the dimension in which it grows, and the rows of a step
# input -> this dimension, its symbol, the most rows, and those of a step
Bounds: TypeAlias = Mapping[str, tuple[int, str, int, int]]


class _ReadyLoop(NamedTuple):
    """A loop with buffers of its own, and the program that it runs."""

    session: Session
    kept: CachedProgram[Any]
    loop: DrivenLoop


class BodyLoops:
    """The loops over a body whose outputs are inputs of the next step by `pairs`. Safe to use from several threads.

    `opened` returns the session of a body, given values of its inputs, and maybe bounds of inputs that grow.
    """

    def __init__(
        self,
        pairs: Mapping[str, str],
        opened: Callable[..., Session | None],
        most: tuple[int, int],
        fail: Fail,
        ports: tuple[Sequence[str], str | None, str | None],
    ) -> None:
        self._pairs, self._opened, self._most, self._fail = pairs, opened, most, fail
        self._collected, self._again, self._counter = ports
        self.ready: dict[Hashable, _ReadyLoop] = {}  # loops that do not run now, by shapes and bounds
        self._axes: dict[Hashable, Axes] = {}  # dimensions in which inputs grow, by types
        self._refused: set[Hashable] = set()  # shapes of which no bound is exact

    def run(self, given: Mapping[str, Any], limit: int, scanned: NamedArrays) -> list[Any] | None:
        """Take at most `limit` steps. Return what is carried on, and what each output has collected.

        Returns None if no single program runs all steps.
        """
        key = _key(given, {})
        if key in self._refused:
            return None
        ready = self._take(key)
        if ready is None:
            axes = self._growing(given)
            if axes:
                return self._run_growing(given, axes, limit, scanned)
            ready = self._made(self._opened(given, {}), given, scanned, {})
        if ready is None:
            self._refuse(key)
            return None
        carried, rows = self._run(ready, key, given, limit, scanned)
        return [*(carried[name] for name in self._pairs.values()), *rows]

    def _run_growing(self, given: Mapping[str, Any], axes: Axes, limit: int, scanned: NamedArrays) -> list[Any] | None:
        """Take steps for which there is room, and then others with more room."""
        taken, now, parts = 0, dict(given), list[list[Array]]()
        room = min(limit, FIRST_STEPS)
        while True:
            bounds = _bounds(now, axes, room)
            ready = self._bounded(now, bounds, scanned)
            if ready is None:
                return None
            fit, axis_of = ready.kept.info.grown.fit, ready.session._growing.axes
            lengths = {symbol: now[name].shape[axis] for name, (axis, symbol) in axis_of.items()}
            rest = {name: array[taken:] for name, array in scanned.items()}
            fed, key = now | fit.fed(lengths), _key(now, bounds)
            carried, rows = self._run(ready, key, fed, min(limit - taken, room), rest, taken)
            parts.append(rows)
            taken += ready.loop.steps
            after = {symbol: at + ready.loop.steps * fit.steps[symbol] for symbol, at in lengths.items()}
            for name, (axis, symbol) in axis_of.items():
                carried[name] = carried[name][(slice(None),) * axis + (slice(after[symbol]),)].copy()
            if not ready.loop.alive or taken == limit:
                break
            now |= carried
            now |= {name: np.full_like(now[name], taken) for name in filter(None, (self._counter,))}
            room = min(limit - taken, FACTOR * room)
        joined = [rows[0] if len(rows) == 1 else np.concatenate(rows) for rows in zip(*parts, strict=True)]
        return [*(carried[name] for name in self._pairs.values()), *joined]

    def _refuse(self, key: Hashable) -> None:
        if len(self._refused) >= REMEMBERED:
            self._refused.clear()
        self._refused.add(key)

    def _growing(self, given: Mapping[str, Any]) -> Axes:
        """Return the inputs that grow in one dimension each, as a first step shows it."""
        key = tuple((kind(value), getattr(value, "ndim", None)) for value in given.values())
        if key not in self._axes:
            session, axes = self._opened(given, {}), dict[str, tuple[int, int]]()
            try:
                types = {} if session is None or session._stages else session.output_types(given)
            except ModelError:
                types = {}  # the body itself raises it again
            for output, name in self._pairs.items() if types else ():
                before, after = given[name].shape, types[output].shape
                longer = [d for d, extents in enumerate(zip(before, after, strict=False)) if extents[0] < extents[1]]
                if len(longer) == 1 and len(before) == len(after):
                    axes[name] = longer[0], after[longer[0]] - before[longer[0]]
            self._axes[key] = axes  # as many as there are types
        return self._axes[key]

    def _bounded(self, given: Mapping[str, Any], bounds: Bounds, scanned: NamedArrays) -> _ReadyLoop | None:
        """Return a loop with these bounds; None if they need too much memory, or are not exact: then for good."""
        if ready := self._take(_key(given, bounds)):
            return ready
        sizes = [given[n].nbytes // max(given[n].shape[axis], 1) * most for n, (axis, _, most, _) in bounds.items()]
        if sum(sizes) > self._most[1]:
            return None
        try:
            ready = self._made(self._opened(given, bounds), given, scanned, bounds)
        except ClosedError:  # of bodies with bounds a few are kept; if all is closed, the next run raises it
            return None
        except (ModelError, InputError):
            ready = None
        if ready is None:
            self._refuse(_key(given, {}))
        return ready

    def _take(self, key: Hashable) -> _ReadyLoop | None:
        """Return a loop that was run before, and is not run by another thread."""
        ready = self.ready.pop(key, None)
        return ready if ready and ready.session._cache.reacquire(ready.kept) else None

    def _made(
        self, session: Session | None, given: Mapping[str, Any], scanned: NamedArrays, bounds: Bounds
    ) -> _ReadyLoop | None:
        """Return a new loop; None if no program of the session can be its body."""
        counters = dict.fromkeys(filter(None, (self._counter,)), 1)
        kept = session.held(given, {*self._pairs.values(), *scanned, *counters}) if session else None
        if session is None or kept is None or kept.program is None:
            return None
        grown, now = kept.info.grown, given
        suits = isinstance(kept.program.executable, TakesSteps) and not kept.program.image.signature
        if grown is not None:
            counters |= {name(s): by for s, by in grown.fit.steps.items() for name in (place_name, length_name)}
            now = {**given, **grown.fit.fed(dict.fromkeys(grown.fit.steps, 0))}
            suits = suits and grown.fit.cuts.keys() <= self._pairs.keys()
            suits = suits and all(grown.fit.steps[symbol] == by for _, symbol, _, by in bounds.values())
        if not suits:
            session._cache.release(kept, -1)
            return None
        if any(port.name == RANDOM_RUN for port in kept.program.inputs):
            counters[RANDOM_RUN], now = 1, {**now, RANDOM_RUN: session.draw()}
        loop = DrivenLoop(kept.program, now, scanned, self._collected, self._again, counters)
        return _ReadyLoop(session, kept, loop)

    def _run(
        self,
        ready: _ReadyLoop,
        key: Hashable,
        given: Mapping[str, Any],
        limit: int,
        scanned: NamedArrays,
        taken: int = 0,
    ) -> tuple[dict[str, Array], list[Array]]:
        if ready.loop.draws:
            given = {**given, RANDOM_RUN: ready.session.draw()}
        try:
            found = ready.loop.run(given, scanned, limit, self._most, self._fail, taken)
        finally:
            ready.session._cache.release(ready.kept, max(ready.loop.steps - 1, 0))
        if ready.session._deciding.isdisjoint(given):
            if len(self.ready) >= READY:
                self.ready.clear()
            self.ready[key] = ready
        return found


def _bounds(given: Mapping[str, Any], axes: Axes, steps: int) -> Bounds:
    """Return bounds for so many steps: a power of two. Dimensions that are equal and grow equally have one symbol."""
    rows = {name: (given[name].shape[axis], by) for name, (axis, by) in axes.items()}
    symbols = {pair: f"rows {n}" for n, pair in enumerate(dict.fromkeys(rows.values()))}
    most: dict[tuple[int, int], int] = {}
    for length, by in symbols:
        bound = 1 << (length + by * max(steps, LEAST_STEPS) - 1).bit_length()
        most[length, by] = next(n for n in count(bound) if n not in most.values())  # masks find symbols by extents
    return {name: (axis, symbols[rows[name]], most[rows[name]], by) for name, (axis, by) in axes.items()}


def kind(value: Any) -> Hashable:
    """Return a key that is equal for values of one type, whatever their shapes."""
    return tuple(map(kind, value[:1])) if isinstance(value, list) else getattr(value, "dtype", None)


def _key(given: Mapping[str, Any], bounds: Bounds) -> Hashable:
    """Return a key of types and shapes, with the bounds of what grows."""
    shapes = {name: getattr(value, "shape", None) for name, value in given.items()}
    for name, (axis, *bound) in bounds.items():
        shapes[name] = (*given[name].shape[:axis], *bound, *given[name].shape[axis + 1 :])
    return *map(kind, given.values()), *shapes.values()
