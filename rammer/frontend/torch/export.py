"""Modules, by torch.export, and files of TorchScript, by the exporter that reads them."""

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
from rammer.frontend.torch.decompositions import decompositions
from rammer.frontend.torch.importer import import_nodes, reason_against
from rammer.ir.graph import Graph


def from_module(module: Any, example: Any) -> Graph:
    """The Graph of a module for inputs like `example`: a tensor, a tuple of them, or a dict of keyword arguments.

    A path, or a module that torch.jit.load gave, is TorchScript. Parameters share their memory with the module, until
    a program packs them. Raises ModelError for what cannot be imported; all operators that cannot are listed at once.
    """
    named = isinstance(example, Mapping)
    arguments = () if named else tuple(example) if isinstance(example, tuple | list) else (example,)
    if not isinstance(module, torch.nn.Module):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that TorchScript is old
            module = torch.jit.load(os.fspath(module), map_location="cpu")
    if isinstance(module, torch.jit.ScriptModule):
        return _from_script(module, tuple(example.values()) if named else arguments)
    if module.training:
        raise ModelError("the module is in training mode", hint="call module.eval(); torch.compile can train")
    # what torch says here is about its own parts
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(module, arguments, dict(example) if named else {}, strict=False)
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
    if refused := [f"{n.target} (node {n.name!r}): {why}" for n in calls if (why := reason_against(n))]:
        raise ModelError(
            f"{len(refused)} unsupported operators: {'; '.join(refused)}",
            hint="torch.compile(module, backend='rammer') runs these in eager PyTorch",
        )
    inputs = {n.name: n for n in graph.nodes if n.op == "placeholder" and n.name in signature.user_inputs}
    (results,) = graph.output_node().args
    outputs = dict(zip(_output_names(exported.call_spec.out_spec), results, strict=True))
    return import_nodes(calls, inputs, outputs, known, type(module).__name__)


def _output_names(spec: Any) -> list[str]:
    """Names of outputs: keys where there are some, else "output" and places."""
    marked = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    paths = [path for path, _ in pytree.tree_flatten_with_path(marked)[0]]
    named = ["_".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path) for path in paths]
    return [f"output_{name}".rstrip("_") if name[:1].isdigit() or not name else name for name in named]


def _from_script(module: Any, arguments: tuple[Any, ...]) -> Graph:
    """By torch's older exporter, which keeps recurrent layers whole; what it says is about its age."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, arguments, file, dynamo=False)
    return Source(file.getvalue()).load().graph
