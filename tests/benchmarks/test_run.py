"""The measuring harness: one real run end to end, and its arithmetic on made-up results."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

from benchmarks.compare import diff as compare
from benchmarks.compare import forms
from benchmarks.compare.peers import Task, drop_equal_sizes, worst_error
from benchmarks.compare.report import best_peer, geometric_mean_speed, results_table, summarize, summary_table
from benchmarks.compare.worker import Worker
from benchmarks.models.store import reuse
from rammer.errors import RammerError

ROOT = Path(__file__).parents[2]


def result(*samples: float) -> dict[str, object]:
    return {**summarize(list(samples)), "error": 1e-6, "load_s": 0.1, "peak_mb": 50.0, "model_mb": 9.0}


def models(own: float) -> dict[str, dict[str, object]]:
    peers = {"rammer": result(own, own), "onnxruntime": result(4.0, 5.0), "openvino": {"failed": "not installed"}}
    return {"net": {"batch": 1, "floor": {"ms": 1.0}, "work": {"weight_bytes": 1 << 20}, "peers": peers}}


def test_best_peer_is_the_fastest_that_is_not_ours() -> None:
    assert best_peer(models(1.0)["net"]["peers"]) == "onnxruntime"
    assert best_peer({"rammer-sequential": result(1.0)}) is None


def test_speed_is_a_ratio_of_minima() -> None:
    assert geometric_mean_speed(models(2.0), "rammer") == pytest.approx(2.0)
    assert results_table(models(2.0)).row_count == 3 and summary_table(models(2.0)).row_count == 1


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


def test_equal_splits_lose_their_sizes() -> None:
    sizes = [numpy_helper.from_array(np.array(s), name) for name, s in (("equal", [2, 2]), ("other", [1, 3]))]
    nodes = [helper.make_node("Split", ["x", name], ["a", "b"], axis=0) for name in ("equal", "other")]
    model = helper.make_model(helper.make_graph(nodes, "g", [], [], sizes))
    assert drop_equal_sizes(model) == 1
    assert [list(node.input) for node in model.graph.node] == [["x"], ["x", "other"]]


class TestWorkers:
    """Processes, with peers that do nothing but harm."""

    @pytest.fixture
    def task(self, tmp_path: Path) -> Task:
        def make() -> tuple[bytes, dict[str, Any], dict[str, Any]]:
            return b"no model", {"x": np.ones(2, np.float32)}, {"y": np.ones(2, np.float32)}

        return Task("onnxruntime", str(reuse("net", {}, make, tmp_path).path), "", "full", 1)

    def test_a_peer_that_fails_says_why(self, task: Task) -> None:
        pytest.importorskip("onnxruntime", reason="the peer that is given a bad file")
        worker = Worker(task)
        with pytest.raises(RammerError, match=r"net\.onnx"):
            worker.loaded(60)
        worker.stop()

    def test_a_process_that_dies_is_no_answer(self, task: Task) -> None:
        worker = Worker(task)
        (child,) = multiprocessing.active_children()
        child.kill()
        with pytest.raises(RammerError, match="exit code -9"):
            worker.loaded(60)
        worker.stop()


def test_who_did_not_load_in_time_is_tried_again_only_with_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "KNOWN", tmp_path / "forms.json")
    task = Task("jax", str(reuse("net", {}, lambda: (b"", {}, {}), tmp_path).path), "", "full", 1)
    forms.remember_timeout(task, 10)
    with pytest.raises(RammerError, match="no answer within 10 s"):
        forms.choose(task, 10, print, again=False)
    assert forms.choose(task, 20, print, again=False) == task
    assert json.loads(forms.KNOWN.read_text())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a process with its parent")
def test_nobody_goes_on_after_a_benchmark_was_killed() -> None:
    text = (
        "import multiprocessing, time; from benchmarks.compare.apart import Apart; sleeper = Apart(time.sleep, 600);"
        "print(multiprocessing.active_children()[0].pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", text], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        until(lambda: b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes())
        parent.kill()
    until(lambda: not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes())


def until(holds: Callable[[], bool]) -> None:
    """Wait for it, a minute at most."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
def test_a_run_measures_checks_and_survives_a_failing_peer(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the models are torch modules")
    pytest.importorskip("onnxruntime", reason="the peer that is measured")
    output = tmp_path / "result.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.compare.run",
        "--scale",
        "small",
        "--models",
        "lstm_tc_lstm",
        "--seconds",
        "0.1",
    ]
    options = ["--peers", "rammer,onnxruntime,torch", "--json", str(output), "--load-timeout", "300"]
    for _ in range(2):  # the second time everything is there already
        subprocess.run([*command, *options, "--resume"], cwd=ROOT, check=True, capture_output=True, timeout=600)
    content = json.loads(output.read_text())
    peers = content["models"]["lstm_tc_lstm"]["peers"]
    assert peers["onnxruntime"]["error"] < 1e-5
    assert peers["onnxruntime"]["n"] == len(peers["onnxruntime"]["samples_ms"]) >= 12
    assert 0 < peers["rammer"]["usage"]["overhead"] < 1 and peers["rammer"]["compile"]["s"] > 0
    assert content["limits"]["gflops"] > 0 and content["commit"]["id"]
