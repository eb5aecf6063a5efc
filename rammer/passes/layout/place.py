"""Place tensors: reshapes, slices and concatenations become views of shared memory. Known as: buffer aliasing.

A joined or sliced tensor is one piece of memory. With blocked channels it may be one piece per image: it then has the
pitch of all channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from rammer.ir.expr import Load
from rammer.ir.graph import Graph, View, storage
from rammer.ir.index import Index, substitute
from rammer.ir.operator import Operation, ROperator
from rammer.ir.tensor import Digit, TensorId, TensorType, row_major

_COPIES = frozenset({"copy", "convert"})  # they exist to move elements


def place(graph: Graph) -> Graph:
    """Replace operators that only renumber or gather memory by views. Graph inputs and outputs own their memory."""
    placer = _Placer(graph)
    for op in graph.operators:
        placer.visit(op)
    return graph.rewritten(placer.finish(), types=placer.types, constants=graph.constants, views=placer.views)


class _Placer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types = dict(graph.types)
        self.views: dict[TensorId, View] = {}
        self.operators: list[ROperator] = []
        self.pitched: dict[TensorId, TensorId] = {}  # view in several pieces -> its base
        self.fixed = {*graph.inputs, *graph.outputs, *graph.constants}
        self.outputs = set(graph.outputs)

    def visit(self, op: ROperator) -> None:
        if op.kind == "concat" and self._gather(op):
            return
        if self._cut(op):
            return
        offset = None if {*op.inputs} & self.pitched.keys() else view_offset(op.operation)
        if op.operation.expr.in_place:  # its result aliases the tensor that it updates
            self.views[op.outputs[0]] = View(op.inputs[0], 0)
        if offset is None:
            self.operators.append(op)
        elif op.outputs[0] not in self.outputs:
            self.views[op.outputs[0]] = View(op.inputs[0], offset)
        elif self._size(op.inputs[0]) != self._size(op.outputs[0]) or not self._put(
            op.inputs[0], View(op.outputs[0], 0)
        ):
            self.operators.append(op)  # an output has memory of its own: copy

    def _size(self, tensor: TensorId) -> int:
        return prod(self.types[tensor].physical_shape)

    def _put(self, tensor: TensorId, where: View) -> bool:
        """Place the memory of `tensor` at `where`. False if it does not own all of it, or if its place is fixed."""
        root, offset = storage(self.views, tensor)
        if (
            root in self.fixed
            or offset
            or self._size(root) != self._size(tensor)
            or root == storage(self.views, where.base).root
        ):
            return False
        self.views[root] = where
        return True

    def _put_pitched(self, tensor: TensorId, where: View) -> bool:
        """Place a tensor in pieces. False also if its memory has other views."""
        if storage(self.views, tensor).root != tensor or any(view.base == tensor for view in self._whole_views()):
            return False
        if put := self._put(tensor, where):
            self.pitched[tensor] = where.base
        return put

    def _whole_views(self) -> Iterator[View]:
        """Yield the views that need their base to be one piece of memory."""
        return (view for tensor, view in self.views.items() if tensor not in self.pitched)

    def _cut(self, op: ROperator) -> bool:
        """Make a slice of blocked channels a view of its operand, in one piece per image.

        False if that is not possible.
        """
        source, target = op.inputs[0], op.outputs[0]
        offset = _piece_offset(op.operation, pitched=True)
        if offset is None or target in self.outputs or source in self.graph.constants:
            return False
        self.views[target] = View(source, offset)
        self.pitched[target] = source
        return True

    def finish(self) -> tuple[ROperator, ...]:
        """Return the remaining operators, whose pitched tensors have the strides of their base."""
        strides: dict[TensorId, list[int]] = {}
        for tensor in self.pitched:
            inside = [tensor]
            while (base := self.pitched.get(inside[-1])) is not None and base not in strides:
                inside.append(base)
            known = strides[base] if base is not None else self.types[inside.pop()].strides
            strides |= dict.fromkeys(inside, known)
        for tensor in self.pitched:
            kind = self.types[tensor]
            assert kind.layout is not None
            self.types[tensor] = replace(kind, layout=kind.layout.with_strides(kind.shape, strides[tensor]))
        return tuple(map(self._retyped, self.operators)) if strides else tuple(self.operators)

    def _retyped(self, op: ROperator) -> ROperator:
        inputs, outputs = (tuple(self.types[t] for t in tensors) for tensors in (op.inputs, op.outputs))
        if (inputs, outputs) == (op.operation.inputs, op.operation.outputs):
            return op
        return replace(op, operation=self.graph.interner.retype(op.operation, inputs, outputs, op.operation.static))

    def _gather(self, op: ROperator) -> bool:
        """Compute the operands of a concatenation in their place in its result. False if they are not pieces of it.

        Operands that lie elsewhere are copied.
        """
        target, offsets = op.operation.outputs[0], concat_offsets(op.operation)
        pitched = offsets is None
        if pitched:
            offsets = concat_offsets(op.operation, pitched=True)
        if offsets is None:
            return False
        for tensor, offset, kind in zip(op.inputs, offsets, op.operation.inputs, strict=True):
            where = View(op.outputs[0], offset)
            put = self._put_pitched if pitched else self._put
            if kind.size and not put(tensor, where):
                copied = TensorType(kind.shape, kind.dtype, target.layout)
                operation = self.graph.interner.copy(kind, copied)
                name = f"{op.outputs[0]}[{offset}]"
                self.types[name] = copied
                self.views[name] = where
                if pitched:
                    self.pitched[name] = where.base
                self.operators.append(ROperator(f"{op.name}: copy of {tensor}", operation, (tensor,), (name,)))
        return True


def view_offset(operation: Operation) -> int | None:
    """Return the first physical element of the output in the input, if it is a contiguous piece of it; or None."""
    expr = operation.expr
    if len(expr.inputs) != 1 or len(expr.stages) != 1 or operation.kind in _COPIES:
        return None
    source, target = expr.inputs[0][1], expr.outputs[0][1]
    stage = expr.stages[0]
    if source.dtype != target.dtype or not isinstance(stage.body, Load) or stage.body.dynamic or stage.reduce:
        return None
    if operation.kind == "reshape" and not (source.layout or target.layout):
        return 0
    before, after = _dimension_strides(source), _dimension_strides(target)
    if before is None or after is None:
        return _piece_offset(operation)
    ones = {a: Index(0) for a, e in stage.axes if e == 1}
    linear = Index(0)
    for index, stride in zip(stage.body.index, before, strict=True):
        linear += substitute(index, ones) * stride
    wanted = {a: s for (a, e), s in zip(stage.axes, after, strict=True) if e > 1}
    return linear.const if dict(linear.terms) == wanted and target.size else None


def _dimension_strides(kind: TensorType) -> list[int] | None:
    """Return the stride of each dimension of a dense tensor, in elements; None if a dimension is in blocks."""
    digits = kind.layout.digits if kind.layout else tuple(map(Digit, range(kind.rank)))
    if {replace(d, dim=0) for d in digits} - {Digit(0)} or (kind.layout and kind.layout.encoding):
        return None
    by_dimension = dict(zip((d.dim for d in digits), row_major(kind.physical_shape), strict=True))
    return [by_dimension[d] for d in range(kind.rank)]


def concat_offsets(operation: Operation, *, pitched: bool = False) -> list[int] | None:
    """Return where each operand begins in a concatenation's output, if each is a contiguous piece of it; or None.

    With `pitched`, each is one such piece per image: blocks of channels.
    """
    target, parts = operation.outputs[0], operation.inputs
    axis = _concat_axis(parts, target)
    unit = None if axis is None or any(p.layout != target.layout for p in parts) else _unit(target, axis, pitched)
    if axis is None or unit is None:
        return None
    step, elements = unit
    offsets, start = [], 0
    for part in parts:
        if start % step:
            return None
        offsets.append(start // step * elements)
        start += part.shape[axis]
    return offsets


def _piece_offset(operation: Operation, *, pitched: bool = False) -> int | None:
    """Return the first physical element of a slice of whole blocks in its input, if it is contiguous there; or None.

    With `pitched`, it is one such piece per image: blocks of channels.
    """
    starts = _starts(operation)
    source, target = operation.inputs[0], operation.outputs[0]
    if starts is None or source.layout != target.layout:
        return None
    cut = [axis for axis, extent in enumerate(source.shape) if target.shape[axis] != extent]
    if len(cut) != 1:
        return None
    unit = _unit(source, cut[0], pitched)
    start = starts[cut[0]]
    end = start + target.shape[cut[0]]
    if unit is None or start % unit[0] or (end % unit[0] and end != source.shape[cut[0]]):
        return None
    return int(start // unit[0] * unit[1])


def _starts(operation: Operation) -> tuple[int, ...] | None:
    """Return where the result begins in its operand, if it is a box of it with step 1; None otherwise.

    It is derived from the expression: for slices, slices of slices, and everything fused to one.
    """
    body, axes = operation.expr.root.body, operation.expr.root.axes
    if len(operation.expr.stages) != 1 or len(operation.inputs) != 1 or operation.kind in _COPIES:
        return None
    if not isinstance(body, Load) or body.dynamic or len(body.index) != len(axes):
        return None
    if operation.inputs[0].dtype != operation.outputs[0].dtype or operation.expr.root.reduce:
        return None
    one_step = all(
        dict(index.terms) == {axis: 1} or (extent == 1 and not index.terms)
        for index, (axis, extent) in zip(body.index, axes, strict=True)
    )
    return tuple(index.const for index in body.index) if one_step else None


def _unit(kind: TensorType, axis: int, pitched: bool = False) -> tuple[int, int] | None:
    """Return the extent along an axis that is contiguous in memory before the next one, and its physical elements.

    None if other axes lie outside of this one. With `pitched`, the axis is that of blocked channels, and only images
    (more than one) lie outside.
    """
    digits = kind.layout.digits if kind.layout else tuple(map(Digit, range(kind.rank)))
    physical = kind.physical_shape
    place = next(p for p, d in enumerate(digits) if d.dim == axis)  # its most significant digit
    images = bool(kind.layout) and axis == 1 and digits[:place] == (Digit(0),) and physical[0] > 1
    if digits[place].mod or (not images if pitched else prod(physical[:place]) != 1):
        return None
    return digits[place].div, prod(physical[place + 1 :])


def _concat_axis(parts: tuple[TensorType, ...], target: TensorType) -> int | None:
    for axis, extent in enumerate(target.shape):
        others = [shape[:axis] + shape[axis + 1 :] for shape in (target.shape, *(p.shape for p in parts))]
        rest = len(set(others)) == 1
        if rest and sum(p.shape[axis] for p in parts) == extent:
            return axis
    return None
