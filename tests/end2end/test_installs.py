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
from rammer.demo import lstm_stack
from rammer.errors import ModelError

ROOT = Path(__file__).parents[2]
RUN_ONLY = """
import sys
from importlib.machinery import PathFinder
needed = {*sys.stdlib_module_names, "rammer", "numpy", "ml_dtypes", "pluggy"}
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: find(name, *rest) if name.partition(".")[0] in needed else None
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


def test_running_a_saved_program_takes_little(tmp_path: Path) -> None:
    """As the wheel rammer-run has it; whatever else is installed cannot be imported."""
    x = np.ones((1, 3, 16), np.float32)
    with rammer.compile(lstm_stack(1, 3, 16), "cpu", device=2, tune_seconds=0) as program:
        program.save(tmp_path / "p.rammer")
        x = np.ones(program.inputs[0].shape, np.float32)
        wanted = program(x)
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-c", RUN_ONLY, str(tmp_path / "p.rammer"), str(tmp_path / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    first, *errors = done.stdout.splitlines()
    assert float(first) == pytest.approx(float(np.asarray(wanted)[0].sum()), rel=1e-6)
    assert errors == 3 * [
        "compiling a model needs the package onnx, which is not installed",
        "  hint: pip install rammer; rammer-run only runs saved programs",
    ]


def test_the_wheel_that_only_runs_is_of_this_version() -> None:
    run, whole = (tomllib.loads((ROOT / p / "pyproject.toml").read_text())["project"] for p in ("wheels/run", "."))
    assert run["version"] == whole["version"] == rammer.__version__
    assert {d.partition(">")[0] for d in run["dependencies"]} == {"numpy", "ml_dtypes", "pluggy"}
    assert set(run["dependencies"]) <= set(whole["dependencies"])


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
        with pytest.raises(ModelError, match=r"needs the package tensorflow(.|\n)*rammer\[tf\]"):
            rammer.load(tmp_path / name)
