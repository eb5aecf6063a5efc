"""Import convolutions, pools, and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import Shape, TensorId


@dataclass(frozen=True, slots=True)
class Windows:
    """Geometry of a sliding window. Pads are (begin…, end…)."""

    kernel: Shape
    strides: Shape
    dilations: Shape
    pads: Shape
    ceil_extra: Shape  # the part of the end pads that only exists because of ceil_mode

    @property
    def attrs(self) -> dict[str, Shape]:
        """Attributes of a convolution; with `kernel`, of a pool."""
        return {"strides": self.strides, "pads": self.pads, "dilations": self.dilations}


def windows(n: Node, kernel: Sequence[int]) -> Windows:
    """Resolve auto_pad and ceil_mode. Raises ModelError for invalid attributes."""
    spatial = n.shape()[2:]
    rank = len(spatial)
    if rank < 1:
        raise n.fail(f"input has rank {len(n.shape())}", hint="it needs a batch, a channel, and spatial dimensions")
    kernel = tuple(kernel)
    strides = tuple(n.attrs.get("strides") or (1,) * rank)
    dilations = tuple(n.attrs.get("dilations") or (1,) * rank)
    pads = list(n.attrs.get("pads") or (0,) * (2 * rank))
    for name, values, length, least in (
        ("kernel_shape", kernel, rank, 1),
        ("strides", strides, rank, 1),
        ("dilations", dilations, rank, 1),
        ("pads", pads, 2 * rank, 0),
    ):
        if len(values) != length or any(v < least or v > 1 << 31 for v in values):
            raise n.fail(f"{name} is {list(values)}", hint=f"{length} numbers of at least {least} are needed")
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    match n.attrs.get("auto_pad", "NOTSET"):
        case "NOTSET" | "":
            pass
        case "VALID":
            pads = [0] * (2 * rank)
        case "SAME_UPPER" | "SAME_LOWER" as mode:
            for d in range(rank):
                total = max((-(-spatial[d] // strides[d]) - 1) * strides[d] + reach[d] - spatial[d], 0)
                small, large = total // 2, total - total // 2
                pads[d], pads[rank + d] = (small, large) if mode == "SAME_UPPER" else (large, small)
        case other:
            raise n.fail(f"auto_pad is {other!r}", hint="NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    extra = [0] * rank
    for d in range(rank):
        room = spatial[d] + pads[d] + pads[rank + d] - reach[d]
        if room < 0:
            raise n.fail(f"a window of {reach[d]} does not fit padded extent {room + reach[d]} of dimension {2 + d}")
        if n.attrs.get("ceil_mode"):
            count = -(-room // strides[d]) + 1
            if (count - 1) * strides[d] >= spatial[d] + pads[d]:  # a window must not start in the end padding
                count -= 1
            extra[d] = max((count - 1) * strides[d] - room, 0)
            pads[rank + d] += extra[d]
    return Windows(kernel, strides, dilations, tuple(pads), tuple(extra))


@handles("Conv")
def conv(n: Node) -> TensorId:
    weight, group = n.shape(1), n.attrs["group"]
    if len(weight) != len(n.shape()):
        raise n.fail(f"weight {n.type(n.tensor(1))} does not fit input {n.type(n.tensor(0))}")
    kernel = n.attrs.get("kernel_shape") or weight[2:]
    if tuple(kernel) != weight[2:]:
        raise n.fail(f"kernel_shape is {list(kernel)}, but the weight is {n.type(n.tensor(1))}")
    if group < 1 or weight[0] % group or n.shape()[1] != weight[1] * group:
        raise n.fail(f"{group} groups do not divide weight {n.type(n.tensor(1))} and input {n.type(n.tensor(0))}")
    return n.add("conv", *n.present(), **windows(n, kernel).attrs, group=group)


@handles("MaxPool")
def max_pool(n: Node) -> TensorId | tuple[TensorId, ...]:
    w = _pool_windows(n)
    if not n.wants(1):
        return n.add("max_pool", n.tensor(0), kernel=w.kernel, **w.attrs)
    order = n.attrs.get("storage_order", 0)
    return n.add_all("max_pool", n.tensor(0), indices=True, storage_order=order, kernel=w.kernel, **w.attrs)


@handles("AveragePool")
def average_pool(n: Node) -> TensorId:
    w = _pool_windows(n)
    counted = {"count_include_pad": bool(n.attrs.get("count_include_pad", 0)), "ceil_extra": w.ceil_extra}
    return n.add("average_pool", n.tensor(0), kernel=w.kernel, **w.attrs, **counted)


def _pool_windows(n: Node) -> Windows:
    w = windows(n, n.attrs["kernel_shape"] or ())  # LpPool of opset 1 may lack it
    rank = len(w.kernel)
    for d in range(rank):
        reach = w.dilations[d] * (w.kernel[d] - 1) + 1
        if max(w.pads[d], w.pads[rank + d] - w.ceil_extra[d]) >= reach:
            raise n.fail(f"pads {list(w.pads)} are as large as the window in dimension {2 + d}")
    return w


@handles("GlobalAveragePool", "GlobalMaxPool")
def global_pool(n: Node) -> TensorId:
    if len(n.shape()) < 2:
        raise n.fail(f"input {n.type(n.tensor(0))} has no channels")
    return n.reduce(n.tensor(0), "mean" if n.op == "GlobalAveragePool" else "max", tuple(range(2, len(n.shape()))))


@handles("LpPool")
def lp_pool(n: Node) -> TensorId:
    """Compute the p-norm of each window: a mean of powers, times the size of the window."""
    x, order, w = n.tensor(0), n.attrs["p"], _pool_windows(n)
    powers = _power(n, x, order)
    rank = len(w.kernel)
    if any(w.pads):
        pads = (0, 0, *w.pads[:rank], 0, 0, *w.pads[rank:])
        powers = n.add("pad", powers, pads=pads, mode="constant", value=0.0)
    mean = n.add("average_pool", powers, kernel=w.kernel, strides=w.strides, dilations=w.dilations)
    return _root(n, n.add("mul", mean, n.like(prod(w.kernel), x)), order)


@handles("GlobalLpPool")
def global_lp_pool(n: Node) -> TensorId:
    axes = tuple(range(2, len(n.shape())))
    return _root(n, n.reduce(_power(n, n.tensor(0), n.attrs["p"]), "sum", axes), n.attrs["p"])


def _power(n: Node, x: TensorId, order: float) -> TensorId:
    if not order > 0:
        raise n.fail(f"p is {order}", hint="it must be positive")
    size = n.add("abs", x)
    return size if order == 1 else n.add("mul", x, x) if order == 2 else n.add("pow", size, n.like(order, x))


def _root(n: Node, x: TensorId, order: float) -> TensorId:
    return x if order == 1 else n.add("sqrt", x) if order == 2 else n.add("pow", x, n.like(1 / order, x))


@handles("MatMul")
def matmul(n: Node) -> TensorId:
    return n.add("matmul", n.tensor(0), n.tensor(1))


@handles("Gemm")
def gemm(n: Node) -> TensorId:
    """Compute alpha A' B' + beta C. alpha is folded into a constant B."""
    a, b = n.tensor(0), n.tensor(1)
    if len(n.shape(0)) != 2 or len(n.shape(1)) != 2:
        raise n.fail(f"operands {n.type(a)} and {n.type(b)} must be matrices")
    alpha, beta = n.attrs["alpha"], n.attrs["beta"]
    if alpha != 1 and n.builder.value(b) is not None:
        b = n.add("mul", b, n.like(alpha, b))
    trans = {"trans_a": bool(n.attrs["transA"]), "trans_b": bool(n.attrs["transB"])}
    product = n.add("matmul", a, b, **trans)
    if alpha != 1 and n.builder.value(n.tensor(1)) is None:
        product = n.add("mul", product, n.like(alpha, product))
    if not n.has(2) or beta == 0:
        return product
    c = n.tensor(2)
    shape = n.type(product).shape
    total = n.add("add", product, c if beta == 1 else n.add("mul", c, n.like(beta, c)))
    if n.type(total).shape != shape:
        raise n.fail(f"C is {n.type(c)}, which does not broadcast to {n.type(product)}")
    return total
