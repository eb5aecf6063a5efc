"""The ONNX importer: files, bytes or messages in, a Graph with static shapes out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from rammer import files
from rammer.errors import ModelError
from rammer.frontend.onnx.importer import Importer
from rammer.frontend.onnx.limits import Limits
from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.tensors import ExternalData
from rammer.frontend.onnx.wire import take_weights
from rammer.ir.graph import Graph

__all__ = ["Limits", "Node", "handles", "load", "load_with_files"]

ZIP = b"PK\3\4"  # saved programs begin so, and archives of other frameworks; no message of protobuf does


def load(
    source: str | os.PathLike[str] | bytes | ModelProto,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    base_dir: str | os.PathLike[str] | None = None,
) -> Graph:
    """Import an ONNX model from a path, serialized bytes, or a message.

    `shapes` fixes inputs with symbolic dimensions, `constants` the values of inputs that decide shapes (those are no
    inputs of the result). External data is read from the model's folder, or from `base_dir`
    for bytes and messages. Raises ModelError, and nothing else, for a model that cannot be imported.
    """
    return load_with_files(source, shapes=shapes, constants=constants, limits=limits, base_dir=base_dir)[0]


def load_with_files(
    source: str | os.PathLike[str] | bytes | ModelProto,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    base_dir: str | os.PathLike[str] | None = None,
) -> tuple[Graph, tuple[str, ...]]:
    """As `load`, and the files that the model was read from."""
    limits = limits or Limits()
    path = "" if isinstance(source, bytes | ModelProto) else os.fspath(source)
    folder = os.fspath(base_dir) if base_dir is not None else (os.path.dirname(path) or ".") if path else None
    try:
        model, weights = (source, {}) if isinstance(source, ModelProto) else _parse(source, limits)
        external = ExternalData(folder, limits)
        given = _by_name("constants", constants)
        graph = Importer(model, weights, external, limits, _shapes(shapes), given).run()
        return graph, ((path,) if path else ()) + external.files
    except ModelError as error:
        error.locate(path=path)
        raise
    except RecursionError:
        raise ModelError("the model is nested too deeply", path=path) from None


def _by_name(keyword: str, given: Any) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ModelError(
            f"{keyword}= is a {type(given).__name__}", hint=f"it maps names of inputs: {keyword}={{'x': …}}"
        )
    return given or {}


def _shapes(given: Any) -> dict[str, tuple[int, ...]]:
    """The extents that a caller gives inputs. Raises ModelError for what are none."""
    shapes = {}
    for name, shape in _by_name("shapes", given).items():
        try:
            shapes[name] = tuple(index(extent) for extent in shape)
        except TypeError:
            raise ModelError(
                f"shapes= gives input {name!r} {shape!r}, which is no list of integers",
                hint=f"one extent for every dimension: shapes={{{name!r}: (1, 64)}}",
            ) from None
    return shapes


def _parse(source: str | os.PathLike[str] | bytes, limits: Limits) -> tuple[ModelProto, dict[str, memoryview]]:
    """The message without its large weights, and these."""
    data = source if isinstance(source, bytes) else _read(os.fspath(source), limits)
    if len(data) > limits.file_bytes:
        raise ModelError(
            f"the model has {len(data)} bytes, the limit is {limits.file_bytes}", hint="raise Limits.file_bytes"
        )
    if not data:
        raise ModelError("the model is empty", hint="an ONNX file was expected")
    if data.startswith(ZIP):
        raise ModelError(
            "this is a zip and no ONNX model", hint="rammer.load_program and `rammer run` take saved programs"
        )
    try:
        model = ModelProto()
        rest, weights = take_weights(data)
        model.ParseFromString(rest)
        return model, weights
    except DecodeError as error:
        raise ModelError(f"this is no ONNX model: {error}", hint="an ONNX file in protobuf form was expected") from None


def _read(path: str, limits: Limits) -> bytes:
    """The bytes of a plain file of bounded size."""
    try:
        with files.open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limits.file_bytes:
                raise ModelError(
                    f"the file has {size} bytes, the limit is {limits.file_bytes}", hint="raise Limits.file_bytes"
                )
            return file.read(size)  # memory for as much as is asked for is reserved first
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ModelError(f"cannot be read: {reason}", path=path) from None
