"""Run models in ONNX Runtime, quietly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx import ModelProto


def open_runtime(model: ModelProto | Path, *, plain: bool = False) -> Any:
    """Open a session of ONNX Runtime on the CPU. `plain`: on one thread, operator by operator."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # Otherwise its optimizer leaves sums of bytes in 16 bits, which saturate, on CPUs without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_runtime(model: ModelProto | Path, inputs: Mapping[str, Any], *, plain: bool = False) -> list[Any]:
    """Return a model's outputs in ONNX Runtime. It raises exceptions of many kinds."""
    return list(open_runtime(model, plain=plain).run(None, dict(inputs)))
