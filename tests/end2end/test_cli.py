"""The command line, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

import rammer
from rammer.cli.commands import main
from rammer.tools.demo import lstm_stack


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("cli") / "lstm.onnx"
    onnx.save(lstm_stack(1, 4, 16), path)
    return str(path)


def call(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_help_lists_the_commands() -> None:
    text = call("--help").output
    for name in ("demo", "run", "check", "bench", "compile", "show", "doctor", "cache"):
        assert name in text
        assert "Usage" in call(name, "--help").output


def test_run_describes_outputs_and_saves_them(model: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 1, 16), np.float32))
    text = call("run", model, "--input", f"x={tmp_path / 'x.npy'}", "--save", str(tmp_path / "out")).output
    assert "4×1×16" in text
    assert np.load(tmp_path / "out" / "0.npy").shape == (4, 1, 16)


def test_compile_then_run_the_file(model: str, tmp_path: Path) -> None:
    saved = str(tmp_path / "m.rammer")
    assert "wrote" in call("compile", model, "-o", saved, "--device", "2").output
    assert "4×1×16" in call("run", saved).output
    assert "no effect" in call("run", saved, "--policy", "sequential", code=1).output


def test_show_writes_every_form(model: str, tmp_path: Path) -> None:
    files = {form: tmp_path / f"plan.{form}" for form in ("svg", "html", "trace", "plan", "rkernels")}
    options = [part for form, file in files.items() for part in (f"--{form}", str(file))]
    text = call("show", model, "--device", "2", "--width", "80", *options).output
    assert "rProgram" in text
    assert files["svg"].read_text().startswith("<svg")
    assert "<script src" not in files["html"].read_text()
    assert json.loads(files["trace"].read_text())["traceEvents"]
    assert files["plan"].read_text().strip()
    listed = files["rkernels"].read_text()
    assert listed.startswith("rkernel ") and "\nschedule " in listed and "\nexpression " in listed


def test_bench_compares_policies(model: str) -> None:
    data = json.loads(call("bench", model, "--seconds", "0.05", "--json").stdout)
    assert set(data) == {"sequential", "wavefront"} and all(d["n"] >= 3 for d in data.values())
    assert "wavefront" in call("bench", model, "--seconds", "0.05").output


def test_policies_take_options(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, saved = "wavefront:selection=fastest,beyond=off", str(tmp_path / "m.rammer")
    assert f"policy {chosen}," in call("compile", model, "-o", saved, "--policy", chosen).output
    assert f"policy {chosen}," in call("show", saved).output
    policies = "sequential:kernels=selected,wavefront:beyond=off,sync=global"
    data = json.loads(call("bench", model, "--policies", policies, "--seconds", "0.05", "--json").stdout)
    assert set(data) == {"sequential:kernels=selected", "wavefront:beyond=off,sync=global"}
    assert all(d["report"]["policy"] == name for name, d in data.items())
    refused = call("run", model, "--policy", "wavefront:beyond=of", code=1).output
    assert "beyond is 'on' or 'off', not 'of'" in refused and "did you mean 'off'?" in refused
    monkeypatch.setenv("RAMMER_POLICY", "wavefront:beyond=off")
    with rammer.compile(model, options={"selection": "efficient"}, tune_seconds=0) as program:
        assert program.report().policy == program.plan.policy == "wavefront:selection=efficient,beyond=off"


def test_doctor_and_cache() -> None:
    text = call("doctor").output
    assert "exports for other systems run here by" in text and "qemu-aarch64" in text
    for words in ("round_robin", "kernels=selected", "beyond=on (default)"):
        assert words in text
    assert "cpu" in text and "ready" in text and "wavefront" in text
    devices = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert {"interpreter", "cpu", "cuda", "rocm", "ipu"} <= set(devices)
    assert "kernel" in call("cache").output


def test_measured_times_get_from_cache_to_cache(tmp_path: Path) -> None:
    file = str(tmp_path / "times.json")
    assert "measured times" in call("cache", "export", file).output
    assert "0 of them new" in call("cache", "import", file).output
    refused = " ".join(call("cache", "import", str(tmp_path / "none"), code=1).output.split())
    assert "no file of measured times" in refused and "cache export" in refused


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("run", "absent.onnx"), 1, "absent.onnx"),
        (("run", "absent.rammer"), 1, "no such file"),
        (("run",), 2, "Missing argument"),
        (("frobnicate",), 2, "No such command"),
        (("run", "m.onnx", "--shape", "x=3xa"), 2, "a shape looks like"),
        (("run", "m.onnx", "--input", "x"), 2, "not NAME=VALUE"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], code: int, text: str) -> None:
    assert text in call(*arguments, code=code).output


def test_check_compares_outputs_and_operators(model: str) -> None:
    text = call("check", model, "--every").output
    assert "interpreted" in text and "onnx" in text and "agrees" in text
    assert "lstm_cell" in text


def test_check_names_the_first_operator_that_differs(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = rammer.Program.run

    def wrong(self: rammer.Program, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: value + 1 for name, value in run(self, inputs).items()}

    monkeypatch.setattr(rammer.Program, "run", wrong)
    text = call("check", model, code=1).output
    assert "compiled and interpreted differ" in text and "compiled alone" in text
