"""Sort by exchanging pairs, or by counting: where each element belongs, and which element belongs where; and search.

Known as: sorting network, rank sort.
"""

from __future__ import annotations

from rammer.ir.expr import Call, Cast, Const, Iota, Load, Range, Scalar, Select, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import call, expression, numbers_only, point_axes, require, variables_of
from rammer.ir.tensor import DType, TensorType


def _rank(x: TensorType, *, largest: bool = True) -> TensorExpr:
    """Build, per element, how many elements of its row come before it; of equal ones the first comes first.

    The ranks of a row are a permutation, unless it has a NaN.
    """
    numbers_only("rank", [x])
    require(x.rank > 0, f"rank: {x} has no axis to sort along", "reshape it")
    axes = point_axes(x.shape)
    here = variables_of(axes)
    other = var("k")
    mine, theirs = Load("x", here), Load("x", (*here[:-1], other))
    before = Call("less", (mine, theirs) if largest else (theirs, mine))
    earlier = Call("less", (Cast(Iota(other), DType.I32), Cast(Iota(here[-1]), DType.I32)))  # lanes differ in it
    body = Cast(call("or", before, call("and", Call("equal", (mine, theirs)), earlier)), DType.I32)
    return expression("rank", [("x", x)], [Stage("out", axes, body, (("k", x.shape[-1]),), "sum", DType.I32)])


def _order(ranks: TensorType, *, count: int) -> TensorExpr:
    """Build the places of the elements of ranks 0 … count - 1 in their row, which must be a permutation."""
    require(ranks.dtype is DType.I32, f"order: ranks are {ranks}", "make them by rank")
    require(
        ranks.rank > 0 and 0 < count <= ranks.shape[-1],
        f"order: {count} elements of {ranks}",
        "count is at least 1, and at most the extent of the last axis",
    )
    return _places("order", "ranks", ranks, count, 0, "sum")


def _last_equal(x: TensorType, *, count: int) -> TensorExpr:
    """Build the place of the last element of each row that equals 0 … count - 1; -1 where none does."""
    given = f"last_equal: {count} numbers in {x}"
    require(x.dtype is DType.I32, given, "numbers are int32")
    require(x.rank > 0 and count > 0, given, "x has rows, and count is at least 1")
    return _places("last_equal", "x", x, count, -1, "max")


def _places(name: str, operand: str, x: TensorType, count: int, other: int, combine: str) -> TensorExpr:
    """Combine, per number below `count`, the places of a row that hold it; all other places count as `other`."""
    axes = point_axes((*x.shape[:-1], count))
    here, place = variables_of(axes), var("k")
    hit = Call("equal", (Load(operand, (*here[:-1], place)), Cast(Iota(here[-1]), DType.I32)))
    body = call("where", hit, Cast(Iota(place), DType.I32), Const(other, DType.I32))
    return expression(name, [(operand, x)], [Stage("out", axes, body, (("k", x.shape[-1]),), combine, DType.I32)])


def _exchange(x: TensorType, *, steps: int) -> TensorExpr:
    """Build x with the smaller of each pair first, along each of `steps` axes of two, in turn, from axis 1 on.

    Known as: bitonic merge, compare and exchange.
    """
    numbers_only("exchange", [x])
    require(0 < steps <= 4, f"exchange: {steps} steps of {x}", "take several operators for more")
    require(x.rank == steps + 2 and x.shape[1:-1] == (2,) * steps, f"exchange: {x}", f"{steps} inner axes are pairs")
    axes = point_axes(x.shape)
    outer, *sides, inner = variables_of(axes)

    def after(done: int, at: list[Index]) -> Scalar:
        if not done:
            return Load("x", (outer, *at, inner))
        pair = [after(done - 1, [*at[: done - 1], Index(side), *at[done:]]) for side in (0, 1)]
        least, most = (Call(fn, tuple(pair)) for fn in ("min", "max"))
        side = at[done - 1]
        return Select((Range(side, 0, 1),), least, most) if side.terms else (most if side.const else least)

    return expression("exchange", [("x", x)], [Stage("out", axes, after(steps, sides), dtype=x.dtype)])


DEFINITIONS = (
    OpDef("exchange", _exchange),
    OpDef("rank", _rank),
    OpDef("order", _order),
    OpDef("last_equal", _last_equal),
)
