"""Shrink a fault: simpler options, fewer nodes, smaller extents, as long as it fails in the same way.

Known as: test-case reduction, delta debugging.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper, shape_inference

from rammer_testing.fuzz.case import Case
from rammer_testing.fuzz.sketch import NUMPY, Port, names_read
from rammer_testing.fuzz.trial import Trial, Verdict
from rammer_testing.fuzz.worker import Limits, alone

SMALL = 1 << 12  # bytes of a constant whose values ONNX's inference may need


def shrink(case: Case, verdict: Verdict, limits: Limits, seconds: float) -> tuple[Case, Verdict]:
    """Return the smallest case found within `seconds` that has a verdict of the same kind, and its verdict."""
    stop = time.monotonic() + seconds
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(case):
            if time.monotonic() > stop:
                return case, verdict
            found = alone(lambda s=smaller: Trial(s), limits)  # type: ignore[misc]
            if found.resembles(verdict):
                case, verdict, progress = smaller, found, True
                break
    return case, verdict


def _smaller(case: Case) -> Iterator[Case]:
    """Yield simpler cases, the much simpler ones first."""
    options = case.options
    simpler: dict[str, Any] = {
        "times": "estimated",
        "saved": False,
        "verify": 1,
        "check": 0,
        "cache": None,
        "policy": "wavefront",
    }
    for name, value in simpler.items():
        if getattr(options, name) != value:
            yield replace(case, options=replace(options, **{name: value}))
    for n in range(len(case.lies)):
        yield replace(case, lies=case.lies[:n] + case.lies[n + 1 :])
    if isinstance(options.veus, int) and options.veus > 1:
        for veus in (1, options.veus // 2, options.veus - 1):
            yield replace(case, options=replace(options, veus=veus))
    for model in (*_fewer_nodes(case.model), *_smaller_extents(case.model)):
        if fitted := _fitted(case, model):
            yield fitted


def _fewer_nodes(model: ModelProto) -> Iterator[ModelProto]:
    """Yield models with one output alone, another value as output, a value as input, or a node left out."""
    typed = _typed(model)
    kinds = {v.name: v for v in (*typed.graph.value_info, *typed.graph.input, *typed.graph.output)}
    outputs = list(model.graph.output)
    for output in outputs if len(outputs) > 1 else ():
        yield _with(model, outputs=[output])
    for node in model.graph.node[:-1]:
        if found := [kinds[name] for name in node.output if name in kinds]:
            yield _with(model, outputs=found)
    for output in outputs if len(outputs) > 1 else ():
        yield _with(model, outputs=[o for o in outputs if o is not output])
    for node in reversed(model.graph.node):
        cut = [kinds[name] for name in node.output if name in kinds]
        if len(cut) == len([n for n in node.output if n]):
            yield _with(model, without=node.name, inputs=cut)
    for node in model.graph.node:
        same = [
            n for n in node.input if n in kinds and node.output[0] in kinds and _alike(kinds[n], kinds[node.output[0]])
        ]
        if same:
            yield _with(model, without=node.name, renamed={node.output[0]: same[0]})


def _alike(left: onnx.ValueInfoProto, right: onnx.ValueInfoProto) -> bool:
    return bool(left.type == right.type)


def _with(
    model: ModelProto,
    outputs: list[onnx.ValueInfoProto] | None = None,
    inputs: list[onnx.ValueInfoProto] | None = None,
    without: str = "",
    renamed: Mapping[str, str] | None = None,
) -> ModelProto:
    """Return the model with other outputs, more inputs, or without a node; drop unused parts."""
    renamed = renamed or {}
    found = ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    ends = list(outputs if outputs is not None else model.graph.output)
    del graph.output[:]
    graph.output.extend(v for v in ends if v.name not in renamed)
    needed = {value.name for value in graph.output}
    nodes = []
    for node in reversed(model.graph.node):
        if node.name != without and needed & set(node.output):
            kept = onnx.NodeProto()
            kept.CopyFrom(node)
            for n, name in enumerate(kept.input):
                kept.input[n] = renamed.get(name, name)
            nodes.append(kept)
            needed |= names_read(kept)
    del graph.node[:], graph.input[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(reversed(nodes))
    graph.input.extend(v for v in (*model.graph.input, *(inputs or ())) if v.name in needed)
    graph.initializer.extend(t for t in model.graph.initializer if t.name in needed)
    return found


def _smaller_extents(model: ModelProto) -> Iterator[ModelProto]:
    """Yield models with one extent smaller everywhere: in inputs, in constants, and in lists of extents."""
    extents = {d.dim_value for v in model.graph.input for d in v.type.tensor_type.shape.dim}
    extents |= {e for t in model.graph.initializer for e in t.dims}
    for extent in sorted(extents, reverse=True):
        for smaller in dict.fromkeys((1, 2, extent // 4, extent // 2, extent - 1)):
            if 0 < smaller < extent:
                yield _resized(model, extent, smaller)


def _resized(model: ModelProto, extent: int, smaller: int) -> ModelProto:
    found = ModelProto()
    found.CopyFrom(model)
    for value in found.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = smaller if dim.dim_value == extent else dim.dim_value
    for tensor in found.graph.initializer:
        array = numpy_helper.to_array(tensor)
        array = array[tuple(slice(smaller) if e == extent else slice(None) for e in array.shape)]
        if array.dtype == np.int64 and array.size <= 16:
            array = np.where(array == extent, smaller, array)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
    for node in found.graph.node:
        for attribute in node.attribute:
            if attribute.name == "hidden_size" and attribute.i == extent:
                attribute.i = smaller
    del found.graph.value_info[:]
    for value in found.graph.output:
        value.type.tensor_type.ClearField("shape")
    return found


def _typed(model: ModelProto) -> ModelProto:
    """Return the model with the types of all values that ONNX can infer."""
    return shape_inference.infer_shapes(model, data_prop=True)


def _fitted(case: Case, model: ModelProto) -> Case | None:
    """Return the case with another model, and ports for its inputs; None if the model is not valid."""
    if not model.graph.node:
        return None
    try:
        typed = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        del model.graph.output[:]
        model.graph.output.extend(typed.graph.output)
        onnx.checker.check_model(model)
    except Exception:  # ONNX raises exceptions of any type for an invalid model
        return None
    ports = {}
    for value in model.graph.input:
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        port = case.ports.get(value.name) or Port(value.type.tensor_type.elem_type, shape)
        if value.type.tensor_type.elem_type not in NUMPY:
            return None
        ports[value.name] = replace(port, shape=shape)
    return replace(case, model=model, ports=ports)
