"""Generate recurrent layers of every kind, and cells written out with a carried state."""

from __future__ import annotations

from typing import Any

from rammer_testing.fuzz import sizes
from rammer_testing.fuzz.sketch import DOUBLE, FLOAT, HALF, I32, Sketch, Unfit

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
MAX_STEPS = 200  # of all layers of one model together, as layers are unrolled


def start(s: Sketch) -> None:
    r = s.random
    batch = sizes.rows(r) if s.chance(0.3) else sizes.batch(r)
    s.input((sizes.sequence(r), batch, sizes.channels(r)), r.choice((FLOAT,) * 14 + (DOUBLE, HALF)))


def steps_left(s: Sketch) -> int:
    """Return the time steps that may still be unrolled."""
    used = 0
    for node in s.nodes:
        if node.op_type in GATES:
            used += s.shape(node.input[0])[0] * (2 if s.shape(node.input[1])[0] == 2 else 1)
    return MAX_STEPS - used


def layer(s: Sketch) -> None:
    """Add an LSTM, GRU or RNN, sometimes with initial state, lengths and biases."""
    x = s.floats(3)
    steps, batch, features = s.shape(x)
    op, hidden, dtype = s.random.choice(("LSTM", "LSTM", "GRU", "GRU", "RNN")), sizes.channels(s.random), s.dtype(x)
    direction = s.random.choice(("forward", "forward", "reverse", "bidirectional", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    if steps * ways > steps_left(s):
        raise Unfit
    width = GATES[op] * hidden
    w, r = (s.weights(ways, width, e, terms=e, dtype=dtype) for e in (features, hidden))
    operands = [x, w, r, s.weights(ways, 2 * width, terms=4, dtype=dtype) if s.chance(0.8) else ""]
    lengths = s.chance(0.1)
    operands.append(s.constant(s.numpy.integers(1, steps + 1, batch), I32) if lengths else "")
    if s.chance(0.3):
        operands.append(s.input((ways, batch, hidden), dtype, -1, 1))
        if op == "LSTM":
            operands.append(s.input((ways, batch, hidden), dtype, -1, 1))
            if s.chance(0.2):
                operands.append(s.weights(ways, 3 * hidden, terms=4, dtype=dtype))
    elif op == "LSTM" and s.chance(0.05):
        operands += ["", "", s.weights(ways, 3 * hidden, terms=4, dtype=dtype)]
    attrs: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
    if op == "GRU":
        attrs["linear_before_reset"] = s.random.choice((0, 1, 1))
    if op == "RNN" and s.chance(0.3):
        attrs["activations"] = ["Relu"] * ways
    y, *_ = s.multi(
        op,
        *operands,
        outputs=3 if op == "LSTM" else 2,
        work=steps * batch * width * (features + hidden) * ways,
        **attrs,
    )
    form = s.random.choice(("squeeze", "merge", "leave"))
    if form == "squeeze" and ways == 1:
        s.node("Squeeze", y, s.constant([1]))
    elif form != "leave":
        y = s.node("Transpose", y, perm=[0, 2, 1, 3])
        s.node("Reshape", y, s.constant([steps, batch, ways * hidden]))


def cell(s: Sketch) -> None:
    """Add one to four steps of an LSTM cell written out, with gates cut by Split or by slices."""
    batch, hidden, dtype = sizes.rows(s.random), sizes.channels(s.random), FLOAT
    features = sizes.channels(s.random)
    steps = s.random.randint(1, 4)
    h, c = s.input((batch, hidden), dtype, -1, 1), s.input((batch, hidden), dtype, -1, 1)
    w, r = s.weights(features, 4 * hidden, dtype=dtype), s.weights(hidden, 4 * hidden, dtype=dtype)
    bias = s.weights(4 * hidden, terms=4, dtype=dtype)
    split = s.chance(0.7)
    project = s.chance(0.3)
    for _ in range(steps):
        x = s.input((batch, features), dtype, -1, 1)
        given = s.node("MatMul", x, w, work=batch * features * 4 * hidden)
        gates = s.node("Add", given, s.node("MatMul", h, r, work=batch * hidden * 4 * hidden))
        gates = s.node("Add", gates, bias)
        if split:
            i, f, g, o = s.multi("Split", gates, outputs=4, axis=1, num_outputs=4)
        else:
            i, f, g, o = (
                s.node("Slice", gates, s.constant([n * hidden]), s.constant([(n + 1) * hidden]), s.constant([1]))
                for n in range(4)
            )
        i, f, o, g = *(s.node("Sigmoid", gate) for gate in (i, f, o)), s.node("Tanh", g)
        c = s.node("Add", s.node("Mul", f, c), s.node("Mul", i, g))
        h = s.node("Mul", o, s.node("Tanh", c))
        if project:
            h = s.node("MatMul", h, s.weights(hidden, hidden), work=batch * hidden * hidden)


def simple_cell(s: Sketch) -> None:
    """Add h' = tanh(x W + h R), stepped over slices of a sequence."""
    x = s.floats(3)
    steps, batch, features = s.shape(x)
    hidden, dtype = sizes.channels(s.random), s.dtype(x)
    h = s.input((batch, hidden), dtype, -1, 1)
    w, r = s.weights(features, hidden, dtype=dtype), s.weights(hidden, hidden, dtype=dtype)
    for t in range(min(steps, s.random.randint(1, 5))):
        now = s.node("Gather", x, s.constant(t), axis=0)
        sums = s.node(
            "Add",
            s.node("MatMul", now, w, work=batch * features * hidden),
            s.node("MatMul", h, r, work=batch * hidden * hidden),
        )
        h = s.node("Tanh", sums)


def projection(s: Sketch) -> None:
    """Add a product over features between layers, maybe with bias and Relu."""
    x = s.floats(3)
    steps, batch, features = s.shape(x)
    n = sizes.channels(s.random)
    y = s.node("MatMul", x, s.weights(features, n, dtype=s.dtype(x)), work=steps * batch * features * n)
    if s.chance(0.5):
        s.node("Relu", s.node("Add", y, s.weights(n, terms=1, dtype=s.dtype(x))))


def turn(s: Sketch) -> None:
    """Add a transpose around a batch-first operator, a reversal in time, or a slice of the last step."""
    x = s.floats(3)
    form = s.random.choice(("batch", "reverse", "last"))
    if form == "batch":
        s.node("Transpose", s.node("Tanh", s.node("Transpose", x, perm=[1, 0, 2])), perm=[1, 0, 2])
    elif form == "reverse":
        s.node("Slice", x, s.constant([-1]), s.constant([-(1 << 40)]), s.constant([0]), s.constant([-1]))
    else:
        s.node("Unsqueeze", s.node("Gather", x, s.constant(-1), axis=0), s.constant([0]))


STEPS = ((6, layer), (3, cell), (2, simple_cell), (2, projection), (2, turn))
SIZE = (1, 5)
