"""Today's models and GraphTurbo's: ONNX Runtime and rammer agree with torch on every output; every input matters."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

torch = pytest.importorskip("torch", reason="the models are torch modules: pip install '.[bench]'")
pytest.importorskip("onnxscript", reason="torch's exporter needs it: pip install '.[bench]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="the comparison needs onnxruntime: pip install onnxruntime")

import rammer  # noqa: E402
from benchmarks.compare.peers import worst_error  # noqa: E402
from benchmarks.models.build import GRAPHTURBO, TODAY, build, find  # noqa: E402
from benchmarks.models.spec import Integers  # noqa: E402
from benchmarks.models.store import BuiltModel  # noqa: E402
from benchmarks.on_paper.floors import count  # noqa: E402

QUICK = ("batched_densenet121", "today_vad", "today_wake_word", "today_gru4rec_torchscript", "today_gpt2_64")
KNOWN = (*TODAY, *GRAPHTURBO)
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in KNOWN]
TOLERANCE = 2e-5  # of sums in another order; the models are small


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def small(name: str, tmp_path_factory: pytest.TempPathFactory) -> BuiltModel:
    return build(name, 1, "small", tmp_path_factory.mktemp("today"))


def test_inputs_and_outputs_have_their_names(small: BuiltModel) -> None:
    graph = onnx.load(small.path).graph
    assert [value.name for value in graph.input] == list(small.inputs)
    assert [value.name for value in graph.output] == list(small.outputs)
    assert not any(name.startswith(("val_", "onnx::")) for name in small.outputs)
    assert count(small.path).parameters > 0


def test_onnxruntime_agrees_with_torch(small: BuiltModel) -> None:
    session = onnxruntime.InferenceSession(str(small.path), providers=["CPUExecutionProvider"])
    outputs = dict(zip(small.outputs, session.run(list(small.outputs), small.inputs), strict=True))
    assert worst_error(outputs, small.outputs) < TOLERANCE


def test_rammer_agrees_with_torch(name: str, small: BuiltModel) -> None:
    with rammer.compile(str(small.path), "cpu", tune_seconds=0) as program:
        assert worst_error(program.run(small.inputs), small.outputs) < TOLERANCE


@pytest.mark.parametrize("name", KNOWN)
def test_every_input_matters(name: str) -> None:
    """Otherwise a wrong state, or a wrong weight on its way, would go unseen."""
    spec = find(name)
    module, example = spec.build_module("small"), spec.example_inputs("small")
    before = module(*example.values())
    for changed, wanted in spec.inputs("small", 1).items():
        value = example[changed]
        other = (value + 1) % wanted.below if isinstance(wanted, Integers) else value.flip(-1) * 0.7
        after = module(*{**example, changed: other}.values())
        assert max(map(change, tensors(after), tensors(before))) > 1e-3, changed


def tensors(found: Any) -> tuple[Any, ...]:
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


def change(after: Any, before: Any) -> float:
    """Over the largest element."""
    return float((after - before).abs().max() / before.abs().max())
