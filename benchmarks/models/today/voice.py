"""Making and cleaning speech: denoisers, separation, prosody, vocoders."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.spec import Inputs, Integers
from benchmarks.models.today.model import Model, today


class Denoiser(Model):
    """A mask for each of the spectrum's bins from stacked GRUs, `frames` frames a call (NSNet2-like)."""

    def __init__(self, bins: int, hidden: int, layers: int, wide: int, frames: int) -> None:
        super().__init__()
        self.shape, self.state = (frames, bins), (layers, hidden)
        self.front = nn.Linear(bins, hidden)
        self.recurrent = nn.GRU(hidden, hidden, layers, batch_first=True)
        self.head = nn.Sequential(
            nn.Linear(hidden, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, bins), nn.Sigmoid()
        )

    def inputs(self, batch: int) -> Inputs:
        layers, hidden = self.state
        return {"spectrum": (batch, *self.shape), "state": (layers, batch, hidden)}

    def outputs(self) -> tuple[str, ...]:
        return "masked", "next_state"

    def forward(self, spectrum: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, state = self.recurrent(functional.relu(self.front(spectrum)), state)
        return self.head(x) * spectrum, state


class DualSignal(Model):
    """DTLN: an LSTM's mask on the magnitude spectrum, then one on a learned basis; a frame a call."""

    cosines: torch.Tensor
    sines: torch.Tensor

    def __init__(self, window: int, basis: int, hidden: int) -> None:
        super().__init__()
        self.window, self.hidden, bins = window, hidden, window // 2 + 1
        place = torch.arange(window) * torch.arange(bins)[:, None] * (2 * math.pi / window)
        self.register_buffer("cosines", place.cos())
        self.register_buffer("sines", place.sin())
        self.first, self.second = nn.LSTM(bins, hidden, 2), nn.LSTM(basis, hidden, 2)
        self.first_mask, self.second_mask = nn.Linear(hidden, bins), nn.Linear(hidden, basis)
        self.encode, self.decode = nn.Linear(window, basis, False), nn.Linear(basis, window, False)
        self.norm = nn.LayerNorm(basis)

    def inputs(self, batch: int) -> Inputs:
        state = 2, batch, self.hidden
        return {"samples": (batch, self.window), "h1": state, "c1": state, "h2": state, "c2": state}

    def outputs(self) -> tuple[str, ...]:
        return "cleaned", "next_h1", "next_c1", "next_h2", "next_c2"

    def forward(
        self, samples: torch.Tensor, h1: torch.Tensor, c1: torch.Tensor, h2: torch.Tensor, c2: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        real, imaginary = samples @ self.cosines.T, samples @ self.sines.T
        found, (h1, c1) = self.first(torch.sqrt(real**2 + imaginary**2 + 1e-9)[None], (h1, c1))
        mask = torch.sigmoid(self.first_mask(found[0]))
        near = ((mask * real) @ self.cosines + (mask * imaginary) @ self.sines) / self.window
        encoded = self.encode(near)
        found, (h2, c2) = self.second(self.norm(encoded)[None], (h2, c2))
        return self.decode(encoded * torch.sigmoid(self.second_mask(found[0]))), h1, c1, h2, c2


class DualPathBlock(nn.Module):
    """A bidirectional GRU along the bands of each frame, then a GRU along time with a carried state."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.across = nn.GRU(channels, hidden, batch_first=True, bidirectional=True)
        self.across_out, self.across_norm = nn.Linear(2 * hidden, channels), nn.LayerNorm(channels)
        self.along = nn.GRU(channels, 2 * hidden, batch_first=True)
        self.along_out, self.along_norm = nn.Linear(2 * hidden, channels), nn.LayerNorm(channels)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`x` [frames, bands, channels]."""
        x = x + self.across_norm(self.across_out(self.across(x)[0]))
        y, state = self.along(x.transpose(0, 1), state)
        return x + self.along_norm(self.along_out(y)).transpose(0, 1), state


class DualPath(Model):
    """GTCRN-like: convolutions stride over bands, dual-path recurrent blocks, the way back, a complex mask."""

    def __init__(self, frames: int, bands: int, channels: int, hidden: int, blocks: int) -> None:
        super().__init__()
        self.shape, self.state = (2, frames, bands), (blocks, 1, (bands - 1) // 4 + 1, 2 * hidden)
        step = (1, 5), (1, 2), (0, 2)  # filter, stride, padding
        self.down = nn.Sequential(nn.Conv2d(2, channels, *step), nn.PReLU(), nn.Conv2d(channels, channels, *step))
        self.blocks = nn.ModuleList(DualPathBlock(channels, hidden) for _ in range(blocks))
        self.up = nn.Sequential(
            nn.ConvTranspose2d(channels, channels, *step),
            nn.PReLU(),
            nn.ConvTranspose2d(channels, 2, *step),
            nn.Tanh(),
        )

    def inputs(self, batch: int) -> Inputs:
        return {"spectrum": (1, *self.shape), "states": self.state}

    def outputs(self) -> tuple[str, ...]:
        return "cleaned", "next_states"

    def forward(self, spectrum: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, kept = self.down(spectrum)[0].permute(1, 2, 0), []
        for block, state in zip(self.blocks, states, strict=True):
            x, state = block(x, state)
            kept.append(state)
        real, imaginary = self.up(x.permute(2, 0, 1)[None]).unbind(1)
        a, b = spectrum.unbind(1)
        return torch.stack([a * real - b * imaginary, a * imaginary + b * real], 1), torch.stack(kept)


class SeparationBlock(nn.Module):
    """Conv-TasNet's: 1x1, PReLU, norm over everything, dilated depthwise, the same again, 1x1 back."""

    def __init__(self, channels: int, hidden: int, dilation: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(channels, hidden, 1),
            nn.PReLU(),
            nn.GroupNorm(1, hidden),
            nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden),
            nn.PReLU(),
            nn.GroupNorm(1, hidden),
            nn.Conv1d(hidden, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = x + self.layers(x)
        return output


class Separation(Model):
    """Conv-TasNet: a learned filter bank, repeated stacks of dilated blocks, a mask per speaker, and the way back."""

    def __init__(self, samples: int, filters: int, channels: int, hidden: int, blocks: int, repeats: int) -> None:
        super().__init__()
        self.samples, self.filters = samples, filters
        self.encode = nn.Conv1d(1, filters, 16, 8, bias=False)
        self.mask = nn.Sequential(
            nn.GroupNorm(1, filters),
            nn.Conv1d(filters, channels, 1),
            *(SeparationBlock(channels, hidden, 2**i) for _ in range(repeats) for i in range(blocks)),
            nn.PReLU(),
            nn.Conv1d(channels, 2 * filters, 1),
            nn.Sigmoid(),
        )
        self.decode = nn.ConvTranspose1d(filters, 1, 16, 8, bias=False)

    def inputs(self, batch: int) -> Inputs:
        return {"mixture": (1, 1, self.samples)}

    def forward(self, mixture: torch.Tensor) -> torch.Tensor:
        basis = functional.relu(self.encode(mixture))
        masked = self.mask(basis).view(2, self.filters, -1) * basis
        output: torch.Tensor = self.decode(masked)
        return output


class Prosody(Model):
    """StyleTTS-like: characters through convolutions and a BiLSTM; duration, pitch and energy by BiLSTMs."""

    def __init__(self, tokens: int, length: int, width: int, style: int, convolutions: int) -> None:
        super().__init__()
        self.tokens, self.length, self.style = tokens, length, style
        self.embedding = nn.Embedding(tokens, width)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2) for _ in range(convolutions))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(convolutions))

        def recurrent(inputs: int) -> nn.LSTM:
            return nn.LSTM(inputs, width // 2, batch_first=True, bidirectional=True)

        self.text, self.shared = recurrent(width), recurrent(width + style)
        self.pitch, self.energy = recurrent(width + style), recurrent(width + style)
        self.duration, self.pitch_out, self.energy_out = nn.Linear(width, 50), nn.Linear(width, 1), nn.Linear(width, 1)

    def inputs(self, batch: int) -> Inputs:
        return {"characters": Integers((batch, self.length), self.tokens), "style": (batch, self.style)}

    def outputs(self) -> tuple[str, ...]:
        return "durations", "pitch", "energy"

    def forward(self, characters: torch.Tensor, style: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.embedding(characters)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = functional.leaky_relu(norm(convolution(x.mT).mT), 0.2)
        x = self.text(x)[0]
        spread = style[:, None].expand(-1, self.length, -1)
        x = self.shared(torch.cat([x, spread], -1))[0]
        styled = torch.cat([x, spread], -1)
        durations = torch.sigmoid(self.duration(x)).sum(-1)
        return durations, self.pitch_out(self.pitch(styled)[0])[..., 0], self.energy_out(self.energy(styled)[0])[..., 0]


class ResidualStack(nn.Module):
    """HiFi-GAN's: leaky ReLU and a dilated convolution, leaky ReLU and a plain one, three times with residuals."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()

        def layer(dilation: int) -> nn.Conv1d:
            return nn.Conv1d(channels, channels, kernel, padding=dilation * (kernel // 2), dilation=dilation)

        self.dilated = nn.ModuleList(layer(d) for d in dilations)
        self.plain = nn.ModuleList(layer(1) for _ in dilations)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            y = dilated(functional.leaky_relu(x, 0.1))
            x = x + plain(functional.leaky_relu(y, 0.1))
        return x


class ResidualMean(nn.Module):
    """The mean of residual stacks of several filters."""

    def __init__(self, channels: int, kernels: tuple[int, ...]) -> None:
        super().__init__()
        self.stacks = nn.ModuleList(ResidualStack(channels, kernel, (1, 3, 5)) for kernel in kernels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *rest = (stack(x) for stack in self.stacks)
        mean: torch.Tensor = sum(rest, first) / len(self.stacks)
        return mean


class Vocoder(Model):
    """HiFi-GAN: transposed convolutions up to samples, after each the mean of residual stacks of several filters.

    With `window` the last step is ISTFTNet's: magnitude and phase of short frames, back to samples by a transposed
    convolution with sinusoids. Full scale has HiFi-GAN v2's 128 channels.
    """

    waves: torch.Tensor

    def __init__(self, mels: int, frames: int, channels: int, rates: tuple[int, ...], window: int = 0) -> None:
        super().__init__()
        self.shape, self.window = (mels, frames), window
        self.first = nn.Conv1d(mels, channels, 7, padding=3)
        self.ups, self.stacks = nn.ModuleList(), nn.ModuleList()
        for rate in rates:
            self.ups.append(nn.ConvTranspose1d(channels, channels // 2, 2 * rate, rate, rate // 2))
            channels //= 2
            self.stacks.append(ResidualMean(channels, (3, 7, 11)))
        self.last = nn.Conv1d(channels, window + 2 if window else 1, 7, padding=3)
        place = torch.arange(max(window, 1)) * torch.arange(window // 2 + 1)[:, None] * (2 * math.pi / max(window, 1))
        waves = torch.cat([place.cos(), -place.sin()])[:, None] * torch.hann_window(max(window, 1))
        self.register_buffer("waves", waves / max(window, 1))

    def inputs(self, batch: int) -> Inputs:
        return {"mels": (batch, *self.shape)}

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        x = self.first(mels)
        for up, stacks in zip(self.ups, self.stacks, strict=True):
            x = stacks(up(functional.leaky_relu(x, 0.1)))
        x = self.last(functional.leaky_relu(x))
        if not self.window:
            return torch.tanh(x)
        magnitude, phase = x.split(self.window // 2 + 1, 1)
        magnitude, phase = torch.exp(magnitude.clamp(max=4)), torch.sin(phase)
        spectrum = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], 1)
        return functional.conv_transpose1d(spectrum, self.waves, stride=self.window // 4)


class Coupling(nn.Module):
    """VITS' flow: half of the channels shifts the other half by what a WaveNet of dilated gates finds."""

    def __init__(self, channels: int, layers: int, kernel: int) -> None:
        super().__init__()
        half = channels // 2
        self.before, self.after = nn.Conv1d(half, channels, 1), nn.Conv1d(channels, half, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, kernel, padding=kernel // 2) for _ in range(layers)
        )
        self.mixes = nn.ModuleList(nn.Conv1d(channels, 2 * channels, 1) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, 1)
        h, skips = self.before(first), torch.zeros(())
        for gate, mix in zip(self.gates, self.mixes, strict=True):
            a, b = gate(h).chunk(2, 1)
            residual, skip = mix(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            h, skips = h + residual, skips + skip
        return torch.cat([first, second - self.after(skips)], 1).flip(1)


class Flow(Model):
    """The flow of VITS (Piper): couplings, each followed by a reversal of the channels."""

    def __init__(self, channels: int, frames: int, couplings: int, layers: int) -> None:
        super().__init__()
        self.shape = channels, frames
        self.couplings = nn.Sequential(*(Coupling(channels, layers, 5) for _ in range(couplings)))

    def inputs(self, batch: int) -> Inputs:
        return {"latent": (batch, *self.shape)}

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.couplings(latent)
        return output


NSNET2 = {"bins": 161, "hidden": 400, "layers": 2, "wide": 600}
NSNET2_SMALL = {"bins": 17, "hidden": 12, "layers": 2, "wide": 20}
VOCODER = {"mels": 80, "frames": 32, "channels": 128}
VOCODER_SMALL = {"mels": 10, "frames": 5, "channels": 16}

MODELS = (
    *(
        today(
            f"denoiser_{frames}", f"GRU denoiser, frames by {frames} (NSNet2-like)", Denoiser,
            {**NSNET2, "frames": frames}, {**NSNET2_SMALL, "frames": min(frames, 3)},
        )
        for frames in (1, 16)
    ),
    today(
        "denoiser_lstm", "Two-stage LSTM denoiser by frame (DTLN)", DualSignal,
        {"window": 512, "basis": 256, "hidden": 128}, {"window": 16, "basis": 12, "hidden": 8},
        exporter="torchscript",
    ),
    *(
        today(
            f"dual_path_{frames}", f"Dual-path RNN, frames by {frames} (GTCRN-like)", DualPath,
            {"frames": frames, "bands": 129, "channels": 16, "hidden": 8, "blocks": 2},
            {"frames": min(frames, 3), "bands": 17, "channels": 4, "hidden": 4, "blocks": 1},
        )
        for frames in (1, 16)
    ),
    today(
        "separation", "Conv-TasNet, half a second at 8 kHz", Separation,
        {"samples": 4000, "filters": 512, "channels": 128, "hidden": 512, "blocks": 8, "repeats": 2},
        {"samples": 160, "filters": 16, "channels": 8, "hidden": 12, "blocks": 2, "repeats": 1},
    ),
    today(
        "prosody", "BiLSTM prosody of 64 characters (Kokoro-like)", Prosody,
        {"tokens": 178, "length": 64, "width": 512, "style": 128, "convolutions": 3},
        {"tokens": 20, "length": 7, "width": 16, "style": 6, "convolutions": 1},
    ),
    today(
        "vocoder", "HiFi-GAN v2, 32 frames of 256 samples", Vocoder,
        {**VOCODER, "rates": (8, 8, 2, 2)}, {**VOCODER_SMALL, "rates": (4, 2)},
    ),
    today(
        "vocoder_istft", "ISTFTNet, 32 frames (Kokoro-like)", Vocoder,
        {**VOCODER, "rates": (8, 8), "window": 16}, {**VOCODER_SMALL, "rates": (4,), "window": 8},
    ),
    today(
        "flow", "VITS' flow of 100 frames (Piper)", Flow,
        {"channels": 192, "frames": 100, "couplings": 4, "layers": 4},
        {"channels": 8, "frames": 11, "couplings": 2, "layers": 2},
    ),
)  # fmt: skip
