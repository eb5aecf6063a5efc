"""Measure a step of a key-value cache by the cache's length: `python -m benchmarks.micro.caches`.

Eight layers of attention read caches of [1, heads, length, width]. TensorScatter writes each at one position. The
caches are the state of one program. Without attention (`--only store`), the caches are only written.
"""

from __future__ import annotations

import time
from statistics import median

import click
import numpy as np
import onnx.parser
from onnx import ModelProto

import rammer
from rammer.ir.analysis.dependency import num_written

LAYERS, HEADS, WIDTH = 8, 3, 64


def step(length: int, attends: bool) -> ModelProto:
    """New rows go into the caches of all layers, and with attention each layer's query reads them."""
    cache, row = (f"float[1, {HEADS}, {extent}, {WIDTH}]" for extent in (length, 1))
    inputs, outputs, nodes = [f"{row} row", "int64[1] at"], [f"{row} y"], []
    last = "row"
    for layer in range(LAYERS):
        for kind in ("k", "v"):
            inputs.append(f"{cache} past_{kind}{layer}")
            outputs.append(f"{cache} present_{kind}{layer}")
            nodes.append(f"present_{kind}{layer} = TensorScatter <axis = 2> (past_{kind}{layer}, {last}, at)")
        if attends:
            nodes.append(f"z{layer} = Attention ({last}, present_k{layer}, present_v{layer})")
            nodes.append(f"y{layer} = Add (z{layer}, {last})")  # without it numbers would become denormal
            last = f"y{layer}"
    nodes.append(f"y = Tanh ({last})")
    text = f"""<ir_version: 10, opset_import: ["" : 24]>
        step ({", ".join(inputs)}) => ({", ".join(outputs)}) {{ {" ".join(nodes)} }}"""
    return onnx.parser.parse_model(text)


def stored(program: rammer.Program) -> int:
    """Bytes that the rTasks of a step write, counted."""
    plan = program.plan
    total = 0
    for op, kernel in zip(plan.graph.operators, plan.kernels, strict=True):
        total += sum(num_written(kernel, n) * t.dtype.itemsize for n, t in enumerate(op.operation.outputs))
    return total


@click.command()
@click.option("--lengths", default="256,1024,4096", show_default=True)
@click.option("--only", type=click.Choice(["store", "attend"]), help="One of the two models.")
@click.option("--runs", default=1000, show_default=True)
def main(lengths: str, only: str | None, runs: int) -> None:
    """Print a line for each length: bytes that a step stores (counted), and the median of its times."""
    row, at = np.ones((1, HEADS, 1, WIDTH), np.float32), np.zeros(1, np.int64)
    for what in ("store", "attend"):
        for length in map(int, lengths.split(",")) if only in (None, what) else ():
            with rammer.compile(step(length, what == "attend"), "cpu", state=True) as program:
                times = []
                for n in range(runs):
                    at[0] = n % length
                    begin = time.perf_counter_ns()
                    program.run({"row": row, "at": at})
                    times.append(time.perf_counter_ns() - begin)
                whole = 2 * LAYERS * HEADS * length * WIDTH * 4
                print(
                    f"{what:6} {length:6}: {whole / 1e6:6.2f} MB, stored {stored(program) / 1e3:9.1f} kB a step, "
                    f"{median(times[len(times) // 10 :]) / 1e3:8.1f} µs (median of {runs})"
                )


if __name__ == "__main__":
    main()
