"""ResNeXt-29 for CIFAR, as the paper's artifact builds it (two forms), and ResNeXt-101 64x4d for ImageNet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.spec import ModelSpec
from benchmarks.models.store import Scale


def transform(inputs: int, groups: int, width: int, stride: int) -> nn.Sequential:
    """The bottleneck of a block: 1x1 to `groups * width` channels, then 3x3 within each group."""
    channels = groups * width
    return nn.Sequential(
        nn.Conv2d(inputs, channels, 1, stride, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
    )


class Branches(nn.Module):
    """A grouped `transform` as separate branches and a Concat: same weights, same output."""

    def __init__(self, grouped: nn.Sequential, inputs: int, groups: int, width: int, stride: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(transform(inputs, 1, width, stride) for _ in range(groups))
        state = grouped.state_dict()
        for i, branch in enumerate(self.branches):
            rows = slice(i * width, (i + 1) * width)
            branch.load_state_dict({name: value[rows] if value.ndim else value for name, value in state.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class PadShortcut(nn.Module):
    """Halve the plane by averaging and double the channels with zeros."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.channels = inputs // 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.pad(functional.avg_pool2d(x, 2), (0, 0, 0, 0, self.channels, self.channels))


class Block(nn.Module):
    """relu(transition(transform(x)) + shortcut(x))."""

    def __init__(self, inputs: int, outputs: int, groups: int, width: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.inputs, self.groups, self.width, self.stride = inputs, groups, width, stride
        self.transform: nn.Module = transform(inputs, groups, width, stride)
        self.transition = nn.Conv2d(groups * width, outputs, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.norm(self.transition(self.transform(x))) + self.shortcut(x))

    def split_branches(self) -> None:
        """Replace the grouped transform by branches with the same weights."""
        assert isinstance(self.transform, nn.Sequential)
        self.transform = Branches(self.transform, self.inputs, self.groups, self.width, self.stride)


class ResNeXt(nn.Module):
    """A stem, blocks, and a classifier without bias on the mean of the last plane."""

    def __init__(self, stem: nn.Module, blocks: list[Block], features: int, classes: int) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(features, classes, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.classifier(self.blocks(self.stem(x)).mean((2, 3)))
        return output


@dataclass(frozen=True, slots=True)
class CifarSize:
    cardinality: int
    width: int
    channels: int
    blocks: int
    image: int


CIFAR: dict[Scale, CifarSize] = {"full": CifarSize(16, 64, 64, 3, 32), "small": CifarSize(4, 8, 16, 1, 8)}


def cifar(scale: Scale) -> ResNeXt:
    """The artifact's net: the branch width stays the same in all three stages."""
    size = CIFAR[scale]
    stem = nn.Sequential(
        nn.Conv2d(3, size.channels, 3, padding=1, bias=False), nn.BatchNorm2d(size.channels), nn.ReLU()
    )
    blocks, inputs = [], size.channels
    for stage in range(3):
        outputs = size.channels << stage
        for _ in range(size.blocks):
            halve = inputs != outputs
            shortcut = PadShortcut(inputs) if halve else nn.Identity()
            blocks.append(Block(inputs, outputs, size.cardinality, size.width, 2 if halve else 1, shortcut))
            inputs = outputs
    return ResNeXt(stem, blocks, inputs, 10)


@dataclass(frozen=True, slots=True)
class ImagenetSize:
    cardinality: int
    channels: int
    blocks: tuple[int, int, int, int]
    image: int
    classes: int


IMAGENET: dict[Scale, ImagenetSize] = {
    "full": ImagenetSize(64, 256, (3, 4, 23, 3), 224, 1000),
    "small": ImagenetSize(4, 16, (1, 1, 2, 1), 64, 10),
}


def imagenet(scale: Scale) -> ResNeXt:
    """ResNeXt-101 64x4d with the artifact's stride in the 1x1 convolution and symmetric padding."""
    size = IMAGENET[scale]
    stem = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
    )
    blocks, inputs = [], 64
    for stage, count in enumerate(size.blocks):
        outputs = size.channels << stage
        for i in range(count):
            stride = 2 if stage and not i else 1
            shortcut: nn.Module = nn.Identity()
            if inputs != outputs:
                shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            blocks.append(Block(inputs, outputs, size.cardinality, outputs // size.cardinality, stride, shortcut))
            inputs = outputs
    return ResNeXt(stem, blocks, inputs, size.classes)


def branch_form(module: nn.Module) -> nn.Module:
    """The artifact's graph: every group is a branch of its own."""
    for block in module.modules():
        if isinstance(block, Block):
            block.split_branches()
    return module


MODELS = (
    ModelSpec(
        "resnext29",
        "ResNeXt-29, branches",
        cifar,
        lambda scale, batch: {"input": (batch, 3, CIFAR[scale].image, CIFAR[scale].image)},
        finish=branch_form,
    ),
    ModelSpec(
        "resnext29_grouped",
        "ResNeXt-29, grouped convolutions",
        cifar,
        lambda scale, batch: {"input": (batch, 3, CIFAR[scale].image, CIFAR[scale].image)},
    ),
    ModelSpec(
        "resnext101",
        "ResNeXt-101 64x4d",
        imagenet,
        lambda scale, batch: {"input": (batch, 3, IMAGENET[scale].image, IMAGENET[scale].image)},
    ),
)
