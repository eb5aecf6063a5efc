"""Measure the overhead of a call around a network of one small operator: `python -m benchmarks.micro.calls`.

The same Relu of four elements runs by `program.run`, by a bound call, and by ONNX Runtime, in turns; the best round
counts. `--torch` adds a small perceptron from PyTorch, also by torch.compile. `--rate 31.25` measures the CPU time of a
voice detector that is called so many times a second, by rammer and by ONNX Runtime, each in a process of its own: idle
threads count, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing import get_context

import click
import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper

import rammer
from benchmarks.models.catalog import prepare

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


def torch_ways() -> dict[str, Callable[[], object]]:
    """A perceptron 16-16-16 of one row on one vEU, without gradients: by a Program, eagerly, and by torch.compile."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16)).eval()
    x, options = torch.randn(1, 16), {"device": 1, "tune_seconds": 0.0}
    program = rammer.compile(module, example=x, device=1, tune_seconds=0.0)
    feeds = {"input": x.numpy()}
    ways: dict[str, Callable[[], object]] = {
        "program.run": lambda: program.run(feeds),
        "program(tensor)": lambda: program(x),
        "module(tensor)": lambda: module(x),
    }
    wanted = module(x)
    for backend in ("rammer", "eager", "aot_eager", "inductor"):
        torch._dynamo.reset()
        run = torch.compile(module, backend=backend, **({"options": options} if backend == "rammer" else {}))
        torch.testing.assert_close(run(x), wanted)
        ways[f"torch.compile, {backend}"] = lambda run=run: run(x)  # type: ignore[misc]
    return ways


def onnx_ways() -> dict[str, Callable[[], object]]:
    """The same Relu by `program.run`, by a bound call, and by ONNX Runtime."""
    model, feeds = relu(), {"x": np.linspace(-1, 1, 4, dtype=np.float32)}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    program = rammer.compile(model, "cpu")
    bound = program.bind(feeds)
    bound()
    np.testing.assert_array_equal(bound.outputs["y"], session.run(None, feeds)[0])
    return {
        "program.run": lambda: program.run(feeds),
        "bound call": bound,
        "ONNX Runtime": lambda: session.run(None, feeds),
    }


def detector(peer: str) -> Callable[[], object]:
    """Today's voice detector, by a peer with two threads."""
    built = prepare("today_vad", 1, "full").built
    if peer == "rammer":
        program = rammer.compile(built.path, "cpu", device=2)
        return lambda: program.run(built.inputs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(str(built.path), options)
    return lambda: session.run(None, built.inputs)


def cpu_ms(peer: str, rate: float, seconds: float) -> tuple[float, int]:
    """Milliseconds of CPU time that the process takes for a call at this rate, and the number of calls."""
    call, calls = detector(peer), int(rate * seconds)
    for _ in range(20):
        call()
    time.sleep(1)
    begin, start = time.process_time(), time.perf_counter()
    for n in range(calls):
        call()
        time.sleep(max(0.0, start + (n + 1) / rate - time.perf_counter()))
    return (time.process_time() - begin) / calls * 1e3, calls


def by_rate(rate: float, rounds: int) -> None:
    """Print what both take of the CPU, in turns."""
    times: dict[str, list[tuple[float, int]]] = {"rammer": [], "ONNX Runtime": []}
    for _ in range(rounds):
        for peer, found in times.items():
            with get_context("spawn").Pool(1) as pool:
                found.append(pool.apply(cpu_ms, (peer, rate, 5.0)))
    for peer, found in times.items():
        ms = sorted(t for t, _ in found)
        click.echo(
            f"{peer}: {ms[len(ms) // 2]:.3f} ms of CPU time a call, least {ms[0]:.3f}, n={rounds} x {found[0][1]}"
        )


@click.command()
@click.option("--rate", default=0.0, help="Calls of a voice detector in a second: CPU time instead.")
@click.option("--rounds", default=9, show_default=True)
@click.option("--calls", default=20_000, show_default=True, help="Of each, in a round.")
@click.option("--torch", "by_torch", is_flag=True, help="A small perceptron called from PyTorch instead.")
def main(rate: float, rounds: int, calls: int, by_torch: bool) -> None:
    """Print the best round of each way to call, in microseconds."""
    if rate:
        return by_rate(rate, rounds)
    ways = torch_ways() if by_torch else onnx_ways()
    times = [[round_us(call, calls) for call in ways.values()] for _ in range(rounds)]
    for name, us in zip(ways, zip(*times, strict=True), strict=True):
        click.echo(f"{name}: {min(us):.2f} µs, median {sorted(us)[rounds // 2]:.2f}, n={rounds} x {calls}")


if __name__ == "__main__":
    main()
