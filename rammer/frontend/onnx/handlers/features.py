"""Import numeric feature operators of ai.onnx.ml: scale, encode, select and join."""

from __future__ import annotations

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import Array, DType, TensorId

DOMAIN = "ai.onnx.ml"


@handles("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(n: Node) -> TensorId:
    """Select columns by number. A vector counts as a matrix of one row."""
    shape = n.shape()
    if not shape:
        raise n.fail("X is a scalar", hint="it needs columns")
    columns = n.reshape(n.tensor(1), (n.type(n.tensor(1)).size,))
    x = n.tensor(0) if len(shape) > 1 else n.reshape(n.tensor(0), (1, shape[0]))
    return n.add("gather", x, columns, axis=n.type(x).rank - 1)


@handles("Binarizer", domain=DOMAIN)
def binarizer(n: Node) -> TensorId:
    x = n.tensor(0)
    return n.cast(n.add("less", n.like(n.attrs["threshold"], x), x), n.dtype())


@handles("Scaler", domain=DOMAIN)
def scaler(n: Node) -> TensorId:
    x = n.cast(n.tensor(0), DType.F32)
    for kind, name, neutral in (("sub", "offset", 0.0), ("mul", "scale", 1.0)):
        values = np.array(n.attrs[name] or [neutral])
        if values.size not in (1, *n.type(x).shape[-1:]):
            raise n.fail(f"{name} has {values.size} numbers for {n.type(x)}")
        x = n.add(kind, x, n.like_array(values, x))
    return x


@handles("Normalizer", domain=DOMAIN)
def normalizer(n: Node) -> TensorId:
    x, norm = n.cast(n.tensor(0), DType.F32), n.attrs["norm"]
    if norm not in ("MAX", "L1", "L2") or not n.shape():
        raise n.fail(f"norm {norm!r} of {n.type(x)}", hint="MAX, L1 or L2")
    axis = (len(n.shape()) - 1,)
    size = n.reduce(n.add("abs", x), "max", axis) if norm == "MAX" else n.reduce(x, norm.lower(), axis)
    return n.add("div", x, n.add("max", size, n.like(1e-30, x)))


@handles("Imputer", domain=DOMAIN)
def imputer(n: Node) -> TensorId:
    x = n.tensor(0)
    kind = "float" if n.dtype().is_float else "int64"
    values, replaced = n.attrs[f"imputed_value_{kind}s"] or (), n.attrs[f"replaced_value_{kind}"]
    if not values or len(values) not in (1, *n.shape()[-1:]):
        raise n.fail(f"imputed_value_{kind}s has {len(values)} numbers for {n.type(x)}")
    missing = n.add("is_nan", x) if np.isnan(replaced) else n.add("equal", x, n.like(replaced, x))
    return n.add("where", missing, n.like_array(np.array(values), x), x)


@handles("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(n: Node) -> TensorId:
    """Join columns of several matrices. Vectors are columns; zeros fill matrices that are too narrow."""
    widths, parts = n.attrs["inputdimensions"] or (), []
    if len(widths) != len(n.inputs) or min(widths) < 0:
        raise n.fail(f"inputdimensions is {list(widths)} for {len(n.inputs)} inputs")
    for position, width in enumerate(widths):
        x, shape = n.cast(n.tensor(position), DType.F32), n.shape(position)
        if len(shape) not in (1, 2):
            raise n.fail(f"{n.type(x)} is no matrix")
        x = n.reshape(x, (shape[0], 1)) if len(shape) == 1 else x
        columns = n.type(x).shape[1]
        more = (0, 0, 0, width - columns)  # negative: cuts columns off
        parts.append(n.add("pad", x, pads=more, mode="constant", value=0.0) if width != columns else x)
    return n.concat(parts, 1)


@handles("LinearRegressor", domain=DOMAIN)
def linear_regressor(n: Node) -> TensorId:
    a, targets = n.attrs, n.attrs["targets"]
    x, (weights, bias) = n.cast(n.tensor(0), DType.F32), (np.array(a[k] or ()) for k in ("coefficients", "intercepts"))
    if len(n.shape()) != 2 or targets < 1 or weights.size != targets * n.shape()[1] or bias.size not in (0, targets):
        raise n.fail(f"{weights.size} coefficients and {bias.size} intercepts of {targets} targets for {n.type(x)}")
    if a["post_transform"] != "NONE":
        raise n.fail(f"post_transform {a['post_transform']!r} is not supported", hint="NONE is")
    found = n.product(x, n.like_array(weights.reshape(targets, -1).T, x))
    return n.add("add", found, n.like_array(bias, x)) if bias.size else found


@handles("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(n: Node) -> TensorId:
    """Encode as one-hot rows. An unknown category gives zeros."""
    x, known = n.tensor(0), n.attrs["cats_int64s"]
    if not known or not n.attrs["zeros"]:
        raise n.fail("categories are strings, or none may be missing", hint="cats_int64s with zeros=1 is supported")
    places = n.cast(n.reshape(x, (*n.shape(), 1)), DType.I64)
    return n.cast(n.add("equal", places, n.constant(known, DType.I64)), DType.F32)


@handles("LabelEncoder", domain=DOMAIN, since=2)
def label_encoder(n: Node) -> TensorId:
    """Map each number through a table of keys and values. The last of equal keys counts."""
    x, keys, values = n.tensor(0), _listed(n, "keys"), _listed(n, "values")
    if keys.size != values.size or keys.ndim != 1 or not keys.size:
        raise n.fail(f"{keys.size} keys and {values.size} values", hint="as many of the one as of the other are needed")
    default = n.attrs.get("default_tensor")
    if default is not None:
        other = n.decode(default).ravel()[:1]
    else:
        other = np.array([n.attrs["default_float" if values.dtype.kind == "f" else "default_int64"]])
    columns = n.reshape(x, (*n.shape(), 1))
    met = n.add("equal", columns, n.like_array(keys, x))
    if n.dtype().is_float:
        met = n.add("or", met, n.add("and", n.add("is_nan", columns), n.constant(np.isnan(keys.astype(np.float64)))))
    place = n.add("where", met, n.constant(np.arange(keys.size)), n.constant(-1))
    found = n.reduce(place, "max", (len(n.shape()),), keepdims=False)
    return n.add("gather", n.constant(np.concatenate([values, other.astype(values.dtype)])), found, axis=0)


def _listed(n: Node, name: str) -> Array:
    """Return keys or values, from the attribute that has them as numbers."""
    if (tensor := n.attrs.get(f"{name}_tensor")) is not None:
        return n.decode(tensor).ravel()
    for kind, dtype in (("int64s", np.int64), ("floats", np.float32)):
        if given := n.attrs.get(f"{name}_{kind}"):
            return np.array(given, dtype)
    raise n.fail(f"{name} are strings", hint="numbers are supported")
