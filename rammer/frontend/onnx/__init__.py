"""The ONNX importer: files, bytes or messages in, a Graph with static shapes out."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from rammer.errors import ModelError
from rammer.frontend.onnx.importer import Importer
from rammer.frontend.onnx.limits import Limits
from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.tensors import ExternalData
from rammer.frontend.onnx.wire import take_weights
from rammer.ir.graph import Graph

__all__ = ["Limits", "Node", "handles", "load"]


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
    limits = limits or Limits()
    path = "" if isinstance(source, bytes | ModelProto) else os.fspath(source)
    folder = os.fspath(base_dir) if base_dir is not None else (os.path.dirname(path) or ".") if path else None
    try:
        model, weights = (source, {}) if isinstance(source, ModelProto) else _parse(source, limits)
        given = {name: tuple(int(e) for e in shape) for name, shape in (shapes or {}).items()}
        return Importer(model, weights, ExternalData(folder, limits), limits, given, constants or {}).run()
    except ModelError as error:
        error.locate(path=path)
        raise
    except RecursionError:
        raise ModelError("the model is nested too deeply", path=path) from None


def _parse(source: str | os.PathLike[str] | bytes, limits: Limits) -> tuple[ModelProto, dict[str, memoryview]]:
    """The message without its large weights, and these."""
    data = source if isinstance(source, bytes) else _read(os.fspath(source), limits)
    if len(data) > limits.file_bytes:
        raise ModelError(
            f"the model has {len(data)} bytes, the limit is {limits.file_bytes}", hint="raise Limits.file_bytes"
        )
    if not data:
        raise ModelError("the model is empty", hint="an ONNX file was expected")
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
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ModelError("this is no plain file")
            if status.st_size > limits.file_bytes:
                raise ModelError(
                    f"the file has {status.st_size} bytes, the limit is {limits.file_bytes}",
                    hint="raise Limits.file_bytes",
                )
            return file.read(limits.file_bytes + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"cannot be read: {reason}", path=path) from None
