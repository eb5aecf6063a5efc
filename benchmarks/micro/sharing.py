"""Measure several programs in one process: in turns, and at once by one thread each; also ONNX Runtime's sessions.

python -m benchmarks.micro.sharing [MODEL.onnx] [--programs 1,2,4,16] [--rounds 12] [--json r.json]
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from rich.table import Table

import rammer
from benchmarks.compare.apart import PAUSE_S
from benchmarks.compare.report import wide_console
from rammer.forkpool import usable_cpus
from rammer.runtime.measure import random_inputs
from rammer_viz.demo import lstm_stack

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Visit:
    """Call the first `programs` of them for `seconds`: in turn by one thread, or `at_once` by a thread each."""

    programs: int
    seconds: float
    at_once: bool


def load_rammer(model: str, count: int, threads: int) -> list[Run]:
    """Saved once and loaded `count` times, as services do."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.rammer")
        with rammer.compile(model, "cpu", device=threads) as program:
            program.save(path)
        programs = [rammer.load(path) for _ in range(count)]
    inputs = random_inputs(programs[0].inputs, 0)
    return [lambda p=p: p.run(inputs) for p in programs]  # type: ignore[misc]


def load_onnxruntime(model: str, count: int, threads: int) -> list[Run]:
    """Sessions with all optimizations."""
    import onnxruntime  # type: ignore[import-untyped, import-not-found, unused-ignore]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    sessions = [onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]) for _ in range(count)]
    shapes = {i.name: i.shape for i in sessions[0].get_inputs()}
    random = np.random.default_rng(0)
    inputs = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return [lambda s=s: s.run(None, inputs) for s in sessions]  # type: ignore[misc]


PEERS = {"rammer": load_rammer, "onnxruntime": load_onnxruntime}


def in_turn(runs: Sequence[Run], seconds: float) -> list[list[float]]:
    """Microseconds of every run, by program."""
    samples: list[list[float]] = [[] for _ in runs]
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        for run, own in zip(runs, samples, strict=True):
            start = time.perf_counter()
            run()
            own.append((time.perf_counter() - start) * 1e6)
    return samples


def at_once(runs: Sequence[Run], seconds: float) -> list[list[float]]:
    """As `in_turn`, with a thread for each program."""
    samples: list[list[float]] = [[] for _ in runs]
    together = threading.Barrier(len(runs))

    def work(number: int) -> None:
        together.wait()
        samples[number] = in_turn(runs[number : number + 1], seconds)[0]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(runs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return samples


def serve(pipe: connection.Connection, peer: str, model: str, count: int, threads: int) -> None:
    """Child's main: answers Visits with samples; None ends it."""
    runs = PEERS[peer](model, count, threads)
    for run in runs:
        run()
    pipe.send(None)
    while (visit := pipe.recv()) is not None:
        time.sleep(PAUSE_S)
        for run in runs[: visit.programs]:
            run()
        pipe.send((at_once if visit.at_once else in_turn)(runs[: visit.programs], visit.seconds))


def summary(rounds: Sequence[Sequence[Sequence[float]]], solo: Sequence[Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Of one way of calling; `rounds` are samples by program.

    `ratio` and `rate` are median time and number of runs relative to one program's alone (`solo`), in the same rounds;
    `share` is the least number of runs of a program over the mean.
    """
    flat = [us for samples in rounds for own in samples for us in own]
    counts = np.sum([[len(own) for own in samples] for samples in rounds], axis=0)
    median, solo_median = (
        statistics.median(statistics.median(us for own in samples for us in own) for samples in way)
        for way in (rounds, solo)
    )
    return {
        "min_us": min(flat),
        "median_us": median,
        "p99_us": float(np.percentile(flat, 99)),
        "n": len(flat),
        "ratio": median / solo_median,
        "rate": len(flat) / sum(len(own) for (own,) in solo),
        "share": float(counts.min() / counts.mean()),
    }


def measure(
    peers: Sequence[str], model: str, programs: Sequence[int], rounds: int, seconds: float, threads: int
) -> dict[str, Any]:
    """All peers in processes of their own and all ways of calling, visited in turns."""
    context = get_context("spawn")
    pipes: dict[str, Any] = {}
    for peer in peers:
        pipes[peer], child = context.Pipe()
        context.Process(target=serve, args=(child, peer, model, max(programs), threads), daemon=True).start()
        child.close()  # so that the end of the process ends the wait
        pipes[peer].recv()
    ways = [Visit(1, seconds, False), *(Visit(n, seconds, w) for n in programs if n > 1 for w in (False, True))]
    samples: dict[tuple[str, Visit], list[list[list[float]]]] = {(p, w): [] for p in peers for w in ways}
    for number in range(rounds):
        for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
            for peer in peers:
                pipes[peer].send(way)
                samples[peer, way].append(pipes[peer].recv())
    for pipe in pipes.values():
        pipe.send(None)
    results: dict[str, Any] = {}
    for peer in peers:
        results[peer] = {
            ("at once" if w.at_once else "in turn") + f" {w.programs}": summary(
                samples[peer, w], samples[peer, ways[0]]
            )
            for w in ways
        }
    return results


def table(results: dict[str, Any]) -> Table:
    """One row per peer and way."""
    rows = Table("peer", "programs", "min µs", "median µs", "p99 µs", "n", "x solo", "rate", "least share", box=None)
    for peer, ways in results.items():
        for way, r in ways.items():
            times = (f"{r[what]:.1f}" for what in ("min_us", "median_us", "p99_us"))
            rows.add_row(peer, way, *times, str(r["n"]), *(f"{r[what]:.2f}" for what in ("ratio", "rate", "share")))
    return rows


@click.command()
@click.argument("model", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option("--programs", default="1,2,4,16", show_default=True, help="Numbers of programs.")
@click.option("--rounds", default=12, show_default=True)
@click.option("--seconds", default=0.1, show_default=True, help="Of one way of calling, in one round.")
@click.option("--peers", default="rammer,onnxruntime", show_default=True)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the results here, too.")
def main(model: str | None, programs: str, rounds: int, seconds: float, peers: str, output: Path | None) -> None:
    """Call 1, 2, … programs of MODEL (by default a small LSTM) in turn and at once."""
    names = [p for p in peers.split(",") if importlib.util.find_spec(p)]
    threads = usable_cpus()
    with tempfile.TemporaryDirectory() as folder:
        if model is None:
            model = str(Path(folder, "lstm.onnx"))
            small = lstm_stack(2, 30, 64)
            small.ir_version = 10  # ONNX Runtime refuses newer ones than it knows
            onnx.save(small, model)
        results = measure(names, model, [int(n) for n in programs.split(",")], rounds, seconds, threads)
    wide_console().print(table(results))
    if output:
        head = {"model": Path(model).name, "rounds": rounds, "seconds": seconds, "threads": threads}
        output.write_text(json.dumps({**head, "peers": results}, indent=1))


if __name__ == "__main__":
    main()
