"""Import com.microsoft's DynamicQuantizeLSTM: products of bytes, which are quantized by their own range."""

from __future__ import annotations

from rammer.frontend.onnx.handlers.contrib import contrib
from rammer.frontend.onnx.handlers.contrib_fused import bytes_by_range
from rammer.frontend.onnx.handlers.quantized import shifted
from rammer.frontend.onnx.handlers.recurrent import RecurrentNode, activated, layer
from rammer.frontend.onnx.node import Node
from rammer.ir.tensor import DType, TensorId


@contrib(
    "DynamicQuantizeLSTM",
    inputs=(12, 12),
    activations=tuple,
    activation_alpha=tuple,
    activation_beta=tuple,
    clip=float,
    direction="forward",
    hidden_size=int,
    input_forget=0,
)
def dynamic_quantize_lstm(n: Node) -> list[TensorId | None]:
    """Compute an LSTM with weights in bytes. x is quantized over all steps; h at each step, over the whole batch."""
    rnn = layer(n, 4, 3, ("Sigmoid", "Tanh", "Tanh"))
    width = 4 * rnn.hidden
    rows = n.reshape(rnn.x, (rnn.steps * rnn.batch, rnn.inputs))
    operands: list[tuple[TensorId, TensorId | None]] = []
    for d in range(rnn.directions):
        gx = _product(rnn, rows, 1, 8, d, rnn.inputs)
        bias = rnn.biases(d)
        gx = n.add("add", gx, n.add("add", *bias)) if bias else gx
        operands.append((gx, rnn.peepholes(d)))

    def step(t: int, d: int, states: tuple[TensorId, ...]) -> tuple[TensorId, ...]:
        gx, peepholes = operands[d]
        before = n.slice(gx, (t * rnn.batch, 0), (rnn.batch, width))
        total = n.add("add", before, _product(rnn, states[0], 2, 10, d, rnn.hidden))
        return _cell(rnn, total, states[1], peepholes, d)

    return rnn.run(step, "h", "c")


def _product(rnn: RecurrentNode, x: TensorId, position: int, scale: int, d: int, depth: int) -> TensorId:
    """Multiply x by a direction's weights [depth, gates * hidden].

    Their scale and zero point are operands from `scale` on.
    """
    n, width = rnn.node, 4 * rnn.hidden
    if n.shape(position) != (rnn.directions, depth, width):
        wanted = [rnn.directions, depth, width]
        raise n.fail(f"{'WR'[position - 1]} is {n.type(n.tensor(position))} instead of {wanted}")
    n.builder.keep(n.tensor(position))
    columns = n.type(n.tensor(scale)).size // rnn.directions
    if columns not in (1, width) or n.type(n.tensor(scale + 1)).size != rnn.directions * columns:
        found = f"scale {n.type(n.tensor(scale))} and zero point {n.type(n.tensor(scale + 1))}"
        raise n.fail(f"{found} of weights {n.type(n.tensor(position))}", hint="one for all, or one for each column")
    given = (n.reshape(n.tensor(p), (rnn.directions, columns)) for p in (scale, scale + 1))
    own, zero = (rnn.direction(t, d, (columns,)) for t in given)
    weights = rnn.direction(n.tensor(position), d, (depth, width))
    values, step, begin = bytes_by_range(n, x)
    total = n.product(shifted(n, values, begin, -2), shifted(n, weights, zero, -1))
    return n.add("mul", n.cast(total, DType.F32), n.add("mul", step, own))


def _cell(
    rnn: RecurrentNode, total: TensorId, c: TensorId, peepholes: TensorId | None, d: int
) -> tuple[TensorId, TensorId]:
    """Return the states h and c after a step, given its sums of gates [batch, 4 * hidden] and the old c."""
    n, hidden = rnn.node, rnn.hidden
    first, candidate, last = rnn.activations[d]

    def gate(number: int, state: TensorId | None = None, hole: int = 0) -> TensorId:
        value = n.slice(total, (0, number * hidden), (rnn.batch, hidden))
        if peepholes is not None and state is not None:
            weights = n.slice(peepholes, (hole, 0), (1, hidden))
            value = n.add("add", value, n.add("mul", weights, state))
        if rnn.clip is not None:
            value = n.add("clip", value, low=-rnn.clip, high=rnn.clip)
        return value

    enters = activated(n, first, gate(0, c, 0))
    coupled = bool(n.attrs["input_forget"])
    stays = n.add("sub", n.like(1, enters), enters) if coupled else activated(n, first, gate(2, c, 2))
    new = n.add("add", n.add("mul", stays, c), n.add("mul", enters, activated(n, candidate, gate(3))))
    return n.add("mul", activated(n, first, gate(1, new, 1)), activated(n, last, new)), new
