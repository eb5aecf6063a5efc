"""Read kernels of the Rammer artifact's database (NNFusion's `kernel_db`) as records.

An entry has `tvm_func_name`, `op_type`, `parameters`, `code`, `gridDim`, `blockDim`. The roles of parameters, tiles
and syncs follow from the operator, or from verification. Everything is float32.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rammer.errors import ArtifactError, RammerError
from rammer_legacy_kernels.record import SCHEMA, Record, from_json, parse_record, read_text

MAX_FILE = 64 << 20
MAX_ENTRIES = 1024


def read_any(path: str | Path) -> tuple[list[Record], list[RammerError]]:
    """Return the record of a file; or the kernels of a file of the artifact, and the errors of refused ones.

    Raises ArtifactError, LoweringError if the whole record or file is refused.
    """
    path = Path(path)
    text = read_text(path, MAX_FILE)
    if '"schema"' in text:
        return [parse_record(text, folder=path.parent)], []
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is no JSON: {error}", hint="docs/kernels.md describes records") from None
    entries = data if isinstance(data, list) else [data]
    if not entries or len(entries) > MAX_ENTRIES:
        raise ArtifactError(f"{path} has {len(entries)} kernels; 1 to {MAX_ENTRIES} are read")
    records: list[Record] = []
    refused: list[RammerError] = []
    for n, entry in enumerate(entries):
        try:
            records.append(_record(entry, n))
        except RammerError as error:
            error.add_note(f"kernel {n} of {path}")
            refused.append(error)
    if not records:
        raise refused[0]
    return records, refused


def _record(entry: Any, number: int) -> Record:
    if not isinstance(entry, dict) or not isinstance(entry.get("parameters"), dict) or "op_type" not in entry:
        raise ArtifactError(f"kernel {number} has no 'schema', and is no entry of the artifact's database")
    kind, parameters = str(entry["op_type"]), entry["parameters"]
    makers = {
        "Dot": _dot,
        "Convolution": _convolution,
        "Fused_Convolution_Relu": _relu,
        "Fused_Convolution_Add_Relu": _add_relu,
    }
    if kind not in makers:
        raise ArtifactError(
            f"kernel {number}: op_type {kind[:80]!r} does not say what it computes", hint=f"known: {', '.join(makers)}"
        )
    operator, inputs, output = makers[kind](parameters)
    digest = hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:10]
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", str(entry.get("tvm_func_name", ""))).strip("_.-")
    name = f"{name[:52] or kind}_{digest}"
    record = from_json(
        {
            "schema": SCHEMA,
            "name": name,
            "operator": operator,
            "inputs": [{"dtype": "float32", "shape": shape} for shape in inputs],
            "grid": entry.get("gridDim"),
            "block": entry.get("blockDim"),
            "arguments": ["input0", "input1", "output0", *(f"input{n}" for n in range(2, len(inputs)))],
            "source": entry.get("code"),
            "origin": "kernel_db of the Rammer artifact (NNFusion)",
        }
    )
    if list(record.operation.outputs[0].shape) != output:
        raise ArtifactError(f"kernel {name!r}: its output is {record.operation.outputs[0]}, not of shape {output}")
    return record


_Parts = tuple[list[dict[str, Any]], list[Any], Any]


def _dot(p: Mapping[str, Any]) -> _Parts:
    """Return a product's operator and shapes: shapes are given before transposition, memory is transposed."""
    attrs = {"trans_a": bool(p.get("transpose_A", False)), "trans_b": bool(p.get("transpose_B", False))}
    operator = {"kind": "matmul", "attrs": attrs, "inputs": ["input0", "input1"]}
    shapes = (p.get("arg0_shape"), p.get("arg1_shape"))
    inputs = [
        s[::-1] if transposed and isinstance(s, list) else s
        for s, transposed in zip(shapes, attrs.values(), strict=True)
    ]
    return [operator], inputs, p.get("out_shape")


def _convolution(p: Mapping[str, Any]) -> _Parts:
    below = p.get("padding_below_diff")
    attrs = {
        "strides": p.get("window_movement_strides"),
        "dilations": p.get("window_dilation_strides"),
        "pads": [*below, *below] if isinstance(below, Sequence) else below,
        "group": 1,
    }
    operator = {"kind": "conv", "attrs": attrs, "inputs": ["input0", "input1"]}
    return [operator], [p.get("input_shape"), p.get("filter_shape")], p.get("output_shape")


def _relu(p: Mapping[str, Any]) -> _Parts:
    operator, inputs, output = _convolution(p)
    return [*operator, {"kind": "relu", "inputs": ["step0"]}], inputs, output


def _add_relu(p: Mapping[str, Any]) -> _Parts:
    """Add a bias: one number per channel, the parameter behind the output."""
    operator, inputs, output = _relu(p)
    operator[0]["inputs"].append("input2")
    channels = output[1:2] if isinstance(output, Sequence) else output
    return operator, [*inputs, channels], output
