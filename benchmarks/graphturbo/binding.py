"""Bind parts of slices to cores, and results of slices to memories. Paper: GraphTurbo §3.4, Algorithm 4.

The printed algorithm passes a binding on by one step only, because it looks at producers only where a slice has no
binding. Here every slice passes its own binding on. If a slice has another binding than its readers, its result goes
through the shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from benchmarks.graphturbo.slices import Name, Slice

Binding = tuple[int, ...]  # into how many parts each axis is cut, one for every core


class Move(NamedTuple):
    """Data that must move before a slice can read another slice's result. Paper: §3.5.

    `kind`: "copy" from the shared memory, or "redistribute" between local memories, to `binding`.
    """

    kind: str
    producer: Name
    reader: Name
    binding: Binding


class Bound(NamedTuple):
    """The binding of each slice's result, and whether the result stays in local memory; the moves; and the readers that
    first join pieces of a tensor from several producers (`concats`)."""

    bindings: Mapping[Name, Binding]
    near: Mapping[Name, bool]
    moves: Sequence[Move]
    concats: int


def plain_binding(shape: Sequence[int], cores: int) -> Binding:
    """Return the cores along each axis, outermost first: the most of 8, 4, 2, 1 that are left and divide the extent."""
    found = []
    for extent in shape:
        count = next(v for v in (8, 4, 2, 1) if v <= cores and extent % v == 0)
        found.append(count)
        cores //= count
    return tuple(found)


def redistributed(binding: Binding, other: Binding) -> Binding:
    """Return the binding in which data pass from one binding to another: the smaller part of each axis."""
    return tuple(map(min, binding, other))


def bound(order: Sequence[Slice], cores: int) -> Bound:
    """Return bindings and memories of slices that run in this order, from the last to the first. Paper: Algorithm 4."""
    bindings: dict[Name, Binding] = {}
    near = {one.name: True for one in order}
    extents = {one.name: tuple(high - low for low, high in one.box) for one in order}
    moves: list[Move] = []
    concats = 0
    for one in reversed(order):
        name = one.name
        plain = plain_binding(extents[name], cores)
        if (agreed := bindings.get(name)) is None or not near[name] or prod(plain) > prod(agreed):
            near[name] &= agreed in (None, plain)
            bindings[name] = plain
        for source, producers in _sources(one).items():
            concats += len(producers) > 1
            axes = one.group.outside[source].axes
            for producer in producers:
                wanted = _wanted(bindings[name], axes, extents[producer])
                if (theirs := bindings.setdefault(producer, wanted)) == wanted:
                    continue
                if len(producers) > 1 and near[producer]:
                    moves.append(Move("redistribute", producer, name, redistributed(theirs, wanted)))
                else:
                    near[producer] = False
    readers = ((p, one.name) for one in order for p in sorted(one.producers))
    moves += [Move("copy", p, name, bindings[p]) for p, name in readers if not near[p]]
    return Bound(bindings, near, moves, concats)


def _sources(one: Slice) -> dict[int, list[int]]:
    """Return the layers outside of a slice that it reads, each with the slices that wrote those parts."""
    made = {step.makes.piece for step in one.steps}
    found: dict[int, dict[int, None]] = {}
    for step in one.steps:
        for (name, source), _ in step.reads:
            if source >= 0 and (name, source) not in made:
                found.setdefault(source, {})[name] = None
    return {source: list(names) for source, names in found.items()}


def _wanted(binding: Binding, axes: Iterable[int | None], extents: Sequence[int]) -> Binding:
    """Return a reader's binding for what it reads: kept along axes that correspond, if the extent can be split so."""
    found = [1] * len(extents)
    for count, axis in zip(binding, axes, strict=True):
        if axis is not None and extents[axis] % count == 0:
            found[axis] = count
    return tuple(found)
