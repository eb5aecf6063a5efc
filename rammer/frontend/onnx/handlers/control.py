"""Control flow: conditions are decided, and loops unrolled, at compile time."""

from __future__ import annotations

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, TensorId


@handles("If")
def if_(n: Node) -> tuple[TensorId, ...]:
    """Only the branch that is taken is imported."""
    return n.subgraph(n.attrs["then_branch" if n.scalar(0, "cond") else "else_branch"], ())


@handles("Loop")
def loop(n: Node) -> list[TensorId]:
    """The trip count, and the condition after each step, must be known."""
    limit = n.scalar(0, "M") if n.has(0) else None
    alive = bool(n.scalar(1, "cond")) if n.has(1) else True
    carried = [n.tensor(p) for p in range(2, len(n.inputs))]
    collected: list[list[TensorId]] = [[] for _ in range(len(n.outputs) - len(carried))]
    step = 0
    while alive and (limit is None or step < limit):
        flag = n.constant(np.asarray(True))
        condition, *results = n.subgraph(n.attrs["body"], (n.constant(step, DType.I64), flag, *carried))
        if len(results) != len(carried) + len(collected):
            raise n.fail(f"the body has {len(results)} results instead of {len(carried) + len(collected)}")
        carried = results[: len(carried)]
        for part, tensor in zip(collected, results[len(carried) :], strict=True):
            part.append(n.reshape(tensor, (1, *n.type(tensor).shape)))
        known = n.builder.value(condition)
        if known is None:
            raise n.fail("the condition of the loop is not known at compile time", hint="loops are unrolled")
        alive = bool(known.all())
        step += 1
    if step == 0 and collected:
        raise n.fail("no step is taken, so that the shape of the outputs is unknown")
    return [*carried, *(n.concat(part, 0) for part in collected)]


@handles("Scan", since=8)
def scan_batched(n: Node) -> list[TensorId]:
    """Before opset 9 each sequence of a batch is scanned by itself, along its first axis."""
    operands, count = [n.tensor(p) for p in range(1, len(n.inputs))], n.attrs["num_scan_inputs"]
    if not 0 < count <= len(operands):
        raise n.fail(f"num_scan_inputs is {count}, with {len(operands)} inputs")
    backwards = n.attrs["directions"] or (0,) * count
    shapes = {n.type(t).shape[:2] for t in operands[len(operands) - count :]}
    if len(backwards) != count or len(shapes) != 1 or 0 in next(iter(shapes)) or len(next(iter(shapes))) != 2:
        raise n.fail(f"directions {list(backwards)} and inputs that begin with {sorted(shapes)} do not fit")
    ((batch, steps),) = shapes
    if n.has(0) and (n.value(0, "sequence_lens") != steps).any():
        raise n.fail("sequences are shorter than their tensors", hint="leave sequence_lens out, or cut the inputs")
    if any(n.type(t).shape[:1] != (batch,) for t in operands):
        raise n.fail(f"states have other batches than {batch}")
    made: list[list[TensorId]] = [[] for _ in n.outputs]
    for b in range(batch):
        own = [_element(n, t, 0, b) for t in operands]
        states, scanned = own[: len(own) - count], own[len(own) - count :]
        collected: list[list[TensorId]] = [[] for _ in range(len(n.outputs) - len(states))]
        for step in range(steps):
            ways = zip(scanned, backwards, strict=True)
            parts = [_element(n, t, 0, steps - 1 - step if back else step) for t, back in ways]
            results = list(n.subgraph(n.attrs["body"], (*states, *parts)))
            if len(results) != len(n.outputs):
                raise n.fail(f"the body has {len(results)} results instead of {len(n.outputs)}")
            states = results[: len(states)]
            for part, tensor in zip(collected, results[len(states) :], strict=True):
                part.append(_row(n, tensor))
        for whole, tensor in zip(made, (*states, *(n.concat(part, 0) for part in collected)), strict=True):
            whole.append(_row(n, tensor))
    return [n.concat(whole, 0) for whole in made]


def _row(n: Node, tensor: TensorId) -> TensorId:
    return n.reshape(tensor, (1, *n.type(tensor).shape))


@handles("Scan", since=9)
def scan(n: Node) -> list[TensorId]:
    """One copy of the body per element of the scanned axes."""
    a, count = n.attrs, n.attrs["num_scan_inputs"]
    if not 0 < count <= len(n.inputs):
        raise n.fail(f"num_scan_inputs is {count}, with {len(n.inputs)} inputs")
    states = [n.tensor(p) for p in range(len(n.inputs) - count)]
    scanned = [n.tensor(p) for p in range(len(states), len(n.inputs))]
    num_collected = len(n.outputs) - len(states)
    in_axes, in_back = (a[f"scan_input_{what}"] or (0,) * count for what in ("axes", "directions"))
    out_axes, out_back = (a[f"scan_output_{what}"] or (0,) * num_collected for what in ("axes", "directions"))
    if not len(in_axes) == len(in_back) == count or not len(out_axes) == len(out_back) == num_collected:
        raise n.fail("axes and directions do not fit the scanned inputs and outputs")
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
        results = list(n.subgraph(a["body"], (*states, *parts)))
        if len(results) != len(n.outputs):
            raise n.fail(f"the body has {len(results)} results instead of {len(n.outputs)}")
        states = results[: len(states)]
        for part, tensor in zip(collected, results[len(states) :], strict=True):
            part.append(tensor)
    joined = []
    for part, axis, back in zip(collected, out_axes, out_back, strict=True):
        shape = n.type(part[0]).shape
        place = n.axis(axis, len(shape) + 1)
        rows = [n.reshape(t, (*shape[:place], 1, *shape[place:])) for t in (reversed(part) if back else part)]
        joined.append(n.concat(rows, place))
    return [*states, *joined]


def _element(n: Node, tensor: TensorId, axis: int, place: int) -> TensorId:
    shape = n.type(tensor).shape
    starts = [place if d == axis else 0 for d in range(len(shape))]
    part = n.slice(tensor, starts, [1 if d == axis else e for d, e in enumerate(shape)])
    return n.reshape(part, [e for d, e in enumerate(shape) if d != axis])
