"""What is said of PyTorch's modules: right and wrong results, and processes that end."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: see CONTRIBUTING.md")

from benchmarks.compare.apart import Apart
from benchmarks.torch import inference, torchvision, training
from rammer.errors import RammerError


def fragile() -> Callable[[str], dict[str, Any]]:
    """Answers, raises, or is gone."""

    def answer(message: str) -> dict[str, Any]:
        if message == "raise":
            raise ValueError("not today")
        if message == "exit":
            os._exit(3)
        return {"got": message}

    return answer


def test_processes_answer_or_say_why_not() -> None:
    for message, reason in (("raise", "ValueError: not today"), ("exit", "exit code 3")):
        with Apart(fragile) as process:
            assert process.ask("hello", 60.0) == {"got": "hello"}
            with pytest.raises(RammerError, match=reason):
                process.ask(message, 60.0)


def test_wrong_results_are_called_so() -> None:
    right = {"size": 64, "reach": 0.5, "from_torch": 1e-6, "torch_compile": 1e-6, "fell_back": []}
    assert torchvision.verdict(right) == ""
    assert "hardly depends" in torchvision.verdict({**right, "reach": 1e-9})
    assert torchvision.verdict({**right, "torch_compile": float("nan")}) == "wrong by torch_compile: nan"
    assert torchvision.verdict({"failed": "torch_compile: no answer"}) == "torch_compile: no answer"
    assert torchvision.verdict({**right, "fell_back": ["aten.x"]}) == "aten.x"
    times = {"median_ms": 1.0, "min_ms": 1.0, "n": 3, "first_s": 1.0}
    assert inference.line("m", "rammer", {**times, "error": float("nan")}).endswith("WRONG")
    assert not inference.line("m", "rammer", {**times, "error": 1e-6}).endswith("WRONG")
    assert np.isnan(training.apart({"v": [1.0], "w": [1.0, float("nan")]}, {"v": [1.0], "w": [1.0, 2.0]}))
    assert training.apart({"w": [1.0, 2.2]}, {"w": [1.0, 2.0]}) == pytest.approx(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lstm_tc:3", "mlp:5", "cnn:3"])
def test_trained_models_learn_what_eager_does(model: str) -> None:
    found = training.compare(model, ("eager", "rammer"), "small", 3, tune_s=0.0)
    assert found["rammer"]["error"] < training.TOLERANCE and found["rammer"]["loss_error"] < training.TOLERANCE
    assert found["rammer"]["losses"][0] != found["rammer"]["losses"][-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v3_small", "regnet_y_400mf", "shufflenet_v2_x0_5"])
def test_classifiers_of_torchvision(name: str) -> None:
    """All of them: python -m benchmarks.torch.torchvision."""
    pytest.importorskip("torchvision", reason="torchvision is not installed: pip install torchvision")
    assert torchvision.verdict(torchvision.checked(name, 64, 2, 300.0)) == ""
