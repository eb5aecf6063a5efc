"""Import one step of an optimizer, for several tensors at once."""

from __future__ import annotations

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, TensorId

DOMAIN = "ai.onnx.preview.training"


def _groups(n: Node, parts: int) -> list[list[TensorId]]:
    """Return the operands of each tensor. The node lists all tensors first, then all gradients, and so on."""
    given = [n.tensor(p) for p in range(2, len(n.inputs))]
    if not given or len(given) % parts:
        raise n.fail(f"has {len(given)} operands", hint=f"{parts} for each tensor that is optimized")
    count = len(given) // parts
    groups = [given[k::count] for k in range(count)]
    for group in groups:
        if len({n.type(t) for t in group}) != 1:
            raise n.fail(f"operands of one tensor differ: {', '.join(str(n.type(t)) for t in group)}")
    return groups


def _results(steps: list[list[TensorId]]) -> list[TensorId]:
    return [made for several in zip(*steps, strict=True) for made in several]


def _scaled(n: Node, x: TensorId, factor: float) -> TensorId:
    return n.add("mul", x, n.like(factor, x))


def _regular(n: Node, x: TensorId, gradient: TensorId) -> TensorId:
    """Return the gradient plus that of the regularization."""
    return n.add("add", _scaled(n, x, n.attrs["norm_coefficient"]), gradient)


def _number(n: Node, position: int, dtype: DType) -> TensorId:
    """Return the learning rate, or the update count."""
    if n.type(n.tensor(position)).size != 1:
        raise n.fail(f"input {position} is {n.type(n.tensor(position))} instead of one number")
    return n.cast(n.reshape(n.tensor(position), ()), dtype)


@handles("Momentum", domain=DOMAIN)
def momentum(n: Node) -> list[TensorId]:
    a, steps = n.attrs, []
    if a["mode"] not in ("standard", "nesterov"):
        raise n.fail(f"mode is {a['mode']!r}", hint="standard or nesterov")
    for x, gradient, velocity in _groups(n, 3):
        dtype = n.type(x).dtype
        rate, again = _number(n, 0, dtype), n.add("less", n.constant(0), _number(n, 1, DType.I64))
        slope = _regular(n, x, gradient)
        beta = n.add("where", again, n.like(a["beta"], x), n.like(1, x))
        new = n.add("add", _scaled(n, velocity, a["alpha"]), n.add("mul", beta, slope))
        way = new if a["mode"] == "standard" else n.add("add", slope, _scaled(n, new, a["alpha"]))
        steps.append([n.add("sub", x, n.add("mul", rate, way)), new])
    return _results(steps)


@handles("Adagrad", domain=DOMAIN)
def adagrad(n: Node) -> list[TensorId]:
    a, steps = n.attrs, []
    for x, gradient, squares in _groups(n, 3):
        dtype = n.type(x).dtype
        decay = n.add("add", n.like(1, x), _scaled(n, _number(n, 1, dtype), a["decay_factor"]))
        slope = _regular(n, x, gradient)
        new = n.add("add", squares, n.add("mul", slope, slope))
        root = n.add("add", n.add("sqrt", new), n.like(a["epsilon"], x))
        way = n.add("div", n.add("mul", n.add("div", _number(n, 0, dtype), decay), slope), root)
        steps.append([n.add("sub", x, way), new])
    return _results(steps)


@handles("Adam", domain=DOMAIN)
def adam(n: Node) -> list[TensorId]:
    a, steps = n.attrs, []
    for x, gradient, velocity, squares in _groups(n, 4):
        dtype, wide = n.type(x).dtype, _number(n, 1, DType.F64)  # float64: powers close to 1 are subtracted from 1
        one = n.like(1, wide)
        left, right = (n.add("sub", one, n.add("pow", n.like(a[name], wide), wide)) for name in ("alpha", "beta"))
        bias = n.add("where", n.add("less", n.like(0, wide), wide), n.add("div", n.add("sqrt", right), left), one)
        rate = n.add("mul", _number(n, 0, dtype), n.cast(bias, dtype))
        slope = _regular(n, x, gradient)
        new = n.add("add", _scaled(n, velocity, a["alpha"]), _scaled(n, slope, 1 - a["alpha"]))
        grown = n.add("add", _scaled(n, squares, a["beta"]), _scaled(n, n.add("mul", slope, slope), 1 - a["beta"]))
        root = n.add("add", n.add("sqrt", grown), n.like(a["epsilon"], x))
        moved = n.add("sub", x, n.add("mul", rate, n.add("div", new, root)))
        steps.append([_scaled(n, moved, 1 - a["norm_coefficient_post"]), new, grown])
    return _results(steps)
