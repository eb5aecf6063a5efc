"""The benchmark models by IREE: imported from ONNX, compiled for this machine's CPU, kept on disk."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from benchmarks.models.store import CACHE, Arrays
from rammer.errors import RammerError, installing

FOLDER = CACHE / "compiled"
COMPILE = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-opt-level=O3",
)
# Convolutions as ONNX has them, with channels last, or as products of unfolded images: IREE does not choose by itself.
AS_GIVEN, CHANNELS_LAST, UNFOLDED = "", "channels last", "unfolded"
LAST, UNFOLD = "iree-preprocessing-convert-conv-to-channels-last", "iree-global-opt-convert-conv2d-to-img2col"
FORMS: dict[str, Sequence[str]] = {AS_GIVEN: (), CHANNELS_LAST: (LAST,), UNFOLDED: (LAST, UNFOLD)}


def package(model: Path, form: str) -> tuple[Path, float | None]:
    """IREE's module of a model in one of `FORMS`, and the seconds it took to make if it had to be made.

    Raises RammerError with the compiler's reason.
    """
    passes = FORMS[form]
    made_by = model.with_suffix(".json").read_text() + metadata.version("iree-base-compiler") + str((COMPILE, passes))
    path = FOLDER / f"{model.stem}-{hashlib.sha256(made_by.encode()).hexdigest()[:16]}.vmfb"
    if path.exists():
        return path, None
    FOLDER.mkdir(parents=True, exist_ok=True)
    start, part = time.perf_counter(), path.with_name(f"{os.getpid()}-{path.name}")
    imported = part.with_suffix(".mlir")
    first = [f"--iree-preprocessing-pass-pipeline=builtin.module(util.func({','.join(passes)}))"] if passes else []
    try:
        _tool("iree-import-onnx", model, "-o", imported)
        _tool("iree-compile", imported, "-o", part, *COMPILE, *first)
        part.replace(path)
    finally:
        for file in (part, imported):
            file.unlink(missing_ok=True)
    return path, time.perf_counter() - start


def runner(module: Path, outputs: Sequence[str], threads: int) -> Callable[[Arrays], Arrays]:
    """A runner of a compiled module on `threads` threads; arrays go in and come out as NumPy has them."""
    from iree import runtime

    runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
    config = runtime.Config("local-task")
    bound = runtime.load_vm_module(runtime.VmModule.mmap(config.vm_instance, str(module)), config)
    (name,) = (n for n in bound.vm_module.function_names if not n.startswith("__") and not n.endswith("$async"))
    call = bound[name]

    def run(inputs: Arrays) -> Arrays:
        found = call(*inputs.values())
        values = found if isinstance(found, tuple | list) else (found,)
        return dict(zip(outputs, (np.asarray(value.to_host()) for value in values), strict=True))

    return run


def _tool(name: str, *words: object) -> None:
    command = [str(Path(sys.executable).with_name(name)), *map(str, words)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise RammerError(f"{name} is not installed", hint=installing("bench")) from error
    if done.returncode:
        raise RammerError(f"{name} failed ({done.returncode}): {done.stderr.strip()[-400:]}")
