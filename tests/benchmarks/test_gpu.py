"""The GPU benchmark without a GPU: its host side on a stand-in for cupy, its refusal, its arithmetic, a dry run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "vdevice"))
from fake_cupy import CUDADriverError, FakeCupy

from benchmarks.gpu import micro as gpu_micro
from benchmarks.gpu import peers as gpu_peers
from benchmarks.gpu import programs as gpu_programs
from benchmarks.gpu import run as gpu
from benchmarks.gpu.sass import disassembled, listings
from benchmarks.models import store
from rammer.errors import RammerError, ToolchainError
from rammer.vdevice.cuda import device, driver
from rammer.vdevice.cuda.build import compile_cubin
from rammer.vdevice.cuda.driver import probe
from rammer.vdevice.simt.codegen.table import ENTRY
from rammer.vdevice.simt.machine_code import KernelResources, MachineCode
from rammer_viz.demo import lstm_stack

SCRIPT = Path(gpu.__file__).with_name("h200.sh")
CODE = KernelResources(64, code_bytes=1, compiler="NVRTC 13.5")
needs_no_gpu = pytest.mark.skipif(probe().ok, reason="this machine has an NVIDIA GPU")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    fake.properties["multiProcessorCount"] = 4
    monkeypatch.setattr(driver, "_module", lambda: fake)
    monkeypatch.setitem(sys.modules, "cupy", fake)  # type: ignore[misc]
    monkeypatch.setattr(gpu_micro, "compile_cubin", made)
    there(monkeypatch, True)
    return fake


def made(text: str, arch: str) -> MachineCode:
    return MachineCode(text.encode(), {ENTRY: CODE})


def there(monkeypatch: pytest.MonkeyPatch, gpu: bool, compile: Callable[[str, str], MachineCode] = made) -> None:
    """A GPU, or none, and what compiles for it."""
    platform = replace(device.PLATFORM, probe=lambda: driver.Availability(gpu, "no GPU yet"), compile=compile)
    monkeypatch.setattr(device, "PLATFORM", platform)


@needs_no_gpu
def test_without_a_gpu_it_says_so_and_fails() -> None:
    done = subprocess.run(["sh", str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "no NVIDIA GPU to measure" in done.stderr
    result = CliRunner().invoke(gpu.main, [])
    assert result.exit_code and "no GPU to measure: this machine has no NVIDIA GPU" in str(result.output)


def test_microbenchmarks_report_what_fails(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of barrier, launches, graphs and copies; an error of one is its result."""
    monkeypatch.setattr(gpu_micro, "BYTES", 1 << 10)
    calls: list[tuple[int, bool]] = []

    def function(grid: Any, block: Any, args: Any, *, stream: Any, enable_cooperative_groups: bool) -> None:
        calls.append((grid[0], enable_cooperative_groups))
        if cupy.fails and len(args) == 2 and grid[0] == 8:
            raise cupy.fails["cluster"]

    cupy.cuda.Module = lambda: SimpleNamespace(load=lambda cubin: None, get_function=lambda name: function)
    cupy.cuda.runtime.memset = lambda *_: None
    found = {m.what: m for m in gpu_micro.measure(0, "sm_90", 12)}
    failed = {what: m.failed for what, m in found.items() if m.failed}
    assert failed.keys() <= {"clusters", "programmatic launches", "slots", "L2"}, failed  # a stand-in is no driver
    measured = [m for m in found.values() if not m.failed]
    assert len(measured) >= len(gpu_micro.KINDS) + 7 + 1 and all(m.median for m in measured)
    assert found["barrier: counter, 12 blocks"].median == pytest.approx(500 / gpu_micro.ROUNDS)
    assert (8, False) in calls and (12, True) in calls
    assert gpu_micro.hop_costs(list(found.values())) == {"fence_us": 0.0, "poll_us": 500 / gpu_micro.ROUNDS}
    assert found["copy in device memory, bytes read and written"].unit == "GB/s"
    cupy.fails["cluster"] = CUDADriverError("CUDA_ERROR_INVALID_CLUSTER_SIZE: no")
    found = {m.what: m for m in gpu_micro.measure(0, "sm_90", 12)}
    assert "INVALID_CLUSTER_SIZE" in found["barrier: cluster"].failed


def test_micro_kernels_compile() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and NVRTC are not installed")
    assert all("compiled for sm_90" in m.failed for m in gpu_micro.compiled("sm_90"))
    assert [m.what for m in gpu_micro.compiled("sm_80") if "compiled" not in m.failed] == [
        f"barrier: {kind}" for kind in gpu_micro.CLUSTERED
    ]


@pytest.mark.parametrize("kind", gpu_micro.KINDS)
def test_a_round_reads_global_memory_only_to_poll(kind: str) -> None:
    """By machine code: one poll before the spin's loop and one in it, an acquire of a counter, nothing else."""
    try:
        code = compile_cubin(gpu_micro.barrier_text(kind), "sm_90").data
        loops = (listing := listings(disassembled(code))["micro"]).loops()
    except ToolchainError as error:
        pytest.skip(str(error))
    first, last = loops[0]
    polls = [i.opcode for i in listing.code[first : last + 1] if i.kind in ("LDG", "LD", "LDL", "ATOMG")]
    wanted = 0 if "cluster" in kind or kind == "two block syncs" else 3 if kind.startswith("counter") else 2
    assert len(polls) <= wanted + (kind == "whole grid") * 2, polls


@pytest.fixture
def built(tmp_path: Path) -> store.BuiltModel:
    import rammer
    from rammer.ir.semantics.evaluate import evaluate_graph

    model = lstm_stack(1, 2, 8)
    x = np.random.default_rng(0).standard_normal((2, 1, 8)).astype(np.float32)
    outputs = evaluate_graph(rammer.from_onnx(model), {"x": x})
    made = store.reuse("tiny", {"by": "test"}, lambda: (model.SerializeToString(), {"x": x}, outputs), tmp_path)
    return made


@pytest.mark.parametrize("peer", ["rammer", "rammer-sequential"])
def test_our_side_on_a_gpu(cupy: FakeCupy, built: store.BuiltModel, peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load, check, measure twice, notes: the child's whole life, in this process."""
    monkeypatch.setenv("RAMMER_TUNE_SECONDS", "0")
    cupy.cuda.runtime.memset = lambda *_: cupy.note("memset")
    task = gpu_peers.Task(peer, str(built.path), "", "small", 0)
    asked, answers = iter([(task, built.outputs, 2), 4, 8, None]), []
    pipe = SimpleNamespace(recv=lambda: next(asked), send=answers.append)
    gpu_peers.serve(pipe, peer)  # type: ignore[arg-type]
    assert not [a for a in answers if "failed" in a], answers
    assert answers[0]["errors"]["y"] < 1e-6 and answers[1]["warm_ms"] == [0.5] * 4
    assert answers[2]["flushed_ms"] == [0.5] * 2 and cupy.calls.count("memset") == 3
    assert "Graph.launch" in cupy.calls
    assert answers[3]["notes"]["usage"]["emulated"] is False


def test_programs_compiled_before_are_loaded(
    cupy: FakeCupy, built: store.BuiltModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled for a GPU that is not here, then measured on it without a compiler."""
    there(monkeypatch, False)
    cupy.properties["multiProcessorCount"] = 132
    peers = [*gpu_peers.PEERS, "rammer@x2", "rammer@c8", "rammer@tf32"]
    gpu_programs.prepare(built.path, tmp_path / "ready", "sm_90", peers)
    assert {p.name for p in (tmp_path / "ready").iterdir()} == {
        build.file("", built.path).name for build in gpu_programs.builds_of(peers)
    }

    def compile_clocks(text: str, arch: str) -> MachineCode:
        assert "#define MK_PROFILE 1" in text, "compiled again"
        return made(text, arch)

    there(monkeypatch, True, compile_clocks)
    task = gpu_peers.Task("rammer", str(built.path), "", "small", 0, str(tmp_path / "ready"))
    asked, answers = iter([(task, built.outputs, 0), None]), []
    pipe = SimpleNamespace(recv=lambda: next(asked), send=answers.append)
    gpu_peers.serve(pipe, "rammer")  # type: ignore[arg-type]
    assert answers[-1].get("notes", {}).get("compiled_before"), answers


def test_a_peer_that_cannot_says_why(built: store.BuiltModel) -> None:
    pytest.importorskip("torch", reason="the peer is torch")
    answers: list[dict[str, Any]] = []
    task = gpu_peers.Task("torch", str(built.path), "", "small", None)
    pipe = SimpleNamespace(recv=lambda: (task, built.outputs, 0), send=answers.append)
    gpu_peers.serve(pipe, "torch")  # type: ignore[arg-type]
    assert "there is no torch module of this model" in answers[0]["failed"]


def test_wrong_outputs_are_no_results() -> None:
    one = {"y": np.ones(4)}
    assert gpu_peers.relative_errors({"y": np.full(4, 1.5, np.float32)}, one) == {"y": 0.5}
    with pytest.raises(RammerError, match="no numbers"):
        gpu_peers.relative_errors({"y": np.full(4, np.nan)}, one)
    with pytest.raises(RammerError, match="shape"):
        gpu_peers.relative_errors({"y": np.ones(5)}, one)


def test_conclusions_compare_medians_of_models_that_have_both() -> None:
    def model(**medians: float) -> dict[str, Any]:
        return {"peers": {p: {"warm": {"median": m} if m else {}} for p, m in medians.items()}}

    models = {
        "a": model(**{"rammer": 1.0, "torch": 8.0, "torch-max": 4.0, "rammer-sequential": 6.0}),
        "b": model(**{"rammer": 1.0, "torch": 0, "torch-tf32": 0.1}),
    }
    assert gpu.ratios(models, gpu.EXACT, gpu.OWN) == {"a": 4.0}
    lines = gpu.conclusions(models)
    assert "best peer in float32: 4.00 (geometric mean of 1): a 4.00" in lines[0]
    assert "same kernels: 6.00" in lines[1] and len(lines) == 2
    assert gpu.summary([]) == {} and gpu.summary([1, 2, 3])["median"] == 2


@pytest.mark.slow
def test_a_dry_run(tmp_path: Path) -> None:
    """All of it but the GPU: processes, references in float64, tables, the result file."""
    pytest.importorskip("torch", reason="torch is not installed")
    output = tmp_path / "dry.json"
    options = ["--dry-run", "--models", "lstm_tc_lstm", "--runs", "4", "--json", str(output), "--slots", str(tmp_path)]
    result = CliRunner().invoke(gpu.main, [*options, "--peers", "rammer,rammer-sequential,torch-graph"])
    assert result.exit_code == 0, result.output
    content = json.loads(output.read_text())
    peers = content["models"]["lstm_tc_lstm"]["peers"]
    assert content["dry_run"] and content["models"]["lstm_tc_lstm"]["reference"] == "float64"
    assert max(peers["rammer"]["errors"].values()) < 1e-5 and peers["rammer"]["notes"]["usage"]["emulated"]
    assert "needs a GPU" in peers["torch-graph"]["failed"]
    with np.load(tmp_path / "lstm_tc_lstm_b1_small-rammer.npz", allow_pickle=False) as slots:
        assert len(slots["times"]) == len(slots["operators"]) == slots["lengths"].sum() > 0
        assert (slots["times"][:, 0] <= slots["times"][:, 1]).all() and slots["total_us"] > 0
    assert "times mean nothing" in result.output and "speed of rammer" not in result.output


def test_models_are_prepared_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a process of its own, with its share of the cores; one that fails does not stop the others."""
    ran: list[tuple[str, ...]] = []

    def run(command: list[str], env: dict[str, str], **_: object) -> SimpleNamespace:
        ran.append((*command[3:5], env["OMP_NUM_THREADS"], *command[5:]))
        bad = "alexnet" in command
        return SimpleNamespace(returncode=int(bad), stdout="ready", stderr="Traceback\nToolchainError: no" * bad)

    monkeypatch.setattr(gpu.subprocess, "run", run)
    monkeypatch.setattr(gpu.os, "cpu_count", lambda: 6)
    monkeypatch.setattr(gpu.catalog, "paper_names", lambda: ["alexnet", "lstm_tc_lstm", "resnext29"])
    options = ["--prepare", "h200", "--programs", str(tmp_path), "--jobs", "3", "--peers", "rammer,rammer@x2"]
    result = CliRunner().invoke(gpu.main, options)
    rest = ("--prepare", "h200", "--programs", str(tmp_path))
    names = ("alexnet", "lstm_tc_lstm", "resnext29")
    for name in names:  # the model and what torch makes of it come first
        own = [command for command in ran if command[1] == name]
        assert own == [("--models", name, "2", "--peers", peer, *rest) for peer in ("torch", "rammer", "rammer@x2")]
        assert gpu_programs.awaited(tmp_path, name, 0)
    assert not gpu_programs.awaited(tmp_path, "vit", 0)
    assert result.exit_code == 1 and result.output.count("ready") == 6 and "ToolchainError: no" in result.output
    refused = CliRunner().invoke(gpu.main, ["--prepare", "h200", "--jobs", "3"])
    assert refused.exit_code == 2 and "--programs DIR" in refused.output
