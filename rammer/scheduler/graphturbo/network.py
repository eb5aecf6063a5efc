"""Reduce a graph to what the paper's algorithms need: layers, sizes, and how reads map axes to axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from rammer.ir.analysis.dependency import followed_axes
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.tensor import TensorId

Axes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """A layer's read of another layer's result, or of the network's input number `~source`.

    `axes`: for each axis of the source, the reader's axis that indexes it, or None.
    """

    source: int
    axes: Axes


@dataclass(frozen=True, slots=True)
class Layer:
    """An operator: the shape and bytes of its result, and its reads except weights.

    `parts`: the most parts that each axis can be split into, if not into single places. `is_result`: an output of the
    network. `takes_over`: the source whose memory the result may reuse if this is its last read.
    """

    shape: tuple[int, ...]
    nbytes: int
    reads: tuple[Read, ...]
    parts: tuple[int, ...] = ()
    is_result: bool = False
    takes_over: int | None = None


@dataclass(frozen=True)
class Network:
    """Layers in topological order, and bytes of the network's inputs."""

    layers: tuple[Layer, ...]
    inputs: tuple[int, ...]

    def nbytes(self, source: int) -> int:
        """Return the bytes of a layer's result, or of an input."""
        return self.layers[source].nbytes if source >= 0 else self.inputs[~source]

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """The layers that read each layer, ascending."""
        found: list[list[int]] = [[] for _ in self.layers]
        for n, layer in enumerate(self.layers):
            for source in dict.fromkeys(r.source for r in layer.reads if r.source >= 0):
                found[source].append(n)
        return tuple(map(tuple, found))


def step_of(kernel: RKernel, axis: int) -> int:
    """Return the largest extent of a root's axis that one rTask computes."""
    name, extent = kernel.operation.expr.root.axes[axis]
    return min((digit.step for digit in kernel.body.digits if digit.axis == name), default=extent)


def network_of(graph: Graph, candidates: Mapping[Operation, Sequence[RKernel]]) -> Network:
    """Return a graph's operators as layers with the same numbers, splittable where an rKernel splits rTasks."""
    results = {graph.storage(t).root for t in graph.outputs}
    inputs: dict[TensorId, int] = {}
    layers = []
    for op in graph.operators:
        reads: list[Read] = []
        for tensor, axes in zip(op.inputs, followed_axes(op.operation), strict=True):
            if (root := graph.storage(tensor).root) in graph.constants:
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
            )
        )
    return Network(tuple(layers), tuple(graph.types[t].nbytes for t in inputs))


def _through_view(axes: Axes, shape: tuple[int, ...], written: tuple[int, ...]) -> Axes:
    """Return how a tensor is read through another one that has its memory.

    Outermost and innermost axes of equal extents correspond. Axes that are reshaped, joined or split between them give
    None.
    """
    outer = _common(shape, written)
    inner = _common(shape[outer:][::-1], written[outer:][::-1])
    return axes[:outer] + (None,) * (len(written) - outer - inner) + axes[len(axes) - inner :]


def _common(shape: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(shape, other, strict=False)))
