"""Read models: ONNX files and bytes, PyTorch modules, and graphs as they are. Known as: the frontend's entry point."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rammer.errors import InputError, ModelError, RammerError, did_you_mean, from_checkout, require_compiler
from rammer.frontend.merge import check_model_names, merge, model_of
from rammer.ir.graph import Graph
from rammer.ir.tensor import Array
from rammer.runtime import artifact

if TYPE_CHECKING:
    import onnx
    import torch

Model: TypeAlias = (
    "Graph | str | os.PathLike[str] | bytes | onnx.ModelProto"
    " | torch.nn.Module | torch.export.ExportedProgram | torch.onnx.ONNXProgram"
    " | Mapping[str, Any]"  # several models, by name
)


def load(
    model: Model,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Array] | None = None,
    example: Any = None,
    links: Mapping[str, str] | None = None,
) -> Graph:
    """Import a model: a path to an .onnx file, its bytes, a ModelProto, an ONNXProgram, or a torch.nn.Module.

    `shapes` fixes the dimensions of inputs that the model leaves open, `dims` those that it names. `constants` fixes
    the values of inputs that determine shapes, which then are not inputs of the graph. A module, or a TorchScript file,
    needs an `example`; an ExportedProgram has its own. Raises ModelError.

    Several models, by name, become one graph with ports MODEL.PORT. `links` maps inputs to outputs of other models that
    they take. Names in `shapes`, `dims` and `constants` then begin with the model's, too; `example` is by model.
    """
    return read(model, shapes, dims, constants, example, links)[0]


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
    links: Mapping[str, str] | None = None,
) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph, and the files that it was read from."""
    if isinstance(model, Mapping):
        graphs, files = read_each(model, shapes, dims, constants, example)
        return merge(graphs, links), files
    if links:
        raise InputError("links= connects several models", hint='give them by name: {"vad": "vad.onnx", …}')
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
    return imported.tensors_only(), imported.files


def read_each(
    models: Mapping[str, Model],
    shapes: Mapping[str, Sequence[int]] | None,
    dims: Mapping[str, int] | None,
    constants: Mapping[str, Array] | None,
    example: Any,
) -> tuple[dict[str, Graph], tuple[str, ...]]:
    """Return the graph of each model, and the files that they were read from. Errors name the model in a note."""
    check_model_names(models)
    if example is not None and not isinstance(example, Mapping):
        raise InputError("example= of several models is a mapping", hint='example={"vad": tensor}')
    named = {"shapes": shapes or {}, "dims": dims or {}, "constants": constants or {}}
    for option, given in (*named.items(), ("example", example or {})):
        if unknown := [name for name in given if model_of(name) not in models]:
            hint = did_you_mean(model_of(unknown[0]), models) or f"names are MODEL.NAME, of {', '.join(models)}"
            raise InputError(f"{option}= names {unknown[0]!r}, which is of no model", hint=hint)
    graphs, files = {}, list[str]()
    for name, model in models.items():
        prefix = f"{name}."
        own: dict[str, Any] = {
            option: {n.removeprefix(prefix): v for n, v in given.items() if n.startswith(prefix)}
            for option, given in named.items()
        }
        try:
            graphs[name], read_from = read(model, **own, example=(example or {}).get(name))
        except RammerError as error:
            error.add_note(f"in the model {name!r}")
            raise
        files += read_from
    return graphs, tuple(files)
