"""What the paper's algorithms see of a graph: layers, their sizes, and how axes follow each other through reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import prod
from typing import NamedTuple

from rammer.ir.analysis.dependency import followed_axes
from rammer.ir.analysis.parts import Box, whole
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation, flops
from rammer.ir.tensor import TensorId

Axes = tuple[int | None, ...]
Span = tuple[int, int]


class Window(NamedTuple):
    """Which places of an axis are read for place p of the one that it moves with: `extent` from p · stride - before."""

    stride: int = 1
    extent: int = 1
    before: int = 0

    def read(self, span: Span, size: int) -> Span:
        """What is read for places [low, high), inside of an axis of `size`."""
        low, high = span[0] * self.stride - self.before, (span[1] - 1) * self.stride - self.before + self.extent
        return max(0, min(low, size)), max(0, min(high, size))


@dataclass(frozen=True, slots=True)
class Read:
    """What a layer reads of another one, or of the network's input number `~source`.

    `axes`: for each axis of what is read, the reader's axis that it moves with; None if there is no such one.
    `windows`: how far it reads there; of none, each part of the one axis reads the same part of the other.
    """

    source: int
    axes: Axes
    windows: tuple[Window, ...] = ()

    def box(self, wanted: Box, shape: Sequence[int], read: Sequence[int]) -> Box:
        """What is read for a box of the reader, which has this shape, of a source of shape `read`; it may be empty."""
        found = []
        for at, (axis, size) in enumerate(zip(self.axes, read, strict=True)):
            if axis is None:
                found.append((0, size))
            elif self.windows:
                found.append(self.windows[at].read(wanted[axis], size))
            else:
                (low, high), extent = wanted[axis], shape[axis]
                found.append((low * size // extent, -(-high * size // extent)))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Layer:
    """An operator: the shape and bytes of its result, and what it reads, weights left out.

    `parts`: into how many each axis can be cut at most, if not into single places. `is_result`: of the network.
    `takes_over`: the source whose memory the result may have if it is read here for the last time; no memory plan of
    ours does that. `weights`: their bytes. `mflop`: what computing all of it takes.
    """

    shape: tuple[int, ...]
    nbytes: int
    reads: tuple[Read, ...]
    parts: tuple[int, ...] = ()
    is_result: bool = False
    takes_over: int | None = None
    weights: int = 0
    mflop: float = 0.0

    @property
    def whole(self) -> Box:
        return whole(self.shape)


@dataclass(frozen=True)
class Network:
    """Layers in topological order; the bytes of the network's inputs, and their shapes if boxes of them matter."""

    layers: tuple[Layer, ...]
    inputs: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...] = ()

    def nbytes(self, source: int) -> int:
        """Bytes of a layer's result, or of an input."""
        return self.layers[source].nbytes if source >= 0 else self.inputs[~source]

    def shape(self, source: int) -> tuple[int, ...]:
        """The extents of a layer's result, or of an input."""
        return self.layers[source].shape if source >= 0 else self.shapes[~source]

    def nbytes_of(self, source: int, box: Box) -> int:
        """Bytes of a box of it, padding shared out."""
        return round(self.nbytes(source) * self.share(source, box))

    def share(self, source: int, box: Box) -> float:
        """Which part of it a box is."""
        whole = prod(self.shape(source))
        return prod(high - low for low, high in box) / whole if whole else 0.0

    @property
    def least_bytes(self) -> int:
        """What every plan moves to and from main memory: weights once, and the network's inputs and results."""
        return sum(self.inputs) + sum(n.weights + n.nbytes * n.is_result for n in self.layers)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Of each layer the layers that read it, ascending."""
        found: list[list[int]] = [[] for _ in self.layers]
        for n, layer in enumerate(self.layers):
            for source in dict.fromkeys(r.source for r in layer.reads if r.source >= 0):
                found[source].append(n)
        return tuple(map(tuple, found))


def step_of(kernel: RKernel, axis: int) -> int:
    """How much of an axis of the root one rTask computes at most."""
    name, extent = kernel.operation.expr.root.axes[axis]
    return min((digit.step for digit in kernel.body.digits if digit.axis == name), default=extent)


def network_of(graph: Graph, candidates: Mapping[Operation, Sequence[RKernel]]) -> Network:
    """The operators of a graph as layers, numbered as they are, which can be cut where an rKernel cuts its rTasks."""
    results = {graph.storage(t).root for t in graph.outputs}
    inputs: dict[TensorId, int] = {}
    layers = []
    for op in graph.operators:
        reads: list[Read] = []
        weights = 0
        for tensor, axes in zip(op.inputs, followed_axes(op.operation), strict=True):
            if (root := graph.storage(tensor).root) in graph.constants:
                weights += graph.types[tensor].nbytes
                continue
            written = [(n, graph.operators[n].outputs[position]) for n, position, _ in graph.writers(tensor)]
            read = graph.types[tensor].shape
            reads += [
                Read(n, axes if other == tensor else _through_view(axes, read, graph.types[other].shape))
                for n, other in written
            ]
            if not written:
                axes = axes if tensor == root else _through_view(axes, read, graph.types[root].shape)
                reads.append(Read(~inputs.setdefault(root, len(inputs)), axes))
        shape = tuple(extent for _, extent in op.operation.expr.root.axes)
        kernels = candidates.get(op.operation, ())
        parts = (max((-(-e // step_of(k, axis)) for k in kernels if e), default=1) for axis, e in enumerate(shape))
        layers.append(
            Layer(
                shape,
                sum(graph.types[t].filled_bytes for t in op.outputs),
                tuple(reads),
                tuple(parts),
                any(graph.storage(t).root in results for t in op.outputs),
                weights=weights,
                mflop=flops(op.operation.expr) / 1e6,
            )
        )
    kinds = [graph.types[t] for t in inputs]
    return Network(tuple(layers), tuple(t.nbytes for t in kinds), tuple(t.shape for t in kinds))


def _through_view(axes: Axes, shape: tuple[int, ...], written: tuple[int, ...]) -> Axes:
    """How a tensor is read through another one that has its memory: outermost and innermost axes of equal extents are
    the same, what is reshaped, joined or cut between them is not followed."""
    outer = _common(shape, written)
    inner = _common(shape[outer:][::-1], written[outer:][::-1])
    middle = len(written) - outer - inner
    return axes[:outer] + (None,) * middle + axes[len(axes) - inner :]


def _common(shape: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(shape, other, strict=False)))
