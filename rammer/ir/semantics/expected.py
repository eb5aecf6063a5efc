"""Compute what a model's outputs should be, and how far the rounding of a device may move them.

Bounds that follow each value through all operators (`rounding.py`) grow with every layer: for a recurrent network they
soon allow anything. Here the network is computed twice, side by side: as defined, and with every result moved by a
random share of the rounding error of its operator. The distance of outputs then shows what rounding does to them. Known
as: Monte Carlo arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rammer.errors import InputError
from rammer.ir.expr import COMPARISONS, Call, Cast, Load, TensorExpr, nodes
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.plan import ExecutionPlan
from rammer.ir.semantics.evaluate import Memory, evaluate_expr, evaluate_graph
from rammer.ir.semantics.rounding import TINY, Bounded, bounded_as, differs, factor_step, moved_by
from rammer.ir.tensor import Array, DType, NamedArrays, TensorId

MOVES = 2.0  # tolerance, in multiples of what moving results did to outputs
SOME = 2  # elements of an output that may jump although moving results moved none
USUAL = 0.9  # share of a tensor's elements that are off by at most `usual`
STEPS = COMPARISONS | {"round", "floor", "ceil", "sign", "mod", "fmod"}
Local = Callable[[int, ROperator, NamedArrays], list[Bounded]]


def of_kernels(plan: ExecutionPlan) -> Local:
    """Return the function for `expected` that gives each operator's results with the rounding of its rKernel."""

    def local(n: int, op: ROperator, given: NamedArrays) -> list[Bounded]:
        kernel = plan.kernels[n]
        return bounded_as(op.operation.expr, kernel.form, given, factor_step=factor_step(kernel), careful=True)

    return local


def rounded_once(graph: Graph, inputs: NamedArrays, values: Mapping[TensorId, Array]) -> Expected:
    """Compute how far a graph's outputs `values` move if each operator's results are off by one rounding.

    It is one of the largest element, less than bounds of all roundings inside of operators. So outputs that it explains
    are right, and it takes one evaluation.
    """
    random = np.random.default_rng(0)

    def moved(tensor: TensorId, value: Array) -> Array:
        error = np.full(value.shape, step_at_largest(value))
        return _moved(value, error, graph.types[tensor].dtype, jumps=False, random=random)

    outputs = evaluate_graph(graph, inputs, moved)
    return {t: _meant(values[t], value) for t, value in outputs.items()}


def step_at_largest(value: Array, has_float64: bool = True) -> float:
    """Return one rounding of an array's largest finite element, at least that of subnormal numbers to zero.

    0 for integers. `has_float64`: float64 is computed as such, else as float32.
    """
    finite = np.abs(value[np.isfinite(value)]) if value.dtype.kind in "fc" else np.zeros(0)
    step, least = (2.0**-52, 2.0**-1022) if has_float64 and value.dtype.char in "dD" else (2.0**-23, TINY)
    return max(step * float(finite.max()), least) if finite.size else 0.0


def without_indices(inputs: NamedArrays) -> dict[str, Array]:
    """Return the inputs with zeros for integers, as random indices may be out of range."""
    return {name: a if DType(a.dtype.name).is_float else np.zeros_like(a) for name, a in inputs.items()}


class Expectation(NamedTuple):
    """Expected value of an output, and how far a device's may be off.

    No element is off by more than `error`, and most by at most `usual`: moving results moved `jumps` elements farther.
    """

    value: Array
    error: Array
    usual: float
    jumps: int

    def wider(self, other: Expectation) -> Expectation:
        """Return the same value with the larger tolerance of this and another evaluation."""
        error = np.fmax(self.error, other.error)
        return Expectation(self.value, error, max(self.usual, other.usual), max(self.jumps, other.jumps))

    def unlike(self, found: Array, least: Array) -> str:
        """Describe the fault of an output that may be off by `least` in any case; empty if it is right.

        Rounding takes an element across a step (`round`, a comparison) here and there. An error takes many.
        """
        wrong = differs(found, Bounded(self.value, np.fmax(self.error, least)))
        if wrong.any():
            at = tuple(map(int, np.argwhere(wrong)[0]))
            return f"{list(at)} is {found[at]} and should be {self.value[at]}, give or take {self.error[at]:.2g}"
        usual = np.where(np.isfinite(self.error), self.usual, self.error)
        count = np.count_nonzero(differs(found, Bounded(self.value, np.fmax(usual, least))))
        if count <= MOVES * self.jumps + SOME:
            return ""
        return f": {count} of {found.size} elements off by more than {self.usual:.2g}, and rounding moves {self.jumps}"


Expected: TypeAlias = dict[TensorId, Expectation]


def expected(graph: Graph, inputs: NamedArrays, local: Local, tensors: Iterable[TensorId] = ()) -> Expected:
    """Compute what outputs, and other `tensors`, should be, with tolerances.

    `local(n, operator, operands)` computes results, with bounds of the rounding inside the operator. Raises InputError
    for indices outside.
    """
    random = np.random.default_rng(0)
    values, moved = Memory(graph), Memory(graph)
    asked = frozenset(tensors)
    meant: Expected = {}
    moved.arrays |= values.arrays
    for name in graph.inputs:
        values.write(name, np.asarray(inputs[name]))
        moved.write(name, np.asarray(inputs[name]))
    for n, op in enumerate(graph.operators):
        expr = op.operation.expr
        names = [name for name, _ in expr.inputs]
        given, other = ({k: m.read(t) for k, t in zip(names, op.inputs, strict=True)} for m in (values, moved))
        distances = {k: off for k in names if (off := _distance(given[k], other[k])) is not None}
        found = [Bounded(v, 0.0) for v in evaluate_expr(expr, given)] if expr.into else local(n, op, given)
        others = evaluate_expr(expr, other) if distances else [value for value, _ in found]
        if jumps := _jumps(expr):
            usual = {k: MOVES * float(np.quantile(off, USUAL)) for k, off in distances.items()}
            others = _jumped(expr, other, usual, others)
        for tensor, (value, error), own in zip(op.outputs, found, others, strict=True):
            values.write(tensor, value)
            moved.write(tensor, _moved(own, error, graph.types[tensor].dtype, jumps, random))
            if tensor in asked:  # an update may change it later
                meant[tensor] = _meant(values.read(tensor).copy(), moved.read(tensor))
    return meant | {t: _meant(values.read(t), moved.read(t)) for t in graph.outputs}


def _jumped(expr: TensorExpr, operands: NamedArrays, by: Mapping[str, float], results: list[Array]) -> list[Array]:
    """Return the results, with those elements that jump where all operands grow or shrink by `by`."""
    found = list(results)
    for sign in (1, -1):
        moved = {k: (v + sign * by[k]).astype(v.dtype) if by.get(k) else v for k, v in operands.items()}
        with suppress(InputError):
            for n, other in enumerate(evaluate_expr(expr, moved) if any(by.values()) else ()):
                found[n] = np.where(other != results[n], other, found[n])
    return found


def _moved(value: Array, error: Any, dtype: DType, jumps: bool, random: np.random.Generator) -> Array:
    """Move a result by its error: up or down if it may jump; else up, the least exact element and half of the others.

    An integer without a bound moves to the other end of its type.
    """
    if not np.any(error):
        return value
    if dtype.is_float and dtype.bits < 32:  # rounds to one of two neighbours
        error = error + dtype.epsilon * np.abs(value)
    share = np.asarray(random.choice((-1, 1), np.shape(value)) if jumps else random.integers(0, 2, np.shape(value)))
    if not jumps:
        share.flat[np.argmax(np.broadcast_to(error, share.shape))] = 1  # of few elements, half may be none
    with np.errstate(all="ignore"):
        by = np.where(error == 0, 0.0, share * error)
        if dtype.part.is_float or dtype is DType.BOOL:
            return np.asarray(moved_by(value, by))
        least, most = float(dtype.info.min), float(dtype.info.max)
        ends = np.where(np.isinf(error), np.where(value > 0, least, most), np.clip(value + by, least, most))
        return np.where(by == 0, value, ends.astype(value.dtype))


def _distance(value: Array, moved: Array) -> Array | None:
    """Return how far each element was moved, infinite where just one of both is a number; None if none was moved."""
    floats = value.dtype.kind in "fc"
    if value is moved or np.array_equal(value, moved, equal_nan=floats):
        return None
    kind = np.complex128 if value.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        distance = np.abs(value.astype(kind) - moved.astype(kind))
    same = (value == moved) | ((value != value) & (moved != moved))
    return np.where(same, 0.0, np.where(np.isnan(distance), inf, distance))


def _meant(value: Array, moved: Array) -> Expectation:
    """Return what an output should be: it may be off as far as any of its elements was moved."""
    if (distance := _distance(value, moved)) is None:
        return Expectation(value, np.zeros(value.shape), 0.0, 0)
    finite = distance[np.isfinite(distance)]
    usual = MOVES * float(np.quantile(finite, USUAL)) if finite.size else 0.0
    error = np.where(np.isfinite(distance), MOVES * finite.max(initial=0.0), inf)
    return Expectation(value, error, usual, int(np.count_nonzero(finite > usual)))


def _jumps(expr: TensorExpr) -> bool:
    """Return whether a result is a discontinuous function of floats that are read."""
    if not any(kind.dtype.is_float for _, kind in expr.inputs):
        return False
    bodies = [node for stage in expr.stages for node in nodes(stage.body)]
    floats = {name for name, kind in expr.inputs if kind.dtype.is_float} | {s.name for s in expr.stages}
    steps = any(isinstance(node, Call) and node.fn in STEPS for node in bodies)
    whole = any(isinstance(node, Cast) and not node.dtype.part.is_float for node in bodies)
    moves = (d.value for node in bodies if isinstance(node, Load) for d in node.dynamic)
    placed = any(isinstance(node, Load) and node.tensor in floats for value in moves for node in nodes(value))
    return steps or whole or placed or any(not stage.dtype.part.is_float for stage in expr.stages)
