"""Random operators: the distribution, another draw in each run, the same draws for the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx_models import model, node

import rammer
from rammer.errors import ModelError
from rammer.ir.graph import RANDOM_RUN
from rammer.ir.tensor import Array

SHAPE = (75, 640)
COUNT = SHAPE[0] * SHAPE[1]


def moments(x: Array) -> tuple[float, float]:
    assert abs(np.corrcoef(x.ravel()[:-1], x.ravel()[1:])[0, 1]) < 5 / np.sqrt(COUNT)  # neighbours are independent
    return float(x.mean()), float(x.std())


@pytest.mark.parametrize(
    ("op", "attrs", "mean", "deviation"),
    [
        ("RandomUniform", {"low": -1.0, "high": 3.0}, 1.0, 4 / np.sqrt(12)),
        ("RandomNormal", {"mean": 2.0, "scale": 0.5}, 2.0, 0.5),
        ("RandomUniformLike", {"low": 0.0, "high": 1.0, "dtype": TensorProto.DOUBLE}, 0.5, 1 / np.sqrt(12)),
        ("RandomNormalLike", {}, 0.0, 1.0),
    ],
)
def test_moments(op: str, attrs: dict[str, Any], mean: float, deviation: float) -> None:
    like = op.endswith("Like")
    x = np.zeros(SHAPE, np.float32)
    made = model([node(op, ["x"] if like else [], **attrs, **({} if like else {"shape": SHAPE}))], {"x": SHAPE})
    with rammer.Session(made, "cpu") as session:
        first, second = (session.run(None, {"x": x})[0] for _ in range(2))
    assert first.shape == SHAPE and first.dtype == (np.float64 if "dtype" in attrs else np.float32)
    for found in (first, second):
        assert np.allclose(moments(found), (mean, deviation), atol=5 * deviation / np.sqrt(COUNT))
        assert len(np.unique(found)) > COUNT / 2
    assert (first == second).mean() < 0.01
    if "Uniform" in op:
        assert first.min() >= attrs["low"] and first.max() < attrs["high"]


def test_a_seed_decides_and_without_one_each_import_differs() -> None:
    def runs(made: Any) -> list[Array]:
        with rammer.Session(made, "interpreter") as session:
            return [session.run(None, {"x": np.zeros(9, np.float32)})[0] for _ in range(2)]

    seeded, other, free = (
        model([node("RandomNormalLike", **attrs)], {"x": (9,)}) for attrs in ({"seed": 3.0}, {"seed": 4.0}, {})
    )
    assert np.array_equal(runs(seeded), runs(seeded))
    assert not np.array_equal(runs(seeded), runs(other))
    assert not np.array_equal(runs(free), runs(free))


def test_a_program_draws_by_the_number_that_it_is_given() -> None:
    nodes = [node("RandomNormalLike", ["x"], ["a"], seed=1.0), node("RandomNormalLike", ["x"], ["b"], seed=1.0)]
    made = model(nodes, {"x": (3, 40)}, ("a", "b"))
    x, found = np.zeros((3, 40), np.float32), {}
    for target in ("cpu", "interpreter"):
        with rammer.compile(made, target) as program:
            found[target] = [program.run({"x": x, RANDOM_RUN: np.int64(n)}) for n in (0, 1, 0)]
    for name in ("a", "b"):
        zero, one, again = (run[name] for run in found["cpu"])
        assert np.array_equal(zero, again) and not np.array_equal(zero, one)
        np.testing.assert_allclose(zero, found["interpreter"][0][name], rtol=1e-5, atol=1e-6)
    assert not np.array_equal(found["cpu"][0]["a"], found["cpu"][0]["b"])


def test_dropout_in_training() -> None:
    constants = {"r": np.array(0.25, np.float32), "t": np.array(True)}
    made = model([node("Dropout", ["x", "r", "t"], ["y", "m"])], {"x": SHAPE}, ("y", "m"), constants)
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    with rammer.Session(made, "cpu") as session:
        y, mask = session.run(None, {"x": x})
    assert mask.dtype == bool and abs(mask.mean() - 0.75) < 5 * 0.44 / np.sqrt(COUNT)
    np.testing.assert_allclose(y, np.where(mask, x / np.float32(0.75), 0), rtol=1e-6)


def test_bernoulli_and_multinomial() -> None:
    p = np.array([0.1, 0.0, 0.6, 1.0], np.float32)
    made = model([node("Bernoulli")], {"x": (2000, 4)})
    with rammer.Session(made, "interpreter") as session:
        (y,) = session.run(None, {"x": np.tile(p, (2000, 1))})
    assert np.all(abs(y.mean(0) - p) <= 5 * np.sqrt(p * (1 - p) / 2000)) and {*np.unique(y)} == {0.0, 1.0}
    weights = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    made = model([node("Multinomial", sample_size=4000, dtype=TensorProto.INT64)], {"x": (2, 3)})
    with rammer.Session(made, "interpreter") as session, np.errstate(divide="ignore"):
        (y,) = session.run(None, {"x": (np.log(weights) + 2).astype(np.float32)})
    assert y.shape == (2, 4000) and y.dtype == np.int64
    for row, wanted in zip(y, weights, strict=True):
        assert np.all(abs(np.bincount(row, minlength=3) / 4000 - wanted) <= 5 * np.sqrt(wanted * (1 - wanted) / 4000))


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ModelError, match="random int32"):
        rammer.from_onnx(model([node("RandomNormalLike", dtype=TensorProto.INT32)], {"x": (2,)}))
