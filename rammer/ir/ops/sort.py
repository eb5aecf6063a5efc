"""Sort by exchanging pairs, or by counting: where each element belongs, and which element belongs where; and search.

Known as: sorting network, rank sort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rammer.ir.expr import Call, Cast, Const, Iota, Load, Range, Scalar, Select, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import call, expression, numbers_only, point_axes, require, variables_of
from rammer.ir.tensor import DType, TensorType

MOST_STEPS = 4  # of a network in an operator: its text doubles with each


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
    hint = "count is at least 1, and at most the extent of the last axis"
    require(ranks.rank > 0 and 0 < count <= ranks.shape[-1], f"order: {count} elements of {ranks}", hint)
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
    require(0 < steps <= MOST_STEPS, f"exchange: {steps} steps of {x}", "take several operators for more")
    require(x.rank == steps + 2 and x.shape[1:-1] == (2,) * steps, f"exchange: {x}", f"{steps} inner axes are pairs")
    axes = point_axes(x.shape)
    outer, *sides, inner = variables_of(axes)
    body = _exchanged(sides, lambda at: Load("x", (outer, *at, inner)))
    return expression("exchange", [("x", x)], [Stage("out", axes, body, dtype=x.dtype)])


def _merge(x: TensorType, *, steps: int, levels: int = 1, keep: bool = False) -> TensorExpr:
    """Build the first `steps` steps that merge pairs of sorted columns: column c of [outer, run, 2n] with column n + c.

    The second column is read backwards. Then its elements are exchanged with the first one's, and within each half with
    those a half further on, and so on. Each step is an axis of two, before the rest of the run and the n columns.
    `levels`: columns of one element are merged as often, all steps but the last level's. `keep`: only the smaller half
    of each pair is kept, without the first of these axes.

    Known as: bitonic merge, bitonic top-k.
    """
    numbers_only("merge", [x])
    given = f"merge: {steps} steps of {x}, {levels} levels"
    require(0 < steps <= MOST_STEPS, given, "take several operators for more")
    fits = x.rank == 3 and 0 < levels <= steps and x.shape[2] % (1 << levels) == 0
    require(fits, given, "x is [outer, run, columns]")
    require(levels == 1 or (levels == steps and x.shape[1] == 1), given, "several levels merge whole columns of one")
    run, width = x.shape[1] << (levels - 1), x.shape[2]
    rest = run >> (steps - 1)
    require(steps > keep and rest << (steps - 1) == run, given, "each step after the first halves the run")
    axes = point_axes((x.shape[0], *(2,) * (steps - keep), rest, width >> levels))
    outer, *sides, row, column = variables_of(axes)

    def merged(level: int, bits: Sequence[Index], row: Index, column: Index) -> Scalar:
        """Return an element of a column; its place there has these highest bits, and is `row` in the rest."""
        if not level:
            place = sum((bit * (rest << n) for n, bit in enumerate(reversed(bits))), row)
            return Load("x", (outer, place, column))

        def before(at: Sequence[Index]) -> Scalar:
            if at[0] == Index(1):  # in the second column
                mirrored = [bit * -1 + 1 for bit in at[1:]]
                return merged(level - 1, mirrored, row * -1 + (rest - 1), column + (width >> level))
            return merged(level - 1, at[1:], row, column)

        return _exchanged(bits, before)

    body = merged(levels, [Index(0)] * keep + sides, row, column)
    return expression("merge", [("x", x)], [Stage("out", axes, body, dtype=x.dtype)])


def _exchanged(sides: Sequence[Index], place: Callable[[Sequence[Index]], Scalar]) -> Scalar:
    """Return what is on these sides after one exchange along each, in turn; `place` says what was there before."""

    def after(done: int, at: list[Index]) -> Scalar:
        if not done:
            return place(at)
        pair = [after(done - 1, [*at[: done - 1], Index(side), *at[done:]]) for side in (0, 1)]
        least, most = (Call(fn, tuple(pair)) for fn in ("min", "max"))
        side = at[done - 1]
        return Select((Range(side, 0, 1),), least, most) if side.terms else (most if side.const else least)

    return after(len(sides), list(sides))


DEFINITIONS = (
    OpDef("exchange", _exchange),
    OpDef("merge", _merge),
    OpDef("rank", _rank),
    OpDef("order", _order),
    OpDef("last_equal", _last_equal),
)
