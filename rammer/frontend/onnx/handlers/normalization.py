"""Import normalizations."""

from __future__ import annotations

from math import prod

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, TensorId


@handles("BatchNormalization")
def batch_normalization(n: Node) -> TensorId | list[TensorId]:
    """Normalize; in training by the batch's statistics. Running statistics are then further outputs.

    Training is an attribute since opset 14. Before, from opset 7 on, it is what further outputs mean.
    """
    if n.opset < 7 and not n.attrs["is_test"]:
        raise n.fail("training mode is not supported", hint="export the model for inference")
    if n.attrs.get("spatial", 1) != 1:
        raise n.fail("spatial=0 is not supported", hint="export with opset 9 or later")
    x, scale, bias, mean, var = (n.cast(n.tensor(k), n.dtype()) for k in range(5))  # statistics may have another type
    if not (n.attrs["training_mode"] if n.opset >= 14 else n.opset >= 7 and any(n.outputs[1:])):
        return n.add("batch_norm", x, scale, bias, mean, var, epsilon=n.attrs["epsilon"])
    axes = tuple(d for d in range(len(n.shape())) if d != 1)
    batch_mean = n.reduce(x, "mean", axes)
    centred = n.add("sub", x, batch_mean)
    batch_var = n.reshape(n.reduce(centred, "sum_square", axes), n.shape(1))
    batch_var = n.add("mul", batch_var, n.like(n.shape()[1] / max(prod(n.shape()), 1), x))
    batch_mean = n.reshape(batch_mean, n.shape(1))
    y = n.add("batch_norm", x, scale, bias, batch_mean, batch_var, epsilon=n.attrs["epsilon"])
    return [y, *(_running(n, old, new) for old, new in ((mean, batch_mean), (var, batch_var)))]


def _running(n: Node, old: TensorId, new: TensorId) -> TensorId:
    momentum = n.attrs["momentum"]
    return n.add("add", n.add("mul", old, n.like(momentum, old)), n.add("mul", new, n.like(1 - momentum, new)))


@handles("LayerNormalization")
def layer_normalization(n: Node) -> list[TensorId]:
    """Normalize. If the model uses the statistics, separate operators compute them, in stash_type."""
    x, shape = n.tensor(0), n.shape()
    axis = n.axis(n.attrs["axis"], len(shape))
    epsilon = n.attrs["epsilon"]
    results = [n.add("layer_norm", *n.present(), axis=axis, epsilon=epsilon)]
    if n.wants(1) or n.wants(2):
        axes = tuple(range(axis, len(shape)))
        wide = n.cast(x, DType.F32) if n.type(x).dtype in (DType.F16, DType.BF16) else x
        mean = n.reduce(wide, "mean", axes)
        variance = n.reduce(square(n, n.add("sub", wide, mean)), "mean", axes)
        deviation = n.add("sqrt", n.add("add", variance, n.like(epsilon, variance)))
        results += [mean, n.add("reciprocal", deviation)]
    return results


def square(n: Node, x: TensorId) -> TensorId:
    return n.add("mul", x, x)


@handles("InstanceNormalization")
def instance_normalization(n: Node) -> TensorId:
    """Normalize. Of channels reshaped to groups, as exporters write GroupNorm, it reads those before the reshape."""
    x, shape = n.tensor(0), n.shape()
    if len(shape) < 2 or n.shape(1) != shape[1:2] or n.shape(2) != shape[1:2]:
        raise n.fail(f"scale {n.shape(1)} and bias {n.shape(2)} must have one number per channel of {shape}")
    maker, groups = n.builder.maker(x), shape[1]
    if maker is not None and maker.kind == "reshape":
        before = n.type(maker.inputs[0]).shape
        if len(before) > 2 and before[0] == shape[0] and groups and before[1] % groups == 0:
            x = maker.inputs[0]
    scale, bias = (_each_channel(n, n.tensor(p), n.type(x).shape[1]) for p in (1, 2))
    return n.reshape(_normalize(n, x, groups, scale, bias), shape)


@handles("GroupNormalization", since=18)
def group_normalization(n: Node) -> TensorId:
    """Normalize groups of channels. Scale and bias are per group before opset 21, per channel since."""
    x, shape = n.tensor(0), n.shape()
    groups = n.attrs["num_groups"]
    if len(shape) < 2 or groups <= 0 or shape[1] % groups:
        raise n.fail(f"{n.type(x)} cannot be cut into {groups} groups of channels")
    scale, bias = n.tensor(1), n.tensor(2)
    if n.opset < 21:
        scale, bias = (_each_channel(n, t, shape[1]) for t in (scale, bias))
    wide = n.dtype().accumulator
    return n.cast(_normalize(n, n.cast(x, wide), groups, n.cast(scale, wide), n.cast(bias, wide)), n.dtype())


def _each_channel(n: Node, x: TensorId, channels: int) -> TensorId:
    """Repeat one number per group for each of its channels."""
    (groups,) = n.type(x).shape
    return n.reshape(n.expand(n.reshape(x, (groups, 1)), (groups, channels // max(groups, 1))), (channels,))


def _normalize(n: Node, x: TensorId, groups: int, scale: TensorId, bias: TensorId) -> TensorId:
    """Return (x - mean) · scale / deviation + bias, with the moments of groups of channels.

    Moments of channels are computed first: these are many parallel sums, and keep a convolution's layout.
    """
    shape = n.type(x).shape
    spatial = tuple(range(2, len(shape)))
    each = (*shape[:2], *(1,) * len(spatial))

    def mean_of(value: TensorId) -> TensorId:
        mean = n.reduce(value, "mean", spatial)
        if groups == shape[1]:
            return mean
        grouped = (shape[0], groups, shape[1] // groups)
        return n.reshape(n.expand(n.reduce(n.reshape(mean, grouped), "mean", (2,)), grouped), each)

    mean = mean_of(x)
    # mean - x, not x - mean: a shared x - mean would be stored as a tensor
    variance = mean_of(square(n, n.add("sub", mean, x)))
    deviation = n.add("sqrt", n.add("add", variance, n.like(n.attrs["epsilon"], variance)))
    scale, bias = (n.reshape(t, each[1:]) for t in (scale, bias))
    return n.add("add", n.add("mul", n.add("sub", x, mean), n.add("div", scale, deviation)), bias)


@handles("LpNormalization")
def lp_normalization(n: Node) -> TensorId:
    x, order = n.tensor(0), n.attrs["p"]
    if order not in (1, 2):
        raise n.fail(f"p is {order}", hint="it must be 1 or 2")
    axis = n.axis(n.attrs["axis"], len(n.shape()))
    norm = n.reduce(x, f"l{order}", (axis,))
    return n.add("where", n.add("equal", norm, n.like(0, x)), n.like(0, x), n.add("div", x, norm))
