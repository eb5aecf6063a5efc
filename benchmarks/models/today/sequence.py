"""Recommenders and time series."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.spec import Inputs, Integers
from benchmarks.models.today.blocks import PreNormBlock
from benchmarks.models.today.model import Model, today


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers, each followed by ReLU; with torch's default weights their inputs would be lost on the way."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        linear = nn.Linear(inputs, outputs)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers)


class Dlrm(Model):
    """DLRM: embeddings of categories, a perceptron of numbers, all pairs' dot products, a perceptron on top."""

    pairs: torch.Tensor

    def __init__(self, tables: int, rows: int, width: int, dense: int, bottom: int, top: int, bag: int) -> None:
        super().__init__()
        self.rows, self.dense, self.shape = rows, dense, (tables, bag)
        weights = (torch.randn(rows, width) * width**-0.25 for _ in range(tables))  # products are about 1
        self.tables = nn.ModuleList(nn.Embedding(rows, width, _weight=weight) for weight in weights)
        self.bottom = perceptron(dense, bottom, bottom // 2, width)
        places = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", places[0] * (tables + 1) + places[1])
        self.top = nn.Sequential(
            perceptron(width + places.shape[1], top, top // 2), nn.Linear(top // 2, 1), nn.Sigmoid()
        )

    def inputs(self, batch: int) -> Inputs:
        return {"numbers": (batch, self.dense), "categories": Integers((batch, *self.shape), self.rows)}

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        x = self.bottom(numbers)
        found = [table(categories[:, i]).sum(1) for i, table in enumerate(self.tables)]
        features = torch.stack([x, *found], 1)
        products = (features @ features.mT).flatten(1)[:, self.pairs]
        output: torch.Tensor = self.top(torch.cat([x, products], 1))
        return output


class Gru4Rec(Model):
    """GRU4Rec: one event of a session, its state in and out, scores of all items and the ten best."""

    def __init__(self, items: int, hidden: int) -> None:
        super().__init__()
        self.items, self.hidden = items, hidden
        self.embedding, self.cell, self.scores = (
            nn.Embedding(items, hidden),
            nn.GRUCell(hidden, hidden),
            nn.Linear(hidden, items),
        )

    def inputs(self, batch: int) -> Inputs:
        return {"item": Integers((batch,), self.items), "state": (batch, self.hidden)}

    def outputs(self) -> tuple[str, ...]:
        return "best", "which", "next_state"

    def forward(self, item: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        state = self.cell(self.embedding(item), state)
        best, which = self.scores(state).topk(10)
        return best, which, state


class SasRec(Model):
    """SASRec: causal self-attention over a session's items, scores of all items for the last."""

    def __init__(self, items: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.items, self.length = items, length
        self.embedding, self.positions = nn.Embedding(items, width), nn.Parameter(torch.randn(length, width))
        self.blocks = nn.ModuleList(PreNormBlock(width, 1, width, nn.ReLU) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", torch.ones(length, length).tril().bool())

    def inputs(self, batch: int) -> Inputs:
        return {"items": Integers((batch, self.length), self.items)}

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        x = self.embedding(items) * self.embedding.embedding_dim**0.5 + self.positions
        for block in self.blocks:
            x = block(x, self.mask)
        output: torch.Tensor = self.norm(x[:, -1]) @ self.embedding.weight.T
        return output


class CausalBlock(nn.Module):
    """A TCN's block: two causal dilated convolutions, trimmed at the end, and a residual."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.trim = (kernel - 1) * dilation
        self.first = nn.Conv1d(inputs, outputs, kernel, padding=self.trim, dilation=dilation)
        self.second = nn.Conv1d(outputs, outputs, kernel, padding=self.trim, dilation=dilation)
        self.residual = nn.Identity() if inputs == outputs else nn.Conv1d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.first(x)[..., : -self.trim])
        y = functional.relu(self.second(y)[..., : -self.trim])
        return functional.relu(y + self.residual(x))


class Tcn(Model):
    """A temporal convolutional network (Bai et al.): doubling dilations, the last step decides."""

    def __init__(self, inputs: int, channels: int, levels: int, kernel: int, length: int, classes: int) -> None:
        super().__init__()
        self.shape = inputs, length
        widths = [inputs, *[channels] * levels]
        self.blocks = nn.Sequential(*(CausalBlock(widths[i], channels, kernel, 2**i) for i in range(levels)))
        self.head = nn.Linear(channels, classes)

    def inputs(self, batch: int) -> Inputs:
        return {"series": (batch, *self.shape)}

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.blocks(series)[..., -1])
        return output


class PatchBlock(nn.Module):
    """PatchTST's block: attention and feed-forward, BatchNorm behind each residual sum."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        block = PreNormBlock(width, heads, hidden)
        self.attention, self.feed = block.attention, block.feed
        self.norm, self.feed_norm = nn.BatchNorm1d(width), nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm((x + self.attention(x)).mT).mT
        output: torch.Tensor = self.feed_norm((x + self.feed(x)).mT).mT
        return output


class PatchTst(Model):
    """PatchTST: each series normalised, cut into overlapping patches, a transformer per series, one linear forecast."""

    def __init__(self, series: int, length: int, patch: int, width: int, heads: int, layers: int, horizon: int) -> None:
        super().__init__()
        self.shape, self.patch = (length, series), patch
        patches = (length - patch) // (patch // 2) + 2
        self.embedding, self.positions = nn.Linear(patch, width), nn.Parameter(torch.randn(patches, width))
        self.blocks = nn.Sequential(*(PatchBlock(width, heads, 2 * width) for _ in range(layers)))
        self.head = nn.Linear(patches * width, horizon)

    def inputs(self, batch: int) -> Inputs:
        return {"series": (batch, *self.shape)}

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        mean = series.mean(1, keepdim=True)
        deviation = torch.sqrt(series.var(1, keepdim=True, correction=0) + 1e-5)
        x = ((series - mean) / deviation).mT
        patches = functional.pad(x, (0, self.patch // 2), mode="replicate").unfold(-1, self.patch, self.patch // 2)
        hidden = self.blocks(self.embedding(patches).flatten(0, 1) + self.positions)
        forecast = self.head(hidden.flatten(1)).view(*x.shape[:2], -1)
        output: torch.Tensor = forecast.mT * deviation + mean
        return output


class NBeats(Model):
    """N-BEATS, generic: blocks of four layers that explain the past away and add to the forecast."""

    def __init__(self, length: int, horizon: int, hidden: int, blocks: int) -> None:
        super().__init__()
        self.length, self.horizon = length, horizon
        self.layers = nn.ModuleList(perceptron(length, *[hidden] * 4) for _ in range(blocks))
        self.heads = nn.ModuleList(nn.Linear(hidden, length + horizon) for _ in range(blocks))

    def inputs(self, batch: int) -> Inputs:
        return {"series": (batch, self.length)}

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        forecast = torch.zeros(())
        for layers, head in zip(self.layers, self.heads, strict=True):
            past, future = head(layers(series)).split((self.length, self.horizon), -1)
            series, forecast = series - past, forecast + future
        return forecast


class Anomaly(Model):
    """An LSTM autoencoder of sensors: a window becomes its last state, and that a window again; the error."""

    def __init__(self, sensors: int, length: int, hidden: int) -> None:
        super().__init__()
        self.shape = length, sensors
        self.encoder, self.decoder = (
            nn.LSTM(sensors, hidden, batch_first=True),
            nn.LSTM(hidden, hidden, batch_first=True),
        )
        self.output = nn.Linear(hidden, sensors)

    def inputs(self, batch: int) -> Inputs:
        return {"window": (batch, *self.shape)}

    def outputs(self) -> tuple[str, ...]:
        return "restored", "error"

    def forward(self, window: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.encoder(window)[1][0][0]
        restored = self.output(self.decoder(h[:, None].expand(-1, self.shape[0], -1))[0])
        return restored, (restored - window).square().mean((1, 2))


GRU4REC, GRU4REC_SMALL = {"items": 20000, "hidden": 256}, {"items": 50, "hidden": 12}

MODELS = (
    today(
        "dlrm", "DLRM: 26 tables of 10,000 rows, one category each", Dlrm,
        {"tables": 26, "rows": 10000, "width": 64, "dense": 13, "bottom": 512, "top": 512, "bag": 1},
        {"tables": 3, "rows": 20, "width": 8, "dense": 5, "bottom": 16, "top": 12, "bag": 2},
    ),
    today("gru4rec", "GRU4Rec, one event, 20,000 items", Gru4Rec, GRU4REC, GRU4REC_SMALL),
    today(
        "gru4rec_torchscript", "The same, TorchScript exporter", Gru4Rec, GRU4REC, GRU4REC_SMALL,
        exporter="torchscript",
    ),
    today(
        "sasrec", "SASRec, 50 events, 10,000 items", SasRec,
        {"items": 10000, "length": 50, "width": 64, "layers": 2}, {"items": 50, "length": 7, "width": 8, "layers": 1},
    ),
    today(
        "tcn", "TCN: 6 levels of 64 channels over 256 steps", Tcn,
        {"inputs": 16, "channels": 64, "levels": 6, "kernel": 3, "length": 256, "classes": 10},
        {"inputs": 3, "channels": 8, "levels": 2, "kernel": 3, "length": 13, "classes": 4},
    ),
    today(
        "patchtst", "PatchTST, 7 series of 336 steps", PatchTst,
        {"series": 7, "length": 336, "patch": 16, "width": 128, "heads": 16, "layers": 3, "horizon": 96},
        {"series": 2, "length": 24, "patch": 4, "width": 8, "heads": 2, "layers": 1, "horizon": 6},
    ),
    today(
        "nbeats", "N-BEATS, 8 blocks of 512", NBeats,
        {"length": 96, "horizon": 24, "hidden": 512, "blocks": 8},
        {"length": 12, "horizon": 4, "hidden": 8, "blocks": 2},
    ),
    today(
        "anomaly", "LSTM autoencoder of 32 sensors over 64 steps", Anomaly,
        {"sensors": 32, "length": 64, "hidden": 128}, {"sensors": 3, "length": 5, "hidden": 8},
    ),
)  # fmt: skip
