"""Read operator signatures from the schemas of the onnx package: arity, attribute types, type constraints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, TypeProto, defs

from rammer.errors import ModelError, did_you_mean
from rammer.frontend.onnx.tensors import ELEMENT_TYPES
from rammer.ir.tensor import DType

NEWEST_OPSET = 28
# the standard's domains -> the oldest and the newest opset of each
OPSETS = {"": (1, NEWEST_OPSET), "ai.onnx.ml": (1, 5), "ai.onnx.preview": (1, 1), "ai.onnx.preview.training": (1, 1)}

# of domains that a model uses without importing them, as in ONNX Runtime
NEWEST_OPSETS = {domain: newest for domain, (_, newest) in OPSETS.items()} | {"com.microsoft": 1}
_EARLY = {"LayerNormalization": 17}  # ONNX Runtime's optimizer writes it for older opsets, too

# type of an attribute -> the field that has its value
_SINGLE = {AttributeProto.FLOAT: "f", AttributeProto.INT: "i", AttributeProto.TENSOR: "t", AttributeProto.GRAPH: "g"}

# the standard's name of a type -> the element type
_TYPE_NAMES = {f"tensor({TensorProto.DataType.Name(code).lower()})": dtype for code, dtype in ELEMENT_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Signature:
    """The standard's declaration of an operator at one opset."""

    schema: Any  # the library's OpSchema
    inputs: tuple[tuple[str, str, bool], ...]  # name, type variable, optional; the last one repeats if variadic
    homogeneous: bool  # whether all operands of a variadic input have one type
    attributes: dict[str, tuple[int, bool, Any]]  # name -> AttributeProto type, required, default (None: none)
    types: dict[str, frozenset[DType]]  # type variable -> element types of tensors
    lists: frozenset[str]  # type variables that may be sequences
    texts: frozenset[str]  # type variables that may be strings
    outputs: tuple[str, ...]  # type variables of results; the last one repeats if variadic
    defaults: tuple[tuple[str, AttributeProto], ...]  # attributes that have a default
    is_function: bool

    @property
    def since(self) -> int:
        """The opset that gave the operator this meaning."""
        return int(self.schema.since_version)

    def operand(self, position: int) -> tuple[str, str, bool]:
        return self.inputs[min(position, len(self.inputs) - 1)]


@lru_cache(maxsize=4096)
def signature(op: str, opset: int, domain: str) -> Signature | None:
    """Return the signature of a standard operator at an opset; None if there is no such operator."""
    try:
        schema: Any = defs.get_schema(op, opset if domain else max(opset, _EARLY.get(op, 0)), domain)
    except defs.SchemaError:
        return None
    options: Any = defs.OpSchema.FormalParameterOption
    variadic = bool(schema.inputs) and schema.inputs[-1].option == options.Variadic
    return Signature(
        schema=schema,
        inputs=tuple((p.name, p.type_str, p.option == options.Optional) for p in schema.inputs),
        homogeneous=not variadic or schema.inputs[-1].is_homogeneous,
        attributes={
            name: (int(a.type.value), a.required, attribute_value(a.default_value, None))
            for name, a in schema.attributes.items()
        },
        types={
            c.type_param_str: frozenset(_TYPE_NAMES[t] for t in _values(c) if t in _TYPE_NAMES)
            for c in schema.type_constraints
        }
        | {p.type_str: frozenset({_TYPE_NAMES[p.type_str]}) for p in schema.inputs if p.type_str in _TYPE_NAMES},
        lists=frozenset(
            c.type_param_str for c in schema.type_constraints if any(t.startswith("seq(") for t in _values(c))
        ),
        texts=frozenset(c.type_param_str for c in schema.type_constraints if "tensor(string)" in _values(c)),
        outputs=tuple(p.type_str for p in schema.outputs),
        defaults=tuple(
            (name, a.default_value)
            for name, a in schema.attributes.items()
            if a.default_value.type != AttributeProto.UNDEFINED
        ),
        is_function=schema.has_function or schema.has_context_dependent_function,
    )


def _values(constraint: Any) -> list[str]:
    """Return the types that a constraint allows. An optional type counts as its element's."""
    return [t[len("optional(") : -1] if t.startswith("optional(") else t for t in constraint.allowed_type_strs]


def schema_function(node: NodeProto, found: Signature, opset: int, inputs: Sequence[TypeProto]) -> FunctionProto | None:
    """Return the standard's definition of an operator by other operators; None if it has none for these operands."""
    schema = found.schema
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if versions:
        types = [t.SerializeToString() for t in inputs]
        body = schema.get_context_dependent_function_with_opset_version(max(versions), node.SerializeToString(), types)
    else:
        versions = [v for v in schema.function_opset_versions if v <= opset]
        body = schema.get_function_with_opset_version(max(versions)) if versions else b""
    function = FunctionProto.FromString(body) if body else None
    if function is not None and node.op_type == "AffineGrid":  # the standard's body also squeezes a batch of one
        for inner in (n for op in function.node for a in op.attribute for n in a.g.node if n.op_type == "Squeeze"):
            inner.input[1:] = ["one_1d"]
    return function


def attribute_value(attribute: AttributeProto, max_length: int | None) -> Any:
    """Return an attribute's value: a number, a string, a tuple of them, or the message of a tensor or graph."""
    match attribute.type:
        case kind if kind in _SINGLE:
            return getattr(attribute, _SINGLE[kind])
        case AttributeProto.STRING:
            return _text(attribute.s, attribute.name)
        case AttributeProto.FLOATS | AttributeProto.INTS as kind:
            values: Any = attribute.floats if kind == AttributeProto.FLOATS else attribute.ints
        case AttributeProto.STRINGS:
            values = tuple(_text(s, attribute.name) for s in attribute.strings)
        case AttributeProto.UNDEFINED if max_length is None:  # a schema's attribute without default
            return None
        case AttributeProto.TENSORS | AttributeProto.GRAPHS | AttributeProto.SPARSE_TENSOR:
            return attribute
        case AttributeProto.SPARSE_TENSORS | AttributeProto.TYPE_PROTO | AttributeProto.TYPE_PROTOS:
            return attribute
        case other:
            raise ModelError(f"attribute {attribute.name!r} has no valid type ({other})")
    if max_length is not None and len(values) > max_length:
        raise ModelError(
            f"attribute {attribute.name!r} has {len(values)} elements, the limit is {max_length}",
            hint="raise Limits.attribute_length",
        )
    return tuple(values)


def attribute_values(attributes: Sequence[AttributeProto], found: Signature | None, max_length: int) -> dict[str, Any]:
    """Return attribute values by name, with the standard's defaults. Raises ModelError for unknown or mistyped ones."""
    values: dict[str, Any] = {}
    for attribute in attributes:
        name = attribute.name
        if name in values:
            raise ModelError(f"attribute {name!r} is given twice")
        if found is not None:
            if name not in found.attributes:
                raise ModelError(
                    f"attribute {name!r} does not exist in opset {found.since}",
                    hint=did_you_mean(name, found.attributes),
                )
            kind = found.attributes[name][0]
            if attribute.type != kind:
                raise ModelError(f"attribute {name!r} is {type_name(attribute.type)} instead of {type_name(kind)}")
        values[name] = attribute_value(attribute, max_length)
    if found is not None:
        for name, (_, required, default) in found.attributes.items():
            if name not in values:
                if required:
                    raise ModelError(f"attribute {name!r} is missing")
                values[name] = default
    return values


def type_name(kind: int) -> str:
    """Return the name of an attribute type, for messages."""
    return str(AttributeProto.AttributeType.Name(kind)) if kind in AttributeProto.AttributeType.values() else str(kind)


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ModelError(f"attribute {name!r} is not valid UTF-8") from None
