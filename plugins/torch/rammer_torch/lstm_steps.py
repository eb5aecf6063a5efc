"""Train LSTMs: make the recurrence over all steps one operator, and its gradient another one.

The products of all steps at once (of the inputs, and the gradients of weights) are torch's operators around it. If
autograd unrolled the recurrence, ten layers of a hundred steps would be a hundred thousand nodes to trace, and the
forward pass would keep transposed weights for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from rammer_torch.writer import Operand, Writer, handles

NAMESPACE = "rammer"


def lstm(
    x: Any,
    states: Sequence[Any],
    parameters: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, ...]:
    """Compute torch.lstm, with gradients. torch's own decomposition calls a library if x needs no gradient."""
    directions, each = 1 + bidirectional, 4 if has_biases else 2
    if len(parameters) != num_layers * directions * each:  # with projections
        rest = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
        return tuple(torch.lstm(x, states, parameters, *rest))
    found, last = x.transpose(0, 1) if batch_first else x, []
    for layer in range(num_layers):
        outputs = []
        for n in range(layer * directions, (layer + 1) * directions):
            w, u, *biases = parameters[n * each : (n + 1) * each]
            back = n % directions == 1
            products = functional.linear(_reversed_if(found, back), w, sum(biases) if biases else None)
            h, c, _ = torch.ops.rammer.lstm_steps(products, states[0][n], states[1][n], u)
            outputs.append(_reversed_if(h, back))
            last.append((h[-1], c[-1]))
        found = torch.cat(outputs, -1)
        if dropout and layer + 1 < num_layers:
            found = functional.dropout(found, dropout, train)
    return found.transpose(0, 1) if batch_first else found, *(torch.stack(ends) for ends in zip(*last, strict=True))


def _reversed_if(x: Any, back: bool) -> Any:
    """Return the steps in the order of a direction: reversed if `back`."""
    return x.flip(0) if back else x


# the operators in eager PyTorch; gates are in torch's order: i, f, g, o


def _steps(products: Any, h: Any, c: Any, u: Any) -> tuple[Any, Any, Any]:
    """Return the states of all steps, [T, B, H] each, and the sums of gates [T, B, 4 H]. `products` is x Wᵀ + bias."""
    hs, cs, sums = [], [], []
    for product in products.unbind():
        sums.append(product + h @ u.t())
        i, f, g, o = sums[-1].chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        hs.append(h)
        cs.append(c)
    return torch.stack(hs), torch.stack(cs), torch.stack(sums)


def _steps_backward(by_h: Any, by_c: Any, sums: Any, c: Any, c0: Any, u: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of the sums of gates and of both first states, given those of the states of all steps."""
    i, f, g, o = (p.tanh() if n == 2 else p.sigmoid() for n, p in enumerate(sums.chunk(4, -1)))
    before, t = torch.cat([c0[None], c[:-1]]), c.tanh()
    slopes = torch.cat([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g), t * o * (1 - o)], -1)
    through = o * (1 - t * t)
    found, carried, more = [], torch.zeros_like(c0), torch.zeros_like(c0)
    for n in reversed(range(len(c))):
        h = by_h[n] + more
        inner = h * through[n] + carried + by_c[n]
        found.append(torch.cat([inner, inner, inner, h], -1) * slopes[n])
        carried, more = inner * f[n], found[-1] @ u
    return torch.stack(found[::-1]), more, carried


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    _, h0, c0, u = inputs
    ctx.save_for_backward(*output, h0, c0, u)


def _gradient(ctx: Any, by_h: Any, by_c: Any, _: Any) -> tuple[Any, ...]:
    h, c, sums, h0, c0, u = ctx.saved_tensors
    by_sums, by_h0, by_c0 = torch.ops.rammer.lstm_steps_backward(by_h, by_c, sums, c, c0, u)
    before = torch.cat([h0[None], h[:-1]])
    return by_sums, by_h0, by_c0, by_sums.flatten(0, 1).t() @ before.flatten(0, 1)


def _define() -> Any:
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define("lstm_steps(Tensor products, Tensor h, Tensor c, Tensor u) -> (Tensor, Tensor, Tensor)")
    library.define(
        "lstm_steps_backward(Tensor by_h, Tensor by_c, Tensor sums, Tensor c, Tensor c0, Tensor u)"
        " -> (Tensor, Tensor, Tensor)"
    )
    library.impl("lstm_steps", _steps, "CPU")
    library.impl("lstm_steps_backward", _steps_backward, "CPU")

    def states(products: Any, h: Any, c: Any, u: Any) -> tuple[Any, ...]:
        every = (len(products), *h.shape)
        return h.new_empty(every), h.new_empty(every), torch.empty_like(products)

    def gradients(by_h: Any, by_c: Any, sums: Any, c: Any, c0: Any, u: Any) -> tuple[Any, ...]:
        return torch.empty_like(sums), torch.empty_like(c0), torch.empty_like(c0)

    torch.library.register_fake(f"{NAMESPACE}::lstm_steps", states, lib=library)
    torch.library.register_fake(f"{NAMESPACE}::lstm_steps_backward", gradients, lib=library)
    torch.library.register_autograd(f"{NAMESPACE}::lstm_steps", _gradient, setup_context=_save, lib=library)
    return library


_LIBRARY = _define()


# the operators as ONNX nodes


@handles("lstm_steps", namespace=NAMESPACE)
def steps(w: Writer, products: fx.Node, h: Operand, c: Operand, u: fx.Node) -> tuple[str, ...]:
    transposed = w("Transpose", u, perm=[1, 0])
    found: list[tuple[str, ...]] = []
    for product in _each(w, products, len(products.meta["val"])):
        total = w("Add", w("MatMul", h, transposed), product)
        i, f, g, o = _gates(w, total)
        c = w("Add", w("Mul", f, c), w("Mul", i, g))
        h = w("Mul", o, w("Tanh", c))
        found.append((h, c, total))
    return tuple(_stack_steps(w, every) for every in zip(*found, strict=True))


@handles("lstm_steps_backward", namespace=NAMESPACE)
def steps_backward(
    w: Writer, by_h: fx.Node, by_c: fx.Node, sums: fx.Node, c: fx.Node, c0: fx.Node, u: fx.Node
) -> tuple[str, ...]:
    """Compute what does not depend on the next step for all steps at once: slopes, and the path from h to c."""
    length = len(c.meta["val"])
    i, f, g, o = _gates(w, sums, axis=2)
    one = w.number(1.0, w.out.dtype)
    first = w("Unsqueeze", c0, [0])
    before = w("Concat", first, w.slice(c, 0, 0, length - 1), axis=0) if length > 1 else first
    reached = w("Tanh", c)

    def falling(gate: str) -> str:
        return w("Mul", gate, w("Sub", one, gate))

    slopes = (
        w("Mul", g, falling(i)),
        w("Mul", before, falling(f)),
        w("Mul", i, w("Sub", one, w("Mul", g, g))),
        w("Mul", reached, falling(o)),
    )
    through = w("Mul", o, w("Sub", one, w("Mul", reached, reached)))
    rows = [_each(w, every, length) for every in (by_h, by_c, f, through, *slopes)]
    found: list[str] = []
    carried = w.number(0.0, w.out.dtype)
    for h, of_c, forget, way, *slope in list(zip(*rows, strict=True))[::-1]:
        h = w("Add", w("MatMul", found[-1], u), h) if found else h
        inner = w("Add", w("Add", w("Mul", h, way), of_c), carried)
        by = (inner, inner, inner, h)
        found.append(w("Concat", *(w("Mul", b, s) for b, s in zip(by, slope, strict=True)), axis=1))
        carried = w("Mul", inner, forget)
    return _stack_steps(w, found[::-1]), w("MatMul", found[-1], u), carried


def _gates(w: Writer, sums: Operand, axis: int = 1) -> tuple[str, ...]:
    parts = w.many("Split", 4, sums, axis=axis, num_outputs=4)
    return tuple(w("Tanh" if n == 2 else "Sigmoid", part) for n, part in enumerate(parts))


def _each(w: Writer, every: Operand, length: int) -> list[str]:
    """Split [T, B, N] into its steps, each [B, N]."""
    return [w("Squeeze", part, [0]) for part in w.many("Split", length, every, axis=0, num_outputs=length)]


def _stack_steps(w: Writer, parts: Sequence[str]) -> str:
    """Join steps to [T, B, N]."""
    return w("Concat", *(w("Unsqueeze", part, [0]) for part in parts), axis=0)
