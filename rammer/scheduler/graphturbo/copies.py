"""Results that stay in scratch for those who read them soon, and a copy of each for all others.

What is read by another vEU, or so late that its room is wanted before, can lie in scratch only if it is copied to where
all vEUs see it: the paper's copies between scopes (§3.5), and its spills (§4.3). A copy is an operator of the graph,
with rTasks as all others have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId
from rammer.scheduler.graphturbo.chains import own_results
from rammer.scheduler.graphturbo.split import Group


class WithCopies(NamedTuple):
    """A graph with copies. `numbers`: what became of each operator; `copies`: of copied tensors the operator."""

    graph: Graph
    numbers: tuple[int, ...]
    copies: Mapping[TensorId, int]

    @property
    def written(self) -> list[TensorId]:
        """What the copies write."""
        return [self.graph.operators[n].outputs[0] for n in self.copies.values()]


def worth_copying(graph: Graph, kernels: Mapping[int, RKernel], near: Collection[TensorId]) -> list[TensorId]:
    """Results that lie where all vEUs see them, and that several operators read."""
    whole = {view.base for view in graph.views.values()} | graph.views.keys()
    return [
        owner
        for owner, (_, *readers) in own_results(graph, kernels)
        if len(readers) > 1 and owner not in whole and owner not in near and owner in graph.producers
    ]


def with_copies(graph: Graph, copied: Collection[TensorId]) -> WithCopies:
    """The graph in which only the first reader of these results reads them, and all later ones a copy."""
    operators: list[ROperator] = []
    numbers, copies, types = [], dict[TensorId, int](), dict(graph.types)
    of = {t: f"copy of {t}" for t in copied}
    for n, op in enumerate(graph.operators):
        late = {t: of[t] for t in op.inputs if t in of and graph.consumers[t][0] != n}
        numbers.append(len(operators))
        operators.append(replace(op, inputs=tuple(late.get(t, t) for t in op.inputs)))
        for tensor in op.outputs:
            if tensor in of:
                kind = types[of[tensor]] = types[tensor]
                copies[tensor] = len(operators)
                operators.append(ROperator(of[tensor], graph.interner.copy(kind, kind), (tensor,), (of[tensor],)))
    return WithCopies(replace(graph, operators=tuple(operators), types=types), tuple(numbers), copies)


def groups_with_copies(groups: Sequence[Group], graph: Graph, found: WithCopies) -> list[Group]:
    """The groups of a graph, with the copies of what is computed in them."""
    made = {graph.producers[t]: copy for t, copy in found.copies.items()}
    return [
        replace(
            group,
            layers=tuple(
                number for n in group.layers for number in (found.numbers[n], made.get(n)) if number is not None
            ),
        )
        for group in groups
    ]
