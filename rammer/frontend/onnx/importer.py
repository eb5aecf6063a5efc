"""Walk over a model and call one handler per node; resolve scopes, opsets and functions."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, cast

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
)

from rammer.errors import ModelError, ModelWarning, RammerError, did_you_mean, message
from rammer.frontend.builder import GraphBuilder
from rammer.frontend.onnx import handlers as _handlers  # noqa: F401  (registers them)
from rammer.frontend.onnx.functions import Functions, Opsets, domain_of, opsets_of
from rammer.frontend.onnx.limits import Limits
from rammer.frontend.onnx.node import Node, NotConstant, StepLengths, handler_for
from rammer.frontend.onnx.parts import initializers_of, label_of, reads
from rammer.frontend.onnx.ports import (
    Declared,
    Given,
    Maps,
    Place,
    TensorList,
    Text,
    Value,
    declared,
    element_names,
    extent_of,
    fixed_type,
    require_closed,
)
from rammer.frontend.onnx.signature import NEWEST_OPSETS, Signature, attribute_values, schema_function, signature
from rammer.frontend.onnx.tensors import CODES, ELEMENT_TYPES, ExternalData, decode
from rammer.frontend.onnx.text import TEXT_OPS, codes_of
from rammer.ir.graph import Graph, topological_order
from rammer.ir.tensor import DType, Shape, Symbols, TensorId, TensorType


@dataclass
class NameScope:
    """Names of values in one graph or function body. A subgraph sees those of its parent."""

    opsets: Opsets
    parent: NameScope | None = None
    depth: int = 0
    values: dict[str, Value | None] = field(default_factory=dict)
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)  # of the function call, for ref_attr_name
    declared: dict[str, ValueInfoProto] = field(default_factory=dict)

    def find(self, name: str) -> Value | None:
        scope: NameScope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise KeyError(name)

    def knows(self, name: str) -> bool:
        return name in self.values or (self.parent is not None and self.parent.knows(name))


class Importer:
    """The import of one model. Use `run` once."""

    def __init__(
        self,
        model: ModelProto,
        weights: Mapping[str, memoryview],
        external: ExternalData,
        limits: Limits,
        shapes: Mapping[str, Given],
        dims: Mapping[str, int],
        constants: Mapping[str, Any],
        step_lengths: Mapping[str, str],
        secret: int = 0,
        is_bounded: bool = False,
    ) -> None:
        self.model, self.weights, self.external, self.limits = model, weights, external, limits
        self.shapes, self.dims, self.constants = shapes, dims, constants
        self.inputs: dict[str, Place] = {}
        self.outputs: dict[str, Place] = {}
        self.functions = Functions(model.functions, limits)
        self.words: dict[int, str] = {}  # the model's strings, by code
        self.lies: dict[str, str] = {}  # what the model says wrongly, by name of the value
        self.lacking: dict[str, str] = {}  # outputs of nodes that no handler computes
        self.num_nodes = 0
        self.builder = GraphBuilder(
            model.graph.name or "graph",
            fold_bytes=limits.fold_bytes,
            tensor_bytes=limits.tensor_bytes,
            operators=limits.operators,
            secret=secret,
        )
        self.builder.counts = {} if is_bounded else None
        self.counts: dict[str, tuple[int, str]] = {}  # outputs with a bound: the axis, and the output with the number
        self.lengths = StepLengths(self.builder, step_lengths)

    def check(self) -> NameScope:
        """Return the outermost scope. Raises ModelError for unsupported operators, and for too many nodes."""
        scope = NameScope(NEWEST_OPSETS | opsets_of(self.model.opset_import, "the model"))
        self.functions.require_small(self.model.graph.node)
        self.functions.require_supported(self.model.graph.node, scope.opsets)
        return scope

    def run(self) -> Graph:
        graph, scope = self.model.graph, self.check()
        self._declare(graph, scope)
        if not graph.output:
            raise ModelError("the graph has no outputs")
        initializers = self._initializers(graph, scope)
        known_inputs = [v for v in graph.input if v.name not in initializers]
        ports = [declared(v) for v in known_inputs]
        self._check_given(ports)
        given = {*self.shapes, *self.constants}
        require_closed([p for p in ports if not p.is_list and p.name not in given], self.dims)
        for port, value in zip(ports, known_inputs, strict=True):
            if port.name in scope.values:
                raise ModelError(f"two inputs are named {port.name!r}")
            scope.values[port.name], self.inputs[port.name] = self._input(port, value)
        self._nodes(graph.node, scope)
        for name in dict.fromkeys(value.name for value in graph.output):
            self.outputs[name] = self._output(name, scope)
        self._warn()
        built = self.builder.build()
        return replace(built, symbols=_symbols(built, [*ports, *map(declared, graph.output)]))

    def _warn(self) -> None:
        """Warn of what the model says wrongly about itself. ONNX Runtime runs such models with a warning, too."""
        if self.lies:
            more = f"; and {len(self.lies) - 5} more" * (len(self.lies) > 5)
            said = "; ".join([*self.lies.values()][:5])
            warnings.warn(message(f"the model says what does not hold: {said}{more}"), ModelWarning, stacklevel=2)

    def _check_given(self, ports: Sequence[Declared]) -> None:
        """Raise ModelError for a name in `shapes`, `constants` or `dims` that the model does not have."""
        names = [p.name for p in ports]
        parts = [e for p in ports if p.is_list for e in element_names(p.name, len(self.shapes.get(p.name) or ()))]
        symbols = [e for p in ports for e in p.shape or () if isinstance(e, str)]
        for keyword, given, known, what in (
            ("shapes", self.shapes, names, "input"),
            ("constants", self.constants, [*names, *parts], "input"),
            ("dims", self.dims, symbols, "symbolic dimension"),
        ):
            for name in given:
                if name not in known:
                    listed = ", ".join(dict.fromkeys(known[:20])) or "(none)"
                    hint = did_you_mean(name, known) or f"{what}s are {listed}"
                    raise ModelError(f"{keyword}= names {name!r}, which is no {what} of the model", hint=hint)

    def _input(self, port: Declared, value: ValueInfoProto) -> tuple[Value | None, Place]:
        """Return the value of an input, and its names in the graph."""
        given = self.shapes.get(port.name)
        if port.is_optional and port.name in self.shapes and given is None:
            return None, None
        if port.key or (port.is_list and port.is_text):
            raise ModelError(f"{port.what} is a {port.type}", hint="maps and lists of strings may only be results")
        if not port.is_list:
            shape = cast("Shape | None", given)
            tensor = self._tensor_input(port, port.name, shape)
            made = Text(tensor) if port.is_text else tensor
            if port.name in self.constants and not port.is_optional:
                self._check_declared(value, made)
            return made, Text(port.name) if port.is_text else port.name
        if port.name not in self.shapes:
            raise ModelError(
                f"{port.what} is a list: how many tensors, of which shapes?",
                hint=f"pass shapes={{{port.name!r}: [(…), …]}}, or use rammer.Session, which sees the list",
            )
        names = element_names(port.name, len(given or ()))
        shapes = cast("tuple[Shape, ...]", given)
        found = tuple(self._tensor_input(port, name, shape) for name, shape in zip(names, shapes, strict=True))
        return TensorList(found, port.dtype if port.element else None), names

    def _tensor_input(self, port: Declared, name: str, shape: Shape | None) -> TensorId:
        if name in self.constants:  # fixed by the caller
            tensor = self.builder.constant(np.asarray(self.constants[name]), name)
            if port.element and self.builder.types[tensor].dtype is not port.dtype:
                raise ModelError(f"{name!r} is declared as {port.dtype.value} but is {self.builder.types[tensor]}")
            return tensor
        kind = fixed_type(port, shape, self.dims, self.limits)
        return self.builder.input(name, kind.shape, kind.dtype)

    def _output(self, name: str, scope: NameScope) -> Place:
        """Make a value an output of the graph, and return its names there."""
        value = self._result(name, scope, "the graph")
        if value is None:
            return None
        if name in self.builder.inputs:  # a graph needs another name
            self.lies[name] = f"{name!r} is an input and an output: a program calls the output {f'{name}#1'!r}"
            name = f"{name}#1"
        if isinstance(value, Text | Maps):
            self.builder.output(value.tensor, name)
            return replace(value, tensor=name)
        if not isinstance(value, TensorList):
            self.builder.output(value, name)
            if self.builder.counts and value in self.builder.counts:
                axis, count = self.builder.counts[value]
                given = {v.name for v in self.model.graph.output}
                unused = next(n for k in range(1, 2 + len(given)) if (n := f"{name}{'#' * k}count") not in given)
                self.counts[name] = axis, unused
                self.builder.output(count, unused)
            return name
        names = element_names(name, len(value.tensors))
        for tensor, part in zip(value.tensors, names, strict=True):
            self.builder.output(tensor, part)
        return names

    # values

    def _declare(self, graph: GraphProto, scope: NameScope) -> None:
        for value in (*graph.value_info, *graph.output):
            scope.declared[value.name] = value

    def _initializers(self, graph: GraphProto, scope: NameScope) -> set[str]:
        latest = initializers_of(graph)
        if "" in latest:
            raise ModelError("an initializer has no name")
        if twice := [name for name, count in Counter(t.name for t in graph.initializer).items() if count > 1]:
            self.lies[twice[0]] = f"{twice[0]!r} names several initializers: the last one counts"
        for name, tensor in latest.items():
            taken = self.weights.get(name) if scope.parent is None else None
            scope.values[name] = self._literal(tensor, taken, "" if scope.parent else name)
        for value in graph.input:
            if value.name in latest and scope.parent is None:
                self._check_declared(value, scope.values[value.name])
        return {*latest}

    def _literal(self, tensor: TensorProto | SparseTensorProto, raw: memoryview | None = None, name: str = "") -> Value:
        """Return a constant, which may have strings."""
        if isinstance(tensor, SparseTensorProto) or tensor.data_type != TensorProto.STRING:
            return self.builder.constant(decode(tensor, self.external, raw), name)
        return Text(self.builder.constant(codes_of(tensor, self.words), name))

    def _check_declared(self, value: ValueInfoProto, tensor: Value | None, *, computed: bool = False) -> None:
        """Compare a tensor's type with its declaration; symbolic dimensions match any extent.

        Raises ModelError for another element type or shape. For a tensor that a node computed, another shape is only
        noted: exporters declare wrong ones, and the computed shape is right.
        """
        if tensor is None or isinstance(tensor, TensorList | Maps) or not value.type.HasField("tensor_type"):
            return
        is_text = isinstance(tensor, Text)
        declared = value.type.tensor_type
        kind = self.builder.types[tensor.tensor if isinstance(tensor, Text) else tensor]
        said = ELEMENT_TYPES.get(declared.elem_type)
        if declared.elem_type and not (declared.elem_type == TensorProto.STRING if is_text else said is kind.dtype):
            name = said.value if said else f"element type {declared.elem_type}"
            raise ModelError(f"{value.name!r} is declared as {name} but is {kind}")
        if declared.HasField("shape"):
            dims = [extent_of(d) for d in declared.shape.dim]
            if len(dims) != kind.rank or any(
                isinstance(d, int) and d != e for d, e in zip(dims, kind.shape, strict=False)
            ):
                said_dims = ", ".join("?" if d is None else str(d) for d in dims)
                lie = f"{value.name!r} is declared with shape [{said_dims}] but is {kind}"
                if not computed:
                    raise ModelError(lie)
                self.lies[value.name] = lie

    def _result(self, name: str, scope: NameScope, what: str) -> Value | None:
        if name in self.lacking:
            raise ModelError(self.lacking[name])
        if not scope.knows(name):
            raise ModelError(f"output {name!r} of {what} is produced by no node", hint=did_you_mean(name, scope.values))
        return scope.find(name)

    # nodes

    def _nodes(self, nodes: Sequence[NodeProto], scope: NameScope) -> None:
        self.num_nodes += max(len(nodes), 1)  # an empty body counts too: a Loop may repeat it
        if self.num_nodes > self.limits.nodes:
            raise ModelError(f"the model has more than {self.limits.nodes} nodes", hint="raise Limits.nodes")
        for node in self._sorted(nodes, scope):
            label = label_of(node)
            try:
                self._node(node, label, scope)
            except ModelError as error:
                error.locate(node=label, op=node.op_type)
                if isinstance(error, NotConstant):
                    error.at = next(filter(None, node.output), "")
                raise
            except RammerError as error:
                raise ModelError(error.what, node=label, op=node.op_type, hint=error.hint) from error
            except (ArithmeticError, LookupError, TypeError, ValueError, MemoryError, RecursionError) as error:
                raise ModelError(
                    f"cannot be imported: {type(error).__name__}: {error}",
                    node=label,
                    op=node.op_type,
                    hint="the node does not follow the ONNX standard, or this is a defect of rammer: please report it",
                ) from error

    def _sorted(self, nodes: Sequence[NodeProto], scope: NameScope) -> Sequence[NodeProto]:
        """Return the nodes in an order that defines names before use.

        Raises ModelError for cycles and unknown names.
        """
        producer: dict[str, int] = {}
        for n, node in enumerate(nodes):
            for name in node.output:
                if name and (name in producer or name in scope.values):
                    raise ModelError(f"output {name!r} names another value, too", node=label_of(node), op=node.op_type)
                if name:
                    producer[name] = n
        edges = []
        for n, node in enumerate(nodes):
            for name in reads(node, self.limits.depth):
                if (source := producer.get(name)) is not None:
                    edges.append((source, n))
                elif not scope.knows(name):
                    raise ModelError(
                        f"input {name!r} is produced by no node",
                        node=label_of(node),
                        op=node.op_type,
                        hint=did_you_mean(name, producer) or "it must be an input, an initializer or a node's output",
                    )
        return [nodes[n] for n in topological_order(len(nodes), edges, lambda n: label_of(nodes[n]))]

    def _node(self, node: NodeProto, label: str, scope: NameScope) -> None:
        domain = domain_of(node.domain)
        if lacking := [name for name in node.input if name in self.lacking]:
            raise ModelError(self.lacking[lacking[0]])
        inputs = tuple(scope.find(name) if name else None for name in node.input)
        self._require_exact(inputs)
        if (function := self.functions.called(node)) is not None:
            defaults = {a.name: a for a in function.attribute_proto}
            given = {a.name: a for a in self._resolved(node, scope)}
            if unknown := set(given) - {*function.attribute, *defaults}:
                raise ModelError(f"function has no attribute {sorted(unknown)[0]!r}")
            results: Sequence[Value | None] = self._inline(function, inputs, node.output, {**defaults, **given}, scope)
        else:
            results = self._operator(node, label, domain, inputs, scope)
        for name in node.output[len(results) :]:  # reading one is refused
            scope.values[name] = None
            self.lacking[name] = f"{name!r} is an output of {label!r}, of which only {len(results)} are supported"
        for name, tensor in zip(node.output, results, strict=False):
            if name:
                scope.values[name] = tensor
                if name in scope.declared and tensor not in (self.builder.counts or ()):  # these have a bound
                    self._check_declared(scope.declared[name], tensor, computed=True)

    def _require_exact(self, values: Sequence[Value | None]) -> None:
        """Raise NotConstant for a tensor whose size is only known at run time."""
        for found in (self.builder.counts[t] for t in values if self.builder.counts and t in self.builder.counts):
            error = NotConstant("an operand's size is only known at run time", hint="rammer.Session cuts the model")
            error.inputs, error.counted = self.builder.sources(found[1]), True
            raise error

    def _resolved(self, node: NodeProto, scope: NameScope) -> list[AttributeProto]:
        """Return the node's attributes, with references to the attributes of the enclosing function replaced."""
        found = []
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                found.append(attribute)
            elif (given := scope.attributes.get(attribute.ref_attr_name)) is not None:
                copy = AttributeProto()
                copy.CopyFrom(given)
                copy.name = attribute.name
                found.append(copy)
        return found

    def _operator(
        self, node: NodeProto, label: str, domain: str, inputs: tuple[Value | None, ...], scope: NameScope
    ) -> Sequence[Value | None]:
        opset = scope.opsets.get(domain)
        if opset is None:
            raise ModelError(f"domain {domain!r} is not imported")
        found = signature(node.op_type, opset, domain)
        handler = handler_for(domain, node.op_type, opset)
        attributes = self._resolved(node, scope)
        values = attribute_values(attributes, found, self.limits.attribute_length)
        bound = self._check_operands(found, inputs, len(node.output)) if found is not None else {}
        if handler is None:
            assert found is not None
            return self._inline_schema(node, found, attributes, inputs, scope)
        view = Node(
            node.op_type,
            label,
            opset,
            inputs,
            tuple(bool(name) for name in node.output),
            values,
            self.builder,
            self.limits,
            lambda tensor: decode(tensor, self.external),
            lambda graph, given: self._subgraph(graph, given, scope),
            self.lengths,
            self.words,
        )
        result = handler(view)
        results = (result,) if isinstance(result, str | TensorList | Text | Maps) else result
        if found is None or None not in bound.values():
            return results
        kinds = [bound.get(found.outputs[min(k, len(found.outputs) - 1)], DType.I64) for k in range(len(results))]
        return [Text(r) if kind is None and isinstance(r, str) else r for r, kind in zip(results, kinds, strict=True)]

    def _check_operands(
        self, found: Signature, inputs: tuple[Value | None, ...], num_outputs: int
    ) -> dict[str, DType | None]:
        """Check the number of operands, and the standard's type constraints. Raises ModelError.

        Return the type of each type variable, None for strings.
        """
        least, most = found.schema.min_input, found.schema.max_input
        if not least <= len(inputs) <= most:
            wanted = f"{least}…{most}" if most < 1 << 30 else f"≥ {least}"
            raise ModelError(f"has {len(inputs)} inputs; opset {found.since} says {wanted}")
        if num_outputs > found.schema.max_output:
            raise ModelError(f"has {num_outputs} outputs; opset {found.since} says at most {found.schema.max_output}")
        bound: dict[str, DType | None] = {}
        for n, tensor in enumerate(inputs):
            name, variable, optional = found.operand(n)
            if tensor is None:
                if not optional:
                    raise ModelError(f"input {n} ({name!r}) is missing")
                continue
            if isinstance(tensor, TensorList):
                if variable not in found.lists:
                    raise ModelError(f"input {n} ({name!r}) is a sequence, which opset {found.since} does not allow")
                continue
            if isinstance(tensor, Maps):
                raise ModelError(f"input {n} ({name!r}) is a list of maps", hint="maps may only be results")
            if isinstance(tensor, Text):
                if variable not in found.texts or found.schema.name not in TEXT_OPS:
                    hint = "strings are compared, looked up and moved: compute them before the model, or after it"
                    raise ModelError(f"input {n} ({name!r}) has strings", hint=hint)
                if bound.setdefault(variable, None) is not None:
                    raise ModelError(f"input {n} ({name!r}) has strings, another operand has none")
                continue
            dtype, allowed = self.builder.types[tensor].dtype, found.types.get(variable)
            if allowed is None or (dtype not in allowed and self._newer_allows(found, n, dtype, name)):
                continue
            if dtype not in allowed:
                raise ModelError(f"input {n} ({name!r}) is {dtype.value}, which opset {found.since} does not allow")
            if n >= len(found.inputs) - 1 and not found.homogeneous:
                continue
            if (other := bound.setdefault(variable, dtype)) is not dtype:
                seen = other.value if other else "string"
                raise ModelError(f"input {n} ({name!r}) is {dtype.value}, another operand is {seen}")
        return bound

    def _newer_allows(self, found: Signature, position: int, dtype: DType, name: str) -> bool:
        """Check whether the newest opset allows this type for an operand. It is noted as wrong in this one."""
        domain = found.schema.domain
        newest = signature(found.schema.name, NEWEST_OPSETS.get(domain, found.since), domain)
        if newest is None or not newest.inputs or dtype not in newest.types.get(newest.operand(position)[1], ()):
            return False
        said = f"input {position} ({name!r}) of {found.schema.name} is {dtype.value}, which opset {found.since} has not"
        self.lies[f"{found.schema.name} {position}"] = said
        return True

    # nested graphs

    def _nested(self, scope: NameScope, opsets: Opsets, *, parent: NameScope | None) -> NameScope:
        if scope.depth >= self.limits.depth:
            raise ModelError(
                f"functions and subgraphs are nested deeper than {self.limits.depth}",
                hint="recursive functions are not allowed; raise Limits.depth if this is none",
            )
        return NameScope(opsets, parent, scope.depth + 1)

    def _subgraph(self, graph: GraphProto, given: Sequence[Value | None], outer: NameScope) -> tuple[Value | None, ...]:
        """Import a subgraph with these inputs, and return its outputs."""
        scope = self._nested(outer, outer.opsets, parent=outer)
        if len(graph.input) != len(given):
            raise ModelError(f"the subgraph has {len(graph.input)} inputs instead of {len(given)}")
        scope.values.update((v.name, t) for v, t in zip(graph.input, given, strict=True))
        scope.attributes = outer.attributes
        self.functions.require_supported(graph.node, scope.opsets)
        self._declare(graph, scope)
        self._initializers(graph, scope)
        self._nodes(graph.node, scope)
        results = tuple(self._result(v.name, scope, "a subgraph") for v in graph.output)
        self._require_exact(results)
        return results

    def _inline(
        self,
        function: FunctionProto,
        inputs: Sequence[Value | None],
        outputs: Sequence[str],
        attributes: Mapping[str, AttributeProto],
        outer: NameScope,
    ) -> tuple[Value | None, ...]:
        """Import the body of a function at a call, and return its outputs."""
        if len(inputs) > len(function.input):
            raise ModelError(f"function {function.name!r} takes {len(function.input)} inputs, not {len(inputs)}")
        scope = self._nested(outer, opsets_of(function.opset_import, f"function {function.name!r}"), parent=None)
        scope.attributes = attributes
        for n, name in enumerate(function.input):
            scope.values[name] = inputs[n] if n < len(inputs) else None
        self._nodes(function.node, scope)
        what = f"function {function.name!r}"
        return tuple(
            self._result(name, scope, what) if asked else None
            for name, asked in zip_longest(function.output, outputs, fillvalue="")
            if name
        )

    def _inline_schema(
        self,
        node: NodeProto,
        found: Signature,
        attributes: Sequence[AttributeProto],
        inputs: tuple[Value | None, ...],
        scope: NameScope,
    ) -> Sequence[Value | None]:
        """Import an operator that the standard defines by other operators, and return its outputs."""
        domain, resolved = domain_of(node.domain), NodeProto()
        resolved.CopyFrom(node)
        del resolved.attribute[:]
        resolved.attribute.extend(attributes)
        types = [self._proto(value) for value in inputs]
        function = schema_function(resolved, found, scope.opsets[domain], types)
        if function is None:
            raise ModelError("is not supported, and has no function body for these operands")
        inner = {domain_of(i.domain) for i in function.opset_import}
        for other, opset in scope.opsets.items():  # opsets that the body does not import are the call's
            if other not in inner:
                function.opset_import.add(domain=other, version=opset)
        self.functions.require_supported(function.node, {domain_of(i.domain): i.version for i in function.opset_import})
        defaults = {name: default for name, default in found.defaults if name not in {a.name for a in attributes}}
        return self._inline(function, inputs, node.output, {**defaults, **{a.name: a for a in attributes}}, scope)

    def _proto(self, value: Value | None) -> TypeProto:
        """Return a value's type as a TypeProto."""
        if isinstance(value, Text):
            return helper.make_tensor_type_proto(TensorProto.STRING, self.builder.types[value.tensor].shape)
        if value is None or isinstance(value, Maps):
            return TypeProto()
        if not isinstance(value, TensorList):
            return _type_proto(self.builder.types[value])
        kinds = {self.builder.types[t] for t in value.tensors}
        if len(kinds) == 1:
            return helper.make_sequence_type_proto(_type_proto(kinds.pop()))
        if value.dtype is None:
            return TypeProto()
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(CODES[value.dtype], None))


def _symbols(graph: Graph, ports: Sequence[Declared]) -> dict[TensorId, Symbols]:
    """Return the model's names for the dimensions of inputs and outputs, where the ranks match."""
    found = {}
    for port in ports:
        names = tuple(e if isinstance(e, str) else None for e in port.shape or ())
        if any(names) and port.name in graph.types and len(names) == graph.types[port.name].rank:
            found[port.name] = names
    return found


def _type_proto(kind: TensorType) -> TypeProto:
    return helper.make_tensor_type_proto(CODES[kind.dtype], kind.shape)
