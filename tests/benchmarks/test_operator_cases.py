"""The table of single operators: what it asks for is imported, and what is measured is compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.micro.limits import Level, Limits
from benchmarks.operators import run as operators
from benchmarks.operators.case import SIZES
from benchmarks.operators.cases import CASES
from rammer.frontend.onnx import load
from rammer.frontend.onnx.values import VALUED

pytest.importorskip("onnxruntime")


def test_every_form_is_imported_at_every_size() -> None:
    assert all(len(case.shapes) == len(SIZES) for case in CASES.values())
    for case in CASES.values():
        for dtype in case.types:
            model, inputs = case.made("step", dtype)
            if case.op in VALUED:  # a session runs them
                continue
            graph = load(model)
            shapes = {name: (array.shape, array.dtype) for name, array in inputs.items()}
            assert {t: (graph.types[t].shape, graph.types[t].dtype.numpy) for t in graph.inputs} == shapes, case.name


def test_what_is_chosen_is_measured_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(1, 100.0, (Level("DRAM", 1 << 62, 10.0),))
    monkeypatch.setattr(operators, "measure", lambda threads: limits)
    path = tmp_path / "operators.json"
    options = ["--size", "step", "--rounds", "1", "--seconds", "0", "--threads", "1", "--json", str(path)]
    for only in ("Relu; CumSum, rows", "IsNaN"):
        result = CliRunner().invoke(operators.main, ["--only", only, "--dtype", "float32", *options])
        assert result.exit_code == 0, result.output
    found = {r["case"]: r for r in json.loads(path.read_text())["results"]}
    assert found.keys() == {"Relu", "CumSum, rows", "IsNaN"}
    for one in found.values():
        assert one["error"] < 1e-6 and one["floor_us"] > 0 and one["bytes"] and one["ratio"] > 0, one
        assert set(one["ways"]) >= {"run", "bound", "onnxruntime"} and not one["failed"]


def test_shapes_that_follow_from_data_are_measured_in_a_session() -> None:
    found = operators.measured(CASES["Compress"], "odd", "float32", 1, 1, 0.0, 0.0)
    operators.add_ratios(found)
    assert not found["failed"] and found["error"] == 0 and found["ratio"] == found["ratio_bound"] > 0


def test_a_wrong_result_is_seen() -> None:
    right = np.array([1.0, np.nan, np.inf, -2.0])
    assert operators.error([right], [right]) == 0
    assert operators.error([right + np.array([0.5, 0, 0, 0])], [right]) == 0.25
    for wrong in (right[:3], np.where(np.isnan(right), 0, right), np.abs(right) * [1, 1, -1, -1]):
        assert operators.error([wrong], [right]) == np.inf
