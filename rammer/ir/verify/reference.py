"""Compute what an output's expression reads for single elements, to compare the trace of a tile program with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.dependency import BoxReader, place_of, places_of
from rammer.ir.analysis.intervals import NOTHING, Intervals, merged, missing, union
from rammer.ir.analysis.simplify import scalar_conditions
from rammer.ir.expr import Call, Const, Load, Role, Scalar, Select, TensorExpr, mapped, recast, rewrite, substitute_axes
from rammer.ir.kernel import RKernel
from rammer.ir.tensor import TensorType
from rammer.ir.tile import TileProgram
from rammer.ir.verify.flow import Points

IN_PARTS = "by parts from"
MOST_ROLES = 256  # of a stage that are distinguished


@dataclass(frozen=True, slots=True)
class _Load:
    """Elements that one load of an expression reads for an element: what it must, and what it may."""

    role: Role
    least: Intervals
    most: Intervals


class Reference:
    """Sources of one output of an rKernel, by its expression."""

    def __init__(self, kernel: RKernel, output: str, kind: TensorType) -> None:
        operation, body = kernel.operation, kernel.body
        stages = operation.expr.stages
        names = [b.name for b in body.arguments] if isinstance(body, TileProgram) else []
        self.kind = kind
        self.axes = [a for a, _ in operation.expr.root.axes]
        self.sums = {prod(e for _, e in s.reduce) for s in stages if s.reduce}
        self.exact = kernel.form is None  # a table's zeros leave elements out
        self.counted = self.exact and not any(True for s in stages for _ in scalar_conditions(s.body))
        lazy = replace(kernel, operation=replace(operation, expr=_lazy(operation.expr)))
        inputs = names[len(operation.outputs) :]
        self.readers = {
            name: (BoxReader(lazy, n, output, MOST_ROLES), BoxReader(kernel, n, output, MOST_ROLES))
            for n, name in enumerate(inputs)
        }

    def differs(self, points: Points, sources: Mapping[str, Points], roles: Sequence[Role]) -> tuple[str, bool] | None:
        """Describe the first element with wrong sources, and whether that is certain; None if all are right.

        Where a program computes in other steps than the expression, roles cannot be compared one by one.
        """
        found_places, held = places_of(self.kind, points)
        at = {a: found_places[held, dim] for dim, a in enumerate(self.axes)}
        places = [place if there else None for place, there in zip(found_places.tolist(), held.tolist(), strict=True)]
        for name, (least, most) in self.readers.items():
            pairs = sources[name]
            if self.exact and _all_between(least.of_each(at), most.of_each(at), pairs, held, roles):
                continue  # the usual case
            alike = {roles[n] for n in np.unique(pairs[:, 1]).tolist()} == {role for _, role in most.loads}
            starts = np.searchsorted(pairs[:, 0], np.arange(len(places) + 1))
            for tag, place in enumerate(places):
                if place is None:
                    continue
                box = {a: (p, p + 1) for a, p in zip(self.axes, place, strict=True)}
                reads = most.by_load(box)
                found = _by_role(pairs[starts[tag] : starts[tag + 1]], roles)
                if not most.exact:
                    continue
                lows = least.by_load(box)
                loads = [_Load(load[1], lows.get(load, NOTHING), high) for load, high in reads.items()]
                if what := self._wrong(loads, found, alike):
                    verb, stray = what
                    return f"{place} is computed {verb} {name}[{stray[0, 0]}]", verb != IN_PARTS
        return None

    def _wrong(self, loads: list[_Load], found: Mapping[Role, Intervals], alike: bool) -> tuple[str, Intervals] | None:
        """Return what is read too much, or too little, for one element; per role if roles are `alike`."""
        if len(more := missing(union(list(found.values())), union([ld.most for ld in loads]))):
            return "from", more
        if not self.exact:
            return None
        if len(less := missing(union([ld.least for ld in loads]), union(list(found.values())))):
            return "without", less
        for role in {ld.role for ld in loads} if alike else ():
            own = [ld for ld in loads if ld.role == role]
            if len(more := missing(found.get(role, NOTHING), union([ld.most for ld in own]))):
                return f"({' '.join(role)}) from", more
            if len(less := missing(union([ld.least for ld in own]), found.get(role, NOTHING))):
                return f"({' '.join(role)}) without", less
        # Elements that are read together must be all that some loads read. Many roles read the same elements.
        distinct = {(ld.least.tobytes(), ld.most.tobytes()): ld for ld in loads}.values()
        for elements in () if alike else {e.tobytes(): e for e in found.values()}.values():
            whole = [ld.most for ld in distinct if not len(missing(ld.least, elements))]
            if len(more := missing(elements, union(whole))):
                return IN_PARTS, more
        return None

    def miscounts(self, elements: Points, terms: Mapping[str, Points]) -> str:
        """Describe the first element for which some sum has other terms than a reduction of the expression."""
        for name, counts in terms.items() if self.counted else ():
            wrong = [tag for tag, n in enumerate(counts.tolist()) if all(n % total for total in self.sums if total)]
            for tag in wrong:
                if (place := place_of(self.kind, int(elements[tag]))) is not None:
                    return f"{list(place)} is computed from {counts[tag]} terms in {name}, not of {sorted(self.sums)}"
        return ""


def _all_between(
    least: Mapping[Role, Points] | None,
    most: Mapping[Role, Points] | None,
    pairs: Points,
    held: NDArray[np.bool_],
    roles: Sequence[Role],
) -> bool:
    """Return whether each tag that holds an element has all reads of `least`, and only reads of `most`, per role.

    `pairs` has rows (tag, role, element).
    """
    if least is None or most is None:
        return False
    tags = np.cumsum(held) - 1
    pairs = pairs[held[pairs[:, 0]]]
    found = {roles[n]: pairs[pairs[:, 1] == n][:, ::2] for n in np.unique(pairs[:, 1]).tolist()}
    if not found.keys() <= most.keys():
        return False
    nothing = pairs[:0, ::2]
    for role, high in most.items():
        own = found.get(role, nothing)
        own = np.stack([tags[own[:, 0]], own[:, 1]], 1)
        low = least.get(role, nothing)
        span = 1 + max(int(rows[:, 1].max(initial=0)) for rows in (low, own, high))
        low, own, high = (_numbered(rows, span) for rows in (low, own, high))
        if len(missing(own, high)) or len(missing(low, own)):
            return False
    return True


def _numbered(rows: Points, span: int) -> Intervals:
    """Return sorted rows of (tag, element) as numbers."""
    numbers = rows[:, 0] * span + rows[:, 1]
    return merged(numbers, numbers + 1)


def _by_role(pairs: Points, roles: Sequence[Role]) -> dict[Role, Intervals]:
    """Return elements by role, from rows (tag, role, element)."""
    found: dict[Role, Intervals] = {}
    for number in np.unique(pairs[:, 1]).tolist():
        own = pairs[pairs[:, 1] == number, 2]
        found[roles[number]] = merged(own, own + 1)
    return found


def _lazy(expr: TensorExpr) -> TensorExpr:
    """Return the expression with fewer reads: next to padding, the other factor of a product is not read."""
    pad = {s.name: s for s in expr.stages if not s.reduce and isinstance(s.body, Select) and s.body.other == Const(0.0)}

    def leaf(load: Load) -> Scalar:
        if load.tensor not in pad:
            return load
        stage = pad[load.tensor]
        return substitute_axes(stage.body, dict(zip((a for a, _ in stage.axes), load.index, strict=True)))

    return replace(expr, stages=tuple(replace(s, body=_needed(recast(rewrite(s.body, leaf)))) for s in expr.stages))


def _needed(value: Scalar) -> Scalar:
    """Move padding out of products."""
    match value:
        case Call(
            "mul", (Select(where, then, Const(0) as zero), other) | (other, Select(where, then, Const(0) as zero))
        ):
            args = (then, other) if value.args[0] is not other else (other, then)
            return Select(where, Call("mul", (_needed(args[0]), _needed(args[1]))), zero)
        case Load():
            return value
    return mapped(value, _needed)
