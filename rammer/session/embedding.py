"""Find where the elements of an exact graph's tensors are in a padded graph, operator by operator.

Known as: a layout or index analysis. Usually a tensor is the first elements in every dimension. But a recurrent layer
multiplies all steps of a batch at once: [T, B, I] becomes [T * B, I], and row t * B + b is row t * B' + b of the padded
tensor. So a dimension is a list of digits, each with its exact and padded extent: ((T, T), (B, B')). An operator that
computes element by element along such a dimension keeps it; reshapes, slices and concatenations split and join its
digits. Everything else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rammer.ir.analysis.simplify import simplify_index, undecided
from rammer.ir.expr import Const, ConstantTable, Iota, Load, Scalar, Select, Stage, mapped, nodes
from rammer.ir.index import Bounds, Index, var, variables
from rammer.ir.operator import Operation
from rammer.ir.tensor import Shape

Digit: TypeAlias = tuple[int, int]  # extent in the exact tensor, and in the padded one
Dimension: TypeAlias = tuple[Digit, ...]  # the most significant digit first
Embedding: TypeAlias = tuple[Dimension, ...]


class Different(Exception):
    """Elements of a result would differ from those of the exact graph; the text says why."""


def prefix(exact: Shape, padded: Shape) -> Embedding:
    """Embed a tensor as the first elements in every dimension."""
    return tuple((digit,) for digit in zip(exact, padded, strict=True))


def is_prefix(embedding: Embedding) -> bool:
    """Check whether a tensor is the first elements in every dimension."""
    return all(len(digits) == 1 for digits in embedding)


def results(
    exact: Operation, padded: Operation, operands: Sequence[Embedding], *, masked: bool = False
) -> list[Embedding]:
    """Embed the results of an operator, given its operands. Raises Different.

    With `masked` operands a reduction may be longer: the additional elements change nothing.
    """
    try:
        _require_same(exact, padded, masked=masked)
        return _along(exact, padded, operands)
    except Different:
        found = _moved(exact, padded, operands)
        if found is None:
            raise
        return [found]


def _require_same(exact: Operation, padded: Operation, *, masked: bool) -> None:
    """Raise Different unless each element of the exact result is the same formula of elements in both."""
    if len(exact.expr.stages) != len(padded.expr.stages):
        raise Different("it has other stages")
    for a, b in zip(exact.expr.stages, padded.expr.stages, strict=True):
        if (a.name, a.combine, a.dtype) != (b.name, b.combine, b.dtype):
            raise Different("it has other stages")
        if [n for n, _ in (*a.axes, *a.reduce)] != [n for n, _ in (*b.axes, *b.reduce)]:
            raise Different("it has other dimensions")
        if a.reduce != b.reduce and not masked:
            raise Different("it reduces a padded dimension")
        if any(e > f for (_, e), (_, f) in zip((*a.axes, *a.reduce), (*b.axes, *b.reduce), strict=True)):
            raise Different("it has a smaller result")
        if _canonical(a, a.body) != _canonical(a, b.body):
            raise Different("elements are computed from others")


def _along(exact: Operation, padded: Operation, operands: Sequence[Embedding]) -> list[Embedding]:
    """Embed the results of the same formula.

    A dimension of several digits must be one of its axes, with no other use.
    """
    known = dict(zip((name for name, _ in exact.expr.inputs), operands, strict=True))
    for a, b in zip(exact.expr.stages, padded.expr.stages, strict=True):
        axes = _joint_axes(a, known)
        extents = {name: (e, f) for (name, e), (_, f) in zip(a.axes, b.axes, strict=True)}
        for name, digits in axes.items():
            if name not in extents or _extents(digits) != extents[name]:
                raise Different("it sums, or takes a part of, a dimension that is joined of padded ones")
        known[a.name] = tuple(axes.get(name) or (extents[name],) for name, _ in a.axes)
    return [known[name] for name, _ in exact.expr.outputs]


def _joint_axes(stage: Stage, known: Mapping[str, Embedding]) -> dict[str, Dimension]:
    """Find the axes that have several digits, because tensors that they index do. Raises Different."""
    if all(is_prefix(known[node.tensor]) for node in nodes(stage.body) if isinstance(node, Load)):
        return {}
    axes: dict[str, Dimension] = {}
    others: set[str] = set()  # axes with any other use
    for node in nodes(_canonical(stage, stage.body)):
        match node:
            case Load(tensor, index, dynamic):
                moved = {d.dim for d in dynamic}
                for dim, (place, digits) in enumerate(zip(index, known[tensor], strict=True)):
                    name = next(iter(variables(place)), "")
                    if len(digits) == 1:
                        others |= variables(place)
                    elif place != var(name) or dim in moved or axes.setdefault(name, digits) != digits:
                        raise Different("it takes a dimension apart that is joined of padded ones")
            case Iota(index) | ConstantTable(_, index):
                others |= variables(index)
            case Select(where):
                others |= {name for condition in where for name in variables(condition.index)}
    if not others.isdisjoint(axes):
        raise Different("it counts along a dimension that is joined of padded ones")
    return axes


def _moved(exact: Operation, padded: Operation, operands: Sequence[Embedding]) -> Embedding | None:
    """Embed the result of an operator that moves elements by splitting or joining digits; None for any other one."""
    shapes = exact.outputs[0].shape, padded.outputs[0].shape
    if not (exact.kind == padded.kind and all(map(all, shapes))):
        return None
    match exact.kind:
        case "reshape":
            return _reshaped([digit for digits in operands[0] for digit in digits], *shapes)
        case "slice":
            values = [[op.attr(name) for name in ("starts", "steps", "shape")] for op in (exact, padded)]
            boxes = [list(zip(*value, strict=True)) for value in values]
            parts = [_cut(*part) for part in zip(operands[0], *boxes, strict=True)]
            return tuple(p for p in parts if p is not None) if None not in parts else None
        case "concat" if exact.attr("axis") == padded.attr("axis"):
            axis = exact.attr("axis") % len(shapes[0])
            if any(e[:axis] + e[axis + 1 :] != operands[0][:axis] + operands[0][axis + 1 :] for e in operands):
                return None
            joined = _joined([e[axis] for e in operands], shapes[1][axis])
            return None if joined is None else (*operands[0][:axis], joined, *operands[0][axis + 1 :])
    return None


def _reshaped(digits: list[Digit], exact: Shape, padded: Shape) -> Embedding | None:
    """Distribute the digits of a tensor, in order, over the dimensions of another shape."""
    left = digits[::-1]
    found: list[Dimension] = []
    for extent, larger in zip(exact, padded, strict=True):
        own: list[Digit] = []
        while (rest := (extent, larger)) != (1, 1):
            if not left:
                return None
            e, f = left.pop()
            if not (extent % e or larger % f):
                extent, larger = extent // e, larger // f
                own.append((e, f))
            elif e % extent == 0 and f % larger == 0 and e // extent == f // larger:
                own.append(rest)
                left.append((e // extent, f // larger))
                extent = larger = 1
            else:
                return None
        found.append(_normal(own))
    return tuple(found) if all(digit == (1, 1) for digit in left) else None


def _cut(digits: Dimension, exact: tuple[int, int, int], padded: tuple[int, int, int]) -> Dimension | None:
    """Slice a dimension by the exact and the padded (start, step, count); None unless both take the same elements.

    Of several digits, a slice takes whole positions of the first one.
    """
    (start, step, count), (at, by, many) = exact, padded
    if len(digits) == 1:
        return ((count, many),) if (start, step) == (at, by) and count <= many else None
    inner, wide = _extents(digits[1:])
    if step != 1 or by != 1 or start % inner or count % inner or at % wide or many % wide:
        return None
    first = count // inner, many // wide
    return _normal([first, *digits[1:]]) if start // inner == at // wide and first[0] <= first[1] else None


def _joined(parts: Sequence[Dimension], padded: int) -> Dimension | None:
    """Concatenate dimensions: count the repetitions of their common last digits. None if these differ.

    `padded` is the extent of the padded result, which may have more parts at its end.
    """
    number, tails = 0, set()
    for digits in parts:
        whole = len(digits) > 1 and digits[0][0] == digits[0][1]
        number += digits[0][0] if whole else 1
        tails.add(digits[1:] if whole else digits)
    if len(tails) != 1:
        return None
    tail = tails.pop()
    repeated, rest = divmod(padded, _extents(tail)[1])
    return _normal([(number, repeated), *tail]) if not rest and repeated >= number else None


def _normal(digits: Sequence[Digit]) -> Dimension:
    """Merge digits: an unpadded one belongs to the digit before it."""
    found: list[Digit] = []
    for e, f in digits:
        if found and e == f:
            found[-1] = (found[-1][0] * e, found[-1][1] * f)
        elif (e, f) != (1, 1):
            found.append((e, f))
    return tuple(found) or ((1, 1),)


def _extents(digits: Dimension) -> Digit:
    exact = padded = 1
    for e, f in digits:
        exact, padded = exact * e, padded * f
    return exact, padded


def _canonical(stage: Stage, body: Scalar) -> Scalar:
    """Return a body over the axes of a stage, normalized so that equal ones compare equal."""
    extents: Bounds = {name: (0, extent - 1) for name, extent in (*stage.axes, *stage.reduce)}

    def index(given: Index) -> Index:
        return simplify_index(given, extents)

    def walk(value: Scalar) -> Scalar:
        match value:
            case Const():
                return Const(repr(value.value), value.dtype)  # type: ignore[arg-type]  # NaN equals itself, 0 not -0
            case Load(tensor, places, dynamic):
                return mapped(Load(tensor, tuple(map(index, places)), dynamic), walk)
            case Select(where, then, other):
                open_ = undecided(where, extents)
                return Select(open_, walk(then), walk(other)) if open_ else walk(other if open_ is None else then)
        return mapped(value, walk, index)

    return walk(body)
