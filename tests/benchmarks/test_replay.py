"""Candidates as values: equal for equal generators; the first difference is named for others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from benchmarks import replay
from benchmarks.compare import version
from rammer.kernels.threads import product as threads_product
from rammer.kernels.vectors import contraction

NUMBERS = {"avx2": (contraction, "MAX_VECTORS"), "sm_90": (threads_product, "MAX_UNROLLED")}


def dumped(folder: Path, specs: list[str]) -> dict[replay.Key, replay.Candidates]:
    """What is dumped of a network of two products."""
    made = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in SHAPES.items()]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, (64, 96), [0.5] * 64 * 96)]
    model = helper.make_model(helper.make_graph(made, "net", info[:1], info[1:], weights))
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    asked = {"models": {"net": str(folder / "net.onnx")}, "specs": {spec: replay.SPECS[spec] for spec in specs}}
    (folder / "asked.json").write_text(json.dumps(asked))
    version.schedules(folder, folder / "asked.json")
    return replay.read(folder / "schedules.jsonl.gz")


SHAPES = {"x": (75, 64), "y": (75, 96)}


def test_the_first_difference_of_each_operation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = dumped(tmp_path, list(NUMBERS))
    assert {spec for spec, _, _ in usual} == {*NUMBERS}
    assert all(found for found in usual.values())
    assert replay.differences(usual, dumped(tmp_path, list(NUMBERS))) == []
    for spec, (module, name) in NUMBERS.items():
        with monkeypatch.context() as patched:
            patched.setattr(module, name, 1)
            (found,) = replay.differences(usual, dumped(tmp_path, list(NUMBERS)))
        assert found.key[:2] == (spec, "net")
        assert found.old != found.new
        assert f"candidate {found.place}" in str(found)


def test_an_operation_or_a_candidate_less_is_a_difference() -> None:
    old = {("avx2", "net", "0 a"): [["one"], ["two"]], ("avx2", "net", "1 b"): [["three"]]}
    new = {("avx2", "net", "0 a"): [["one"]]}
    places = [(d.key[2], d.place, d.old, d.new) for d in replay.differences(old, new)]
    assert places == [("0 a", 1, ["two"], None), ("1 b", 0, ["three"], None)]
