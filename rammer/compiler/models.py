"""Read models: ONNX files and bytes, PyTorch modules, and graphs as they are. Known as: the frontend's entry point."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rammer.errors import ModelError, from_checkout, require_compiler
from rammer.ir.graph import Graph
from rammer.ir.tensor import Array
from rammer.runtime import artifact

if TYPE_CHECKING:
    import onnx
    import torch

Model: TypeAlias = (
    "Graph | str | os.PathLike[str] | bytes | onnx.ModelProto"
    " | torch.nn.Module | torch.export.ExportedProgram | torch.onnx.ONNXProgram"
)


def load(
    model: Model,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Array] | None = None,
    example: Any = None,
) -> Graph:
    """Import a model: a path to an .onnx file, its bytes, a ModelProto, an ONNXProgram, or a torch.nn.Module.

    `shapes` fixes the dimensions of inputs that the model leaves open, `dims` those that it names. `constants` fixes
    the values of inputs that determine shapes, which then are not inputs of the graph. A module, or a TorchScript file,
    needs an `example`; an ExportedProgram has its own. Raises ModelError.
    """
    return read(model, shapes, dims, constants, example)[0]


def from_torch(
    module: torch.nn.Module | torch.export.ExportedProgram | str | os.PathLike[str], example: Any = None
) -> Graph:
    """Import a PyTorch module in eval mode, or a TorchScript file, for inputs of the example's shapes and types.

    `example` is a tensor, a tuple of them, or a dict of keyword arguments; an ExportedProgram has its own. Inputs are
    named like the parameters of `forward`, outputs like their keys, or "output". Raises ModelError, which lists all
    unsupported operators.
    """
    try:
        from rammer.frontend.torch import from_module
    except ModuleNotFoundError as error:
        raise ModelError(f"{error.name} is not installed", hint=from_checkout("torch")) from None
    return from_module(module, example)


def read(
    model: Model,
    shapes: Mapping[str, Sequence[int]] | None,
    dims: Mapping[str, int] | None,
    constants: Mapping[str, Array] | None,
    example: Any,
) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph, and the files that it was read from."""
    if isinstance(model, Graph):
        return model, ()
    require_compiler()
    if hasattr(model, "state_dict"):  # a module or an exported one; checked without importing torch
        return from_torch(model, example), ()
    if example is not None:
        if isinstance(model, str | os.PathLike) and artifact.is_archive(model):  # TorchScript
            return from_torch(model, example), (os.fspath(model),)
        raise ModelError(
            "example= is for modules and TorchScript files", hint="shapes= fixes what an ONNX model leaves open"
        )
    # onnx takes 0.2 s to import; a loaded Program needs none of it
    from rammer.frontend.onnx import Source

    imported = Source(model).load(shapes=shapes, dims=dims, constants=constants)
    return imported.graph, imported.files
