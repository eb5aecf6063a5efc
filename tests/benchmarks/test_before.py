"""Another checkout's rammer against this one: with made-up checkouts, and with what is here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import rammer
from benchmarks.compare import before
from benchmarks.models.store import BuiltModel, reuse
from benchmarks.operators.cases import CASES
from rammer.errors import RammerError

MADE_UP = """
import os, pathlib, time, types
import numpy as np
def compile(model, target):
    assert os.environ["RAMMER_CACHE_DIR"] and {compiles}, "cannot be compiled"
    return Program()
def load_program(saved):
    assert saved.read_text() == "saved by {name}"
    return Program()
class Program:
    plan = types.SimpleNamespace(kernels=[types.SimpleNamespace(name=name) for name in {kernels}])
    runs = 0
    def save(self, path): path.write_text("saved by {name}")
    def run(self, inputs):
        self.runs += 1
        if self.runs > {runs}: os._exit(3)
        time.sleep({seconds})
        return {{"y": inputs["x"] * {factor}}}
    def __enter__(self): return self
    def __exit__(self, *_): pass
"""


@pytest.fixture
def built(tmp_path: Path) -> BuiltModel:
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "net", info[:1], info[1:])
    )
    x = np.arange(3, dtype=np.float32)
    return reuse("net", {}, lambda: (model.SerializeToString(), {"x": x}, {"y": 2 * x}), tmp_path)


def checkout(folder: Path, **of: Any) -> Path:
    """A checkout whose rammer doubles its input, unless it is said to be otherwise."""
    usual = {"compiles": True, "kernels": ["a", "b"], "runs": 1e9, "seconds": 0, "factor": 2}
    (folder / "rammer").mkdir(parents=True)
    (folder / "rammer" / "__init__.py").write_text(MADE_UP.format(**{**usual, "name": folder.name, **of}))
    return folder


@pytest.fixture
def calibrations(tmp_path: Path) -> Path:
    (tmp_path / "calibrations.json").write_text("{}")
    return tmp_path / "calibrations.json"


@pytest.fixture(scope="module")
def bytecode() -> Iterator[Path]:
    with before.bytecode_of((before.HERE,)) as folder:
        yield folder


def test_each_version_runs_what_it_saved_and_the_slower_one_is_found(
    tmp_path: Path, built: BuiltModel, calibrations: Path, bytecode: Path
) -> None:
    roots = checkout(tmp_path / "old", seconds=1e-3), checkout(tmp_path / "new", seconds=4e-3, kernels=["a", "c"])
    found = before.compare(built, roots, calibrations, bytecode, 0.1, compilations=2)
    assert found["by_minima"] < before.SLOWER and found["errors"] == [0.0, 0.0]
    assert (found["operators"], found["others"]) == (2, 1) and min(found["n"]) >= before.ROUNDS
    assert "net" in before.verdict({"net": {"versions": found}}).splitlines()[1]


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [({"compiles": False}, "cannot be compiled"), ({"factor": 3}, "wrong output"), ({"runs": 5}, "its process ended")],
)
def test_a_version_that_fails_says_why(
    fault: dict[str, Any], complaint: str, tmp_path: Path, built: BuiltModel, calibrations: Path, bytecode: Path
) -> None:
    roots = checkout(tmp_path / "old"), checkout(tmp_path / "new", **fault)
    with pytest.raises(RammerError, match=complaint):
        before.compare(built, roots, calibrations, bytecode, 0.01)


def test_this_checkout_against_itself(built: BuiltModel, calibrations: Path, bytecode: Path) -> None:
    found = before.compare(built, (before.HERE, before.HERE), calibrations, bytecode, 0.01)
    assert found["others"] == 0 and found["errors"] == [0.0, 0.0]
    assert "error 0e+00 others: 0 of 1 rKernels" in before.line("net", "", found)


def test_verdict_names_what_is_slower_takes_longer_or_failed() -> None:
    def entry(medians: float, minima: float, compiling: float) -> dict[str, Any]:
        figures = {
            "by_medians": medians,
            "by_minima": minima,
            "compile_ratio": compiling,
            "compile_cpu_ratio": compiling,
        }
        return {"versions": {**figures, "compile_cpu_ratio": compiling}}

    models = {"slow": entry(0.5, 0.9, 1.0), "disturbed": entry(0.5, 1.0, 1.3), "bad": {"versions": {"failed": "why"}}}
    means, slower, longer, failed = before.verdict(models).splitlines()
    assert "of 2: medians 0.500" in means
    assert slower.endswith(": slow") and longer.endswith(": disturbed") and failed.endswith(": bad")


def test_a_run_goes_on_against_the_same_commit_alone(tmp_path: Path) -> None:
    models = {"net": {"versions": {"by_medians": 1.0}}, "bad": {"versions": {"failed": "why"}}}
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"options": {"before": "abc"}, "models": models}))
    assert before.kept(path, "abc") == {"net": models["net"]}
    with pytest.raises(RammerError, match="compares with abc"):
        before.kept(path, "def")


def test_a_work_tree_is_there_for_a_while() -> None:
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=before.HERE, capture_output=True, check=False).returncode:
        pytest.skip("no repository here")
    with before.checkout("HEAD") as root:
        assert (root / "rammer" / "__init__.py").exists()
    assert not root.exists()
    with pytest.raises(RammerError, match="no-such"), before.checkout("no-such"):
        pass


def test_forms_of_operators_are_models_with_onnx_runtimes_results(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the peer whose results count")
    built = before.built_form(CASES["TopK, 8"], "odd", "int64", tmp_path)
    assert built.path.exists() and set(built.inputs) == {"x0"} and set(built.outputs) == {"y0", "y1"}
    with rammer.compile(built.path, "interpreter") as program:
        found = program.run(built.inputs)
    for name, wanted in built.outputs.items():
        np.testing.assert_array_equal(found[name], wanted)
