"""Define operators: OpDef is a family, Operation a member at fixed attributes and types, ROperator a graph node."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import compress
from math import prod
from typing import Any, TypeAlias

from rammer.errors import RammerError, did_you_mean
from rammer.ir.expr import Load, Stage, TensorExpr
from rammer.ir.index import var
from rammer.ir.tensor import TensorId, TensorType

Attrs: TypeAlias = tuple[tuple[str, Hashable], ...]


@dataclass(frozen=True, slots=True)
class OpDef:
    """A family of operators, defined once for all backends.

    `express(*input_types, **attrs)` builds the tensor expression, whose outputs are the shape rule. It raises
    TypeMismatch for operands that it does not accept. `broadcasts`: it is a function of elements at one place, for
    operands of any shapes that broadcast, and none of its attributes refers to axes or extents. So a pass may define it
    anew for the same operands reshaped. `folds`: of constants it is computed at compile time.
    """

    name: str
    express: Callable[..., TensorExpr]
    broadcasts: bool = False
    folds: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """What a node computes, without names: the unit of kernel sharing. Equal ones are the same object.

    `static`: inputs known at compile time, which a kernel may have packed into its own layout.
    """

    kind: str
    attrs: Attrs
    expr: TensorExpr
    static: tuple[bool, ...]

    def __repr__(self) -> str:
        return f"<Operation {self.kind}({', '.join(map(str, self.inputs))})>"

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        return tuple(kind for _, kind in self.expr.inputs)

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        return tuple(kind for _, kind in self.expr.outputs)

    @property
    def keywords(self) -> dict[str, Any]:
        """Attributes, as arguments that define the operation again."""
        return dict(self.attrs)

    def attr(self, name: str) -> Any:
        return self.keywords[name]


@dataclass(frozen=True, slots=True, eq=False)
class ROperator:
    """A node of the data-flow graph: an operation applied to tensors. Paper: §3.1."""

    name: str  # from the model: for people only, never in emitted code
    operation: Operation
    inputs: tuple[TensorId, ...]
    outputs: tuple[TensorId, ...]

    @property
    def kind(self) -> str:
        return self.operation.kind

    @property
    def statics(self) -> tuple[TensorId, ...]:
        """Inputs that are known at compile time."""
        return tuple(compress(self.inputs, self.operation.static))


def attributes(**values: Hashable) -> Attrs:
    """Return attributes in canonical order."""
    return tuple(sorted(values.items()))


def _unpickled(names: tuple[str, ...]) -> Operations:
    from rammer.ir.ops import OPS

    return Operations({name: OPS[name] for name in names})


class Operations:
    """Interner of operations: the same definition at the same attributes and types is one object.

    Known as: hash consing.
    """

    def __init__(self, definitions: Mapping[str, OpDef]) -> None:
        self.definitions = definitions
        self._made: dict[Hashable, Operation] = {}

    def __reduce__(self) -> tuple[Callable[[tuple[str, ...]], Operations], tuple[tuple[str, ...]]]:
        """Pickle the names of definitions alone. Raises RammerError for definitions that are not rammer's.

        Operators of a graph carry their operations. The table goes by identity, which another object may have later.
        """
        from rammer.ir.ops import OPS  # they are made of this module's classes

        if own := [name for name, definition in self.definitions.items() if OPS.get(name) is not definition]:
            raise RammerError(f"operator {own[0]!r} is defined by its user: a graph with it cannot be pickled")
        return _unpickled, (tuple(self.definitions),)

    def define(self, kind: str, inputs: tuple[TensorType, ...], attrs: Attrs = ()) -> Operation:
        """Return the operation `kind` on inputs of these types. Raises TypeMismatch."""
        key = (kind, inputs, attrs)
        if (found := self._made.get(key)) is None:
            definition = self.definitions.get(kind)
            if definition is None:
                raise RammerError(f"no operator {kind!r}", hint=did_you_mean(kind, self.definitions))
            expr = definition.express(*inputs, **dict(attrs))
            found = self._made[key] = Operation(kind, attrs, expr, (False,) * len(inputs))
        return found

    def wrap(self, kind: str, key: Hashable, make: Callable[[], TensorExpr]) -> Operation:
        """Return an operation made by a pass, such as a fusion; `key` identifies the expression that `make` builds."""
        full = ("wrap", kind, key)
        if (found := self._made.get(full)) is None:
            expr = make()
            found = self._made[full] = Operation(kind, (), expr, (False,) * len(expr.inputs))
        return found

    def copy(self, source: TensorType, target: TensorType) -> Operation:
        """Return the operation that copies a tensor; it is a conversion if the layouts differ."""
        return self.wrap("copy" if source == target else "convert", (source, target), lambda: _copy(source, target))

    def retype(
        self,
        operation: Operation,
        inputs: tuple[TensorType, ...],
        outputs: tuple[TensorType, ...],
        static: tuple[bool, ...],
    ) -> Operation:
        """Return the same computation with other layouts of its tensors, and with inputs marked static."""
        key = ("retype", id(operation), inputs, outputs, static)
        if (found := self._made.get(key)) is None:
            expr = operation.expr
            expr = replace(
                expr,
                inputs=tuple((n, t) for (n, _), t in zip(expr.inputs, inputs, strict=True)),
                outputs=tuple((n, t) for (n, _), t in zip(expr.outputs, outputs, strict=True)),
            )
            found = self._made[key] = replace(operation, expr=expr, static=static)
            self._made[("keep", id(operation))] = operation  # an id in a key must stay alive
        return found


def _copy(source: TensorType, target: TensorType) -> TensorExpr:
    """Build out = x."""
    axes = tuple((f"d{p}", e) for p, e in enumerate(source.shape))
    stage = Stage("out", axes, Load("x", tuple(var(a) for a, _ in axes)), dtype=source.dtype)
    return TensorExpr("copy", (("x", source),), (stage,), (("out", target),))


@lru_cache(maxsize=4096)
def flops(expr: TensorExpr) -> int:
    """Count the arithmetic of one evaluation: two per multiply-add of a reduction, one per point of other stages."""
    total = 0
    for stage in expr.stages:
        points = prod(extent for _, extent in (*stage.axes, *stage.reduce))
        total += points * (2 if stage.reduce and stage.combine == "sum" else 1)
    return total
