"""Convert TensorFlow models (SavedModels, frozen graphs, TFLite files) to ONNX with tf2onnx, in a child process.

TensorFlow takes seconds to import, prints much, and keeps its memory. All of this ends with the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rammer import files
from rammer.errors import ModelError, installing

TIMEOUT_S = 1800
MAX_WORDS = 2000  # characters of a failed conversion's output
_NODE = b"\n"  # a GraphDef begins with its first node; a ModelProto with a number


def kind_of(path: str) -> str:
    """Return TensorFlow's form of a file or folder: "saved_model", "tflite", "graphdef", or "" for none."""
    if os.path.isdir(path):
        return "saved_model" if os.path.isfile(os.path.join(path, "saved_model.pb")) else ""
    begin = files.first_bytes(path, 8)
    if begin[4:] == b"TFL3":
        return "tflite"
    return "graphdef" if path.endswith(".pb") and begin[:1] == _NODE else ""


def to_onnx(path: str, kind: str) -> bytes:
    """Return the model as serialized ONNX. Raises ModelError with tf2onnx's own message."""
    if missing := [name for name in ("tensorflow", "tf2onnx") if find_spec(name) is None]:
        raise ModelError(f"a model of TensorFlow needs the package {missing[0]}", path=path, hint=installing("tf"))
    with files.temporary_folder("tf", ModelError) as folder:
        made = folder / "model.onnx"
        command = [sys.executable, "-m", __name__, kind, os.path.abspath(path), str(made)]
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        try:
            done = subprocess.run(
                command, capture_output=True, stdin=subprocess.DEVNULL, env=environment, timeout=TIMEOUT_S, cwd=folder
            )
        except subprocess.TimeoutExpired:
            raise ModelError(f"tf2onnx took over {TIMEOUT_S} s", path=path) from None
        if done.returncode or not made.is_file():
            words = done.stderr.decode(errors="replace").strip()[-MAX_WORDS:]
            raise ModelError(
                f"tf2onnx cannot convert it:\n{words}", path=path, hint=f"python -m tf2onnx.convert --{kind} shows more"
            )
        return made.read_bytes()


def _convert(kind: str, path: str, made: str) -> None:
    """Convert a model. Runs in the child process."""
    import tensorflow
    import tf2onnx.convert

    tf2onnx.handler.tf_op("Erfc")(_Erfc)
    if kind == "tflite":
        tf2onnx.convert.from_tflite(path, output_path=made)
        return
    command = ["convert", "--output", made, f"--{kind.replace('_', '-')}", path]
    if kind == "graphdef":
        graph = tensorflow.compat.v1.GraphDef.FromString(Path(path).read_bytes())
        for option, names in zip(("--inputs", "--outputs"), _ends(graph), strict=True):
            command += [option, ",".join(f"{name}:0" for name in names)]
    sys.argv = command
    tf2onnx.convert.main()


class _Erfc:
    """A tf2onnx handler for Erfc, as 1 - Erf. Keras' gelu uses it, and tf2onnx 1.17 has none."""

    @classmethod
    def version_9(cls, graph: Any, node: Any, **_: Any) -> None:
        import tf2onnx

        dtype = tf2onnx.utils.map_onnx_to_numpy_type(graph.get_dtype(node.input[0]))
        made = {"name": node.name, "outputs": node.output, "shapes": node.output_shapes, "dtypes": node.output_dtypes}
        graph.remove_node(node.name)
        one = graph.make_const(tf2onnx.utils.make_name("one"), np.ones((), dtype))
        erf = graph.make_node("Erf", node.input)
        graph.make_node("Sub", [one.output[0], erf.output[0]], **made)


def _ends(graph: Any) -> tuple[list[str], list[str]]:
    """Return the placeholders of a graph, and the nodes that no other node reads."""
    read = {name.lstrip("^").partition(":")[0] for node in graph.node for name in node.input}
    given = [node.name for node in graph.node if node.op in ("Placeholder", "PlaceholderWithDefault")]
    return given, [node.name for node in graph.node if node.name not in read and node.op not in ("NoOp", "Assert")]


if __name__ == "__main__":
    _convert(*sys.argv[1:])
