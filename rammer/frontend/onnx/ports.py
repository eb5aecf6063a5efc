"""Describe inputs and outputs, as a model declares them and as a graph has them: tensors, lists, optional values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from onnx import TensorProto, TypeProto, ValueInfoProto, helper

from rammer.errors import ModelError
from rammer.frontend.onnx.limits import Limits
from rammer.frontend.onnx.tensors import element_type
from rammer.ir.tensor import DType, Shape, TensorId, TensorType

Extent: TypeAlias = int | str | None  # known, symbolic, or unknown
Given: TypeAlias = "Shape | tuple[Shape, ...] | None"  # a tensor's shape, those of a list, or an optional without value
Place: TypeAlias = "TensorId | tuple[TensorId, ...] | Text | Maps | None"  # a port's names in a graph


_SAYS_NOTHING = re.compile(r"\??|-1|None|unk__\d+")  # meaningless names of dimensions; the last one is tf2onnx's


@dataclass(frozen=True, slots=True)
class TensorList:
    """A sequence whose length is known at compile time.

    `dtype` is None if neither the model nor an element gives it.
    """

    tensors: tuple[TensorId, ...]
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A tensor of strings: its elements' codes (`text.py`)."""

    tensor: TensorId


@dataclass(frozen=True, slots=True)
class Maps:
    """A list of maps, one for each row of a matrix: from these keys to the numbers of the row."""

    tensor: TensorId
    keys: tuple[int | str, ...]


Value: TypeAlias = "TensorId | TensorList | Text | Maps"  # an optional value is itself, or None


@dataclass(frozen=True, slots=True)
class Declared:
    """An input or output of a model. `shape` is None if not even the rank is known."""

    name: str
    element: int  # ONNX's number
    shape: tuple[Extent, ...] | None
    is_list: bool = False
    is_optional: bool = False
    key: int = TensorProto.UNDEFINED  # of a map: ONNX's number of the keys' type

    @property
    def type(self) -> str:
        """Name of the type in ONNX: "tensor(float)", "optional(seq(tensor(int64)))", "seq(map(int64,…))"."""
        name = f"tensor({_type_name(self.element)})"
        name = f"map({_type_name(self.key)},{name})" if self.key else name
        name = f"seq({name})" if self.is_list else name
        return f"optional({name})" if self.is_optional else name

    @property
    def what(self) -> str:
        return f"input {self.name!r}"

    @property
    def is_text(self) -> bool:
        return self.element == TensorProto.STRING

    @property
    def dtype(self) -> DType:
        """Element type; strings have codes. Raises ModelError for an unsupported one."""
        return DType.I64 if self.is_text else element_type(self.element, self.what)


def _type_name(code: int) -> str:
    return TensorProto.DataType.Name(code).lower() if code in TensorProto.DataType.values() else str(code)


def extent_of(dimension: Any) -> Extent:
    """Return a declared extent: a number, a symbol, or None if it is open.

    Exporters write -1 for an open extent, or meaningless names such as "unk__3": two dimensions with the same one may
    differ.
    """
    if dimension.HasField("dim_value"):
        return None if dimension.dim_value == -1 else int(dimension.dim_value)
    return None if _SAYS_NOTHING.fullmatch(dimension.dim_param) else dimension.dim_param


def declared(value: ValueInfoProto) -> Declared:
    """Return the declaration of an input or output. Raises ModelError for sparse tensors and deeper nesting."""
    if not value.name:
        raise ModelError("an input or output has no name")
    kind: TypeProto = value.type
    if optional := kind.HasField("optional_type"):
        kind = kind.optional_type.elem_type
    if is_list := kind.HasField("sequence_type"):
        kind = kind.sequence_type.elem_type
    if kind.WhichOneof("value") is None:  # outputs need no type
        return Declared(value.name, TensorProto.UNDEFINED, None, is_list, optional)
    key: int = TensorProto.UNDEFINED
    if kind.HasField("map_type"):
        key, kind = kind.map_type.key_type, kind.map_type.value_type
    if not kind.HasField("tensor_type"):
        seen = kind.WhichOneof("value")
        raise ModelError(f"{value.name!r} is not a tensor, but {seen}", hint="lists and optional tensors are supported")
    tensor = kind.tensor_type
    shape = tuple(map(extent_of, tensor.shape.dim)) if tensor.HasField("shape") else None
    return Declared(value.name, tensor.elem_type, shape, is_list, optional, key)


def type_of(value: Any) -> TypeProto:
    """Return the type of a tensor, list or missing value, with open shapes."""
    unknown = helper.make_tensor_type_proto(TensorProto.UNDEFINED, None)
    if value is None:
        return helper.make_optional_type_proto(unknown)
    if not isinstance(value, list):
        code = TensorProto.STRING if value.dtype.kind == "O" else helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_type_proto(code, None)
    return helper.make_sequence_type_proto(type_of(value[0]) if value else unknown)


def element_names(name: str, number: int) -> tuple[TensorId, ...]:
    """Return the names of the elements of a list of `number` tensors."""
    return tuple(f"{name}[{n}]" for n in range(number))


def require_closed(ports: Iterable[Declared], dims: Mapping[str, int]) -> None:
    """Raise ModelError if inputs without a given shape have open extents. It names all of them."""
    found: list[str] = []
    symbols, shapes = dict[str, int](), dict[str, tuple[int, ...]]()
    for port in ports:
        if port.shape is None:
            found.append(f"{port.what} has no shape")
            shapes[port.name] = (1,)
            continue
        is_open = [(n, e) for n, e in enumerate(port.shape) if e is None or (isinstance(e, str) and e not in dims)]
        if is_open:
            axes = ", ".join(f"axis {n}{f' ({extent!r})' if extent else ''}" for n, extent in is_open)
            found.append(f"{port.what} is open along {axes}")
            symbols |= {extent: 1 for _, extent in is_open if isinstance(extent, str)}
        if any(extent is None for _, extent in is_open):
            shapes[port.name] = tuple(e if isinstance(e, int) else 1 for e in port.shape)
    if found:
        ways = [f"{name}={values}" for name, values in (("dims", symbols), ("shapes", shapes)) if values]
        raise ModelError(
            "; ".join(found),
            hint=f"shapes are fixed at compile time: pass {' and '.join(ways)}, with the extents that you want; "
            "rammer.Session takes inputs of any shape",
        )


def fixed_type(port: Declared, given: Sequence[int] | None, dims: Mapping[str, int], limits: Limits) -> TensorType:
    """Return the type of an input from its declaration and what the caller fixes.

    Raises ModelError if they differ. No extent is open any more.
    """
    what, dtype, said = port.what, port.dtype, port.shape
    if said is None:
        assert given is not None
        return TensorType(tuple(given), dtype)
    if len(said) > limits.rank:
        raise ModelError(f"{what} has rank {len(said)}, the limit is {limits.rank}")
    if given is not None and len(given) != len(said):
        raise ModelError(f"shapes= gives {what} rank {len(given)}, the model says {len(said)}")
    shape = []
    for n, extent in enumerate(said):
        if isinstance(extent, int) and extent < 0:
            raise ModelError(f"{what} has extent {extent} along axis {n}", hint="extents cannot be negative")
        static = dims.get(extent) if isinstance(extent, str) else extent
        if given is not None:
            if static is not None and static != given[n]:
                says = "the model says" if isinstance(extent, int) else f"dims={{{extent!r}: …}} says"
                raise ModelError(f"shapes= gives {what} extent {given[n]} along axis {n}, {says} {static}")
            static = given[n]
        assert static is not None
        shape.append(static)
    return TensorType(tuple(shape), dtype)
