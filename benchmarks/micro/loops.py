"""Measure a step of a loop with a number of steps known only at run time: `python -m benchmarks.micro.loops`.

The body of a Loop is a product with a weight matrix and tanh; the number of steps is an input. rammer and ONNX Runtime
run it in turns, and must agree.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import click
import numpy as np
import onnx.parser
import onnxruntime
from onnx import ModelProto

import rammer


def loop(rows: int, width: int) -> ModelProto:
    """A state of [rows, width] is multiplied in every step."""
    state = f"float[{rows}, {width}]"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        times (int64 steps, {state} x) => ({state} y) {{
          y = Loop <body = step (int64 i, bool alive, {state} h) => (bool again, {state} g) {{
            again = Identity (alive)
            p = MatMul (h, w)
            g = Tanh (p)
          }}> (steps, "", x)
        }}""")
    weights = np.random.default_rng(0).standard_normal((width, width)) / np.sqrt(width)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights.astype(np.float32), "w"))
    return model


@click.command()
@click.option("--sizes", default="4x64,4x256,16x1024", show_default=True, help="Rows and width of the state.")
@click.option("--steps", default=200, show_default=True)
@click.option("--turns", default=15, show_default=True)
@click.option("--threads", default=1, show_default=True, help="vEUs, and ONNX Runtime's threads.")
def main(sizes: str, steps: int, turns: int, threads: int) -> None:
    """Print a line for each size: medians and minima of microseconds per step."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    for size in sizes.split(","):
        rows, width = map(int, size.split("x"))
        model = loop(rows, width)
        peer = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        given = {"steps": np.array(steps), "x": np.random.default_rng(1).random((rows, width), np.float32)}
        with rammer.Session(model, "cpu", sess_options=options) as session:
            np.testing.assert_allclose(session.run(None, given)[0], peer.run(None, given)[0], rtol=1e-3, atol=1e-4)
            times: dict[Any, list[float]] = {session: [], peer: []}
            for _ in range(turns):
                for who, found in times.items():
                    begin = time.perf_counter()
                    who.run(None, given)
                    found.append((time.perf_counter() - begin) / steps * 1e6)
            texts = [f"{median(found):7.1f} ({min(found):.1f})" for found in times.values()]
            print(f"{size:>8}: rammer {texts[0]} µs a step, ONNX Runtime {texts[1]}", flush=True)


if __name__ == "__main__":
    main()
