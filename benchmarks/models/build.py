"""Build a benchmark model once: the ONNX file, an input and torch's output, cached on disk."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch

from benchmarks.models import alexnet, nasnet, resnext, rnn
from benchmarks.models.spec import ModelSpec
from benchmarks.store import CACHE, Arrays, BuiltModel, Scale, reuse, source_digest
from rammer.errors import RammerError, did_you_mean

CATALOG: dict[str, ModelSpec] = {
    spec.name: spec for spec in (*resnext.MODELS, *nasnet.MODELS, *alexnet.MODELS, *rnn.MODELS)
}


def find(name: str) -> ModelSpec:
    """The model's spec; raises RammerError for an unknown name."""
    if name not in CATALOG:
        hint = did_you_mean(name, CATALOG) or f"known: {', '.join(CATALOG)}"
        raise RammerError(f"no benchmark model named {name!r}", hint=hint)
    return CATALOG[name]


def build(name: str, batch: int = 1, scale: Scale = "full", cache: Path = CACHE) -> BuiltModel:
    """Make or reuse `name` at `batch`; a change of the models' source or of torch makes it anew."""
    spec = find(name)

    def make() -> tuple[bytes, Arrays, Arrays]:
        module = spec.build_module(scale)
        example = spec.example_input(scale, batch)
        output = module(example)
        model = spec.to_onnx(module, example)
        onnx.checker.check_model(model)
        return model.SerializeToString(), {"input": example.numpy()}, {"output": output.numpy()}

    made_by = {"source": source_digest(Path(__file__).parent.glob("*.py")), "torch": torch.__version__}
    return reuse(f"{name}_b{batch}_{scale}", made_by, make, cache)
