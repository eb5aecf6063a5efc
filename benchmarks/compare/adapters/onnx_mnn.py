"""The benchmark models by MNN: converted from ONNX, kept on disk."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from benchmarks.models.store import CACHE, Arrays
from rammer.errors import RammerError

FOLDER = CACHE / "compiled"


def package(model: Path) -> Path:
    """Return MNN's file of a model. Raises RammerError with the converter's reason."""
    made_by = hashlib.sha256(model.read_bytes() + metadata.version("MNN").encode()).hexdigest()[:16]
    path = FOLDER / f"{model.stem}-{made_by}.mnn"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{os.getpid()}-{path.name}")
        files = ("--modelFile", str(model), "--MNNModel", str(part))
        command = (str(Path(sys.executable).with_name("mnnconvert")), "-f", "ONNX", *files, "--bizCode", "rammer")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not part.exists():  # it ends with 0 where it does not know an operator
            said = " ".join((done.stdout + done.stderr).split())
            raise RammerError(f"mnnconvert cannot convert {model.name}: {said[-200:]}")
        part.replace(path)
    return path


def runner(module: Path, inputs: Arrays, outputs: Sequence[str], threads: int) -> Callable[[Arrays], Arrays]:
    """Return a runner on `threads` threads, held to float32; arrays go in and come out as NumPy has them."""
    from MNN import expr, nn  # type: ignore[import-untyped, import-not-found, unused-ignore]

    config = {"backend": "CPU", "precision": "high", "numThread": threads}
    manager = nn.create_runtime_manager((config,))
    network = nn.load_module_from_file(str(module), list(inputs), list(outputs), runtime_manager=manager)

    def run(values: Arrays) -> Arrays:
        given = [expr.const(a, list(a.shape), expr.NCHW, _kind(expr, a)) for a in values.values()]
        results = network.onForward(given)
        return {name: np.array(result.read()) for name, result in zip(outputs, results, strict=True)}

    return run


def _kind(expr: object, array: np.ndarray) -> object:
    """Return MNN's name of an element type. Raises RammerError if it has none."""
    names = {np.dtype("f4"): "float", np.dtype("i4"): "int", np.dtype("i8"): "int64", np.dtype("u1"): "uint8"}
    if array.dtype not in names:
        raise RammerError(f"MNN takes no {array.dtype}")
    return getattr(expr, names[array.dtype])
