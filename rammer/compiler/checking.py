"""Compare a compiled model's outputs with its meaning, and find the first operator that differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from rammer.compiler import CompileOptions, Model, import_model
from rammer.compiler import compile as compile_model
from rammer.compiler.candidates import allowed_error, difference, largest_error
from rammer.errors import DeviceError
from rammer.ir.graph import Graph
from rammer.ir.semantics.evaluate import Mask, evaluate_defined, evaluate_graph
from rammer.ir.tensor import Array, NamedArrays
from rammer.runtime import measure
from rammer.vdevice.base import Progress, silent

Defined = Mapping[str, Mask]  # which elements can be compared


@dataclass(frozen=True, slots=True)
class Comparison:
    """A tensor computed in two ways: `found` against `reference`, and how they differ, or ""."""

    tensor: str
    found: str
    reference: str
    differs: str = ""
    error: float = 0.0  # the largest of an element
    allowed: float = 0.0
    compared: bool = False

    @classmethod
    def of(cls, tensor: str, ways: tuple[str, str], found: Array, wanted: Array, defined: Mask) -> Comparison:
        """Compare a tensor that was computed in two ways, where it is `defined`."""
        what = difference(found, wanted, defined)
        error = largest_error(found, wanted, defined) if found.shape == wanted.shape else inf
        return cls(tensor, *ways, what, error, allowed_error(wanted), True)


def check_model(
    model: Model, how: CompileOptions, *, every: bool = False, seed: int = 0, progress: Progress = silent
) -> list[Comparison]:
    """Compare a model's outputs, on seeded inputs, as compiled, interpreted, and evaluated by the onnx package.

    rKernels are tested as usual (RAMMER_CHECK). If an output differs, or with `every`, all tensors are compared up to
    the first operator that differs. Raises a RammerError if compiling does.
    """
    graph = import_model(model, **how.to_load)
    how = how.but(links=None, together=None)
    with compile_model(graph, how=how, progress=progress) as program:
        inputs = measure.random_inputs(program.inputs, seed)
        found = program.run(inputs)
    meaning, defined = evaluate_defined(lambda: evaluate_graph(graph, inputs))
    rows = _compared(found, meaning, defined, "compiled", "interpreted")
    if not isinstance(model, Graph | Mapping) and not how.constants:
        rows += _against_onnx(model, inputs, meaning, defined)
    if every or any(row.differs for row in rows if row.found == "compiled"):
        rows += _first_operator(graph, inputs, how, progress)
    return rows


def _compared(found: NamedArrays, wanted: NamedArrays, defined: Defined, one: str, other: str) -> list[Comparison]:
    return [Comparison.of(name, (one, other), found[name], value, defined[name]) for name, value in wanted.items()]


def _first_operator(graph: Graph, inputs: NamedArrays, how: CompileOptions, progress: Progress) -> list[Comparison]:
    """Compile with every tensor as an output, and compare in order of computation up to the first that differs."""
    tensors = tuple(t for op in graph.operators for t in op.outputs)
    shown = replace(graph, outputs=tensors)
    meaning, defined = evaluate_defined(lambda: evaluate_graph(shown, inputs))
    with compile_model(shown, how=how, progress=progress) as program:
        found = program.run(inputs)
    rows: list[Comparison] = []
    for op in graph.operators:
        for tensor in op.outputs:
            ways, values = ("compiled alone", "interpreted"), (found[tensor], meaning[tensor], defined[tensor])
            rows.append(Comparison.of(f"{op.kind} {op.name!r}", ways, *values))
            if rows[-1].differs:
                return rows
    return rows


def _against_onnx(model: Any, inputs: NamedArrays, meaning: NamedArrays, defined: Defined) -> list[Comparison]:
    """Compare with the onnx package's reference evaluator on the same inputs."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    loaded = model
    if isinstance(model, bytes):
        loaded = onnx.load_model_from_string(model)
    elif not isinstance(model, onnx.ModelProto):
        loaded = onnx.load(model)
    run: Any = ReferenceEvaluator(loaded).run
    try:
        values = run(None, dict(inputs))
    except Exception as error:  # its operators may raise anything, and it has fewer of them than rammer
        return [Comparison(name, "interpreted", f"onnx ({type(error).__name__}: no answer)") for name in meaning]
    names = [output.name for output in loaded.graph.output]
    wanted = {n: v for n, v in zip(names, values, strict=True) if n in meaning}
    return _compared(meaning, wanted, defined, "interpreted", "onnx")


def require_agreement(rows: list[Comparison]) -> None:
    """Raise DeviceError, naming the first tensor, if any two ways differ."""
    for row in rows:
        if row.differs:
            raise DeviceError(
                f"{row.tensor}: {row.found} and {row.reference} differ: {row.differs}",
                hint="please report this, with the model",
            )
