"""Build the loops of a nest: how they cut axes, the value of each axis in loop variables, the remaining guards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from rammer.ir.expr import Range, Stage
from rammer.ir.index import Bounds, Index, bounds, simplify, var, variables
from rammer.ir.tile import Body, For, If, Kind
from rammer.kernels.lower.context import Context, Guards, Values
from rammer.kernels.schedule import Loop, is_group, members


@dataclass(slots=True)
class LoopLevel:
    """A loop of the nest. `stride` is its digit's weight in the task or thread id."""

    var: str
    extent: int
    loop: Loop
    stride: int = 1


@dataclass(frozen=True, slots=True)
class AxisDigits:
    """Parts of the values of a nest's axes: their own digits, numbers over groups of axes, and the blocks left."""

    own: Values
    groups: Values
    blocks: dict[str, int]

    def wraps(self, axis: str, env: Bounds) -> bool:
        """Check whether the number over a group counts past its end."""
        return bounds(self.groups[axis], env)[1] >= prod(self.blocks[a] for a in members(axis))

    def values(self, env: Bounds) -> Values:
        """Return the axes' values, including their parts of the numbers that count through several of them."""
        values = dict(self.own)
        for axis, number in self.groups.items():
            wraps, inner = self.wraps(axis, env), 1
            for n, a in reversed(list(enumerate(members(axis)))):
                digit = number // inner
                values[a] += simplify(digit % self.blocks[a] if n or wraps else digit, env)
                inner *= self.blocks[a]
        return values


@dataclass(frozen=True, slots=True)
class Nest:
    """The loops of one stage, the values of its axes in loop variables, and the conditions that keep these in bounds.

    Numbers over groups that count past the end wrap around: `once` keeps points from being stored twice.
    """

    bands: list[LoopLevel]
    values: Values
    guards: Guards
    once: tuple[Range, ...]
    numbers: AxisDigits


def cut(
    ctx: Context,
    stage: Stage,
    loops: tuple[Loop, ...],
    origin: Values,
    extent: dict[str, int],
    prefix: str = "",
    threads: int = 0,
) -> Nest:
    """Name the loops. Compute every axis in loop variables, and guards where a step does not divide its block.

    `threads` walk the nest together; 0: all threads of the task.
    """
    left = {**extent, **dict(stage.reduce)}
    numbers = AxisDigits({**origin, **{a: Index() for a, _ in stage.reduce}}, {}, left)
    guards: dict[str, list[tuple[Index, int]]] = {a: [] for a in left}
    bands: dict[int, LoopLevel] = {}
    # digits of an axis, largest first; a group has what is left of its axes
    for depth, loop in sorted(enumerate(loops), key=lambda item: (is_group(item[1].axis), -item[1].step)):
        axis = loop.axis
        if missing := [a for a in loop.axes if a not in guards]:
            raise ctx.fail(stage, f"no axis {', '.join(map(repr, missing))}; it has {', '.join(guards)}")
        if loop.kind is Kind.TASK and any(b.loop.axis == axis and b.loop.kind is not Kind.TASK for b in bands.values()):
            raise ctx.fail(stage, f"a task digit of {axis!r} is smaller than a digit inside the task")
        if is_group(axis) and axis not in left:
            left[axis], numbers.groups[axis] = prod(left[a] for a in loop.axes), Index()
        size, name = left[axis], f"{prefix}{'lin' if is_group(axis) else axis}{depth}"
        count = -(-size // loop.step)
        offset = var(name) * loop.step if count > 1 else Index()
        if is_group(axis):
            numbers.groups[axis] += offset
        else:
            numbers.own[axis] += offset
            edges = [*guards[axis], *([(Index(), size)] if size % loop.step else [])]
            guards[axis] = [(ix + offset, high) for ix, high in edges]
        ctx.env[name] = (0, max(count - 1, 0))
        bands[depth] = LoopLevel(name, count, loop)
        left[axis] = _block(ctx, stage, loop, size)
    nest = [bands[depth] for depth in range(len(loops))]
    _number_ids(ctx, stage, nest, threads or ctx.threads)
    return _guarded(ctx, stage, nest, numbers, guards)


def _block(ctx: Context, stage: Stage, loop: Loop, size: int) -> int:
    """Return the block that a loop leaves of an axis.

    Several threads walk whole blocks: the schedule fixes their number.
    """
    whole = size == dict(stage.axes).get(loop.axis)  # a part is followed by other data, not by padding
    if ctx.threads > 1 or (loop.step > size and whole and ctx.fills(stage, loop.axis, loop.step)):
        return loop.step
    return min(loop.step, size)


def _number_ids(ctx: Context, stage: Stage, bands: list[LoopLevel], threads: int) -> None:
    """Set the weights of digits in the task and thread ids: the innermost digit runs fastest."""
    stride = 1
    for kind in (Kind.TASK, Kind.THREAD):
        stride = 1
        for band in reversed([b for b in bands if b.loop.kind is kind]):
            band.stride, stride = stride, stride * band.extent
    if stride != threads:
        raise ctx.fail(stage, f"thread loops make {stride} threads, not {threads}")


def _guarded(
    ctx: Context, stage: Stage, bands: list[LoopLevel], numbers: AxisDigits, guards: dict[str, list[tuple[Index, int]]]
) -> Nest:
    """Return the nest with the conditions of numbers over groups. Raises LoweringError if points are left out."""
    values = numbers.values(ctx.env)
    once: list[Range] = []
    walked = {a for axis in numbers.groups for a in members(axis)}
    for axis, left in numbers.blocks.items():
        if left > 1 and axis not in walked:
            raise ctx.fail(stage, f"axis {axis!r} is walked in steps of {left}", hint=f"add Loop({axis!r})")
    for axis, number in numbers.groups.items():
        names = members(axis)
        for a in names:
            guards[a] = [(ix + values[a] - numbers.own[a], high) for ix, high in guards[a]]
        if numbers.wraps(axis, ctx.env):
            total = prod(numbers.blocks[a] for a in names)
            if names and names[0] in dict(stage.reduce):
                guards[names[0]].append((number, total))
            else:
                once.append(Range(number, 0, total))
    ranges = {a: tuple(Range(ix, 0, high) for ix, high in found) for a, found in guards.items()}
    if stage.name in ctx.at:  # a box may reach past the tensor's edge
        ranges |= {a: (*ranges[a], Range(values[a], 0, e)) for a, e in stage.axes}
    return Nest(bands, values, ranges, tuple(once), numbers)


def under(where: tuple[Range, ...], body: Body) -> Body:
    """Return a body under conditions, if there are any."""
    return (If(where, body),) if where else body


def looped(bands: list[LoopLevel], body: Body, before: Callable[[int], Body] = lambda n: ()) -> Body:
    """Put `body` into the loops, in each after `before(its number)`. Guards are hoisted as far as possible."""
    for n in reversed(range(len(bands))):
        band = bands[n]
        body = before(n) + body
        if band.extent == 1:
            continue
        free: tuple[Range, ...] = ()
        match body:
            case (If(where, then),) if free := tuple(r for r in where if band.var not in variables(r.index)):
                body = under(tuple(r for r in where if r not in free), then)
        body = under(free, (For(band.var, 0, band.extent, band.loop.kind, body, band.stride),))
    return body
