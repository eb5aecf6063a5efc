"""Compose several operations into one expression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from rammer.ir.expr import Axes, Load, Scalar, Stage, TensorExpr, rewrite, substitute_axes
from rammer.ir.index import var
from rammer.ir.operator import Operation
from rammer.ir.tensor import Shape, TensorType
from rammer.passes.structure import is_elementwise, is_pointwise

Ref: TypeAlias = tuple[int, int]  # (member, output of that member); member -1: an input of the whole


@dataclass(frozen=True, slots=True)
class Member:
    """An operation inside a fused one, and the source of each of its inputs."""

    operation: Operation
    inputs: tuple[Ref, ...]


def fused_kind(members: tuple[Member, ...]) -> str:
    """Return the kinds of the members, each once, in order: conv+add+relu.

    A fused operation has no attributes, so its kind must differ from that of any single operation. Two slices are
    slice+slice.
    """
    kinds = list(dict.fromkeys(part for m in members for part in m.operation.kind.split("+")))
    return "+".join(kinds * 2 if len(kinds) == 1 else kinds)


def compose(members: tuple[Member, ...], outputs: tuple[Ref, ...]) -> TensorExpr:
    """Return one expression that computes what the members compute one after another. The last output is the root."""
    inputs: dict[int, TensorType] = {}
    stages: list[Stage] = []
    leads: list[int] = []  # priority of a stage in naming the shared axes
    results: list[list[str]] = []
    kinds: dict[str, TensorType] = {}
    for member in members:
        expr = member.operation.expr
        names: dict[str, str] = {}
        for (local, kind), (m, slot) in zip(expr.inputs, member.inputs, strict=True):
            if m < 0:
                inputs.setdefault(slot, kind)
                names[local] = f"x{slot}"
            else:
                names[local] = results[m][slot]
        for stage in expr.stages:
            # Sequential numbers keep names unique whatever the members call their stages.
            names[stage.name] = f"{stage.name.split('_')[0]}_{len(stages)}"
            stages.append(_renamed(stage, names))
            leads.append(_lead(member.operation, stage))
        results.append([names[name] for name, _ in expr.outputs])
        kinds |= {names[name]: kind for name, kind in expr.outputs}
    named = [results[m][slot] for m, slot in outputs]
    return TensorExpr(
        fused_kind(members).replace("+", "_"),
        tuple((f"x{slot}", inputs[slot]) for slot in sorted(inputs)),
        _with_shared_axes(stages, leads),
        tuple((name, kinds[name]) for name in named),
    )


def _lead(operation: Operation, stage: Stage) -> int:
    """Return a stage's priority in naming axes: 0 for element-wise ones, 2 for a reduction's result, else 1."""
    if is_elementwise(operation):
        return 0
    return 2 if stage.name == operation.expr.root.name and not is_pointwise(operation) else 1


def _with_shared_axes(stages: list[Stage], leads: list[int]) -> tuple[Stage, ...]:
    """Give element-wise stages the axis names of the leading stage of the same shape."""
    names: dict[Shape, Axes] = {}
    for wanted in (2, 1, 0):
        for stage, lead in zip(stages, leads, strict=True):
            if lead == wanted:
                names.setdefault(stage.shape, stage.axes)
    result = []
    for stage, lead in zip(stages, leads, strict=True):
        axes = names[stage.shape]
        if lead == 0 and axes != stage.axes:
            values = {old: var(new) for (old, _), (new, _) in zip(stage.axes, axes, strict=True)}
            stage = replace(stage, axes=axes, body=substitute_axes(stage.body, values))
        result.append(stage)
    return tuple(result)


def _renamed(stage: Stage, names: dict[str, str]) -> Stage:
    def leaf(load: Load) -> Scalar:
        return Load(names[load.tensor], load.index, load.dynamic)

    return Stage(names[stage.name], stage.axes, rewrite(stage.body, leaf), stage.reduce, stage.combine, stage.dtype)
