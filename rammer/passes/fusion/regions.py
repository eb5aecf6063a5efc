"""Fuse operators: reductions with their epilogues, element-wise regions, and recurrent cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from rammer.ir.expr import loads
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import DType, Shape, TensorId
from rammer.passes.clusters import Clusters
from rammer.passes.editor import Editor
from rammer.passes.fusion.compose import Member, Ref, compose, fused_kind
from rammer.passes.structure import GATE, is_elementwise, is_pointwise, weight

STEPS = 10  # of a reduction, or another operator that is not point-wise, in the depth of its results
SMALL = 1 << 14  # elements up to which a fused operator may have several outputs
MAX_OUTPUTS = 4
MAX_MEMBERS = 64
MAX_WEIGHT = 128  # scalar nodes of one output after all substitutions
CHEAP = frozenset({"relu", "clip", "leaky_relu", "neg", "abs"})  # may be recomputed at every load

_BYTES = frozenset({DType.U8, DType.I8})

# Point-wise operators that nothing is fused into: the placement makes most of them disappear.
_MOVES = frozenset({"concat", "slice", "reshape", "expand", "pad", "copy", "convert", GATE, "update", "scatter"})


@dataclass
class _Group:
    shape: Shape
    cores: int
    depth: int
    gated: TensorId | None = None  # the tensor of all gates, if the group reads it gate by gate
    weights: dict[TensorId, int] = field(default_factory=dict)
    whole: frozenset[int] = frozenset()  # operators whose results some member reads at other positions than its own


def fuse(graph: Graph, enough: int = 1) -> Graph:
    """Fuse where no expensive operator is computed twice and no cycle arises. Equal fusions share one operation.

    A reduction computes its operand only if it has at least `enough` results: with fewer, not all vEUs could sum.
    """
    return _Fuser(graph, enough).run()


class _Fuser:
    def __init__(self, graph: Graph, enough: int) -> None:
        self.graph, self.enough = graph, enough
        self.operators = graph.operators
        self.clusters = Clusters(graph)
        self.outputs = frozenset(graph.outputs)
        self.groups = {n: self._single(n, op) for n, op in enumerate(self.operators)}
        for n in range(len(self.operators)):  # they are sorted, so the depth of every producer is known
            steps = STEPS if self.groups[n].cores else 1
            sources = (self.groups[s].depth for s in self.clusters.sources[n])
            self.groups[n].depth = steps + max(sources, default=0)

    def _single(self, n: int, op: ROperator) -> _Group:
        core = not is_pointwise(op.operation)
        group = _Group(op.operation.outputs[-1].shape, int(core), 0)
        inlined = 1 if core else weight(op.operation)
        group.weights = dict.fromkeys(op.outputs, inlined)
        if not is_elementwise(op.operation) and op.kind != GATE:
            group.whole = frozenset(self.clusters.sources[n])
        return group

    def run(self) -> Graph:
        for n, op in enumerate(self.operators):
            if op.kind == GATE:
                self._join_gate(n, op)
            elif is_elementwise(op.operation):
                self._join(n, op)
            elif op.kind == "reduce":
                self._join_operand(n, op)
                self._join_sibling(n, op)
        editor = Editor(self.graph)
        for members in list(self.clusters.members.values()):
            for part in self._split(sorted(members)):
                self._emit(editor, part)
        return editor.finish()

    # Growing groups

    def _join(self, n: int, op: ROperator) -> None:
        """Merge an element-wise operator with the groups that compute its operands at its own positions."""
        shape = op.operation.outputs[0].shape
        candidates = {
            self.clusters.group_of[p]
            for t in op.inputs
            if (p := self.graph.producers.get(t)) is not None and self._feeds(t, p, shape)
        }
        if op.kind == "cast" and op.operation.inputs[0].dtype in _BYTES:
            # other readers read the bytes, too: storing int32 besides them takes four times the space
            candidates = {g for g in candidates if self._private(g, n)}
        small = op.operation.outputs[0].size <= SMALL
        strict = {g for g in candidates if small or self._private(g, n)}
        if small:  # the operand that comes last decides when this can run
            ranked = sorted(candidates, key=lambda g: (-self.groups[g].depth, g))
        else:
            groups = self.groups
            ranked = sorted(candidates, key=lambda g: (g not in strict, -groups[g].cores, -groups[g].depth, g))
        here = n
        for group in ranked:
            joined = here != n
            if joined and not (small or group in strict):
                continue
            merged = self._merge(group, here, op)
            here = here if merged is None else merged

    def _join_operand(self, n: int, op: ROperator) -> None:
        """Let a reduction compute its operand element by element, if it is the only reader. Each is then read once."""
        expr, producer = op.operation.expr, self.graph.producers.get(op.inputs[0])
        readers = sum(any(ld.tensor == "x" for ld, _ in loads(s.body)) for s in expr.stages)
        if producer is None or readers != 1 or op.operation.outputs[0].size < self.enough:
            return
        group = self.clusters.group_of[producer]
        members = self.clusters.members[group]
        made = [self.operators[m] for m in members]
        plain = all(by.kind == "gather" or is_elementwise(by.operation) for by in made) and not self.groups[group].gated
        feeds = self._feeds(op.inputs[0], producer, op.operation.inputs[0].shape)
        if plain and feeds and self._private(group, n):
            self._contract(group, n)

    def _join_sibling(self, n: int, op: ROperator) -> None:
        """Merge a reduction with another one of the same operand over the same axes, which is then read once."""
        axes = op.operation.keywords | {"fn": ""}
        for other in self.graph.consumers[op.inputs[0]] if op.operation.outputs[0].size >= self.enough else ():
            by, groups = self.operators[other], [self.clusters.group_of[m] for m in (other, n)]
            if other < n and by.kind == "reduce" and by.operation.keywords | {"fn": ""} == axes and len({*groups}) > 1:
                self._contract(*groups)

    def _contract(self, group: int, here: int) -> int | None:
        """Contract two groups; return the merged one, or None if that made a cycle."""
        merged, a, b = self.clusters.contract(group, here), self.groups[group], self.groups[here]
        if merged is not None:
            weights, whole = a.weights | b.weights, (a.whole | b.whole) - set(self.clusters.members[merged])
            depth, gated = max(a.depth, b.depth), a.gated or b.gated
            self.groups[merged] = _Group(b.shape, a.cores + b.cores, depth, gated, weights, whole)
        return merged

    def _feeds(self, tensor: TensorId, producer: int, shape: Shape) -> bool:
        group = self.groups[self.clusters.group_of[producer]]
        lone = len(self.clusters.members[self.clusters.group_of[producer]]) == 1
        if lone and self.operators[producer].kind in _MOVES:
            return False
        return group.shape == shape == self.graph.types[tensor].shape

    def _private(self, group: int, reader: int) -> bool:
        """Check whether `reader` is the only one that needs anything from the group."""
        return not self._results(self.clusters.members[group], reader)

    def _merge(self, group: int, here: int, op: ROperator) -> int | None:
        """Contract `group` with the group `here` of operator `op`; return the merged group, or None beyond limits."""
        a, b = self.groups[group], self.groups[here]
        count = len(self.clusters.members[group]) + len(self.clusters.members[here])
        if (a.cores and b.cores) or count > MAX_MEMBERS:
            return None
        if not a.whole.isdisjoint(self.clusters.members[here]) or not b.whole.isdisjoint(self.clusters.members[group]):
            return None  # every rTask would compute all elements that it reads
        weights = a.weights | b.weights
        inlined = weight(op.operation) + sum(weights.get(t, 1) for t in op.inputs)
        if inlined > MAX_WEIGHT:
            return None
        merged = self._contract(group, here)
        if merged is not None:
            self.groups[merged].weights[op.outputs[0]] = inlined
        return merged

    def _join_gate(self, n: int, op: ROperator) -> None:
        """Let a group whose only result is read gate by gate go on with the positions of one gate."""
        tensor = op.inputs[0]
        producer = self.graph.producers.get(tensor)
        if producer is None:
            return
        name = self.clusters.group_of[producer]
        group = self.groups[name]
        if group.gated is None and group.cores:
            results = [self.operators[m].outputs[slot] for m, slot in self._results(self.clusters.members[name])]
            gates = all(self.operators[r].kind == GATE for r in self.graph.consumers[tensor])
            if results != [tensor] or not gates:
                return
        elif group.gated != tensor:
            return
        merged = self.clusters.contract(name, n)
        if merged is not None:
            weights = group.weights | {op.outputs[0]: 1 + group.weights.get(tensor, 1)}
            shape = op.operation.outputs[0].shape
            self.groups[merged] = _Group(shape, group.cores, group.depth, tensor, weights, group.whole)

    # Making operators

    def _results(self, members: Iterable[int], *readers: int) -> list[tuple[int, int]]:
        """Return (operator, output) of all results of a set of operators that others than `readers` read, in order."""
        members = sorted(members)
        inside = {*members, *readers}
        return [
            (n, slot)
            for n in members
            for slot, t in enumerate(self.operators[n].outputs)
            if t in self.outputs or any(r not in inside for r in self.graph.consumers.get(t, ()))
        ]

    def _split(self, members: list[int]) -> list[list[int]]:
        """Cut a group into the longest prefixes whose results may be the outputs of one operator."""
        parts = []
        while members:
            size = next(s for s in range(len(members), 0, -1) if s == 1 or self._acceptable(members[:s]))
            parts.append(members[:size])
            members = members[size:]
        return parts

    def _acceptable(self, members: list[int]) -> bool:
        kinds = [self.operators[n].operation.outputs[slot] for n, slot in self._results(members)]
        if len(kinds) == 1:
            return True
        return len(kinds) <= MAX_OUTPUTS and len({k.shape for k in kinds}) == 1 and kinds[0].size <= SMALL

    def _emit(self, editor: Editor, members: list[int]) -> None:
        """Replace the members by one operator."""
        inside, results = set(members), self._results(members)
        number: dict[int, int] = {}
        parts: list[Member] = []
        slots: dict[TensorId, int] = {}

        def visit(n: int) -> int:
            if n not in number:
                refs: list[Ref] = []
                for t in self.operators[n].inputs:
                    p = self.graph.producers.get(t)
                    if p is not None and (p in inside or self._absorbs(n, p, inside)):
                        refs.append((visit(p), self.operators[p].outputs.index(t)))
                    else:
                        refs.append((-1, slots.setdefault(t, len(slots))))
                number[n] = len(parts)
                parts.append(Member(self.operators[n].operation, tuple(refs)))
            return number[n]

        root, root_slot = results[-1]
        visit(root)  # from the root, so that equal groups get equal numbers whatever order their operators have
        for n, _ in results:
            visit(n)
        if len(parts) == 1:
            return
        others = sorted((number[n], slot, n) for n, slot in results[:-1])
        outputs = (*((m, slot) for m, slot, _ in others), (number[root], root_slot))
        wired = tuple(parts)
        operation = editor.interner.wrap(fused_kind(wired), (wired, outputs), lambda: compose(wired, outputs))
        core = next((n for n in members if not is_pointwise(self.operators[n].operation)), root)
        names = tuple(self.operators[n].outputs[slot] for _, slot, n in others)
        for n in members:
            editor.remove(n)
        inputs = sorted(slots, key=slots.__getitem__)
        editor.add(self.operators[core].name, operation, inputs, (*names, self.operators[root].outputs[root_slot]))

    def _absorbs(self, reader: int, n: int, inside: set[int]) -> bool:
        """Check whether `reader` recomputes operator `n` of another group for itself, at every load."""
        op, by = self.operators[n], self.operators[reader]
        if len(self.clusters.members[self.clusters.group_of[n]]) > 1:
            return False  # its operands may not be results of that group
        if is_elementwise(by.operation):
            if op.kind in (GATE, "expand") or _is_part_of_rows(op):
                return True
            whole = all(is_pointwise(self.operators[m].operation) for m in inside)
            return op.kind == "transpose" and whole and set(self.graph.consumers[op.outputs[0]]) <= inside
        if op.kind not in CHEAP or by.kind != "conv" or op.outputs[0] != by.inputs[0]:
            return False
        channels = by.operation.inputs[0].shape[1]
        return channels > 1 and by.operation.attr("group") == channels


def _is_part_of_rows(op: ROperator) -> bool:
    """Check whether it takes neighbours of the last dimension: vectors read them equally well in place."""
    if op.kind != "slice" or set(op.operation.attr("steps")) != {1}:
        return False
    shape, whole = op.operation.outputs[0].shape, op.operation.inputs[0].shape
    return shape[:-1] == whole[:-1] and prod(shape[:-1]) > 1
