"""Bound how far rounding may move an expression: compute a value and a bound of its error, side by side.

Known as: running error analysis. A device computes in float32 (doubles in float64), in an order of its own. The bound
follows each value through the expression. To first order:

* a function adds a rounding of its result, unless float32 holds that of a sum or product, and the effect of its
  operands' errors (evaluated at both ends, so that steps of `round`, comparisons and conversions count in full);
* a sum of n terms adds sqrt(n) roundings of the sum of their magnitudes: partial sums are rounded n times, and errors
  of that many roundings grow as a random walk does;
* a value that is only moved has no error, and must be equal bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rammer.ir.expr import (
    COMPARISONS,
    REDUCERS,
    Call,
    Cast,
    Const,
    ConstantTable,
    Load,
    Scalar,
    Select,
    Stage,
    TensorExpr,
)
from rammer.ir.kernel import RKernel
from rammer.ir.semantics.evaluate import (
    MOST_SCATTERED,
    Evaluator,
    VirtualInput,
    contract,
    evaluate_expr,
    gathered,
    identity,
    stored_at,
    wide_type,
)
from rammer.ir.semantics.functions import FUNCTIONS
from rammer.ir.semantics.grids import Grid, Places, in_parts, is_contraction, terms_of, whole_of
from rammer.ir.tensor import Array, DType, NamedArrays
from rammer.ir.tile import Apply, TileProgram, statements

HALF_STEP = {DType.F64: 2.0**-53, DType.C128: 2.0**-53}  # relative; other types are computed in float32
FLOAT32_HALF_STEP = 2.0**-24
FACTOR_STEPS = {"bf16": 2.0**-9, "tf32": 2.0**-12}  # of factors, relative, by the precision of an instruction
TINY = 2.0**-126  # the least normal float32: smaller results may be zero
LARGEST = float(np.finfo(np.float32).max)
LANES = 1, 4, 16  # numbers of lanes in which float32 sums are tried
BLOCKS = 8, 16  # extents of blocks in which they are tried along each axis
MOST_LOOKED_AT = 16  # elements, the farthest off, that are checked with careful bounds
MOST_TRIED = 1 << 22  # terms of sums that are tried
MOST_WHOLE = 2.0**40  # the most by which integers are moved
OVERFLOW = 1e300  # the error of what may have become infinite, with its sign
EXACT = frozenset(  # functions whose result is one of their operands, or an integer
    {"neg", "abs", "max", "min", "sign", "floor", "ceil", "round", "where", "real", "imag", "complex"}
)
BASIC = frozenset({"add", "sub", "mul", "div", "sqrt"})  # rounded once; a quotient may be a product with a reciprocal
EXACT_IF_HELD = frozenset({"add", "sub", "mul"})  # not rounded where float32 holds the result of exact operands
RANDOM = 2.0  # six standard deviations of rounding n partial sums of random numbers, each of 0.4 half steps
OTHERS = 16.0  # half steps by which results of other functions, which are approximations, are off


class Bounded(NamedTuple):
    """A value (float64, or integers) and how far a device's may be off: 0.0 where it is exact."""

    value: Any
    error: Any


def bounded(
    expr: TensorExpr,
    inputs: Mapping[str, Array | VirtualInput],
    places: NDArray[np.int64] | None = None,
    errors: NamedArrays | None = None,
    factor_step: float = 0.0,
    random: bool = False,
    careful: bool = False,
) -> list[Bounded]:
    """Return all outputs, at places of the root (one index a column, one place a row) or at all of them.

    `errors`: of inputs that are computed themselves; others are exact. `factor_step`: relative rounding of factors of
    products before they are multiplied. `random`: the inputs are random numbers, whose partial sums grow only as random
    walks do; else they may cancel in any order. `careful`: sums are also evaluated in float32, as roundings of equal
    terms all go one way, unless there are too many terms.
    """
    if expr.combine and places is not None:
        return _combined(expr, inputs, places)
    evaluator = _Bounds(expr, inputs, errors or {}, factor_step, random, careful)
    if places is None:
        return evaluator.everywhere()
    most = max(MOST_SCATTERED // max(1, *(prod(e for _, e in s.reduce) for s in expr.stages)), 1)
    parts = [evaluator.bounded_at(places[n : n + most]) for n in range(0, max(len(places), 1), most)]
    return [Bounded(*map(np.concatenate, zip(*pairs, strict=True))) for pairs in zip(*parts, strict=True)]


def _combined(expr: TensorExpr, inputs: Mapping[str, Array | VirtualInput], places: NDArray[np.int64]) -> list[Bounded]:
    """Return what an update leaves where its elements at some places go. They are combined in order, so it is exact."""
    arrays = {
        name: given.at(np.indices(given.shape, sparse=True)) if isinstance(given, VirtualInput) else given
        for name, given in inputs.items()
    }
    (value,) = evaluate_expr(expr, arrays)
    left = value[tuple(stored_at(expr, inputs, places))]
    return [Bounded(left, np.zeros(left.shape))]


def bounded_as(
    expr: TensorExpr,
    form: TensorExpr | None,
    inputs: Mapping[str, Array | VirtualInput],
    places: NDArray[np.int64] | None = None,
    **options: Any,
) -> list[Bounded]:
    """Return the values of an expression, with bounds that cover the form in which it is computed, if any."""
    wanted = bounded(expr, inputs, places, **options)
    if form is None:
        return wanted
    formed = bounded(form, inputs, places, **options)
    return [Bounded(w.value, np.fmax(w.error, f.error)) for w, f in zip(wanted, formed, strict=True)]


def unexplained(
    got: Array,
    want: Bounded,
    number: int,
    places: NDArray[np.int64],
    bound: Callable[[NDArray[np.int64]], list[Bounded]],
) -> int | None:
    """Return the element of an output, at some places, that is farthest off its bound; None if the bounds explain all.

    `bound` gives the careful bounds at some of the places. `number` is the output's.
    """
    off = np.flatnonzero(differs(got, want))
    if not len(off):
        return None
    with np.errstate(all="ignore"):
        found = got[off].astype(np.complex128 if got.dtype.kind == "c" else np.float64)
        excess = np.nan_to_num(np.abs(found - np.asarray(want.value)[off]) / want.error[off], nan=np.inf, posinf=np.inf)
    worst = off[np.argsort(-excess, kind="stable")[:MOST_LOOKED_AT]]
    left = differs(got[worst], bound(places[worst])[number])
    return int(worst[np.argmax(left)]) if left.any() else None


def differs(got: Array, want: Bounded) -> NDArray[np.bool_]:
    """Return which elements are off by more than the bound. NaN matches NaN; where there is no bound, anything does."""
    with np.errstate(all="ignore"):
        found = got.astype(np.complex128 if got.dtype.kind == "c" else np.float64)
        wanted = np.asarray(want.value)
        wanted = wanted.astype(np.float64) if wanted.dtype.kind == "V" else wanted  # NumPy does not know all floats
        if wanted.dtype.kind not in "fc":
            alike = got == wanted.astype(got.dtype)
        else:
            alike = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        close = np.abs(found - wanted) <= want.error
        off: NDArray[np.bool_] = ~(alike | close | ~(np.asarray(want.error) < OVERFLOW))
    return off


class _Bounds(Evaluator):
    """Evaluator of pairs of value and error."""

    def __init__(
        self,
        expr: TensorExpr,
        inputs: Mapping[str, Array | VirtualInput],
        errors: NamedArrays,
        factor_step: float,
        random: bool,
        careful: bool,
    ) -> None:
        super().__init__(expr, inputs)
        self._errors, self._factor_step, self._random = errors, factor_step, random
        self._bounded: dict[str, Bounded] = {}  # stages at all of their points
        doubles = {k.dtype for _, k in (*expr.inputs, *expr.outputs)} | {s.dtype for s in expr.stages}
        self._step = max((HALF_STEP.get(d, FLOAT32_HALF_STEP) for d in doubles if d.part.is_float), default=0.0)
        self._largest = LARGEST if self._step == FLOAT32_HALF_STEP else np.inf
        self._tries_sums = careful and self._step == FLOAT32_HALF_STEP

    def everywhere(self) -> list[Bounded]:
        """Return the outputs at all places."""
        return [
            Bounded(*(np.array(np.broadcast_to(part, kind.shape)) for part in self._whole(self.stages[name])))
            for name, kind in self.expr.outputs
        ]

    def bounded_at(self, places: NDArray[np.int64]) -> list[Bounded]:
        """Return the outputs at places of the root."""
        results = []
        for name, _ in self.expr.outputs:
            stage = self.stages[name]
            pair = self._stage(stage, Grid({axis: places[:, d] for d, (axis, _) in enumerate(stage.axes)}))
            results.append(Bounded(*(np.array(np.broadcast_to(part, len(places))) for part in pair)))
        return results

    def _stage(self, stage: Stage, grid: Grid) -> Bounded:
        if not stage.reduce:
            return self._rounded(self._value(stage.body, grid), stage.dtype)
        inner, full, rank = terms_of(stage, grid)
        over = tuple(range(rank, len(full)))
        match stage.body:
            case Call("mul", (left, right)) if is_contraction(stage):
                pair = self._products(self._value(left, inner), self._value(right, inner), full, rank)
            case body:
                pair = self._folded(stage, self._value(body, inner), full, over)
        return self._rounded(pair, stage.dtype)

    def _products(self, left: Bounded, right: Bounded, full: tuple[int, ...], rank: int) -> Bounded:
        """Return a sum of products."""
        (a, a_off), (b, b_off) = left, right
        with np.errstate(all="ignore"):
            sizes = np.abs(np.asarray(a, np.float64)), np.abs(np.asarray(b, np.float64))
            magnitude = contract(*sizes, full, rank)
            value = contract(a, b, full, rank)
            squares = contract(sizes[0] ** 2, sizes[1] ** 2, full, rank) if self._random else None
            error = self._sum_error(prod(full[rank:]), value, magnitude, squares) + 2 * self._factor_step * magnitude
            if self._tries_sums and prod(full) <= MOST_TRIED:
                terms = np.broadcast_to(np.asarray(a, np.float64) * b, full)
                error = np.fmax(error, _float32_error(terms, value, rank))
            if np.any(a_off):
                error = error + contract(a_off, sizes[1], full, rank)
            if np.any(b_off):
                error = error + contract(sizes[0], b_off, full, rank)
        return Bounded(value, _or_unbounded(error, magnitude))

    def _sum_error(self, terms: int, value: Any, magnitude: Any, squares: Any) -> Any:
        """Return the rounding error of a sum.

        Partial sums of random numbers are about as large as the root of the sum of their squares, or as the sum itself;
        those of others may be as large as the sum of their magnitudes.
        """
        if self._random:
            return RANDOM * sqrt(terms) * self._step * np.sqrt(squares + np.square(np.abs(value)))
        return (sqrt(terms) + 1) * self._step * magnitude

    def _folded(self, stage: Stage, terms: Bounded, full: tuple[int, ...], over: tuple[int, ...]) -> Bounded:
        dtype = wide_type(stage.dtype)
        points = np.broadcast_to(terms.value, full).astype(dtype, copy=False)
        start = dtype.type(identity(stage.combine, stage.dtype))
        ufunc = FUNCTIONS[REDUCERS[stage.combine][0]]
        assert isinstance(ufunc, np.ufunc)
        exact = np.ndim(terms.error) == 0 and terms.error == 0
        with np.errstate(all="ignore"):
            value = ufunc.reduce(points, axis=over, initial=start)
            error: Any = 0.0
            match stage.combine:
                case "sum":
                    error = 0.0 if exact else np.broadcast_to(terms.error, full).sum(axis=over)
                    if stage.dtype.is_float and len(over):
                        magnitude = np.abs(points).sum(axis=over)
                        squares = np.square(np.abs(points)).sum(axis=over) if self._random else None
                        error = error + self._sum_error(prod(full[-len(over) :]), value, magnitude, squares)
                        if self._tries_sums and points.dtype.kind == "f" and points.size <= MOST_TRIED:
                            error = error + _float32_error(points, value, len(full) - len(over))
                        error = _or_unbounded(error, magnitude)
                case "prod":
                    sizes = np.abs(points)
                    error = 0.0 if exact else np.prod(sizes + terms.error, axis=over) - np.prod(sizes, axis=over)
                    if stage.dtype.is_float:
                        error = error + prod(full[len(full) - len(over) :]) * self._step * np.abs(value) + TINY
                case _ if not exact:
                    ends = (moved_by(points, sign * np.broadcast_to(terms.error, full)) for sign in (-1, 1))
                    error = np.maximum(*(_distance(ufunc.reduce(e, axis=over, initial=start), value) for e in ends))
        return Bounded(value, error)

    def _read(self, tensor: str, places: Places) -> Bounded:
        wide = wide_type(self.expr.type_of(tensor).dtype)
        if tensor not in self.stages:
            value = gathered(self.inputs[tensor], wide, places)
            if tensor in self._errors:
                return Bounded(value, gathered(self._errors[tensor], np.dtype(np.float64), places))
            return Bounded(value, _subnormal(value))
        stage = self.stages[tensor]
        if tensor not in self._bounded and in_parts(stage, places):
            return self._stage(stage, places.grid(stage))
        value, error = self._whole(stage)
        return Bounded(
            gathered(value, wide, places), gathered(error, np.dtype(np.float64), places) if np.ndim(error) else error
        )

    def _whole(self, stage: Stage) -> Bounded:
        if stage.name not in self._bounded:
            value, error = self._stage(stage, self.grid(stage, whole_of(stage)))
            self._bounded[stage.name] = Bounded(
                np.array(np.broadcast_to(value, stage.shape)),
                np.array(np.broadcast_to(error, stage.shape)) if np.ndim(error) else error,
            )
        return self._bounded[stage.name]

    def _rounded(self, pair: Bounded, dtype: DType) -> Bounded:
        """Return the pair as a stage or a conversion holds it; exact values round alike everywhere."""
        value, error = pair
        held = self.rounded(value, dtype)
        if np.ndim(error) == 0 and error == 0:
            if np.asarray(value).dtype.kind in "fc" and not dtype.part.is_float and dtype is not DType.BOOL:
                return Bounded(held, _unheld(value, dtype))
            return Bounded(held, 0.0)
        with np.errstate(all="ignore"):
            if dtype in (DType.F64, DType.C128, DType.C64):
                return Bounded(held, error)
            if dtype is DType.F32:
                error = np.where(error == 0, 0.0, error + FLOAT32_HALF_STEP * np.abs(held) + TINY)
                return Bounded(held, np.where(np.abs(value) + error < LARGEST, error, np.fmax(error, OVERFLOW)))
            if dtype is DType.BOOL and np.asarray(value).dtype != bool:
                return Bounded(held, np.where((np.abs(value) <= error) & (error > 0), 1.0, 0.0))  # it may be zero
            ends = [self.rounded(moved_by(value, sign * error), dtype) for sign in (-1, 1)]
            error = _whole_unbounded(np.maximum(*(_distance(end, held) for end in ends)), pair)
            if not dtype.part.is_float and dtype is not DType.BOOL and np.asarray(value).dtype.kind == "f":
                error = np.maximum(error, _unheld(value, dtype))
            return Bounded(held, error)

    def _value(self, body: Scalar, grid: Grid) -> Bounded:
        match body:
            case Cast(arg, dtype, bits):
                pair = self._value(arg, grid)
                if not bits:
                    return self._rounded(pair, dtype)
                error = np.where(pair.error > 0, np.inf, 0.0) if np.any(pair.error) else 0.0
                return Bounded(self.value(body, grid), error)
            case Load(tensor, _, dynamic):
                found = self._read(tensor, self.places(body, grid))
                for d in dynamic:
                    if np.any(unsure := self._value(d.value, grid).error):
                        found = Bounded(found.value, np.where(unsure > 0, np.inf, found.error))
                return found
            case Call(fn, args):
                return self._call(fn, [self._value(arg, grid) for arg in args])
            case Select(_, then, other):
                ok = self.chosen(body, grid)
                (a, a_off), (b, b_off) = self._value(then, grid), self._value(other, grid)
                exact = not np.any(a_off) and not np.any(b_off)
                return Bounded(np.where(ok, a, b), 0.0 if exact else np.where(ok, a_off, b_off))
            case Const() | ConstantTable():
                value = self.value(body, grid)
                return Bounded(value, self._constant_error(np.asarray(value)))
        return Bounded(self.value(body, grid), 0.0)

    def _constant_error(self, value: Array) -> Any:
        """Return how far constants are off on a device that computes in float32."""
        if value.dtype.kind != "f" or self._step < FLOAT32_HALF_STEP:
            return 0.0
        with np.errstate(all="ignore"):
            return np.nan_to_num(np.abs(value - value.astype(np.float32)), nan=0.0, posinf=OVERFLOW)

    def _call(self, fn: str, args: Sequence[Bounded]) -> Bounded:
        apply = FUNCTIONS[fn]
        values = [arg.value for arg in args]
        unsure = [n for n, arg in enumerate(args) if np.any(arg.error)]
        with np.errstate(all="ignore"):
            value = np.asarray(apply(*values))
            error: Any = 0.0
            if unsure and fn in COMPARISONS and len(args) == 2:
                off = args[0].error + args[1].error
                error = np.where((_distance(*map(np.asarray, values)) <= off) & (off > 0), 1.0, 0.0)
            elif unsure and fn == "where":
                (_, either), (_, a_off), (_, b_off) = args
                error = np.where(values[0], a_off, b_off)
                if np.any(either):
                    both = _distance(np.asarray(values[1]), np.asarray(values[2])) + a_off + b_off
                    error = np.where(either != 0, both, error)
            elif unsure:
                for signs in product((-1, 1), repeat=len(unsure)):
                    ends = list(values)
                    for n, sign in zip(unsure, signs, strict=True):
                        ends[n] = moved_by(values[n], sign * args[n].error)
                    error = np.maximum(error, _distance(np.asarray(apply(*ends)), value))
                error = _whole_unbounded(error, *(args[n] for n in unsure))
            if value.dtype.kind in "fc" and fn not in EXACT:
                size = np.abs(value)
                rounding = self._step * (2.0 if fn in BASIC else OTHERS) * size + TINY
                rounding = np.where(size < self._largest, rounding, OVERFLOW)
                if fn in EXACT_IF_HELD:
                    held = (value == value.astype(np.complex64 if value.dtype.kind == "c" else np.float32)) & (
                        (size >= TINY) | (size == 0)
                    )
                    for n in unsure:
                        held = held & (args[n].error == 0)
                    rounding = np.where(held, 0.0, rounding)
                error = error + np.where(np.isfinite(size), rounding, 0.0)
        return Bounded(value, error)


def _float32_error(terms: Array, value: Any, rank: int) -> Any:
    """Return twice the largest error of float32 sums over all axes from `rank` on, one by one or in lanes.

    Equal terms round alike, so errors add up; how much depends on the order, which begins with either end of the axes,
    or goes from block to block of one axis outside of the others, and along each block inside, as channels lie.
    """
    most: Any = 0.0
    for ordered, lanes in product(_orders(terms, rank), LANES):
        flat = ordered.reshape(*terms.shape[:rank], -1)
        padded = np.zeros((*flat.shape[:-1], -(-flat.shape[-1] // lanes) * lanes), np.float32)
        padded[..., : flat.shape[-1]] = flat
        sums = np.cumsum(padded.reshape(*flat.shape[:-1], -1, lanes), -2, dtype=np.float32)[..., -1, :]
        most = np.fmax(most, np.abs(sums.sum(-1, dtype=np.float64) - value))
    return 2 * most


def _orders(terms: Array, rank: int) -> Iterator[Array]:
    """Yield the terms with the axes from `rank` on in other orders, the innermost last."""
    summed = range(rank, terms.ndim)
    yield terms
    yield terms.transpose(*range(rank), *summed[::-1])
    for axis, block in product(summed, BLOCKS):
        before, after = terms.shape[:axis], terms.shape[axis + 1 :]
        if len(summed) > 1 and terms.shape[axis] % block == 0:
            yield np.moveaxis(terms.reshape(*before, -1, block, *after), (axis, axis + 1), (rank, -1))


def moved_by(value: Any, by: Any) -> Any:
    """Return a value with an error added; a truth value with an error is flipped."""
    value = np.asarray(value)
    if value.dtype == bool:
        return value ^ (np.asarray(by) != 0)
    if value.dtype.kind not in "fc":
        return value + np.asarray(np.rint(np.clip(by, -MOST_WHOLE, MOST_WHOLE)), np.int64).astype(value.dtype)
    moved = value + by
    if np.any(over := np.abs(by) >= OVERFLOW):  # it grows, and does not change its sign
        grown = np.copysign(np.inf, value.real)
        moved = np.where(over & np.isfinite(by), np.where(np.sign(by) == np.sign(value), grown, value), moved)
    return moved


def _distance(a: Array, b: Array) -> Any:
    """Return the distance between numbers; infinite where just one of them is a number."""
    if a.dtype == bool:
        return (a != b).astype(np.float64)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    distance = np.abs(a.astype(wide) - b.astype(wide))
    distance = np.where((a == b) | ((a != a) & (b != b)), 0.0, distance)
    return np.where(np.isnan(distance), np.inf, distance)


def _whole_unbounded(error: Any, *args: Bounded) -> Any:
    """Make an error infinite where an integer operand's own error is too large to move it so far."""
    for value, off in args:
        if np.asarray(value).dtype.kind in "iu" and np.any(off > MOST_WHOLE):
            error = np.where(off > MOST_WHOLE, np.inf, error)
    return error


def _subnormal(value: Any) -> Any:
    """Return the error of values that a device may take for zero."""
    if value.dtype.kind not in "fc":
        return 0.0
    small = (np.abs(value) < TINY) & (value != 0)
    return np.where(small, np.abs(value), 0.0) if small.any() else 0.0


def _unheld(value: Any, dtype: DType) -> Any:
    """Return an infinite error for numbers that an integer type does not hold: they become some integer."""
    whole = np.trunc(np.real(value))
    held = (whole >= float(dtype.info.min)) & (whole <= float(dtype.info.max))
    return 0.0 if held.all() else np.where(held, 0.0, np.inf)


def _or_unbounded(error: Any, magnitude: Any) -> Any:
    """Return the error of a sum; infinite where a partial sum may overflow, or is NaN."""
    return np.where(magnitude < LARGEST, error, np.inf)


def factor_step(kernel: RKernel) -> float:
    """Return the relative rounding of factors by an rKernel's instructions; 0.0 if exact, or split into parts."""
    body = kernel.body.body if isinstance(kernel.body, TileProgram) else ()
    used = [s.instruction for s in statements(body) if isinstance(s, Apply) and s.instruction.precision != "fp32"]
    rounds = [i for i in used if i.encoding is None or i.encoding.parts == 1]
    return max((FACTOR_STEPS[i.precision] for i in rounds), default=0.0)
