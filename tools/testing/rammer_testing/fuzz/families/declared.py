"""Declare wrong or open shapes, as exporters leave them in files. The computed shapes are authoritative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import ModelProto, helper

from rammer.ir.tensor import Shape
from rammer_testing.fuzz.sketch import NUMPY, Sketch

Declared = tuple[int | str | None, ...] | None
SHARE = 0.3  # of values, inputs and outputs whose declaration is false or missing
NAMES = ("?", "", "unk__12", "N", "batch")  # the first three carry no information


@dataclass(frozen=True, slots=True)
class Lie:
    """A declared shape of a value: sizes, names, -1, None for an undeclared axis, or None for no shape."""

    value: str
    dtype: int
    shape: Declared


def lies(s: Sketch, model: ModelProto) -> tuple[Lie, ...]:
    """Return false declarations of some of a model's values, at least one. Inputs may be open, but not wrong."""
    inputs = [v.name for v in model.graph.input]
    outputs = [v.name for v in model.graph.output]
    known = [n for node in model.graph.node for n in node.output if n in s.kinds and s.dtype(n) in NUMPY]
    chosen = [n for n in (*inputs, *known) if s.chance(SHARE)] or [s.random.choice(outputs)]
    return tuple(Lie(n, s.dtype(n), _opened(s, s.shape(n)) if n in inputs else _false(s, s.shape(n))) for n in chosen)


def _opened(s: Sketch, shape: Shape) -> Declared:
    if s.chance(0.1):
        return None
    return tuple(_no_size(s) if s.chance(0.5) else e for e in shape)


def _no_size(s: Sketch) -> int | str | None:
    return s.random.choice((-1, None, *NAMES))


def _false(s: Sketch, shape: Shape) -> Declared:
    form = s.random.choice(("size", "size", "open", "open", "rank", "none", "scalar"))
    if form == "size" and shape:
        axis = s.random.randrange(len(shape))
        return (*shape[:axis], s.random.choice((1, shape[axis] + 1, 2 * shape[axis], 7)), *shape[axis + 1 :])
    if form == "rank":
        return (*shape, 1) if s.chance(0.5) or not shape else shape[1:]
    if form == "scalar":
        return ()
    return None if form == "none" else tuple(_no_size(s) if s.chance(0.5) else e for e in shape)


def declared(model: ModelProto, false: Sequence[Lie]) -> ModelProto:
    """Return the model with those false declarations whose values it still has."""
    if not false:
        return model
    found = ModelProto()
    found.CopyFrom(model)
    ends = {v.name: v for v in (*found.graph.input, *found.graph.output)}
    inputs = {v.name: len(v.type.tensor_type.shape.dim) for v in model.graph.input}
    inner = {n for node in model.graph.node for n in node.output}
    for lie in false:
        said = helper.make_tensor_value_info(lie.value, lie.dtype, lie.shape)
        if lie.value in inputs and lie.shape is not None and len(lie.shape) != inputs[lie.value]:
            continue
        if lie.value in ends:
            ends[lie.value].CopyFrom(said)
        elif lie.value in inner:
            found.graph.value_info.append(said)
    return found


def is_open(model: ModelProto) -> bool:
    """Return whether the shape of some input is not declared in full."""
    types = [v.type.tensor_type for v in model.graph.input]
    return any(not t.HasField("shape") or any(d.dim_value < 1 for d in t.shape.dim) for t in types)
