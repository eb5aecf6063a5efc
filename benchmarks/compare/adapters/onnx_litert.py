"""The benchmark models by LiteRT: converted from ONNX by `onnx2tf`, which may have an environment of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx

from benchmarks.models.store import CACHE, Arrays
from rammer.errors import RammerError

FOLDER = CACHE / "compiled"


def package(model: Path, inputs: Sequence[str]) -> Path:
    """Return LiteRT's file of a model, whose inputs keep their shapes. Raises RammerError with the converter's reason.

    TensorFlow puts channels last: the file begins and ends with transposes of images.
    """
    path = FOLDER / f"{model.stem}-{hashlib.sha256(model.read_bytes()).hexdigest()[:16]}.tflite"
    if path.exists():
        return path
    converter = shutil.which("onnx2tf")
    if converter is None:
        raise RammerError("no onnx2tf on the path", hint="pip install onnx2tf tensorflow tf-keras, and add it to PATH")
    part = FOLDER / f"{os.getpid()}-{path.stem}"
    command = (converter, "-i", str(model), "-o", str(part), "-kat", *inputs, "-coion", "-n")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    made = [*part.glob("*_float32.tflite")] if done.returncode == 0 else []
    if made:
        made[0].replace(path)
    shutil.rmtree(part, ignore_errors=True)
    if not made:
        said = " ".join((done.stdout + done.stderr).split())
        raise RammerError(f"onnx2tf cannot convert {model.name}: {said[-200:]}")
    return path


def runner(converted: Path, model: Path, threads: int) -> Callable[[Arrays], Arrays]:
    """Return a runner on `threads` threads; arrays go in and come out as NumPy has them, by the ONNX file's names.

    The converter moves dimensions of one in results, which are in the ONNX file's order. Raises RammerError for a
    result whose other dimensions it has moved.
    """
    from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-untyped, import-not-found, unused-ignore]

    interpreter = Interpreter(str(converted), num_threads=threads)
    interpreter.allocate_tensors()
    given = {d["name"]: d["index"] for d in interpreter.get_input_details()}
    outputs = {}
    for port, found in zip(onnx.load(model).graph.output, interpreter.get_output_details(), strict=True):
        shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
        if [e for e in shape if e > 1] != [e for e in found["shape"].tolist() if e > 1]:
            raise RammerError(f"LiteRT's result {port.name!r} is {found['shape'].tolist()}, not {shape}")
        outputs[port.name] = found["index"], shape

    def run(values: Arrays) -> Arrays:
        for name, value in values.items():
            interpreter.set_tensor(given[name], value)
        interpreter.invoke()
        return {name: np.reshape(interpreter.get_tensor(n), shape) for name, (n, shape) in outputs.items()}

    return run
