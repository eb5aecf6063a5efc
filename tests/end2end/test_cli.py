"""The command line, as a user types it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner, Result
from rich.table import Table

import rammer
from rammer.cli.commands import main
from rammer.cli.console import Plain
from rammer.cli.syntax import in_options
from rammer.errors import duration, size
from rammer.plugins import PluginRegistry
from rammer.runtime import measure
from rammer_viz import tables
from rammer_viz.demo import lstm_stack


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
    for name in ("demo", "run", "check", "bench", "compile", "show", "explain", "doctor", "cache", "completion"):
        assert name in text
        assert "Usage" in call(name, "--help").output
    listed = dict(line.split(maxsplit=1) for line in text.partition("Commands:")[2].splitlines() if line)
    built_in = [word for name, word in listed.items() if name not in ("convert", "kernels")]  # a plugin's
    assert len(built_in) >= 12 and all(word[-1] == "." and word[-3:] != "..." for word in built_in)


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
    """The default policy comes first; equal plans are timed once, and ratios come with their noise."""
    options = ("--seconds", "0.05", "--threads", "2", "--tune-seconds", "0", "--arch", "x86-64-avx2@here")
    data = json.loads(call("bench", model, *options, "--json").stdout)
    assert list(data) == ["auto", "sequential", "wavefront"] and all(d["n"] >= 3 for d in data.values())
    assert data["wavefront"]["same_plan_as"] == "auto" and "same_plan_as" not in data["sequential"]
    assert all(d["spread"] >= 0 and d["noise"] >= 0 for d in data.values())
    text = call("bench", model, *options).output
    assert "the plan of auto" in text and "spread" in text


def test_bench_takes_turns_with_a_peer(model: str) -> None:
    pytest.importorskip("onnxruntime", reason="needs the dev extra")
    data = json.loads(call("bench", model, "--seconds", "0.05", "--peer", "onnxruntime", "--json").stdout)
    assert "onnxruntime" in data and data["onnxruntime"]["n"] == data["auto"]["n"]
    assert "onnxruntime" in call("bench", model, "--seconds", "0.05", "--peer", "onnxruntime").output


@pytest.mark.parametrize(("factor", "said"), [(1.0, True), (3.0, False)])
def test_medians_within_noise_are_said_to_be_equal(model: str, factor: float, said: bool) -> None:
    random = np.random.default_rng(0)
    samples = {n: measure.Samples(list(random.uniform(1, 1.2, 200) * f)) for n, f in (("a", 1.0), ("b", factor))}
    with rammer.compile(model, "interpreter", tune_seconds=0) as program:
        table = tables.policy_table({"a": program, "b": program}, samples)
    ratio = str([*table.columns[-1].cells][1])
    assert ("(noise)" in ratio) is said and float(ratio.split("×")[0]) == pytest.approx(1 / factor, rel=0.05)
    assert samples["a"].spread == pytest.approx(0.1 / 1.1, rel=0.2)


def test_every_command_answers_in_json(model: str, tmp_path: Path) -> None:
    saved, page = str(tmp_path / "m.rammer"), str(tmp_path / "m.html")
    commands = (
        ("run", model),
        ("check", model),
        ("show", model, "--html", page),
        ("explain", model, "--policies", "sequential"),
        ("doctor",),
        ("cache",),
        ("compile", model, "-o", saved),
    )
    run, check, show, explain, doctor, cache, made = (json.loads(call(*c, "--json").stdout) for c in commands)
    assert run["outputs"][0]["shape"] == "4×1×16" and run["seconds"] > 0
    assert check[0]["differs"] == "" and 0 < check[0]["error"] <= check[0]["allowed"]
    assert show["num_operators"] == len(show["operators"]) and Path(page).exists()
    assert explain["bound"] in explain["parts"] and explain["policies"]["sequential"] > 0
    assert {d["name"] for d in doctor["devices"]} >= {"cpu", "cuda"} and "policies" in doctor
    assert cache["kernels"] > 0 and Path(cache["folder"]).is_dir()
    assert made["bytes"] == Path(saved).stat().st_size and made["reports"][0]["target"] == "cpu"


def test_explain_writes_a_page_and_names_what_pays(model: str, tmp_path: Path) -> None:
    page = tmp_path / "why.html"
    text = call("explain", model, "--html", str(page), "--measured", "--policies", "sequential").output
    for words in ("Bound by ", "The ideal beside it", "The critical path", "was selected", "sequential", "measured"):
        assert words in text
    assert "no policy named 'none_such'" in call("explain", model, "--policies", "none_such", code=1).output
    assert "Bound by " in page.read_text() and '"name":"measured"' in page.read_text()


def test_compile_has_a_default_output(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "wrote lstm.rammer" in call("compile", model).output
    assert (tmp_path / "lstm.rammer").exists()


def test_hints_are_in_the_syntax_of_the_command_line(tmp_path: Path) -> None:
    ports = "float[batch, length, 3] x, float[batch, 2] z, float[?, 5] u"
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    m ({ports}) => (float[batch, length, 3] y, float[batch, 2] q, float[?, 5] v) {{
      y = Relu(x)
      q = Relu(z)
      v = Relu(u)
    }}"""
    model, file = onnx.parser.parse_model(text), str(tmp_path / "m.onnx")
    onnx.save(model, file)
    said = call("run", file, code=1).output
    assert "input 'x' is open along axis 0 ('batch'), axis 1 ('length'); input 'z' is open along axis 0" in said
    assert "--dim batch=1 --dim length=1 and --shape u=1x5" in said and "dims=" not in said
    options = ("--dim", "batch=1", "--dim", "length=2", "--shape", "u=1x5")  # as the hint says
    call("run", file, *options)
    assert "--shape gives input 'x' rank 2" in call("run", file, "--shape", "x=1x2", *options, code=1).output


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("dims={'batch': 1}", "--dim batch=1"),
        ("shapes={'x': (1, 64), 'y': (2,)}", "--shape x=1x64 --shape y=2"),
        ("constants={'k': …}", "--constant"),
        ("""use target='cpu' or device="emulator:4\"""", "use --target cpu or --device emulator:4"),
        ("together=['vad', 'asr']", "--together vad,asr"),
        ("device= is the GPU's number, tune_seconds=10", "--device is the GPU's number, --tune-seconds 10"),
        ("a == b, buckets={1: 2}, my.device=3", "a == b, buckets={1: 2}, my.device=3"),
    ],
)
def test_keywords_become_options(text: str, wanted: str) -> None:
    assert in_options(text) == wanted


def test_errors_in_pipes_are_not_broken_into_lines(tmp_path: Path) -> None:
    name = "-".join(["a long name of a file"] * 10) + ".onnx"
    done = subprocess.run([sys.executable, "-m", "rammer", "run", name], capture_output=True, text=True, cwd=tmp_path)
    assert any(name in line for line in done.stderr.splitlines())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_options_and_names(shell: str) -> None:
    assert "_RAMMER_COMPLETE" in call("completion", shell).output
    words = {"COMP_WORDS": "rammer run m.onnx --target c", "COMP_CWORD": "c" if shell == "fish" else "4"}
    environment = {**words, "_RAMMER_COMPLETE": f"{shell}_complete"}
    found = CliRunner().invoke(main, [], env=environment, prog_name="rammer").output
    assert "cpu" in found and "cuda" in found and "ipu" not in found


def test_target_lists_every_name() -> None:
    text = call("run", "--help").output
    assert all(name in text for name in PluginRegistry(third_party=False).vdevices())


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


def test_doctor_and_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    text = call("doctor").output
    assert "exports for other systems run here by" in text and "qemu-aarch64" in text
    for words in ("round_robin", "kernels=selected", "beyond=on (default)"):
        assert words in text
    assert "cpu" in text and "ready" in text and "wavefront" in text
    devices = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert {"interpreter", "cpu", "cuda", "rocm", "ipu"} <= set(devices)
    monkeypatch.setattr("rammer.vdevice.ipu.sdk.find_sdk", lambda: None)
    for driver in ("cuda", "rocm"):
        monkeypatch.setattr(f"rammer.vdevice.{driver}.driver.NODES", ())
    found = {d["name"]: d["emulated"] for d in json.loads(call("doctor", "--json").stdout)["devices"]}
    assert [name for name, emulated in found.items() if emulated] == ["cuda", "rocm", "ipu"]  # alike
    assert "kernel" in call("cache").output


def test_measured_times_get_from_cache_to_cache(tmp_path: Path) -> None:
    file = str(tmp_path / "times.json")
    assert "measured times" in call("cache", "export", file).output
    assert "0 of them new" in call("cache", "import", file).output
    refused = " ".join(call("cache", "import", str(tmp_path / "none"), code=1).output.split())
    assert "no measured times" in refused and "cache export" in refused


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


def test_a_terminal_may_lack_characters_and_a_disk_room(model: str) -> None:
    """Results are printed with other characters, or as an error of one line, and never as a traceback."""

    def run(stdout: Any, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rammer", "run", model]
        environment = {**os.environ, **environment}
        return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment)

    done = run(subprocess.PIPE, PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "4?1?16" in done.stdout, done.stderr
    with open("/dev/full", "w") as full:
        done = run(full)
    assert done.returncode == 1 and done.stderr == "error: [Errno 28] No space left on device\n"


def test_times_are_in_units_that_suit_them(model: str) -> None:
    assert [duration(us) for us in (0.17, 6.4351, 9999.0, 12345.0)] == ["0.17 µs", "6.435 µs", "9999 µs", "12.35 ms"]
    assert [size(n) for n in (0, 600, 3 << 10, 5 << 19)] == ["0 B", "600 B", "3.0 KiB", "2.5 MiB"]
    text = call("bench", model, "--seconds", "0.05", "--policies", "wavefront").output
    assert " µs" in text or " ms" in text
    for wrong in (("--seconds", "-1"), ("--operators", "-1")):
        assert "is not in the range" in call("bench", model, *wrong, code=2).output
    assert "is not in the range" in call("run", model, "--seed", "-1", code=2).output


def test_a_program_without_outputs_says_why(tmp_path: Path) -> None:
    x = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4] h) => (float[4] n) { n = Relu(h) }'
    )
    onnx.save(x, tmp_path / "m.onnx")
    call("compile", str(tmp_path / "m.onnx"), "--state", "n=h", "-o", str(tmp_path / "m.rammer"))
    assert "its outputs are all state" in call("run", str(tmp_path / "m.rammer")).output


def test_narrow_terminals_get_lines_instead_of_tables() -> None:
    """Columns too narrow for their words would show nothing of them."""
    table = Table("policy", "median", "to the first")
    table.add_row("wavefront", "12.5 µs", "1×")
    for width, wanted in (
        (60, "│ wavefront │ 12.5 µs"),
        (20, "policy wavefront\nmedian 12.5 µs\nto the first 1×"),
    ):
        console = Plain(width=width, file=io.StringIO(), force_terminal=False)
        console.print(table)
        assert wanted in console.file.getvalue()  # type: ignore[attr-defined]


def test_an_early_interrupt_is_no_traceback() -> None:
    """While modules are imported, before the command line can handle it."""
    script = (
        "import rammer.__main__ as m, sys\nclass Late:\n def find_spec(*_): raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Late)\nsys.exit(m.main())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
