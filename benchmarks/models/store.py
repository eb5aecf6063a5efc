"""Built models on disk: an ONNX file, its inputs and its reference outputs, remade when what made them changes."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

CACHE = Path(__file__).parents[1] / ".models"

Scale = Literal["full", "small", "four"]  # four layers: recurrent networks alone, as the paper's §5.3.2 has them
Arrays = dict[str, npt.NDArray[np.float32]]


class BuiltModel(NamedTuple):
    """An ONNX file with reference inputs and outputs by name."""

    path: Path
    inputs: Arrays
    outputs: Arrays


def reuse(
    name: str, made_by: dict[str, str], make: Callable[[], tuple[bytes, Arrays, Arrays]], cache: Path
) -> BuiltModel:
    """The stored model `name`, made anew unless `made_by` is what made the stored one."""
    path, mark = cache / f"{name}.onnx", cache / f"{name}.json"
    if not (mark.exists() and json.loads(mark.read_text()) == made_by):
        cache.mkdir(parents=True, exist_ok=True)
        mark.unlink(missing_ok=True)
        model, inputs, outputs = make()
        _write(path, model)
        for side, arrays in (("inputs", inputs), ("outputs", outputs)):
            with tempfile.TemporaryFile() as file:
                np.savez(file, allow_pickle=False, **arrays)
                file.seek(0)
                _write(cache / f"{name}.{side}.npz", file.read())
        _write(mark, json.dumps(made_by).encode())
    return stored(path)


def stored(path: Path) -> BuiltModel:
    """The built model whose ONNX file is `path`."""
    return BuiltModel(path, _read(path.with_suffix(".inputs.npz")), _read(path.with_suffix(".outputs.npz")))


def source_digest(files: Iterable[Path]) -> str:
    """Hash of the files' contents, which changes with any of them."""
    digest = hashlib.sha256()
    for source in sorted(files):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _read(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _write(path: Path, content: bytes) -> None:
    """Replace `path` in one step, so that a reader never sees half a file."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)
