"""Import feature operators of ai.onnx.ml: scale, encode, look up, select and join."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from rammer.frontend.onnx.handlers.indexing import inside
from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.ports import Text, Value
from rammer.frontend.onnx.text import codes_of, encode
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
            raise n.fail(f"{n.type(x)} is not a matrix")
        x = n.reshape(x, (shape[0], 1)) if len(shape) == 1 else x
        columns = n.type(x).shape[1]
        more = (0, 0, 0, width - columns)  # negative: cuts columns off
        parts.append(n.add("pad", x, pads=more, mode="constant", value=0.0) if width != columns else x)
    return n.concat(parts, 1)


@handles("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(n: Node) -> TensorId:
    """Encode as one-hot rows. An unknown category gives zeros; it is an error at run time if `zeros` is 0."""
    known = _listed(n, "cats")
    _require_kind(n, "cats")
    place = _looked_up(n, known, known.size)
    if not n.attrs["zeros"]:
        place = inside(n, place, known.size)
    places = n.reshape(n.cast(place, DType.I64), (*n.shape(), 1))
    return n.cast(n.add("equal", places, n.constant(np.arange(known.size))), DType.F32)


@handles("CategoryMapper", domain=DOMAIN)
@handles("LabelEncoder", domain=DOMAIN)
def category_mapper(n: Node) -> Value:
    """Map strings to numbers, or numbers to strings."""
    names = n.attrs.get("cats_strings") or n.attrs.get("classes_strings") or ()
    numbers = np.array(n.attrs.get("cats_int64s") or range(len(names)), np.int64)
    texts = encode(names, n.words)
    pairs = (texts, numbers) if isinstance(n.inputs[0], Text) else (numbers, texts)
    return _mapped(n, *pairs, to_text=pairs[1] is texts)


@handles("LabelEncoder", domain=DOMAIN, since=2)
def label_encoder(n: Node) -> Value:
    """Map each element through a table of keys and values."""
    _require_kind(n, "keys")
    return _mapped(n, _listed(n, "keys"), _listed(n, "values"), to_text=_has_text(n, "values"))


def _mapped(n: Node, keys: Array, values: Array, *, to_text: bool) -> Value:
    if keys.size != values.size or keys.ndim != 1 or not keys.size:
        raise n.fail(f"{keys.size} keys and {values.size} values", hint="as many of the one as of the other are needed")
    place, default = _looked_up(n, keys, keys.size), n.attrs.get("default_tensor")
    if default is not None:
        other = _elements(n, default)[:1]
    elif to_text:
        other = encode([n.attrs["default_string"]], n.words)
    else:
        other = np.array([n.attrs["default_float" if values.dtype.kind == "f" else "default_int64"]])
    found = n.add("gather", n.constant(np.concatenate([values, other.astype(values.dtype)])), place, axis=0)
    return Text(found) if to_text else found


def _looked_up(n: Node, keys: Array, unknown: int) -> TensorId:
    """Return the place of each element among the keys, the last of equal ones; `unknown` for all other elements."""
    x = n.tensor(0)
    columns = n.reshape(x, (*n.shape(), 1))
    met = n.add("equal", columns, n.like_array(keys, x))
    if n.dtype().is_float:
        met = n.add("or", met, n.add("and", n.add("is_nan", columns), n.constant(np.isnan(keys.astype(np.float64)))))
    place = n.add("where", met, n.constant(np.arange(keys.size)), n.constant(-1))
    found = n.reduce(place, "max", (len(n.shape()),), keepdims=False)
    return n.add("where", n.add("less", found, n.constant(0)), n.constant(unknown), found)


def _require_kind(n: Node, name: str) -> None:
    """Raise ModelError if only one of the input and the table has strings."""
    if isinstance(n.inputs[0], Text) is not _has_text(n, name):
        raise n.fail(f"the input and {name} are not both strings")


def _has_text(n: Node, name: str) -> bool:
    tensor = n.attrs.get(f"{name}_tensor")
    return bool(n.attrs.get(f"{name}_strings")) or (tensor is not None and tensor.data_type == TensorProto.STRING)


def _listed(n: Node, name: str) -> Array:
    """Return categories, keys or values, from the attribute that has them. Strings are codes."""
    if (tensor := n.attrs.get(f"{name}_tensor")) is not None:
        return _elements(n, tensor)
    for kind, dtype in (("int64s", np.int64), ("floats", np.float32)):
        if given := n.attrs.get(f"{name}_{kind}"):
            return np.array(given, dtype)
    return encode(n.attrs.get(f"{name}_strings") or (), n.words)


def _elements(n: Node, tensor: TensorProto) -> Array:
    if tensor.data_type == TensorProto.STRING:
        return codes_of(tensor, n.words).ravel()
    return n.decode(tensor).ravel()
