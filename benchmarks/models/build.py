"""Build a benchmark model once: the ONNX file, an input and torch's output, cached on disk."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import torch

from benchmarks.models import alexnet, nasnet, resnext, rnn
from benchmarks.models.spec import ModelSpec, Scale
from rammer.errors import RammerError, did_you_mean

CACHE = Path(__file__).parent.parent / ".models"

Arrays = dict[str, npt.NDArray[np.float32]]

CATALOG: dict[str, ModelSpec] = {
    spec.name: spec for spec in (*resnext.MODELS, *nasnet.MODELS, *alexnet.MODELS, *rnn.MODELS)
}


class BuiltModel(NamedTuple):
    """An ONNX file with reference inputs and torch's outputs by name."""

    path: Path
    inputs: Arrays
    outputs: Arrays


def find(name: str) -> ModelSpec:
    """The model's spec; raises RammerError for an unknown name."""
    if name not in CATALOG:
        hint = did_you_mean(name, CATALOG) or f"known: {', '.join(CATALOG)}"
        raise RammerError(f"no benchmark model named {name!r}", hint=hint)
    return CATALOG[name]


def build(name: str, batch: int = 1, scale: Scale = "full", cache: Path = CACHE) -> BuiltModel:
    """Make or reuse `name` at `batch`; a change of the model's source or of torch makes it anew."""
    spec = find(name)
    stem = cache / f"{name}_b{batch}_{scale}"
    path, arrays, mark = stem.with_suffix(".onnx"), stem.with_suffix(".npz"), stem.with_suffix(".json")
    made_by = {"source": _source_digest(), "torch": torch.__version__}
    if not (mark.exists() and json.loads(mark.read_text()) == made_by):
        cache.mkdir(parents=True, exist_ok=True)
        module = spec.build_module(scale)
        example = spec.example_input(scale, batch)
        with torch.no_grad():
            output = module(example)
        model = spec.to_onnx(module, example)
        _check_signature(model)
        mark.unlink(missing_ok=True)
        _write(path, model.SerializeToString())
        with tempfile.TemporaryFile() as file:
            np.savez(file, input=example.numpy(), output=output.numpy())
            file.seek(0)
            _write(arrays, file.read())
        _write(mark, json.dumps(made_by).encode())
    with np.load(arrays) as stored:
        return BuiltModel(path, {"input": stored["input"]}, {"output": stored["output"]})


def _check_signature(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model)
    names = [value.name for value in (*model.graph.input, *model.graph.output)]
    assert names == ["input", "output"], names


def _source_digest() -> str:
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _write(path: Path, content: bytes) -> None:
    """Replace `path` in one step, so that a reader never sees half a file."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.replace(temporary, path)
