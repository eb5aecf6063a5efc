"""What a benchmark model is: a seeded torch module, an input shape and a way to ONNX."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from torch import nn

from benchmarks.floors import Recurrence
from benchmarks.models.fold import fold_constants
from benchmarks.store import Scale

SEED = 20
OPSET = 17
CALIBRATION_BATCH = 4  # BatchNorm statistics need more than one sample where a plane is a single pixel


def export_module(module: nn.Module, example: torch.Tensor) -> onnx.ModelProto:
    """Export with torch's TorchScript exporter, which folds BatchNorm into the preceding convolution; fold the rest."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # The exporter announces its own deprecation and warns of a variable batch in LSTM; shapes are static here.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (example,),
            str(Path(folder, "model.onnx")),
            dynamo=False,
            opset_version=OPSET,
            input_names=["input"],
            output_names=["output"],
        )
        return fold_constants(onnx.load(Path(folder, "model.onnx")))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model of the benchmark; `module`, `input_shape` and `recurrences` take the scale first."""

    name: str
    title: str
    module: Callable[[Scale], nn.Module]
    input_shape: Callable[[Scale, int], tuple[int, ...]]
    to_onnx: Callable[[nn.Module, torch.Tensor], onnx.ModelProto] = export_module
    recurrences: Callable[[Scale], tuple[Recurrence, ...]] = lambda scale: ()
    finish: Callable[[nn.Module], nn.Module] = lambda module: module  # last rewrite, once the weights are set

    def build_module(self, scale: Scale = "full") -> nn.Module:
        """The module in evaluation mode, with weights that depend on nothing but SEED."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            module = self.module(scale)
            _initialize(module)
            _calibrate(module, torch.randn(self.input_shape(scale, CALIBRATION_BATCH)))
        return self.finish(module).eval().requires_grad_(False)

    def example_input(self, scale: Scale = "full", batch: int = 1) -> torch.Tensor:
        """A seeded normal input of the model."""
        generator = torch.Generator().manual_seed(SEED + batch)
        return torch.randn(self.input_shape(scale, batch), generator=generator)


def _initialize(module: nn.Module) -> None:
    """He-scaled convolutions and random BatchNorm affine parts; recurrent and linear layers keep torch's default."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.1)


def _calibrate(module: nn.Module, example: torch.Tensor) -> None:
    """Set BatchNorm statistics from one batch, so that no activation vanishes or explodes with depth."""
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)]
    if not norms:
        return
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        module.train()(example)
