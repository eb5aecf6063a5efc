"""Image classification: convolutional classics, transformers and mixers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.spec import Inputs
from benchmarks.models.today.blocks import (
    ConvNorm,
    InvertedResidual,
    LastNorm,
    PreNormBlock,
    SqueezeExcite,
    split_heads,
)
from benchmarks.models.today.model import Model, today

Stage = tuple[int, ...]


class ImageModel(Model):
    """Of one RGB image."""

    def __init__(self, image: int | tuple[int, int], layers: nn.Module | None = None) -> None:
        super().__init__()
        self.image = (image, image) if isinstance(image, int) else image
        self.layers = layers

    def inputs(self, batch: int) -> Inputs:
        return {"image": (batch, 3, *self.image)}

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        assert self.layers is not None
        output: torch.Tensor = self.layers(image)
        return output


def pooled(channels: int, classes: int) -> tuple[nn.Module, ...]:
    """The head of most: the mean of the plane, then a linear layer."""
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)


class Residual(nn.Module):
    """`layers` beside a shortcut, which is a 1x1 convolution where shapes change, then ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, layers: nn.Module) -> None:
        super().__init__()
        same = inputs == outputs and stride == 1
        self.layers = layers
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, 1, stride, activation=nn.Identity)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.layers(x) + self.shortcut(x))


def resnet(image: int, stem: int, stages: tuple[Stage, ...], bottleneck: bool, classes: int) -> ImageModel:
    """ResNet; a stage is (blocks, channels inside)."""
    layers: list[nn.Module] = [ConvNorm(3, stem, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = stem
    for number, (blocks, inside) in enumerate(stages):
        outputs = 4 * inside if bottleneck else inside
        for i in range(blocks):
            stride = 2 if number and not i else 1
            if bottleneck:
                first = ConvNorm(channels, inside)
                parts = [first, ConvNorm(inside, inside, 3, stride), ConvNorm(inside, outputs, activation=nn.Identity)]
            else:
                parts = [ConvNorm(channels, inside, 3, stride), ConvNorm(inside, outputs, 3, activation=nn.Identity)]
            layers.append(Residual(channels, outputs, stride, nn.Sequential(*parts)))
            channels = outputs
    return ImageModel(image, nn.Sequential(*layers, *pooled(channels, classes)))


def regnet(image: int, stages: tuple[Stage, ...], group: int, classes: int) -> ImageModel:
    """RegNetX; a stage is (blocks, channels), groups have `group` channels."""
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2)]
    channels = 32
    for blocks, outputs in stages:
        for i in range(blocks):
            stride = 1 if i else 2
            middle = ConvNorm(outputs, outputs, 3, stride, outputs // group)
            parts = nn.Sequential(
                ConvNorm(channels, outputs), middle, ConvNorm(outputs, outputs, activation=nn.Identity)
            )
            layers.append(Residual(channels, outputs, stride, parts))
            channels = outputs
    return ImageModel(image, nn.Sequential(*layers, *pooled(channels, classes)))


def mobilenet_v2(image: int, stages: tuple[Stage, ...], last: int, classes: int) -> ImageModel:
    """MobileNet v2; a stage is (expansion, channels, blocks, stride)."""
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2, activation=nn.ReLU6)]
    channels = 32
    for expansion, outputs, blocks, stride in stages:
        for i in range(blocks):
            layers.append(InvertedResidual(channels, expansion * channels, outputs, 3, 1 if i else stride))
            channels = outputs
    return ImageModel(
        image, nn.Sequential(*layers, ConvNorm(channels, last, activation=nn.ReLU6), *pooled(last, classes))
    )


def mobilenet_v3(image: int, blocks: tuple[Stage, ...], last: int, classes: int) -> ImageModel:
    """MobileNet v3; a block is (kernel, hidden, outputs, squeeze, hard swish, stride)."""
    layers: list[nn.Module] = [ConvNorm(3, 16, 3, 2, activation=nn.Hardswish)]
    channels = 16
    for kernel, hidden, outputs, squeezed, swish, stride in blocks:
        squeeze = SqueezeExcite(hidden, max(8, hidden // 4), gate=nn.Hardsigmoid) if squeezed else None
        activation = nn.Hardswish if swish else nn.ReLU
        layers.append(InvertedResidual(channels, hidden, outputs, kernel, stride, squeeze, activation))
        channels = outputs
    wide = 6 * channels
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, last), nn.Hardswish(), nn.Linear(last, classes))
    return ImageModel(image, nn.Sequential(*layers, ConvNorm(channels, wide, activation=nn.Hardswish), *head))


def efficientnet(image: int, stages: tuple[Stage, ...], last: int, classes: int) -> ImageModel:
    """EfficientNet; a stage is (expansion, channels, blocks, stride, kernel)."""
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2, activation=nn.SiLU)]
    channels = 32
    for expansion, outputs, blocks, stride, kernel in stages:
        for i in range(blocks):
            hidden = expansion * channels
            squeeze = SqueezeExcite(hidden, channels // 4, nn.SiLU)
            step = 1 if i else stride
            layers.append(InvertedResidual(channels, hidden, outputs, kernel, step, squeeze, nn.SiLU))
            channels = outputs
    return ImageModel(
        image, nn.Sequential(*layers, ConvNorm(channels, last, activation=nn.SiLU), *pooled(last, classes))
    )


class GhostModule(nn.Module):
    """Half of the channels by a 1x1 convolution, the other half from those by a depthwise one."""

    def __init__(self, inputs: int, outputs: int, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        half = outputs // 2
        self.first, self.cheap = (
            ConvNorm(inputs, half, 1, activation=activation),
            ConvNorm(half, half, 3, 1, half, activation),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        return torch.cat([first, self.cheap(first)], 1)


class GhostBlock(nn.Module):
    """Ghost module, a depthwise stride, squeeze-and-excite, ghost module; a separable shortcut where shapes change."""

    def __init__(self, inputs: int, hidden: int, outputs: int, kernel: int, squeezed: int, stride: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [GhostModule(inputs, hidden)]
        if stride > 1:
            parts.append(ConvNorm(hidden, hidden, kernel, stride, hidden, nn.Identity))
        if squeezed:
            parts.append(SqueezeExcite(hidden, hidden // 4, gate=nn.Hardsigmoid))
        self.layers = nn.Sequential(*parts, GhostModule(hidden, outputs, nn.Identity))
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride > 1:
            depthwise = ConvNorm(inputs, inputs, kernel, stride, inputs, nn.Identity)
            self.shortcut = nn.Sequential(depthwise, ConvNorm(inputs, outputs, activation=nn.Identity))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(x) + self.shortcut(x)
        return output


def ghostnet(image: int, blocks: tuple[Stage, ...], last: int, classes: int) -> ImageModel:
    """GhostNet; a block is (kernel, hidden, outputs, squeeze, stride)."""
    layers: list[nn.Module] = [ConvNorm(3, 16, 3, 2)]
    channels = 16
    for kernel, hidden, outputs, squeezed, stride in blocks:
        layers.append(GhostBlock(channels, hidden, outputs, kernel, squeezed, stride))
        channels = outputs
    wide = ConvNorm(channels, 6 * channels)
    head = (
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(6 * channels, last, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(last, classes),
    )
    return ImageModel(image, nn.Sequential(*layers, wide, *head))


class ConvNextBlock(nn.Module):
    """7x7 depthwise, LayerNorm over channels, two linear layers, a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(channels, channels, 7, 1, 3, groups=channels), nn.LayerNorm(channels)
        self.feed = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
        self.scale = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.feed(self.norm(self.depthwise(x).permute(0, 2, 3, 1))) * self.scale
        output: torch.Tensor = x + y.permute(0, 3, 1, 2)
        return output


def convnext(image: int, stages: tuple[Stage, ...], classes: int) -> ImageModel:
    """ConvNeXt; a stage is (blocks, channels)."""
    layers: list[nn.Module] = []
    channels = 3
    for number, (blocks, outputs) in enumerate(stages):
        step = 2 if number else 4
        down = nn.Conv2d(channels, outputs, step, step)
        layers += [LastNorm(channels), down] if number else [down, LastNorm(outputs)]
        layers += [ConvNextBlock(outputs) for _ in range(blocks)]
        channels = outputs
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(channels), nn.Linear(channels, classes))
    return ImageModel(image, nn.Sequential(*layers, *head))


class Patches(nn.Module):
    """[batch, 3, height, width] -> [batch, patches, width of a token]."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, patch, patch)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        tokens: torch.Tensor = self.project(image).flatten(2).mT
        return tokens


class VisionTransformer(ImageModel):
    """ViT: patches, a class token, positions, pre-norm blocks."""

    def __init__(self, image: int, patch: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__(image)
        self.patches, self.token = Patches(patch, width), nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn((image // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(PreNormBlock(width, heads, 4 * width) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.token.expand(image.shape[0], -1, -1), self.patches(image)], 1) + self.positions
        output: torch.Tensor = self.head(self.blocks(x)[:, 0])
        return output


class MixerBlock(nn.Module):
    """Two linear layers over patches, then two over channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()

        def layers(size: int, hidden: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))

        self.patch_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_patches, self.over_channels = layers(patches, width // 2), layers(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.over_patches(self.patch_norm(x).mT).mT
        output: torch.Tensor = x + self.over_channels(self.norm(x))
        return output


class Mean(nn.Module):
    """Over the tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def mixer(image: int, patch: int, width: int, layers: int, classes: int) -> ImageModel:
    """MLP-Mixer."""
    blocks = (MixerBlock((image // patch) ** 2, width) for _ in range(layers))
    head = nn.LayerNorm(width), Mean(), nn.Linear(width, classes)
    return ImageModel(image, nn.Sequential(Patches(patch, width), *blocks, *head))


class WindowBlock(nn.Module):
    """Swin's block: attention inside windows, shifted by half a window in every other one; a bias by relative place."""

    places: torch.Tensor
    apart: torch.Tensor

    def __init__(self, side: int, width: int, heads: int, window: int, shifted: bool) -> None:
        super().__init__()
        self.side, self.heads, self.window, self.shift = side, heads, window, window // 2 if shifted else 0
        self.norm, self.project, self.output = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.bias = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads))
        place = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        relative = place[:, :, None] - place[:, None] + window - 1
        self.register_buffer("places", relative[0] * (2 * window - 1) + relative[1])
        regions = torch.zeros(1, side, side, 1)
        cuts = (slice(0, -window), slice(-window, -self.shift), slice(-self.shift, None)) if shifted else ()
        for i, rows in enumerate(cuts):
            for j, columns in enumerate(cuts):
                regions[:, rows, columns] = 3 * i + j
        cut = self.cut(regions)[..., 0]
        self.register_buffer("apart", torch.where(cut[:, None] == cut[:, :, None], 0.0, -100.0)[:, None])

    def cut(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, side, side, width] -> [batch * windows, places, width]."""
        w, count = self.window, self.side // self.window
        return x.view(-1, count, w, count, w, x.shape[-1]).transpose(2, 3).reshape(-1, w * w, x.shape[-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, side, w = x.shape[0], self.side, self.window
        y = self.norm(x).view(batch, side, side, -1)
        y = self.cut(torch.roll(y, (-self.shift, -self.shift), (1, 2)) if self.shift else y)
        q, k, v = (split_heads(part, self.heads) for part in self.project(y).chunk(3, -1))
        bias = self.bias[self.places].permute(2, 0, 1)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + bias
        if self.shift:
            scores = scores + self.apart.repeat(batch, 1, 1, 1)
        y = self.output((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        y = y.view(batch, side // w, side // w, w, w, -1).transpose(2, 3).reshape(batch, side, side, -1)
        y = torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y
        x = x + y.flatten(1, 2)
        output: torch.Tensor = x + self.feed(self.feed_norm(x))
        return output


class PatchMerging(nn.Module):
    """Four neighbours become one token of twice the width."""

    def __init__(self, side: int, width: int) -> None:
        super().__init__()
        self.side, self.norm, self.reduce = side, nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(x.shape[0], self.side, self.side, -1)
        parts = [x[:, i::2, j::2] for j in range(2) for i in range(2)]
        output: torch.Tensor = self.reduce(self.norm(torch.cat(parts, -1).flatten(1, 2)))
        return output


def swin(image: int, window: int, stages: tuple[Stage, ...], classes: int) -> ImageModel:
    """Swin; a stage is (blocks, width, heads)."""
    side, width = image // 4, stages[0][1]
    layers: list[nn.Module] = [Patches(4, width), nn.LayerNorm(width)]
    for number, (blocks, width, heads) in enumerate(stages):
        if number:
            layers.append(PatchMerging(side, width // 2))
            side //= 2
        shifts = side > window
        layers += [WindowBlock(side, width, heads, window, shifts and i % 2 == 1) for i in range(blocks)]
    return ImageModel(image, nn.Sequential(*layers, nn.LayerNorm(width), Mean(), nn.Linear(width, classes)))


V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
V3 = (
    (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1),
    (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1),
    (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1), (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1),
    (5, 960, 160, 1, 1, 1),
)  # fmt: skip
EFFICIENT = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip
GHOST = (
    (3, 16, 16, 0, 1), (3, 48, 24, 0, 2), (3, 72, 24, 0, 1), (5, 72, 40, 1, 2), (5, 120, 40, 1, 1), (3, 240, 80, 0, 2),
    (3, 200, 80, 0, 1), (3, 184, 80, 0, 1), (3, 184, 80, 0, 1), (3, 480, 112, 1, 1), (3, 672, 112, 1, 1),
    (5, 672, 160, 1, 2), (5, 960, 160, 0, 1), (5, 960, 160, 1, 1), (5, 960, 160, 0, 1), (5, 960, 160, 1, 1),
)  # fmt: skip
FULL, SMALL = {"image": 224, "classes": 1000}, {"image": 32, "classes": 5}
RESNET_18 = {**FULL, "stem": 64, "stages": ((2, 64), (2, 128), (2, 256), (2, 512)), "bottleneck": False}
RESNET_18_SMALL = {**SMALL, "stem": 8, "stages": ((1, 8), (1, 12)), "bottleneck": False}

MODELS = (
    today("resnet18", "ResNet-18", resnet, RESNET_18, RESNET_18_SMALL),
    today(
        "resnet18_torchscript", "ResNet-18, TorchScript exporter", resnet, RESNET_18, RESNET_18_SMALL,
        exporter="torchscript",
    ),
    today(
        "resnet50", "ResNet-50", resnet,
        {**FULL, "stem": 64, "stages": ((3, 64), (4, 128), (6, 256), (3, 512)), "bottleneck": True},
        {**SMALL, "stem": 8, "stages": ((1, 4), (1, 6)), "bottleneck": True},
    ),
    today(
        "regnetx_004", "RegNetX-400MF", regnet,
        {**FULL, "stages": ((1, 32), (2, 64), (7, 160), (12, 384)), "group": 16},
        {**SMALL, "stages": ((1, 32), (1, 48)), "group": 16},
    ),
    today(
        "mobilenet_v2", "MobileNet v2", mobilenet_v2,
        {**FULL, "stages": V2, "last": 1280}, {**SMALL, "stages": ((1, 16, 1, 1), (2, 16, 2, 2)), "last": 24},
    ),
    today(
        "mobilenet_v3", "MobileNet v3, large", mobilenet_v3,
        {**FULL, "blocks": V3, "last": 1280},
        {**SMALL, "blocks": ((3, 16, 16, 0, 0, 1), (5, 32, 16, 1, 1, 2)), "last": 24},
    ),
    today(
        "efficientnet_b0", "EfficientNet-B0", efficientnet,
        {**FULL, "stages": EFFICIENT, "last": 1280},
        {**SMALL, "stages": ((1, 16, 1, 1, 3), (2, 16, 1, 2, 5)), "last": 24},
    ),
    today(
        "ghostnet", "GhostNet", ghostnet,
        {**FULL, "blocks": GHOST, "last": 1280},
        {**SMALL, "blocks": ((3, 16, 16, 0, 1), (5, 24, 12, 1, 2)), "last": 24},
    ),
    today(
        "convnext_atto", "ConvNeXt-atto", convnext,
        {**FULL, "stages": ((2, 40), (2, 80), (6, 160), (2, 320))}, {**SMALL, "stages": ((1, 8), (1, 12))},
    ),
    today(
        "vit_tiny", "ViT-tiny, 16x16 patches", VisionTransformer,
        {**FULL, "patch": 16, "width": 192, "heads": 3, "layers": 12},
        {**SMALL, "patch": 8, "width": 24, "heads": 3, "layers": 1},
    ),
    today(
        "swin_tiny", "Swin-tiny", swin,
        {**FULL, "window": 7, "stages": ((2, 96, 3), (2, 192, 6), (6, 384, 12), (2, 768, 24))},
        {**SMALL, "window": 4, "stages": ((2, 8, 2), (1, 16, 2))},
    ),
    today(
        "mixer_s16", "MLP-Mixer S/16", mixer,
        {**FULL, "patch": 16, "width": 512, "layers": 8}, {**SMALL, "patch": 8, "width": 16, "layers": 1},
    ),
)  # fmt: skip
