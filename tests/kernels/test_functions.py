"""Scalar functions in C: relative accuracy, and NaN, infinities and zeros as NumPy has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cpus import runnable
from kernel_harness import SPEC, Built, Runner, compile_all, operation, random_inputs

from benchmarks.micro import functions
from rammer.ir.semantics.functions import FUNCTIONS
from rammer.ir.tensor import DType, TensorType
from rammer.kernels import candidates

POINTS = np.concatenate(
    [
        np.linspace(-100, 100, 4001),
        np.linspace(-1, 1, 2001),
        np.geomspace(1e-30, 1e30, 500),
        -np.geomspace(1e-30, 1e3, 500),
    ]
).astype(np.float32)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -3e38], np.float32)
UNARY = (
    "exp",
    "log",
    "tanh",
    "sigmoid",
    "erf",
    "sqrt",
    "floor",
    "ceil",
    "round",
    "sign",
    "abs",
    "neg",
    "relu",
    "sin",
    "cos",
    "asin",
    "acos",
    "atan",
)
TWO_ULP = ("exp", "log", "sqrt", "sin", "cos", "asin", "acos", "atan")
BINARY = ("max", "min", "fmod", "pow")
DIVISIONS, INTEGERS = ("div", "mod", "fmod"), (DType.I8, DType.U8, DType.I16, DType.U16, DType.I32, DType.I64)
REMAINDERS = 60_007  # pairs of floats

MINIFLOATS = [d for d in DType if d.is_float and d.only_stored]


def codes(dtype: DType) -> np.ndarray:
    """Every number of a type of at most 8 bits."""
    return np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)


def neighbours(dtype: DType) -> np.ndarray:
    """Where rounding to a type turns: numbers of it, halves between them, and what is next to those; any bits."""
    with np.errstate(all="ignore"):
        known = np.unique(codes(dtype).astype(np.float32))
        known = known[np.isfinite(known)]
        halves = (known[1:].astype(np.float64) + known[:-1]) / 2
        turns = np.concatenate([known, halves.astype(np.float32), known * np.float32(1.25), known * np.float32(1.75)])
        around = [turns, np.nextafter(turns, np.float32(np.inf)), np.nextafter(turns, np.float32(-np.inf))]
    random = np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint32).view(np.float32)
    return np.concatenate([*around, *(-a for a in around), random, SPECIAL, POINTS, np.array([-np.nan], np.float32)])


SPECS = [SPEC, replace(SPEC, arch=runnable("x86-64-avx2"), lanes=8, registers=16)]


@pytest.fixture(scope="module", params=SPECS, ids=lambda spec: f"{spec.lanes} lanes")
def built(request: pytest.FixtureRequest) -> Built:
    spec = request.param
    size = len(POINTS) + len(SPECIAL)  # a multiple of no vector width: tails use the same functions
    cases = {kind: operation(kind, TensorType((size,))) for kind in UNARY}
    cases |= {kind: operation(kind, TensorType((size,)), TensorType((size,))) for kind in BINARY}
    for dtype in INTEGERS:
        kind = TensorType(pairs(dtype)[0].shape, dtype)
        cases |= {f"{name} {dtype}": operation(name, kind, kind) for name in DIVISIONS}
    kind = TensorType((REMAINDERS,))
    cases["fmod exactly"] = operation("fmod", kind, kind)
    cases["gather"] = operation("gather", TensorType((5, 20)), TensorType((4,), DType.I64), axis=0)
    for dtype in MINIFLOATS:
        cases[f"from {dtype}"] = operation("cast", TensorType((1 << dtype.bits,), dtype), dtype=DType.F32)
        cases[f"to {dtype}"] = operation("cast", TensorType((len(neighbours(dtype)),)), dtype=dtype)
        cases[f"scalar {dtype}"] = operation(
            "cast", TensorType((len(neighbours(dtype)),), DType.F64), dtype=dtype
        )  # of which there are no vectors
    return compile_all({name: (op, candidates(op, spec)[:1]) for name, op in cases.items()}, spec)


def run(built: Built, name: str, *values: np.ndarray) -> tuple[np.ndarray, int]:
    op, ((kernel, symbol),) = built.kernels[name]
    runner = Runner(kernel, built.library, symbol, dict(zip((n for n, _ in op.expr.inputs), values, strict=True)))
    return runner.run()[0], runner.context.status


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions_are_accurate(built: Built, name: str) -> None:
    x = np.concatenate([POINTS, SPECIAL])
    with np.errstate(all="ignore"):
        meaning = (lambda v: np.maximum(v, 0)) if name == "relu" else FUNCTIONS[name]
        wanted = np.asarray(meaning(x.astype(np.float64))).astype(np.float32)
    compare_relative(run(built, name, x)[0], wanted, x, 2.4e-7 if name in TWO_ULP else 4e-7)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "erf"])
def test_limits_are_reached_exactly(built: Built, name: str) -> None:
    """x (1 + erf(x)) grows with -x otherwise: Gelu of -1e6 was -0.06."""
    x = np.concatenate([POINTS, SPECIAL])
    far = np.abs(x) >= 20
    with np.errstate(all="ignore"):
        wanted = np.asarray(FUNCTIONS[name](x.astype(np.float64))).astype(np.float32)
    far &= np.abs(wanted) == 1
    np.testing.assert_array_equal(run(built, name, x)[0][far], wanted[far])
    assert far.sum() > 1000


def pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of extremes and small numbers, random bits by random bits, and large numbers by small ones.

    All of it with the upper quarter of the bits, and without: small int64 may take a shorter way.
    """
    info, random = np.iinfo(dtype.numpy), np.random.default_rng(0)
    turns = [sign * 2**51 + n for sign in (-1, 1) for n in (-1, 0)]
    edges = [info.min, info.min + 1, info.max, info.max - 1, *turns, *range(-9, 10)]
    few = np.unique(np.array([min(max(n, info.min), info.max) for n in edges], dtype.numpy))
    a, b = (x.ravel() for x in np.meshgrid(few, few))
    above, below = [a], [b]
    for shift in (0, info.bits // 4):
        many = random.integers(info.min, info.max, (3, 5000), dtype.numpy, endpoint=True) >> shift
        # quotients of neighbours of multiples: where a quotient of doubles is rounded to the wrong side
        by = np.maximum(many[1] >> 3, 1)
        near = many[0] // by * by + random.integers(-1, 2, 5000).astype(dtype.numpy)
        above += (many[0], many[0], near)
        below += (many[1], many[2] % 99 - 49, by)
    return tuple(np.concatenate([p.astype(dtype.numpy) for p in side]) for side in (above, below))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", DIVISIONS)
def test_integers_are_divided_exactly(built: Built, name: str, dtype: DType) -> None:
    a, b = pairs(dtype)
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[name](a, b)
    np.testing.assert_array_equal(run(built, f"{name} {dtype}", a, b)[0], wanted)


def test_remainders_are_exact(built: Built) -> None:
    """Any normal numbers, and neighbours of multiples: a quotient may be rounded up to the next integer."""
    random = np.random.default_rng(1)
    bits = random.integers(0, 2**32, (2, 20_000), np.uint32)
    any_a, any_b = np.where(bits >> 23 & 255, bits, 0x3F800000).astype(np.uint32).view(np.float32)
    b = (any_b.view(np.uint32) & 0x83FFFFFF | 0x3C000000).view(np.float32)
    near = np.nextafter(b * random.integers(1, 2**20, b.size).astype(np.float32), np.float32(0))
    a, b = np.concatenate([any_a, any_a, near, SPECIAL.repeat(8)]), np.concatenate([any_b, b, b, np.tile(SPECIAL, 8)])
    normal = (np.abs(a) >= 1.2e-38) | (a == 0)
    a, b = (np.resize(np.extract(normal & ((np.abs(b) >= 1.2e-38) | (b == 0)), x), REMAINDERS) for x in (a, b))
    with np.errstate(all="ignore"):
        wanted = np.fmod(a, b)
    got = run(built, "fmod exactly", a, b)[0]
    normal = ~(np.abs(wanted) < 1.2e-38)  # others are flushed to zero
    np.testing.assert_array_equal(got[normal], wanted[normal])
    np.testing.assert_array_equal(np.signbit(got[wanted == 0]), np.signbit(wanted[wanted == 0]))


@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_follow_numpy(built: Built, name: str) -> None:
    a = np.concatenate([np.abs(POINTS) % 50, SPECIAL]).astype(np.float32)
    b = np.concatenate([np.roll(POINTS, 7) % 5 + 0.5, SPECIAL[::-1]]).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = np.asarray(FUNCTIONS[name](a.astype(np.float64), b.astype(np.float64))).astype(np.float32)
    compare_relative(run(built, name, a, b)[0], wanted, a, 4e-7)


def compare_relative(got: np.ndarray, wanted: np.ndarray, x: np.ndarray, limit: float) -> None:
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    infinite = np.isinf(wanted)
    np.testing.assert_array_equal(got[infinite], wanted[infinite])
    normal = np.isfinite(wanted) & (np.abs(wanted) >= 2e-38)
    error = np.abs(got[normal].astype(np.float64) - wanted[normal]) / np.abs(wanted[normal])
    assert error.max(initial=0) <= limit, f"relative error {error.max()} at {x[normal][error.argmax()]}"
    assert np.abs(got[np.isfinite(wanted) & ~normal]).max(initial=0) <= 2e-38


def test_a_gather_out_of_range_is_reported_and_reads_element_0(built: Built) -> None:
    x = random_inputs(built.kernels["gather"][0])["x"]
    got, status = run(built, "gather", x, np.array([1, -1, 4, -5]))
    assert status == 0
    np.testing.assert_array_equal(got, x[[1, -1, 4, -5]])
    got, status = run(built, "gather", x, np.array([1, 5, -6, 2**40]))
    assert status == 1
    np.testing.assert_array_equal(got, x[[1, 0, 0, 0]])


@pytest.mark.parametrize("dtype", MINIFLOATS)
def test_small_floats_are_converted_bit_by_bit(built: Built, dtype: DType) -> None:
    """All numbers to float32, and float32 around every place where rounding turns."""
    x = codes(dtype)
    np.testing.assert_array_equal(run(built, f"from {dtype}", x)[0], x.astype(np.float32))
    x = neighbours(dtype)
    with np.errstate(all="ignore"):
        wanted, double = x.astype(dtype.numpy), x.astype(np.float64)
    for name, value in ((f"to {dtype}", x), (f"scalar {dtype}", double)):
        seen = run(built, name, value)[0]
        wrong = seen.view(np.uint8) != wanted.view(np.uint8)
        assert not wrong.any(), (name, x[wrong][:5], seen[wrong][:5], wanted[wrong][:5])


@pytest.fixture(scope="module", params=["x86-64-avx512", "x86-64-avx2", "x86-64"])
def library(request: pytest.FixtureRequest) -> functions.Library:
    return functions.Library(runnable(request.param))


@pytest.mark.parametrize("one", [False, True], ids=["vectors", "numbers"])
@pytest.mark.parametrize("name", functions.NAMES)
def test_all_binades(library: functions.Library, name: str, one: bool) -> None:
    """Some 8 arguments of every binade and sign, and all kinds of special results."""
    error = library.error(name, 999_983, one=one)
    assert not error.wrong
    assert error.worst <= functions.ULP.get(name, functions.LEAST_ULP), f"at {error.at}"
