"""Import com.microsoft operators, which exporters and ONNX Runtime write: activations, norms, products.

The onnx package has no signatures for them, so each handler declares its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rammer.errors import did_you_mean
from rammer.frontend.onnx.handlers.normalization import square
from rammer.frontend.onnx.node import Handler, Node, Result, handles
from rammer.ir.tensor import DType, TensorId

DOMAIN = "com.microsoft"


def contrib(*ops: str, inputs: tuple[int, int], plain: bool = False, **defaults: Any) -> Callable[[Handler], Handler]:
    """Register a handler with a signature: the number of operands, and each attribute's default.

    A default that is a type stands for an optional attribute of that type, None if missing. `plain` registers the
    operator in the standard's domain too, where ONNX Runtime has it and the standard does not.
    """

    def register(function: Handler) -> Handler:
        def checked(n: Node) -> Result:
            if not inputs[0] <= len(n.inputs) <= inputs[1]:
                raise n.fail(f"has {len(n.inputs)} inputs", hint=f"{inputs[0]}…{inputs[1]} are supported")
            for name, value in n.attrs.items():
                if name not in defaults:
                    raise n.fail(f"attribute {name!r} is not supported", hint=did_you_mean(name, defaults))
                default = defaults[name]
                kind = default if isinstance(default, type) else type(default)
                if not isinstance(value, kind):
                    raise n.fail(f"attribute {name!r} is {value!r}, which is no {kind.__name__}")
            missing = {name: None if isinstance(v, type) else v for name, v in defaults.items()}
            n.attrs = {**missing, **n.attrs}
            return function(n)

        for domain in (DOMAIN, "") if plain else (DOMAIN,):
            handles(*ops, domain=domain)(checked)
        return function

    return register


@contrib("Gelu", inputs=(1, 1))
def gelu(n: Node) -> TensorId:
    return n.add("gelu", n.tensor(0), approximate="none")


@contrib("BiasGelu", inputs=(2, 2))
def bias_gelu(n: Node) -> TensorId:
    return n.add("gelu", n.add("add", n.tensor(0), n.tensor(1)), approximate="none")


@contrib("FastGelu", inputs=(1, 2))
def fast_gelu(n: Node) -> TensorId:
    x = n.add("add", n.tensor(0), n.tensor(1)) if n.has(1) else n.tensor(0)
    return n.add("gelu", x, approximate="tanh")


@contrib("QuickGelu", inputs=(1, 1), alpha=1.702)
def quick_gelu(n: Node) -> TensorId:
    x = n.tensor(0)
    return n.add("mul", x, n.add("sigmoid", n.add("mul", x, n.like(n.attrs["alpha"], x))))


@contrib("FusedMatMul", "TransposeMatMul", inputs=(2, 2), alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0)
def fused_matmul(n: Node) -> TensorId:
    """Multiply, after swapping operands' last axes, or moving their first axis behind the other batch axes."""
    operands = []
    for position, name in enumerate(("transBatchA", "transBatchB")):
        rank = len(n.shape(position))
        moved = n.attrs[name] and rank > 2
        perm = (*range(1, rank - 1), 0, rank - 1) if moved else range(rank)
        operands.append(n.transpose(n.tensor(position), perm))
    flips = (bool(n.attrs[name]) and n.type(t).rank > 1 for name, t in zip(("transA", "transB"), operands, strict=True))
    trans = dict(zip(("trans_a", "trans_b"), flips, strict=True))
    product = n.add("matmul", *operands, **trans)
    return product if n.attrs["alpha"] == 1 else n.add("mul", product, n.like(n.attrs["alpha"], product))


@contrib("SkipLayerNormalization", inputs=(3, 5), epsilon=1e-12)
def skip_layer_normalization(n: Node) -> list[TensorId | None]:
    total = _skipped(n, 4)
    axis = n.type(total).rank - 1
    parameters = [n.tensor(p) for p in (2, 3) if n.has(p)]
    normal = n.add("layer_norm", total, *parameters, axis=axis, epsilon=n.attrs["epsilon"])
    mean = n.reduce(n.cast(total, DType.F32), "mean", (axis,)) if n.wants(1) or n.wants(2) else None
    return _sums(n, normal, total, mean)


@contrib("SkipSimplifiedLayerNormalization", inputs=(3, 4), epsilon=1e-12)
def skip_rms_normalization(n: Node) -> list[TensorId | None]:
    total = _skipped(n, 3)
    return _sums(n, rms_norm(n, total, n.tensor(2), n.attrs["epsilon"]), total, None)


@contrib("SimplifiedLayerNormalization", inputs=(2, 2), plain=True, axis=-1, epsilon=1e-5, stash_type=1)
def simplified_layer_normalization(n: Node) -> TensorId:
    if n.axis(n.attrs["axis"], len(n.shape())) != len(n.shape()) - 1:
        raise n.fail(f"axis {n.attrs['axis']} is not supported", hint="the last one is")
    return rms_norm(n, n.tensor(0), n.tensor(1), n.attrs["epsilon"])


def rms_norm(n: Node, x: TensorId, scale: TensorId, epsilon: float) -> TensorId:
    """Divide x by the root mean square along its last axis, and scale."""
    dtype = n.type(x).dtype
    wide = n.cast(x, dtype.accumulator)
    mean = n.reduce(square(n, wide), "mean", (n.type(x).rank - 1,))
    scaled = n.add("div", wide, n.add("sqrt", n.add("add", mean, n.like(epsilon, mean))))
    return n.add("mul", n.cast(scaled, dtype), scale)


def _skipped(n: Node, bias: int) -> TensorId:
    total = n.add("add", n.tensor(0), n.tensor(1))
    if n.type(total).shape != n.shape():
        raise n.fail(f"skip {n.type(n.tensor(1))} does not fit {n.type(n.tensor(0))}")
    return n.add("add", total, n.tensor(bias)) if n.has(bias) else total


def _sums(n: Node, normal: TensorId, total: TensorId, mean: TensorId | None) -> list[TensorId | None]:
    """Return the results of a norm: also the mean, one over the deviation (from 0 without a mean), and the sum."""
    inverse = None
    if n.wants(2):
        apart = n.cast(total, DType.F32) if mean is None else n.add("sub", n.cast(total, DType.F32), mean)
        variance = n.reduce(square(n, apart), "mean", (n.type(total).rank - 1,))
        inverse = n.add("reciprocal", n.add("sqrt", n.add("add", variance, n.like(n.attrs["epsilon"], variance))))
    return [normal, mean, inverse, total]


@contrib("EmbedLayerNormalization", inputs=(7, 9), epsilon=1e-12, mask_index_type=0)
def embed_layer_normalization(n: Node) -> list[TensorId]:
    """Normalize the sum of word, position and segment embeddings. Also return how many words the mask keeps."""
    batch, length = n.shape()
    places = n.tensor(8) if n.has(8) else n.constant(range(length), DType.I64)
    words, own = (n.add("gather", n.tensor(table), at, axis=0) for table, at in ((2, n.tensor(0)), (3, places)))
    total = n.add("add", words, own)
    if n.has(1) and n.has(4):
        total = n.add("add", total, n.add("gather", n.tensor(4), n.tensor(1), axis=0))
    normal = n.add("layer_norm", total, n.tensor(5), n.tensor(6), axis=2, epsilon=n.attrs["epsilon"])
    kept = n.reduce(n.tensor(7), "sum", (1,), keepdims=False) if n.has(7) else n.constant([0] * batch, DType.I32)
    return [normal, kept, total]
