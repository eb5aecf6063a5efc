"""Which cores compute which part of a slice, and in which memory its result lies. Paper: GraphTurbo §3.4, Algorithm 4.

As printed, a binding would be handed on by one step only, as producers are looked at just where a slice had none
itself: here every slice hands its own on. Where a slice takes another binding than its readers agreed on, its result
goes through the shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from benchmarks.graphturbo.slices import Name, Slice

Binding = tuple[int, ...]  # into how many parts each axis is cut, one for every core


class Move(NamedTuple):
    """Data that must move before a slice can read what another one made. Paper: §3.5.

    `kind`: "copy" from the shared memory, or "redistribute" between the cores' own ones, by way of `binding`.
    """

    kind: str
    producer: Name
    reader: Name
    binding: Binding


class Bound(NamedTuple):
    """Of every slice the binding of its result, and whether that lies near; the moves, and readers that join several
    producers' pieces of a tensor first (`concats`)."""

    bindings: Mapping[Name, Binding]
    near: Mapping[Name, bool]
    moves: Sequence[Move]
    concats: int


def plain_binding(shape: Sequence[int], cores: int) -> Binding:
    """Cores from the outermost axis to the innermost: as many of 8, 4, 2, 1 as divide the extent, and are left."""
    found = []
    for extent in shape:
        count = next(v for v in (8, 4, 2, 1) if v <= cores and extent % v == 0)
        found.append(count)
        cores //= count
    return tuple(found)


def redistributed(binding: Binding, other: Binding) -> Binding:
    """The binding by which data pass from one to another: the smaller part of each axis."""
    return tuple(map(min, binding, other))


def bound(order: Sequence[Slice], cores: int) -> Bound:
    """Bindings and memories of slices that run in this order, from the last to the first. Paper: Algorithm 4."""
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
    """The layers outside that a slice reads, each with the slices that made what it reads."""
    made = {step.makes.piece for step in one.steps}
    found: dict[int, dict[int, None]] = {}
    for step in one.steps:
        for (name, source), _ in step.reads:
            if source >= 0 and (name, source) not in made:
                found.setdefault(source, {})[name] = None
    return {source: list(names) for source, names in found.items()}


def _wanted(binding: Binding, axes: Iterable[int | None], extents: Sequence[int]) -> Binding:
    """A reader's binding carried over to what it reads: kept where an axis follows, and its extent can be cut so."""
    found = [1] * len(extents)
    for count, axis in zip(binding, axes, strict=True):
        if axis is not None and extents[axis] % count == 0:
            found[axis] = count
    return tuple(found)
