"""Measure rounding errors, and how far an infinity or NaN spreads, next to ONNX Runtime: the table of docs/numerics.md.

python -m benchmarks.micro.numerics [--arch x86-64-amx@here]

Errors are the largest against float64, relative to the largest result. One element of x is an infinity or NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import click
import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper, numpy_helper

import rammer
from rammer.frontend.onnx import load
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array

Run = Callable[[Array], Array]
NONE = np.zeros(0, np.float32)
CASES: dict[str, tuple[str, tuple[int, ...], tuple[tuple[int, ...] | Array, ...], dict[str, object]]] = {
    "Conv 3x3, 16 channels": ("Conv", (1, 16, 56, 56), ((16, 16, 3, 3),), {"pads": [1] * 4}),
    "Conv 3x3, 64 channels": ("Conv", (1, 64, 56, 56), ((64, 64, 3, 3),), {"pads": [1] * 4}),
    "Conv 9x9, 16 channels": ("Conv", (1, 16, 64, 64), ((16, 16, 9, 9),), {}),
    "Conv 21x11, 32 channels": ("Conv", (1, 32, 81, 60), ((32, 32, 21, 11),), {"strides": [2, 1]}),
    "MatMul 256x512x512": ("MatMul", (256, 512), ((512, 512),), {}),
    "ConvTranspose 3x3, steps of 2": ("ConvTranspose", (1, 32, 14, 14), ((32, 16, 3, 3),), {"strides": [2, 2]}),
    "Resize, linear": ("Resize", (1, 8, 14, 14), (NONE, np.float32([1, 1, 2, 2])), {"mode": "linear"}),
    "Resize, cubic": ("Resize", (1, 8, 14, 14), (NONE, np.float32([1, 1, 2, 2])), {"mode": "cubic"}),
    "CumSum": ("CumSum", (3, 77), (np.array(1),), {}),
    "MaxPool": ("MaxPool", (1, 16, 14, 14), (), {"kernel_shape": [3, 3]}),
    "ReduceMax": ("ReduceMax", (28, 75), (np.array([1]),), {}),
    "LRN": ("LRN", (1, 40, 7, 7), (), {"size": 5}),
    "LayerNormalization": ("LayerNormalization", (28, 75), (np.ones(75, np.float32),), {}),
}


def made(name: str, dtype: int) -> ModelProto:
    """A model of one node, computed in float32 or float64."""
    op, shape, operands, attrs = CASES[name]
    kind, arrays = np.dtype(helper.tensor_dtype_to_np_dtype(dtype)), []
    for n, given in enumerate(operands):
        size = np.prod(given[1:]) if isinstance(given, tuple) else 0
        drawn = np.random.default_rng(n).standard_normal(given) / np.sqrt(size) if size else np.asarray(given)
        wide = drawn.astype(np.float32).astype(kind) if size or (drawn.dtype.kind == "f" and op != "Resize") else drawn
        arrays.append(numpy_helper.from_array(wide, f"a{n}"))
    node = helper.make_node(op, ["x", *(a.name if a.dims != [0] else "" for a in arrays)], ["y"], **attrs)
    x, y = (helper.make_tensor_value_info(n, dtype, s) for n, s in (("x", shape), ("y", None)))
    graph = helper.make_graph([node], op, [x], [y], [a for a in arrays if a.dims != [0]])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def cells(name: str, run: Run, exact: Run) -> str:
    """The error, and of an infinity and NaN how many results are not finite."""
    x = np.random.default_rng(9).standard_normal(CASES[name][1]).astype(np.float32)
    wanted = exact(x)
    found = [f"{np.abs(run(x) - wanted).max() / np.abs(wanted).max():.0e}"]
    for value in (np.inf, np.nan):
        x[tuple(extent // 2 for extent in x.shape)] = value
        y = run(x)
        found.append(f"{np.isinf(y).sum()} inf, {np.isnan(y).sum()} NaN")
    return " | ".join(found)


@click.command()
@click.option("--arch", help="Of the CPU, for one that this machine is not.")
def main(arch: str | None) -> None:
    """Print the table."""
    print("| operator | computed by | error | an infinity in x | a NaN in x |\n|---|---|---|---|---|")
    for name in CASES:
        model, graph = made(name, TensorProto.FLOAT), load(made(name, TensorProto.DOUBLE))
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

        def exact(x: Array, graph: rammer.Graph = graph) -> Array:
            return evaluate_graph(graph, {"x": x.astype(np.float64)})["y"]

        def runtime(x: Array, session: onnxruntime.InferenceSession = session) -> Array:
            return np.asarray(session.run(None, {"x": x})[0])

        print(f"| {name} | ONNX Runtime | {cells(name, runtime, exact)} |")
        for numerics in ("fast", "strict"):
            with rammer.compile(model, "cpu", arch=arch, tune_seconds=0, numerics=numerics) as program:
                print(f"| | {numerics} | {cells(name, lambda x, p=program: p.run({'x': x})['y'], exact)} |", flush=True)


if __name__ == "__main__":
    main()
