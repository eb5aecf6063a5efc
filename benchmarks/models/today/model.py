"""A model of today: a torch module that knows its inputs and outputs, exported as its users would."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal

import onnx
import torch
from torch import nn

from benchmarks.models.spec import Example, Inputs, ModelSpec, export_torchscript
from benchmarks.models.store import Scale

PREFIX = "today_"

Sizes = Mapping[str, Any]  # keyword arguments of a model's class
Exporter = Literal["dynamo", "torchscript"]


class Model(nn.Module, ABC):
    """A module that takes its inputs by position, and gives one tensor or a tuple."""

    @abstractmethod
    def inputs(self, batch: int) -> Inputs:
        """Names and shapes, in the order of `forward`."""

    def outputs(self) -> tuple[str, ...]:
        """Names of what `forward` gives."""
        return ("output",)


def today(
    name: str,
    title: str,
    kind: Callable[..., Model],
    full: Sizes,
    small: Sizes,
    exporter: Exporter = "dynamo",
) -> ModelSpec:
    """The catalogue's entry of `kind`, with its keyword arguments at both scales."""
    sizes: dict[Scale, Sizes] = {"full": full, "small": small}

    def module(scale: Scale) -> Model:
        return kind(**sizes[scale])

    def inputs(scale: Scale, batch: int) -> Inputs:
        with torch.device("meta"):  # shapes need no weights
            return module(scale).inputs(batch)

    return ModelSpec(PREFIX + name, title, module, inputs, EXPORTERS[exporter])


def _dynamo(module: nn.Module, example: Example) -> onnx.ModelProto:
    assert isinstance(module, Model)
    # What it says is about packages that are not installed, and about its own parts.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            module,
            tuple(example.values()),
            dynamo=True,
            verbose=False,
            input_names=list(example),
            output_names=list(module.outputs()),
        )
    assert program is not None
    return program.model_proto


def _torchscript(module: nn.Module, example: Example) -> onnx.ModelProto:
    assert isinstance(module, Model)
    return export_torchscript(module, example, module.outputs())


EXPORTERS: dict[Exporter, Callable[[nn.Module, Example], onnx.ModelProto]] = {
    "dynamo": _dynamo,
    "torchscript": _torchscript,
}
