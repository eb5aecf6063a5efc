"""NASNet-A: 6@768 for CIFAR and 4@1056 (mobile) for ImageNet, as TensorFlow slim and the paper's artifact build them.

TensorFlow's asymmetric padding at stride 2 is replaced by symmetric padding (same shapes and multiply-adds). BatchNorm
after a Concat is written as one BatchNorm per part, which is the same and folds into the convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.spec import ModelSpec
from benchmarks.models.store import Scale


@dataclass(frozen=True, slots=True)
class Size:
    cells: int  # normal cells in all three stages together
    filters: int
    stem_filters: int
    imagenet: bool  # starts with a strided convolution and two reduction cells
    image: int
    classes: int


CIFAR: dict[Scale, Size] = {"full": Size(18, 32, 96, False, 32, 10), "small": Size(3, 4, 12, False, 8, 5)}
IMAGENET: dict[Scale, Size] = {"full": Size(12, 44, 32, True, 224, 1000), "small": Size(3, 4, 8, True, 35, 5)}

# (left operation, its state, right operation, its state) of each of the five sums of a cell
NORMAL = (
    ("sep5", 0, "sep3", 1),
    ("sep5", 1, "sep3", 1),
    ("avg", 0, "none", 1),
    ("avg", 1, "avg", 1),
    ("sep3", 0, "none", 0),
)
REDUCTION = (
    ("sep5", 0, "sep7", 1),
    ("max", 0, "sep7", 1),
    ("avg", 0, "sep5", 1),
    ("none", 3, "avg", 2),
    ("sep3", 2, "max", 0),
)
NORMAL_OUTPUTS: tuple[int, ...] = (1, 2, 3, 4, 5, 6)  # the states that a cell concatenates
REDUCTION_OUTPUTS: tuple[int, ...] = (3, 4, 5, 6)


def conv_norm(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, padding: int = 0) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm2d(outputs, eps=1e-3)
    )


class Separable(nn.Module):
    """Two separable convolutions, the first one strided; expects an input that went through ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()

        def depthwise(channels: int, step: int) -> nn.Conv2d:
            return nn.Conv2d(channels, channels, kernel, step, kernel // 2, groups=channels, bias=False)

        self.layers = nn.Sequential(
            depthwise(inputs, stride),
            conv_norm(inputs, outputs),
            nn.ReLU(),
            depthwise(outputs, 1),
            conv_norm(outputs, outputs),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(x)
        return output


class FactorizedReduction(nn.Module):
    """Halve the plane by two strided 1x1 paths, the second one shifted by a pixel."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs // 2)
        self.second = conv_norm(inputs, outputs - outputs // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = functional.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:]
        first, second = functional.avg_pool2d(x, 1, 2), functional.avg_pool2d(shifted, 1, 2)
        return torch.cat([self.first(first), self.second(second)], dim=1)


class State:
    """A tensor with its ReLU and its pooled forms, each computed once however often it is used."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value
        self._derived: dict[tuple[str, int], torch.Tensor] = {}

    def derive(self, name: str, stride: int = 1) -> torch.Tensor:
        """The tensor after `relu`, `avg` or `max`."""
        if (name, stride) not in self._derived:
            self._derived[name, stride] = _DERIVED[name](self.value, stride)
        return self._derived[name, stride]


_DERIVED: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "relu": lambda x, stride: functional.relu(x),
    "avg": lambda x, stride: functional.avg_pool2d(x, 3, stride, padding=1, count_include_pad=False),
    "max": lambda x, stride: functional.max_pool2d(x, 3, stride, padding=1),
}


class Operation(nn.Module):
    """`sep3|5|7`, `avg`, `max` or `none`; a change of width adds a 1x1 convolution."""

    def __init__(self, name: str, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.source, self.stride = name, stride
        self.layers: nn.Module = nn.Identity() if inputs == outputs else conv_norm(inputs, outputs)
        if name.startswith("sep"):
            self.source, self.stride = "relu", 1
            self.layers = Separable(inputs, outputs, int(name[3:]), stride)
        elif name == "none":
            self.source, self.stride = ("value" if inputs == outputs else "relu"), 1

    def forward(self, state: State) -> torch.Tensor:
        x = state.value if self.source == "value" else state.derive(self.source, self.stride)
        output: torch.Tensor = self.layers(x)
        return output


class Cell(nn.Module):
    """One NASNet-A cell over the current tensor and the previous one.

    `shrink` says that the previous plane is twice as large. The very first cell has no previous tensor (None) and takes
    its own input there, unprojected.
    """

    def __init__(self, channels: int, previous: int | None, filters: int, stride: int, shrink: bool) -> None:
        super().__init__()
        plan = REDUCTION if stride == 2 else NORMAL
        self.outputs = REDUCTION_OUTPUTS if stride == 2 else NORMAL_OUTPUTS
        self.project = conv_norm(channels, filters)
        self.project_previous: nn.Module | None = None
        if previous is not None and shrink:
            self.project_previous = FactorizedReduction(previous, filters)
        elif previous is not None and previous != filters:
            self.project_previous = conv_norm(previous, filters)
        width = channels if previous is None else filters
        self.project_output = conv_norm(width, filters) if width != filters and 1 in self.outputs else nn.Identity()
        self.states = [(left, right) for _, left, _, right in plan]
        self.operations = nn.ModuleList(
            Operation(name, width if state == 1 else filters, filters, stride if state < 2 else 1)
            for sides in plan
            for name, state in (sides[:2], sides[2:])
        )

    def forward(self, current: State, previous: State) -> State:
        if self.project_previous is not None:
            previous = State(self.project_previous(previous.derive("relu")))
        states = [State(self.project(current.derive("relu"))), previous]
        for i, (left, right) in enumerate(self.states):
            sides = self.operations[2 * i](states[left]), self.operations[2 * i + 1](states[right])
            states.append(State(sides[0] + sides[1]))
        parts = [self.project_output(states[i].value) if i == 1 else states[i].value for i in self.outputs]
        return State(torch.cat(parts, dim=1))


class NasNet(nn.Module):
    """Stem, three stages of normal cells with a reduction cell before the second and third, classifier."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        if size.imagenet:
            self.stem = conv_norm(3, size.stem_filters, 3, 2)
        else:
            self.stem = conv_norm(3, size.stem_filters, 3, 1, 1)
        self.cells = nn.ModuleList()
        widths: list[int | None] = [None, size.stem_filters]
        shrink = False

        def add(filters: int, stride: int) -> None:
            nonlocal shrink
            cell = Cell(widths[-1] or 0, widths[-2], filters, stride, shrink)
            self.cells.append(cell)
            widths.append(filters * len(cell.outputs))
            shrink = stride == 2

        if size.imagenet:
            add(size.filters // 4, 2)
            add(size.filters // 2, 2)
        for stage in range(3):
            if stage:
                add(size.filters << stage, 2)
            for _ in range(size.cells // 3):
                add(size.filters << stage, 1)
        self.classifier = nn.Linear(widths[-1] or 0, size.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        current = previous = State(self.stem(x))
        for cell in self.cells:
            current, previous = cell(current, previous), current
        output: torch.Tensor = self.classifier(current.derive("relu").mean((2, 3)))
        return output


MODELS = (
    ModelSpec(
        "nasnet_cifar",
        "NASNet-A 6@768, CIFAR",
        lambda scale: NasNet(CIFAR[scale]),
        lambda scale, batch: {"input": (batch, 3, CIFAR[scale].image, CIFAR[scale].image)},
    ),
    ModelSpec(
        "nasnet_imagenet",
        "NASNet-A 4@1056, ImageNet",
        lambda scale: NasNet(IMAGENET[scale]),
        lambda scale, batch: {"input": (batch, 3, IMAGENET[scale].image, IMAGENET[scale].image)},
    ),
)
