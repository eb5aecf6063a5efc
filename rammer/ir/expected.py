"""What a model means on some inputs, and how far the rounding of a device may move its outputs.

Bounds that follow each value through all operators (`rounding.py`) grow with every layer: of a recurrent network they
soon allow anything. Here the network is computed twice side by side: as it means, and with every result moved by a
random share of what rounding in its operator may do. How far outputs differ then says what rounding does to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from rammer.ir.evaluate import Memory, evaluate_expr
from rammer.ir.expr import COMPARISONS, Call, Cast, Load, Scalar, TensorExpr, nodes
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.rounding import OVERFLOW, Bounded, bounded, differs
from rammer.ir.tensor import Array, TensorId

MOVES = 2.0  # times what moving results did to outputs, at the most
STEPS = COMPARISONS | {"round", "floor", "ceil", "sign", "mod", "fmod"}
Local = Callable[[int, ROperator, Mapping[str, Array]], list[Bounded]]


@dataclass(frozen=True)
class Expected:
    """The outputs of a network, and how far each may be off.

    `stepped`: a result may jump where an operand is moved ever so little, so outputs may be farther off than that.
    """

    outputs: dict[TensorId, Bounded]
    stepped: bool

    def off(self, tensor: TensorId, found: Array) -> NDArray[np.bool_]:
        """Which elements of an output are not what they should be."""
        return differs(found, self.outputs[tensor])


def expected(
    graph: Graph, inputs: Mapping[str, Array], seconds: float = inf, local: Local | None = None
) -> Expected | None:
    """Compute what the outputs should be; None if that takes more than so many seconds of this process's CPU time.

    `local` computes an operator's results with bounds of what rounding inside of it does. Raises InputError for indices
    outside.
    """
    random = np.random.default_rng(0)
    until = time.process_time() + seconds
    values, moved = Memory(graph), Memory(graph)
    moved.arrays |= values.arrays
    for name in graph.inputs:
        values.write(name, np.asarray(inputs[name]))
        moved.write(name, np.asarray(inputs[name]))
    stepped = False
    for n, op in enumerate(graph.operators):
        if time.process_time() > until:
            return None
        expr = op.operation.expr
        names = [name for name, _ in expr.inputs]
        given, other = ({k: m.read(t) for k, t in zip(names, op.inputs, strict=True)} for m in (values, moved))
        if expr.into:  # only moves what was computed before
            found = [Bounded(value, 0.0) for value in evaluate_expr(expr, given)]
        else:
            found = local(n, op, given) if local else bounded(expr, given)
        same = all(np.array_equal(given[k], other[k], equal_nan=given[k].dtype.kind in "fc") for k in names)
        others = [value for value, _ in found] if same else evaluate_expr(expr, other)
        for tensor, (value, error), own in zip(op.outputs, found, others, strict=True):
            values.write(tensor, value)
            dtype = graph.types[tensor].dtype
            if dtype.is_float or dtype.is_complex:
                narrow = dtype.epsilon * np.abs(value) if dtype.bits < 32 and np.any(error) else 0.0
                share = random.integers(0, 2, np.shape(value))
                own = own + share * np.where(error < OVERFLOW, error + narrow, 0.0)
            stepped = stepped or bool(np.any(np.asarray(error) >= OVERFLOW))
            moved.write(tensor, own)
        stepped = stepped or _jumps(expr)
    return Expected({t: Bounded(values.read(t), _off(values.read(t), moved.read(t))) for t in graph.outputs}, stepped)


def _off(value: Array, moved: Array) -> Array:
    """How far each element of an output may be off: as far as any was moved; what is no number then has no bound."""
    kind = np.complex128 if value.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        distance = np.abs(value.astype(kind) - moved.astype(kind))
        same = (value == moved) | ((value != value) & (moved != moved))
    distance = np.where(same, 0.0, distance)
    finite = np.isfinite(distance)
    return np.where(finite, MOVES * distance[finite].max(initial=0.0), inf)


def _jumps(expr: TensorExpr) -> bool:
    """Whether a result is no continuous function of floats that are read."""
    if not any(kind.dtype.is_float for _, kind in expr.inputs):
        return False
    for stage in expr.stages:
        for node in nodes(stage.body):
            match node:
                case Call(fn) if fn in STEPS:
                    return True
                case Cast(_, dtype, bits) if bits or not (dtype.is_float or dtype.is_complex):
                    return True
                case Load(_, _, dynamic) if any(_reads_floats(expr, d.value) for d in dynamic):
                    return True
        if not (stage.dtype.is_float or stage.dtype.is_complex):
            return True
    return False


def _reads_floats(expr: TensorExpr, value: Scalar) -> bool:
    return any(isinstance(node, Load) and expr.type_of(node.tensor).dtype.is_float for node in nodes(value))
