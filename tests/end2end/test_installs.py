"""What is needed for what: a saved program takes rammer-runtime, a model of TensorFlow its extra."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from fnmatch import fnmatch
from importlib.metadata import files
from pathlib import Path
from runpy import run_path
from unittest.mock import MagicMock, patch

import numpy as np
import onnx
import pytest

import rammer
from rammer.about import COMPILER, RUNTIME, TESTING
from rammer.cli.commands import main as whole
from rammer.cli.run_only import ELSEWHERE
from rammer.errors import ModelError
from rammer_viz.demo import lstm_stack

ROOT = Path(__file__).parents[2]
with patch.dict(
    sys.modules,
    {
        f"hatchling.{name}.interface": MagicMock(BuildHookInterface=object, MetadataHookInterface=object)
        for name in ("builders.hooks.plugin", "metadata.plugin")
    },
):  # builds have it, and tests need none
    BUILD = run_path(str(ROOT / "wheels/runtime/hatch_build.py"))
files_of = BUILD["files_of"]
RUN_ONLY = """
import sys
from importlib.machinery import PathFinder
needed = {*sys.stdlib_module_names, "rammer", "numpy", "ml_dtypes", "pluggy"}
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: find(name, *rest) if name.partition(".")[0] in needed else None
"""
USE = """
import numpy as np, rammer
with rammer.load(sys.argv[1]) as program:
    print(program(np.load(sys.argv[2]))[0].sum())
    program.report(), repr(program)
for use in ("from_onnx", "compile", "Session", "Timeline", "no_such_name"):
    try:
        getattr(rammer, use)
    except (rammer.NotInstalledError, AttributeError) as error:
        print(type(error).__name__, error)
try:
    rammer.load(sys.argv[3])
except ImportError as error:
    print(error)
devices = {i.name: i for i in rammer.devices()}
print(devices["cpu"].available, devices["ipu"].hint)
"""


@pytest.fixture(scope="module")
def run_only(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script with the files of rammer-runtime and what it requires; nothing else can be imported."""
    folder = tmp_path_factory.mktemp("runtime")
    for file in files_of(RUNTIME):
        (folder / "rammer" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "rammer" / file).symlink_to(ROOT / "rammer" / file)

    def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(folder), "RAMMER_CC": "/no/compiler"}
        command = [sys.executable, "-P", "-c", RUN_ONLY + script, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    return run


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, np.ndarray]:
    """Files of a program and of its input, and what it computes."""
    folder = tmp_path_factory.mktemp("saved")
    with rammer.compile(lstm_stack(1, 3, 16), "cpu", device=2, tune_seconds=0) as program:
        program.save(folder / "p.rammer")
        x = np.ones(program.inputs[0].shape, np.float32)
        np.save(folder / "x.npy", x)
        return str(folder / "p.rammer"), str(folder / "x.npy"), np.asarray(program(x))


def test_running_a_saved_program_takes_little(
    run_only: Run, saved: tuple[str, str, np.ndarray], tmp_path: Path
) -> None:
    onnx.save(lstm_stack(1, 3, 16), tmp_path / "model")
    done = run_only(USE, *saved[:2], str(tmp_path / "model"))
    assert done.returncode == 0, done.stderr
    first, *errors = done.stdout.splitlines()
    assert float(first) == pytest.approx(float(saved[2][0].sum()), rel=1e-6)
    needs, hint = (
        "needs rammer-compiler; rammer-runtime only runs saved programs",
        "  hint: pip install rammer-compiler",
    )
    lacking = [line for place in ("compiler", "compiler", "session", "scheduler") for line in (place, hint)]
    wanted = [line if line == hint else f"NotInstalledError the module rammer.{line} {needs}" for line in lacking]
    assert errors[: len(wanted)] == wanted
    assert errors[len(wanted)].startswith("AttributeError module 'rammer' has no attribute 'no_such_name' here")
    assert errors[-3:] == [f"the module rammer.compiler {needs}", hint, "True pip install rammer-compiler"]


MAC = """
import os, sys, mmap, resource, platform
import urllib.request, numpy, onnx.backend.test  # which ask for the system themselves
for module in (os, resource, mmap):
    for name in dir(module):
        if name.startswith(("sched_", "memfd_", "pidfd_", "eventfd", "prlimit", "MAP_POPULATE", "MAP_STACK", "MADV_")):
            delattr(module, name)
sys.platform, platform.machine = "darwin", lambda: "arm64"
import rammer
from rammer_viz.demo import lstm_stack
from rammer.vdevice.cpu.host import choose_arch, host
with rammer.compile(lstm_stack(1, 3, 16), "interpreter") as program:
    print(program.report().target, choose_arch(None, host()).name, [d.name for d in rammer.devices() if d.available])
"""


def test_nothing_but_machine_code_needs_linux() -> None:
    """What macOS does is not tested there; here its lack of Linux's functions is. Other backends are not imported."""
    done = subprocess.run([sys.executable, "-c", MAC], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("interpreter aarch64-neon ['interpreter', 'cpu'"), done.stderr


def test_every_module_of_the_runtime_needs_the_runtime_alone(run_only: Run) -> None:
    """Import each of them, those for GPUs included, where nothing else is installed."""
    modules = [
        f"rammer.{f[:-3].replace('/', '.')}".removesuffix(".__init__") for f in files_of(RUNTIME) if f[-3:] == ".py"
    ]
    script = "from importlib import import_module\nfor name in sys.argv[1:]: import_module(name)\nprint('all')"
    done = run_only(script, *modules)
    assert done.stdout == "all\n" and len(modules) > 90, done.stderr


def test_the_runtime_is_small() -> None:
    """With bytecode, ml_dtypes and pluggy, and without NumPy: at most 5 MB."""
    own = sum((ROOT / "rammer" / file).stat().st_size for file in files_of(RUNTIME))
    others = [file for name in ("ml_dtypes", "pluggy") for file in files(name) or ()]
    assert 3 * own + sum(Path(file.locate()).stat().st_size for file in others if file.locate().is_file()) < 5e6  # type: ignore[attr-defined]


def test_every_file_belongs_to_one_distribution_and_every_pattern_is_used() -> None:
    both = [{*files_of(name)} for name in (RUNTIME, COMPILER)]
    on_disk = {p.relative_to(ROOT / "rammer").as_posix() for p in (ROOT / "rammer").rglob("*") if p.is_file()}
    assert both[0] | both[1] == {file for file in on_disk if "__pycache__" not in file} and not both[0] & both[1]
    for pattern in BUILD["FILES"]:
        assert any(fnmatch(file, pattern + "*" * pattern.endswith("/")) for file in both[0]), pattern
    assert {*BUILD["COMPILES"]} <= both[1]


def test_the_distributions_describe_themselves_alike() -> None:
    runtime, compiler, kit = (
        tomllib.loads((ROOT / place / "pyproject.toml").read_text())
        for place in ("wheels/runtime", ".", "tools/testing")
    )
    for project, name in ((runtime, RUNTIME), (compiler, COMPILER), (kit, TESTING)):
        assert project["project"]["name"] == name and "version" in project["project"]["dynamic"]
        assert "urls" in project["project"]["dynamic"]  # the hook's
    assert (ROOT / "wheels/runtime/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert "scripts" not in compiler["project"] and runtime["project"]["scripts"].keys() == {"rammer"}
    needed, more = (p["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"] for p in (runtime, compiler))
    assert [d.partition(">")[0] for d in needed] == ["numpy", "ml_dtypes", "pluggy"] and {*needed} <= {*more}
    extras = compiler["project"]["optional-dependencies"]
    assert {"cuda", "rocm", "torch", "tf", "distributed", "notebook"} <= extras.keys()
    for extra, packages in runtime["project"]["optional-dependencies"].items():
        assert {*packages} <= {*extras[extra]}


def test_the_command_line_of_an_install_that_only_runs(
    run_only: Run, saved: tuple[str, str, np.ndarray], tmp_path: Path
) -> None:
    """It runs saved programs, says what is not there and how to get it, and never ends in a traceback."""
    program, x, wanted = saved
    command = "import runpy; runpy.run_module('rammer', run_name='__main__')"

    def call(*arguments: str, code: int = 0) -> str:
        done = run_only(command, *arguments)
        assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    for asked in ([], ["--help"]):
        text = " ".join(call(*asked).replace("-\n", "-").split())  # argparse breaks lines
        assert (
            "one command, `run`" in text
            and all(name in text for name in ELSEWHERE)
            and "pip install rammer-compiler" in text
        )
    assert rammer.__version__ in call("--version")
    assert "policy wavefront" in call("-v", "run", program, "--input", f"x={x}", "--save", str(tmp_path / "out"))
    np.testing.assert_allclose(np.load(tmp_path / "out/0.npy"), wanted, rtol=1e-6)
    header, row, time = call("run", program, "--seed", "3").splitlines()
    assert "took" in time
    assert header.split() == ["output", "shape", "dtype", "min", "mean", "max"] and row.split()[1] == "3×1×16"
    for name in ELSEWHERE:
        text = call(name, "model.onnx", "-o", "x", "--help", code=1)
        assert f"no `rammer {name}` here" in text and "pip install rammer-compiler" in text
    for arguments, message in (
        (["model.onnx"], "compiling a model needs rammer-compiler; rammer-runtime only runs saved programs"),
        ([str(tmp_path / "none.rammer")], "none.rammer"),
        ([program, "--input", "x=none.npy"], "cannot read none.npy"),
    ):
        assert message in call("run", *arguments, code=1)
    assert "argument --input: 'x' is not NAME=VALUE" in call("run", program, "--input", "x", code=2)
    assert "unknown: --frob" in call("run", program, "--frob", code=2)
    assert set(ELSEWHERE) | {"run"} == set(whole.commands)


def keras(folder: Path, activation: str) -> tuple[np.ndarray, np.ndarray]:
    """Writes a small network in three forms; inputs and outputs."""
    pytest.importorskip("tf2onnx", reason="needs the tf extra")
    script = """
import sys, numpy as np, tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2 as frozen
folder, layers = sys.argv[1], tf.keras.layers
tf.keras.utils.set_random_seed(0)
made = [layers.Input((12, 13, 3)), layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")]
made += [layers.DepthwiseConv2D(3), layers.BatchNormalization(), layers.MaxPool2D(2), layers.Flatten()]
made += [layers.Dense(75, activation=sys.argv[2]), layers.Dense(5, activation="softmax")]
network = tf.keras.Sequential(made)
network.export(folder + "/saved")
open(folder + "/m.tflite", "wb").write(tf.lite.TFLiteConverter.from_keras_model(network).convert())
x = np.random.default_rng(0).standard_normal((1, 12, 13, 3)).astype("float32")
np.savez(folder + "/values", x=x, y=network(x))
graph = frozen(tf.function(lambda x: network(x)).get_concrete_function(tf.TensorSpec((None, 12, 13, 3)))).graph
tf.io.write_graph(graph, folder, "frozen.pb", as_text=False)
"""
    subprocess.run([sys.executable, "-c", script, str(folder), activation], check=True, capture_output=True)
    values = np.load(folder / "values.npz")
    return values["x"], values["y"]


@pytest.mark.slow
def test_models_of_tensorflow(tmp_path: Path) -> None:
    """Keras' gelu is Erfc, which tf2onnx lacks, and in a TFLite file a node of its own, which it lacks, too."""
    for activation, names in (("gelu", ("saved", "frozen.pb")), ("silu", ("saved", "m.tflite", "frozen.pb"))):
        x, y = keras(tmp_path, activation)
        for name in names:
            with rammer.Session(tmp_path / name, "cpu", device=2, tune_seconds=0) as session:
                np.testing.assert_allclose(session(x), y, rtol=1e-4, atol=1e-5)
    keras(tmp_path, "gelu")
    with pytest.raises(ModelError, match="1 unsupported operator: TFL_GELU"):
        rammer.from_tensorflow(tmp_path / "m.tflite", dims={"batch": 1})
    (tmp_path / "bad.tflite").write_bytes(b"\0\0\0\0TFL3" + bytes(64))
    with pytest.raises(ModelError, match="tf2onnx cannot convert it"):
        rammer.from_tensorflow(tmp_path / "bad.tflite")


def test_without_the_extra_a_model_of_tensorflow_is_refused_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rammer.frontend.tensorflow.find_spec", lambda name: None)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/saved_model.pb").write_bytes(b"")
    (tmp_path / "m.tflite").write_bytes(b"\x1c\0\0\0TFL3")
    (tmp_path / "m.pb").write_bytes(b"\n\x05")
    for name in ("saved", "m.tflite", "m.pb"):
        with pytest.raises(ModelError, match=r"needs the package tensorflow(.|\n)*rammer-compiler\[tf\]\'"):
            rammer.from_tensorflow(tmp_path / name)
