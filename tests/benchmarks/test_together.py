"""The benchmark of several models: one real run end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx.reference import ReferenceEvaluator

pytest.importorskip("torch", reason="the benchmark builds models with torch")

from benchmarks.micro import model_policies
from benchmarks.micro.together import PEERS, detector, main, merge


def test_every_peer_runs_every_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("RAMMER_PLUGINS", model_policies.__file__)
    file, policies = tmp_path / "r.json", [policy.name for policy in model_policies.rammer_policies().values()]
    arguments = f"detectors --small --rounds 2 --count 7 --policy {' --policy '.join(policies)} --json"
    done = CliRunner().invoke(main, [*arguments.split(), str(file)], catch_exceptions=False)
    assert done.exit_code == 0 and "one plan" in done.output
    found = json.loads(file.read_text())["sets"]["detectors"]
    assert list(found) == [*PEERS, *policies]
    assert all(
        peer["n"] == 8 and 0 < peer["min_us"] <= peer["median_us"] <= peer["worst_us"] for peer in found.values()
    )
    assert found["parts"]["planned_bytes"] <= 1.1 * found["separate"]["least_bytes"]


def test_merged_graphs_compute_what_each_does(tmp_path: Path) -> None:
    files = {f"m{n}": detector(tmp_path / f"{n}.onnx", n) for n in range(2)}
    whole, models = merge(files), {name: onnx.load(path) for name, path in files.items()}
    random = np.random.default_rng(0)
    widths = {name: m.graph.input[0].type.tensor_type.shape.dim[1].dim_value for name, m in models.items()}
    inputs = {name: random.standard_normal((1, width), np.float32) for name, width in widths.items()}
    found = ReferenceEvaluator(whole).run(None, {f"{name}.x": x for name, x in inputs.items()})
    for (name, model), value in zip(models.items(), found, strict=True):
        np.testing.assert_array_equal(value, ReferenceEvaluator(model).run(None, {"x": inputs[name]})[0])
