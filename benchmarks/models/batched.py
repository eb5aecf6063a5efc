"""What the GraphTurbo paper runs with batches and no other family has: a BERT, a Conformer, DenseNet-121, VGG-19."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.spec import Inputs, ModelSpec
from benchmarks.models.today.blocks import Attention, ConvNorm, FeedForward
from benchmarks.models.today.model import Model, Sizes, today
from benchmarks.models.today.text import SentenceEncoder
from benchmarks.models.today.vision import ImageModel, pooled

PREFIX = "batched_"


class ConformerBlock(nn.Module):
    """Half a feed-forward, attention, a convolution over time, half a feed-forward; all of a sentence is there."""

    def __init__(self, width: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.LayerNorm(width), FeedForward(width, 4 * width, nn.SiLU))
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.convolution_norm = nn.LayerNorm(width)
        self.expand, self.reduce = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.depthwise_norm = nn.BatchNorm1d(width)
        self.second = nn.Sequential(nn.LayerNorm(width), FeedForward(width, 4 * width, nn.SiLU))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.first(x)
        x = x + self.attention(self.attention_norm(x))
        y = self.depthwise(functional.glu(self.expand(self.convolution_norm(x).mT), 1))
        x = x + self.reduce(functional.silu(self.depthwise_norm(y))).mT
        output: torch.Tensor = self.norm(x + 0.5 * self.second(x))
        return output


class Conformer(Model):
    """An encoder of `frames` mel frames, a fourth of them after two convolutions; no relative positions."""

    def __init__(self, width: int, heads: int, blocks: int, kernel: int, frames: int, mels: int) -> None:
        super().__init__()
        self.shape, inside = (frames, mels), width // 4
        self.subsample = nn.Sequential(
            nn.Conv2d(1, inside, 3, 2), nn.ReLU(), nn.Conv2d(inside, inside, 3, 2), nn.ReLU()
        )
        self.project = nn.Linear(inside * (((mels - 1) // 2 - 1) // 2), width)
        self.blocks = nn.Sequential(*(ConformerBlock(width, heads, kernel) for _ in range(blocks)))

    def inputs(self, batch: int) -> Inputs:
        return {"mels": (batch, *self.shape)}

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.blocks(self.project(self.subsample(mels[:, None]).transpose(1, 2).flatten(2)))
        return output


class DenseLayer(nn.Module):
    """BatchNorm and ReLU before each of a 1x1 and a 3x3 convolution, whose channels join those that came in."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        before, last = ConvNorm(inputs, 4 * growth), nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)
        self.layers = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), before, last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.layers(x)], 1)


def densenet(image: int, stem: int, growth: int, blocks: tuple[int, ...], classes: int) -> ImageModel:
    """DenseNet; a block is so many layers, and half of its channels go on."""
    layers: list[nn.Module] = [ConvNorm(3, stem, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = stem
    for number, depth in enumerate(blocks):
        if number:
            half = channels // 2
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, half, 1, bias=False), nn.AvgPool2d(2)]
            channels = half
        layers += [DenseLayer(channels + growth * i, growth) for i in range(depth)]
        channels += growth * depth
    return ImageModel(image, nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), *pooled(channels, classes)))


def vgg(image: int, stages: tuple[tuple[int, int], ...], hidden: int, classes: int) -> ImageModel:
    """VGG; a stage is (convolutions, channels), then a pooling by two."""
    layers: list[nn.Module] = []
    channels = 3
    for depth, outputs in stages:
        for _ in range(depth):
            layers += [nn.Conv2d(channels, outputs, 3, 1, 1), nn.ReLU()]
            channels = outputs
        layers.append(nn.MaxPool2d(2))
    size = channels * (image >> len(stages)) ** 2
    head = nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    return ImageModel(image, nn.Sequential(*layers, nn.Flatten(), *head))


def batched(name: str, title: str, kind: Callable[..., Model], full: Sizes, small: Sizes) -> ModelSpec:
    """The catalogue's entry of `kind`, with its keyword arguments at both scales."""
    return replace(today(name, title, kind, full, small), name=PREFIX + name)


MODELS = (
    batched(
        "bert_base", "BERT-base, 128 tokens", SentenceEncoder,
        {"length": 128, "width": 768, "heads": 12, "layers": 12, "tokens": 30522, "pooling": "first"},
        {"length": 9, "width": 32, "heads": 4, "layers": 2, "tokens": 60, "pooling": "first"},
    ),
    batched(
        "conformer", "Conformer's encoder (M), 4 s", Conformer,
        {"width": 256, "heads": 4, "blocks": 16, "kernel": 31, "frames": 403, "mels": 80},
        {"width": 16, "heads": 2, "blocks": 2, "kernel": 5, "frames": 27, "mels": 20},
    ),
    batched(
        "densenet121", "DenseNet-121", densenet,
        {"image": 224, "stem": 64, "growth": 32, "blocks": (6, 12, 24, 16), "classes": 1000},
        {"image": 32, "stem": 8, "growth": 4, "blocks": (2, 3), "classes": 10},
    ),
    batched(
        "vgg19", "VGG-19", vgg,
        {"image": 224, "stages": ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)), "hidden": 4096, "classes": 1000},
        {"image": 32, "stages": ((1, 8), (2, 16)), "hidden": 24, "classes": 10},
    ),
)  # fmt: skip
