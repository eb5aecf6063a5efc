"""Read models: ONNX files and bytes, PyTorch modules, and graphs as they are. Known as: the frontend's entry point."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rammer.errors import InputError, ModelError, RammerError, did_you_mean, installing
from rammer.frontend.merge import check_model_names, merge, model_of, renamed_ports
from rammer.frontend.tensorflow import kind_of as tensorflow_kind
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


def from_onnx(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | torch.onnx.ONNXProgram | Mapping[str, Any],
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Array] | None = None,
    links: Mapping[str, str] | None = None,
) -> Graph:
    """Import an ONNX model, or several as one graph.

    Args:
        model: A path, the bytes of a file, a ModelProto, or an ONNXProgram of torch.onnx.export. Several models, by
            name, become one graph with ports MODEL.PORT; names in other arguments then begin with the model's, too.
        shapes: Shapes of inputs whose dimensions the model leaves open.
        dims: Extents of dimensions that the model names.
        constants: Values of inputs, for example of those that determine shapes. They are not inputs of the graph.
        links: Inputs, each with the output of another model that it takes.

    Returns:
        The graph, which `rammer.compile` takes.

    Raises:
        ModelError: The model is malformed or over a limit, or has operators that rammer lacks: all are named.
        InputError: An argument names what the model does not have.
    """
    if hasattr(model, "state_dict"):
        raise ModelError(f"a {type(model).__name__} is not an ONNX model", hint="rammer.from_torch imports it")
    if isinstance(model, str | os.PathLike) and (kind := tensorflow_kind(os.fspath(model))):
        raise ModelError(f"a {kind}, not an ONNX model", path=os.fspath(model), hint="rammer.from_tensorflow reads it")
    return import_model(model, shapes=shapes, dims=dims, constants=constants, links=links)


def from_tensorflow(
    path: str | os.PathLike[str],
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Array] | None = None,
) -> Graph:
    """Import a model of TensorFlow, with the package tf2onnx in a child process.

    Args:
        path: A folder with a SavedModel, a .tflite file, or a frozen graph (.pb).
        shapes: As for `from_onnx`.
        dims: As for `from_onnx`.
        constants: As for `from_onnx`.

    Returns:
        The graph, which `rammer.compile` takes.

    Raises:
        ModelError: The file is another one, cannot be converted, or the extra `tf` is not installed.
    """
    if not tensorflow_kind(os.fspath(path)):
        hint = "a folder with saved_model.pb, a .tflite file or a frozen graph (.pb) was expected"
        raise ModelError("not a model of TensorFlow", path=os.fspath(path), hint=hint)
    return import_model(path, shapes=shapes, dims=dims, constants=constants)


def from_torch(
    module: torch.nn.Module | torch.export.ExportedProgram | str | os.PathLike[str],
    example: Any = None,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> Graph:
    """Import a PyTorch module in eval mode, for inputs of the example's shapes and types.

    Args:
        module: A module, an ExportedProgram, or the path of a TorchScript file.
        example: Inputs to trace with: a tensor, a tuple of them, or a dict of keyword arguments. An ExportedProgram has
            its own.
        input_names: Names of the graph's inputs; by default those of the parameters of `forward`.
        output_names: Names of its outputs; by default their keys, or "output", with a number if there are several.

    Returns:
        The graph, which `rammer.compile` takes.

    Raises:
        ModelError: The module cannot be traced, or has operators that rammer lacks: all are named.
        InputError: The numbers of names and of ports differ.
    """
    try:
        from rammer_torch import from_module
    except ModuleNotFoundError as error:
        raise ModelError(f"{error.name} is not installed", hint=installing("torch")) from None
    return renamed_ports(from_module(module, example), input_names, output_names)


def import_model(model: Model, **options: Any) -> Graph:
    """Import a model of any kind, or several by name. Options are those of `read`."""
    return read(model, **options)[0]


def read(
    model: Model,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Array] | None = None,
    example: Any = None,
    links: Mapping[str, str] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph, and the files that it was read from."""
    if isinstance(model, Mapping):
        refuse_names(input_names, output_names)
        graphs, files = read_each(model, shapes, dims, constants, example)
        return merge(graphs, links), files
    if links:
        raise InputError("links= connects several models", hint='give them by name: {"vad": "vad.onnx", …}')
    names = {"input_names": input_names, "output_names": output_names}
    if isinstance(model, Graph):
        return renamed_ports(model, **names), ()
    if hasattr(model, "state_dict"):  # a module or an exported one; checked without importing torch
        return from_torch(model, example, **names), ()
    if example is not None:
        if isinstance(model, str | os.PathLike) and artifact.is_archive(model):  # TorchScript
            return from_torch(model, example, **names), (os.fspath(model),)
        raise ModelError("example= is for modules and TorchScript files", hint="shapes= fixes what a model leaves open")
    # onnx takes 0.2 s to import; a loaded Program needs none of it
    from rammer.frontend.onnx import Source

    imported = Source(model).load(shapes=shapes, dims=dims, constants=constants)
    return renamed_ports(imported.tensors_only(), **names), imported.files


def refuse_names(*names: Sequence[str] | None) -> None:
    """Raise InputError if names of ports are given for several models."""
    if any(given is not None for given in names):
        hint = "ports of several models are named MODEL.PORT; rename those of each graph: from_torch(…, input_names=…)"
        raise InputError("input_names= and output_names= are for one model", hint=hint)


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
