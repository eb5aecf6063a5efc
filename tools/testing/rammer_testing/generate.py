"""Generate random data-flow graphs, inputs and legal plans from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from random import Random
from typing import Any

import numpy as np

from rammer.ir.analysis.dependency import Dependencies
from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph, View
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation, Operations, ROperator, attributes
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgramBuilder, TaskUid
from rammer.ir.tensor import Array, DType, Shape, TensorId, TensorType, channel_blocked
from rammer.planner.memory import plan_memory
from rammer.vdevice.interpreter import numpy_kernel

UNARY = ("abs", "neg", "tanh", "sigmoid", "relu")
BINARY = ("add", "sub", "mul", "max", "min")


def random_graph(seed: int, size: int = 12, *, placed: bool = True) -> Graph:
    """Return a graph of about `size` operators on small float32 tensors.

    If `placed`, it has some views and blocked layouts, as after passes; otherwise none, as from an importer.
    """
    maker = _Maker(Random(seed), placed)
    for _ in range(maker.random.randint(1, 3)):
        maker.input(maker.random.choice(((4, 6), (2, 3, 8), (1, 4, 6, 5), (1, 20, 3, 4), (9,))))
    while len(maker.operators) < size:
        maker.random.choice(_STEPS + _PLACED if placed else _STEPS)(maker)
    return maker.graph()


def random_inputs(graph: Graph, seed: int) -> dict[str, Array]:
    """Return numbers in [-1, 1) for every float input; 0 and 1 for integers and booleans."""
    random = np.random.default_rng(seed)

    def draw(kind: TensorType) -> Array:
        values = random.uniform(-1, 1, kind.shape) if kind.dtype.is_float else random.integers(0, 2, kind.shape)
        return np.asarray(values).astype(kind.dtype.numpy)

    return {t: draw(graph.types[t]) for t in graph.inputs}


def random_kernel(operation: Operation, random: Random, most: int = 6) -> RKernel:
    """Return a NumPy kernel of at most `most` rTasks, in tiles that need not divide the axes."""
    tile: dict[str, int] = {}
    tasks = 1
    for axis, extent in random.sample(operation.expr.root.axes, len(operation.expr.root.axes)):
        parts = min(random.choice((1, 1, 2, 3)), extent, most // tasks)
        if parts > 1:
            tile[axis] = -(-extent // parts)
            tasks *= -(-extent // tile[axis])
    return numpy_kernel(operation, tile)


def random_plan(
    graph: Graph,
    seed: int,
    num_veus: int = 3,
    *,
    spec: VDeviceSpec | None = None,
    candidates: Callable[[Operation, VDeviceSpec], Sequence[RKernel]] | None = None,
) -> ExecutionPlan:
    """Return a legal plan: rTasks in a random topological order, on random vEUs, in one or several rPrograms.

    For another device than the interpreter pass its `spec`, and a function that returns rKernels.
    """
    random = Random(seed)
    spec = spec or VDeviceSpec("interpreter", num_veus)
    chosen: dict[Operation, RKernel] = {}
    for op in graph.operators:
        if op.operation not in chosen:
            options = candidates(op.operation, spec) if candidates else [random_kernel(op.operation, random)]
            chosen[op.operation] = random.choice(options)
    kernels = tuple(chosen[op.operation] for op in graph.operators)
    dependencies = Dependencies(graph, kernels)
    waiting = {TaskUid(n, r): set(on) for n in range(len(kernels)) for r, on in enumerate(dependencies.of(n))}
    needs = {task: sorted(on) for task, on in waiting.items()}
    cut = random.choice((0.0, 0.05))
    programs, builder = [], RProgramBuilder(num_veus)
    done: set[TaskUid] = set()
    while waiting:
        task = random.choice([t for t, on in waiting.items() if on <= done])
        del waiting[task]
        builder.wait(task, [t for t in needs[task] if t in builder])
        builder.append(task, random.randrange(num_veus))
        done.add(task)
        if random.random() < cut:
            programs.append(builder.build())
            builder = RProgramBuilder(num_veus)
    programs.append(builder.build())
    plan = ExecutionPlan(graph, spec, kernels, tuple(programs), policy=f"random {seed}")
    return replace(plan, memory=plan_memory(plan, least_piece=random.choice((0, 1))))


@dataclass
class _Maker:
    """Builder of a random graph."""

    random: Random
    placed: bool
    interner: Operations = field(default_factory=lambda: Operations(OPS))
    operators: list[ROperator] = field(default_factory=list)
    types: dict[TensorId, TensorType] = field(default_factory=dict)
    constants: dict[TensorId, Array] = field(default_factory=dict)
    views: dict[TensorId, View] = field(default_factory=dict)
    inputs: list[TensorId] = field(default_factory=list)

    def name(self, kind: TensorType) -> TensorId:
        tensor = f"t{len(self.types)}"
        self.types[tensor] = kind
        return tensor

    def input(self, shape: Shape) -> TensorId:
        self.inputs.append(self.name(TensorType(shape)))
        return self.inputs[-1]

    def constant(self, value: Any, dtype: DType = DType.F32) -> TensorId:
        array = np.asarray(value, dtype.numpy)
        tensor = self.name(TensorType(array.shape, dtype))
        self.constants[tensor] = array
        return tensor

    def weights(self, *shape: int) -> TensorId:
        return self.constant(np.random.default_rng(self.random.randrange(1 << 30)).uniform(-0.5, 0.5, shape))

    def apply(self, kind: str, *inputs: TensorId, outputs: tuple[TensorId, ...] = (), **attrs: Any) -> TensorId:
        """Add an operator and return its last output; new outputs of rank 4 sometimes get a blocked layout."""
        logical = tuple(TensorType(self.types[t].shape, self.types[t].dtype) for t in inputs)
        operation = self.interner.define(kind, logical, attributes(**attrs))
        if outputs:
            types = tuple(self.types[t] for t in outputs)
        else:
            types = tuple(self.blocked(t) for t in operation.outputs)
            outputs = tuple(self.name(t) for t in types)
        static = tuple(self.placed and t in self.constants for t in inputs)
        operation = self.interner.retype(operation, tuple(self.types[t] for t in inputs), types, static)
        self.operators.append(ROperator(f"{kind}{len(self.operators)}", operation, inputs, outputs))
        return outputs[-1]

    def blocked(self, kind: TensorType) -> TensorType:
        if self.placed and kind.rank == 4 and self.random.random() < 0.4:
            return replace(kind, layout=channel_blocked(4, self.random.choice((4, 16))))
        return kind

    def pick(self, allowed: Callable[[TensorType], bool] = lambda _: True) -> TensorId:
        """Return a computed or input tensor, preferably a recent one; a new input if none is allowed."""
        known = [t for t, kind in self.types.items() if t not in self.constants and allowed(kind)]
        if not known:
            shape = next(s for s in ((4, 6), (1, 4, 6, 5), (2, 3, 8)) if allowed(TensorType(s)))
            return self.input(shape)
        return self.random.choice(known[-6:])

    def row_major(self, tensor: TensorId) -> TensorId:
        """Return the tensor itself if it is row-major, else its absolute values in a row-major tensor."""
        if self.types[tensor].layout is None:
            return tensor
        return self.apply("abs", tensor, outputs=(self.name(replace(self.types[tensor], layout=None)),))

    def graph(self) -> Graph:
        read = {t for op in self.operators for t in op.inputs}
        outputs = [t for op in self.operators for t in op.outputs if t not in read]
        extra = [t for op in self.operators for t in op.outputs if t in read and self.random.random() < 0.1]
        outputs = [self.row_major(t) for t in (*outputs, *extra)]  # a program's ports are row-major
        return Graph(
            "random",
            tuple(self.inputs),
            tuple(outputs),
            tuple(self.operators),
            self.types,
            self.constants,
            self.interner,
            self.views,
        )


def _rank(*ranks: int) -> Callable[[TensorType], bool]:
    return lambda kind: kind.rank in ranks


def _plain(kind: TensorType) -> bool:
    return kind.layout is None and kind.rank > 0


def _unary(maker: _Maker) -> None:
    maker.apply(maker.random.choice(UNARY), maker.pick())


def _binary(maker: _Maker) -> None:
    x = maker.pick()
    shape = maker.types[x].shape
    others = [t for t, kind in maker.types.items() if kind.shape == shape and t not in maker.constants]
    other = maker.random.choice([*others, maker.weights(*shape[-1:])])
    maker.apply(maker.random.choice(BINARY), x, other)


def _matmul(maker: _Maker) -> None:
    x = maker.pick(_rank(2, 3))
    maker.apply("matmul", x, maker.weights(maker.types[x].shape[-1], maker.random.randint(2, 9)))


def _conv(maker: _Maker) -> None:
    x = maker.pick(_rank(4))
    channels, step, k = maker.types[x].shape[1], maker.random.choice((1, 2)), maker.random.choice((1, 3))
    inputs = [x, maker.weights(maker.random.choice((3, 8, 20)), channels, k, k)]
    if maker.random.random() < 0.5:
        inputs.append(maker.weights(maker.types[inputs[1]].shape[0]))
    maker.apply("conv", *inputs, strides=(step, step), pads=(k // 2,) * 4)


def _pool(maker: _Maker) -> None:
    x = maker.pick(_rank(4))
    kind = maker.random.choice(("max_pool", "average_pool"))
    step = maker.random.choice((1, 2))
    maker.apply(kind, x, kernel=(3, 3), strides=(step, step), pads=(1,) * 4)


def _transpose(maker: _Maker) -> None:
    x = maker.pick()
    perm = tuple(maker.random.sample(range(maker.types[x].rank), maker.types[x].rank))
    maker.apply("transpose", x, perm=perm)


def _slice(maker: _Maker) -> None:
    x = maker.pick(lambda kind: kind.size > 1)
    starts, steps, shape = [], [], []
    for extent in maker.types[x].shape:
        step = maker.random.choice((1, 1, 2, -1))
        start = extent - 1 if step < 0 else maker.random.randrange((extent + 1) // 2)
        starts.append(start)
        steps.append(step)
        shape.append(extent if step < 0 else -(-(extent - start) // step))
    maker.apply("slice", x, starts=tuple(starts), steps=tuple(steps), shape=tuple(shape))


def _reduce(maker: _Maker) -> None:
    x = maker.pick(_rank(2, 3, 4))
    axis = maker.random.randrange(maker.types[x].rank)
    maker.apply("reduce", x, fn=maker.random.choice(("sum", "mean", "max")), axes=(axis,), keepdims=True)


def _softmax(maker: _Maker) -> None:
    x = maker.pick(_rank(1, 2, 3))
    maker.apply("softmax", x, axis=maker.random.randrange(maker.types[x].rank))


def _gather(maker: _Maker) -> None:
    x = maker.pick(_rank(1, 2, 3))
    axis = maker.random.randrange(maker.types[x].rank)
    extent = maker.types[x].shape[axis]
    index = maker.constant([maker.random.randrange(-extent, extent) for _ in range(3)], DType.I64)
    maker.apply("gather", x, index, axis=axis)


def _lstm(maker: _Maker) -> None:
    """Add two cells of one layer that share an operation; their outputs lie in one tensor."""
    batch, hidden = 2, maker.random.choice((3, 4))
    gx = maker.apply(
        "tanh", maker.input((2, batch, 4, hidden)), outputs=(maker.name(TensorType((2, batch, 4, hidden))),)
    )
    h, c = maker.input((batch, hidden)), maker.input((batch, hidden))
    weights, sequence = maker.weights(4, hidden, hidden), maker.name(TensorType((2, batch, hidden)))
    for step in range(2):
        part = maker.name(TensorType((batch, 4, hidden)))
        maker.views[part] = View(gx, step * batch * 4 * hidden)
        following = maker.name(TensorType((batch, hidden)))
        maker.views[following] = View(sequence, step * batch * hidden)
        state = maker.name(TensorType((batch, hidden)))
        h = maker.apply("lstm_cell", part, h, c, weights, outputs=(state, following))
        c = state


def _copied_concat(maker: _Maker) -> None:
    x, y = maker.pick(), maker.pick()
    a, b = maker.types[x].shape, maker.types[y].shape
    if len(a) == len(b) and a[1:] == b[1:]:
        maker.apply("concat", x, y, axis=0)


def _placed_concat(maker: _Maker) -> None:
    """Add two operators that write adjacent halves of one tensor, and a reader of a part that may span both."""
    x = maker.pick(_plain)
    shape = maker.types[x].shape
    joined = maker.name(TensorType((2 * shape[0], *shape[1:])))
    for n in range(2):
        half = maker.name(TensorType(shape))
        maker.views[half] = View(joined, n * prod(shape))
        maker.apply(maker.random.choice(UNARY), x, outputs=(half,))
    rows = maker.random.randint(1, 2 * shape[0])
    part = maker.name(TensorType((rows, *shape[1:])))
    maker.views[part] = View(joined, maker.random.randint(0, 2 * shape[0] - rows) * prod(shape[1:]))
    maker.apply("neg", part)


def _viewed_reshape(maker: _Maker) -> None:
    x = maker.pick(_plain)
    flat = maker.name(TensorType((maker.types[x].size,)))
    maker.views[flat] = View(x, 0)
    maker.apply(maker.random.choice(UNARY), flat)


def _copied_reshape(maker: _Maker) -> None:
    x = maker.pick(lambda kind: kind.rank > 1)
    shape = maker.types[x].shape
    maker.apply("reshape", x, shape=(*shape[:-2], shape[-1], shape[-2]))


_STEPS: tuple[Callable[[_Maker], None], ...] = (
    _unary,
    _binary,
    _binary,
    _matmul,
    _conv,
    _conv,
    _pool,
    _transpose,
    _slice,
    _reduce,
    _softmax,
    _gather,
    _copied_concat,
    _copied_reshape,
)
_PLACED: tuple[Callable[[_Maker], None], ...] = (_lstm, _placed_concat, _viewed_reshape)
