"""What is needed for what: a saved program takes NumPy, ml_dtypes and pluggy, a model of TensorFlow its extra."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import rammer
from rammer.cli.commands import main as whole
from rammer.cli.run_only import ELSEWHERE
from rammer.errors import ModelError
from rammer.tools.demo import lstm_stack

ROOT = Path(__file__).parents[2]
RUN_ONLY = """
import sys
from importlib.machinery import PathFinder
needed = {*sys.stdlib_module_names, "rammer", "numpy", "ml_dtypes", "pluggy"}
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: find(name, *rest) if name.partition(".")[0] in needed else None
"""
USE = """
import numpy as np, rammer
with rammer.load_program(sys.argv[1]) as program:
    print(program(np.load(sys.argv[2]))[0].sum())
    program.report(), repr(program)
for use in (rammer.load, rammer.compile, rammer.Session):
    try:
        use("model.onnx")
    except rammer.RammerError as error:
        print(error)
"""


def run_only(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script where there is what the wheel rammer-run brings; whatever else is installed cannot be imported."""
    command = [sys.executable, "-c", RUN_ONLY + script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, np.ndarray]:
    """Files of a program and of its input, and what it computes."""
    folder = tmp_path_factory.mktemp("saved")
    with rammer.compile(lstm_stack(1, 3, 16), "cpu", device=2, tune_seconds=0) as program:
        program.save(folder / "p.rammer")
        x = np.ones(program.inputs[0].shape, np.float32)
        np.save(folder / "x.npy", x)
        return str(folder / "p.rammer"), str(folder / "x.npy"), np.asarray(program(x))


def test_running_a_saved_program_takes_little(saved: tuple[str, str, np.ndarray]) -> None:
    done = run_only(USE, *saved[:2])
    assert done.returncode == 0, done.stderr
    first, *errors = done.stdout.splitlines()
    assert float(first) == pytest.approx(float(saved[2][0].sum()), rel=1e-6)
    assert errors == 3 * [
        "compiling a model needs the package onnx, which is not installed",
        "  hint: pip install . in a checkout of rammer; rammer-run only runs saved programs",
    ]


def test_the_command_line_of_an_install_that_only_runs(saved: tuple[str, str, np.ndarray], tmp_path: Path) -> None:
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
            and "pip install . in a checkout" in text
        )
    assert rammer.__version__ in call("--version")
    assert "policy wavefront" in call("-v", "run", program, "--input", f"x={x}", "--save", str(tmp_path / "out"))
    np.testing.assert_allclose(np.load(tmp_path / "out/0.npy"), wanted, rtol=1e-6)
    header, row, time = call("run", program, "--seed", "3").splitlines()
    assert "took" in time
    assert header.split() == ["output", "shape", "dtype", "min", "mean", "max"] and row.split()[1] == "3×1×16"
    for name in ELSEWHERE:
        text = call(name, "model.onnx", "-o", "x", "--help", code=1)
        assert f"no `rammer {name}` here" in text and "pip install . in a checkout" in text
    for arguments, message in (
        (["model.onnx"], "compiling a model needs the package onnx, which is not installed"),
        ([str(tmp_path / "none.rammer")], "none.rammer"),
        ([program, "--input", "x=none.npy"], "cannot read none.npy"),
    ):
        assert message in call("run", *arguments, code=1)
    assert "argument --input: 'x' is not NAME=VALUE" in call("run", program, "--input", "x", code=2)
    assert "unknown: --frob" in call("run", program, "--frob", code=2)
    assert set(ELSEWHERE) | {"run"} == set(whole.commands)


def test_the_wheel_that_only_runs_is_of_this_version() -> None:
    run, complete = (tomllib.loads((ROOT / p / "pyproject.toml").read_text())["project"] for p in ("wheels/run", "."))
    assert run["version"] == complete["version"] == rammer.__version__
    assert {d.partition(">")[0] for d in run["dependencies"]} == {"numpy", "ml_dtypes", "pluggy"}
    assert set(run["dependencies"]) <= set(complete["dependencies"]) and run["scripts"] == complete["scripts"]


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
        rammer.load(tmp_path / "m.tflite", dims={"batch": 1})
    (tmp_path / "bad.tflite").write_bytes(b"\0\0\0\0TFL3" + bytes(64))
    with pytest.raises(ModelError, match="tf2onnx cannot convert it"):
        rammer.load(tmp_path / "bad.tflite")


def test_without_the_extra_a_model_of_tensorflow_is_refused_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rammer.frontend.tensorflow.find_spec", lambda name: None)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/saved_model.pb").write_bytes(b"")
    (tmp_path / "m.tflite").write_bytes(b"\x1c\0\0\0TFL3")
    (tmp_path / "m.pb").write_bytes(b"\n\x05")
    for name in ("saved", "m.tflite", "m.pb"):
        with pytest.raises(ModelError, match=r"needs the package tensorflow(.|\n)*\.\[tf\]' in a checkout"):
            rammer.load(tmp_path / name)
