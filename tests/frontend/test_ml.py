"""ai.onnx.ml where it is arithmetic: trees and features, against ONNX Runtime or ONNX's reference."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_models import model, node

import rammer
from rammer.errors import ModelError
from rammer.frontend.onnx import load
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array

ML = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def agrees(
    op: str,
    values: dict[str, Array],
    outputs: tuple[str, ...] = ("y",),
    *,
    version: int = 3,
    cpu: bool = False,
    **attrs: Any,
) -> None:
    kinds: dict[str, Any] = {name: (v.dtype.name, v.shape) for name, v in values.items()}
    made = model([node(op, list(values), outputs, domain=ML, **attrs)], kinds, outputs, domains={ML: version})
    if version < 5:
        session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
        wanted = session.run(None, values)
    else:
        wanted = ReferenceEvaluator(made).run(None, values)
    graph = load(made)
    found = [evaluate_graph(graph, values)]
    if cpu:
        with rammer.compile(graph, target="cpu", tune_seconds=0) as program:
            found.append(program.run(values))
    for results in found:
        for name, want in zip(outputs, wanted, strict=True):
            assert results[name].shape == want.shape and results[name].dtype == want.dtype
            np.testing.assert_allclose(results[name], want, rtol=1e-5, atol=1e-6)


def grown(random: np.random.Generator, trees: int, modes: tuple[str, ...], what: str, targets: int) -> dict[str, Any]:
    """Trees of several depths, whose splits are among the numbers that rows have."""
    nodes: dict[str, list[Any]] = {
        k: [] for k in ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")
    }
    nodes["missing_value_tracks_true"] = []
    leaves: dict[str, list[Any]] = {k: [] for k in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree: int, number: int, depth: int) -> int:
        """Adds the node `number`, and those below it; the next free number."""
        leaf = depth == 0 or random.random() < 0.2
        at = len(nodes["modes"])
        row = (tree, number, "LEAF" if leaf else str(random.choice(modes)), int(random.integers(5)))
        for key, value in zip(nodes, (*row, float(random.integers(-2, 3)), 0, 0, int(random.integers(2))), strict=True):
            nodes[key].append(value)
        if leaf:
            for target in random.permutation(targets)[: random.integers(1, targets + 1)].tolist():
                for key, value in zip(leaves, (tree, number, target, float(random.normal())), strict=True):
                    leaves[key].append(value)
            return number + 1
        nodes["truenodeids"][at] = number + 1
        free = grow(tree, number + 1, depth - 1)
        nodes["falsenodeids"][at] = free
        return grow(tree, free, depth - 1)

    for tree in range(trees):
        grow(tree, 0, 2 + tree % 4)
    return {f"nodes_{k}": v for k, v in nodes.items()} | {f"{what}_{k}": v for k, v in leaves.items()}


def rows(random: np.random.Generator) -> Array:
    x = random.integers(-2, 3, (37, 5)).astype(np.float32)
    return np.where(random.random(x.shape) < 0.1, np.float32(np.nan), x)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("modes", [MODES[:1], MODES[:5], MODES])
def test_forests_of_several_targets(aggregate: str, modes: tuple[str, ...]) -> None:
    """Equal numbers and NaN among them go where each node says; ONNX Runtime asks no BRANCH_NEQ about NaN."""
    random = np.random.default_rng(len(modes))
    trees = grown(random, 7, modes, "target", 1 if aggregate in ("MIN", "MAX") else 3)
    targets = max(trees["target_ids"]) + 1
    agrees(
        "TreeEnsembleRegressor",
        {"x": np.nan_to_num(rows(random)) if modes == MODES else rows(random)},
        n_targets=targets,
        aggregate_function=aggregate,
        base_values=[0.5] * targets,
        cpu=aggregate == "SUM",
        **trees,
    )


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_forests_that_classify(transform: str) -> None:
    random = np.random.default_rng(5)
    trees = grown(random, 5, MODES[:1], "class", 3)
    labels = {"classlabels_int64s": [7, -1, 3], "post_transform": transform}
    agrees("TreeEnsembleClassifier", {"x": rows(random)}, ("label", "scores"), **labels, **trees)


@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
def test_forests_of_the_newer_form(aggregate: int) -> None:
    """Two trees and one that is a leaf; a node asks for a member of a set."""
    numbers = {
        "nodes_splits": np.array([0, 1, np.nan, -1, 0], np.float32),
        "nodes_modes": np.array([0, 3, 6, 4, 0], np.uint8),
        "leaf_weights": np.array([1.5, -2, 3, 0.25, 7, -1], np.float32),
        "membership_values": np.array([2, -1, 1, np.nan], np.float32),
    }
    attrs: dict[str, Any] = {k: numpy_helper.from_array(v) for k, v in numbers.items()}
    attrs |= {
        "tree_roots": [0, 3, 4],
        "nodes_featureids": [0, 1, 2, 4, 0],
        "nodes_truenodeids": [1, 0, 2, 5, 4],
        "nodes_falsenodeids": [2, 1, 3, 3, 4],
        "nodes_trueleafs": [0, 1, 1, 1, 1],
        "nodes_falseleafs": [0, 1, 1, 1, 1],
        "leaf_targetids": [0, 1, 0, 1, 0, 1],
        "nodes_missing_value_tracks_true": [0, 1, 0, 1, 0],
        "n_targets": 2,
        "aggregate_function": aggregate,
    }
    x = rows(np.random.default_rng(2))
    agrees("TreeEnsemble", {"x": np.nan_to_num(x, nan=9.0)}, version=5, cpu=aggregate == 1, **attrs)


X = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)


@pytest.mark.parametrize(
    ("op", "values", "attrs"),
    [
        ("ArrayFeatureExtractor", {"x": X, "c": np.array([[6, 0, 3]])}, {}),
        ("ArrayFeatureExtractor", {"x": X[0], "c": np.array([2, 2])}, {}),
        ("Binarizer", {"x": X}, {"threshold": 0.25}),
        ("Scaler", {"x": X}, {"offset": [0.5], "scale": [2.0]}),
        ("Scaler", {"x": X}, {"offset": X[1].tolist(), "scale": X[2].tolist()}),
        ("Normalizer", {"x": np.abs(X)}, {"norm": "MAX"}),
        ("Normalizer", {"x": X}, {"norm": "L1"}),
        ("Normalizer", {"x": X}, {"norm": "L2"}),
        (
            "Imputer",
            {"x": np.where(X > 1, np.float32(np.nan), X)},
            {"imputed_value_floats": X[1].tolist(), "replaced_value_float": float("nan")},
        ),
        (
            "Imputer",
            {"x": np.where(X > 1, 0, 3).astype(np.int64)},
            {"imputed_value_int64s": [9], "replaced_value_int64": 3},
        ),
        ("FeatureVectorizer", {"x": X, "z": X[:, :2]}, {"inputdimensions": [7, 2]}),
        (
            "LinearRegressor",
            {"x": X},
            {"coefficients": X[:2].ravel().tolist(), "intercepts": [0.5, -1.0], "targets": 2},
        ),
        ("OneHotEncoder", {"x": np.array([[3, 5], [9, 7]])}, {"cats_int64s": [7, 3, 5], "zeros": 1}),
        (
            "LabelEncoder",
            {"x": np.array([[3, 5], [9, 7]])},
            {"keys_int64s": [7, 3, 5], "values_floats": [0.5, 1.5, -2.0], "default_float": 4.0},
        ),
        (
            "LabelEncoder",
            {"x": X},
            {"keys_floats": [float(X[0, 0]), float(X[1, 1])], "values_int64s": [3, 4], "default_int64": -9},
        ),
    ],
)
def test_features(op: str, values: dict[str, Array], attrs: dict[str, Any]) -> None:
    agrees(op, values, version=2 if op == "LabelEncoder" else 1, **attrs)


SPLIT = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
}


@pytest.mark.parametrize(
    ("op", "attrs", "message"),
    [
        (
            "TreeEnsembleRegressor",
            SPLIT | {"nodes_truenodeids": [1, 0, 0], "nodes_modes": ["BRANCH_LEQ"] * 3},
            "leads back to it",
        ),
        ("TreeEnsembleRegressor", SPLIT | {"nodes_featureids": [7, 0, 0]}, "features 0 … 7 of 7"),
        ("TreeEnsembleRegressor", SPLIT | {"nodes_featureids": [-1, 0, 0]}, "features -1 … 0 of 7"),
        ("TreeEnsembleRegressor", SPLIT | {"target_ids": [0, 1 << 40]}, "targets 0 … 1099511627776"),
        ("TreeEnsembleRegressor", SPLIT | {"n_targets": 1 << 40}, "raise Limits.fold_bytes"),
        ("TreeEnsembleRegressor", SPLIT | {"nodes_values": [0.0]}, "different lengths"),
        ("TreeEnsembleRegressor", SPLIT | {"nodes_modes": ["BRANCH_UP", "LEAF", "LEAF"]}, "mode 'BRANCH_UP'"),
        ("TreeEnsembleRegressor", SPLIT | {"post_transform": "ERF"}, "post_transform 'ERF' is not known"),
        ("SVMRegressor", {"coefficients": [1.0], "n_supports": 2, "rho": [0.0]}, "1 coefficients"),
        ("SVMClassifier", {"classlabels_ints": [0, 1], "coefficients": [1.0] * 7, "rho": [0.0]}, "7 coefficients"),
        ("LinearClassifier", {"classlabels_ints": [3], "coefficients": [1.0] * 14}, "2 scores and 1 labels"),
        ("Scaler", {"offset": [1.0, 2.0]}, "offset has 2 numbers"),
        ("LinearRegressor", {"coefficients": [1.0], "targets": -1}, "targets for float32"),
        ("FeatureVectorizer", {"inputdimensions": [-5]}, "inputdimensions"),
        ("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1]}, "keys are not both strings"),
    ],
)
def test_what_has_no_meaning_is_refused(op: str, attrs: dict[str, Any], message: str) -> None:
    version = 2 if op == "LabelEncoder" else 3
    with pytest.raises(ModelError, match=message):
        load(model([node(op, ["x"], domain=ML, **attrs)], {"x": X.shape}, domains={ML: version}))


ONE_LEAF_EACH = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_featureids": [4, 0, 0],
    "nodes_values": [0.1, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "class_treeids": [0, 0],
    "class_nodeids": [1, 2],
}


def defined() -> Iterator[tuple[str, list[float], int, list[float], list[int]]]:
    """Yield transforms, weights, classes, base values and labels for which ONNX Runtime has defined scores."""
    transforms, bases = (
        ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"),
        [(0, []), (0, [0.1]), (0, [0.1, 0.2])],
    )
    for transform, weights, (number, base), labels in product(
        transforms, ([0.3, 0.8], [-0.3, 0.8]), [*bases, (1, []), (1, [0.1])], ([7, 9], [7])
    ):
        one = len(labels) == 1
        inverse = transform == "PROBIT" and (number or weights[0] < 0 or not one)
        if not inverse and not (one and (number or len(base) > 1)):
            yield transform, weights, number, base, labels


@pytest.mark.parametrize(("transform", "weights", "number", "base", "labels"), [*defined()])
def test_two_classes_share_one_score(
    transform: str, weights: list[float], number: int, base: list[float], labels: list[int]
) -> None:
    """As boosted trees have it: what the scores are is ONNX Runtime's choice."""
    attrs = ONE_LEAF_EACH | {"class_ids": [number] * 2, "class_weights": weights, "classlabels_int64s": labels}
    attrs |= {"base_values": base} if base else {}
    agrees("TreeEnsembleClassifier", {"x": X}, ("label", "scores"), post_transform=transform, **attrs)


def test_a_forest_of_many_nodes_is_imported_in_linear_time() -> None:
    """51,000 nodes: a quadratic search for the first node of each tree took minutes."""
    random = np.random.default_rng(0)
    trees, depth = 100, 8
    count = 2 ** (depth + 1) - 1
    inner = np.arange(count) < 2**depth - 1
    one = {
        "nodeids": np.arange(count),
        "modes": np.where(inner, "BRANCH_LEQ", "LEAF"),
        "truenodeids": np.where(inner, 2 * np.arange(count) + 1, 0),
        "falsenodeids": np.where(inner, 2 * np.arange(count) + 2, 0),
    }
    attrs: dict[str, Any] = {f"nodes_{k}": np.tile(v, trees).tolist() for k, v in one.items()}
    attrs |= {
        "nodes_treeids": np.repeat(np.arange(trees), count).tolist(),
        "nodes_featureids": random.integers(0, 7, trees * count).tolist(),
        "nodes_values": random.normal(size=trees * count).tolist(),
        "target_treeids": np.repeat(np.arange(trees), 2**depth).tolist(),
        "target_nodeids": np.tile(np.flatnonzero(~inner), trees).tolist(),
        "target_ids": [0] * trees * 2**depth,
        "target_weights": (random.normal(size=trees * 2**depth) / 10).tolist(),
    }
    agrees("TreeEnsembleRegressor", {"x": X}, n_targets=1, **attrs)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("targets", [1, 3])
def test_linear_models(transform: str, targets: int) -> None:
    random = np.random.default_rng(targets)
    attrs = {"coefficients": random.normal(size=7 * targets).tolist(), "intercepts": [0.25] * targets}
    labels = [4, 9] if targets == 1 else [5, 1, 7]
    cpu = transform == "SOFTMAX_ZERO"
    outputs = ("label", "scores")
    agrees("LinearClassifier", {"x": X}, outputs, classlabels_ints=labels, post_transform=transform, cpu=cpu, **attrs)
    agrees("LinearClassifier", {"x": X[0]}, outputs, classlabels_ints=labels, post_transform=transform, **attrs)
    if transform in ("NONE", "SOFTMAX"):
        agrees("LinearRegressor", {"x": X}, targets=targets, post_transform=transform, **attrs)


SUPPORTS = {"kernel_params": [0.3, 0.5, 3.0], "support_vectors": np.random.default_rng(4).normal(size=6 * 7).tolist()}


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("probability", [False, True])
def test_support_vector_machines(kernel: str, count: int, probability: bool) -> None:
    random = np.random.default_rng(count)
    pairs = count * (count - 1) // 2
    attrs = SUPPORTS | {
        "kernel_type": kernel,
        "classlabels_ints": [3, 8, 1][:count],
        "vectors_per_class": [3, 3] if count == 2 else [2, 1, 3],
        "coefficients": random.normal(size=6 * (count - 1)).tolist(),
        "rho": random.normal(size=pairs).tolist(),
    }
    if probability:
        attrs |= {"prob_a": [-1.5] * pairs, "prob_b": [0.1] * pairs}
    agrees("SVMClassifier", {"x": X}, ("label", "scores"), cpu=kernel == "RBF" and count == 3, **attrs)
    if count == 2 and not probability:
        rest = {k: attrs[k] for k in ("kernel_type", "kernel_params", "support_vectors", "coefficients", "rho")}
        for one_class in (0, 1):
            agrees("SVMRegressor", {"x": X}, n_supports=6, one_class=one_class, **rest)


def test_linear_support_vector_machines() -> None:
    random = np.random.default_rng(8)
    for labels, sign in (([3, 8], 1), ([3, 8], 0), ([3, 8, 1], 1)):
        weights = random.normal(size=7 * len(labels))
        attrs = {"coefficients": (weights if sign else abs(weights)).tolist(), "rho": [0.25], "kernel_type": "LINEAR"}
        attrs["kernel_params"] = [0.0, 0.0, 0.0]
        agrees("SVMClassifier", {"x": X}, ("label", "scores"), classlabels_ints=labels, **attrs)
    agrees(
        "SVMRegressor", {"x": X}, coefficients=weights[:7].tolist(), rho=[0.5], n_supports=0, kernel_params=[0.0] * 3
    )
