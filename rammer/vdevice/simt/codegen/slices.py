"""Describe the part of a constant that each rTask reads, as a compact copy; rewrite the kernel to read the copy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import TypeAlias

import numpy as np

from rammer.ir.analysis.access import Accesses
from rammer.ir.expr import Load, rewrite
from rammer.ir.index import Index, bounds, evaluate, variables
from rammer.ir.kernel import RKernel
from rammer.ir.remembered import remembered
from rammer.ir.tensor import Array
from rammer.ir.tile import Kind, Stmt, Store, TileProgram, rewrite_body

VECTOR_BYTES = 16
Terms: TypeAlias = tuple[tuple[int, int], ...]  # (coefficient, greatest value of what it multiplies)


@dataclass(frozen=True, slots=True)
class Run:
    """`count` rows of `nbytes`; `source` and `target` are byte offsets of the first in the constant and in the copy."""

    source: int
    target: int
    nbytes: int
    count: int = 1
    source_step: int = 0
    target_step: int = 0

    @property
    def unit(self) -> int:
        """Return the widest access in bytes that divides all offsets, sizes and steps."""
        numbers = (self.source, self.target, self.nbytes, self.source_step, self.target_step)
        return next(u for u in (VECTOR_BYTES, 4, 1) if all(n % u == 0 for n in numbers))


@dataclass(frozen=True, slots=True)
class OperandSlice:
    """The part of an operand that an rTask reads. Only its begin differs between rTasks.

    Element x of the part, counted from its begin, has place y in the copy. Each of `folds` removes the gaps between
    rows at one distance: y = x // distance * row + x % distance.
    """

    begin: Index  # in variables that are digits of the rTask
    digits: tuple[tuple[str, int, int], ...]  # (variable, stride, extent)
    folds: tuple[tuple[int, int], ...]  # (distance, row)
    size: int  # elements of the copy
    itemsize: int
    elements: int  # of the whole operand

    @property
    def nbytes(self) -> int:
        return -(-self.size * self.itemsize // VECTOR_BYTES) * VECTOR_BYTES

    def start(self, rtask: int) -> int:
        """Return the element of the operand where an rTask's part begins; negative if only its end lies inside."""
        return int(evaluate(self.begin, {name: rtask // stride % extent for name, stride, extent in self.digits}))

    def place(self, index: Index) -> Index:
        """Convert an index into the operand to one into the copy."""
        own = {name for name, _, _ in self.digits}
        kept = tuple(t for t in index.terms if not variables(Index(0, (t,))) <= own)
        const, terms = index.const - self.begin.const, kept
        for distance, row in self.folds:
            const = const // distance * row + const % distance
            terms = tuple((a, c // distance * row if c >= distance else c) for a, c in terms)
        return Index(const, terms)

    def runs(self, rtask: int) -> list[Run]:
        """Return the rows to copy, in bytes, without elements past the operand's ends."""
        return list(_runs(self, self.start(rtask)))


@lru_cache(maxsize=1 << 14)
def _runs(part: OperandSlice, start: int) -> tuple[Run, ...]:
    place: Array = np.arange(part.size, dtype=np.int64)
    element = place
    for distance, row in reversed(part.folds):
        element = element // row * distance + element % row
    element = element + start
    inside = (element >= 0) & (element < part.elements)
    place, element = place[inside], element[inside]
    if not len(place):
        return ()
    cut = np.flatnonzero((np.diff(element) != 1) | (np.diff(place) != 1)) + 1
    first = np.concatenate([[0], cut]).astype(np.int64)
    length = np.diff(np.append(first, len(place)))
    found: list[Run] = []
    for source, target, count in zip(element[first].tolist(), place[first].tolist(), length.tolist(), strict=True):
        piece = Run(source * part.itemsize, target * part.itemsize, count * part.itemsize)
        if found and (joined := _join(found[-1], piece)):
            found[-1] = joined
        else:
            found.append(piece)
    return tuple(found)


def _join(run: Run, row: Run) -> Run | None:
    """Return the run with one more row, or None if the row differs in size or distance."""
    last = run.count - 1
    steps = (row.source - run.source - last * run.source_step, row.target - run.target - last * run.target_step)
    if row.nbytes != run.nbytes or (run.count > 1 and steps != (run.source_step, run.target_step)):
        return None
    return replace(run, count=run.count + 1, source_step=steps[0], target_step=steps[1])


@remembered(1 << 12)
def slice_of(kernel: RKernel, position: int) -> OperandSlice | None:
    """Return what rTasks read of input number `position`; None unless it is one part that moves with the rTask."""
    body = kernel.body
    if not isinstance(body, TileProgram):
        return None
    buffer = body.arguments[body.num_outputs + position]
    digits: dict[str, tuple[str, int, int]] = {}
    forms: dict[
        tuple[Index, tuple[tuple[int, int], ...]], None
    ] = {}  # begin; (coefficient, greatest value) of the rest
    for access in Accesses(body).found:
        if access.buffer != buffer.name or access.write:
            continue
        if access.more:  # the index depends on data, or an instruction reads further
            return None
        tasks = {lp.var: (lp.var, lp.stride, lp.stop) for _, lp in access.loops if lp.kind is Kind.TASK}
        digits |= tasks
        begin, rest = Index(access.index.const), []
        for term in access.index.terms:
            one = Index(0, (term,))
            names = variables(one)
            if names <= tasks.keys():
                begin += one
                continue
            low, high = bounds(Index(0, ((term[0], 1),)), access.ranges)
            if names & tasks.keys() or term[1] < 0 or low < 0:
                return None
            rest.append((term[1], high))
        forms[begin, tuple(sorted(rest))] = None
    if not forms or len({begin.terms for begin, _ in forms}) > 1:
        return None
    itemsize = buffer.dtype.itemsize
    unit = max(VECTOR_BYTES // itemsize, 1)
    low = min(begin.const for begin, _ in forms) // unit * unit
    first = next(iter(forms))[0]
    size, folds = _compact([(begin.const - low, rest) for begin, rest in forms], unit)
    used = variables(first)
    elements = prod(kernel.input_types()[position].physical_shape)
    return OperandSlice(
        Index(low, first.terms),
        tuple(sorted(d for name, d in digits.items() if name in used)),
        folds,
        size,
        itemsize,
        elements,
    )


def _compact(forms: list[tuple[int, Terms]], unit: int) -> tuple[int, Terms]:
    """Return the size of a copy without gaps between rows, and its folds.

    Elements that vectors may read stay aligned.
    """
    folds: list[tuple[int, int]] = []
    while True:
        starts = sorted({const for const, _ in forms})
        distances = {c for _, rest in forms for c, _ in rest} | {b - a for a, b in pairwise(starts)}
        for distance in sorted(distances):
            if any(c >= distance and c % distance for _, rest in forms for c, _ in rest):
                continue
            inner = max(const % distance + sum(c * n for c, n in rest if c < distance) for const, rest in forms)
            grain = 1 if distance % unit else unit
            row = -(-(inner + 1) // grain) * grain
            if row < distance:
                folds.append((distance, row))
                forms = [
                    (
                        const // distance * row + const % distance,
                        tuple((c // distance * row if c >= distance else c, n) for c, n in rest),
                    )
                    for const, rest in forms
                ]
                break
        else:
            return (max(const + sum(c * n for c, n in rest) for const, rest in forms) + 1), tuple(folds)


@lru_cache(maxsize=1 << 12)
def reading_copies(kernel: RKernel, positions: frozenset[int]) -> RKernel:
    """Return the kernel that reads these inputs from their copies."""
    body = kernel.body
    assert isinstance(body, TileProgram)
    parts: dict[str, OperandSlice] = {}
    for position in positions:
        part = slice_of(kernel, position)
        assert part is not None
        parts[body.arguments[body.num_outputs + position].name] = part

    def leaf(load: Load) -> Load:
        part = parts.get(load.tensor)
        return Load(load.tensor, (part.place(load.index[0]),), load.dynamic) if part else load

    def moved(stmt: Stmt) -> Stmt:
        return replace(stmt, value=rewrite(stmt.value, leaf)) if isinstance(stmt, Store) else stmt

    return replace(kernel, body=replace(body, body=rewrite_body(body.body, moved)))
