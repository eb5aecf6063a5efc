"""Parts that several models share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

Activation = Callable[[], nn.Module]


class ConvNorm(nn.Sequential):
    """Convolution, BatchNorm and activation; "same" padding at stride 1, half the filter otherwise."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int | tuple[int, int] = 1,
        groups: int = 1,
        activation: Activation = nn.ReLU,
    ) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
            activation(),
        )


class SqueezeExcite(nn.Module):
    """Scale channels by what their means say."""

    def __init__(
        self, channels: int, hidden: int, activation: Activation = nn.ReLU, gate: Activation = nn.Sigmoid
    ) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Conv2d(channels, hidden, 1), activation(), nn.Conv2d(hidden, channels, 1), gate())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = x * self.gate(x.mean((2, 3), keepdim=True))
        return scaled


class InvertedResidual(nn.Module):
    """MBConv: 1x1 to `hidden` channels, depthwise, `squeeze`, 1x1 back; a residual where shapes allow."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        kernel: int,
        stride: int | tuple[int, int],
        squeeze: nn.Module | None = None,
        activation: Activation = nn.ReLU6,
    ) -> None:
        super().__init__()
        self.residual = stride == 1 and inputs == outputs
        parts: list[nn.Module] = []
        if hidden != inputs:
            parts.append(ConvNorm(inputs, hidden, activation=activation))
        parts.append(ConvNorm(hidden, hidden, kernel, stride, hidden, activation))
        if squeeze is not None:
            parts.append(squeeze)
        parts.append(ConvNorm(hidden, outputs, activation=nn.Identity))
        self.layers = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return x + y if self.residual else y


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[..., length, width] -> [..., heads, length, width of a head]."""
    return x.view(*x.shape[:-1], heads, -1).transpose(-3, -2)


class Attention(nn.Module):
    """Multi-head attention of `x` over itself or over `memory` [batch, length, width]."""

    def __init__(self, width: int, heads: int, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.output = nn.Linear(width, width, bias), nn.Linear(width, width, bias)
        self.key, self.value = nn.Linear(width, width, bias), nn.Linear(width, width, bias)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return split_heads(x, self.heads)

    def join(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Attend, and project what the heads found."""
        found = functional.scaled_dot_product_attention(q, k, v, mask)
        output: torch.Tensor = self.output(found.transpose(1, 2).flatten(2))
        return output

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.join(self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x)), mask)


class FeedForward(nn.Sequential):
    """Two linear layers with an activation between them."""

    def __init__(self, width: int, hidden: int, activation: Activation = nn.GELU) -> None:
        super().__init__(nn.Linear(width, hidden), activation(), nn.Linear(hidden, width))


class PreNormBlock(nn.Module):
    """A transformer's block with LayerNorm in front of each half."""

    def __init__(self, width: int, heads: int, hidden: int, activation: Activation = nn.GELU) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.feed_norm, self.feed = nn.LayerNorm(width), FeedForward(width, hidden, activation)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attention(self.norm(x), mask)
        output: torch.Tensor = x + self.feed(self.feed_norm(x))
        return output


class LastNorm(nn.Module):
    """LayerNorm over the channels of [batch, channels, ...]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.norm(x.movedim(1, -1)).movedim(-1, 1)
        return output
