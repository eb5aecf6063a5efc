"""Time calls while another process takes a CPU, beside ONNX Runtime's.

python -m benchmarks.micro.neighbours [today_vad …] [--calls 1000] [--nice -10]

The neighbour computes all the time on the last of our CPUs, with a higher priority (a negative niceness, which needs
the right to raise it). Calls of both take turns, in tens.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import rammer
from benchmarks.models import catalog
from rammer.ir.tensor import Array

TURN = 10  # calls


def occupy(cpu: int, nice: int) -> None:
    """Compute for ever on this CPU."""
    os.sched_setaffinity(0, {cpu})
    os.nice(nice)
    while True:
        pass


@contextmanager
def neighbour(nice: int) -> Iterator[None]:
    process = multiprocessing.get_context("fork").Process(target=occupy, args=(max(os.sched_getaffinity(0)), nice))
    process.start()
    time.sleep(0.2)
    if not process.is_alive():
        raise click.ClickException(
            f"no neighbour of niceness {nice}: raising a priority needs the right to; try --nice 0"
        )
    try:
        yield
    finally:
        process.kill()
        process.join()


def sessions(path: str, threads: int) -> Callable[[dict[str, Array]], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def timed(runs: dict[str, Callable[[], object]], calls: int) -> dict[str, list[float]]:
    """Milliseconds of each call, in turns."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(calls // TURN):
        for name, run in runs.items():
            for _ in range(TURN):
                begin = time.perf_counter()
                run()
                found[name].append(1e3 * (time.perf_counter() - begin))
    return found


@click.command()
@click.argument("models", nargs=-1)
@click.option("--calls", default=1000, show_default=True)
@click.option("--nice", default=-10, show_default=True, help="The neighbour's niceness.")
def main(models: tuple[str, ...], calls: int, nice: int) -> None:
    """Print the median, mean and worst call of each model, alone and beside a neighbour."""
    table = Table("model", "system", "alone ms", "mean", "worst", "beside ms", "mean", "worst", box=None)
    threads = len(os.sched_getaffinity(0))
    for name in models or ("today_vad", "today_keyword", "today_denoiser_16"):
        built = catalog.named(name).built
        program = rammer.compile(built.path, "cpu", tune_seconds=0)
        session = sessions(str(built.path), threads)
        inputs = {key: np.ascontiguousarray(value) for key, value in built.inputs.items()}
        runs = {"rammer": lambda p=program, x=inputs: p.run(x), "onnxruntime": lambda s=session, x=inputs: s(x)}
        timed(runs, 10 * TURN)
        alone = timed(runs, calls)
        with neighbour(nice):
            beside = timed(runs, calls)
        for system in runs:
            times = (f"{f(t[system]):.3f}" for t in (alone, beside) for f in (statistics.median, statistics.mean, max))
            table.add_row(name, system, *times)
        program.close()
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
