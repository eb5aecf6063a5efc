"""Read a model once, and import it for one signature after another."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto
from onnx.inliner import inline_local_functions

from rammer import files
from rammer.errors import ModelError, text_of
from rammer.frontend import tensorflow
from rammer.frontend.onnx.importer import Importer
from rammer.frontend.onnx.limits import Limits
from rammer.frontend.onnx.parts import Cutter, initializers_of
from rammer.frontend.onnx.ports import Declared, Given, Place, Text, declared
from rammer.frontend.onnx.signature import NEWEST_OPSETS
from rammer.frontend.onnx.strings import require_utf8
from rammer.frontend.onnx.tensors import ExternalData, decode
from rammer.frontend.onnx.values import ValuedNode
from rammer.frontend.onnx.wire import take_weights
from rammer.ir.graph import Graph

ZIP = b"PK\3\4"  # first bytes of saved programs and other frameworks' archives, never of a protobuf message


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph, with the names of the model's inputs and outputs in it.

    A list maps to the names of its elements, an optional without value to None. Inputs fixed by `constants` have names
    too, but are not inputs of the graph. `steps` are those of recurrent nodes, by label.
    """

    graph: Graph
    inputs: Mapping[str, Place]
    outputs: Mapping[str, Place]
    files: tuple[str, ...]
    words: Mapping[int, str] = field(default_factory=dict)  # the model's strings, by code
    steps: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # bounded output -> axis, output of its size

    def tensors_only(self) -> Graph:
        """Return the graph of a program, which has no strings. Lists of maps are matrices with a column for each key.

        Raises ModelError for strings.
        """
        for what, places in (("input", self.inputs), ("output", self.outputs)):
            if names := [name for name, place in places.items() if isinstance(place, Text)]:
                raise ModelError(f"{what} {names[0]!r} has strings, a program has numbers", hint="use rammer.Session")
        return self.graph


class Source:
    """A model: a path, serialized bytes, or a message. Raises ModelError for anything else.

    A path may also lead to a TensorFlow model. `weights` has the raw data of a message's initializers that have none
    themselves.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | ModelProto,
        *,
        limits: Limits | None = None,
        base_dir: str | os.PathLike[str] | None = None,
        weights: Mapping[str, memoryview] | None = None,
    ) -> None:
        source = getattr(source, "model_proto", source)  # torch's ONNXProgram
        if not isinstance(source, str | os.PathLike | bytes | ModelProto):
            raise ModelError(
                f"an object of type {type(source).__name__} is not an ONNX model",
                hint="a path, bytes, a ModelProto, or an ONNXProgram of torch.onnx.export was expected; "
                "modules of PyTorch go to rammer.compile(module, example=(x,))",
            )
        self.path = "" if isinstance(source, bytes | ModelProto) else os.fspath(source)
        self.limits = limits or Limits()
        folder = (os.path.dirname(self.path) or ".") if self.path else None
        self._folder = os.fspath(base_dir) if base_dir is not None else folder
        try:
            if self.path and (kind := tensorflow.kind_of(self.path)):
                source = tensorflow.to_onnx(self.path, kind)
            parsed = (source, weights or {}) if isinstance(source, ModelProto) else _parse(source, self.limits)
            require_utf8(parsed[0])
        except ModelError as error:
            error.locate(path=self.path)
            raise
        except MemoryError:
            raise _too_large(self.path) from None
        self._model, self._weights = parsed
        self._secret = secrets.randbits(32)  # of draws without a seed

    @property
    def inputs(self) -> tuple[Declared, ...]:
        """The inputs that a caller gives, without initializers. Raises ModelError for a type that cannot be given."""
        known = initializers_of(self._model.graph)
        return tuple(declared(v) for v in self._model.graph.input if v.name not in known)

    @property
    def outputs(self) -> tuple[Declared, ...]:
        return tuple(declared(v) for v in self._model.graph.output)

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the graph itself."""
        return len(self._model.graph.node)

    @property
    def metadata(self) -> dict[str, Any]:
        """The model's metadata, with ONNX Runtime's names."""
        model = self._model
        return {
            "producer_name": text_of(model.producer_name),
            "graph_name": model.graph.name,
            "domain": model.domain,
            "description": text_of(model.doc_string),
            "graph_description": text_of(model.graph.doc_string),
            "version": model.model_version,
            "custom_metadata_map": {text_of(entry.key): text_of(entry.value) for entry in model.metadata_props},
        }

    @property
    def opset(self) -> int:
        """Version of the standard's operators; the newest if the model imports none."""
        imported = (i.version for i in self._model.opset_import if i.domain in ("", "ai.onnx"))
        return max(imported, default=NEWEST_OPSETS[""])

    def cutter(self) -> Cutter:
        """Return a cutter of the graph. Calls of the model's own functions are inlined first."""
        if self._model.functions:
            self._model = inline_local_functions(self._model)
        return Cutter(self._model.graph, self.limits.depth)

    def part(self, graph: GraphProto) -> Source:
        """Return a part of the graph as a model of its own, with the weights of this one."""
        model = ModelProto(ir_version=self._model.ir_version, graph=graph)
        model.functions.extend(self._model.functions)  # those of another opset, which were not inlined
        model.opset_import.extend(self._model.opset_import)
        names = {t.name for t in graph.initializer}
        weights = {name: data for name, data in self._weights.items() if name in names}
        return Source(model, limits=self.limits, base_dir=self._folder, weights=weights)

    def valued(self) -> ValuedNode | None:
        """Return the node of a model that has one only and computes values of values; None for any other model."""
        graph, external = self._model.graph, ExternalData(self._folder, self.limits)
        if len(graph.node) != 1 or not ValuedNode.suits(graph, graph.node[0]):
            return None
        weights = {n: decode(t, external, self._weights.get(n)) for n, t in initializers_of(graph).items()}
        return ValuedNode(graph, self.opset, self.limits, weights)

    def check(self) -> None:
        """Raise one ModelError that lists every unsupported operator."""
        external = ExternalData(self._folder, self.limits)
        Importer(self._model, self._weights, external, self.limits, {}, {}, {}, {}).check()

    def load(
        self,
        *,
        shapes: Mapping[str, Any] | None = None,
        dims: Mapping[str, int] | None = None,
        constants: Mapping[str, Any] | None = None,
        step_lengths: Mapping[str, str] | None = None,
        is_bounded: bool = False,
    ) -> Imported:
        """Import for these shapes of inputs, extents of symbolic dimensions, and values of inputs.

        A list has a list of shapes, an optional without value None. `step_lengths` maps labels of recurrent nodes to
        inputs of the graph, int64 scalars: later steps of these nodes change no state. With `is_bounded`, outputs whose
        size values decide have a bound, and `counts` names the outputs that are their sizes. Raises ModelError, and no
        other error, for a model that cannot be imported.
        """
        external = ExternalData(self._folder, self.limits)
        try:
            kinds = {name: _shape(name, shape) for name, shape in _by_name("shapes", shapes, "x").items()}
            given = kinds, _dims(dims), _by_name("constants", constants, "x")
            options = step_lengths or {}, self._secret, is_bounded
            importer = Importer(self._model, self._weights, external, self.limits, *given, *options)
            graph = importer.run()
        except ModelError as error:
            error.locate(path=self.path)
            raise
        except RecursionError:
            raise ModelError("the model is nested too deeply", path=self.path) from None
        except MemoryError:
            raise _too_large(self.path) from None
        paths = ((self.path,) if self.path else ()) + external.files
        return Imported(
            graph, importer.inputs, importer.outputs, paths, importer.words, importer.lengths.steps, importer.counts
        )


def _too_large(path: str) -> ModelError:
    return ModelError("the model needs more memory than this process can get", path=path, hint="see Limits for bounds")


def _by_name(keyword: str, given: Any, example: str) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ModelError(f"{keyword}= is a {type(given).__name__}", hint=f"it maps names: {keyword}={{{example!r}: …}}")
    return given or {}


def _dims(given: Any) -> dict[str, int]:
    """Return the extents that a caller gives symbolic dimensions. Raises ModelError for anything but a number >= 0."""
    dims = {}
    for name, extent in _by_name("dims", given, "batch").items():
        try:
            dims[name] = index(extent)
        except TypeError:
            dims[name] = -1
        if dims[name] < 0:
            raise ModelError(f"dims= gives {name!r} {extent!r}, not an extent", hint=f"such as dims={{{name!r}: 8}}")
    return dims


def _shape(name: str, shape: Any) -> Given:
    if shape is None:
        return None
    try:
        if any(isinstance(part, Sequence) and not isinstance(part, str) for part in shape):
            return tuple(tuple(index(extent) for extent in part) for part in shape)
        return tuple(index(extent) for extent in shape)
    except TypeError:
        raise ModelError(
            f"shapes= gives input {name!r} {shape!r}, which is no list of integers",
            hint=f"one extent for every dimension: shapes={{{name!r}: (1, 64)}}",
        ) from None


def _parse(source: str | os.PathLike[str] | bytes, limits: Limits) -> tuple[ModelProto, dict[str, memoryview]]:
    """Return the message without its large weights, and these."""
    data = source if isinstance(source, bytes) else _read(os.fspath(source), limits)
    if len(data) > limits.file_bytes:
        raise ModelError(f"the model has {len(data)} bytes, limit {limits.file_bytes}", hint="raise Limits.file_bytes")
    if not data:
        raise ModelError("the model is empty", hint="an ONNX file was expected")
    if data.startswith(ZIP):
        raise ModelError(
            "this is a ZIP archive, not an ONNX model",
            hint="rammer.load and `rammer run` take saved programs; a file of TorchScript needs example=(x,)",
        )
    try:
        model = ModelProto()
        rest, weights = take_weights(data)
        model.ParseFromString(rest)
        return model, weights
    except DecodeError as error:
        raise ModelError(f"this is not an ONNX model: {error}", hint="a protobuf file was expected") from None


def _read(path: str, limits: Limits) -> bytes:
    """Return the bytes of a plain file of bounded size."""
    try:
        with files.open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limits.file_bytes:
                raise ModelError(f"a file of {size} bytes exceeds {limits.file_bytes}", hint="raise Limits.file_bytes")
            return file.read(size)  # read() reserves the memory first
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ModelError(f"cannot be read: {reason}", path=path) from None
