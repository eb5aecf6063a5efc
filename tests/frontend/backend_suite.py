"""Runs the ONNX backend suite through any executor of graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

from rammer.errors import ModelError
from rammer.frontend.onnx import load
from rammer.frontend.onnx.node import NotConstant
from rammer.frontend.onnx.signature import NEWEST_OPSET
from rammer.frontend.onnx.tensors import ELEMENT_TYPES
from rammer.ir.graph import Graph
from rammer.ir.tensor import Array

Execute: TypeAlias = Callable[[Graph, Mapping[str, Array]], Mapping[str, Array]]
KINDS = ("node", "pytorch-converted", "pytorch-operator", "simple")
_TIER_1 = """
    Add Sub Mul Div Neg Abs Sqrt Pow Exp Log Erf Tanh Sigmoid Relu Clip Min Max Sum Reciprocal LeakyRelu
    Conv MaxPool AveragePool GlobalAveragePool BatchNormalization LRN Gemm MatMul Softmax LogSoftmax
    Reshape Flatten Transpose Squeeze Unsqueeze Concat Split Slice Gather Pad Expand Shape Constant ConstantOfShape
    Identity Dropout Cast Where Equal ReduceMean ReduceSum ReduceMax ArgMax LSTM GRU LayerNormalization Gelu
"""
TIER_1 = frozenset(_TIER_1.split())


@dataclass(frozen=True)
class Case:
    """A model with inputs and expected outputs; files are read when asked for."""

    name: str
    kind: str
    model: ModelProto
    data_sets: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float

    @property
    def opset(self) -> int:
        return max((i.version for i in self.model.opset_import if i.domain in ("", "ai.onnx")), default=0)

    @property
    def plain(self) -> bool:
        """Whether every tensor that can be seen from outside has an element type that rammer has."""
        values = [*self.model.graph.input, *self.model.graph.output]
        kinds = [v.type.tensor_type.elem_type if v.type.HasField("tensor_type") else -1 for v in values]
        kinds += [t.data_type for t in self.model.graph.initializer]
        kinds += [a.t.data_type for n in self.model.graph.node for a in n.attribute if a.HasField("t")]
        kinds += [a.i for n in self.model.graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to"]
        return all(k in ELEMENT_TYPES for k in kinds)

    @property
    def tier_1(self) -> bool:
        """Whether the case is in scope: first-tier operators, plain element types, a supported opset."""
        nodes = self.model.graph.node
        return self.plain and self.opset <= NEWEST_OPSET and all(not n.domain and n.op_type in TIER_1 for n in nodes)


@cache
def cases() -> tuple[Case, ...]:
    """All cases of all kinds, by name."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite's own arithmetic
        for kind in KINDS:
            for case in load_model_tests(kind=kind):
                if case.model is not None:
                    model, data = case.model, case.data_sets
                else:
                    model, data = _from_files(Path(case.model_dir))
                found.append(Case(case.name, kind, model, data, case.rtol, case.atol))
    return tuple(sorted(found, key=lambda c: c.name))


def _from_files(folder: Path) -> tuple[ModelProto, list[tuple[list[Any], list[Any]]]]:
    data = []
    for part in sorted(folder.glob("test_data_set_*")):
        counts = [len(list(part.glob(f"{what}_*.pb"))) for what in ("input", "output")]
        tensors = [
            [onnx.TensorProto.FromString((part / f"{what}_{n}.pb").read_bytes()) for n in range(count)]
            for what, count in zip(("input", "output"), counts, strict=True)
        ]
        data.append((tensors[0], tensors[1]))
    return onnx.load(folder / "model.onnx"), data


def _array(value: Any) -> Array:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def import_case(model: ModelProto, inputs: Mapping[str, Array]) -> Graph:
    """Import with those inputs fixed that decide shapes; the suite gives them at run time."""
    constants: dict[str, Array] = {}
    while True:
        try:
            return load(model, constants=constants)
        except NotConstant as error:
            if not error.inputs:
                raise
            constants |= {name: inputs[name] for name in error.inputs}


def run_case(case: Case, execute: Execute) -> None:
    """Import, execute, compare. Raises ModelError or AssertionError."""
    named = [v.name for v in case.model.graph.input if v.name]
    for inputs, expected in case.data_sets:
        values = {name: _array(value) for name, value in zip(named, inputs, strict=False)}
        graph = import_case(case.model, values)
        results = execute(graph, {name: values[name] for name in graph.inputs})
        for name, wanted in zip((v.name for v in case.model.graph.output), map(_array, expected), strict=True):
            compare(results[name], wanted, case, name)


def compare(seen: Array, wanted: Array, case: Case, name: str) -> None:
    """The suite's own criterion: shape, element type, and values within its tolerances."""
    assert seen.shape == wanted.shape, f"{name} has shape {seen.shape} instead of {wanted.shape}"
    assert seen.dtype == wanted.dtype, f"{name} is {seen.dtype} instead of {wanted.dtype}"
    rtol = case.rtol
    if seen.dtype.kind == "V" or seen.dtype.name == "bfloat16":
        rtol, seen, wanted = max(rtol, 2**-6), seen.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_allclose(seen, wanted, rtol=rtol, atol=case.atol, err_msg=name)


def outcome(case: Case, execute: Execute) -> str:
    """An empty string if the case passes, or why it does not."""
    try:
        with np.errstate(all="ignore"):
            run_case(case, execute)
    except ModelError as error:
        return f"ModelError: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip()[:300]}"
    return ""
