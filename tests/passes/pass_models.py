"""Graphs that the tests of passes share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from rammer.frontend.builder import GraphBuilder
from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array, DType, TensorId

Pass = Callable[[Graph], Graph]

SPEC = VDeviceSpec("test", 2, lanes=16)


class Net(GraphBuilder):
    """A builder with seeded weights and the layers that the tests use."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__("net")
        self.rng = np.random.default_rng(seed)

    def weight(self, *shape: int, scale: float | None = None) -> TensorId:
        fan = scale if scale is not None else 1 / np.sqrt(max(1, np.prod(shape[1:])))
        return self.constant((self.rng.standard_normal(shape) * fan).astype(np.float32))

    def conv(
        self,
        x: TensorId,
        out: int,
        kernel: int = 3,
        stride: int = 1,
        group: int = 1,
        bias: bool = True,
        pad: int | None = None,
    ) -> TensorId:
        channels = self.types[x].shape[1]
        pad = kernel // 2 if pad is None else pad
        operands = [x, self.weight(out, channels // group, kernel, kernel)]
        if bias:
            operands.append(self.weight(out))
        y: TensorId = self.add(
            "conv", *operands, strides=(stride, stride), pads=(pad,) * 4, dilations=(1, 1), group=group
        )
        return y

    def conv1d(self, x: TensorId, out: int, kernel: int) -> TensorId:
        w = self.weight(out, self.types[x].shape[1], kernel)
        y: TensorId = self.add("conv", x, w, self.weight(out), pads=(kernel // 2,) * 2)
        return y

    def norm(self, x: TensorId) -> TensorId:
        c = self.types[x].shape[1]
        var = self.constant(self.rng.uniform(0.5, 2, c).astype(np.float32))
        y: TensorId = self.add("batch_norm", x, self.weight(c), self.weight(c), self.weight(c), var, epsilon=1e-5)
        return y

    def pool(self, x: TensorId, kernel: int = 3, stride: int = 2, kind: str = "max_pool") -> TensorId:
        attrs: dict[str, Any] = {"kernel": (kernel,) * 2, "strides": (stride,) * 2, "pads": (kernel // 2,) * 4}
        attrs["dilations"] = (1, 1)
        if kind == "average_pool":
            attrs |= {"count_include_pad": False, "ceil_extra": (0, 0)}
        y: TensorId = self.add(kind, x, **attrs)
        return y


def random_inputs(graph: Graph, seed: int = 7) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        t: rng.standard_normal(graph.types[t].shape).astype(graph.types[t].dtype.numpy)
        if graph.types[t].dtype.is_float
        else rng.integers(0, 2, graph.types[t].shape).astype(graph.types[t].dtype.numpy)
        for t in graph.inputs
    }


def assert_same(before: Graph, after: Graph, seed: int = 7, rtol: float = 1e-4) -> None:
    """Both graphs have the same signature, and compute the same for random inputs."""
    assert after.inputs == before.inputs and after.outputs == before.outputs
    for t in (*before.inputs, *before.outputs):
        assert after.types[t] == before.types[t], t
    inputs = random_inputs(before, seed)
    wanted, got = evaluate_graph(before, inputs), evaluate_graph(after, inputs)
    for name, value in wanted.items():
        scale = float(np.max(np.abs(value), initial=1e-6)) if value.dtype.kind == "f" else 1
        np.testing.assert_allclose(got[name], value, rtol=rtol, atol=rtol * scale, err_msg=name)


def after(before: Graph, *passes: Pass) -> Counter[str]:
    """Kinds of the operators that the passes leave, after checking that the meaning is the same."""
    graph = before
    for run in passes:
        graph = run(graph)
        assert_same(before, graph)
    return Counter(op.kind for op in graph.operators)


def model(
    build: Callable[[Net, TensorId], TensorId | tuple[TensorId, ...]], shape: tuple[int, ...] = (2, 16, 4, 4)
) -> Graph:
    """A graph of one input and the outputs that `build` makes."""
    b = Net()
    made = build(b, b.input("x", shape))
    for n, tensor in enumerate(made if isinstance(made, tuple) else (made,)):
        b.output(tensor, f"y{n}")
    return b.build()


def resnet_block() -> Graph:
    b = Net()
    x = b.input("x", (1, 3, 12, 12))
    y = b.add("relu", b.norm(b.conv(x, 32, 3, 2)))
    z = b.add("relu", b.norm(b.conv(y, 32)))
    z = b.norm(b.conv(z, 32))
    y = b.add("relu", b.add("add", z, y))
    y = b.add("reduce", y, fn="mean", axes=(2, 3), keepdims=True)
    y = b.add("reshape", y, shape=(1, 32))
    y = b.add("add", b.add("matmul", y, b.weight(32, 10)), b.weight(10))
    b.output(b.add("softmax", y, axis=1), "y")
    return b.build()


def densenet_block() -> Graph:
    b = Net(1)
    x = b.conv(b.input("x", (1, 16, 6, 6)), 32, 1)
    for _ in range(3):
        y = b.conv(b.add("relu", b.norm(x)), 32, 1, bias=False)
        y = b.conv(b.add("relu", b.norm(y)), 16, 3, bias=False)
        x = b.add("concat", x, y, axis=1)
    b.output(b.pool(b.add("relu", b.norm(x)), 2, 2, "average_pool"), "y")
    return b.build()


def inception_block() -> Graph:
    b = Net(2)
    x = b.input("x", (1, 24, 7, 7))
    x = b.add("relu", b.conv(x, 32, 1))
    parts = [
        b.add("relu", b.conv(x, 16, 1)),
        b.add("relu", b.conv(b.add("relu", b.conv(x, 24, 1)), 32, 3)),
        b.add("relu", b.conv(b.pool(x, 3, 1), 16, 1)),
        b.conv(b.pool(x, 3, 1, "average_pool"), 20, 1),
    ]
    y = b.add("concat", *parts, axis=1)
    b.output(b.conv(y, 16, 3), "y")
    b.output(b.add("sigmoid", y), "z")
    return b.build()


def grouped_block() -> Graph:
    """Grouped and depthwise convolutions, swish, squeeze and excitation."""
    b = Net(3)
    x = b.input("x", (2, 32, 6, 6))
    y = b.conv(x, 64, 3, group=4)
    y = b.add("mul", y, b.add("sigmoid", y))
    r = b.add("relu", y)
    left, right = b.conv(r, 64, 3, group=64), b.conv(r, 64, 5, group=64, bias=False)
    y = b.add("add", left, right)
    s = b.add("reduce", y, fn="mean", axes=(2, 3), keepdims=True)
    s = b.add("sigmoid", b.conv(b.add("relu", b.conv(s, 8, 1)), 64, 1))
    b.output(b.add("mul", y, s), "y")
    return b.build()


def lstm(
    steps: int = 5, batch: int = 1, width: int = 8, layers: int = 2, style: str = "separate", feedback: bool = False
) -> Graph:
    """Unrolled: `separate` has eight products per cell (LSTM-TC), `concat` is TensorFlow's BasicLSTMCell."""
    b = Net(4)
    x = b.input("x", (steps, batch, width))
    xs = [
        b.add(
            "reshape",
            b.add("slice", x, starts=(t, 0, 0), steps=(1, 1, 1), shape=(1, batch, width)),
            shape=(batch, width),
        )
        for t in range(steps)
    ]
    zeros = b.constant(np.zeros((batch, width), np.float32), "zeros")
    cells = []
    for _ in range(layers):
        if style == "separate":
            w = [(b.weight(width, width), b.weight(width, width), b.weight(width)) for _ in range(4)]
        else:
            w = [(b.weight(2 * width, 4 * width), b.weight(4 * width), b.constant(np.float32(1)))]
        cells.append(w)
    states = [(zeros, zeros)] * layers
    if feedback:
        states = [(b.input(f"h{n}", (batch, width)), zeros) for n in range(layers)]
    out: TensorId = xs[0]
    for t in range(steps):
        step = out if feedback and t else xs[t]
        for n, w in enumerate(cells):
            h, c = states[n]
            if style == "separate":
                g = [
                    b.add("add", b.add("add", b.add("matmul", step, wx), b.add("matmul", h, wh)), bias)
                    for wx, wh, bias in w
                ]
                i, f, o, z = (
                    b.add("sigmoid", g[0]),
                    b.add("sigmoid", g[1]),
                    b.add("sigmoid", g[2]),
                    b.add("tanh", g[3]),
                )
            else:
                wxh, bias, one = w[0]
                flat = b.add("add", b.add("matmul", b.add("concat", step, h, axis=1), wxh), bias)
                cut = [
                    b.add("slice", flat, starts=(0, q * width), steps=(1, 1), shape=(batch, width)) for q in range(4)
                ]
                i, z = b.add("sigmoid", cut[0]), b.add("tanh", cut[1])
                f, o = b.add("sigmoid", b.add("add", cut[2], one)), b.add("sigmoid", cut[3])
            c = b.add("add", b.add("mul", f, c), b.add("mul", i, z))
            h = b.add("mul", o, b.add("tanh", c))
            states[n] = (h, c)
            step = h
        out = step
    b.output(out, "y")
    return b.build()


def lstm_cells(steps: int = 4, batch: int = 2, width: int = 8) -> Graph:
    """As the frontend lowers an LSTM operator: one projection, single steps, the sequence of states as an output."""
    b = Net(5)
    x = b.input("x", (steps, batch, width))
    flat = b.add("reshape", x, shape=(steps * batch, width))
    gx = b.add("add", b.add("matmul", flat, b.weight(width, 4 * width)), b.weight(4 * width))
    gx = b.add("reshape", gx, shape=(steps, batch, 4, width))
    h = b.input("h", (batch, width))
    c = b.constant(np.zeros((batch, width), np.float32))
    r = b.weight(4, width, width)
    mask = b.input("mask", (batch, 1), DType.BOOL)
    states = []
    for t in range(steps):
        step = b.add("slice", gx, starts=(t, 0, 0, 0), steps=(1,) * 4, shape=(1, batch, 4, width))
        step = b.add("reshape", step, shape=(batch, 4, width))
        c_new, h_new = b.add("lstm_cell", step, h, c, r)
        h, c = b.add("where", mask, h_new, h), b.add("where", mask, c_new, c)
        states.append(b.add("reshape", h, shape=(1, 1, batch, width)))
    b.output(b.add("concat", *states, axis=0), "ys")
    b.output(b.add("reshape", h, shape=(1, batch, width)), "yh")
    return b.build()


def lstm_layers(steps: int = 6, batch: int = 2, width: int = 8, backwards: bool = False) -> Graph:
    """Two layers, as the frontend lowers them; the second one may go through the steps from the last to the first."""
    b = Net(6)
    x = b.input("x", (steps, batch, width))
    for layer in range(2):
        flat = b.add("reshape", x, shape=(steps * batch, width))
        gx = b.add("add", b.add("matmul", flat, b.weight(width, 4 * width)), b.weight(4 * width))
        gx = b.add("reshape", gx, shape=(steps, batch, 4, width))
        h = c = b.constant(np.zeros((batch, width), np.float32))
        r = b.weight(4, width, width)
        states = {}
        for t in reversed(range(steps)) if backwards and layer else range(steps):
            step = b.add("slice", gx, starts=(t, 0, 0, 0), steps=(1,) * 4, shape=(1, batch, 4, width))
            c, h = b.add("lstm_cell", b.add("reshape", step, shape=(batch, 4, width)), h, c, r)
            states[t] = b.add("reshape", h, shape=(1, batch, width))
        x = b.add("concat", *(states[t] for t in range(steps)), axis=0)
    b.output(x, "y")
    return b.build()


def fed_back_cells(steps: int = 3, batch: int = 2, width: int = 8, transposed: bool = True) -> Graph:
    """LSTM cells whose input is the state before: every step has a projection of its own."""
    b = Net(7)
    x = b.input("x", (batch, width))
    h, c = b.input("h", (batch, width)), b.input("c", (batch, width))
    w = b.weight(4 * width, width) if transposed else b.weight(width, 4 * width)
    bias, r = b.weight(4 * width), b.weight(4, width, width)
    for _ in range(steps):
        gx = b.add("add", b.add("matmul", x, w, trans_b=transposed), bias)
        c, h = b.add("lstm_cell", b.add("reshape", gx, shape=(batch, 4, width)), h, c, r)
        x = h
    b.output(b.add("relu", h), "y")
    return b.build()


def attention() -> Graph:
    b = Net(6)
    x = b.input("x", (1, 12, 32))
    q, k, v = (b.add("add", b.add("matmul", x, b.weight(32, 32)), b.weight(32)) for _ in range(3))
    q, k, v = (b.add("transpose", b.add("reshape", t, shape=(1, 12, 4, 8)), perm=(0, 2, 1, 3)) for t in (q, k, v))
    s = b.add("mul", b.add("matmul", q, k, trans_b=True), b.constant(np.float32(8**-0.5)))
    p = b.add("softmax", b.add("add", s, b.weight(1, 1, 1, 12)), axis=3)
    y = b.add("reshape", b.add("transpose", b.add("matmul", p, v), perm=(0, 2, 1, 3)), shape=(1, 12, 32))
    y = b.add("add", x, b.add("add", b.add("matmul", y, b.weight(32, 32)), b.weight(32)))
    y = b.add("layer_norm", y, b.weight(32), b.weight(32), axis=2, epsilon=1e-5)
    b.output(y, "y")
    return b.build()


def random_dfg(seed: int) -> Graph:
    """Operators drawn at random over a few 4-D tensors, with shared readers and several outputs."""
    b = Net(seed)
    rng = b.rng
    pool = [b.input("x", (1, 16, 4, 4)), b.input("u", (1, 16, 4, 4))]
    unary = ("relu", "sigmoid", "tanh", "neg", "abs")
    for _ in range(int(rng.integers(5, 25))):
        a, c = (pool[int(rng.integers(max(0, len(pool) - 5), len(pool)))] for _ in range(2))
        pick = int(rng.integers(0, 9))
        if pick < 3:
            y = b.add(unary[int(rng.integers(len(unary)))], a)
        elif pick < 5:
            y = b.add(("add", "mul", "max")[int(rng.integers(3))], a, c)
        elif pick == 5:
            y = b.conv(a, 16, int(rng.choice([1, 3])), group=int(rng.choice([1, 16])), bias=bool(rng.integers(2)))
        elif pick == 6:
            y = b.norm(a)
        elif pick == 7:
            y = b.add(
                "slice",
                b.add("concat", a, c, axis=1),
                starts=(0, int(rng.choice([0, 8, 16])), 0, 0),
                steps=(1,) * 4,
                shape=(1, 16, 4, 4),
            )
        else:
            flat = b.add("reshape", a, shape=(1, 16, 16))
            if rng.integers(2):
                flat = b.add("transpose", flat, perm=(0, 2, 1))
            y = b.add("reshape", flat, shape=(1, 16, 4, 4))
        pool.append(y)
    for n, t in enumerate(dict.fromkeys(pool[-int(rng.integers(1, 4)) :])):
        b.output(t, f"y{n}")
    return b.build()


def random_cells(seed: int) -> Graph:
    """A recurrent network whose cell is drawn at random: products, splits, shared and transposed weights."""
    b = Net(seed)
    rng = b.rng
    steps, batch, width, gates = (int(rng.integers(1, top)) for top in (6, 4, 6, 5))
    width *= 2
    time_first = bool(rng.integers(2))
    x = b.input("x", (steps, batch, width) if time_first else (batch, steps, width))
    matrices = [b.weight(width, width) for _ in range(3)]
    wide = [b.weight(2 * width, gates * width), b.weight(width, gates * width)]
    bias = [b.weight(gates * width), b.weight(width), b.weight(batch, 1)]
    program = [int(v) for v in rng.integers(0, 9, int(rng.integers(3, 12)))]
    picks = rng.integers(0, 1 << 30, (len(program), 3))
    states = [b.input("h", (batch, width)), b.constant(np.zeros((batch, width), np.float32))]
    results = []
    for t in range(steps):
        now: list[TensorId] = [b.add("gather", x, b.constant(np.int64(t)), axis=0 if time_first else 1), *states]
        for what, (p, q, r) in zip(program, picks.tolist(), strict=True):
            left, right = now[p % len(now)], now[q % len(now)]
            if what == 0:
                made = [b.add("matmul", left, matrices[r % 3], trans_b=bool(r % 2))]
            elif what == 1:
                made = [
                    b.add(
                        ("add", "mul")[r % 2], b.add("matmul", left, matrices[0]), b.add("matmul", right, matrices[1])
                    )
                ]
            elif what in (2, 3):
                flat = b.add("concat", left, right, axis=1) if what == 2 else left
                flat = b.add("matmul", flat, wide[what - 2])
                flat = b.add("add", flat, bias[(0, 2)[r % 2]])
                cut = range(gates) if r % 3 else range(max(1, gates - 1))
                made = [b.add("slice", flat, starts=(0, g * width), steps=(1, 1), shape=(batch, width)) for g in cut]
            elif what in (4, 5):
                made = [b.add(("sigmoid", "tanh", "relu")[r % 3], left)]
            else:
                made = [b.add(("add", "mul", "max")[r % 3], left, right if r % 2 else bias[1])]
            now += made
        states = now[-2:]
        results.append(b.add("reshape", now[-1], shape=(1, batch, width)))
    b.output(b.add("concat", *results, axis=0), "ys")
    b.output(states[0], "h_last")
    return b.build()
