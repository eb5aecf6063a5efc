"""Check the inputs of a session's call against what the model declares."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rammer.errors import InputError, did_you_mean
from rammer.ir.tensor import Array
from rammer.runtime.call import as_array, check_names, on_gpu
from rammer.vdevice.base import DeviceBuffer, conversion_hint

if TYPE_CHECKING:
    from rammer.frontend.onnx import Declared
    from rammer.session.buckets import Adjustment

Shapes: TypeAlias = "dict[str, tuple[Any, ...] | None]"  # a list has the shapes of its elements, a missing value None
Arrays: TypeAlias = "dict[str, Any]"  # elements of lists have names of their own

HASHED_BYTES = 64  # larger values are compared by digest
SMALL_BYTES = 128  # integers up to this size may be part of a signature


@dataclass(frozen=True)
class SessionPort:
    """An input or output. `type` is ONNX's name: "tensor(float)".

    `shape` has names for symbolic dimensions and None for unknown ones. It is None if the rank is unknown.
    """

    name: str
    shape: list[int | str | None] | None = field(hash=False)  # a list, as in ONNX Runtime
    type: str


@dataclass(frozen=True)
class Request:
    """The values of a call: shapes by input, arrays by name of a tensor."""

    shapes: Shapes
    arrays: Arrays = field(compare=False)
    masks: tuple[Adjustment, ...] = ()  # masks of padded operands


class Inputs:
    """The inputs that a model declares. `dims` are the extents of symbolic dimensions that are fixed."""

    def __init__(self, ports: Mapping[str, Declared], dims: Mapping[str, int]) -> None:
        self.ports, self.dims = ports, dims
        self.require_symbols("dims", dims)
        self.optional = tuple(name for name, port in ports.items() if port.is_optional)

    def shown(self, port: Declared) -> SessionPort:
        """Return an input or output with the fixed extents in its shape."""
        shape = None if port.shape is None else [self.dims.get(e, e) if isinstance(e, str) else e for e in port.shape]
        return SessionPort(port.name, shape, port.type)

    def zeros(self, port: Declared, extents: Mapping[str, int]) -> Array:
        """Return the initial value of a state."""
        shape = [extents.get(e) if isinstance(e, str) else e for e in port.shape or ()]
        known = [e for e in shape if e is not None]
        if port.is_list or port.shape is None or len(known) < len(shape):
            raise InputError(f"the shape of state {port.name!r} is open", hint="give it once, or reset(…) to a value")
        return np.zeros(known, port.dtype.numpy)

    def require_symbols(self, keyword: str, names: Iterable[str]) -> None:
        """Raise InputError for a name that is not a symbolic dimension of any input."""
        symbols = sorted({e for port in self.ports.values() for e in port.shape or () if isinstance(e, str)})
        for name in names:
            if name not in symbols:
                hint = did_you_mean(name, symbols) or f"symbolic dimensions are {', '.join(symbols) or '(none)'}"
                raise InputError(f"{keyword}= names {name!r}, which is no symbolic dimension of the model", hint=hint)

    def symbols(self, shapes: Mapping[str, Any], without: Container[str] = ()) -> dict[str, int]:
        """Return the extents of symbols, by the shapes of all inputs but those of `without`."""
        return {
            symbol: extent
            for name, shape in shapes.items()
            if name not in without
            for symbol, extent in self._named(name, shape)
            if isinstance(symbol, str)
        }

    def _named(self, name: str, shape: Any) -> Iterator[tuple[str | int | None, int]]:
        """Yield the symbols and extents of an input's dimensions; nothing for a list."""
        port = self.ports[name]
        if shape is not None and port.shape is not None and not port.is_list:
            yield from zip(port.shape, shape, strict=True)

    def with_extents(self, shapes: Mapping[str, Any], extents: Mapping[str, int]) -> dict[str, Any]:
        """Return the shapes with other extents of symbols."""

        def changed(symbol: str | int | None, extent: int) -> int:
            return extents.get(symbol, extent) if isinstance(symbol, str) else extent

        found = dict(shapes)
        for name, shape in shapes.items():
            if named := list(self._named(name, shape)):
                found[name] = tuple(changed(symbol, extent) for symbol, extent in named)
        return found

    def flat(self, inputs: Mapping[str, Any]) -> tuple[Shapes, Arrays]:
        """Return shapes by input and arrays by tensor, checked against what the model declares. Raises InputError."""
        shapes: Shapes = {}
        arrays: Arrays = {}
        for name, port in self.ports.items():
            value = inputs.get(name)
            if value is None:
                if port.is_optional:
                    shapes[name] = None
                elif name in inputs:
                    raise InputError(f"input {name!r} is None", hint="only inputs of optional type may be")
                continue
            if not port.is_list:
                arrays[name] = self._array(port, name, value)
                shapes[name] = tuple(arrays[name].shape)
                continue
            if not isinstance(value, list | tuple):
                raise InputError(f"input {name!r} is a {type(value).__name__}", hint="it is a list of tensors")
            parts = _parts(name, len(value))
            arrays |= {part: self._array(port, part, v) for part, v in zip(parts, value, strict=True)}
            shapes[name] = tuple(tuple(arrays[part].shape) for part in parts)
        return shapes, arrays

    def words(self, inputs: Mapping[str, Any], known: Mapping[int, str]) -> Mapping[int, str]:
        """Return known strings and those of the inputs, by code."""
        words = dict(known)
        for name, value in inputs.items():
            if self.ports[name].is_text and value is not None:
                _encoded(value, words)
        return words

    def _array(self, port: Declared, name: str, value: Any) -> Any:
        if on_gpu(value) or isinstance(value, DeviceBuffer):  # Room: state in a program's buffer
            return value
        if port.is_text:
            return _encoded(value, {})
        array = as_array(name, value, port.dtype)
        if array.dtype.newbyteorder("=") != port.dtype.numpy:
            raise InputError(
                f"input {name!r}: dtype {array.dtype.name}, the model takes {port.dtype.value}",
                hint=conversion_hint(port.dtype),
            )
        return array

    def extents(self, shapes: Shapes) -> dict[str, int]:
        """Return the extents of symbolic dimensions. Raises InputError for shapes that the model does not admit."""
        extents: dict[str, int] = dict(self.dims)
        for name, given in shapes.items():
            port = self.ports[name]
            if port.shape is None or given is None:
                continue
            for shape in given if port.is_list else (given,):
                said = ", ".join("?" if e is None else str(e) for e in port.shape)
                if len(shape) != len(port.shape):
                    raise InputError(f"input {name!r}: rank {len(shape)}, the model takes [{said}]")
                for axis, (got, extent) in enumerate(zip(shape, port.shape, strict=True)):
                    wanted = extent
                    if isinstance(extent, str):  # elements of a list may differ
                        wanted = self.dims.get(extent) if port.is_list else extents.setdefault(extent, got)
                    if wanted is not None and got != wanted:
                        symbol = f", where {extent!r} is {wanted}" if isinstance(extent, str) else ""
                        raise InputError(f"input {name!r}: axis {axis} is {got}, the model takes [{said}]{symbol}")
        return extents

    def value(self, name: str, request: Request) -> Any:
        """Return the value of an input: an array, a list of arrays, or None."""
        shape = request.shapes.get(name)
        if shape is None or not self.ports[name].is_list:
            return request.arrays.get(name)
        return [request.arrays[part] for part in _parts(name, len(shape))]

    def example(self, name: str) -> Any:
        """Return a value of an input's type, with 0 elements."""
        port = self.ports[name]
        tensor = np.zeros(0, port.dtype.numpy)
        return [tensor] if port.is_list else tensor

    def asked(self, signature: Mapping[str, Any], bounds: Mapping[str, int]) -> Request:
        """Return the request that a run of this signature would make, as far as it decides what is compiled."""
        symbols = {e for port in self.ports.values() for e in port.shape or () if isinstance(e, str)}
        check_names({n: v for n, v in signature.items() if n not in symbols}, self.ports, tuple(self.ports))
        extents = (
            dict(self.dims)
            | dict(bounds)
            | {n: v for n, v in signature.items() if n in symbols and n not in self.ports}
        )
        shapes: Shapes = {}
        given: dict[str, Any] = {}
        for name, port in self.ports.items():
            value = signature.get(name)
            if isinstance(value, np.ndarray | np.generic) or (port.is_list and _holds_arrays(value)):
                given[name] = value
            elif value is not None or (port.is_optional and name in signature):
                shapes[name] = value if value is None else tuple(value)
            elif port.is_optional:
                shapes[name] = None
            elif port.is_list or port.shape is None:
                raise InputError(f"the signature says nothing about input {name!r}", hint=f"give {name!r} its shape")
            else:
                known = [extents.get(e) if isinstance(e, str) else e for e in port.shape]
                if None in known:
                    open_ = port.shape[known.index(None)]
                    hint = f"for example {{{open_!r}: 8}}" if open_ else f"give {name!r} its shape"
                    raise InputError(f"the signature leaves dimension {open_ or '?'!r} of {name!r} open", hint=hint)
                shapes[name] = tuple(known)
        more, arrays = self.flat(given)
        ordered = {name: (shapes | more)[name] for name in self.ports if name in shapes or name in more}
        self.extents(ordered)
        return Request(ordered, arrays)


def _parts(name: str, number: int) -> tuple[str, ...]:
    """Return the names of a list's elements."""
    # onnx is imported by now
    from rammer.frontend.onnx.ports import element_names

    return element_names(name, number)


def _encoded(value: Any, words: dict[int, str]) -> Array:
    """Return the codes of strings, and add these to `words`."""
    # onnx is imported by now
    from rammer.frontend.onnx.text import encode

    return encode(value, words)


def _holds_arrays(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(v, np.ndarray) for v in value)


def is_small(value: Any) -> bool:
    """Check whether a value is at most SMALL_BYTES of integers, such as axes and sizes."""
    return value.dtype.kind in "iub" and value.nbytes <= SMALL_BYTES


def is_flag(value: Any) -> bool:
    """Check whether a value is a single boolean."""
    return str(value.dtype) == "bool" and value.size == 1


def host_value(name: str, value: Any) -> Array:
    if on_gpu(value):
        raise InputError(f"input {name!r} decides shapes, and lies on a GPU", hint="give it as a NumPy array")
    return np.asarray(value)


def content(name: str, value: Any) -> Hashable:
    """Return a key of the value: its bytes, or their digest if there are more than HASHED_BYTES."""
    data = host_value(name, value).tobytes()
    return data if len(data) <= HASHED_BYTES else hashlib.sha256(data).digest()


def shape_text(given: Any) -> str:
    if given is None:
        return "none"
    return (
        f"[{', '.join(map(shape_text, given))}]" if given and isinstance(given[0], tuple) else "×".join(map(str, given))
    )
