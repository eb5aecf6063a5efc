"""The suite of any folder of models: outcomes by family, made-up inputs, and errors in units of the last place."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from rammer_testing import model_folder
from rammer_testing.errors import Errors, Mismatch, Result, errors_of, is_right

from benchmarks.pages.accuracy import page
from benchmarks.pages.model_table import section, section_of, with_section
from rammer.ir.tensor import Array

F32 = np.float32


def model(op: str, shape: list[Any], kind: int = TensorProto.FLOAT, **attrs: Any) -> ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], **attrs)],
        "test",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One model of each outcome."""
    for name, made in {
        "plain/relu": model("Relu", ["batch", "n"]),
        "plain/data": model("Exp", [2, 3]),
        "odd/unknown": model("NoSuchOperator", [2]),
        "odd/text": model("StringNormalizer", [2], TensorProto.STRING),
        "odd/random": model("RandomNormalLike", [2, 3]),
    }.items():
        (tmp_path / name).mkdir(parents=True)
        onnx.save(made, tmp_path / name / "model.onnx")
    made = onnx.load(tmp_path / "odd/text/model.onnx")
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
    onnx.save(made, tmp_path / "odd/text/model.onnx")
    (tmp_path / "odd/broken.onnx").write_bytes(b"no model")
    data = tmp_path / "plain/data/test_data_set_0"
    data.mkdir()
    x = numpy_helper.from_array(np.linspace(-3, 3, 6, dtype=F32).reshape(2, 3), "x")
    (data / "input_0.pb").write_bytes(x.SerializeToString())
    return tmp_path


def test_models_are_right_refused_or_without_a_reference(folder: Path) -> None:
    names = model_folder.models_of(folder)
    results = {Path(name).relative_to(folder).as_posix(): model_folder.run_model(name, "interpreter") for name in names}
    outcomes = {name.removesuffix("/model.onnx"): result.outcome for name, result in results.items()}
    assert outcomes == {
        "plain/relu": "right",
        "plain/data": "right",
        "odd/unknown": "no reference",
        "odd/text": "refused",
        "odd/random": "random",
        "odd/broken.onnx": "error",
    }
    assert results["plain/relu/model.onnx"].errors == Errors()
    assert "StringNormalizer" in results["odd/text/model.onnx"].reason
    table = model_folder.counts(list(results.values()), folder)
    assert table["plain"]["right"] == 2 and table["odd"].total() == 4


def test_the_page_counts_by_family(folder: Path) -> None:
    results = [
        {"name": "f/a/m.onnx", "family": "f", "outcome": "right", "reason": "", "errors": {"ulp": 3, "relative": 2e-7}},
        {"name": "f/b/m.onnx", "family": "f", "outcome": "refused", "reason": "x: no", "errors": None},
        {"name": "g/c/m.onnx", "family": "g", "outcome": "crash", "reason": "", "errors": None},
    ]
    text = section(json.loads(json.dumps(results)), "abc")
    assert "| f | 2 | 1 | – | – | 1 | – | – | 2e-07 | abc |" in text and "| g | 1 | – | – | 1 |" in text
    assert "* f/b, refused: no" in text
    again = section([{**results[0], "family": "g", "outcome": "wrong"}], "def", text)
    row = "| g | 1 | – | – | 1 | – | – | – | – | def |"
    assert "| f | 2 | 1 | – | – | 1 | – | – | 2e-07 | abc |" in again and row in again
    assert "* f/b, refused: no" in again and again.count("* g/") == 1 and again.count("| g |") == 1
    page = "# Operators\n\n## Unsupported operators\n\nNone.\n"
    twice = with_section(with_section(page, text), text)
    assert section_of(twice).strip() == text.strip() and twice.count("## Models") == 1 and twice.endswith("None.\n")


def test_a_page_flags_errors_over_four_times_onnx_runtimes() -> None:
    def case(name: str, errors: Errors | None, others: Errors | None) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(Result(name, "passes", "", errors, others))))  # type: ignore[no-any-return]

    small, large = Errors(2.0, 1.5e-7), Errors(90.0, 1.5e-6)
    cases = [case("a", large, small), case("b", small, large), case("c", Errors(), small), case("d", large, None)]
    model = {**case("f/m/model.onnx", small, None), "family": "f"}
    text = page([*cases, case("e", None, None)], [model, {**model, "name": "f/n/model.onnx", "errors": None}], "abc")
    assert "* a: 90 ULP and 1.5e-06; ONNX Runtime 2 ULP and 1.5e-07" in text and "1 of the 3 cases" in text
    assert "| a | 90 | 1.5e-06 | 2 | 1.5e-07 | over |" in text and "| b | 2 | 1.5e-07 | 90 | 1.5e-06 | |" in text
    assert "| d | 90 | 1.5e-06 | – | – | |" in text and "| c |" not in text and "1 of 4 cases" in text
    assert "| f/m | 2 | 1.5e-07 |" in text and "f/n" not in text
    assert "None." in page(cases[1:], [])


ONE = np.ones(3, F32)
AFTER = np.nextafter(ONE, F32(2))


@pytest.mark.parametrize(
    ("found", "wanted", "ulp", "relative"),
    [
        (ONE, ONE, 0, 0),
        (AFTER, ONE, 1, 2.0**-23),
        (np.array([-1e-45, 2], F32), np.array([1e-45, 2], F32), 2, 0),
        (ONE.astype(np.float16) * np.float16(1.001), ONE.astype(np.float16), 1, 2.0**-10),
        (np.zeros(1, F32), np.array([1e-39], F32), 713624, 0),
        (np.array([1, np.inf], F32), np.array([1, np.inf], F32), 0, 0),
        (np.array([3, 4], np.uint8), np.array([3, 5], np.uint8), 0, 1 / 255),
    ],
)
def test_errors(found: Array, wanted: Array, ulp: float, relative: float) -> None:
    errors = errors_of([found], [wanted])
    assert errors.ulp == ulp and errors.relative == pytest.approx(relative, abs=1e-40)


@pytest.mark.parametrize(
    ("found", "wanted", "message"),
    [
        ([ONE], [ONE, ONE], "list of 2"),
        ([ONE[:2]], [ONE], "float32.2. instead of float32.3."),
        ([ONE.astype(np.float64)], [ONE], "float64"),
        ([np.array([1, 2])], [np.array([1, 3])], "1 of 2 elements differ, the first at .1."),
        ([np.array(["a"], object)], [np.array(["b"], object)], "1 of 1 elements"),
        ([[{1: 0.5}]], [[{2: 0.5}]], "keys .1. instead of .2."),
        ([np.array([np.nan], F32)], [ONE[:1]], "not finite"),
        ([ONE[:1]], [np.array([np.inf], F32)], "infinities or NaNs differ"),
        ([None], [ONE], "None instead of"),
    ],
)
def test_mismatches(found: Any, wanted: Any, message: str) -> None:
    with pytest.raises(Mismatch, match=message):
        errors_of(found, wanted)


def test_bounds_and_what_exceeds_them() -> None:
    assert is_right([ONE * F32(1.00005)], [ONE]) and not is_right([ONE * F32(1.001)], [ONE])
    assert is_right([ONE * F32(1.001)], [ONE], factor=200)
    step = np.array([3], np.uint8)
    assert is_right([step + 1], [step], factor=model_folder.QUANTIZED) and not is_right(
        [step + 2], [step], factor=model_folder.QUANTIZED
    )
    assert not is_right([step + 1], [step]) and is_right([ONE * np.complex64(1 + 2e-7)], [ONE * np.complex64(1)])
    high, low = Errors(100.0, 1e-5), Errors(4.0, 5e-7)
    assert Result("a", "passes", "", high, low).is_excessive and not Result("a", "passes", "", low, high).is_excessive
    assert not Result("a", "passes", "", high, None).is_excessive


@pytest.mark.parametrize("quantized", [False, True])
def test_a_result_may_be_off_where_the_reference_is_off_from_itself(
    quantized: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    scales = [numpy_helper.from_array(np.array(1, F32), "s"), numpy_helper.from_array(np.array(0, np.int8), "z")]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    nodes = nodes if quantized else [helper.make_node("Relu", ["x"], ["y"])]
    made = helper.make_model(
        helper.make_graph(nodes, "test", ends[:1], ends[1:], scales * quantized),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    made.ir_version = 8
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    monkeypatch.setattr(model_folder, "_made_up", lambda _: {"x": np.array([100, 3, -7], F32)})
    run = model_folder.run_runtime
    bound = 2 if quantized else 0.01  # absolute, as the largest result is 100

    def judged(best: float, plain: float) -> Result:
        off = {False: best * bound, True: plain * bound}
        monkeypatch.setattr(model_folder, "run_runtime", lambda p, x, *, plain=False: [run(p, x)[0] + F32(off[plain])])
        return model_folder.run_model(str(path), "interpreter")

    most = model_folder.SPREAD_QUANTIZED if quantized else model_folder.SPREAD
    assert judged(0.5, 0.5).outcome == "right" and judged(0.5, 0.5).reason == ""
    assert judged(3, 3).outcome == "wrong"
    assert judged(3, 3 - 2.5 / most).outcome == "wrong"
    result = judged(3, 3 - 3.5 / most)
    assert result.outcome == "right" and "with and without its optimizer differ by" in result.reason
