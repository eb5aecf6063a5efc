"""What a benchmark model is: a seeded torch module, its inputs and a way to ONNX."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from torch import nn

from benchmarks.models.fold import fold_constants
from benchmarks.models.store import Scale
from benchmarks.on_paper.floors import Recurrence

SEED = 20
OPSET = 17
CALIBRATION_BATCH = 4  # BatchNorm statistics need more than one sample where a plane is a single pixel


@dataclass(frozen=True, slots=True)
class Integers:
    """An int64 input of numbers in [0, below)."""

    shape: tuple[int, ...]
    below: int


Inputs = Mapping[str, tuple[int, ...] | Integers]  # by name; a shape alone is a float32 input, normally distributed
Example = dict[str, torch.Tensor]


def export_torchscript(module: nn.Module, example: Example, outputs: Sequence[str]) -> onnx.ModelProto:
    """Export with torch's TorchScript exporter, which folds BatchNorm into the preceding convolution."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # The exporter announces its own deprecation and warns of a variable batch in LSTM; shapes are static here.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(example.values()),
            str(Path(folder, "model.onnx")),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(example),
            output_names=list(outputs),
        )
        return onnx.load(Path(folder, "model.onnx"))


def export_module(module: nn.Module, example: Example) -> onnx.ModelProto:
    """Export a module of one output with torch's TorchScript exporter, and fold what that leaves behind."""
    return fold_constants(export_torchscript(module, example, ["output"]))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model of the benchmark; `module`, `inputs` and `recurrences` take the scale first, `inputs` the batch too."""

    name: str
    title: str
    module: Callable[[Scale], nn.Module]
    inputs: Callable[[Scale, int], Inputs]
    to_onnx: Callable[[nn.Module, Example], onnx.ModelProto] = export_module
    recurrences: Callable[[Scale], tuple[Recurrence, ...]] = lambda scale: ()
    finish: Callable[[nn.Module], nn.Module] = lambda module: module  # last rewrite, once the weights are set

    def build_module(self, scale: Scale = "full") -> nn.Module:
        """The module in evaluation mode, with weights that depend on nothing but SEED."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            module = self.module(scale)
            _initialize(module)
            _calibrate(module, lambda: _draw(self.inputs(scale, CALIBRATION_BATCH)))
        return self.finish(module).eval().requires_grad_(False)

    def example_inputs(self, scale: Scale = "full", batch: int = 1) -> Example:
        """Seeded inputs of the model by name."""
        return _draw(self.inputs(scale, batch), torch.Generator().manual_seed(SEED + batch))


def _draw(inputs: Inputs, generator: torch.Generator | None = None) -> Example:
    """Random values for every input, in order."""
    return {
        name: torch.randint(wanted.below, wanted.shape, generator=generator)
        if isinstance(wanted, Integers)
        else torch.randn(wanted, generator=generator)
        for name, wanted in inputs.items()
    }


def _initialize(module: nn.Module) -> None:
    """He-scaled convolutions and random BatchNorm affine parts; recurrent and linear layers keep torch's default."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.1)


def _calibrate(module: nn.Module, draw: Callable[[], Example]) -> None:
    """Set BatchNorm statistics from one batch, so that no activation vanishes or explodes with depth."""
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)]
    if not norms:
        return
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        module.train()(*draw().values())
