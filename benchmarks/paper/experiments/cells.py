"""Random cells as in NAS-Bench-101 (Ying et al. 2019): at most 7 vertices, input and output among them, and 9 edges.

The paper (§5.2.5) prints "up to 9 operators and 7 edges"; NAS-Bench-101 bounds a cell by 7 vertices and 9 edges, and
that is how it is read here. Vertices are 3x3 and 1x1 convolutions and 3x3 max-pooling, drawn as NAS-Bench-101's own
examples do: every edge and every vertex by chance, until what is left on ways from input to output is a cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.ir.operator import Operations
from rammer.ir.tensor import TensorId

VERTICES, EDGES = 7, 9
KINDS = ("conv3x3", "conv1x1", "maxpool3x3")
CHANNELS, SIZE = 128, 32  # of the first stack, on CIFAR-10


@dataclass(frozen=True, slots=True)
class Cell:
    """Edges from lower to higher vertices; 0 is the input, the last one the output; `kinds` of those between."""

    edges: tuple[tuple[int, int], ...]
    kinds: tuple[str, ...]

    @property
    def output(self) -> int:
        return len(self.kinds) + 1

    def sources(self, vertex: int) -> list[int]:
        """Vertices with an edge into `vertex`, ascending."""
        return [a for a, b in self.edges if b == vertex]

    def channels(self, channels: int = CHANNELS) -> list[int]:
        """Of every vertex: the output's are divided among those that it reads, others have as many as their readers."""
        last = [v for v in self.sources(self.output) if v]
        found = [channels] * (self.output + 1)
        for number, vertex in enumerate(last):
            found[vertex] = channels // len(last) + (number < channels % len(last))
        for vertex in reversed(range(1, self.output)):
            if vertex not in last:
                found[vertex] = max(found[b] for a, b in self.edges if a == vertex)
        return found


def draw_cells(count: int, seed: int = 0) -> list[Cell]:
    """Different cells, always the same ones for a seed, and the first ones of a longer list."""
    found: dict[Cell, None] = {}
    for cell in _draw(np.random.default_rng(seed)):
        found.setdefault(cell)
        if len(found) == count:
            break
    return list(found)


def _draw(random: np.random.Generator) -> Iterator[Cell]:
    """Cells without end; the same one may come again."""
    while True:
        drawn = np.triu(random.integers(0, 2, (VERTICES, VERTICES)), 1)
        kinds = [KINDS[n] for n in random.integers(0, len(KINDS), VERTICES - 2)]
        edges = {(int(a), int(b)) for a, b in np.argwhere(drawn)}
        ahead, back = {0}, {VERTICES - 1}
        for a, b in sorted(edges):
            ahead |= {b} if a in ahead else set()
        for a, b in sorted(edges, reverse=True):
            back |= {a} if b in back else set()
        kept = sorted(ahead & back)
        edges = {(a, b) for a, b in edges if a in kept and b in kept}
        if len(kept) > 2 and len(edges) <= EDGES:  # with nothing between input and output there is nothing to schedule
            place = {vertex: number for number, vertex in enumerate(kept)}
            yield Cell(tuple(sorted((place[a], place[b]) for a, b in edges)), tuple(kinds[v - 1] for v in kept[1:-1]))


def cell_graph(cell: Cell, operations: Operations | None = None, size: int = SIZE, channels: int = CHANNELS) -> Graph:
    """The cell as NAS-Bench-101 builds it, batch normalisation folded into its convolutions.

    Edges from the input go through a 1x1 convolution each, those into a vertex are added, those into the output are
    concatenated. Weights have one value each, so that thousands of cells take no memory. Graphs with the same
    `operations` share what is known of them.
    """
    builder = GraphBuilder("cell", operations=operations)
    values = iter(range(1, 1000))
    found = cell.channels(channels)

    def conv(tensor: TensorId, depth: int, outs: int, kernel: int, name: str) -> TensorId:
        weight = np.broadcast_to(np.float32(next(values) * 1e-3), (outs, depth, kernel, kernel))
        bias = np.broadcast_to(np.float32(0), (outs,))
        pads = (kernel // 2,) * 4
        operands = (tensor, builder.constant(weight), builder.constant(bias))
        return str(builder.add("relu", builder.add("conv", *operands, pads=pads, name=name)))

    tensors = [builder.input("input", (1, channels, size, size))]
    for vertex, kind in enumerate(cell.kinds, 1):
        incoming = []
        for source in cell.sources(vertex):
            if not source:
                incoming.append(conv(tensors[0], channels, found[vertex], 1, f"projection {vertex}"))
            elif found[source] == found[vertex]:
                incoming.append(tensors[source])
            else:
                shape = (1, found[vertex], size, size)
                incoming.append(builder.add("slice", tensors[source], starts=(0,) * 4, steps=(1,) * 4, shape=shape))
        tensor = _sum(builder, incoming)
        name = f"{kind} {vertex}"
        if kind == "maxpool3x3":
            tensors.append(builder.add("max_pool", tensor, kernel=(3, 3), pads=(1,) * 4, name=name))
        else:
            tensors.append(conv(tensor, found[vertex], found[vertex], 3 if kind == "conv3x3" else 1, name))
    last = [tensors[v] for v in cell.sources(cell.output) if v]
    result = last[0] if len(last) == 1 else builder.add("concat", *last, axis=1)
    if 0 in cell.sources(cell.output):
        result = builder.add("add", result, conv(tensors[0], channels, channels, 1, "projection"))
    builder.output(result, "output")
    return builder.build()


def _sum(builder: GraphBuilder, tensors: list[TensorId]) -> TensorId:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = builder.add("add", total, tensor)
    return total
