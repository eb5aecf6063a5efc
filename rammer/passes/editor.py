"""Edit a graph: the mutable form that passes work on between two immutable graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from rammer.ir.graph import Graph
from rammer.ir.operator import Operation, ROperator, attributes
from rammer.ir.tensor import DTYPES, Array, Shape, TensorId, TensorType


class Editor:
    """Operators by number, with producers and readers kept up to date. `finish` sorts them and drops dead ones."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.interner = graph.interner
        self.types = dict(graph.types)
        self.constants = dict(graph.constants)
        self.views = dict(graph.views)
        self.outputs = frozenset(graph.outputs)
        self.fixed = frozenset(graph.inputs) | self.outputs  # names that users see
        self.operators: dict[int, ROperator] = dict(enumerate(graph.operators))
        self.producer = dict(graph.producers)
        self.readers: dict[TensorId, dict[int, None]] = {t: dict.fromkeys(ns) for t, ns in graph.consumers.items()}
        self._changed = False
        self.next = len(graph.operators)  # the number of the next operator
        self._names: dict[str, int] = {}

    def _link(self, n: int, op: ROperator) -> None:
        for tensor in op.outputs:
            self.producer[tensor] = n
        for tensor in op.inputs:
            self.readers.setdefault(tensor, {})[n] = None

    def add(
        self, name: str, operation: Operation, inputs: Iterable[TensorId], outputs: tuple[TensorId, ...] = ()
    ) -> tuple[TensorId, ...]:
        """Append an operator and return its results. Without `outputs`, these get fresh names."""
        self._changed = True
        inputs = tuple(inputs)
        if not outputs:
            outputs = tuple(self.fresh(name) for _ in operation.outputs)
        for tensor, kind in zip(outputs, operation.outputs, strict=True):
            self.types[tensor] = kind
        op = ROperator(name, operation, inputs, outputs)
        self.operators[self.next] = op
        self._link(self.next, op)
        self.next += 1
        return outputs

    def remove(self, n: int) -> ROperator:
        """Remove an operator and return it. Its results have no producer then."""
        self._changed = True
        op = self.operators.pop(n)
        for tensor in op.inputs:
            self.readers[tensor].pop(n, None)
        for tensor in op.outputs:
            if self.producer.get(tensor) == n:
                del self.producer[tensor]
        return op

    def redirect(self, old: TensorId, new: TensorId) -> None:
        """Let every reader of `old` read `new`."""
        self.redirect_readers(old, new, list(self.readers.get(old, ())))

    def redirect_readers(self, old: TensorId, new: TensorId, readers: Iterable[int]) -> None:
        """Let these readers of `old` read `new`."""
        for n in readers:
            self._changed = True
            op = self.operators[n]
            self.readers[old].pop(n, None)
            self.readers.setdefault(new, {})[n] = None
            inputs = tuple(new if t == old else t for t in op.inputs)
            self.operators[n] = ROperator(op.name, op.operation, inputs, op.outputs)

    def rename_result(self, old: TensorId, new: TensorId) -> None:
        """Rename a result, in its operator and in all readers. `new` must not have a producer."""
        n = self.producer.pop(old)
        op = self.operators[n]
        outputs = tuple(new if t == old else t for t in op.outputs)
        self.operators[n] = ROperator(op.name, op.operation, op.inputs, outputs)
        self.producer[new] = n
        self.redirect(old, new)

    def fresh(self, hint: str) -> TensorId:
        """Return a tensor name that is not in use."""
        while True:
            number = self._names[hint] = self._names.get(hint, 0) + 1
            name = f"{hint}:{number}"
            if name not in self.types:
                return name

    def constant(self, array: Array, hint: str = "constant") -> TensorId:
        """Add a constant and return its name."""
        name = self.fresh(hint)
        self.types[name] = TensorType(array.shape, DTYPES[array.dtype])
        self.constants[name] = array
        return name

    def replace_result(self, old: TensorId, new: TensorId) -> TensorId:
        """Use `new` instead of `old`, whose operator has been removed. A graph output keeps its own name.

        Returns the name of `new` from then on: it may be renamed to that output.
        """
        if old not in self.outputs:
            self.redirect(old, new)
            return new
        if new in self.fixed or new in self.constants or new not in self.producer:
            kind = self.types[new]
            self.add(f"copy to {old}", self.interner.copy(kind, kind), (new,), (old,))
            self.redirect(old, new)
            return new
        self.rename_result(new, old)
        return old

    def maker(self, tensor: TensorId, kind: str = "") -> ROperator | None:
        """Return the operator that computes a tensor; None if there is none, or if it is of another `kind`."""
        op = self.operators[self.producer[tensor]] if tensor in self.producer else None
        return op if op is None or kind in ("", op.kind) else None

    def source(self, tensor: TensorId, *kinds: str) -> TensorId:
        """Return the tensor from which this one is made by operators of these kinds, each by its first operand."""
        while (op := self.maker(tensor)) is not None and op.kind in kinds:
            tensor = op.inputs[0]
        return tensor

    def define(
        self, name: str, kind: str, *inputs: TensorId, outputs: tuple[TensorId, ...] = (), **attrs: Any
    ) -> TensorId:
        """Add an operator with one result, and return the result. It has a fresh name unless `outputs` names it."""
        operation = self.interner.define(kind, tuple(self.types[t] for t in inputs), attributes(**attrs))
        (made,) = self.add(name, operation, inputs, outputs)
        return made

    def repeated(self, ops: Iterable[ROperator], tensor: TensorId) -> TensorId:
        """Apply operators, one after another, to another first operand; return the result."""
        for op in ops:
            tensor = self.define(op.name, op.kind, tensor, *op.inputs[1:], **op.operation.keywords)
        return tensor

    def reshaped(self, name: str, tensor: TensorId, shape: Shape) -> TensorId:
        """Return a tensor in another shape; itself if it already has it."""
        return tensor if self.types[tensor].shape == shape else self.define(name, "reshape", tensor, shape=shape)

    def biased(self, op: ROperator, result: TensorId, biases: Iterable[TensorId]) -> TensorId:
        """Add a convolution's biases, one number per channel each, to what is now its result. Return the sum."""
        for bias in biases:
            shape = (self.types[bias].size, *(1 for _ in op.operation.outputs[0].shape[2:]))
            result = self.define(op.name, "add", result, self.define(op.name, "reshape", bias, shape=shape))
        return result

    def cut(
        self, name: str, source: TensorId, starts: Shape, steps: Shape, shape: Shape, outputs: tuple[TensorId, ...]
    ) -> None:
        """Add a slice for the result of a removed operator. It is reshaped to that result's shape."""
        wanted = self.types[outputs[0]].shape
        piece = self.define(
            name, "slice", source, outputs=outputs if shape == wanted else (), starts=starts, steps=steps, shape=shape
        )
        if shape != wanted:
            self.define(name, "reshape", piece, outputs=outputs, shape=wanted)

    def only_reader(self, tensor: TensorId) -> int | None:
        """Return the only operator that reads a tensor; None if there are others, or if the tensor is an output."""
        readers = self.readers.get(tensor, {})
        return next(iter(readers)) if len(readers) == 1 and tensor not in self.outputs else None

    def broadcasts(self, op: ROperator) -> bool:
        """Check whether an operator on reshaped operands gives the same result, reshaped."""
        definition = self.interner.definitions.get(op.kind)
        return definition is not None and definition.broadcasts

    def order(self) -> list[int]:
        """Return the operators that graph outputs need, each after its producers. The order is stable."""
        needed = set()
        stack = [self.producer[t] for t in self.graph.outputs if t in self.producer]
        while stack:
            n = stack.pop()
            if n not in needed:
                needed.add(n)
                stack += [self.producer[t] for t in self.operators[n].inputs if t in self.producer]
        done: set[int] = set()
        opened: set[int] = set()
        order: list[int] = []
        for start in sorted(needed):
            stack = [start]
            while stack:
                n = stack[-1]
                if n in done:
                    stack.pop()
                    continue
                producers = map(self.producer.get, self.operators[n].inputs)
                waiting = [p for p in producers if p is not None and p not in done]
                if waiting:
                    assert n not in opened, f"a pass made a cycle through {self.operators[n].name!r}"
                    opened.add(n)
                    stack += waiting
                else:
                    done.add(n)
                    order.append(n)
                    stack.pop()
        return order

    def finish(self) -> Graph:
        """Return the new graph; the old one if nothing was changed."""
        if not self._changed:
            return self.graph
        operators = (self.operators[n] for n in self.order())
        return self.graph.rewritten(operators, types=self.types, constants=self.constants, views=self.views)


Pattern: TypeAlias = Callable[[Editor, int, ROperator], TensorId | None]


def apply_pattern(graph: Graph, pattern: Pattern, *kinds: str) -> Graph:
    """Apply a pattern to each operator of some kinds, or of all kinds, in order. Known as: pattern rewriting.

    A pattern gets the operator with its number, and edits the graph. A tensor that it returns replaces the operator's
    result; if the pattern has just made this tensor, it takes the result's name.
    """
    editor = Editor(graph)
    for n in list(editor.operators):
        op, first = editor.operators.get(n), editor.next
        made = pattern(editor, n, op) if op is not None and (not kinds or op.kind in kinds) else None
        if op is not None and made is not None:
            editor.remove(n)
            if editor.producer.get(made, -1) >= first:
                editor.rename_result(made, op.outputs[0])
            else:
                editor.replace_result(op.outputs[0], made)
    return editor.finish()
