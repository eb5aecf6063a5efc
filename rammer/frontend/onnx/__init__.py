"""Import ONNX models from files, bytes or messages as a Graph with static shapes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from onnx import ModelProto

from rammer.frontend.onnx.limits import Limits
from rammer.frontend.onnx.node import Node, NotConstant, Undecided, handles
from rammer.frontend.onnx.ports import Declared
from rammer.frontend.onnx.source import Imported, Source
from rammer.ir.graph import Graph

__all__ = ["Declared", "Imported", "Limits", "Node", "NotConstant", "Source", "Undecided", "handles", "load"]


def load(
    source: str | os.PathLike[str] | bytes | ModelProto,
    *,
    shapes: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    base_dir: str | os.PathLike[str] | None = None,
) -> Graph:
    """Import an ONNX model from a path, serialized bytes, or a message.

    `shapes` fixes inputs with symbolic dimensions, `dims` such dimensions by name, `constants` the values of inputs
    that decide shapes (these are then not inputs of the result). External data is read from the model's folder, or from
    `base_dir` for bytes and messages. Raises ModelError, and no other error, for a model that cannot be imported.
    """
    opened = Source(source, limits=limits, base_dir=base_dir)
    return opened.load(shapes=shapes, dims=dims, constants=constants).tensors_only()
