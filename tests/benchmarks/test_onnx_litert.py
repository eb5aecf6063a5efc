"""LiteRT as a peer. Its converter is a stub: TensorFlow is larger than all that tests install."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from benchmarks.compare.adapters import onnx_litert
from rammer.errors import RammerError

STUB = """#!/bin/sh
[ "$2" = "${2%bad.onnx}" ] || { echo "no such operator" >&2; exit 1; }
mkdir -p "$4"; echo "$6" > "$4/model_float32.tflite"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(onnx_litert, "FOLDER", made := tmp_path / "compiled")
    made.mkdir()
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin/onnx2tf"
    stub.write_text(STUB)
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:/usr/bin:/bin")
    return tmp_path


def saved(path: Path) -> Path:
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph), path)
    return path


def test_a_model_is_converted_once(folder: Path) -> None:
    path = onnx_litert.package(model := saved(folder / "good.onnx"), ["x"])
    assert path.read_text() == "x\n" and [*path.parent.iterdir()] == [path]
    (folder / "bin/onnx2tf").unlink()
    assert onnx_litert.package(model, ["x"]) == path


def test_reasons_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RammerError, match=r"onnx2tf cannot convert bad\.onnx: no such operator"):
        onnx_litert.package(saved(folder / "bad.onnx"), ["x"])
    assert not [*(folder / "compiled").iterdir()]
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RammerError, match="no onnx2tf on the path"):
        onnx_litert.package(saved(folder / "other.onnx"), ["x"])
