"""What a call takes around a network of one small operator: `python -m benchmarks.calls`.

The same Relu of four elements by `program.run`, by a bound call, and by ONNX Runtime, in turns; the best round counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click
import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper

import rammer

SHAPE = (4,)


def relu() -> ModelProto:
    """y = max(x, 0)."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])


def round_us(call: Callable[[], object], calls: int) -> float:
    """Mean microseconds of some calls in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


@click.command()
@click.option("--rounds", default=9, show_default=True)
@click.option("--calls", default=20_000, show_default=True, help="Of each, in a round.")
def main(rounds: int, calls: int) -> None:
    """Print the best round of each way to call, in microseconds."""
    model, feeds = relu(), {"x": np.linspace(-1, 1, 4, dtype=np.float32)}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    with rammer.compile(model, "cpu") as program:
        bound = program.bind(feeds)
        ways: dict[str, Callable[[], object]] = {
            "program.run": lambda: program.run(feeds),
            "bound call": bound,
            "ONNX Runtime": lambda: session.run(None, feeds),
        }
        bound()
        np.testing.assert_array_equal(bound.outputs["y"], session.run(None, feeds)[0])
        times = [[round_us(call, calls) for call in ways.values()] for _ in range(rounds)]
    for name, us in zip(ways, zip(*times, strict=True), strict=True):
        click.echo(f"{name}: {min(us):.2f} µs, median {sorted(us)[rounds // 2]:.2f}, n={rounds} x {calls}")


if __name__ == "__main__":
    main()
