"""Import recurrent layers as one operator each: torch's, and own ones that AOTAutograd does not decompose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from rammer_torch import lstm_steps
from rammer_torch.writer import Operand, Unsupported, Writer, handles, to_array

# torch's function -> ONNX's operator, where torch has each of ONNX's gates, attributes
KINDS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "lstm": ("LSTM", (0, 3, 1, 2), {}),
    "gru": ("GRU", (1, 0, 2), {"linear_before_reset": 1}),
    "rnn_tanh": ("RNN", (0,), {"activations": ("Tanh",)}),
    "rnn_relu": ("RNN", (0,), {"activations": ("Relu",)}),
}
NAMESPACE = "rammer"
_REST = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
)


def _define() -> Any:
    """Define the operators rammer::lstm and so on: like torch's, but opaque to decompositions."""
    library = torch.library.Library(NAMESPACE, "DEF")
    for kind in KINDS:
        states, results = ("Tensor[] hx", 3) if kind == "lstm" else ("Tensor hx", 2)
        library.define(f"{kind}(Tensor input, {states}, {_REST}) -> ({', '.join(['Tensor'] * results)})")
        library.impl(kind, getattr(torch, kind), "CPU")
        torch.library.register_fake(f"{NAMESPACE}::{kind}", _shapes, lib=library)
    return library


def _shapes(x: Any, states: Any, *rest: Any) -> tuple[Any, ...]:
    listed = states if isinstance(states, list | tuple) else [states]
    directions = 2 if rest[5] else 1
    return x.new_empty((*x.shape[:2], directions * listed[0].shape[-1])), *(s.new_empty(s.shape) for s in listed)


_LIBRARY = _define()


def replace_layers(gm: fx.GraphModule, *, training: bool) -> None:
    """Replace calls of torch's recurrent functions on whole sequences by operators of this module.

    These have no gradients. For training, an LSTM uses the operator of `lstm_steps`, which has; AOTAutograd unrolls the
    other kinds of layers.
    """
    ours = getattr(torch.ops, NAMESPACE)
    functions = {getattr(torch, kind): getattr(ours, kind).default for kind in KINDS}
    if training:
        functions = {torch.lstm: lstm_steps.lstm}
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in functions and isinstance(node.args[3], bool):
            node.target = functions[node.target]
    gm.recompile()


@handles(*(f"{kind}.input" for kind in KINDS))
def recurrent(
    w: Writer,
    x: fx.Node,
    states: Any,
    parameters: Sequence[fx.Node],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[str, ...]:
    """Write one ONNX node for each layer, in one or two directions."""
    op, order, attributes = KINDS[w.target]
    directions, each = 1 + bidirectional, 4 if has_biases else 2
    if len(parameters) != num_layers * directions * each:
        raise Unsupported("a projection")
    if train and dropout and num_layers > 1:
        raise Unsupported("dropout between layers")
    initial = states if isinstance(states, list | tuple) else [states]
    hidden = initial[0].meta["val"].shape[-1]
    if "activations" in attributes:
        attributes = {"activations": attributes["activations"] * directions}
    found: Operand = w("Transpose", x, perm=[1, 0, 2]) if batch_first else x
    last: list[list[str]] = [[] for _ in initial]
    for layer in range(num_layers):
        at = layer * directions
        mine = parameters[at * each : (at + directions) * each]
        weights = [_gates(w, mine[n::each], order) for n in range(2)]
        biases = _biases(w, mine, each, order) if has_biases else None
        begin = [w.slice(s, 0, at, at + directions) for s in initial]
        y, *ends = w.many(
            op,
            1 + len(initial),
            *(found, *weights, biases, None, *begin),
            hidden_size=hidden,
            direction="bidirectional" if bidirectional else "forward",
            **attributes,
        )
        found = w("Reshape", w("Transpose", y, perm=[0, 2, 1, 3]), [0, 0, -1])
        for ended, end in zip(last, ends, strict=True):
            ended.append(end)
    outputs = w("Transpose", found, perm=[1, 0, 2]) if batch_first else found
    return outputs, *(w("Concat", *ended, axis=0) if len(ended) > 1 else ended[0] for ended in last)


def _gates(w: Writer, parameters: Sequence[fx.Node], order: Sequence[int]) -> str:
    """Return a parameter of every direction, with its gates in ONNX's order."""
    values = [w.value(p) for p in parameters]
    if all(v is not None for v in values):
        return w.constant(to_array(torch.stack([torch.cat([v.chunk(len(order))[g] for g in order]) for v in values])))
    rows = []
    for parameter in parameters:
        shape = list(parameter.meta["val"].shape)
        chunks = w.many("Split", len(order), parameter, [shape[0] // len(order)] * len(order), axis=0)
        rows.append(w.reshape(w("Concat", *(chunks[g] for g in order), axis=0), [1, *shape]))
    return w("Concat", *rows, axis=0) if len(rows) > 1 else rows[0]


def _biases(w: Writer, parameters: Sequence[fx.Node], each: int, order: Sequence[int]) -> str:
    """Return the biases of inputs, then those of the state."""
    return w("Concat", *(_gates(w, parameters[n::each], order) for n in (2, 3)), axis=1)


handles(*KINDS, namespace=NAMESPACE)(recurrent)
