"""Evaluate ensembles of decision trees: every row descends all trees at once, through tables of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rammer.frontend.onnx.handlers.classifiers import DOMAIN, best, chosen, classes, labelled, pair, transformed
from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.ports import Value
from rammer.ir.tensor import Array, DType, TensorId

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
LEQ, LT, GTE, GT, EQ, NEQ = range(6)
MEMBER, LEAF = 6, 7
DEEPEST = 10_000  # levels; each is an operator
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass
class Forest:
    """Nodes of all trees, and for each weight of a leaf its node and target. `missing`: NaN takes the true branch."""

    features: list[int] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)
    true: list[int] = field(default_factory=list)
    false: list[int] = field(default_factory=list)
    missing: list[bool] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def add(self, mode: int, feature: int = 0, split: float = 0.0, missing: bool = False) -> int:
        """Add a node, whose successors are set later, and return its place. A leaf follows itself."""
        place = len(self.modes)
        for column, value in zip(
            (self.features, self.splits, self.modes, self.true, self.false, self.missing),
            (feature, split, mode, place, place, missing),
            strict=True,
        ):
            column.append(value)  # type: ignore[attr-defined]
        return place

    def tables(self, dtype: DType) -> tuple[Array, Array]:
        """Return links and splits of all nodes, as `descend` takes them.

        All modes become "at most the split": equality is two nodes, and "less" compares with the number before it.
        """
        modes, true, false = (np.array(v, np.int64) for v in (self.modes, self.true, self.false))
        split: Array = np.array(self.splits, np.float64 if dtype is DType.F64 else np.float32)
        missing = np.array(self.missing, bool)
        never, other = np.isnan(split), np.isin(modes, (NEQ,))
        true, false, missing = np.where(other, false, true), np.where(other, true, false), missing ^ other
        modes = np.where(other, EQ, np.where(modes == LEAF, LEQ, modes))
        modes = np.where(never, LEQ, modes)  # no number is at most NaN
        tiny = float(np.finfo(split.dtype).tiny)  # smaller numbers count as zero
        split = np.where(abs(split) < tiny, split.dtype.type(0), split)
        below = np.nextafter(split, split.dtype.type(-np.inf))
        below = np.where(abs(below) < tiny, np.where(split > 0, 0, -tiny), below).astype(split.dtype)
        below[np.isneginf(split)] = np.nan
        equal = np.flatnonzero(modes == EQ)
        extra = len(split) + np.arange(equal.size)  # asks whether the number is less
        swapped = np.isin(modes, (GTE, GT))
        first, second = np.where(swapped, false, true), np.where(swapped, true, false)
        first[equal] = extra
        left = missing ^ swapped
        features, none = np.array(self.features), np.zeros(equal.size)
        columns = (first, false[equal]), (second, true[equal]), (features, features[equal]), (left, none)
        links = np.stack([np.concatenate(column).astype(np.int32) for column in columns], 1)
        return links, np.append(np.where(np.isin(modes, (LT, GTE)), below, split), below[equal])


def _depth(n: Node, pairs: Array, roots: Sequence[int]) -> int:
    """Return the number of steps after which all rows are at leaves. Raises ModelError for a cycle."""
    is_leaf, here = (pairs == np.arange(len(pairs))[:, None]).all(1), np.unique(roots)
    for depth in range(min(len(pairs), DEEPEST) + 1):
        here = here[~is_leaf[here]]
        if not here.size:
            return depth
        here = np.unique(pairs[here])
    raise n.fail("a way from a node leads back to it, or is too long", hint=f"trees have at most {DEEPEST} levels")


@handles("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(n: Node) -> TensorId:
    a, forest = n.attrs, Forest()
    modes, splits = n.decode(a["nodes_modes"]).ravel(), n.decode(a["nodes_splits"]).ravel()
    weights, targets = n.decode(a["leaf_weights"]).ravel(), a["leaf_targetids"]
    lists = [a[f"nodes_{name}"] for name in ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")]
    missing = a["nodes_missing_value_tracks_true"] or (0,) * len(modes)
    count = a["n_targets"] or 1
    if len({len(modes), len(splits), len(missing), *map(len, lists)}) != 1 or len(weights) != len(targets):
        raise n.fail("lists of nodes, or of leaves, have different lengths")
    leaves = [forest.add(LEAF) for _ in targets]
    forest.owners, forest.targets, forest.weights = leaves, list(targets), weights.tolist()
    members = iter(_members(n, a["membership_values"]))
    feature, *ways = lists
    nodes = []
    for k, mode in enumerate(modes.tolist()):
        if mode > MEMBER:
            raise n.fail(f"node {k} has mode {mode}", hint=f"0 … {MEMBER}")
        wanted = next(members, None) if mode == MEMBER else [float(splits[k])]
        if wanted is None:
            raise n.fail("membership_values has fewer sets than there are nodes that ask for one")
        kind = EQ if mode == MEMBER else mode
        nodes.append([forest.add(kind, feature[k], value, bool(missing[k])) for value in wanted or [np.nan]])

    def place(kind: int, index: int) -> int:
        known = leaves if kind else [first for first, *_ in nodes]
        if not 0 <= index < len(known):
            raise n.fail(f"{'leaf' if kind else 'node'} {index} does not exist")
        return known[index]

    for k, chain in enumerate(nodes):
        true, false = place(ways[2][k], ways[0][k]), place(ways[3][k], ways[1][k])
        for at, following in zip(chain, [*chain[1:], false], strict=True):  # a chain of tests, one per member
            forest.true[at], forest.false[at] = true, following
    forest.roots = [place(0, root) for root in a["tree_roots"]]
    if a["aggregate_function"] not in range(4) or a["post_transform"] not in range(5):
        raise n.fail(f"aggregate_function {a['aggregate_function']}, post_transform {a['post_transform']}")
    scores = _scores(n, forest, count, _AGGREGATES[a["aggregate_function"]], ())
    return n.cast(transformed(n, scores, _TRANSFORMS[a["post_transform"]]), n.dtype())


def _members(n: Node, given: object) -> list[list[float]]:
    """Return the sets of values, which NaN separates."""
    sets: list[list[float]] = [[]]
    for value in n.decode(given).ravel() if given is not None else ():
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(float(value))
    return sets[:-1] if not sets[-1] else sets


@handles("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(n: Node) -> TensorId:
    a = n.attrs
    count = a["n_targets"] or 1
    scores = _scores(n, _forest(n, "target"), count, a["aggregate_function"], _numbers(n, "base_values"))
    return n.cast(transformed(n, scores, a["post_transform"]), DType.F32)


@handles("TreeEnsembleClassifier", domain=DOMAIN)
def tree_ensemble_classifier(n: Node) -> list[Value]:
    """Return the label with the highest score (the first of equal ones), and the scores of every class."""
    count, base = classes(n), _numbers(n, "base_values")
    if count <= 2 and len(set(n.attrs["class_ids"] or ())) < 2:
        return _one_score(n, count, base)
    scores = _scores(n, _forest(n, "class"), count, "SUM", base)
    return [labelled(n, best(n, scores)), n.cast(transformed(n, scores, n.attrs["post_transform"]), DType.F32)]


def _one_score(n: Node, count: int, base: Array) -> list[Value]:
    """Decide between two labels by the one score that leaves give: above 0, or above 0.5 if no leaf takes from it.

    What the scores of both are is ONNX Runtime's choice. Without two labels there is one score.
    """
    forest, transform = _forest(n, "class"), n.attrs["post_transform"]
    second, positive = set(n.attrs["class_ids"] or ()) == {1}, bool((_numbers(n, "class_weights") >= 0).all())
    lonely = count == 2 and not second and len(base) < 2
    if len(base) > (2 if count == 2 and not second else 1) or (lonely and transform == "PROBIT"):
        raise n.fail(f"{len(base)} base values and post_transform {transform!r} of one score for {count} labels")
    forest.targets = [0] * len(forest.targets)
    score = n.cast(_scores(n, forest, 1, "SUM", () if second else base[:1]), DType.F32)
    bound = n.like(0.5 if positive and count == 2 else 0, score)
    label = chosen(n, n.reshape(n.add("less", bound, score), n.type(score).shape[:1]))
    if count < 2:
        return [label, transformed(n, score, transform)]
    if not lonely:
        nothing = n.like_array(np.zeros(n.type(score).shape), score)
        return [label, transformed(n, pair(n, *((nothing, score) if second else (score, nothing))), transform)]
    opposite = n.add("neg", score)
    if transform == "LOGISTIC":
        return [label, n.add("sigmoid", pair(n, opposite, score))]
    return [label, pair(n, n.add("sub", n.like(1, score), score) if positive else opposite, score)]


def _numbers(n: Node, name: str) -> Array:
    """Return a list of numbers, which may be a tensor instead."""
    tensor = n.attrs.get(f"{name}_as_tensor")
    return np.asarray(n.attrs[name] or () if tensor is None else n.decode(tensor).ravel(), np.float64)


def _forest(n: Node, what: str) -> Forest:
    """Return the trees of the older form: nodes have a tree and a number, weights name the leaf of theirs."""
    a, forest = n.attrs, Forest()
    trees, numbers, modes = (a[f"nodes_{name}"] or () for name in ("treeids", "nodeids", "modes"))
    ways = [a[f"nodes_{name}"] or () for name in ("featureids", "truenodeids", "falsenodeids")]
    splits, weights = _numbers(n, "nodes_values"), _numbers(n, f"{what}_weights")
    missing = a["nodes_missing_value_tracks_true"] or (0,) * len(trees)
    owners = [a[f"{what}_{name}"] or () for name in ("treeids", "nodeids", "ids")]
    if len({len(trees), len(numbers), len(modes), len(splits), len(missing), *map(len, ways)}) != 1:
        raise n.fail("lists of nodes have different lengths")
    if len({len(weights), *map(len, owners)}) != 1:
        raise n.fail("lists of leaves have different lengths")
    codes = {name: code for code, name in enumerate(MODES)} | {"LEAF": LEAF}
    if unknown := set(modes) - codes.keys():
        raise n.fail(f"a node has mode {min(unknown)!r}")
    places: dict[tuple[int, int], int] = {}
    for k, key in enumerate(zip(trees, numbers, strict=True)):
        if key in places:
            raise n.fail(f"tree {key[0]} has two nodes {key[1]}")
        mode = codes[modes[k]]
        feature = 0 if mode == LEAF else ways[0][k]
        places[key] = forest.add(mode, feature, splits[k], bool(missing[k]) and mode != LEAF)
    for k, (tree, mode) in enumerate(zip(trees, forest.modes, strict=True)):
        if mode == LEAF:
            continue
        try:
            forest.true[k], forest.false[k] = places[tree, ways[1][k]], places[tree, ways[2][k]]
        except KeyError as error:
            raise n.fail(f"node {numbers[k]} of tree {tree} leads to one that does not exist") from error
    forest.roots = list({tree: k for k, tree in reversed([*enumerate(trees)])}.values())[::-1]
    kept = [k for k, key in enumerate(zip(*owners[:2], strict=True)) if key in places]
    forest.owners = [places[owners[0][k], owners[1][k]] for k in kept]
    forest.targets, forest.weights = [owners[2][k] for k in kept], weights[kept].tolist()
    return forest


def _scores(n: Node, forest: Forest, count: int, aggregate: str, base: Sequence[float] | Array) -> TensorId:
    """Return [rows, targets]: the weights of the leaves that a row reaches, combined."""
    if len(n.shape()) != 2 or not forest.roots or not n.type(n.tensor(0)).size:
        raise n.fail(f"{len(forest.roots)} trees for {n.type(n.tensor(0))}", hint="a matrix, and a tree, are needed")
    if aggregate not in _AGGREGATES or len(base) not in (0, 1, count) or count < 1:
        raise n.fail(f"aggregate_function {aggregate!r} with {len(base)} base values of {count} targets")
    (rows, columns), used = n.shape(), forest.targets
    if used and not 0 <= min(used) <= max(used) < count:
        raise n.fail(f"targets {min(used)} … {max(used)} of {count}")
    if not 0 <= min(forest.features) <= max(forest.features) < columns:
        raise n.fail(f"features {min(forest.features)} … {max(forest.features)} of {columns}")
    if len(forest.features) * count * 8 > n.limits.fold_bytes:
        raise n.fail(f"{len(forest.features)} nodes of {count} targets", hint="raise Limits.fold_bytes")
    x = n.cast(n.tensor(0), n.dtype() if n.dtype() is DType.F64 else DType.F32)
    links, split = forest.tables(n.type(x).dtype)
    tables, missing = [n.constant(table) for table in (links, split)], bool(links[:, 3].any())
    at: TensorId = n.constant(np.broadcast_to(np.array(forest.roots), (rows, len(forest.roots))), DType.I32)
    for _ in range(_depth(n, links[:, :2], forest.roots)):
        at = n.add("descend", x, at, *tables, missing=missing)
    limit = np.finfo(np.float32).max
    table = np.full((len(links), count), {"MIN": limit, "MAX": -limit}.get(aggregate, 0.0))
    combine: np.ufunc = {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add)
    combine.at(table, (forest.owners, forest.targets), forest.weights)
    found = n.add("gather", n.like_array(table, x), at, axis=0)
    fn = {"MIN": "min", "MAX": "max", "AVERAGE": "mean"}.get(aggregate, "sum")
    total = n.reduce(found, fn, (1,), keepdims=False)
    return n.add("add", total, n.like_array(np.asarray(base), total)) if len(base) else total
