"""Import linear models and support vector machines of ai.onnx.ml, and what all its classifiers end with."""

from __future__ import annotations

from itertools import combinations
from math import pi, sqrt

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.ports import Maps, Text, Value
from rammer.ir.tensor import Array, DType, TensorId

DOMAIN = "ai.onnx.ml"
SWEEPS = 40  # over the classes' probabilities, which come close enough to each other before
_WINITZKI = 0.147  # constant of the approximation of the inverse error function that ONNX Runtime uses


def classes(n: Node) -> int:
    """Return the number of labels."""
    return len(_labels(n))


def _labels(n: Node) -> tuple[int | str, ...]:
    names = "classlabels_strings", "classlabels_int64s", "classlabels_ints"
    return next((tuple(given) for name in names if (given := n.attrs.get(name))), ())


def labelled(n: Node, place: TensorId, labels: tuple[int | str, ...] = ()) -> Value:
    """Return the labels at these places among all: numbers or strings."""
    table = labels or _labels(n)
    if isinstance(table[0], str):
        return Text(n.add("gather", n.text(list(map(str, table))).tensor, place, axis=0))
    return n.add("gather", n.constant(table, DType.I64), place, axis=0)


def chosen(n: Node, condition: TensorId) -> Value:
    """Return the second of two labels where the condition holds, else the first.

    They are 0 and 1 if the node has no two.
    """
    table = _labels(n)
    if len(table) != 2:
        table = ("0", "1") if table and isinstance(table[0], str) else (0, 1)
    return labelled(n, n.cast(condition, DType.I64), table)


def best(n: Node, scores: TensorId) -> TensorId:
    """Return the place of each row's highest score, the first of equal ones."""
    return n.add("arg_max", scores, axis=1, keepdims=False, select_last_index=False)


def matrix(n: Node) -> TensorId:
    """Return the features as float32, a row for each sample. A vector is one row."""
    x, shape = n.cast(n.tensor(0), DType.F32), n.shape()
    if len(shape) not in (1, 2):
        raise n.fail(f"{n.type(x)} is not a matrix")
    return n.reshape(x, (1, *shape)) if len(shape) == 1 else x


def pair(n: Node, first: TensorId, second: TensorId) -> TensorId:
    """Return two columns, of which each has one number a row."""
    return n.concat([n.reshape(t, (n.type(t).size, 1)) for t in (first, second)], 1)


def transformed(n: Node, scores: TensorId, transform: str) -> TensorId:
    """Apply `post_transform` to scores [rows, classes]. Of a single column, all but PROBIT leaves it as it is.

    ONNX Runtime does so, and exporters rely on it.
    """
    one = n.like(1, scores)
    single = n.type(scores).shape[1:] == (1,) and transform in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
    match "NONE" if single else transform:
        case "NONE":
            return scores
        case "SOFTMAX":
            return n.add("softmax", scores, axis=1)
        case "LOGISTIC":
            return n.add("sigmoid", scores)
        case "SOFTMAX_ZERO":  # a score of zero stays close to zero
            top = n.reduce(scores, "max", (1,))
            is_set = n.add("less", n.like(1e-7, scores), n.add("abs", scores))
            powers = n.add("exp", n.add("sub", scores, top))
            sums = n.reduce(n.add("where", is_set, powers, n.like(0, scores)), "sum", (1,))
            rest = n.add("mul", scores, n.add("exp", n.add("neg", top)))
            return n.add("div", n.add("where", is_set, powers, rest), sums)
        case "PROBIT":
            centred = n.add("sub", n.add("add", scores, scores), one)
            square = n.add("log", n.add("mul", n.add("sub", one, centred), n.add("add", one, centred)))
            half = n.add("add", n.like(2 / (pi * _WINITZKI), scores), n.add("mul", square, n.like(0.5, scores)))
            scaled = n.add("mul", square, n.like(1 / _WINITZKI, scores))
            root = n.add("sqrt", n.add("sub", n.add("mul", half, half), scaled))
            size = n.add("mul", n.add("sqrt", n.add("sub", root, half)), n.like(sqrt(2), scores))
            return n.add("where", n.add("less", centred, n.like(0, scores)), n.add("neg", size), size)
    raise n.fail(f"post_transform {transform!r} is not known", hint="NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO or PROBIT")


@handles("LinearRegressor", domain=DOMAIN)
def linear_regressor(n: Node) -> TensorId:
    return transformed(n, _affine(n, n.attrs["targets"]), n.attrs["post_transform"])


@handles("LinearClassifier", domain=DOMAIN)
def linear_classifier(n: Node) -> list[Value]:
    """Return labels and scores. One score for two classes is that of the second; the first has its opposite."""
    a, x = n.attrs, matrix(n)
    columns = n.type(x).shape[1]
    targets = len(a["intercepts"] or ()) or len(a["coefficients"]) // max(columns, 1)
    scores = _affine(n, targets)
    if targets > 1:
        if targets > classes(n):
            raise n.fail(f"{targets} scores and {classes(n)} labels")
        return [labelled(n, best(n, scores)), transformed(n, scores, a["post_transform"])]
    label = chosen(n, n.reshape(n.add("less", n.like(0, scores), scores), n.type(scores).shape[:1]))
    if classes(n) != 2 or a["post_transform"] == "PROBIT":
        return [label, transformed(n, scores, a["post_transform"])]
    if a["post_transform"] == "LOGISTIC":
        return [label, n.add("sigmoid", pair(n, n.add("neg", scores), scores))]
    return [label, pair(n, n.add("sub", n.like(1, scores), scores), scores)]


def _affine(n: Node, targets: int) -> TensorId:
    """Return x times the coefficients of each target, plus its intercept."""
    a, x = n.attrs, matrix(n)
    weights, bias = (np.array(a[name] or ()) for name in ("coefficients", "intercepts"))
    if targets < 1 or weights.size != targets * n.type(x).shape[1] or bias.size not in (0, targets):
        raise n.fail(f"{weights.size} coefficients and {bias.size} intercepts of {targets} targets for {n.type(x)}")
    found = n.product(x, n.like_array(weights.reshape(targets, -1).T, x))
    return n.add("add", found, n.like_array(bias, x)) if bias.size else found


def _kernel(n: Node, vectors: Array, kind: str) -> TensorId:
    """Return [rows, vectors]: the kernel of each row and each vector."""
    x = matrix(n)
    gamma, offset, degree = (*(n.attrs["kernel_params"] or ()), 0.0, 0.0, 0.0)[:3]
    if vectors.shape[1] != n.type(x).shape[1]:
        raise n.fail(f"vectors of {vectors.shape[1]} numbers for {n.type(x)}")
    if kind == "RBF":
        apart = n.add("sub", n.reshape(x, (*n.type(x).shape[:1], 1, vectors.shape[1])), n.like_array(vectors, x))
        square = n.reduce(n.add("mul", apart, apart), "sum", (2,), keepdims=False)
        return n.add("exp", n.add("mul", square, n.like(-gamma, x)))
    found = n.product(x, n.like_array(vectors.T, x))
    if kind == "LINEAR":
        return found
    found = n.add("add", n.add("mul", found, n.like(gamma, x)), n.like(offset, x))
    if kind == "SIGMOID":
        return n.add("tanh", found)
    if kind == "POLY":
        return n.add("power", found, exponent=float(degree))
    raise n.fail(f"kernel_type {kind!r} is not known", hint="LINEAR, POLY, RBF or SIGMOID")


@handles("SVMRegressor", domain=DOMAIN)
def svm_regressor(n: Node) -> TensorId:
    """Return one number a row; with `one_class`, 1 for a row inside and -1 for one outside."""
    a, supports = n.attrs, n.attrs["n_supports"]
    weights, rho = np.array(a["coefficients"] or ()), np.array(a["rho"] or ())
    vectors = np.array(a["support_vectors"] or ()) if supports else weights
    unfit = weights.size != (supports or weights.size) or not vectors.size or vectors.size % (supports or 1)
    if rho.size != 1 or unfit:
        raise n.fail(f"{weights.size} coefficients, {vectors.size} numbers of {supports} vectors, and {rho.size} rho")
    found = _kernel(n, vectors.reshape(supports or 1, -1), a["kernel_type"] if supports else "LINEAR")
    if supports:
        found = n.product(found, n.like_array(weights[:, None], found))
    found = n.add("add", found, n.like_array(rho, found))
    if a["one_class"]:
        return n.add("where", n.add("less", n.like(0, found), found), n.like(1, found), n.like(-1, found))
    return found  # whatever post_transform says: as ONNX Runtime


@handles("SVMClassifier", domain=DOMAIN)
def svm_classifier(n: Node) -> list[Value]:
    """Return labels by votes between each two classes, and their scores, or probabilities where the model has these."""
    a, count = n.attrs, classes(n)
    weights, rho = np.array(a["coefficients"] or ()), np.array(a["rho"] or ())
    sizes = a["vectors_per_class"] or ()
    total = sum(sizes)
    if not total:
        return _linear_svm(n, weights, rho, count)
    vectors = np.array(a["support_vectors"] or ())
    pairs = list(combinations(range(count), 2))
    fits = len(sizes) == count > 1 and weights.size == (count - 1) * total and rho.size == len(pairs)
    if not fits or vectors.size % total or min(sizes) < 0:
        seen = f"{weights.size} coefficients, {vectors.size} numbers and {rho.size} rho"
        raise n.fail(f"{seen} of {list(sizes)[:20]} vectors")
    rows, ends = weights.reshape(count - 1, total), np.cumsum([0, *sizes])
    table = np.zeros((total, len(pairs)))
    for column, (i, j) in enumerate(pairs):
        table[ends[i] : ends[i + 1], column] = rows[j - 1, ends[i] : ends[i + 1]]
        table[ends[j] : ends[j + 1], column] = rows[i, ends[j] : ends[j + 1]]
    kernel = _kernel(n, vectors.reshape(total, -1), a["kernel_type"])
    scores = n.add("add", n.product(kernel, n.like_array(table, kernel)), n.like_array(rho, kernel))
    wins = n.cast(n.add("less", n.like(0, scores), scores), DType.F32)
    change = np.zeros((len(pairs), count))  # votes of a pair for its first class instead of its second
    change[range(len(pairs)), [i for i, _ in pairs]], change[range(len(pairs)), [j for _, j in pairs]] = 1, -1
    losses = np.bincount([j for _, j in pairs], minlength=count)
    votes = n.add("add", n.product(wins, n.like_array(change, wins)), n.like_array(losses, wins))
    label = labelled(n, best(n, votes))
    if a["prob_a"]:
        return [label, transformed(n, _coupled(n, scores, pairs, count), a["post_transform"])]
    if count > 2:
        return [label, transformed(n, scores, a["post_transform"])]
    if a["post_transform"] in ("NONE", "LOGISTIC"):
        return [label, transformed(n, pair(n, n.add("neg", scores), scores), a["post_transform"])]
    raise n.fail(f"post_transform {a['post_transform']!r} of one score is not supported", hint="NONE or LOGISTIC")


def _linear_svm(n: Node, weights: Array, rho: Array, count: int) -> list[Value]:
    if not count or not rho.size or not weights.size or weights.size % count:
        raise n.fail(f"{weights.size} coefficients and {rho.size} rho of {count} classes")
    scores = _kernel(n, weights.reshape(count, -1), "LINEAR")
    scores = n.add("add", scores, n.like(rho[0], scores))
    shown = transformed(n, scores, n.attrs["post_transform"])
    if count != 2:
        return [labelled(n, best(n, scores)), shown]
    top = n.reduce(scores, "max", (1,), keepdims=False)
    bound = n.like(0.5 if (weights >= 0).all() else 0, top)
    over = n.add("less_equal" if (weights >= 0).all() else "less", bound, top)
    return [labelled(n, n.add("where", over, n.constant(1), best(n, scores))), shown]


def _coupled(n: Node, scores: TensorId, pairs: list[tuple[int, int]], count: int) -> TensorId:
    """Return each class's probability from those of all pairs of classes.

    After Wu, Lin and Weng (2004), their second method: minimise by sweeps over the classes, until the change is small.
    Rows that are done stay as they are.
    """
    a, b = (np.array(n.attrs[f"prob_{name}"] or ()) for name in "ab")
    if a.size != len(pairs) or b.size != len(pairs):
        raise n.fail(f"{a.size} prob_a and {b.size} prob_b for {len(pairs)} pairs")
    rows, one = n.type(scores).shape[0], n.like(1, scores)
    sure = n.add("add", n.add("mul", scores, n.like_array(a, scores)), n.like_array(b, scores))
    sure = n.add("clip", n.add("sub", one, n.add("sigmoid", sure)), low=1e-7, high=float(np.float32(1 - 1e-7)))
    wins = {key: n.cut(sure, 1, k, 1) for k, key in enumerate(pairs)}
    wins |= {(j, i): n.add("sub", one, wins[i, j]) for i, j in pairs}

    def term(i: int, j: int) -> TensorId:
        if i != j:
            return n.add("neg", n.add("mul", wins[j, i], wins[i, j]))
        squares = n.concat([wins[k, i] for k in range(count) if k != i], 1)
        return n.reduce(n.add("mul", squares, squares), "sum", (1,))

    table = [n.concat([term(i, j) for j in range(count)], 1) for i in range(count)]
    diagonal = [n.cut(row, 1, i, 1) for i, row in enumerate(table)]
    whole = n.stack(table, 1)
    share = n.like_array(np.full((rows, count), 1 / count), scores)
    for _ in range(SWEEPS):
        slope = n.reduce(n.add("mul", whole, n.reshape(share, (rows, 1, count))), "sum", (2,), keepdims=False)
        mean = n.reduce(n.add("mul", share, slope), "sum", (1,))
        error = n.reduce(n.add("abs", n.add("sub", slope, mean)), "max", (1,))
        goes_on = n.add("less_equal", n.like(0.005 / count, scores), error)
        new = share
        for i in range(count):
            here = n.cut(slope, 1, i, 1)
            step = n.add("div", n.add("sub", mean, here), diagonal[i])
            scale = n.add("add", one, step)
            unit = n.like_array(np.eye(count)[i : i + 1], scores)
            more = n.add("add", n.add("mul", step, diagonal[i]), n.add("add", here, here))
            mean = n.add("div", n.add("div", n.add("add", mean, n.add("mul", step, more)), scale), scale)
            slope = n.add("div", n.add("add", slope, n.add("mul", step, table[i])), scale)
            new = n.add("div", n.add("add", new, n.add("mul", step, unit)), scale)
        share = n.add("where", goes_on, new, share)
    return share


@handles("ZipMap", domain=DOMAIN)
def zip_map(n: Node) -> Maps:
    """Return a map for each row, from labels to the row's numbers."""
    keys, shape = _labels(n), n.shape()
    x = n.tensor(0) if len(shape) == 2 else n.reshape(n.tensor(0), (1, *shape))
    if len(n.type(x).shape) != 2 or n.type(x).shape[1] != len(keys) or len(set(keys)) < len(keys):
        raise n.fail(f"{len(keys)} labels for {n.type(x)}", hint="each column needs one of its own")
    return Maps(x, keys)
