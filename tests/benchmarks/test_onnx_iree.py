"""What IREE makes of the models computes what torch does, in each form."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the models are torch modules")
pytest.importorskip("iree.compiler", reason="the peer under test")
pytest.importorskip("iree.runtime", reason="the peer under test")

from benchmarks.compare.adapters import onnx_iree
from benchmarks.compare.adapters.onnx_iree import AS_GIVEN, FORMS, package, runner
from benchmarks.compare.peers import worst_error
from benchmarks.models.build import PAPER, build
from rammer.errors import RammerError

QUICK = [("alexnet", form) for form in FORMS] + [("lstm_tc_lstm", AS_GIVEN)]
SLOW = [pytest.param(name, AS_GIVEN, marks=pytest.mark.slow) for name in PAPER if (name, AS_GIVEN) not in QUICK]


@pytest.mark.parametrize("name, form", [*QUICK, *SLOW])
def test_small_models_agree_with_torch(name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_iree, "FOLDER", tmp_path / "compiled")
    built = build(name, scale="small", cache=tmp_path)
    path, seconds = package(built.path, form)
    assert seconds is not None and package(built.path, form) == (path, None)  # kept
    run = runner(path, list(built.outputs), 2)
    assert worst_error(run(built.inputs), built.outputs) < 1e-4


def test_a_compiler_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_iree, "FOLDER", tmp_path / "compiled")
    model = tmp_path / "broken.onnx"
    model.write_bytes(b"no model")
    model.with_suffix(".json").write_text("{}")
    with pytest.raises(RammerError, match="iree-import-onnx failed"):
        package(model, AS_GIVEN)
    assert not list((tmp_path / "compiled").iterdir())  # nothing half made stays
