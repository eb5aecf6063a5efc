"""The benchmark models: what they are, that ONNX Runtime agrees with torch, and that they can tell right from wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

torch = pytest.importorskip("torch", reason="the models are torch modules: pip install '.[bench]'")

from benchmarks.micro.limits import Level, Limits  # noqa: E402
from benchmarks.models.build import PAPER, build, find  # noqa: E402
from benchmarks.models.store import BuiltModel  # noqa: E402
from benchmarks.on_paper.floors import Work, count, floor  # noqa: E402
from rammer.errors import RammerError  # noqa: E402

# Nodes at full scale. The paper's artifact after BatchNorm folding, except that Seq2Seq's decoder steps need no glue.
NODES = {
    "resnext29": 620,
    "resnext29_grouped": 71,
    "resnext101": 240,
    "nasnet_cifar": 784,
    "nasnet_imagenet": 646,
    "alexnet": 19,
    "lstm_tc_lstm": 21,
    "lstm_tc_unrolled": 26060,
    "deepspeech2_lstm": 25,
    "deepspeech2_unrolled": 7436,
    "seq2seq_lstm": 256,
    "seq2seq_unrolled": 12977,
}
GMACS = {"lstm_tc_lstm": 0.524, "deepspeech2_unrolled": 2.179, "seq2seq_lstm": 0.121, "nasnet_cifar": 0.544}
RECURRENT_MS = {"lstm_tc_lstm": 3.09, "deepspeech2_lstm": 8.42, "seq2seq_lstm": 0.75}

REFERENCE_MACHINE = Limits(2, 560.0, (Level("L2", 2 << 20, 487.0), Level("L3", 32 << 20, 252.0)))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


# One model per builder; the others differ in their sizes only.
SMALL = [
    pytest.param(name, marks=[pytest.mark.slow] if name in ("resnext101", "nasnet_imagenet") else []) for name in PAPER
]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Layers this small only lose time to a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=SMALL)
def small(request: pytest.FixtureRequest, cache: Path) -> BuiltModel:
    return build(request.param, 2, "small", cache)


def test_every_model_is_listed() -> None:
    assert NODES.keys() == PAPER.keys()


def test_unknown_name_suggests_the_closest() -> None:
    with pytest.raises(RammerError, match="did you mean 'alexnet'"):
        find("alexnett")


def test_export_leaves_no_glue(small: BuiltModel) -> None:
    model = onnx.load(small.path)
    onnx.checker.check_model(model, full_check=True)
    assert [v.name for v in model.graph.input] == list(small.inputs) == ["input"]
    assert [v.name for v in model.graph.output] == list(small.outputs) == ["output"]
    kinds = Counter(node.op_type for node in model.graph.node)
    assert not kinds.keys() & {"Constant", "Identity", "Shape", "ConstantOfShape", "Cast", "Expand", "Unsqueeze"}
    norms = 3 if "deepspeech2" in small.path.name else 0  # its convolutions are followed by a clip, which stops folding
    assert kinds["BatchNormalization"] == norms
    weights = [(t.dims, numpy_helper.to_array(t).tobytes()) for t in model.graph.initializer if len(t.dims) > 1]
    assert len(weights) == len({content for _, content in weights})


def test_onnxruntime_agrees_with_torch(small: BuiltModel) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the comparison needs onnxruntime: pip install onnxruntime")
    session = onnxruntime.InferenceSession(str(small.path), providers=["CPUExecutionProvider"])
    expected = small.outputs["output"]
    (output,) = session.run(None, small.inputs)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    "one, other",
    [
        ("resnext29", "resnext29_grouped"),
        ("lstm_tc_lstm", "lstm_tc_unrolled"),
        ("deepspeech2_lstm", "deepspeech2_unrolled"),
        ("seq2seq_lstm", "seq2seq_unrolled"),
    ],
)
def test_two_forms_of_a_model_compute_the_same(one: str, other: str, cache: Path) -> None:
    a, b = build(one, 2, "small", cache), build(other, 2, "small", cache)
    np.testing.assert_array_equal(a.inputs["input"], b.inputs["input"])
    np.testing.assert_allclose(a.outputs["output"], b.outputs["output"], rtol=1e-4, atol=1e-5)


def test_a_stored_model_is_reused(cache: Path) -> None:
    first = build("alexnet", 1, "small", cache)
    written = first.path.stat().st_mtime_ns
    again = build("alexnet", 1, "small", cache)
    assert again.path.stat().st_mtime_ns == written
    np.testing.assert_array_equal(first.outputs["output"], again.outputs["output"])


@pytest.mark.parametrize("name", RECURRENT_MS)
def test_recurrent_floor_of_the_reference_machine(name: str) -> None:
    macs = {"lstm_tc_lstm": 524_288_000, "deepspeech2_lstm": 2_179_300_000, "seq2seq_lstm": 120_600_000}[name]
    least = floor(Work(0, macs, 0, 0), REFERENCE_MACHINE, PAPER[name].recurrences("full"))
    assert least.ms == least.recurrent_ms == pytest.approx(RECURRENT_MS[name], abs=0.01)


def test_floor_counts_weight_bytes_where_they_fit() -> None:
    small, large = (floor(Work(1, 10, n // 4, n), REFERENCE_MACHINE) for n in (1 << 20, 1 << 30))
    assert small.weight_level == "L2" and large.weight_level == "L3"
    assert large.ms == pytest.approx((1 << 30) / 252e6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NODES if name != "resnext101"])
def test_full_scale_nodes_and_multiply_adds(name: str, cache: Path) -> None:
    built = build(name, cache=cache)
    work = count(built.path)
    assert work.nodes == NODES[name]
    if name in GMACS:
        assert work.macs / 1e9 == pytest.approx(GMACS[name], abs=1e-3)
    built.path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm_tc_lstm", "seq2seq_lstm", "deepspeech2_lstm", "nasnet_cifar"])
def test_full_scale_output_depends_on_the_input(name: str) -> None:
    """With torch's default weights ten LSTM layers forget their input, and a wrong first layer would go unseen."""
    spec = find(name)
    module = spec.build_module()
    example = spec.example_inputs()["input"]
    change = (module(example) - module(example * 0.9)).abs().max() / module(example).abs().max()
    assert change > 0.02
