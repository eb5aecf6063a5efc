"""Control flow: conditions are decided, and loops unrolled, at compile time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.ports import Value
from rammer.ir.tensor import DType, TensorId


@handles("If")
def if_(n: Node) -> tuple[Value | None, ...]:
    """Only the branch that is taken is imported."""
    return n.subgraph(n.attrs["then_branch" if n.scalar(0, "cond") else "else_branch"], ())


@handles("Loop")
def loop(n: Node) -> list[Value | None]:
    """The trip count, and the condition after each step, must be known."""
    limit = n.scalar(0, "M") if n.has(0) else None
    alive = bool(n.scalar(1, "cond")) if n.has(1) else True
    carried = list(n.inputs[2:])
    collected: list[list[TensorId]] = [[] for _ in range(len(n.outputs) - len(carried))]
    step = 0
    while alive and (limit is None or step < limit):
        flag = n.constant(np.asarray(True))
        condition, *results = n.subgraph(n.attrs["body"], (n.constant(step, DType.I64), flag, *carried))
        if len(results) != len(carried) + len(collected):
            raise n.fail(f"the body has {len(results)} results instead of {len(carried) + len(collected)}")
        carried = results[: len(carried)]
        for part, value in zip(collected, results[len(carried) :], strict=True):
            part.append(n.only_tensor(value, "what a step adds to an output"))
        alive = bool(n.known(n.only_tensor(condition, "the condition"), "the condition of the loop").all())
        step += 1
    if step == 0 and collected:
        raise n.fail("no step is taken, so that the shape of the outputs is unknown")
    return [*carried, *(n.stack(part, 0) for part in collected)]


@handles("Scan")
def scan_batch(n: Node) -> list[TensorId]:
    """Opset 8 scans axis 1 of each element of a batch by itself."""
    states, scanned = _operands(n, first=1)
    if n.has(0) and any(n.type(t).shape[1:2] != (e,) for t in scanned for e in n.ints(0, "sequence_lens")):
        raise n.fail("sequences are shorter than their tensors", hint="leave sequence_lens out, or cut the inputs")
    batches = {n.type(t).shape[:1] for t in (*states, *scanned)}
    if len(batches) != 1 or batches & {(), (0,)}:
        raise n.fail(f"states and scanned inputs have batches {sorted(batches)}")
    ((batch,),) = batches
    directions = n.attrs["directions"] or (0,) * len(scanned)
    rows = []
    for b in range(batch):
        first = [_element(n, t, 0, b) for t in states]
        parts = [_element(n, t, 0, b) for t in scanned]
        last, collected = _steps(n, first, parts, [0] * len(parts), directions, len(n.outputs) - len(states))
        rows.append([*last, *(n.stack(part, 0) for part in collected)])
    return [n.stack(column, 0) for column in zip(*rows, strict=True)]


@handles("Scan", since=9)
def scan(n: Node) -> list[TensorId]:
    """One copy of the body per element of the scanned axes."""
    a = n.attrs
    states, scanned = _operands(n)
    num_collected = len(n.outputs) - len(states)
    in_axes, in_back = (a[f"scan_input_{what}"] or (0,) * len(scanned) for what in ("axes", "directions"))
    out_axes, out_back = (a[f"scan_output_{what}"] or (0,) * num_collected for what in ("axes", "directions"))
    if not len(out_axes) == len(out_back) == num_collected:
        raise n.fail("axes and directions do not fit the scanned outputs")
    states, collected = _steps(n, states, scanned, in_axes, in_back, num_collected)
    joined = []
    for part, axis, back in zip(collected, out_axes, out_back, strict=True):
        place = n.axis(axis, n.type(part[0]).rank + 1)
        joined.append(n.stack(part[::-1] if back else part, place))
    return [*states, *joined]


def _operands(n: Node, first: int = 0) -> tuple[list[TensorId], list[TensorId]]:
    """The initial states, and what is scanned."""
    count = n.attrs["num_scan_inputs"]
    if not 0 < count <= len(n.inputs) - first:
        raise n.fail(f"num_scan_inputs is {count}, with {len(n.inputs) - first} inputs")
    tensors = [n.tensor(p) for p in range(first, len(n.inputs))]
    return tensors[:-count], tensors[-count:]


def _steps(
    n: Node,
    states: list[TensorId],
    scanned: list[TensorId],
    in_axes: Sequence[int],
    in_back: Sequence[int],
    num_collected: int,
) -> tuple[list[TensorId], list[list[TensorId]]]:
    """The last states, and every step's part of each scanned output."""
    if not len(in_axes) == len(in_back) == len(scanned):
        raise n.fail("axes and directions do not fit the scanned inputs")
    places = [n.axis(axis, n.type(t).rank) for axis, t in zip(in_axes, scanned, strict=True)]
    extents = {n.type(t).shape[axis] for axis, t in zip(places, scanned, strict=True)}
    if len(extents) != 1 or 0 in extents:
        raise n.fail(f"scanned inputs have {sorted(extents)} elements")
    (steps,) = extents
    collected: list[list[TensorId]] = [[] for _ in range(num_collected)]
    for step in range(steps):
        parts = [
            _element(n, t, axis, steps - 1 - step if back else step)
            for t, axis, back in zip(scanned, places, in_back, strict=True)
        ]
        results = [
            n.only_tensor(value, "a result of the body") for value in n.subgraph(n.attrs["body"], (*states, *parts))
        ]
        if len(results) != len(n.outputs):
            raise n.fail(f"the body has {len(results)} results instead of {len(n.outputs)}")
        states = results[: len(states)]
        for part, tensor in zip(collected, results[len(states) :], strict=True):
            part.append(tensor)
    return states, collected


def _element(n: Node, tensor: TensorId, axis: int, place: int) -> TensorId:
    shape = n.type(tensor).shape
    starts = [place if d == axis else 0 for d in range(len(shape))]
    part = n.slice(tensor, starts, [1 if d == axis else e for d, e in enumerate(shape)])
    return n.reshape(part, [e for d, e in enumerate(shape) if d != axis])
