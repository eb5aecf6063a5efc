"""LSTM-TC, DeepSpeech2 and Seq2Seq, each as LSTM operators and unrolled as the paper's artifact builds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from onnx import compose
from torch import nn

from benchmarks.models.fold import fold_constants
from benchmarks.models.recorder import Recorder
from benchmarks.models.spec import Example, Inputs, ModelSpec, export_module
from benchmarks.models.store import Scale
from benchmarks.on_paper.floors import Recurrence

INPUT_GAIN, STATE_GAIN = 1.7, 0.7
GATES = {"i": 0, "j": 2, "f": 1, "o": 3}  # TensorFlow's order and names -> chunk of torch's LSTM weights


def lstm_stack(inputs: int, hidden: int, layers: int) -> nn.ModuleList:
    """Single-layer LSTMs whose forget bias includes TensorFlow's constant 1.

    The weights are larger than torch's default, with which the output of ten layers hardly depends on the input.
    """
    stack = [nn.LSTM(hidden if i else inputs, hidden) for i in range(layers)]
    for lstm in stack:
        w, u, b, _ = _parameters(lstm)
        with torch.no_grad():
            nn.init.normal_(w, std=INPUT_GAIN * lstm.input_size**-0.5)
            nn.init.normal_(u, std=STATE_GAIN * hidden**-0.5)
            b.view(4, hidden)[GATES["f"]] += 1.0
    return nn.ModuleList(stack)


def _lstms(modules: nn.ModuleList) -> list[nn.LSTM]:
    return [module for module in modules if isinstance(module, nn.LSTM)]


class Cell(nn.Module, ABC):
    """One LSTM cell, written over `ops`: torch itself, or a Recorder."""

    one: torch.Tensor

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.hidden = lstm.hidden_size
        self.register_buffer("one", torch.tensor(1.0))

    @abstractmethod
    def gates(self, ops: Any, x: Any, h: Any) -> Sequence[Any]:
        """Pre-activations [batch, hidden] of i, j, f, o."""

    def step(self, ops: Any, x: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        """(x, (h, c)) -> (h', c')."""
        h, c = state
        i, j, f, o = self.gates(ops, x, h)
        kept = ops.mul(c, ops.sigmoid(ops.add(f, self.one)))
        c = ops.add(kept, ops.mul(ops.sigmoid(i), ops.tanh(j)))
        return ops.mul(ops.tanh(c), ops.sigmoid(o)), c

    def zero_state(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        zeros = torch.zeros(batch, self.hidden, dtype=self.one.dtype, device=self.one.device)
        return zeros, torch.zeros_like(zeros)


class SeparateCell(Cell):
    """Eight matrices: one for the input and one for the state of each gate (LSTM-TC)."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__(lstm)
        w, u, b = _tensorflow_weights(lstm)
        for name, chunk in GATES.items():
            self.register_buffer(f"W_{name}", w.chunk(4, 1)[chunk].contiguous())
            self.register_buffer(f"U_{name}", u.chunk(4, 1)[chunk].contiguous())
            self.register_buffer(f"b_{name}", b.chunk(4)[chunk].contiguous())

    def gates(self, ops: Any, x: Any, h: Any) -> Sequence[Any]:
        weights = ((getattr(self, f"W_{g}"), getattr(self, f"U_{g}"), getattr(self, f"b_{g}")) for g in GATES)
        return [ops.add(ops.add(ops.matmul(x, w), ops.matmul(h, u)), b) for w, u, b in weights]


class BasicCell(Cell):
    """TensorFlow's BasicLSTMCell: Concat, one MatMul, Add, Split."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__(lstm)
        w, u, b = _tensorflow_weights(lstm)
        order = list(GATES.values())
        weight = torch.cat([w, u]).view(-1, 4, self.hidden)[:, order].flatten(1)
        self.register_buffer("weight", weight.contiguous())
        self.register_buffer("bias", b.view(4, -1)[order].flatten())

    def gates(self, ops: Any, x: Any, h: Any) -> Sequence[Any]:
        product = ops.add(ops.matmul(ops.cat([x, h], 1), self.weight), self.bias)
        chunks: Sequence[Any] = ops.split(product, self.hidden, 1)
        return chunks


def _parameters(lstm: nn.LSTM) -> list[torch.Tensor]:
    """W [4 hidden, inputs], U [4 hidden, hidden] and torch's two biases [4 hidden], gates in torch's order."""
    return list(lstm.parameters())


def _cells(modules: nn.ModuleList) -> list[Cell]:
    return [module for module in modules if isinstance(module, Cell)]


def _tensorflow_weights(lstm: nn.LSTM) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """W [inputs, 4 hidden], U [hidden, 4 hidden] and b [4 hidden] without the forget bias of 1."""
    w, u, *biases = (parameter.detach() for parameter in _parameters(lstm))
    bias = biases[0] + biases[1]
    bias.view(4, -1)[GATES["f"]] -= 1.0
    return w.T, u.T, bias


class Unrolled(nn.Module, ABC):
    """A net of cells over a time-major input [steps, batch, features]."""

    @abstractmethod
    def run(self, ops: Any, x: Any, steps: int, batch: int) -> Any:
        """All steps of `x`, written over `ops`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.run(torch, x, x.shape[0], x.shape[1])
        return output


def record(module: nn.Module, example: Example) -> onnx.ModelProto:
    """The unrolled module as ONNX, without tracing it."""
    assert isinstance(module, Unrolled)
    (x,) = example.values()
    recorder = Recorder(module)
    steps, batch = x.shape[:2]
    output = module.run(recorder, recorder.input("input", x.shape), steps, batch)
    return fold_constants(recorder.model(output, module(x).shape))


# LSTM-TC


@dataclass(frozen=True, slots=True)
class TcSize:
    layers: int
    steps: int
    hidden: int


TC: dict[Scale, TcSize] = {"full": TcSize(10, 100, 256), "small": TcSize(2, 4, 16), "four": TcSize(4, 100, 256)}


class LstmTc(nn.Module):
    """Stacked LSTMs; the last step's output [batch, hidden]."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.layers = lstm_stack(TC[scale].hidden, TC[scale].hidden, TC[scale].layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for lstm in self.layers:
            x = lstm(x)[0]
        return x[-1]


class LstmTcUnrolled(Unrolled):
    """The artifact's order: time outside, layers inside."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        assert isinstance(module, LstmTc)
        self.cells = nn.ModuleList(SeparateCell(lstm) for lstm in _lstms(module.layers))

    def run(self, ops: Any, x: Any, steps: int, batch: int) -> Any:
        states = [cell.zero_state(batch) for cell in _cells(self.cells)]
        for t in range(steps):
            h = ops.select(x, 0, t)
            for i, cell in enumerate(_cells(self.cells)):
                states[i] = cell.step(ops, h, states[i])
                h = states[i][0]
        return h


def _tc_inputs(scale: Scale, batch: int) -> Inputs:
    return {"input": (TC[scale].steps, batch, TC[scale].hidden)}


def _tc_recurrences(scale: Scale) -> tuple[Recurrence, ...]:
    size = TC[scale]
    return (Recurrence(size.steps, size.hidden, 4 * size.hidden),) * size.layers


# DeepSpeech2


@dataclass(frozen=True, slots=True)
class SpeechSize:
    length: int
    features: int
    filters: int
    layers: int
    hidden: int
    classes: int

    @property
    def steps(self) -> int:
        return self.length // 4


SPEECH: dict[Scale, SpeechSize] = {
    "full": SpeechSize(300, 171, 32, 7, 256, 29),
    "small": SpeechSize(16, 13, 4, 2, 16, 5),
    "four": SpeechSize(300, 171, 32, 4, 256, 29),
}


class SpeechFront(nn.Module):
    """Two convolutions, [batch, 1, length, features] -> [length / 4, batch, features / 2 * filters]."""

    def __init__(self, size: SpeechSize) -> None:
        super().__init__()
        filters = size.filters
        self.layers = nn.Sequential(
            nn.Conv2d(1, filters, (41, 11), (2, 2), (20, 5), bias=False), nn.ReLU6(), nn.BatchNorm2d(filters),
            nn.Conv2d(filters, filters, (21, 11), (2, 1), (10, 5), bias=False), nn.ReLU6(), nn.BatchNorm2d(filters),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(x).permute(2, 0, 3, 1)
        return output.flatten(2)


class DeepSpeech2(nn.Module):
    """Front, stacked LSTMs, BatchNorm and a classifier over [steps * batch, hidden]."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        size = SPEECH[scale]
        self.front = SpeechFront(size)
        self.layers = lstm_stack((size.features + 1) // 2 * size.filters, size.hidden, size.layers)
        self.head = nn.Sequential(nn.BatchNorm1d(size.hidden), nn.Linear(size.hidden, size.classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.front(x)
        for lstm in self.layers:
            x = lstm(x)[0]
        output: torch.Tensor = self.head(x.flatten(0, 1))
        return output


class SpeechCells(Unrolled):
    """The artifact's order: layers outside, time inside; the steps' outputs stacked to [steps * batch, hidden]."""

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.cells = nn.ModuleList(BasicCell(lstm) for lstm in _lstms(layers))

    def run(self, ops: Any, x: Any, steps: int, batch: int) -> Any:
        sequence = [ops.select(x, 0, t) for t in range(steps)]
        for cell in _cells(self.cells):
            sequence, _ = _run_layer(ops, cell, sequence, batch)
        return ops.cat(sequence, 0)


class DeepSpeech2Unrolled(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        assert isinstance(module, DeepSpeech2)
        self.front, self.cells, self.head = module.front, SpeechCells(module.layers), module.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.cells(self.front(x)))
        return output


def _speech_to_onnx(module: nn.Module, example: Example) -> onnx.ModelProto:
    """The exported front and head joined to the recorded cells."""
    assert isinstance(module, DeepSpeech2Unrolled)
    sequence = module.front(example["input"])
    parts = [
        export_module(module.front, example),
        record(module.cells, {"input": sequence}),
        export_module(module.head, {"input": module.cells(sequence)}),
    ]
    for part, prefix in zip(parts, ("front/", "cells/", "head/"), strict=True):
        compose.add_prefix(part, prefix, inplace=True)
        part.ir_version = parts[0].ir_version
    model = parts[0]
    for part in parts[1:]:
        model = compose.merge_models(model, part, [(model.graph.output[0].name, part.graph.input[0].name)])
    rename = {model.graph.input[0].name: "input", model.graph.output[0].name: "output"}
    for value in (*model.graph.input, *model.graph.output):
        value.name = rename[value.name]
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [rename.get(name, name) for name in names]
    return model


def _speech_inputs(scale: Scale, batch: int) -> Inputs:
    return {"input": (batch, 1, SPEECH[scale].length, SPEECH[scale].features)}


def _speech_recurrences(scale: Scale) -> tuple[Recurrence, ...]:
    size = SPEECH[scale]
    return (Recurrence(size.steps, size.hidden, 4 * size.hidden),) * size.layers


# Seq2Seq


@dataclass(frozen=True, slots=True)
class TranslationSize:
    encoder_layers: int
    encoder_steps: int
    decoder_layers: int
    decoder_steps: int
    hidden: int


TRANSLATION: dict[Scale, TranslationSize] = {
    "full": TranslationSize(8, 100, 4, 30, 128),
    "small": TranslationSize(2, 4, 2, 3, 16),
    "four": TranslationSize(4, 100, 4, 30, 128),
}


class Seq2Seq(nn.Module):
    """An encoder, and a decoder that starts from the encoder's top cell state and feeds its output back."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.size = TRANSLATION[scale]
        self.encoder = lstm_stack(self.size.hidden, self.size.hidden, self.size.encoder_layers)
        self.decoder = lstm_stack(self.size.hidden, self.size.hidden, self.size.decoder_layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for lstm in self.encoder:
            x, (_, cell) = lstm(x)
        zeros = torch.zeros(1, x.shape[1], self.size.hidden, dtype=x.dtype, device=x.device)
        states = [(zeros, zeros)] * self.size.decoder_layers
        x = cell
        for _ in range(self.size.decoder_steps):
            for i, lstm in enumerate(self.decoder):
                x, states[i] = lstm(x, states[i])
        return x[0]


class Seq2SeqUnrolled(Unrolled):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        assert isinstance(module, Seq2Seq)
        self.decoder_steps = module.size.decoder_steps
        self.encoder = nn.ModuleList(BasicCell(lstm) for lstm in _lstms(module.encoder))
        self.decoder = nn.ModuleList(BasicCell(lstm) for lstm in _lstms(module.decoder))

    def run(self, ops: Any, x: Any, steps: int, batch: int) -> Any:
        sequence = [ops.select(x, 0, t) for t in range(steps)]
        for cell in _cells(self.encoder):
            sequence, (_, c) = _run_layer(ops, cell, sequence, batch)
        h, states = c, [cell.zero_state(batch) for cell in _cells(self.decoder)]
        for _ in range(self.decoder_steps):
            for i, cell in enumerate(_cells(self.decoder)):
                states[i] = cell.step(ops, h, states[i])
                h = states[i][0]
        return h


def _run_layer(ops: Any, cell: Cell, sequence: list[Any], batch: int) -> tuple[list[Any], tuple[Any, Any]]:
    """One layer over a list of steps: every output, and the last state."""
    state: tuple[Any, Any] = cell.zero_state(batch)
    outputs = []
    for x in sequence:
        state = cell.step(ops, x, state)
        outputs.append(state[0])
    return outputs, state


def _translation_inputs(scale: Scale, batch: int) -> Inputs:
    return {"input": (TRANSLATION[scale].encoder_steps, batch, TRANSLATION[scale].hidden)}


def _translation_recurrences(scale: Scale) -> tuple[Recurrence, ...]:
    """The decoder's first layer takes the last one's output, so its input product cannot be batched either."""
    size = TRANSLATION[scale]
    encoder = Recurrence(size.encoder_steps, size.hidden, 4 * size.hidden)
    decoder = Recurrence(size.decoder_steps, 2 * size.hidden, 4 * size.hidden)
    return (encoder,) * size.encoder_layers + (decoder,) * size.decoder_layers


MODELS = (
    ModelSpec("lstm_tc_lstm", "LSTM-TC, LSTM operators", LstmTc, _tc_inputs, recurrences=_tc_recurrences),
    ModelSpec(
        "lstm_tc_unrolled", "LSTM-TC, unrolled", LstmTc, _tc_inputs, record, _tc_recurrences, finish=LstmTcUnrolled
    ),
    ModelSpec(
        "deepspeech2_lstm", "DeepSpeech2, LSTM operators", DeepSpeech2, _speech_inputs, recurrences=_speech_recurrences
    ),
    ModelSpec(
        "deepspeech2_unrolled",
        "DeepSpeech2, unrolled",
        DeepSpeech2,
        _speech_inputs,
        _speech_to_onnx,
        _speech_recurrences,
        finish=DeepSpeech2Unrolled,
    ),
    ModelSpec(
        "seq2seq_lstm", "Seq2Seq, LSTM operators", Seq2Seq, _translation_inputs, recurrences=_translation_recurrences
    ),
    ModelSpec(
        "seq2seq_unrolled",
        "Seq2Seq, unrolled",
        Seq2Seq,
        _translation_inputs,
        record,
        _translation_recurrences,
        finish=Seq2SeqUnrolled,
    ),
)
