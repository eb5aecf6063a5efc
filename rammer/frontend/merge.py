"""Merge models into one graph: names get the model's name as a prefix, and links between models become edges.

Known as: model composition, onnx.compose.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rammer.errors import InputError, ModelError, did_you_mean
from rammer.ir.graph import Graph, Update, View, sort_operators
from rammer.ir.operator import OpDef, Operation, Operations, ROperator
from rammer.ir.tensor import Array, Symbols, TensorId, TensorType

_NAME = re.compile(r"\w[\w-]{0,63}")


def check_model_names(names: Collection[str]) -> None:
    """Raise InputError unless these can be prefixes of names."""
    if not names:
        raise InputError("no model is given", hint='for example {"vad": "vad.onnx"}')
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError(
                f"{name!r} is not a name for a model: ports are named MODEL.PORT",
                hint="letters, digits, _ and -, at most 64",
            )


def model_of(port: str) -> str:
    """Return the model of a port named MODEL.PORT."""
    return port.partition(".")[0]


def merge(graphs: Mapping[str, Graph], links: Mapping[str, str] | None = None) -> Graph:
    """Return one graph of several, by model. Ports, tensors and operators are named MODEL.NAME.

    `links` maps inputs to outputs of other models; neither is a port of the result. Equal constants become one. Raises
    InputError for a link between ports that do not exist or differ in type, for a cycle of links, and for a graph after
    passes.
    """
    links = dict(links or {})
    _check(graphs, links)
    same = _equal_constants(graphs)
    definitions: dict[str, OpDef] = {}
    for graph in graphs.values():
        definitions |= graph.interner.definitions
    interner = Operations(definitions)
    types: dict[TensorId, TensorType] = {}
    constants: dict[TensorId, Array] = {}
    updates: dict[TensorId, Update] = {}
    symbols: dict[TensorId, Symbols] = {}
    operators: list[ROperator] = []
    for model, graph in graphs.items():
        names = {t: f"{model}.{t}" for t in graph.types}
        names |= {t: made for t, name in names.items() if (made := links.get(name) or same.get(name))}
        named = _renamed(graph, names)
        types |= {t: kind for t, kind in named.types.items() if t not in types}
        constants |= {t: value for t, value in named.constants.items() if t not in constants}
        updates |= named.updates
        symbols |= {t: found for t, found in named.symbols.items() if t not in symbols}
        operators += (
            replace(op, name=f"{model}.{op.name}", operation=_interned(op.operation, graph.interner, interner))
            for op in named.operators
        )
    inputs = tuple(n for model, graph in graphs.items() for t in graph.inputs if (n := f"{model}.{t}") not in links)
    linked = set(links.values())
    try:
        ordered = sort_operators(operators, {*inputs, *constants})
    except ModelError as error:
        if not links:
            raise
        raise InputError(
            f"the links {', '.join(f'{a}={b}' for a, b in links.items())} form a cycle: {error.what}",
            hint="state= passes an output to the next run instead",
        ) from error
    return Graph(
        name="+".join(graphs),
        inputs=inputs,
        outputs=tuple(n for m, graph in graphs.items() for t in graph.outputs if (n := f"{m}.{t}") not in linked),
        operators=ordered,
        types=types,
        constants=constants,
        interner=interner,
        updates=updates,
        symbols={t: found for t, found in symbols.items() if t in inputs or t not in linked},
    )


def renamed_ports(
    graph: Graph, input_names: Sequence[str] | None = None, output_names: Sequence[str] | None = None
) -> Graph:
    """Return the graph with these names of its inputs and outputs, in their order; None keeps names.

    Raises InputError for another number of names, and for a name given twice.
    """
    names: dict[TensorId, TensorId] = {}
    for what, old, new in (("input", graph.inputs, input_names), ("output", graph.outputs, output_names)):
        if new is not None and len(new) != len(old):
            raise InputError(f"{what}_names= has {len(new)} names for {len(old)} {what}s", hint=", ".join(old))
        wanted = dict(zip(old, old if new is None else new, strict=True))
        if new is not None and (both := [t for t in old if names.get(t, wanted[t]) != wanted[t]]):
            raise InputError(f"{both[0]!r} is an input and an output", hint="it has one name")
        names = wanted | names
    if len({*names.values()}) < len(names):
        raise InputError(f"input_names= and output_names= give a name twice: {', '.join(names.values())}")
    taken = {*names.values()}
    for tensor in [t for t in graph.types if t not in names]:  # its name may be a port's now
        names[tensor] = tensor
        while names[tensor] in taken:
            names[tensor] += "_"
        taken.add(names[tensor])
    return graph if all(old == new for old, new in names.items()) else _renamed(graph, names)


def _renamed(graph: Graph, names: Mapping[TensorId, TensorId]) -> Graph:
    """Return the graph with other names of all tensors."""

    def of(tensors: tuple[TensorId, ...]) -> tuple[TensorId, ...]:
        return tuple(names[t] for t in tensors)

    return replace(
        graph,
        inputs=of(graph.inputs),
        outputs=of(graph.outputs),
        operators=tuple(replace(op, inputs=of(op.inputs), outputs=of(op.outputs)) for op in graph.operators),
        types={names[t]: kind for t, kind in graph.types.items()},
        constants={names[t]: value for t, value in graph.constants.items()},
        views={names[t]: View(names[view.base], view.offset) for t, view in graph.views.items()},
        updates={names[t]: Update(of(update.inputs), update.attrs) for t, update in graph.updates.items()},
        symbols={names[t]: found for t, found in graph.symbols.items()},
    )


def _interned(operation: Operation, old: Operations, new: Operations) -> Operation:
    """Return the operation of the new table, so that models share rKernels; itself if a pass has made it."""
    definition = old.definitions.get(operation.kind)
    if definition is None or new.definitions[operation.kind] is not definition:
        return operation
    key = operation.kind, operation.inputs, operation.attrs
    return new.define(*key) if old.define(*key) is operation else operation


def _check(graphs: Mapping[str, Graph], links: Mapping[str, str]) -> None:
    """Raise InputError for names of models that cannot be prefixes, and for links that do not fit."""
    check_model_names(graphs)
    if placed := [model for model, graph in graphs.items() if graph.views]:
        raise InputError(f"the model {placed[0]!r} has passed the optimizer", hint="give the graph of rammer.from_onnx")
    inputs = {f"{model}.{t}": graph.types[t] for model, graph in graphs.items() for t in graph.inputs}
    outputs = {f"{model}.{t}": graph.types[t] for model, graph in graphs.items() for t in graph.outputs}
    for taker, giver in links.items():
        for name, known, what in ((taker, inputs, "input"), (giver, outputs, "output")):
            if name not in known:
                hint = did_you_mean(str(name), known) or f"{what}s are {', '.join(known)}"
                raise InputError(f"links= names {name!r}, which is not an {what} of the models", hint=hint)
        if inputs[taker] != outputs[giver]:
            raise InputError(
                f"links= makes {giver!r}, {outputs[giver]}, the input {taker!r}, {inputs[taker]}",
                hint="their element types and shapes must be equal: shapes= fixes open dimensions of an input",
            )


def _equal_constants(graphs: Mapping[str, Graph]) -> dict[TensorId, TensorId]:
    """Return the constants that equal one of another model or of the same, with the first such."""
    kinds: dict[TensorType, list[tuple[TensorId, Array]]] = defaultdict(list)
    for model, graph in graphs.items():
        for t, value in graph.constants.items():
            kinds[graph.types[t]].append((f"{model}.{t}", value))
    same: dict[TensorId, TensorId] = {}
    for several in kinds.values():
        known: dict[Hashable, TensorId] = {}
        for name, value in several if len(several) > 1 else ():
            data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
            first = known.setdefault(hashlib.sha256(data).digest(), name)
            if first != name:
                same[name] = first
    return same
