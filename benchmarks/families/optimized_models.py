"""Let ONNX Runtime optimize and quantize models, and save what it made: operators of com.microsoft."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from onnxruntime import quantization
from onnxruntime.transformers import optimizer
from torch import nn

from benchmarks.families.__main__ import Made
from benchmarks.families.exported import exported

LEVELS = {"basic": 1, "extended": 2}


class Encoder(nn.Module):
    """An encoder of the BERT family, as exporters of transformers write it."""

    def __init__(self, width: int = 96, heads: int = 4, layers: int = 2, activation: str = "gelu") -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(200, width), nn.Embedding(64, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(_Layer(width, heads, activation) for _ in range(layers))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the states of the last layer."""
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])[None]))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, bias)
        return x


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, activation: str) -> None:
        super().__init__()
        self.heads, self.activation = heads, activation
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        b, n, w = x.shape
        q, k, v = (f(x).view(b, n, self.heads, w // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(-1, -2)) / (w // self.heads) ** 0.5 + bias
        mixed = torch.matmul(torch.softmax(scores, -1), v).transpose(1, 2).reshape(b, n, w)
        x = self.first(self.o(mixed) + x)
        hidden = self.up(x)
        if self.activation == "gelu":
            hidden = hidden * 0.5 * (1.0 + torch.erf(hidden / 1.4142135))
        elif self.activation == "tanh":
            hidden = 0.5 * hidden * (1 + torch.tanh(0.7978845608 * (hidden + 0.044715 * hidden**3)))
        else:
            hidden = hidden * torch.sigmoid(1.702 * hidden)
        return self.second(self.down(hidden) + x)


class Convolutions(nn.Module):
    """Convolutions with activations, pools, a shortcut, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.c, self.head = nn.Conv2d(16, 32, 1), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of 10 classes."""
        x = torch.relu(self.a(x))
        x = torch.max_pool2d(torch.relu(self.b(x) + x), 2)
        x = nn.functional.leaky_relu(self.c(x), 0.1)
        x = nn.functional.avg_pool2d(torch.clip(x, 0, 6), 2)
        return torch.sigmoid(self.head(x.mean((2, 3))))


class Perceptron(nn.Module):
    """Layers of nn.Linear, each with another activation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(40, 40) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last layer's numbers."""
        functions = (torch.relu, torch.tanh, torch.sigmoid, nn.functional.elu, nn.functional.leaky_relu)
        for layer, function in zip(self.layers, functions, strict=True):
            x = function(layer(x))
        return x


def _bases() -> dict[str, Callable[[], Made]]:
    ids = torch.arange(2 * 28).reshape(2, 28) % 200
    mask = (torch.arange(28)[None] < torch.tensor([[28], [19]])).to(torch.int64)

    def encoder(activation: str) -> Made:
        torch.manual_seed(0)
        return exported(Encoder(activation=activation), (ids, mask), ("ids", "mask"))

    def plain(kind: type[nn.Module], *shape: int) -> Made:
        torch.manual_seed(0)
        return exported(kind(), (torch.randn(*shape),), ("x",))

    return {
        "encoder_gelu": lambda: encoder("gelu"),
        "encoder_tanh": lambda: encoder("tanh"),
        "encoder_quick": lambda: encoder("quick"),
        "convolutions": lambda: plain(Convolutions, 2, 3, 44, 44),
        "perceptron": lambda: plain(Perceptron, 7, 40),
    }


def optimized(made: Made, level: int) -> Made:
    """Return the model that ONNX Runtime saves at an optimization level."""
    model, inputs = made
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(level)
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "model.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath), inputs


class _Samples(quantization.CalibrationDataReader):
    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self._left = [dict(inputs)]

    def get_next(self) -> dict[str, Any] | None:
        """Return the next sample."""
        return self._left.pop() if self._left else None


def quantized(made: Made, kind: str, level: int) -> Made:
    """Return the model with bytes: dynamically quantized, by operators of bytes, or by pairs around operators."""
    model, inputs = made
    with tempfile.TemporaryDirectory() as folder:
        source, target = str(Path(folder) / "a.onnx"), str(Path(folder) / "b.onnx")
        onnx.save(model, source)
        if kind == "dynamic":
            quantization.quantize_dynamic(source, target)
        else:
            form = quantization.QuantFormat.QOperator if kind == "operators" else quantization.QuantFormat.QDQ
            quantization.quantize_static(source, target, _Samples(inputs), quant_format=form)
        return optimized((onnx.load(target), inputs), level)


def _tuned(made: Made, kind: str, **options: Any) -> Made:
    model, inputs = made
    with tempfile.TemporaryDirectory() as folder:
        source = str(Path(folder) / "a.onnx")
        onnx.save(model, source)
        found = optimizer.optimize_model(source, kind, num_heads=4, hidden_size=96, **options)
        return found.model, inputs


def models() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Yield names, and functions that make the models."""
    for name, base in _bases().items():
        for level, number in LEVELS.items():
            yield f"{name}_{level}", lambda b=base, n=number: optimized(b(), n)
        for kind in ("dynamic", "operators", "pairs"):
            yield f"{name}_{kind}", lambda b=base, k=kind: quantized(b(), k, 2)
        if name.startswith("encoder"):
            yield f"{name}_tuned", lambda b=base: _tuned(b(), "bert", opt_level=0)
            yield f"{name}_tuned_extended", lambda b=base: optimized(_tuned(b(), "bert", opt_level=0), 2)
