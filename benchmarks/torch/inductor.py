"""torch modules compiled ahead of time by Inductor: max-autotune and freezing, kept on disk.

The same generated code as `torch.compile(mode="max-autotune")` with less around it, and it is loaded in a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from benchmarks.models.store import CACHE

FOLDER = CACHE / "compiled"
SETTINGS = {"max_autotune": True, "freezing": True}


def package(model: Path, module: nn.Module, *example: torch.Tensor) -> tuple[Path, float | None]:
    """The package of a built model's module, and the seconds it took to make if it had to be made."""
    made_by = model.with_suffix(".json").read_text() + torch.__version__ + str(SETTINGS)
    path = FOLDER / f"{model.stem}-{hashlib.sha256(made_by.encode()).hexdigest()[:16]}.pt2"
    if path.exists():
        return path, None
    FOLDER.mkdir(parents=True, exist_ok=True)
    start, part = time.perf_counter(), path.with_name(f"{os.getpid()}-{path.name}")
    try:
        with torch.no_grad(), contextlib.redirect_stdout(sys.stderr):
            program = torch.export.export(module, example)
            torch._inductor.aoti_compile_and_package(program, package_path=str(part), inductor_configs=SETTINGS)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path, time.perf_counter() - start
