"""Import control flow at compile time: decide conditions, and unroll loops.

Raises Undecided where that is impossible. A session then runs bodies as programs of their own (`control_flow.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto

from rammer.errors import ModelError
from rammer.frontend.onnx.node import Node, Undecided, handles
from rammer.frontend.onnx.parts import reads
from rammer.frontend.onnx.ports import Value
from rammer.ir.tensor import DType, TensorId


@handles("If")
def if_(n: Node) -> tuple[Value | None, ...]:
    """Import only the branch that is taken."""
    taken = n.subgraph(n.attrs["then_branch" if _number(n, 0, "the condition") else "else_branch"], ())
    if len(taken) != len(n.outputs):
        raise n.fail(f"the branch has {len(taken)} results instead of {len(n.outputs)}")
    return taken


@handles("Loop")
def loop(n: Node) -> list[Value | None]:
    """Unroll a loop. The trip count, and the condition after each step, must be known."""
    limit = _number(n, 0, "the trip count") if n.has(0) else None
    if limit is not None and limit < 0:
        raise n.fail(f"the trip count is {limit}")
    alive = bool(_number(n, 1, "the condition")) if n.has(1) else True
    carried = list(n.inputs[2:])
    collected: list[list[TensorId]] = [[] for _ in range(len(n.outputs) - len(carried))]
    step, lasts = 0, limit is not None and _condition_lasts(n.attrs["body"], n.limits.depth)
    while alive and (limit is None or step < limit):
        _require_step_limit(n, limit - 1 if limit and step and lasts else step)
        alive, carried, parts = _step(n, step, carried, len(collected))
        for part, tensor in zip(collected, parts, strict=True):
            part.append(tensor)
        step += 1
    if step == 0 and collected:  # import one step for the shapes of its outputs
        _, _, parts = _step(n, 0, carried, len(collected), runs=False)
        return [*carried, *(n.constant(np.zeros((0, *n.type(t).shape)), n.type(t).dtype) for t in parts)]
    return [*carried, *(n.stack(part, 0) for part in collected)]


def _step(
    n: Node, step: int, carried: Sequence[Value | None], num_collected: int, *, runs: bool = True
) -> tuple[bool, list[Value | None], list[TensorId]]:
    """Import one step. Return whether another step follows, the values carried on, and the collected ones."""
    given = (n.constant(step, DType.I64), n.constant(np.asarray(True)), *carried)
    condition, *results = n.subgraph(n.attrs["body"], given)
    if len(results) != len(carried) + num_collected:
        raise n.fail(f"the body has {1 + len(results)} results instead of {1 + len(carried) + num_collected}")
    alive = False
    if runs:
        flag = n.only_tensor(condition, "the condition")
        alive = bool(n.known(flag, "the condition of the loop", Undecided).all())
    collected = [n.only_tensor(value, "what a step adds to an output") for value in results[len(carried) :]]
    return alive, results[: len(carried)], collected


def _condition_lasts(body: GraphProto, depth: int) -> bool:
    """Return whether a step's condition follows from the one before alone, so that it holds always if it holds once.

    Such a loop with too many steps is refused after one. Importing all that a program may have takes seconds.
    """
    needed = {body.output[0].name} if body.output else set()
    for node in reversed(body.node):
        if not needed.isdisjoint(node.output):
            needed.update(reads(node, depth))
    return needed.isdisjoint(value.name for at, value in enumerate(body.input) if at != 1)


def _number(n: Node, position: int, what: str) -> int:
    """Return a number that control flow depends on. Raises Undecided if it is unknown."""
    value = n.known(n.tensor(position), what, Undecided)
    if value.size != 1:
        raise n.fail(f"{what} has {value.size} elements instead of one")
    return int(value.item())


def _require_step_limit(n: Node, step: int) -> None:
    """Raise Undecided beyond the limit of steps in one program."""
    if step >= n.limits.steps:
        raise Undecided(
            f"takes more than {n.limits.steps} steps",
            node=n.label,
            op=n.op,
            hint="a program has them one after another; rammer.Session runs the body as often as it takes",
        )


@handles("Scan")
def scan_batch(n: Node) -> list[TensorId]:
    """Scan axis 1 of each element of a batch separately, as opset 8 does."""
    states, scanned = _operands(n, first=1)
    if n.has(0) and any(n.type(t).shape[1:2] != (e,) for t in scanned for e in n.ints(0, "sequence_lens")):
        raise n.fail("sequences are shorter than their tensors", hint="leave sequence_lens out, or cut the inputs")
    batches = {n.type(t).shape[:1] for t in (*states, *scanned)}
    if len(batches) != 1 or batches & {(), (0,)}:
        raise n.fail(f"states and scanned inputs have batches {sorted(batches)}")
    ((batch,),) = batches
    ways = scan_ways({"scan_input_directions": n.attrs["directions"]}, "input", len(scanned), n.fail)
    rows = []
    for b in range(batch):
        first = [n.pick(t, 0, b) for t in states]
        parts = [n.pick(t, 0, b) for t in scanned]
        last, collected = _steps(n, first, parts, ways, len(n.outputs) - len(states))
        rows.append([*last, *(n.stack(part, 0) for part in collected)])
    return [n.stack(column, 0) for column in zip(*rows, strict=True)]


@handles("Scan", since=9)
def scan(n: Node) -> list[TensorId]:
    """Import one copy of the body per element of the scanned axes."""
    states, scanned = _operands(n)
    num_collected = len(n.outputs) - len(states)
    ways = scan_ways(n.attrs, "output", num_collected, n.fail)
    states, collected = _steps(n, states, scanned, scan_ways(n.attrs, "input", len(scanned), n.fail), num_collected)
    joined = []
    for part, (axis, back) in zip(collected, ways, strict=True):
        place = n.axis(axis, n.type(part[0]).rank + 1)
        joined.append(n.stack(part[::-1] if back else part, place))
    return [*states, *joined]


def scan_ways(
    attributes: Mapping[str, Any], side: str, number: int, fail: Callable[[str], ModelError]
) -> list[tuple[int, int]]:
    """Return axis and direction (1: backwards) of each of the `number` scanned inputs or outputs (`side`).

    Raises `fail(…)` for attributes that do not fit them.
    """
    axes, directions = (attributes.get(f"scan_{side}_{what}") or (0,) * number for what in ("axes", "directions"))
    if not len(axes) == len(directions) == number:
        raise fail(f"axes and directions do not fit {number} scanned {side}s")
    if unknown := set(directions) - {0, 1}:
        raise fail(f"scan_{side}_directions has {min(unknown)}, a direction is 0 or 1")
    return list(zip(axes, directions, strict=True))


def _operands(n: Node, first: int = 0) -> tuple[list[TensorId], list[TensorId]]:
    """Return the initial states and the scanned inputs."""
    count = n.attrs["num_scan_inputs"]
    if not 0 < count <= len(n.inputs) - first:
        raise n.fail(f"num_scan_inputs is {count}, with {len(n.inputs) - first} inputs")
    tensors = [n.tensor(p) for p in range(first, len(n.inputs))]
    return tensors[:-count], tensors[-count:]


def _steps(
    n: Node, states: list[TensorId], scanned: list[TensorId], ways: Sequence[tuple[int, int]], num_collected: int
) -> tuple[list[TensorId], list[list[TensorId]]]:
    """Import all steps. Return the last states, and each step's part of the scanned outputs."""
    places = [n.axis(axis, n.type(t).rank) for (axis, _), t in zip(ways, scanned, strict=True)]
    extents = {n.type(t).shape[axis] for axis, t in zip(places, scanned, strict=True)}
    if len(extents) != 1 or 0 in extents:
        raise n.fail(f"scanned inputs have {sorted(extents)} elements")
    (steps,) = extents
    collected: list[list[TensorId]] = [[] for _ in range(num_collected)]
    for step in range(steps):
        _require_step_limit(n, step)
        parts = [
            n.pick(t, axis, steps - 1 - step if back else step)
            for t, axis, (_, back) in zip(scanned, places, ways, strict=True)
        ]
        values = n.subgraph(n.attrs["body"], (*states, *parts))
        results = [n.only_tensor(value, "a result of the body") for value in values]
        if len(results) != len(n.outputs):
            raise n.fail(f"the body has {len(results)} results instead of {len(n.outputs)}")
        states = results[: len(states)]
        for part, tensor in zip(collected, results[len(states) :], strict=True):
            part.append(tensor)
    return states, collected
