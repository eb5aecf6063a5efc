"""Build a benchmark model once: the ONNX file, inputs and torch's outputs, cached on disk."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch

from benchmarks.models import alexnet, batched, fold, nasnet, recorder, resnext, rnn, spec
from benchmarks.models.spec import ModelSpec
from benchmarks.models.store import CACHE, Arrays, BuiltModel, Scale, reuse, source_digest
from benchmarks.models.today import blocks, dense, model, sequence, speech, text, vision, voice
from rammer.errors import RammerError, did_you_mean

PAPER_FAMILIES = (resnext, nasnet, alexnet, rnn)
TODAY_FAMILIES = (speech, voice, vision, dense, text, sequence)

PAPER: dict[str, ModelSpec] = {model.name: model for family in PAPER_FAMILIES for model in family.MODELS}
TODAY: dict[str, ModelSpec] = {model.name: model for family in TODAY_FAMILIES for model in family.MODELS}
GRAPHTURBO: dict[str, ModelSpec] = {model.name: model for model in batched.MODELS}
CATALOG = PAPER | TODAY | GRAPHTURBO

SHARED = [Path(str(module.__file__)) for module in (spec, fold, recorder, blocks, model)]
FAMILIES = (*PAPER_FAMILIES, *TODAY_FAMILIES, batched)
HOME = {model.name: Path(str(family.__file__)) for family in FAMILIES for model in family.MODELS}


def find(name: str) -> ModelSpec:
    """The model's spec; raises RammerError for an unknown name."""
    if name not in CATALOG:
        hint = did_you_mean(name, CATALOG) or f"known: {', '.join(CATALOG)}"
        raise RammerError(f"no benchmark model named {name!r}", hint=hint)
    return CATALOG[name]


def build(name: str, batch: int = 1, scale: Scale = "full", cache: Path = CACHE) -> BuiltModel:
    """Make or reuse `name` at `batch`; a change of the models' source or of torch makes it anew."""
    wanted = find(name)

    def make() -> tuple[bytes, Arrays, Arrays]:
        module = wanted.build_module(scale)
        example = wanted.example_inputs(scale, batch)
        found = module(*example.values())
        tensors = (found,) if isinstance(found, torch.Tensor) else found
        exported = wanted.to_onnx(module, example)
        onnx.checker.check_model(exported)
        names = [value.name for value in exported.graph.output]
        inputs = {name: value.numpy() for name, value in example.items()}
        return exported.SerializeToString(), inputs, dict(zip(names, (t.numpy() for t in tensors), strict=True))

    made_by = {"source": source_digest([HOME[name], *SHARED]), "torch": torch.__version__}
    return reuse(f"{name}_b{batch}_{scale}", made_by, make, cache)
