"""Cut a graph into parts that are models of their own: what comes before and after a node, and the node's bodies.

Known as: graph partitioning. Nodes that do not depend on inputs belong to no part. Each part gets copies of the weights
that it reads, and of the nodes that compute constants from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from onnx import AttributeProto, GraphProto, NodeProto, SparseTensorProto, TensorProto, TypeProto

from rammer.errors import ModelError
from rammer.ir.graph import topological_order

Weights: TypeAlias = dict[str, TensorProto | SparseTensorProto]

_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


@dataclass(frozen=True)
class SubgraphPart:
    """Nodes in order, the values that they read from outside, and those that others read from them."""

    nodes: tuple[NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: Weights = field(default_factory=dict)  # a body's own initializers
    num_formal: int = 0  # number of inputs that a body's node gives; the others are captured outer values


def label_of(node: NodeProto) -> str:
    """Return the node's name, or that of its first output if it has none."""
    return node.name or next((f"→{name}" for name in node.output if name), node.op_type)


def initializers_of(graph: GraphProto) -> Weights:
    """Return a graph's own constants by name; of several of one name the last."""
    return {t.name: t for t in graph.initializer} | {t.values.name: t for t in graph.sparse_initializer}


def reads(node: NodeProto, depth: int) -> Iterator[str]:
    """Yield the names that a node reads, including outer values that its subgraphs use."""
    yield from (name for name in node.input if name)
    for graph in subgraphs(node):
        if depth <= 0:
            raise ModelError("subgraphs are nested too deeply", node=label_of(node), op=node.op_type)
        yield from captures(graph, depth)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type in _GRAPHS:
            yield from (attribute.g, *attribute.graphs)


def captures(graph: GraphProto, depth: int) -> Iterator[str]:
    """Yield the outer names that a subgraph uses."""
    inner = {v.name for v in graph.input} | initializers_of(graph).keys()
    inner |= {name for n in graph.node for name in n.output}
    for n in graph.node:
        yield from (name for name in reads(n, depth - 1) if name not in inner)
    yield from (v.name for v in graph.output if v.name not in inner)


def in_order(nodes: Sequence[NodeProto], depth: int) -> Sequence[NodeProto]:
    """Sort nodes so that each comes after those whose results it reads. Raises ModelError for a cycle."""
    makers = {name: n for n, node in enumerate(nodes) for name in node.output if name}
    edges = [(makers[name], n) for n, node in enumerate(nodes) for name in reads(node, depth) if name in makers]
    return [nodes[n] for n in topological_order(len(nodes), edges, lambda n: label_of(nodes[n]))]


class Cutter:
    """Functions that cut one graph."""

    def __init__(self, graph: GraphProto, depth: int) -> None:
        self._graph, self._depth = graph, depth
        self._nodes = in_order(graph.node, depth)
        self._weights = initializers_of(graph)
        self._free = self._independent()

    def _independent(self) -> dict[str, NodeProto]:
        """Return the nodes that depend on no input, by output. Loops and branches are left out: they are always cut."""
        known: dict[str, NodeProto] = {}
        for node in self._nodes:
            operands = filter(None, node.input)
            if not any(subgraphs(node)) and all(name in known or name in self._weights for name in operands):
                known |= {name: node for name in node.output if name}
        return known

    def whole(self) -> SubgraphPart:
        """Return all of the graph as a part."""
        nodes = [n for n in self._nodes if not any(name in self._free for name in n.output)]
        return self._part(nodes, [v.name for v in self._graph.output])

    def split(
        self, part: SubgraphPart, at: str, *, operands: bool = True
    ) -> tuple[SubgraphPart, NodeProto, SubgraphPart]:
        """Return the part that does not depend on the node that computes `at`, this node, and the part that does.

        The first part outputs the node's operands; with `operands`, constant ones too.
        """
        (node,) = (n for n in part.nodes if at in n.output)
        late = set(filter(None, node.output))
        after: set[int] = set()
        for n, other in enumerate(part.nodes):
            if other is not node and not late.isdisjoint(reads(other, self._depth)):
                after.add(n)
                late.update(filter(None, other.output))
        later = [other for n, other in enumerate(part.nodes) if n in after]
        sooner = [other for n, other in enumerate(part.nodes) if n not in after and other is not node]
        asked = {*part.outputs, *(name for other in (node, *later) for name in reads(other, self._depth))}
        known = (*node.input, *part.outputs) if operands else part.outputs
        fixed = [n for n in known if n in self._free or n in self._weights]
        given = [name for other in sooner for name in other.output if name in asked]
        first = self._part(sooner, tuple(dict.fromkeys((*given, *fixed))))
        last = self._part(later, [name for n in later for name in n.output if name in part.outputs])
        return first, node, last

    def feeds(self, part: SubgraphPart, node: NodeProto) -> bool:
        """Check whether a part computes something that a node reads."""
        return not {name for n in part.nodes for name in n.output}.isdisjoint(reads(node, self._depth))

    def without(self, whole: SubgraphPart, *others: SubgraphPart) -> SubgraphPart:
        """Return the nodes of a part that are in none of the others. It outputs what these read from it."""
        gone = {name for part in others for n in part.nodes for name in n.output}
        nodes = [n for n in whole.nodes if gone.isdisjoint(n.output)]
        asked = {*whole.outputs, *(name for part in others for name in part.inputs)}
        return self._part(nodes, [name for n in nodes for name in n.output if name and name in asked])

    def body(self, graph: GraphProto) -> SubgraphPart:
        """Return a subgraph of a node as a part. Outputs get unique names."""
        formal = [v.name for v in graph.input]
        inner = {*formal, *initializers_of(graph), *(name for n in graph.node for name in n.output)}
        made = {name for n in graph.node for name in n.output}
        outputs: list[str] = []
        copies = []
        for value in graph.output:
            name = value.name
            if name not in made or name in outputs:
                name = _fresh(name, {*inner, *outputs})
                copies.append(NodeProto(op_type="Identity", input=[value.name], output=[name]))
            outputs.append(name)
        outer = [n for n in dict.fromkeys(captures(graph, self._depth)) if n not in self._weights.keys() | self._free]
        nodes = (*in_order(graph.node, self._depth), *copies)
        return SubgraphPart(nodes, (*formal, *outer), tuple(outputs), initializers_of(graph), len(formal))

    def graph(self, part: SubgraphPart, types: Mapping[str, TypeProto]) -> GraphProto:
        """Return a part as a graph, with everything that it reads; `types` are those of its inputs."""
        needed, wanted = self._needed(part)
        made = GraphProto(name=self._graph.name or "graph")
        for tensor in (*(t for name, t in self._weights.items() if name in wanted), *part.initializers.values()):
            (made.initializer if isinstance(tensor, TensorProto) else made.sparse_initializer).append(tensor)
        made.node.extend((*needed, *part.nodes))
        for name in part.inputs:
            made.input.add(name=name).type.CopyFrom(types[name])
        for name in part.outputs:
            made.output.add(name=name)
        return made

    def _part(self, nodes: Sequence[NodeProto], outputs: Sequence[str]) -> SubgraphPart:
        made = {name for n in nodes for name in n.output} | self._weights.keys() | self._free.keys()
        read = dict.fromkeys((*(name for n in nodes for name in reads(n, self._depth)), *outputs))
        return SubgraphPart(tuple(nodes), tuple(name for name in read if name not in made), tuple(outputs))

    def _needed(self, part: SubgraphPart) -> tuple[Iterable[NodeProto], Collection[str]]:
        """Return the input-independent nodes, in order, and the names of weights that a part reads."""
        own = {*part.inputs, *part.initializers, *(name for n in part.nodes for name in n.output)}
        wanted = {name for n in part.nodes for name in reads(n, self._depth)} | set(part.outputs)
        wanted -= own
        found: dict[int, NodeProto] = {}
        todo = [self._free[name] for name in wanted if name in self._free]
        while todo:
            node = todo.pop()
            if id(node) not in found:
                found[id(node)] = node
                wanted.update(reads(node, self._depth))
                todo += [self._free[name] for name in reads(node, self._depth) if name in self._free]
        return found.values(), wanted


def _fresh(name: str, taken: Collection[str]) -> str:
    number = 1
    while f"{name}#{number}" in taken:
        number += 1
    return f"{name}#{number}"
