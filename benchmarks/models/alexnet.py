"""AlexNet as tf_cnn_benchmarks has it: 227 x 227 input, no padding in the first convolution, no LRN."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from benchmarks.models.spec import Inputs, ModelSpec
from benchmarks.models.store import Scale


@dataclass(frozen=True, slots=True)
class Size:
    image: int
    plane: int  # side of the last pooled plane
    divisor: int  # of every channel count
    classes: int


SIZES: dict[Scale, Size] = {"full": Size(227, 6, 1, 1000), "small": Size(99, 2, 16, 10)}


def alexnet(scale: Scale) -> nn.Sequential:
    """Five convolutions, three fully connected layers, bias and ReLU everywhere but at the end."""
    size = SIZES[scale]
    a, b, c, d, hidden = (n // size.divisor for n in (64, 192, 384, 256, 4096))
    layers: list[nn.Module] = [
        nn.Conv2d(3, a, 11, 4), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(a, b, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(b, c, 3, padding=1), nn.ReLU(),
        nn.Conv2d(c, c, 3, padding=1), nn.ReLU(),
        nn.Conv2d(c, d, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Linear(d * size.plane**2, hidden), nn.ReLU(),
        nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, size.classes),
    ]  # fmt: skip
    return nn.Sequential(*layers)


def inputs(scale: Scale, batch: int) -> Inputs:
    return {"input": (batch, 3, SIZES[scale].image, SIZES[scale].image)}


MODELS = (ModelSpec("alexnet", "AlexNet", alexnet, inputs),)
