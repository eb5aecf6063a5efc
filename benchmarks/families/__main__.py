"""Write models of families to a folder: `python -m benchmarks.families FOLDER --only sklearn`.

Each model is FAMILY/NAME/model.onnx with test_data_set_0/input_N.pb, as in ONNX's own test data. A family needs its
packages: scikit-learn and skl2onnx; xgboost, lightgbm and onnxmltools; transformers; timm; torchvision. A model whose
exporter fails is named and left out; `--json FILE` writes these, in the form of `onnx_suite --models --json`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

SIZED = ("timm", "transformers")  # families that come in ordinary sizes, too
FAMILIES = ("sklearn", "boosted", "optimized", "torchvision", "timm", "transformers")
LARGEST = 2**30  # bytes of weights in a model's file; more are beside it, since a file has at most 2 GiB
UNMADE = "not exported"
Made = tuple[onnx.ModelProto, Mapping[str, Any]]  # a model, and arrays by input


def write(folder: Path, made: Made) -> None:
    """Write a model and its inputs."""
    model, inputs = made
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    size = sum(len(t.raw_data) for t in model.graph.initializer)
    onnx.save(model, folder / "model.onnx", save_as_external_data=size > LARGEST, location="model.data")
    known = {t.name for t in model.graph.initializer}
    for number, port in enumerate(v for v in model.graph.input if v.name not in known):
        tensor = numpy_helper.from_array(np.asarray(inputs[port.name]), port.name)
        (data / f"input_{number}.pb").write_bytes(tensor.SerializeToString())


def make(
    family: str, models: Iterable[tuple[str, Callable[[], Made]]], folder: Path, only: str
) -> tuple[int, list[dict[str, Any]]]:
    """Write the models of a family. Return how many were made, and results of those whose exporters failed."""
    made, failed = 0, []
    for name, build in models:
        place = folder / family / name
        if not re.search(only, name) or (place / "model.onnx").exists():
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                write(place, build())
            made += 1
        except Exception as error:  # exporters raise anything
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            failed.append({"name": f"{place}/model.onnx", "family": family, "outcome": UNMADE, "reason": reason})
            print(f"{family}/{name}: {reason}", flush=True)
    return made, failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=FAMILIES, choices=FAMILIES, help="families")
    parser.add_argument("--models", default="", help="models whose name has this regular expression in it")
    parser.add_argument("--ordinary", action="store_true", help=f"sizes of use, not of tests: {', '.join(SIZED)}")
    parser.add_argument("--json", type=Path, help="write what exporters refused here")
    given = parser.parse_args(arguments)
    refused = []
    for family in given.only:
        try:
            module = importlib.import_module(f"benchmarks.families.{family}_models")
        except ImportError as error:
            print(f"{family}: {error}")
            continue
        models = module.models(given.ordinary) if family in SIZED else module.models()
        made, failed = make(family, models, given.folder, given.models)
        print(f"{family}: {made} made, {len(failed)} exporters failed", flush=True)
        refused += failed
    if given.json:
        given.json.write_text(json.dumps({"results": refused}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
