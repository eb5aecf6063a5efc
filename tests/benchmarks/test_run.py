"""The measuring harness: one real run end to end, and its arithmetic on made-up results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import compare
from benchmarks.peers import worst_error
from benchmarks.report import best_peer, geometric_mean_speed, results_table, summarize
from rammer.errors import RammerError

ROOT = Path(__file__).parents[2]


def result(*samples: float) -> dict[str, object]:
    return {**summarize(list(samples)), "error": 1e-6, "load_s": 0.1, "peak_mb": 50.0}


def models(own: float) -> dict[str, dict[str, object]]:
    peers = {"rammer": result(own, own), "onnxruntime": result(4.0, 5.0), "openvino": {"failed": "not installed"}}
    return {"net": {"batch": 1, "floor": {"ms": 1.0}, "peers": peers}}


def test_best_peer_is_the_fastest_that_is_not_ours() -> None:
    assert best_peer(models(1.0)["net"]["peers"]) == "onnxruntime"
    assert best_peer({"rammer-sequential": result(1.0)}) is None


def test_speed_is_a_ratio_of_minima() -> None:
    assert geometric_mean_speed(models(2.0), "rammer") == pytest.approx(2.0)
    assert results_table(models(2.0)).row_count == 3


def test_error_is_relative_to_the_largest_value() -> None:
    expected = {"y": np.array([1.0, -4.0], np.float32)}
    assert worst_error({"y": np.array([1.0, -3.0], np.float32)}, expected) == pytest.approx(0.25)
    with pytest.raises(RammerError, match="shape"):
        worst_error({"y": np.zeros(3, np.float32)}, expected)


def test_compare_says_what_changed(tmp_path: Path) -> None:
    for name, own in (("base", 2.0), ("new", 1.0)):
        (tmp_path / name).write_text(json.dumps({"models": models(own)}))
    output = CliRunner().invoke(compare.main, [str(tmp_path / "base"), str(tmp_path / "new")]).output
    assert "faster" in output and "rammer: 2.000 x" in output


@pytest.mark.slow
def test_a_run_measures_checks_and_survives_a_failing_peer(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the models are torch modules")
    pytest.importorskip("onnxruntime", reason="the peer that is measured")
    output = tmp_path / "result.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.run",
        "--scale",
        "small",
        "--models",
        "lstm_tc_lstm",
        "--seconds",
        "0.1",
    ]
    options = ["--peers", "onnxruntime,torch", "--json", str(output), "--load-timeout", "300"]
    subprocess.run([*command, *options], cwd=ROOT, check=True, capture_output=True, timeout=600)
    content = json.loads(output.read_text())
    peer = content["models"]["lstm_tc_lstm"]["peers"]["onnxruntime"]
    assert peer["error"] < 1e-5 and peer["n"] == len(peer["samples_ms"]) >= 12
    assert content["limits"]["gflops"] > 0 and content["commit"]["id"]
