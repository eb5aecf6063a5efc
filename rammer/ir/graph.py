"""Hold the data-flow graph of rOperators."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, takewhile
from typing import NamedTuple

import numpy as np

from rammer.errors import ModelError, counted
from rammer.ir.operator import Attrs, Operations, ROperator
from rammer.ir.tensor import Array, Symbols, TensorId, TensorType

RANDOM_RUN = "random_run"  # int64 input of a graph that draws random numbers: another number, another draw


class View(NamedTuple):
    """A tensor inside another one: its physical elements are those of `base` from `offset` on."""

    base: TensorId
    offset: int


class Update(NamedTuple):
    """Operands and attributes of an operator `update` that makes a tensor in the memory of the first operand."""

    inputs: tuple[TensorId, ...]
    attrs: Attrs


class Storage(NamedTuple):
    """Place of a tensor: the tensor that owns the memory, and the first element in it."""

    root: TensorId
    offset: int


def storage(views: Mapping[TensorId, View], tensor: TensorId) -> Storage:
    """Return the owner of a tensor's memory, through any chain of views."""
    offset = 0
    while (view := views.get(tensor)) is not None:
        tensor, offset = view.base, offset + view.offset
    return Storage(tensor, offset)


class ProducerOutput(NamedTuple):
    """An output of a producer that shares memory with an input of another operator.

    Element e of the input is element e + shift of the output.
    """

    position: int  # of the input
    producer: int
    output: int
    shift: int


@dataclass(frozen=True)
class Graph:
    """Operators in topological order over named tensors. Immutable: passes make new graphs.

    `types` covers every tensor. `constants`: the values known at compile time. `views`: tensors that share the memory
    of another one (empty until passes place them). `updates`: tensors that an update could also make. `symbols`: the
    model's names of dimensions of inputs and outputs, where it has any.
    """

    name: str
    inputs: tuple[TensorId, ...]
    outputs: tuple[TensorId, ...]
    operators: tuple[ROperator, ...]
    types: Mapping[TensorId, TensorType]
    constants: Mapping[TensorId, Array]
    interner: Operations
    views: Mapping[TensorId, View] = field(default_factory=dict)
    updates: Mapping[TensorId, Update] = field(default_factory=dict)
    symbols: Mapping[TensorId, Symbols] = field(default_factory=dict)

    def __repr__(self) -> str:
        def ports(tensors: tuple[TensorId, ...]) -> str:
            return ", ".join(f"{t}: {self.types[t].text(self.symbols.get(t, ()))}" for t in tensors)

        return (
            f"<Graph {self.name!r}: ({ports(self.inputs)}) -> ({ports(self.outputs)}), "
            f"{counted(len(self.operators), 'operator')}>"
        )

    def _repr_html_(self) -> str:
        """Show ports, and how many operators of each kind there are, in notebooks."""
        from rammer.ir.text import html_table  # which prints plans, of graphs

        kinds = Counter(op.kind for op in self.operators)
        ports = [
            (what, tensor, self.types[tensor].text(self.symbols.get(tensor, ())))
            for what, tensors in (("input", self.inputs), ("output", self.outputs))
            for tensor in tensors
        ]
        counts = html_table(((kind, count) for kind, count in kinds.most_common()), ("operator", "count"))
        return html_table(ports, ("", self.name, "type")) + counts

    def rewritten(
        self,
        operators: Iterable[ROperator],
        *,
        types: Mapping[TensorId, TensorType],
        constants: Mapping[TensorId, Array],
        views: Mapping[TensorId, View],
    ) -> Graph:
        """Return the graph with other operators; all else that it holds stays: ports, symbols, updates.

        Drops tensors that no operator, port or view refers to, and updates of such tensors.
        """
        operators = tuple(operators)
        used = {t for op in operators for t in (*op.inputs, *op.outputs)} | {*self.inputs, *self.outputs}
        for tensor in list(used):
            while (view := views.get(tensor)) is not None:
                tensor = view.base
                used.add(tensor)
        return replace(
            self,
            operators=operators,
            types={t: kind for t, kind in types.items() if t in used},
            constants={t: value for t, value in constants.items() if t in used},
            views={t: view for t, view in views.items() if t in used},
            updates={t: update for t, update in self.updates.items() if used.issuperset((t, *update.inputs))},
        )

    @cached_property
    def producers(self) -> dict[TensorId, int]:
        """Map each tensor to the number of the operator that computes it."""
        return {tensor: n for n, op in enumerate(self.operators) for tensor in op.outputs}

    @cached_property
    def consumers(self) -> dict[TensorId, list[int]]:
        """Map each tensor to the numbers of the operators that read it, each once, ascending."""
        readers: dict[TensorId, list[int]] = {}
        for n, op in enumerate(self.operators):
            for tensor in dict.fromkeys(op.inputs):
                readers.setdefault(tensor, []).append(n)
        return readers

    def storage(self, tensor: TensorId) -> Storage:
        """Return the owner of a tensor's memory, through any chain of views."""
        return storage(self.views, tensor)

    def extent(self, tensor: TensorId) -> tuple[TensorId, int, int]:
        """Return the owner of a tensor's memory, and the range [low, high) of its elements in which the tensor lies."""
        root, low = self.storage(tensor)
        return root, low, low + self.types[tensor].span

    @cached_property
    def _written(self) -> dict[TensorId, tuple[list[tuple[int, int, int, int]], list[int]]]:
        """Map each owner to what is written there, and to the running maximum of the ends.

        Writes are (first element, end, operator, output), ascending.
        """
        found: dict[TensorId, list[tuple[int, int, int, int]]] = {}
        for n, op in enumerate(self.operators):
            for output, tensor in enumerate(op.outputs):
                root, low, high = self.extent(tensor)
                found.setdefault(root, []).append((low, high, n, output))
        for pieces in found.values():
            pieces.sort()
        return {root: (pieces, [*accumulate((p[1] for p in pieces), max)]) for root, pieces in found.items()}

    def writers(self, tensor: TensorId) -> list[tuple[int, int, int]]:
        """Return (operator, output, its first element in the owner) of all that may write into a tensor, ascending."""
        root, low, high = self.extent(tensor)
        pieces, ends = self._written.get(root, ([], []))
        here = takewhile(lambda piece: piece[0] < high, pieces[bisect_right(ends, low) :])
        between = ((n, output, first) for first, end, n, output in here if end > low)
        return sorted(piece for piece in between if self._meet(tensor, low, *piece))

    def _meet(self, tensor: TensorId, low: int, producer: int, output: int, first: int) -> bool:
        """Return whether a tensor and an output, at given first elements of one owner, share some of them.

        One of them may have a pitch, and lie between the elements of the other.
        """
        kinds = self.types[tensor], self.operators[producer].operation.outputs[output]
        if not any(kind.layout and kind.layout.pitched for kind in kinds):
            return True
        own, others = (kind.runs + at for kind, at in zip(kinds, (low, first), strict=True))
        before = np.searchsorted(others[:, 1], own[:, 0], "right")  # of the others' runs, how many end before each
        return bool(np.any(before < np.searchsorted(others[:, 0], own[:, 1], "left")))

    @cached_property
    def sources(self) -> tuple[tuple[ProducerOutput, ...], ...]:
        """Sources of every operator: outputs of others that its inputs read."""
        return tuple(
            tuple(
                ProducerOutput(position, producer, output, self.storage(tensor).offset - first)
                for position, tensor in enumerate(op.inputs)
                for producer, output, first in self.writers(tensor)
                if producer != n
            )
            for n, op in enumerate(self.operators)
        )

    @cached_property
    def before(self) -> tuple[frozenset[int], ...]:
        """Predecessors of every operator: the writers of memory that it reads."""
        return tuple(frozenset(source.producer for source in found) for found in self.sources)

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """Successors of every operator: the readers of memory that it writes, ascending."""
        readers: list[list[int]] = [[] for _ in self.operators]
        for n, others in enumerate(self.before):
            for m in others:
                readers[m].append(n)
        return tuple(map(tuple, readers))

    def wavefronts(self) -> tuple[tuple[int, ...], ...]:
        """Return operators by generation: all inputs of a wave come from earlier waves. Paper: §3.3, Alg. 1."""
        return self._waves

    @cached_property
    def _waves(self) -> tuple[tuple[int, ...], ...]:
        return self.wavefronts_of(range(len(self.operators)))

    def wavefronts_of(self, operators: range) -> tuple[tuple[int, ...], ...]:
        """Return `wavefronts` of these operators, as if there were no others."""
        missing = {n: sum(m in operators for m in self.before[n]) for n in operators}
        waves, ready = [], [n for n, count in missing.items() if not count]
        while ready:
            waves.append(tuple(ready))
            ready = []
            for n in chain.from_iterable(self.after[m] for m in waves[-1]):
                if n in missing:
                    missing[n] -= 1
                    if not missing[n]:
                        ready.append(n)
            ready.sort()
        assert not any(missing.values()), "operators wait for each other"
        return tuple(waves)


def sort_operators(operators: list[ROperator], known: set[TensorId]) -> tuple[ROperator, ...]:
    """Sort operators topologically; a valid order stays. Raises ModelError for unknown inputs, and names a cycle."""
    producer = {tensor: n for n, op in enumerate(operators) for tensor in op.outputs}
    edges: list[tuple[int, int]] = []
    for n, op in enumerate(operators):
        for tensor in op.inputs:
            if tensor in producer:
                edges.append((producer[tensor], n))
            elif tensor not in known:
                raise ModelError(
                    f"input {tensor!r} is produced by no node",
                    node=op.name,
                    op=op.kind,
                    hint="every input must be a graph input, an initializer, or another node's output",
                )
    return tuple(operators[n] for n in topological_order(len(operators), edges, lambda n: operators[n].name))


def topological_order(count: int, edges: Sequence[tuple[int, int]], name: Callable[[int], str]) -> Iterable[int]:
    """Return 0 … count - 1 so that the first number of each edge precedes the second; ascending if that is an order.

    Raises ModelError for a cycle, with the names of its members.
    """
    if all(before < after for before, after in edges):
        return range(count)
    import networkx as nx  # imported here: it takes time, and most graphs do not need it

    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(count))
    try:
        return list(nx.lexicographical_topological_sort(graph))
    except nx.NetworkXUnfeasible:
        cycle = [name(edge[0]) for edge in nx.find_cycle(graph)]
        what = f"the graph has a cycle: {' -> '.join([*cycle, cycle[0]])}"
        raise ModelError(what, node=cycle[0], hint="remove the cycle") from None
