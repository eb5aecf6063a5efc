"""Measure how far outputs move if products round their operands to bf16, and if only weights are rounded.

python -m benchmarks.on_paper.precision MODEL… [--arch x86-64-avx512bf16@here]

The second figure is float32 arithmetic on rounded weights. A program that keeps weights in bf16 cannot be expected to
be closer. An arch that ends in @here emulates what this CPU lacks: its errors are those of that arch, its times mean
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import click
import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

import rammer
from benchmarks.models import catalog
from rammer.ir.tensor import Array


def rounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its float32 weights of two dimensions or more rounded to bf16."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1:
            values = numpy_helper.to_array(tensor).astype(ml_dtypes.bfloat16).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return copy


def error(results: Mapping[str, Array], exact: Mapping[str, Array]) -> float:
    """The largest difference of an output, as a part of its largest element."""
    return max(float(np.abs(results[k] - exact[k]).max() / np.abs(exact[k]).max()) for k in exact)


def errors(model: onnx.ModelProto, inputs: Mapping[str, Array], arch: str | None) -> tuple[float, float]:
    """By products of bf16, and by weights of bf16 alone, against float32."""
    exact = _run(model, inputs, "fp32", arch)
    return (
        error(_run(model, inputs, "bf16", arch), exact),
        error(_run(rounded(model), inputs, "fp32", arch), exact),
    )


def _run(model: onnx.ModelProto, inputs: Mapping[str, Array], precision: str, arch: str | None) -> dict[str, Array]:
    with rammer.compile(model, target="cpu", precision=precision, arch=arch, tune_seconds=0) as program:
        return {name: np.array(value) for name, value in program.run(inputs).items()}


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--arch", help="Of the CPU, for one that this machine is not.")
def main(models: tuple[str, ...], arch: str | None) -> None:
    """Print two errors for each of MODELS; NAME:4 for batch 4."""
    for spec in models:
        built = catalog.named(spec).built
        products, weights = errors(onnx.load(built.path), built.inputs, arch)
        click.echo(f"{spec}: bf16 {products:.1e}, weights rounded alone {weights:.1e}")


if __name__ == "__main__":
    main()
