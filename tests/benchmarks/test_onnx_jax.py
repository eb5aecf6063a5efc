"""The JAX translation computes what torch does."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the models are torch modules")
pytest.importorskip("jax", reason="the peer under test")

from benchmarks.compare.adapters.onnx_jax import translate
from benchmarks.compare.peers import worst_error
from benchmarks.models.build import PAPER, build

QUICK = ("deepspeech2_unrolled", "lstm_tc_lstm")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PAPER]


@pytest.mark.parametrize("name", NAMES)
def test_small_models_agree_with_torch(name: str, tmp_path: Path) -> None:
    built = build(name, scale="small", cache=tmp_path)
    assert worst_error(translate(built.path)(built.inputs), built.outputs) < 1e-4
