"""torch modules that PyTorch compiles: the models of the benchmarks and of torchvision, and small ones to train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.build import CATALOG, find
from benchmarks.models.store import Scale

SEED = 20
CALIBRATION_BATCH = 4
# the least image that an architecture admits in training mode, where 64 is none; vit_h_14 has patches of 14
LEAST = {"efficientnet_b4": 128, "inception_v3": 299, "maxvit_t": 224, "vit_h_14": 70}
LEAST_ELSEWHERE = 64


def classifiers() -> list[str]:
    """All of torchvision's classification models."""
    import torchvision

    return list(torchvision.models.list_models(module=torchvision.models))


def least_size(name: str) -> int:
    return LEAST.get(name, LEAST_ELSEWHERE)


def classifier(name: str, size: int) -> nn.Module:
    """A model of torchvision with seeded weights, in evaluation mode, for images of `size` x `size`.

    What a fresh model has of zeros and ones is drawn, too, and norms get statistics of a batch: else biases, scales of
    layers and whole heads would be invisible in the output.
    """
    import torchvision

    torch.manual_seed(SEED)
    sized = {"image_size": size} if name.startswith("vit_") else {}
    module: nn.Module = torchvision.models.get_model(name, weights=None, **sized)
    with torch.no_grad():
        draw_constants(module)
        if norms := [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]:
            for norm in norms:
                norm.momentum = None  # the plain mean, of one batch
            module.train()(torch.randn(CALIBRATION_BATCH, 3, size, size))
    return module.eval()


@torch.no_grad()
def draw_constants(module: nn.Module) -> None:
    """Draw parameters that are constant."""
    for parameter in module.parameters():
        if parameter.numel() > 1 and parameter.min() == parameter.max():
            _draw(parameter)


def _draw(parameter: nn.Parameter) -> None:
    """Random numbers about a constant, or about zero for a matrix that was left at zero."""
    if parameter.flatten()[0] != 0:
        nn.init.uniform_(parameter, 0.5, 1.5)
    else:
        nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.1)


def image(size: int, seed: int = SEED) -> torch.Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(seed))


def inference(name: str, size: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A module in evaluation mode and its inputs: one of the benchmarks' models, or of torchvision's."""
    if name in CATALOG:
        spec = find(name)
        return spec.build_module("full"), tuple(spec.example_inputs("full").values())
    return classifier(name, size), (image(size),)


@dataclass(frozen=True, slots=True)
class Training:
    """A module in training mode with one batch, and its loss."""

    module: nn.Module
    inputs: torch.Tensor
    target: torch.Tensor
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


TRAINED = ("lstm_tc", "mlp", "cnn")


def training(name: str, batch: int, scale: Scale) -> Training:
    """One of TRAINED, seeded. `lstm_tc` is the paper's: ten layers of 256 units, a hundred steps."""
    torch.manual_seed(SEED)
    if name == "lstm_tc":
        spec = find("lstm_tc_lstm")
        module = spec.build_module(scale).train().requires_grad_(True)
        (x,) = spec.example_inputs(scale, batch).values()
        return Training(module, x, torch.randn(batch, x.shape[-1]), functional.mse_loss)
    width = 1024 if scale == "full" else 64
    if name == "mlp":
        module = nn.Sequential(
            *(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
        )
        x = torch.randn(batch, 784)
    else:
        channels = width // 32
        module = nn.Sequential(
            *(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.BatchNorm2d(2 * channels), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2 * channels * 64, 10)),
        )
        x = torch.randn(batch, 3, 32, 32)
    return Training(module, x, torch.randint(0, 10, (batch,)), functional.cross_entropy)


def compiled(module: Any, backend: str, options: dict[str, Any]) -> Any:
    """The module as it is for "eager", else by torch.compile."""
    if backend == "eager":
        return module
    if backend.startswith("rammer"):
        policy = {"policy": "sequential"} if backend == "rammer-sequential" else {}
        return torch.compile(module, backend="rammer", options={**options, **policy})
    return torch.compile(module, backend=backend)
