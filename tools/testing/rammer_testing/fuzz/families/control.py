"""Generate control flow: loops and scans with known trip counts, branches with known conditions."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto, ValueInfoProto, helper

from rammer_testing.fuzz import sizes
from rammer_testing.fuzz.sketch import BOOL, FLOAT, I64, Sketch, Unfit

PLAIN = ("Tanh", "Relu", "Sigmoid", "Neg", "Abs")


def start(s: Sketch) -> None:
    r = s.random
    s.input((sizes.extent(r, 12), sizes.rows(r), sizes.channels(r, 256)))


def value(name: str, dtype: int, shape: tuple[int, ...]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def loop(s: Sketch) -> None:
    """Add a loop: a carried state, and maybe a value of every iteration."""
    x = s.pick(lambda k: k.dtype == FLOAT and k.rank in (2, 3))
    shape = s.shape(x)
    n, count = shape[-1], s.random.randint(1, 6)
    name = f"loop{len(s.nodes)}_"
    w = s.weights(n, n)
    s.spend(count * s.kinds[x].size * n)
    i, going, h, again, y, m = (name + part for part in ("i", "going", "h", "again", "y", "m"))
    nodes = [
        helper.make_node("Identity", [going], [again]),
        helper.make_node("MatMul", [h, w], [m]),
        helper.make_node(s.random.choice(PLAIN), [m], [y]),
    ]
    outputs = [value(again, BOOL, ()), value(y, FLOAT, shape)]
    leaves = s.chance(0.5)
    if leaves:
        nodes.append(helper.make_node("Add", [y, h], [name + "left"]))
        outputs.append(value(name + "left", FLOAT, shape))
    body = helper.make_graph(
        nodes, "body", [value(i, I64, ()), value(going, BOOL, ()), value(h, FLOAT, shape)], outputs
    )
    operands = (s.constant(count), s.constant(True, BOOL) if s.chance(0.5) else "", x)
    nested(s, "Loop", operands, [shape, (count, *shape)] if leaves else [shape], body=body)


def scan(s: Sketch) -> None:
    """Add a cell stepped over the first axis."""
    x = s.pick(lambda k: k.dtype == FLOAT and k.rank == 3)
    steps, batch, n = s.shape(x)
    if steps > 20:
        raise Unfit
    h = s.input((batch, n), FLOAT, -1, 1)
    w = s.weights(n, n)
    s.spend(steps * batch * n * n)
    name = f"scan{len(s.nodes)}_"
    state, now, m, a, after, left = (name + part for part in ("state", "now", "m", "a", "after", "left"))
    nodes = [
        helper.make_node("MatMul", [state, w], [m]),
        helper.make_node("Add", [m, now], [a]),
        helper.make_node("Tanh", [a], [after]),
        helper.make_node(s.random.choice(PLAIN), [after], [left]),
    ]
    ends = [value(after, FLOAT, (batch, n)), value(left, FLOAT, (batch, n))]
    body = helper.make_graph(nodes, "body", [value(state, FLOAT, (batch, n)), value(now, FLOAT, (batch, n))], ends)
    attrs = {"scan_input_directions": [1]} if s.chance(0.3) else {}
    nested(s, "Scan", (h, x), [(batch, n), (steps, batch, n)], body=body, num_scan_inputs=1, **attrs)


def branch(s: Sketch) -> None:
    """Add an If with a known condition."""
    x = s.pick(lambda k: k.dtype == FLOAT)
    name = f"if{len(s.nodes)}_"
    branches = [
        helper.make_graph([helper.make_node(op, [x], [name + tag])], tag, [], [value(name + tag, FLOAT, s.shape(x))])
        for op, tag in zip(s.random.sample(PLAIN, 2), ("then", "else"), strict=True)
    ]
    condition = s.constant(s.chance(0.5), BOOL)
    nested(s, "If", (condition,), [s.shape(x)], then_branch=branches[0], else_branch=branches[1])


def nested(s: Sketch, op: str, operands: tuple[str, ...], shapes: list[tuple[int, ...]], **attrs: Any) -> None:
    """Add a node with subgraphs; its outputs are floats of these shapes."""
    s.trust(op, operands, [(TensorProto.FLOAT, shape) for shape in shapes], **attrs)


STEPS = ((3, loop), (3, scan), (2, branch))
SIZE = (1, 3)
