"""Evaluate ensembles of decision trees: every row descends all trees at once, by gathers from tables of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rammer.frontend.onnx.handlers.classifiers import DOMAIN, best, chosen, classes, labelled, pair, transformed
from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.ports import Value
from rammer.ir.tensor import Array, DType, TensorId

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
# By mode: whether the true branch is taken if the number is less than the split, equal, or greater.
_WAYS = ((1, 1, 0), (1, 0, 0), (0, 1, 1), (0, 0, 1), (0, 1, 0), (1, 0, 1))
MEMBER = 6
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass
class Forest:
    """Nodes of all trees. A leaf follows itself, and has pairs of a target and its weight."""

    features: list[int] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    follows: list[list[int]] = field(default_factory=list)  # next nodes for less, equal, greater and NaN
    weights: list[list[tuple[int, float]]] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)

    def leaf(self, pairs: Sequence[tuple[int, float]]) -> int:
        place = len(self.features)
        self._add(0, 0.0, [place] * 4, pairs)
        return place

    def branch(self, feature: int, split: float) -> int:
        """Add a node whose successors are set later."""
        self._add(feature, split, [], ())
        return len(self.features) - 1

    def lead(self, place: int, mode: int, true: int, false: int, missing: bool) -> None:
        self.follows[place] = [true if way else false for way in (*_WAYS[mode], missing)]

    def _add(self, feature: int, split: float, follows: list[int], pairs: Sequence[tuple[int, float]]) -> None:
        self.features.append(feature)
        self.splits.append(split)
        self.follows.append(follows)
        self.weights.append(list(pairs))

    def depth(self, n: Node) -> int:
        """Return the longest path from a root. Raises ModelError for a cycle."""
        below: dict[int, int | None] = {}  # node -> longest path below; None: on the current path
        stack = list(self.roots)
        while stack:
            place = stack[-1]
            further = [p for p in dict.fromkeys(self.follows[place]) if p != place]
            if place in below:
                stack.pop()
                if below[place] is None:
                    below[place] = max((1 + (below[p] or 0) for p in further), default=0)
                continue
            below[place] = None
            if any(p in below and below[p] is None for p in further):
                raise n.fail(f"a way from node {place} leads back to it", hint="trees have no cycles")
            stack += [p for p in further if p not in below]
        return max(below[root] or 0 for root in self.roots)


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
    leaves = [forest.leaf([(target, float(weight))]) for target, weight in zip(targets, weights, strict=True)]
    members = iter(_members(n, a["membership_values"]))
    feature, *ways = lists
    nodes = []
    for k, mode in enumerate(modes):
        if mode > MEMBER:
            raise n.fail(f"node {k} has mode {mode}", hint=f"0 … {MEMBER}")
        wanted = next(members, None) if mode == MEMBER else [float(splits[k])]
        if wanted is None:
            raise n.fail("membership_values has fewer sets than there are nodes that ask for one")
        nodes.append([forest.branch(feature[k], value) for value in wanted or [np.nan]])

    def place(kind: int, index: int) -> int:
        known = leaves if kind else [first for first, *_ in nodes]
        if not 0 <= index < len(known):
            raise n.fail(f"{'leaf' if kind else 'node'} {index} does not exist")
        return known[index]

    for k, chain in enumerate(nodes):
        true, false = place(ways[2][k], ways[0][k]), place(ways[3][k], ways[1][k])
        if true == false:  # a tree of one leaf
            forest.follows[chain[0]] = [true] * 4
            continue
        for at, following in zip(chain, [*chain[1:], false], strict=True):  # a chain of tests, one per member
            mode = MODES.index("BRANCH_EQ") if modes[k] == MEMBER else int(modes[k])
            forest.lead(at, mode, true, following, bool(missing[k]))
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
    shown = n.cast(transformed(n, scores, n.attrs["post_transform"]), DType.F32)
    return [labelled(n, best(n, scores)), shown]


def _one_score(n: Node, count: int, base: Array) -> list[Value]:
    """Decide between two labels by the one score that leaves give: above 0, or above 0.5 if no leaf takes from it.

    What the scores of both are is ONNX Runtime's choice. Without two labels there is one score.
    """
    forest, transform = _forest(n, "class"), n.attrs["post_transform"]
    second, positive = set(n.attrs["class_ids"] or ()) == {1}, bool((_numbers(n, "class_weights") >= 0).all())
    lonely = count == 2 and not second and len(base) < 2
    if len(base) > (2 if count == 2 and not second else 1) or (lonely and transform == "PROBIT"):
        raise n.fail(f"{len(base)} base values and post_transform {transform!r} of one score for {count} labels")
    forest.weights = [[(0, weight) for _, weight in pairs] for pairs in forest.weights]
    score = n.cast(_scores(n, forest, 1, "SUM", () if second else base[:1]), DType.F32)
    bound = n.like(0.5 if positive and count == 2 else 0, score)
    label = chosen(n, n.reshape(n.add("less", bound, score), n.type(score).shape[:1]))
    if count < 2:
        return [label, transformed(n, score, transform if transform == "PROBIT" else "NONE")]
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
    given = n.attrs[name] or () if tensor is None else n.decode(tensor).ravel()
    return np.asarray(given, np.float64)


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
    pairs: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for tree, number, target, weight in zip(*owners, weights, strict=True):
        pairs.setdefault((tree, number), []).append((target, float(weight)))
    places: dict[tuple[int, int], int] = {}
    for k, key in enumerate(zip(trees, numbers, strict=True)):
        if key in places:
            raise n.fail(f"tree {key[0]} has two nodes {key[1]}")
        places[key] = forest.leaf(pairs.get(key, ())) if modes[k] == "LEAF" else forest.branch(ways[0][k], splits[k])
        if key[0] not in trees[:k]:
            forest.roots.append(places[key])
    for k, key in enumerate(zip(trees, numbers, strict=True)):
        if modes[k] == "LEAF":
            continue
        true, false = ((key[0], ways[w][k]) for w in (1, 2))
        if modes[k] not in MODES or true not in places or false not in places:
            raise n.fail(f"node {key[1]} of tree {key[0]} has mode {modes[k]!r} and leads to {true[1]} and {false[1]}")
        forest.lead(places[key], MODES.index(modes[k]), places[true], places[false], bool(missing[k]))
    return forest


def _scores(n: Node, forest: Forest, count: int, aggregate: str, base: Sequence[float] | Array) -> TensorId:
    """Return [rows, targets]: the weights of the leaves that a row reaches, combined."""
    if len(n.shape()) != 2 or not forest.roots or not n.type(n.tensor(0)).size:
        raise n.fail(f"{len(forest.roots)} trees for {n.type(n.tensor(0))}", hint="a matrix, and a tree, are needed")
    if aggregate not in _AGGREGATES or len(base) not in (0, 1, count) or count < 1:
        raise n.fail(f"aggregate_function {aggregate!r} with {len(base)} base values of {count} targets")
    (rows, columns), used = n.shape(), {t for pairs in forest.weights for t, _ in pairs}
    if used and not 0 <= min(used) <= max(used) < count:
        raise n.fail(f"targets {min(used)} … {max(used)} of {count}")
    if not 0 <= min(forest.features) <= max(forest.features) < columns:
        raise n.fail(f"features {min(forest.features)} … {max(forest.features)} of {columns}")
    if len(forest.features) * count * 8 > n.limits.fold_bytes:
        raise n.fail(f"{len(forest.features)} nodes of {count} targets", hint="raise Limits.fold_bytes")
    depth = forest.depth(n)
    x = n.cast(n.tensor(0), n.dtype() if n.dtype() is DType.F64 else DType.F32)
    flat = n.reshape(x, (rows * columns,))
    first = n.constant(np.arange(rows)[:, None] * columns)
    features, splits = n.constant(forest.features, DType.I64), n.like_array(np.array(forest.splits), x)
    follows = n.constant(np.array(forest.follows).ravel(), DType.I64)
    at: TensorId = n.constant(np.broadcast_to(np.array(forest.roots), (rows, len(forest.roots))), DType.I64)
    for _ in range(depth):
        value = n.add("gather", flat, n.add("add", first, n.add("gather", features, at, axis=0)), axis=0)
        split = n.add("gather", splits, at, axis=0)
        greater = n.add("where", n.add("less", split, value), n.constant(2), n.constant(3))
        equal = n.add("where", n.add("equal", value, split), n.constant(1), greater)
        way = n.add("where", n.add("less", value, split), n.constant(0), equal)
        at = n.add("gather", follows, n.add("add", n.add("mul", at, n.constant(4)), way), axis=0)
    limit = np.finfo(np.float32).max
    nothing = {"MIN": limit, "MAX": -limit}.get(aggregate, 0.0)
    table = np.full((len(forest.features), count), nothing)
    combine = {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add)
    for place, pairs in enumerate(forest.weights):
        for target, weight in pairs:
            table[place, target] = combine(table[place, target], weight)
    found = n.add("gather", n.like_array(table, x), at, axis=0)
    fn = {"MIN": "min", "MAX": "max", "AVERAGE": "mean"}.get(aggregate, "sum")
    total = n.reduce(found, fn, (1,), keepdims=False)
    return n.add("add", total, n.like_array(np.asarray(base), total)) if len(base) else total
