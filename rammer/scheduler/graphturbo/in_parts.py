"""Compute groups of operators part by part: each instance becomes operators of its own. Known as: overlapped tiling.

A part is a box of a group's result: some images and rows. The intermediate tensors that it needs become small tensors
of its own, which share memory with those of other parts. Elements that two parts need are computed twice, so parts of a
group do not wait for each other. Paper: GraphTurbo §3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rammer.ir.analysis.parts import Box, full_box, joined, needs, part
from rammer.ir.graph import Graph, View
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Digit, Layout, TensorId, TensorType

DIMS = (0, 2)  # along which results are split: images, and rows


class Parted(NamedTuple):
    """Consecutive operators, the last of which has the group's only result, and the boxes of it to compute."""

    operators: tuple[int, ...]
    boxes: tuple[Box, ...]


class InParts(NamedTuple):
    """A graph with `groups` in parts, the operators of each part, and the new `numbers` of each old operator."""

    graph: Graph
    groups: tuple[Parted, ...]
    parts: tuple[tuple[tuple[int, ...], ...], ...]
    numbers: tuple[tuple[int, ...], ...]


class PartNeeds(NamedTuple):
    """The boxes that a part needs, of each operator's stages and inputs, and of each tensor."""

    stages: Mapping[int, dict[str, Box]]
    tensors: Mapping[TensorId, Box]


def can_be_cut(kind: TensorType) -> bool:
    """Return whether images and rows are dimensions in memory, so that some of them are a view with a pitch."""
    if kind.layout is None:
        return True
    digits = [d for d in kind.layout.digits if d.dim in DIMS]
    return not kind.layout.encoding and len({d.dim for d in digits}) == len(digits) and all(d.div == 1 for d in digits)


def needed(graph: Graph, operators: Sequence[int], box: Box) -> PartNeeds | None:
    """Return the boxes of a group that a box of its result needs, or None if they are unknown."""
    tensors = {graph.operators[operators[-1]].outputs[0]: box}
    stages = {}
    for n in reversed(operators):
        op = graph.operators[n]
        found = needs(op.operation.expr, tensors[op.outputs[0]], DIMS)
        if found is None:
            return None
        stages[n] = found
        for tensor, (name, kind) in zip(op.inputs, op.operation.expr.inputs, strict=True):
            read = found.get(name, full_box(kind.shape))
            tensors[tensor] = joined(tensors[tensor], read) if tensor in tensors else read
    return PartNeeds(stages, tensors)


def in_parts(graph: Graph, groups: Sequence[Parted]) -> InParts:
    """Return the graph with these groups in parts.

    Tensors inside of a group must not be views, nor be read outside of it.
    """
    cutter = _Cutter(graph)
    last = {group.operators[-1]: group for group in sorted(groups)}
    inside = {n for group in groups for n in group.operators}
    numbers: list[tuple[int, ...]] = [()] * len(graph.operators)
    parts = []
    for n, op in enumerate(graph.operators):
        if n in last:
            parts.append(tuple(cutter.part(last[n].operators, box) for box in last[n].boxes))
            numbers[last[n].operators[0] : n + 1] = zip(*parts[-1], strict=True)
        elif n not in inside:
            numbers[n] = (len(cutter.operators),)
            cutter.operators.append(op)
    return InParts(cutter.finish(), tuple(last.values()), tuple(parts), tuple(numbers))


class _Cutter:
    def __init__(self, graph: Graph) -> None:
        self.operators: list[ROperator] = []
        self._graph = graph
        self._types = dict(graph.types)
        self._views = dict(graph.views)

    def part(self, operators: Sequence[int], box: Box) -> tuple[int, ...]:
        """Append the operators that compute a part; return their numbers."""
        graph = self._graph
        found = needed(graph, operators, box)
        assert found is not None, "asked for before a group is cut"
        made = {t for n in operators for t in graph.operators[n].outputs}
        result, begin = graph.operators[operators[-1]].outputs[0], len(self.operators)
        for n in operators:
            op = graph.operators[n]
            inputs = tuple(
                self._own(t, found.tensors[t], result) if t in made else self._seen(t, found.tensors[t])
                for t in op.inputs
            )
            (output,) = op.outputs
            output = self._seen(output, box) if output == result else self._own(output, found.tensors[output], result)
            kinds = [self._types[t] for t in inputs]
            operation = part(graph.interner, op.operation, self._boxes(n, found), kinds, self._types[output])
            self.operators.append(ROperator(f"{op.name} {_places(box)}", operation, inputs, (output,)))
        return tuple(range(begin, len(self.operators)))

    def _boxes(self, operator: int, found: PartNeeds) -> dict[str, Box]:
        """Return the boxes that an operator's stages compute, and those that its operands have."""
        op = self._graph.operators[operator]
        names = (name for name, _ in op.operation.expr.inputs)
        return found.stages[operator] | {name: found.tensors[t] for name, t in zip(names, op.inputs, strict=True)}

    def _own(self, tensor: TensorId, box: Box, result: TensorId) -> TensorId:
        """Return a part of a tensor, with memory of its own."""
        kind = self._graph.types[tensor]
        name = f"{tensor} {_places(box)} for {result}"
        self._types[name] = replace(kind, shape=_shape(box))
        return name

    def _seen(self, tensor: TensorId, box: Box) -> TensorId:
        """Return a part of a tensor as a view; a constant stays whole."""
        kind = self._graph.types[tensor]
        if tensor in self._graph.constants or box == full_box(kind.shape):
            return tensor
        name = f"{tensor} {_places(box)}"
        assert can_be_cut(kind), f"{tensor!r} has other dimensions in memory"
        layout = kind.layout or Layout(tuple(map(Digit, range(kind.rank))))
        self._types[name] = replace(kind, shape=_shape(box), layout=layout.with_strides(_shape(box), kind.strides))
        steps = zip(layout.digits, kind.strides, strict=True)
        self._views[name] = View(tensor, sum(box[d.dim][0] * step for d, step in steps if d.dim in DIMS))
        return name

    def finish(self) -> Graph:
        operators = tuple(self.operators)
        ports = (*self._graph.inputs, *self._graph.outputs)
        used = {t for op in operators for t in (*op.inputs, *op.outputs)} | {*ports}
        for tensor in list(used):
            while (view := self._views.get(tensor)) is not None:
                tensor = view.base
                used.add(tensor)
        return replace(
            self._graph,
            operators=operators,
            types={t: kind for t, kind in self._types.items() if t in used},
            views={t: view for t, view in self._views.items() if t in used},
        )


def _shape(box: Box) -> tuple[int, ...]:
    return tuple(high - low for low, high in box)


def _places(box: Box) -> str:
    """Return images and rows of a part as text, for names."""
    spans = (box[dim] for dim in DIMS if dim < len(box))
    return f"[{', '.join(f'{low}:{high}' for low, high in spans)}]"
