"""Export a network of PyTorch, and keep the inputs that it was exported with."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import onnx
import torch

from benchmarks.families.__main__ import Made


def exported(network: torch.nn.Module, example: tuple[Any, ...], names: tuple[str, ...], opset: int = 17) -> Made:
    """Return a network as torch.onnx.export writes it."""
    file = BytesIO()
    with torch.no_grad():
        torch.onnx.export(network.eval(), example, file, input_names=list(names), opset_version=opset, dynamo=False)
    values = {name: np.asarray(value) for name, value in zip(names, example, strict=True)}
    return onnx.load_model_from_string(file.getvalue()), values
