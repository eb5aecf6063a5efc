"""Listening: voice activity, wake words, recognition."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.spec import Inputs, Integers
from benchmarks.models.today.blocks import Attention, ConvNorm, FeedForward, PreNormBlock
from benchmarks.models.today.model import Model, today


class VoiceActivity(Model):
    """Silero-like: a transform of 256 samples as a convolution, four convolutions, an LSTM cell, one probability.

    A call has 32 ms at 16 kHz and the 64 samples before them.
    """

    def __init__(self, window: int, hidden: int, samples: int) -> None:
        super().__init__()
        self.hidden, self.samples, bins = hidden, samples, window // 2 + 1
        self.transform = nn.Conv1d(1, 2 * bins, window, window // 2, bias=False)
        sizes = ((bins, hidden, 1), (hidden, hidden // 2, 2), (hidden // 2, hidden // 2, 2), (hidden // 2, hidden, 1))
        self.encoder = nn.Sequential(
            *(layer for a, b, stride in sizes for layer in (nn.Conv1d(a, b, 3, stride, 1), nn.ReLU()))
        )
        self.cell = nn.LSTMCell(hidden, hidden)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid())

    def inputs(self, batch: int) -> Inputs:
        return {"audio": (batch, self.samples), "state": (2, batch, self.hidden)}

    def outputs(self) -> tuple[str, ...]:
        return "speech", "next_state"

    def forward(self, audio: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        padded = functional.pad(audio, (0, self.transform.kernel_size[0] // 4), mode="reflect")
        real, imaginary = self.transform(padded[:, None]).chunk(2, 1)
        features = self.encoder(torch.sqrt(real**2 + imaginary**2))
        h, c = self.cell(features[..., -1], (state[0], state[1]))
        return self.head(h), torch.stack([h, c])


class WakeWord(Model):
    """openWakeWord-like: two small layers over the last 16 embeddings of 96 numbers; of the 10 µs class."""

    def __init__(self, frames: int, features: int, hidden: int) -> None:
        super().__init__()
        self.shape = frames, features
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(frames * features, hidden),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
            nn.Sigmoid(),
        )

    def inputs(self, batch: int) -> Inputs:
        return {"embeddings": (batch, *self.shape)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(x)
        return output


class Keyword(Model):
    """DS-CNN of MLPerf Tiny: separable convolutions over 49 frames of 10 features."""

    def __init__(self, frames: int, features: int, channels: int, blocks: int, words: int) -> None:
        super().__init__()
        self.shape = 1, frames, features
        layers = [nn.Conv2d(1, channels, (10, 4), 2, (5, 1), bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        for _ in range(blocks):
            layers += [ConvNorm(channels, channels, 3, 1, channels), ConvNorm(channels, channels)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels, words)

    def inputs(self, batch: int) -> Inputs:
        return {"features": (batch, *self.shape)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.softmax(self.head(self.layers(x).mean((2, 3))), -1)


class TransducerStep(Model):
    """One step of an RNN transducer: the prediction network on the last token, joined with an encoder's frame."""

    def __init__(self, tokens: int, hidden: int, layers: int, encoder: int, joint: int) -> None:
        super().__init__()
        self.sizes, self.tokens, self.encoder = (layers, hidden), tokens, encoder
        self.embedding = nn.Embedding(tokens, hidden)
        self.prediction = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.from_encoder, self.from_prediction = nn.Linear(encoder, joint), nn.Linear(hidden, joint)
        self.joint = nn.Sequential(nn.ReLU(), nn.Linear(joint, tokens))

    def inputs(self, batch: int) -> Inputs:
        layers, hidden = self.sizes
        state = (layers, batch, hidden)
        return {"frame": (batch, self.encoder), "token": Integers((batch, 1), self.tokens), "h": state, "c": state}

    def outputs(self) -> tuple[str, ...]:
        return "logits", "next_h", "next_c"

    def forward(
        self, frame: torch.Tensor, token: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        predicted, (h, c) = self.prediction(self.embedding(token), (h, c))
        logits = self.joint(self.from_encoder(frame) + self.from_prediction(predicted[:, 0]))
        return logits, h, c


class StatelessTransducerStep(Model):
    """Zipformer-like decoder and joiner: a grouped convolution over the last two tokens, tanh, one projection."""

    def __init__(self, tokens: int, hidden: int) -> None:
        super().__init__()
        self.tokens, self.hidden = tokens, hidden
        self.embedding = nn.Embedding(tokens, hidden)
        self.context = nn.Conv1d(hidden, hidden, 2, groups=hidden // 4, bias=False)
        self.decoder, self.encoder, self.output = (nn.Linear(hidden, n) for n in (hidden, hidden, tokens))

    def inputs(self, batch: int) -> Inputs:
        return {"frame": (batch, self.hidden), "tokens": Integers((batch, 2), self.tokens)}

    def forward(self, frame: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        context = functional.relu(self.context(self.embedding(tokens).mT))[..., 0]
        logits: torch.Tensor = self.output(torch.tanh(self.encoder(frame) + self.decoder(context)))
        return logits


class ConformerBlock(nn.Module):
    """Half a feed-forward, attention over cached context, a causal convolution with a cache, half a feed-forward."""

    def __init__(self, width: int, heads: int, hidden: int, kernel: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.LayerNorm(width), FeedForward(width, hidden, nn.SiLU))
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.convolution_norm = nn.LayerNorm(width)
        self.expand, self.reduce = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depthwise = nn.Conv1d(width, width, kernel, groups=width)
        self.depthwise_norm = nn.BatchNorm1d(width)
        self.second = nn.Sequential(nn.LayerNorm(width), FeedForward(width, hidden, nn.SiLU))
        self.norm = nn.LayerNorm(width)

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, window: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = x + 0.5 * self.first(x)
        normed = self.attention_norm(x)
        memory = torch.cat([context, normed], 1)
        a = self.attention
        x = x + a.join(a.split(a.query(normed)), a.split(a.key(memory)), a.split(a.value(memory)), None)
        y = torch.cat([window, functional.glu(self.expand(self.convolution_norm(x).mT), 1)], 2)
        x = x + self.reduce(functional.silu(self.depthwise_norm(self.depthwise(y)))).mT
        output = self.norm(x + 0.5 * self.second(x))
        return output, memory[:, x.shape[1] :], y[..., x.shape[1] :]


class ConformerChunk(Model):
    """A streaming Conformer's encoder on a chunk, with caches of attention and convolution for each block.

    Small enough to build: 6 of the usual 12 ... 16 blocks.
    """

    def __init__(self, width: int, heads: int, blocks: int, kernel: int, chunk: int, context: int, mels: int) -> None:
        super().__init__()
        self.sizes, self.blocks_count = (chunk, context, width, kernel, mels), blocks
        self.subsample = nn.Sequential(
            nn.Conv2d(1, width // 4, 3, 2), nn.ReLU(), nn.Conv2d(width // 4, width // 4, 3, 2), nn.ReLU()
        )
        self.project = nn.Linear(width // 4 * (((mels - 1) // 2 - 1) // 2), width)
        self.blocks = nn.ModuleList(ConformerBlock(width, heads, 4 * width, kernel) for _ in range(blocks))

    def inputs(self, batch: int) -> Inputs:
        chunk, context, width, kernel, mels = self.sizes
        return {
            "mels": (batch, 4 * chunk + 3, mels),
            "contexts": (self.blocks_count, batch, context, width),
            "windows": (self.blocks_count, batch, width, kernel - 1),
        }

    def outputs(self) -> tuple[str, ...]:
        return "encoded", "next_contexts", "next_windows"

    def forward(
        self, mels: torch.Tensor, contexts: torch.Tensor, windows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.project(self.subsample(mels[:, None]).transpose(1, 2).flatten(2))
        kept = []
        for block, context, window in zip(self.blocks, contexts, windows, strict=True):
            x, *states = block(x, context, window)
            kept.append(states)
        return x, torch.stack([c for c, _ in kept]), torch.stack([w for _, w in kept])


class WhisperEncoder(Model):
    """Whisper's encoder: two convolutions over mels, positions, pre-norm blocks. Full scale is whisper-tiny, 30 s."""

    def __init__(self, width: int, heads: int, layers: int, frames: int, mels: int) -> None:
        super().__init__()
        self.shape = mels, 2 * frames
        self.first, self.second = nn.Conv1d(mels, width, 3, 1, 1), nn.Conv1d(width, width, 3, 2, 1)
        self.positions = nn.Parameter(torch.randn(frames, width))
        self.blocks = nn.ModuleList(PreNormBlock(width, heads, 4 * width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def inputs(self, batch: int) -> Inputs:
        return {"mels": (batch, *self.shape)}

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        x = functional.gelu(self.second(functional.gelu(self.first(mels)))).mT + self.positions
        for block in self.blocks:
            x = block(x)
        output: torch.Tensor = self.norm(x)
        return output


class WhisperDecoderBlock(nn.Module):
    """Attention over the tokens so far, attention over the encoder's keys and values, a feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.cross_norm, self.cross = nn.LayerNorm(width), Attention(width, heads)
        self.feed_norm, self.feed = nn.LayerNorm(width), FeedForward(width, 4 * width)

    def forward(
        self, x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor], memory: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        a, normed = self.attention, self.norm(x)
        keys = torch.cat([past[0], a.split(a.key(normed))], 2)
        values = torch.cat([past[1], a.split(a.value(normed))], 2)
        x = x + a.join(a.split(a.query(normed)), keys, values, None)
        c = self.cross
        x = x + c.join(c.split(c.query(self.cross_norm(x))), *memory, None)
        return x + self.feed(self.feed_norm(x)), keys, values


class WhisperDecoderStep(Model):
    """One token of Whisper's decoder: keys and values of the past go out longer by one, the encoder's come in.

    Full scale is whisper-tiny after 64 tokens.
    """

    def __init__(self, width: int, heads: int, layers: int, frames: int, past: int, tokens: int) -> None:
        super().__init__()
        self.heads, self.lengths, self.tokens, self.layers, self.width = heads, (past, frames), tokens, layers, width
        self.embedding = nn.Embedding(tokens, width)
        self.positions = nn.Embedding(past + 64, width)
        self.blocks = nn.ModuleList(WhisperDecoderBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def inputs(self, batch: int) -> Inputs:
        states: dict[str, tuple[int, ...] | Integers] = {
            f"{what}_{kind}_{i}": (batch, self.heads, length, self.width // self.heads)
            for i in range(self.layers)
            for what, length in zip(("past", "encoder"), self.lengths, strict=True)
            for kind in ("key", "value")
        }
        return {"token": Integers((batch, 1), self.tokens), "position": Integers((1,), self.lengths[0]), **states}

    def outputs(self) -> tuple[str, ...]:
        return "logits", *(f"present_{kind}_{i}" for i in range(self.layers) for kind in ("key", "value"))

    def forward(self, token: torch.Tensor, position: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.embedding(token) + self.positions(position)
        present = []
        for i, block in enumerate(self.blocks):
            key, value, *memory = states[4 * i : 4 * i + 4]
            x, *kept = block(x, (key, value), memory)
            present += kept
        return self.norm(x) @ self.embedding.weight.T, *present


class Res2Block(nn.Module):
    """ECAPA's block: dilated convolutions over parts of the channels, each fed by the one before, and a gate."""

    def __init__(self, channels: int, dilation: int, scale: int) -> None:
        super().__init__()
        self.scale, part = scale, channels // scale

        def layer(inputs: int, outputs: int, kernel: int, dilation: int) -> nn.Sequential:
            conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, padding=dilation * (kernel // 2))
            return nn.Sequential(conv, nn.ReLU(), nn.BatchNorm1d(outputs))

        self.before, self.after = layer(channels, channels, 1, 1), layer(channels, channels, 1, 1)
        self.parts = nn.ModuleList(layer(part, part, 3, dilation) for _ in range(scale - 1))
        self.gate = nn.Sequential(nn.Linear(channels, 128), nn.ReLU(), nn.Linear(128, channels), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *rest = self.before(x).chunk(self.scale, 1)
        found, y = [first], torch.zeros_like(first)
        for part, chunk in zip(self.parts, rest, strict=True):
            y = part(chunk + y)
            found.append(y)
        z = self.after(torch.cat(found, 1))
        output: torch.Tensor = x + z * self.gate(z.mean(2))[..., None]
        return output


class SpeakerEmbedding(Model):
    """ECAPA-TDNN: three Res2 blocks joined, pooling by attention with mean and deviation, one linear layer."""

    def __init__(self, mels: int, frames: int, channels: int, embedding: int) -> None:
        super().__init__()
        self.shape = mels, frames
        self.first = nn.Sequential(nn.Conv1d(mels, channels, 5, padding=2), nn.ReLU(), nn.BatchNorm1d(channels))
        self.blocks = nn.ModuleList(Res2Block(channels, dilation, 8) for dilation in (2, 3, 4))
        self.join = nn.Sequential(nn.Conv1d(3 * channels, 3 * channels, 1), nn.ReLU())
        self.attention = nn.Sequential(
            nn.Conv1d(9 * channels, 128, 1), nn.ReLU(), nn.BatchNorm1d(128), nn.Tanh(), nn.Conv1d(128, 3 * channels, 1)
        )
        self.norm, self.embedding = nn.BatchNorm1d(6 * channels), nn.Linear(6 * channels, embedding)

    def inputs(self, batch: int) -> Inputs:
        return {"mels": (batch, *self.shape)}

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        x, found = self.first(mels), []
        for block in self.blocks:
            x = block(x)
            found.append(x)
        x = self.join(torch.cat(found, 1))
        mean, deviation = x.mean(2, keepdim=True), x.var(2, keepdim=True, correction=0).clamp(min=1e-7).sqrt()
        weights = self.attention(torch.cat([x, mean.expand_as(x), deviation.expand_as(x)], 1)).softmax(2)
        mean = (weights * x).sum(2)
        deviation = (weights * x**2).sum(2).sub(mean**2).clamp(min=1e-7).sqrt()
        output: torch.Tensor = self.embedding(self.norm(torch.cat([mean, deviation], 1)))
        return output


WHISPER_TINY = {"width": 384, "heads": 6, "layers": 4, "frames": 1500}
WHISPER_SMALL = {"width": 32, "heads": 2, "layers": 1, "frames": 12}
TRANSDUCER = {"tokens": 1025, "hidden": 640, "layers": 1, "encoder": 512, "joint": 640}
TRANSDUCER_SMALL = {"tokens": 33, "hidden": 16, "layers": 1, "encoder": 24, "joint": 20}
VAD, VAD_SMALL = {"window": 256, "hidden": 128, "samples": 576}, {"window": 32, "hidden": 16, "samples": 72}

MODELS = (
    today("vad", "Voice activity by 32 ms (Silero-like)", VoiceActivity, VAD, VAD_SMALL),
    today(
        "vad_torchscript", "The same, TorchScript exporter", VoiceActivity, VAD, VAD_SMALL, exporter="torchscript"
    ),
    today(
        "wake_word", "Wake word over embeddings (openWakeWord-like)", WakeWord,
        {"frames": 16, "features": 96, "hidden": 64}, {"frames": 4, "features": 8, "hidden": 8},
    ),
    today(
        "keyword", "Keyword spotting (DS-CNN)", Keyword,
        {"frames": 49, "features": 10, "channels": 64, "blocks": 4, "words": 12},
        {"frames": 13, "features": 10, "channels": 8, "blocks": 1, "words": 5},
    ),
    today("transducer", "RNN-T prediction and joint, one step", TransducerStep, TRANSDUCER, TRANSDUCER_SMALL),
    today(
        "transducer_stateless", "Stateless transducer, one step (Zipformer-like)", StatelessTransducerStep,
        {"tokens": 500, "hidden": 512}, {"tokens": 20, "hidden": 16},
    ),
    today(
        "conformer_chunk", "Streaming Conformer, a chunk of 640 ms", ConformerChunk,
        {"width": 256, "heads": 4, "blocks": 6, "kernel": 15, "chunk": 16, "context": 64, "mels": 80},
        {"width": 16, "heads": 2, "blocks": 2, "kernel": 5, "chunk": 3, "context": 4, "mels": 20},
    ),
    today(
        "whisper_encoder", "Whisper-tiny's encoder, 30 s", WhisperEncoder,
        {**WHISPER_TINY, "mels": 80}, {**WHISPER_SMALL, "mels": 10},
    ),
    today(
        "whisper_decoder", "Whisper-tiny's decoder, one token after 64", WhisperDecoderStep,
        {**WHISPER_TINY, "past": 64, "tokens": 51865}, {**WHISPER_SMALL, "past": 5, "tokens": 50},
    ),
    today(
        "speaker", "Speaker embedding of 3 s (ECAPA-TDNN)", SpeakerEmbedding,
        {"mels": 80, "frames": 300, "channels": 512, "embedding": 192},
        {"mels": 10, "frames": 12, "channels": 32, "embedding": 8},
    ),
)  # fmt: skip
