"""Build a data-flow graph operator by operator, and fold constants while doing so. Known as: constant folding."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from rammer.errors import ModelError
from rammer.ir.graph import Graph, Update, sort_operators
from rammer.ir.operator import Operation, Operations, ROperator, attributes, flops
from rammer.ir.ops import OPS
from rammer.ir.semantics.evaluate import MOVES, compute
from rammer.ir.tensor import DTYPES, Array, DType, Shape, TensorId, TensorType, convert

FREE_BYTES = 4096  # results of this size are always folded
SHARED_BYTES = 16 << 20  # constants up to this size are deduplicated

_COPIES: dict[str, Callable[..., Array]] = {"concat": lambda *xs, axis: np.concatenate(xs, axis), "cast": convert}


def _identity(array: Array, kind: TensorType) -> Hashable | None:
    """Return a key that is equal for equal constants; None for large ones.

    Of broadcast dimensions it reads one element.
    """
    compact = array[tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)] if array.size else array
    if compact.nbytes > SHARED_BYTES:
        return None
    data = compact.tobytes()
    return (kind, compact.shape, data if len(data) <= 64 else hashlib.sha256(data).digest())


class GraphBuilder:
    """A graph under construction.

    `fold_bytes` bounds the memory of all constant folding, `fold_flops` the work of folding one operator; beyond these
    an operator stays in the graph. Beyond `tensor_bytes` or `operators` the model is refused (ModelError). Graphs built
    with the same `operations` share them, and what is cached for each. `secret` is the seed of draws without one.
    """

    def __init__(
        self,
        name: str = "graph",
        *,
        fold_bytes: int = 64 << 20,
        fold_flops: int = 1 << 24,
        tensor_bytes: int = 8 << 30,
        operators: int = 1_000_000,
        operations: Operations | None = None,
        secret: int = 0,
    ) -> None:
        self.name, self.secret = name, secret
        self.types: dict[TensorId, TensorType] = {}
        self.inputs: list[TensorId] = []
        self.interner = Operations(OPS) if operations is None else operations
        self.counts: dict[TensorId, tuple[int, TensorId]] | None = None  # tensors of which a number of places count
        self._fold_bytes, self._fold_flops = fold_bytes, fold_flops
        self._tensor_bytes, self._max_operators = tensor_bytes, operators
        self._constants: dict[TensorId, Array] = {}
        self._shared: dict[Hashable, TensorId] = {}
        self._kept: set[TensorId] = set()
        self._outputs: list[tuple[TensorId, str]] = []
        self._operators: list[ROperator] = []
        self._makers: dict[TensorId, ROperator] = {}
        self._names: dict[str, int] = {}
        self._updates: dict[TensorId, Update] = {}

    def input(self, name: str, shape: Shape, dtype: DType = DType.F32) -> TensorId:
        """Add a graph input of exactly this name."""
        if name in self.types:
            raise ModelError(f"two tensors are named {name!r}", hint="give every input its own name")
        self._check(TensorType(tuple(shape), dtype), name)
        self.types[name] = TensorType(tuple(shape), dtype)
        self.inputs.append(name)
        return name

    def constant(self, array: Any, name: str = "") -> TensorId:
        """Add a constant; equal ones without a name are shared. Raises ModelError for an unsupported element type."""
        array = np.asarray(array)
        dtype = DTYPES.get(array.dtype.newbyteorder("="))
        if dtype is None:
            raise ModelError(
                f"constant {name!r} has element type {array.dtype}",
                hint=f"supported: {', '.join(d.value for d in DType)}",
            )
        kind = TensorType(array.shape, dtype)
        self._check(kind, name)
        key = None if name else _identity(array, kind)
        if key is not None and (found := self._shared.get(key)) is not None:
            return found
        tensor = self._fresh(name or "constant", kind)
        self._constants[tensor] = array.astype(dtype.numpy, copy=False)
        if key is not None:
            self._shared[key] = tensor
        return tensor

    def keep(self, tensor: TensorId) -> None:
        """Do not fold operators that read this constant: passes may need it as it is."""
        self._kept.add(tensor)

    def add(self, kind: str, *inputs: TensorId, name: str = "", **attrs: Hashable) -> Any:
        """Apply the operator `kind`, and return its output, or a tuple of them.

        Raises TypeMismatch for unfit operands.
        """
        if kind == "concat":  # parts without elements change nothing
            inputs = tuple(t for t in inputs if self.types[t].size) or inputs
        operation = self.interner.define(kind, tuple(self.types[t] for t in inputs), attributes(**attrs))
        for result in operation.outputs:
            self._check(result, name or kind)
        folded = self._fold(operation, inputs, attrs)
        if folded is not None:
            tensors = tuple(self.constant(value) for value in folded)
        else:
            if len(self._operators) >= self._max_operators:
                raise ModelError(f"the graph grows beyond {self._max_operators} operators", hint="raise the limit")
            tensors = tuple(self._fresh(name or kind, result) for result in operation.outputs)
            self._operators.append(ROperator(name or kind, operation, inputs, tensors))
            self._makers |= dict.fromkeys(tensors, self._operators[-1])
        return tensors[0] if len(tensors) == 1 else tensors

    def could_update(self, result: TensorId, *inputs: TensorId, **attrs: Hashable) -> TensorId:
        """Note that an operator `update` of these operands would compute the result in the first one's memory.

        Return the result.
        """
        self._updates[result] = Update(inputs, attributes(**attrs))
        return result

    def output(self, tensor: TensorId, name: str = "") -> None:
        """Make a tensor an output of the graph, called `name` (by default its own id)."""
        name = name or tensor
        if any(name == other for _, other in self._outputs):
            raise ModelError(f"two outputs are named {name!r}", hint="give every output its own name")
        self._outputs.append((tensor, name))

    def value(self, tensor: TensorId) -> Array | None:
        """Return the value of a constant, or of a tensor without elements; else None."""
        found, kind = self._constants.get(tensor), self.types[tensor]
        return np.zeros(kind.shape, kind.dtype.numpy) if found is None and not kind.size else found

    def maker(self, tensor: TensorId) -> ROperator | None:
        """Return the operator that computes a tensor; None for an input or a constant."""
        return self._makers.get(tensor)

    def sources(self, tensor: TensorId) -> tuple[TensorId, ...]:
        """Return the graph inputs that a tensor depends on."""
        needed = {tensor}
        for op in reversed(self._operators):
            if not needed.isdisjoint(op.outputs):
                needed.update(op.inputs)
        return tuple(t for t in self.inputs if t in needed)

    def build(self) -> Graph:
        """Return the graph, sorted. An operator computes every output, under the name it was given."""
        names: dict[TensorId, str] = {}
        for tensor, name in self._outputs:
            if tensor in self.inputs or tensor in self._constants or tensor in names:
                if name in self.inputs:
                    raise ModelError(f"output {name!r} has the name of an input", hint="rename one of them")
                tensor = self._copy(tensor)
            names[tensor] = name
        wanted = set(names.values())
        for tensor in [t for t in wanted if t in self.types and t not in names]:
            if tensor in self.inputs:
                raise ModelError(f"output {tensor!r} has the name of an input", hint="rename one of them")
            names[tensor] = self._fresh(tensor + ".", self.types[tensor])
        operators = [
            replace(
                op, inputs=tuple(names.get(t, t) for t in op.inputs), outputs=tuple(names.get(t, t) for t in op.outputs)
            )
            if any(t in names for t in (*op.inputs, *op.outputs))
            else op
            for op in self._operators
        ]
        types = {names.get(t, t): kind for t, kind in self.types.items()}
        constants = {names.get(t, t): value for t, value in self._constants.items()}
        used = {t for op in operators for t in op.inputs}
        used |= {names.get(t, t) for update in self._updates.values() for t in update.inputs}
        constants = {t: v for t, v in constants.items() if t in used}
        kept = {*self.inputs, *constants, *(t for op in operators for t in op.outputs)}
        return Graph(
            name=self.name,
            inputs=tuple(self.inputs),
            outputs=tuple(name for _, name in self._outputs),
            operators=sort_operators(operators, {*self.inputs, *constants}),
            types={t: types[t] for t in types if t in kept},
            constants=constants,
            interner=self.interner,
            updates={
                names.get(t, t): Update(tuple(names.get(u, u) for u in update.inputs), update.attrs)
                for t, update in self._updates.items()
                if kept.issuperset(names.get(u, u) for u in (t, *update.inputs))
            },
        )

    def _copy(self, tensor: TensorId) -> TensorId:
        operation = self.interner.define("reshape", (self.types[tensor],), attributes(shape=self.types[tensor].shape))
        copy = self._fresh(tensor, self.types[tensor])
        self._operators.append(ROperator(f"copy of {tensor}", operation, (tensor,), (copy,)))
        return copy

    def _fresh(self, hint: str, kind: TensorType) -> TensorId:
        number = self._names.get(hint, 0)
        name = hint if not number else f"{hint}.{number}"
        while name in self.types:
            number += 1
            name = f"{hint}.{number}"
        self._names[hint] = number + 1
        self.types[name] = kind
        return name

    def _check(self, kind: TensorType, name: str) -> None:
        if any(extent < 0 for extent in kind.shape):
            raise ModelError(f"{name!r} would have a negative extent: {kind}")
        nbytes = prod(max(e, 1) for e in kind.shape) * kind.dtype.itemsize  # an extent of 0 must not hide a huge one
        if nbytes > self._tensor_bytes:
            raise ModelError(
                f"{name!r} would have {nbytes} bytes ({kind}), more than the limit of {self._tensor_bytes}",
                hint="raise Limits.tensor_bytes if the model really needs this",
            )

    def _fold(self, operation: Operation, inputs: tuple[TensorId, ...], attrs: dict[str, Any]) -> list[Array] | None:
        """Return the operator's outputs if all inputs are constants and the cost is within the limits; else None."""
        values = [value for t in inputs if (value := self.value(t)) is not None]
        if not inputs or len(values) < len(inputs) or not self._kept.isdisjoint(inputs):
            return None
        kind = operation.kind
        if kind in MOVES:
            moved = MOVES[kind](values[0], **attrs)
            return [moved] if np.may_share_memory(moved, values[0]) or self._pay(moved.nbytes) else None
        if kind not in _COPIES and flops(operation.expr) > self._fold_flops:
            return None
        if not self._pay(sum(t.nbytes for t in operation.outputs)):
            return None
        if kind in _COPIES:
            with np.errstate(all="ignore"):
                return [_COPIES[kind](*values, **attrs)]
        return compute(operation, values)

    def _pay(self, nbytes: int) -> bool:
        """Check whether folding may use `nbytes` more, and count them.

        Results up to FREE_BYTES (shape arithmetic) are free.
        """
        if FREE_BYTES < nbytes <= self._fold_bytes:
            self._fold_bytes -= nbytes
            return True
        return nbytes <= FREE_BYTES
