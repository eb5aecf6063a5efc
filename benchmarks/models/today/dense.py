"""Dense prediction: text in images, objects, masks, a step of diffusion."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.spec import Inputs
from benchmarks.models.today.blocks import Attention, ConvNorm, InvertedResidual, PreNormBlock, SqueezeExcite
from benchmarks.models.today.model import Model, today
from benchmarks.models.today.vision import ImageModel

Stage = tuple[int, ...]


class Crnn(Model):
    """CRNN: a VGG-like stack down to one row, two BiLSTMs along the columns, a class for each."""

    def __init__(self, height: int, width: int, channels: Stage, hidden: int, classes: int) -> None:
        super().__init__()
        self.shape = 1, height, width
        a, b, c, d = channels
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, a, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(a, b, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
            ConvNorm(b, c, 3), nn.Conv2d(c, c, 3, 1, 1), nn.ReLU(), nn.MaxPool2d((2, 2), (2, 1), (0, 1)),
            ConvNorm(c, d, 3), nn.Conv2d(d, d, 3, 1, 1), nn.ReLU(), nn.MaxPool2d((2, 2), (2, 1), (0, 1)),
            nn.Conv2d(d, d, (height // 16, 2)), nn.ReLU(),
        )  # fmt: skip
        self.recurrent = nn.LSTM(d, hidden, 2, bidirectional=True)
        self.head = nn.Linear(2 * hidden, classes)

    def inputs(self, batch: int) -> Inputs:
        return {"image": (batch, *self.shape)}

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        columns = self.convolutions(image)[:, :, 0].permute(2, 0, 1)
        return functional.log_softmax(self.head(self.recurrent(columns)[0]), -1)


class TextRecognizer(ImageModel):
    """PP-OCR-like: a narrow MobileNet that keeps columns, attention over them (SVTR's neck), a softmax for each."""

    def __init__(
        self, image: tuple[int, int], blocks: tuple[Stage, ...], width: int, layers: int, classes: int
    ) -> None:
        super().__init__(image)
        stem: list[nn.Module] = [ConvNorm(3, 16, 3, 2, activation=nn.Hardswish)]
        channels = 16
        for kernel, outputs, squeezed, down, across in blocks:
            squeeze = SqueezeExcite(2 * channels, channels // 2, gate=nn.Hardsigmoid) if squeezed else None
            block = InvertedResidual(channels, 2 * channels, outputs, kernel, (down, across), squeeze, nn.Hardswish)
            stem.append(block)
            channels = outputs
        self.stem, self.narrow = nn.Sequential(*stem), ConvNorm(channels, width, activation=nn.SiLU)
        self.blocks = nn.Sequential(*(PreNormBlock(width, 8, 2 * width, nn.SiLU) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes), nn.Softmax(-1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.narrow(functional.avg_pool2d(self.stem(image), (self.image[0] // 16, 2)))
        output: torch.Tensor = self.head(self.blocks(x[:, :, 0].mT))
        return output


class TextDetector(ImageModel):
    """PP-OCR-like detector: MobileNet's stages, a feature pyramid, a map of probabilities at full size (DB)."""

    def __init__(self, image: int, widths: Stage, wide: int) -> None:
        super().__init__(image)
        channels = (16, *widths)
        self.stem = ConvNorm(3, 16, 3, 2, activation=nn.Hardswish)
        self.stages = nn.ModuleList(
            nn.Sequential(
                InvertedResidual(a, 4 * a, b, 5, 2, None, nn.Hardswish),
                InvertedResidual(b, 4 * b, b, 5, 1, None, nn.Hardswish),
            )
            for a, b in pairwise(channels)
        )
        self.ins = nn.ModuleList(nn.Conv2d(width, wide, 1, bias=False) for width in widths)
        self.outs = nn.ModuleList(nn.Conv2d(wide, wide // 4, 3, 1, 1, bias=False) for _ in widths)
        quarter = wide // 4
        self.head = nn.Sequential(
            ConvNorm(quarter * len(widths), quarter, 3),
            nn.ConvTranspose2d(quarter, quarter, 2, 2),
            nn.BatchNorm2d(quarter),
            nn.ReLU(),
            nn.ConvTranspose2d(quarter, 1, 2, 2),
            nn.Sigmoid(),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x, planes = self.stem(image), []
        for stage, into in zip(self.stages, self.ins, strict=True):
            x = stage(x)
            planes.append(into(x))
        for i in range(len(planes) - 2, -1, -1):
            planes[i] = planes[i] + functional.interpolate(planes[i + 1], scale_factor=2, mode="nearest")
        found = [
            functional.interpolate(out(plane), scale_factor=2**i, mode="nearest")
            for i, (out, plane) in enumerate(zip(self.outs, planes, strict=True))
        ]
        output: torch.Tensor = self.head(torch.cat(found[::-1], 1))
        return output


class CrossStage(nn.Module):
    """YOLO's C2f: half of the channels through a chain of residual pairs, all parts joined."""

    def __init__(self, inputs: int, outputs: int, blocks: int, residual: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.residual, self.first = residual, ConvNorm(inputs, outputs, activation=nn.SiLU)
        self.pairs = nn.ModuleList(
            nn.Sequential(*(ConvNorm(half, half, 3, activation=nn.SiLU) for _ in range(2))) for _ in range(blocks)
        )
        self.last = ConvNorm((2 + blocks) * half, outputs, activation=nn.SiLU)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for pair in self.pairs:
            y = pair(parts[-1])
            parts.append(parts[-1] + y if self.residual else y)
        output: torch.Tensor = self.last(torch.cat(parts, 1))
        return output


class PyramidPooling(nn.Module):
    """SPPF: the same 5x5 maximum three times over, all joined."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = (
            ConvNorm(channels, channels // 2, activation=nn.SiLU),
            ConvNorm(2 * channels, channels, activation=nn.SiLU),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(functional.max_pool2d(parts[-1], 5, 1, 2))
        output: torch.Tensor = self.last(torch.cat(parts, 1))
        return output


class Detector(ImageModel):
    """YOLOv8-like with its head: expected distances from each place, decoded to boxes, beside class scores."""

    BINS = 16  # of the distribution of each distance

    centres: torch.Tensor
    strides: torch.Tensor
    bins: torch.Tensor

    def __init__(self, image: int, widths: Stage, blocks: Stage, classes: int) -> None:
        super().__init__(image)
        a, b, c, d, e = widths
        self.classes = classes

        def down(inputs: int, outputs: int) -> ConvNorm:
            return ConvNorm(inputs, outputs, 3, 2, activation=nn.SiLU)

        stem = nn.Sequential(down(3, a), down(a, b), CrossStage(b, b, blocks[0], True), down(b, c))
        self.backbone = nn.ModuleList(
            [
                nn.Sequential(stem, CrossStage(c, c, blocks[1], True)),
                nn.Sequential(down(c, d), CrossStage(d, d, blocks[2], True)),
                nn.Sequential(down(d, e), CrossStage(e, e, blocks[3], True), PyramidPooling(e)),
            ]
        )
        depth = blocks[0]
        self.up_d, self.up_c = CrossStage(d + e, d, depth, False), CrossStage(c + d, c, depth, False)
        self.down_c, self.down_d = down(c, c), down(d, d)
        self.mix_d, self.mix_e = CrossStage(c + d, d, depth, False), CrossStage(d + e, e, depth, False)

        def head(inputs: int, inside: int, outputs: int) -> nn.Sequential:
            first, second = (ConvNorm(n, inside, 3, activation=nn.SiLU) for n in (inputs, inside))
            return nn.Sequential(first, second, nn.Conv2d(inside, outputs, 1))

        self.boxes = nn.ModuleList(head(width, 4 * self.BINS, 4 * self.BINS) for width in (c, d, e))
        self.scores = nn.ModuleList(head(width, max(c, classes), classes) for width in (c, d, e))
        centres, strides = [], []
        for stride in (8, 16, 32):
            line = torch.arange(image // stride) + 0.5
            rows, columns = torch.meshgrid(line, line, indexing="ij")
            centres.append(torch.stack([columns, rows]).flatten(1))
            strides.append(torch.full((1, columns.numel()), float(stride)))
        self.register_buffer("centres", torch.cat(centres, 1))
        self.register_buffer("strides", torch.cat(strides, 1))
        self.register_buffer("bins", torch.arange(self.BINS, dtype=torch.float32))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        c = self.backbone[0](image)
        d = self.backbone[1](c)
        e = self.backbone[2](d)

        def double(x: torch.Tensor) -> torch.Tensor:
            return functional.interpolate(x, scale_factor=2, mode="nearest")

        d = self.up_d(torch.cat([double(e), d], 1))
        c = self.up_c(torch.cat([double(d), c], 1))
        d = self.mix_d(torch.cat([self.down_c(c), d], 1))
        e = self.mix_e(torch.cat([self.down_d(d), e], 1))
        found = [
            torch.cat([box(plane).flatten(2), score(plane).flatten(2)], 1)
            for box, score, plane in zip(self.boxes, self.scores, (c, d, e), strict=True)
        ]
        joined = torch.cat(found, 2)
        boxes, scores = joined[:, : 4 * self.BINS], joined[:, 4 * self.BINS :]
        shares = boxes.view(-1, 4, self.BINS, boxes.shape[2]).softmax(2)
        near, far = (shares * self.bins[:, None]).sum(2).chunk(2, 1)
        low, high = self.centres - near, self.centres + far
        decoded = torch.cat([(low + high) / 2, high - low], 1) * self.strides
        return torch.cat([decoded, scores.sigmoid()], 1)


class DiffusionBlock(nn.Module):
    """Twice GroupNorm, SiLU and a convolution, with the time's embedding between, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, time: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(groups, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, 1, 1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, outputs))
        self.second = nn.Sequential(nn.GroupNorm(groups, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, 1, 1))
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.first(x) + self.time(time)[..., None, None]
        output: torch.Tensor = self.second(y) + self.shortcut(x)
        return output


class PlaneAttention(nn.Module):
    """Self-attention over the places of a plane."""

    def __init__(self, channels: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.GroupNorm(groups, channels), Attention(channels, heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.attention(self.norm(x).flatten(2).mT)
        output: torch.Tensor = x + found.mT.reshape(x.shape)
        return output


class DiffusionStep(Model):
    """A step of a diffusion model: its UNet on 32x32 (DDPM's for CIFAR), then x of the step before by DDIM's rule."""

    frequencies: torch.Tensor

    def __init__(self, image: int, channels: int, factors: Stage, groups: int) -> None:
        super().__init__()
        self.image, self.channels, time = image, channels, 4 * channels
        self.embed = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        widths = [channels * factor for factor in factors]
        self.first = nn.Conv2d(3, channels, 3, 1, 1)
        ins = [channels, *widths[:-1]]
        self.downs = nn.ModuleList(DiffusionBlock(a, b, time, groups) for a, b in zip(ins, widths, strict=True))
        self.strides = nn.ModuleList(nn.Conv2d(width, width, 3, 2, 1) for width in widths[:-1])
        last = widths[-1]
        self.middle, self.middle_attention = DiffusionBlock(last, last, time, groups), PlaneAttention(last, 4, groups)
        outs = [*widths[-2::-1], channels]
        self.ups = nn.ModuleList(
            DiffusionBlock(2 * a, b, time, groups) for a, b in zip(widths[::-1], outs, strict=True)
        )
        self.widen = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for width in outs[:-1])
        self.last = nn.Sequential(nn.GroupNorm(groups, channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, 1, 1))
        half = channels // 2
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half))

    def inputs(self, batch: int) -> Inputs:
        return {"image": (batch, 3, self.image, self.image), "time": (batch,), "kept": (batch,)}

    def forward(self, image: torch.Tensor, time: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        angles = 100 * time[:, None] * self.frequencies
        t = self.embed(torch.cat([angles.sin(), angles.cos()], 1))
        x, skips = self.first(image), []
        for i, down in enumerate(self.downs):
            x = down(x, t)
            skips.append(x)
            x = self.strides[i](x) if i < len(self.strides) else x
        x = self.middle_attention(self.middle(x, t))
        for i, up in enumerate(self.ups):
            x = up(torch.cat([x, skips.pop()], 1), t)
            if i < len(self.widen):
                x = self.widen[i](functional.interpolate(x, scale_factor=2, mode="nearest"))
        share = torch.sigmoid(kept)[:, None, None, None]
        output: torch.Tensor = share.sqrt() * image + (1 - share).sqrt() * self.last(x)
        return output


class Segmenter(Model):
    """LR-ASPP-like segmentation: MobileNet's blocks, a gated head, bilinear up, the best class of each pixel."""

    def __init__(self, image: int, widths: Stage, wide: int, classes: int) -> None:
        super().__init__()
        self.image = image, image
        low = widths[0]
        self.low = nn.Sequential(
            ConvNorm(3, 16, 3, 2, activation=nn.Hardswish),
            InvertedResidual(16, 64, low, 3, 2, None, nn.ReLU),
            InvertedResidual(low, 3 * low, low, 3, 2, None, nn.ReLU),
        )
        blocks, step = [], 2
        for before, after in pairwise(widths):
            blocks.append(InvertedResidual(before, 4 * before, after, 5, step, None, nn.Hardswish))
            step = 1
        self.high = nn.Sequential(*blocks)
        self.project = ConvNorm(widths[-1], wide)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(widths[-1], wide, 1, bias=False), nn.Sigmoid())
        self.from_low, self.from_high = nn.Conv2d(low, classes, 1), nn.Conv2d(wide, classes, 1)

    def inputs(self, batch: int) -> Inputs:
        return {"image": (batch, 3, *self.image)}

    def outputs(self) -> tuple[str, ...]:
        return "scores", "labels"

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low = self.low(image)
        high = self.high(low)
        x = self.project(high) * self.gate(high)
        x = functional.interpolate(x, size=low.shape[-2:], mode="bilinear", align_corners=False)
        scores = functional.interpolate(self.from_low(low) + self.from_high(x), size=self.image, mode="bilinear")
        return scores, scores.argmax(1)


CRNN = {"height": 32, "width": 100, "channels": (64, 128, 256, 512), "hidden": 256, "classes": 37}
CRNN_SMALL = {"height": 32, "width": 20, "channels": (4, 6, 8, 8), "hidden": 6, "classes": 7}
READER = (
    (3, 32, 0, 1, 1), (3, 64, 0, 2, 1), (3, 64, 0, 1, 1), (3, 128, 0, 2, 1), (5, 128, 0, 1, 1), (5, 128, 0, 1, 1),
    (5, 256, 1, 2, 1), (5, 256, 1, 1, 1),
)  # fmt: skip

MODELS = (
    today("crnn", "CRNN, a word of 32x100", Crnn, CRNN, CRNN_SMALL),
    today("crnn_torchscript", "The same, TorchScript exporter", Crnn, CRNN, CRNN_SMALL, exporter="torchscript"),
    today(
        "ocr_recognizer", "PP-OCR-like recogniser, a line of 48x320", TextRecognizer,
        {"image": (48, 320), "blocks": READER, "width": 120, "layers": 2, "classes": 6625},
        {"image": (16, 24), "blocks": ((3, 16, 0, 2, 1), (5, 16, 1, 2, 1)), "width": 16, "layers": 1, "classes": 9},
    ),
    today(
        "ocr_detector", "PP-OCR-like text detector, 320x320", TextDetector,
        {"image": 320, "widths": (24, 40, 80, 160), "wide": 96}, {"image": 64, "widths": (8, 12), "wide": 16},
    ),
    today(
        "detector", "YOLOv8n-like detector with its head, 320x320", Detector,
        {"image": 320, "widths": (16, 32, 64, 128, 256), "blocks": (1, 2, 2, 1), "classes": 80},
        {"image": 64, "widths": (4, 8, 8, 12, 16), "blocks": (1, 1, 1, 1), "classes": 3},
    ),
    today(
        "diffusion", "A step of diffusion: UNet of 32x32 and DDIM's rule", DiffusionStep,
        {"image": 32, "channels": 64, "factors": (1, 2, 2, 4), "groups": 32},
        {"image": 8, "channels": 8, "factors": (1, 2), "groups": 4},
    ),
    today(
        "segmenter", "LR-ASPP-like segmentation, 224x224", Segmenter,
        {"image": 224, "widths": (40, 112, 160, 160), "wide": 128, "classes": 21},
        {"image": 32, "widths": (8, 12, 12), "wide": 16, "classes": 4},
    ),
)  # fmt: skip
