"""Export a network of PyTorch, and keep the inputs that it was exported with."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch

from benchmarks.families.__main__ import Made


def exported(network: torch.nn.Module, example: tuple[Any, ...], names: tuple[str, ...]) -> Made:
    """Return a network as torch.onnx.export writes it, by the older exporter, or by the newer where that fails."""
    with torch.no_grad(), TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")  # large weights are beside it
        try:
            torch.onnx.export(network.eval(), example, file, input_names=list(names), opset_version=17, dynamo=False)
            model = onnx.load(file)
        except Exception as older:  # they raise anything
            try:
                program = torch.onnx.export(network, example, input_names=list(names), dynamo=True, verbose=False)
            except Exception:  # which says less of why
                raise older from None
            assert program is not None
            model = program.model_proto
    plain = (value[0] if isinstance(value, list) else value for value in example)  # of a list of one image
    values = {name: np.asarray(value) for name, value in zip(names, plain, strict=True)}
    return model, values
