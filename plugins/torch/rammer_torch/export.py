"""Import modules with torch.export, and TorchScript files with the exporter that reads them."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rammer.errors import ModelError
from rammer.frontend.onnx import Source
from rammer.ir.graph import Graph
from rammer_torch.decompositions import decompositions
from rammer_torch.importer import import_nodes, unsupported_reason


def from_module(module: Any, example: Any) -> Graph:
    """Return the Graph of a module for inputs like `example`: a tensor, a tuple of them, or a dict of keywords.

    A path, or a module from torch.jit.load, is TorchScript. An ExportedProgram needs no example. Parameters share their
    memory with the module until a program packs them. Raises ModelError for what cannot be imported, with all
    unsupported operators at once.
    """
    if isinstance(module, torch.export.ExportedProgram):
        return _from_exported(module, "exported")
    if example is None:
        raise ModelError("a module needs inputs to be traced with", hint="pass example=(x,)")
    named = isinstance(example, Mapping)
    arguments = () if named else tuple(example) if isinstance(example, tuple | list) else (example,)
    if not isinstance(module, torch.nn.Module):
        module = _read_script(os.fspath(module))
    if isinstance(module, torch.jit.ScriptModule):
        return _from_script(module, tuple(example.values()) if named else arguments)
    if module.training:
        raise ModelError("the module is in training mode", hint="call module.eval(); torch.compile can train")
    # torch's warnings here are about torch itself
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(module, arguments, dict(example) if named else {}, strict=False)
    return _from_exported(exported, type(module).__name__)


def _from_exported(exported: torch.export.ExportedProgram, name: str) -> Graph:
    given = {n.name: n.meta["val"] for n in exported.graph.nodes if n.op == "placeholder"}
    for place, value in given.items():
        if any(not isinstance(extent, int) for extent in getattr(value, "shape", ())):
            raise ModelError(
                f"input {place!r} of the exported program has open dimensions: {list(value.shape)}",
                hint="torch.onnx.export it for a rammer.Session, or export it without dynamic_shapes",
            )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = exported.run_decompositions(decompositions(training=False))
    signature = exported.graph_signature
    if changed := (*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()):
        raise ModelError(f"the module changes {changed[0]!r}", hint="return it; torch.compile keeps such effects")
    held = {**exported.state_dict, **exported.constants}
    places = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    graph = exported.graph
    known = {n: held[places[n.name]] for n in graph.nodes if n.op == "placeholder" and n.name in places}
    calls = [n for n in graph.nodes if n.op == "call_function" and not str(n.target).startswith("aten._assert")]
    if refused := [f"{n.target} (node {n.name!r}): {why}" for n in calls if (why := unsupported_reason(n))]:
        raise ModelError(
            f"{len(refused)} unsupported operators: {'; '.join(refused)}",
            hint="torch.compile(module, backend='rammer') runs these in eager PyTorch",
        )
    inputs = {n.name: n for n in graph.nodes if n.op == "placeholder" and n.name in signature.user_inputs}
    (results,) = graph.output_node().args
    outputs = dict(zip(_output_names(exported.call_spec.out_spec), results, strict=True))
    return import_nodes(calls, inputs, outputs, known, name)


def _output_names(spec: Any) -> list[str]:
    """Return names of outputs: their keys if they have some, else "output" with an index."""
    marked = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    paths = [path for path, _ in pytree.tree_flatten_with_path(marked)[0]]
    named = ["_".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path) for path in paths]
    return [f"output_{name}".rstrip("_") if name[:1].isdigit() or not name else name for name in named]


def _read_script(path: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecation of TorchScript
            return torch.jit.load(path, map_location="cpu")
    except (RuntimeError, ValueError) as error:
        said = str(error).strip().partition("\n")[0]
        hint = "other files hold what Python has to make: torch.load or torch.export.load it, and give what that gives"
        raise ModelError(f"no file of TorchScript: {said}", path=path, hint=hint) from None


def _from_script(module: Any, arguments: tuple[Any, ...]) -> Graph:
    """Import with torch's older exporter, which keeps recurrent layers whole. Its warnings are about its age."""
    file = io.BytesIO()
    schema = module.forward.schema
    inputs = [a.name for a in schema.arguments[1:]] if all(isinstance(a, torch.Tensor) for a in arguments) else []
    kind = schema.returns[0].type
    several = kind.elements() if kind.kind() == "TupleType" else []
    outputs = [f"output_{place}" for place in range(len(several))] or ["output"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        named = {"input_names": inputs[: len(arguments)], "output_names": outputs}
        torch.onnx.export(module, arguments, file, dynamo=False, **named)
    return Source(file.getvalue()).load().graph
