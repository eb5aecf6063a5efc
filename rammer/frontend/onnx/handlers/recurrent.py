"""Import LSTM, GRU and RNN: one product over time for the inputs, then one cell operator per step and direction."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import Array, TensorId

# ONNX's activation -> name of the scalar function, and defaults of its parameters
ACTIVATIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    **{name: (name, ()) for name in ("relu", "tanh", "sigmoid", "softsign", "softplus")},
    "affine": ("affine", (1.0, 0.0)),
    "leakyrelu": ("leaky_relu", (0.01,)),
    "thresholdedrelu": ("thresholded_relu", (1.0,)),
    "scaledtanh": ("scaled_tanh", (1.0, 1.0)),
    "hardsigmoid": ("hard_sigmoid", (0.2, 0.5)),
    "elu": ("elu", (1.0,)),
}


@dataclass(frozen=True, slots=True)
class RecurrentNode:
    """A recurrent node. x is [T, B, I]; weights are per direction and gate."""

    node: Node
    x: TensorId
    steps: int
    batch: int
    inputs: int
    hidden: int
    gates: int
    reverse: tuple[bool, ...]  # by direction
    activations: tuple[tuple[Hashable, ...], ...]  # by direction
    clip: float | None
    lengths: TensorId | None  # [B]; None: every sequence has all steps
    known_lengths: Array | None
    length: TensorId | None  # steps that count of a padded sequence, a scalar; None: all

    @property
    def directions(self) -> int:
        return len(self.reverse)

    def direction(self, tensor: TensorId, d: int, shape: tuple[int, ...]) -> TensorId:
        """Return part d of a tensor [directions, …], in another shape."""
        return self.node.reshape(self.node.cut(tensor, 0, d, 1), shape)

    def weight(self, position: int, columns: int, what: str) -> TensorId:
        """Return an operand [directions, gates * hidden, columns]. Raises ModelError for another shape."""
        n = self.node
        wanted = (self.directions, self.gates * self.hidden, columns)
        if n.shape(position) != wanted:
            raise n.fail(f"{what} is {n.type(n.tensor(position))} instead of {list(wanted)}")
        return n.tensor(position)

    def biases(self, d: int) -> tuple[TensorId, ...]:
        """Return the input and recurrence bias of a direction, each [gates * hidden]; nothing if missing."""
        n = self.node
        if not n.has(3):
            return ()
        width = self.gates * self.hidden
        if n.shape(3) != (self.directions, 2 * width):
            raise n.fail(f"B is {n.type(n.tensor(3))} instead of {[self.directions, 2 * width]}")
        both = self.direction(n.tensor(3), d, (2 * width,))
        return n.slice(both, (0,), (width,)), n.slice(both, (width,), (width,))

    def projected(self, d: int, *biases: TensorId) -> TensorId:
        """Return x Wᵀ + the sum of biases for all steps at once: [T * B, gates, hidden]."""
        n = self.node
        bias = n.add("add", *biases) if len(biases) > 1 else next(iter(biases), None)
        w = self.direction(self.weight(1, self.inputs, "W"), d, (self.gates * self.hidden, self.inputs))
        product = n.product(n.reshape(self.x, (self.steps * self.batch, self.inputs)), w, trans_b=True)
        if bias is not None:
            product = n.add("add", product, bias)
        return n.reshape(product, (self.steps * self.batch, self.gates, self.hidden))

    def recurrence(self, d: int) -> TensorId:
        """Return R of a direction: [gates, hidden (out), hidden (in)]."""
        return self.direction(self.weight(2, self.hidden, "R"), d, (self.gates, self.hidden, self.hidden))

    def peepholes(self, d: int) -> TensorId | None:
        """Return P of an LSTM's direction: [3, hidden]; None if missing."""
        n = self.node
        if not n.has(7):
            return None
        if n.shape(7) != (self.directions, 3 * self.hidden):
            raise n.fail(f"P is {n.type(n.tensor(7))} instead of {[self.directions, 3 * self.hidden]}")
        return self.direction(n.tensor(7), d, (3, self.hidden))

    def initial(self, position: int, d: int, what: str) -> TensorId:
        """Return the state before the first step: [B, H], zeros if missing."""
        n = self.node
        shape = (self.batch, self.hidden)
        if not n.has(position):
            return n.builder.constant(np.broadcast_to(np.zeros((), n.dtype().numpy), shape))
        state = n.tensor(position)
        if n.attrs.get("layout"):
            state = n.transpose(state, (1, 0, 2))
        if n.type(state).shape != (self.directions, *shape):
            raise n.fail(f"{what} is {n.type(n.tensor(position))}; {self.directions} directions need {list(shape)}")
        return self.direction(state, d, shape)

    def at(self, gx: TensorId, t: int) -> TensorId:
        """Return step t of the projected inputs."""
        n, rows = self.node, (self.batch, *self.node.type(gx).shape[1:])
        starts = (t * self.batch, *(0 for _ in rows[1:]))
        if self.length is None:
            return n.slice(gx, starts, rows)
        return n.add("slice", gx, starts=starts, steps=(1,) * len(rows), shape=rows)  # also of one step

    def order(self, d: int) -> range:
        return range(self.steps - 1, -1, -1) if self.reverse[d] else range(self.steps)

    def alive(self, t: int) -> TensorId | None:
        """Return [B, 1] or a scalar: true for sequences that have a step t; None if all do."""
        n, masks = self.node, list[TensorId]()
        if self.lengths is not None and not (self.known_lengths is not None and bool((self.known_lengths > t).all())):
            mask = n.add("less", n.constant(t, n.type(self.lengths).dtype), self.lengths)
            masks.append(n.reshape(mask, (self.batch, 1)))
        if self.length is not None:
            masks.append(n.add("less", n.constant(t, n.type(self.length).dtype), self.length))
        return n.add("and", *masks) if len(masks) > 1 else next(iter(masks), None)

    def run(
        self, step: Callable[[int, int, tuple[TensorId, ...]], tuple[TensorId, ...]], *states_of: str
    ) -> list[TensorId | None]:
        """Unroll the steps, and return Y, then the last states.

        `step(t, direction, states)` returns new states, the hidden one first. `states_of` names the operands of initial
        states, from the fifth on.
        """
        n = self.node
        zero: TensorId | None = None
        pieces: dict[tuple[int, int], TensorId] = {}
        finals: list[tuple[TensorId, ...]] = []
        for d in range(self.directions):
            states = tuple(self.initial(p, d, f"initial_{name}") for p, name in enumerate(states_of, 5))
            for t in self.order(d):
                new = step(t, d, states)
                shown = new[0]
                if (mask := self.alive(t)) is not None:
                    zero = zero or n.like(0, shown)
                    shown = n.add("where", mask, shown, zero)
                    new = tuple(n.add("where", mask, a, b) for a, b in zip(new, states, strict=True))
                pieces[t, d] = shown
                states = new
            finals.append(states)
        results: list[TensorId | None] = [None]
        if n.wants(0):
            rows = [pieces[t, d] for t in range(self.steps) for d in range(self.directions)]
            whole = n.concat(rows, 0) if self.length is None else n.add("concat", *rows, axis=0)  # also of one step
            y = n.reshape(whole, (self.steps, self.directions, self.batch, self.hidden))
            results[0] = n.transpose(y, (2, 0, 1, 3)) if n.attrs.get("layout") else y
        for p, _ in enumerate(finals[0]):
            if not n.wants(1 + p):
                results.append(None)
                continue
            shape = (self.directions, self.batch, self.hidden)
            last = n.reshape(n.concat([f[p] for f in finals], 0), shape)
            results.append(n.transpose(last, (1, 0, 2)) if n.attrs.get("layout") else last)
        return results


_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_DIRECTIONS["foward"] = (False,)  # GRU's default in opsets 1 and 3, misspelt


def layer(n: Node, gates: int, per_direction: int, default: tuple[str, ...]) -> RecurrentNode:
    """Read what the three operators share. `per_direction` is the number of activations, `default` their names."""
    if len(n.shape()) != 3 or len(n.shape(2)) != 3:
        raise n.fail(f"X is {n.type(n.tensor(0))} and R is {n.type(n.tensor(2))}; both need rank 3")
    x = n.transpose(n.tensor(0), (1, 0, 2)) if n.attrs.get("layout") else n.tensor(0)
    steps, batch, inputs = n.type(x).shape
    hidden = n.attrs.get("hidden_size") or n.shape(2)[2]
    reverse = _DIRECTIONS.get(n.attrs["direction"])
    if reverse is None:
        raise n.fail(f"direction is {n.attrs['direction']!r}", hint="forward, reverse or bidirectional")
    if steps * len(reverse) > n.limits.operators:
        raise n.fail(f"{steps} steps would be unrolled", hint="raise Limits.operators")
    if min(hidden, steps, batch, inputs) < 1:
        raise n.fail(f"X is {n.type(n.tensor(0))} with hidden_size {hidden}", hint="none may be empty")
    lengths = n.tensor(4) if n.has(4) else None
    known = n.builder.value(lengths) if lengths is not None else None
    if lengths is not None and n.shape(4) != (batch,):
        raise n.fail(f"sequence_lens is {n.type(lengths)} instead of {[batch]}")
    if known is not None and not ((known >= 0) & (known <= steps)).all():
        raise n.fail(f"sequence_lens {known.tolist()[:20]} must lie in 0…{steps}")
    clip = n.attrs.get("clip")
    if clip is not None and not clip > 0:
        raise n.fail(f"clip is {clip}", hint="it must be positive")
    return RecurrentNode(
        node=n,
        x=x,
        steps=steps,
        batch=batch,
        inputs=inputs,
        hidden=hidden,
        gates=gates,
        reverse=reverse,
        activations=_activations(n, len(reverse), per_direction, default),
        clip=clip,
        lengths=lengths,
        known_lengths=known,
        length=n.lengths.of(n.label, steps),
    )


def _activations(
    n: Node, directions: int, per_direction: int, default: tuple[str, ...]
) -> tuple[tuple[Hashable, ...], ...]:
    """Return activations by direction, with parameters from activation_alpha and activation_beta in order."""
    names = n.attrs.get("activations") or default * directions
    if n.op == "RNN":
        names = names[:directions]  # the standard's default is for two directions
    if len(names) != directions * per_direction:
        raise n.fail(f"activations are {list(names)}", hint=f"{directions * per_direction} are needed")
    alphas, betas = (list(n.attrs.get(f"activation_{greek}") or ()) for greek in ("alpha", "beta"))
    found: list[Hashable] = []
    for name in names:
        if name.lower() not in ACTIVATIONS:
            raise n.fail(f"activation {name!r} is unknown", hint=f"known: {', '.join(ACTIVATIONS)}")
        function, defaults = ACTIVATIONS[name.lower()]
        parameters = [float(own.pop(0)) if own else v for own, v in zip((alphas, betas), defaults, strict=False)]
        found.append((function, *parameters) if parameters else function)
    return tuple(tuple(found[d * per_direction : (d + 1) * per_direction]) for d in range(directions))


@handles("LSTM")
def lstm(n: Node) -> list[TensorId | None]:
    rnn = layer(n, 4, 3, ("Sigmoid", "Tanh", "Tanh"))
    operands: list[tuple[TensorId, TensorId, list[TensorId]]] = []
    for d in range(rnn.directions):
        gx, peepholes = rnn.projected(d, *rnn.biases(d)), rnn.peepholes(d)
        operands.append((gx, rnn.recurrence(d), [peepholes] if peepholes else []))

    def step(t: int, d: int, states: tuple[TensorId, ...]) -> tuple[TensorId, ...]:
        gx, r, peepholes = operands[d]
        c, h = n.add_all(
            "lstm_cell",
            rnn.at(gx, t),
            *states,
            r,
            *peepholes,
            clip=rnn.clip,
            activations=rnn.activations[d],
            input_forget=bool(n.attrs.get("input_forget")),
        )
        return h, c

    return rnn.run(step, "h", "c")


@handles("GRU")
def gru(n: Node) -> list[TensorId | None]:
    rnn = layer(n, 3, 2, ("Sigmoid", "Tanh"))
    late = bool(n.attrs.get("linear_before_reset"))
    operands: list[tuple[TensorId, TensorId, list[TensorId]]] = []
    for d in range(rnn.directions):
        biases, recurrent = rnn.biases(d), list[TensorId]()
        if biases and late:  # the candidate's recurrence bias is added before the reset gate applies
            biases, recurrent = biases[:1], [n.reshape(biases[1], (3, rnn.hidden))]
        operands.append((rnn.projected(d, *biases), rnn.recurrence(d), recurrent))

    def step(t: int, d: int, states: tuple[TensorId, ...]) -> tuple[TensorId, ...]:
        gx, r, recurrent = operands[d]
        attrs: dict[str, Any] = {"clip": rnn.clip, "activations": rnn.activations[d], "linear_before_reset": late}
        return (n.add("gru_cell", rnn.at(gx, t), states[0], r, *recurrent, **attrs),)

    return rnn.run(step, "h")


@handles("RNN")
def rnn_(n: Node) -> list[TensorId | None]:
    rnn = layer(n, 1, 1, ("Tanh",))
    operands: list[tuple[TensorId, TensorId]] = []
    for d in range(rnn.directions):
        gx = rnn.projected(d, *rnn.biases(d))
        operands.append((gx, n.reshape(rnn.recurrence(d), (rnn.hidden, rnn.hidden))))

    def step(t: int, d: int, states: tuple[TensorId, ...]) -> tuple[TensorId, ...]:
        gx, r = operands[d]
        fresh = n.reshape(rnn.at(gx, t), (rnn.batch, rnn.hidden))
        total = n.add("add", fresh, n.product(states[0], r, trans_b=True))
        if rnn.clip is not None:
            total = n.add("clip", total, low=-rnn.clip, high=rnn.clip)
        return (activated(n, rnn.activations[d][0], total),)

    return rnn.run(step, "h")


_PARAMETERS = {"leaky_relu": ("alpha",), "elu": ("alpha",), "hard_sigmoid": ("alpha", "beta")}


def activated(n: Node, activation: Hashable, x: TensorId) -> TensorId:
    """Apply an activation of `RecurrentNode.activations` as an operator of its own."""
    name, *parameters = activation if isinstance(activation, tuple) else (activation,)
    match name, parameters:
        case "affine" | "scaled_tanh", [alpha, beta]:
            if name == "affine":
                return n.add("add", n.add("mul", x, n.like(alpha, x)), n.like(beta, x))
            return n.add("mul", n.add("tanh", n.add("mul", x, n.like(beta, x))), n.like(alpha, x))
        case "thresholded_relu", [alpha]:
            return n.add("where", n.add("less", n.like(alpha, x), x), x, n.like(0, x))
    return n.add(str(name), x, **dict(zip(_PARAMETERS.get(str(name), ()), parameters, strict=True)))
