"""The bound of rounding errors: sound orders of float32 lie inside, less exact products and wrong elements outside."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rammer.ir.expr import Call, Cast, Const, Load, Scalar, Stage, TensorExpr
from rammer.ir.index import var
from rammer.ir.ops import OPS
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.semantics.rounding import Bounded, bounded, differs, unexplained
from rammer.ir.tensor import Array, DType, TensorType

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def product(a: Array, b: Array) -> tuple[TensorExpr, dict[str, Array]]:
    expr = OPS["matmul"].express(TensorType(a.shape), TensorType(b.shape))
    return expr, dict(zip((n for n, _ in expr.inputs), (a, b), strict=True))


def pointwise(body: Scalar, dtype: DType, *inputs: tuple[Array, DType]) -> tuple[TensorExpr, dict[str, Array]]:
    shape = inputs[0][0].shape
    axes = (("i", shape[0]),)
    named = {f"x{n}": array for n, (array, _) in enumerate(inputs)}
    kinds = tuple((f"x{n}", TensorType(shape, kind)) for n, (_, kind) in enumerate(inputs))
    return TensorExpr("f", kinds, (Stage("o", axes, body, dtype=dtype),), (("o", TensorType(shape, dtype)),)), named


X = Load("x0", (var("i"),))


def parts(x: Array) -> list[Array]:
    """Three of bfloat16 that make up a float32, digits cut off."""
    found, rest = [], x.astype(np.float32)
    for _ in range(3):
        found.append((rest.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))
        rest = rest - found[-1]
    return found


@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize("depth", [64, 512, 2048])
def test_a_lost_part_of_a_product_is_seen(depth: int, random: bool) -> None:
    """Six products of parts are as exact as float32, five are off by 1e-5 of the largest value.

    Of ten sampled elements one at least shows it in the trial of an rKernel, on random numbers; of a program's sums,
    which may cancel in any order, it shows up to a depth of 512 or so.
    """
    a, b = normal(75, depth), normal(depth, 96)
    (want,) = bounded(*product(a, b), random=random)
    six = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0)]
    for lost in (None, (1, 1), (0, 2), (2, 0)):
        kept = [(parts(a)[i], parts(b)[j]) for i, j in six if (i, j) != lost]
        got = np.zeros((75, 96), np.float32)
        for at in range(0, depth, 32):  # as a matrix unit adds them up
            for x, y in kept:
                got += x[:, at : at + 32] @ y[at : at + 32]
        off = differs(got, want)
        error = np.abs(got - want.value).max() / np.abs(want.value).max()
        if lost is None:
            assert error < 1e-6 and not off.any()
        else:
            assert 5e-6 < error < 3e-5
            assert off.mean() > (0.4 if random else 0.02 if depth <= 512 else -1)


def orders(terms: Array) -> dict[str, Array]:
    """Sums over the last axis in float32, in several orders."""
    count = terms.shape[-1]
    return {
        "one by one": np.cumsum(terms, -1, dtype=np.float32)[..., -1],
        "backwards": np.cumsum(terms[..., ::-1], -1, dtype=np.float32)[..., -1],
        "in pairs": terms.sum(-1, dtype=np.float32),
        "in 16 lanes": np.cumsum(np.resize(terms, (*terms.shape[:-1], count // 16, 16)), -2, dtype=np.float32)[
            ..., -1, :
        ].sum(-1)
        if count % 16 == 0
        else terms.sum(-1, dtype=np.float32),
    }


@pytest.mark.parametrize("depth", [1, 7, 512, 4096])
@pytest.mark.parametrize("data", ["normal", "positive", "cancelling"])
def test_sound_orders_of_a_sum_lie_inside(depth: int, data: str) -> None:
    a, b = normal(24, depth), normal(depth, 24)
    if data == "positive":
        a, b = np.abs(a) + 1, np.abs(b) + 1
    if data == "cancelling":  # first up, then down again
        a, b = (
            np.abs(a) + 1,
            (np.abs(b) + 1) * np.where(np.arange(depth) < depth / 2, 1, -1)[:, None].astype(np.float32),
        )
    for random in (False, True) if data != "cancelling" else (False,):
        (want,) = bounded(*product(a, b), random=random)
        for order, got in orders(a[:, None, :] * b.T[None]).items():
            assert not differs(got, want).any(), (order, random)
        limit = 40 * 2.0**-24 * max(depth, 4) ** 0.5 * np.abs(want.value).max()
        assert data == "cancelling" or np.median(want.error) < limit


def test_terms_that_are_alike_are_rounded_one_way() -> None:
    """Their errors are no random walk: sums are tried before an element is called wrong; others are still seen."""
    depth = 300
    a, b = np.full((1, depth), 1 / depth, np.float32), np.tile(np.abs(normal(16)) + 1, (depth, 1))
    expr, inputs = product(a, b)
    got = np.cumsum(a[0][:, None] * b, 0, dtype=np.float32)[-1]
    (want,) = bounded(expr, inputs)
    flat = Bounded(want.value[0], want.error[0])
    places = np.stack([np.zeros(16, np.int64), np.arange(16)], 1)
    assert differs(got, flat).any()
    assert unexplained(got, flat, 0, places, partial(bounded, expr, inputs, careful=True)) is None
    wrong = np.where(np.arange(16) == 9, got * np.float32(1 + 4e-5), got)
    assert unexplained(wrong, flat, 0, places, partial(bounded, expr, inputs, careful=True)) == 9


@pytest.mark.parametrize("seed", [8, 29])
def test_equal_terms_round_alike_so_their_order_counts(seed: int) -> None:
    """A convolution with constant weights, whose sums go over channels inside: no kernel is refused for its order."""
    places = np.random.default_rng(seed).uniform(0.1, 1, 9).astype(np.float32)
    x = np.ascontiguousarray(np.broadcast_to(places.reshape(3, 3), (1, 128, 3, 3)))
    expr = OPS["conv"].express(TensorType(x.shape), TensorType(x.shape))
    inputs = dict(zip((n for n, _ in expr.inputs), (x, np.ones_like(x)), strict=True))
    got = np.cumsum(np.repeat(places, 128), dtype=np.float32)[-1:]
    (want,) = bounded(expr, inputs)
    flat, at = Bounded(want.value.ravel(), want.error.ravel()), np.zeros((1, 4), np.int64)
    assert differs(got, flat).all()
    assert unexplained(got, flat, 0, at, partial(bounded, expr, inputs, careful=True)) is None
    assert unexplained(got * np.float32(1.0001), flat, 0, at, partial(bounded, expr, inputs, careful=True)) == 0


def test_sums_over_blocks_of_channels() -> None:
    """Equal channels in blocks of eight: all places of a block, and its channels inside."""
    nine = 18659654, 21276782, 17657812, 20662220, 26382220, 26481070, 18181200, 22751110, 24169416
    places = np.array(nine, np.float32)
    x = np.ascontiguousarray(np.broadcast_to(places.reshape(3, 3), (1, 16, 3, 3)))
    expr = OPS["conv"].express(TensorType(x.shape), TensorType(x.shape))
    inputs = dict(zip((n for n, _ in expr.inputs), (x, np.ones_like(x)), strict=True))
    got = np.cumsum(np.broadcast_to(places[:, None], (2, 9, 8)), dtype=np.float32)[-1:]
    (want,) = bounded(expr, inputs)
    flat, at = Bounded(want.value.ravel(), want.error.ravel()), np.zeros((1, 4), np.int64)
    assert differs(got, flat).all()
    assert unexplained(got, flat, 0, at, partial(bounded, expr, inputs, careful=True)) is None


@pytest.mark.parametrize("fn", ["exp", "log", "tanh", "sigmoid", "erf", "sin", "sqrt", "floor", "round", "sign", "abs"])
def test_functions_of_sums(fn: str) -> None:
    """With an argument that is itself rounded: steps count in full where it may lie on either side."""
    x, y = np.abs(normal(600)) + 0.1, normal(600)
    x[:100], y[:100] = np.float32(0.1), np.float32(0.4)  # 0.1 + 0.4: a rounding away from a step
    expr, inputs = pointwise(
        Call(fn, (Call("abs", (Call("add", (X, Load("x1", (var("i"),)))),)),)),
        DType.F32,
        (x, DType.F32),
        (y, DType.F32),
    )
    (want,) = bounded(expr, inputs)
    single = evaluate_expr(pointwise(Call(fn, (X,)), DType.F32, (np.abs(x + y), DType.F32))[0], {"x0": np.abs(x + y)})[
        0
    ]
    assert not differs(single, want).any()
    finite = np.isfinite(want.value)
    wrong = (single + 1e-3 * np.abs(single) + 1e-3).astype(np.float32)
    assert (differs(wrong, want) == finite).mean() > (0.8 if fn in ("floor", "round") else 0.97)


def test_what_is_moved_is_equal_bit_by_bit() -> None:
    x = normal(5, 7)
    expr = OPS["transpose"].express(TensorType(x.shape), perm=(1, 0))
    (want,) = bounded(expr, {expr.inputs[0][0]: x})
    got = np.ascontiguousarray(x.T)
    assert not differs(got, want).any()
    got[3, 2] = np.nextafter(got[3, 2], np.float32(9))
    assert np.argwhere(differs(got, want)).tolist() == [[3, 2]]


@pytest.mark.parametrize(("dtype", "numpy"), [(DType.F16, np.float16), (DType.BF16, ml_dtypes.bfloat16)])
def test_16_bits_are_rounded_where_a_stage_ends(dtype: DType, numpy: Any) -> None:
    x = normal(600).astype(numpy)
    y = (normal(600) * 3).astype(numpy)
    body = Cast(Call("mul", (Cast(Call("mul", (X, Load("x1", (var("i"),)))), dtype), Const(1.7))), DType.F32)
    expr, inputs = pointwise(body, DType.F32, (x, dtype), (y, dtype))
    (want,) = bounded(expr, inputs)
    first = (x.astype(np.float32) * y.astype(np.float32)).astype(numpy).astype(np.float32)
    unrounded = x.astype(np.float32) * y.astype(np.float32) * np.float32(1.7)
    assert not differs((first * np.float32(1.7)).astype(np.float32), want).any()
    assert differs(unrounded, want).mean() > 0.5


def test_whole_numbers_of_what_none_holds() -> None:
    x = np.array([1.5, np.nan, 3e9, -7.9], np.float32)
    (want,) = bounded(*pointwise(Cast(X, DType.I32), DType.I32, (x, DType.F32)))
    low = np.iinfo(np.int32).min
    assert differs(np.array([1, low, 5, -7], np.int32), want).tolist() == [False] * 4
    assert differs(np.array([2, 0, 0, -8], np.int32), want).tolist() == [True, False, False, True]


def test_masks_next_to_the_largest_number_say_nothing_of_others() -> None:
    scores = normal(4, 9)
    scores[:, 5:] += np.finfo(np.float32).min
    expr = OPS["softmax"].express(TensorType(scores.shape), axis=1)
    (want,) = bounded(expr, {expr.inputs[0][0]: scores})
    assert np.asarray(want.error).max() < 1e-5


def test_constants_are_rounded_too() -> None:
    """A third of all float32 numbers give an exact sixth; 1/6 itself is not a float32, which the sum then magnifies."""
    x = np.float32(-3) + np.arange(1, 1 << 12, dtype=np.float32) * np.float32(2**-18)
    sixth = Call("mul", (X, Const(1 / 6)))
    expr, inputs = pointwise(Call("add", (sixth, Const(0.5))), DType.F32, (x, DType.F32))
    (want,) = bounded(expr, inputs)
    for factor in (1 / 6, np.float32(1 / 6)):  # multiply and add at once, as devices do
        assert not differs((x.astype(np.float64) * factor + 0.5).astype(np.float32), want).any()
    assert want.error.max() < 1e-6


def test_a_number_that_may_be_zero_has_no_sure_truth() -> None:
    """A sigmoid below the normal numbers is zero, and so false, on devices that flush them."""
    x = np.asarray([-100.0, -90.0, -80.0, 0.0], np.float32)
    expr, inputs = pointwise(Cast(Call("exp", (X,)), DType.BOOL), DType.BOOL, (x, DType.F32))
    (want,) = bounded(expr, inputs)
    assert want.error.tolist() == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("held", [DType.BOOL, DType.U8, DType.I32, DType.F32])
def test_a_comparison_is_unsure_where_an_operand_may_be_the_other(held: DType) -> None:
    """Nowhere else, if both are equal; unsigned numbers do not wrap round."""
    x = np.array([2.0**-23, 2.0**-25], np.float32)  # the second is lost, or rounds up, where 1 is added
    kept = Call("sub", (Call("add", (X, Const(1.0))), Const(1.0)))
    whole = Cast(Call("round", (Call("add", (Call("mul", (kept, Const(2.0**23))), Const(0.25))),)), held)
    expr, inputs = pointwise(Call("equal", (whole, Cast(Const(1.0), held))), DType.BOOL, (x, DType.F32))
    (want,) = bounded(expr, inputs)
    assert want.value.tolist() == [True, False] and want.error.tolist() == [0.0, 1.0]
