"""Define probes: three operators whose only use is to test a backend (rammer.testing)."""

from __future__ import annotations

from functools import reduce

from rammer.ir.expr import Const, Load, Scalar, Stage, TensorExpr
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import (
    call,
    expression,
    float_only,
    listed,
    number,
    numbers_only,
    point_axes,
    require,
    variables_of,
)
from rammer.ir.tensor import DType, Shape, TensorType


def _fill(*, shape: Shape, value: float, dtype: DType = DType.F32) -> TensorExpr:
    """Build a tensor of one value, from no inputs."""
    literal = Const(number(value, dtype).value, dtype)
    return expression("probe_fill", [], [Stage("out", point_axes(shape), literal, dtype=dtype)])


def _sum(*xs: TensorType) -> TensorExpr:
    """Build the sum of one or more tensors of one shape."""
    require(len({t.shape for t in xs}) == 1, f"probe_sum: operands {listed(xs)}", "one or more of one shape")
    dtype = numbers_only("probe_sum", xs)
    axes = point_axes(xs[0].shape)
    loads: list[Scalar] = [Load(f"x{n}", variables_of(axes)) for n in range(len(xs))]
    body = reduce(lambda a, b: call("add", a, b), loads)
    return expression("probe_sum", [(f"x{n}", t) for n, t in enumerate(xs)], [Stage("out", axes, body, dtype=dtype)])


def _spin(x: TensorType, *, rounds: int) -> TensorExpr:
    """Build x plus `rounds` dependent multiply-adds of x times zero: a delay that leaves finite values unchanged."""
    dtype = float_only("probe_spin", [x])
    require(rounds > 0, f"probe_spin: {rounds} rounds of {x}", "rounds must be positive")
    axes = point_axes(x.shape)
    here = Load("x", variables_of(axes))
    return expression(
        "probe_spin",
        [("x", x)],
        [
            Stage("zero", axes, here * 0.0, (("k", rounds),), dtype=dtype),
            Stage("out", axes, here + Load("zero", variables_of(axes)), dtype=dtype),
        ],
    )


DEFINITIONS = (OpDef("probe_fill", _fill), OpDef("probe_sum", _sum), OpDef("probe_spin", _spin))
