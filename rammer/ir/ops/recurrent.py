"""Define cells of recurrent networks, each as one step. The frontend makes the sequence of steps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeAlias

from rammer.errors import TypeMismatch, did_you_mean
from rammer.ir.expr import Load, Scalar, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import call, expression, factor, float_only, listed, narrowed, require, wide_enough, widened
from rammer.ir.ops.scalars import ACTIVATIONS, ONE
from rammer.ir.tensor import DType, Shape, TensorType

Activation: TypeAlias = Hashable  # a name of ACTIVATIONS, or a tuple of the name and its parameters

_B, _J, _K = var("b"), var("j"), var("k")


def _activate(kind: str, activation: Activation, x: Scalar) -> Scalar:
    name, *parameters = activation if isinstance(activation, tuple) else (activation,)
    if name not in ACTIVATIONS:
        raise TypeMismatch(
            f"{kind}: no activation {name!r}",
            hint=did_you_mean(str(name), ACTIVATIONS) or f"known: {', '.join(ACTIVATIONS)}",
        )
    return ACTIVATIONS[name](x, *parameters)


def _clipped(x: Scalar, clip: float | None) -> Scalar:
    return x if clip is None else call("min", call("max", x, -clip), clip)


def _operands(
    kind: str,
    states: Mapping[str, tuple[TensorType, Shape]],
    gates: int,
    r: TensorType,
    more: tuple[TensorType, ...],
    last: Mapping[str, Shape],
) -> tuple[dict[str, TensorType], DType]:
    """Return all operands by name, and the type that is computed in. Raises TypeMismatch."""
    hidden = states["h"][1][-1]
    whole = not r.dtype.is_float
    named = {"r": (gates, hidden, hidden), **({"rs": (gates, hidden)} if whole else {}), **last}
    given = [t for t, _ in states.values()] + [r, *more]
    wanted = {name: shape for name, (_, shape) in states.items()} | named
    shapes = ", ".join(f"{name}{list(shape)}" for name, shape in wanted.items())
    fits = states["h"][0].rank == 2 and len(wanted) - len(last) <= len(given) <= len(wanted)
    fits = fits and all(t.shape == s for t, s in zip(given, wanted.values(), strict=False))
    require(fits, f"{kind}: {listed(given)}", f"shapes are {shapes}; the last one may be missing")
    inputs = dict(zip(wanted, given, strict=False))
    dtype = float_only(kind, [t for name, t in inputs.items() if name != "r" or not whole])
    if whole:
        wide_enough(kind, [inputs["h"], r], dtype)
    return inputs, dtype


def _scaled(total: Load, inputs: Mapping[str, TensorType], gate: int) -> Scalar:
    """Scale a sum of products with r by `rs`, if it is given."""
    return total * Load("rs", (Index(gate), total.index[-1])) if "rs" in inputs else total


def _lstm_cell(
    gx: TensorType,
    h: TensorType,
    c: TensorType,
    r: TensorType,
    *more: TensorType,
    clip: float | None = None,
    activations: tuple[Activation, ...] = ("sigmoid", "tanh", "tanh"),
    input_forget: bool = False,
) -> TensorExpr:
    """Build one LSTM step: (c', h').

    Gates are in ONNX's order i, o, f, c. gx[B, 4, H] holds x·Wᵀ and both biases. r[4, H, H] is (gate, out, in); p[3, H]
    are the peepholes of i, o, f. With `input_forget`, f = 1 - i. An r of integers of up to 16 bits is followed by rs[4,
    H], by which sums of products with it are multiplied.
    """
    batch, hidden = h.shape if h.rank == 2 else (0, 0)
    operands = {"gx": (gx, (batch, 4, hidden)), "h": (h, (batch, hidden)), "c": (c, (batch, hidden))}
    inputs, dtype = _operands("lstm_cell", operands, 4, r, more, {"p": (3, hidden)})
    wide = dtype.accumulator
    require(len(activations) == 3, f"lstm_cell: activations {activations}", "there are three: gates, cell, output")
    here = (_B, _J)

    def gate(n: int, fn: Activation, peephole: int, cell: Scalar) -> Scalar:
        at = (_B, Index(n), _J)
        total = _scaled(Load("gates", at), inputs, n) + widened(Load("gx", at), dtype)
        if "p" in inputs and peephole >= 0:
            total = total + widened(Load("p", (Index(peephole), _J)), dtype) * cell
        return _activate("lstm_cell", fn, _clipped(total, clip))

    inner, cell_fn, output_fn = activations
    old = widened(Load("c", here), dtype)
    enter = gate(0, inner, 0, old)
    forget = ONE - enter if input_forget else gate(2, inner, 2, old)
    c_new = forget * old + enter * gate(3, cell_fn, -1, old)
    new = widened(Load("c_new", here), dtype)
    h_new = gate(1, inner, 1, new) * _activate("lstm_cell", output_fn, new)
    product = widened(Load("h", (_B, _K)), dtype) * factor(Load("r", (var("q"), _J, _K)), r, dtype)
    points = (("b", batch), ("j", hidden))
    return expression(
        "lstm_cell",
        inputs.items(),
        [
            Stage("gates", (("b", batch), ("q", 4), ("j", hidden)), product, (("k", hidden),), dtype=wide),
            Stage("c_new", points, narrowed(c_new, dtype), dtype=dtype),
            Stage("h_new", points, narrowed(h_new, dtype), dtype=dtype),
        ],
        ("c_new", "h_new"),
    )


def _gru_cell(
    gx: TensorType,
    h: TensorType,
    r: TensorType,
    *more: TensorType,
    linear_before_reset: bool = False,
    clip: float | None = None,
    activations: tuple[Activation, ...] = ("sigmoid", "tanh"),
) -> TensorExpr:
    """Build one GRU step: h'.

    Gates are in ONNX's order z, r, h. gx[B, 3, H] holds x·Wᵀ and the input bias. r[3, H, H] is (gate, out, in). rb[3,
    H] is the recurrence bias; that of z and r may be in gx instead. An r of integers of up to 16 bits is followed by
    rs[3, H], by which sums of products with it are multiplied.
    """
    batch, hidden = h.shape if h.rank == 2 else (0, 0)
    operands = {"gx": (gx, (batch, 3, hidden)), "h": (h, (batch, hidden))}
    inputs, dtype = _operands("gru_cell", operands, 3, r, more, {"rb": (3, hidden)})
    wide = dtype.accumulator
    require(len(activations) == 2, f"gru_cell: activations {activations}", "there are two: gates, candidate")
    inner, outer = activations

    def load(name: str, *index: Index) -> Scalar:
        return widened(Load(name, index), dtype)

    def recurrent(n: int, product: Load) -> Scalar:
        total = _scaled(product, inputs, n)
        return total + load("rb", Index(n), product.index[-1]) if "rb" in inputs else total

    def weight(q: Index) -> Scalar:
        return factor(Load("r", (q, _J, _K)), r, dtype)

    def gate(n: int, at: Index) -> Scalar:
        total = recurrent(n, Load("gates", (_B, Index(n), at))) + load("gx", _B, Index(n), at)
        return _activate("gru_cell", inner, _clipped(total, clip))

    points = (("b", batch), ("j", hidden))
    depth = (("k", hidden),)
    gates = 3 if linear_before_reset else 2
    product = load("h", _B, _K) * weight(var("q"))
    stages = [Stage("gates", (("b", batch), ("q", gates), ("j", hidden)), product, depth, dtype=wide)]
    if linear_before_reset:
        late: Scalar = gate(1, _J) * recurrent(2, Load("gates", (_B, Index(2), _J)))
    else:
        reset = Stage("rh", (("b", batch), ("k", hidden)), gate(1, _K) * load("h", _B, _K), dtype=wide)
        candidate = Stage("candidate", points, Load("rh", (_B, _K)) * weight(Index(2)), depth, dtype=wide)
        stages += [reset, candidate]
        late = recurrent(2, Load("candidate", (_B, _J)))
    fresh = _activate("gru_cell", outer, _clipped(late + load("gx", _B, Index(2), _J), clip))
    update = gate(0, _J)
    h_new = (ONE - update) * fresh + update * load("h", _B, _J)
    stages.append(Stage("h_new", points, narrowed(h_new, dtype), dtype=dtype))
    return expression("gru_cell", inputs.items(), stages, ("h_new",))


DEFINITIONS = (OpDef("lstm_cell", _lstm_cell), OpDef("gru_cell", _gru_cell))
