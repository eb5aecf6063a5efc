"""MNN as a peer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

pytest.importorskip("MNN", reason="the peer under test")

from benchmarks.compare.adapters import onnx_mnn
from rammer.errors import RammerError


def saved(folder: Path, kind: str) -> Path:
    port = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([helper.make_node(kind, ["x"], ["y"])], "g", [port], [result])
    path = folder / f"{kind}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_model_is_converted_once_and_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_mnn, "FOLDER", tmp_path / "compiled")
    path = onnx_mnn.package(model := saved(tmp_path, "Sigmoid"))
    assert onnx_mnn.package(model) == path and len([*path.parent.iterdir()]) == 1
    x = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
    found = onnx_mnn.runner(path, {"x": x}, ["y"], 1)({"x": x})
    np.testing.assert_allclose(found["y"], 1 / (1 + np.exp(-x)), rtol=1e-5)


def test_the_reason_of_the_converter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_mnn, "FOLDER", tmp_path / "compiled")
    with pytest.raises(RammerError, match=r"mnnconvert cannot convert Nothing\.onnx"):
        onnx_mnn.package(saved(tmp_path, "Nothing"))
