"""Compare torch.compile by rammer and Inductor with eager PyTorch: `python -m benchmarks.torch.inference`.

Each has a process of its own and the same module without gradients; they are called in turns. `rammer-program` is a
Program of `rammer.compile(module, example=…)`, called with tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.compare.apart import Answer, Apart, urgent
from benchmarks.compare.collect import by_model
from rammer import files
from rammer.errors import RammerError

BACKENDS = ("eager", "inductor", "rammer", "rammer-program")
MODELS = (
    "alexnet,densenet121,efficientnet_b0,googlenet,mobilenet_v3_small,regnet_y_400mf,resnet18,resnet50,"
    "shufflenet_v2_x1_0,squeezenet1_1,swin_t,vit_b_32,lstm_tc_lstm"
)
COMPILE_S, ROUNDS = 900.0, 6
TOLERANCE = 1e-3


def caller(name: str, size: int, backend: str, threads: int, tune_s: float, priority: int) -> Callable[[float], Answer]:
    """Answers a number of seconds with the milliseconds of calls that fill them, and the error of the last."""
    import torch

    import rammer
    from benchmarks.torch.modules import compiled, inference

    torch.set_num_threads(threads)
    module, inputs = inference(name, size)
    options = {"device": threads, "tune_seconds": tune_s}
    with torch.no_grad():
        wanted = module(*inputs)
        run = (
            rammer.compile(module, example=inputs, **options)  # type: ignore[arg-type]
            if backend == "rammer-program"
            else compiled(module, backend, options)
        )

    def answer(seconds: float) -> Answer:
        samples: list[float] = []
        with torch.no_grad(), urgent(priority if seconds else 0):
            found = run(*inputs)
            end = time.perf_counter() + seconds
            while not samples or time.perf_counter() < end:
                start = time.perf_counter()
                found = run(*inputs)
                samples.append(1e3 * (time.perf_counter() - start))
            error = float((torch.as_tensor(found) - wanted).abs().max() / wanted.abs().max())
        return {"samples_ms": samples, "error": error}

    return answer


def compare(
    name: str, backends: Sequence[str], size: int, seconds: float, threads: int, tune_s: float, priority: int = 0
) -> dict[str, Answer]:
    """By backend: milliseconds of a call, seconds until the first one was done, and the error against eager."""
    found: dict[str, Answer] = {}
    made = {b: Apart(caller, name, size, b, threads, tune_s, priority) for b in backends}
    try:
        for backend, process in made.items():
            start = time.perf_counter()
            try:
                error = process.ask(0.0, COMPILE_S)["error"]
                found[backend] = {"first_s": time.perf_counter() - start, "error": error, "samples_ms": []}
            except RammerError as failure:
                found[backend] = {"failed": failure.what}
        ready = [b for b in backends if "failed" not in found[b]]
        for number in range(ROUNDS):
            turn = number % max(1, len(ready))
            for backend in (*ready[turn:], *ready[:turn]):
                answer = made[backend].ask(seconds / ROUNDS, COMPILE_S)
                found[backend]["samples_ms"] += answer["samples_ms"]
                found[backend]["error"] = max(found[backend]["error"], answer["error"])
    finally:
        for process in made.values():
            process.__exit__(None, None, None)
    for entry in found.values():
        if samples := entry.pop("samples_ms", None):
            entry |= {"median_ms": median(samples), "min_ms": min(samples), "n": len(samples)}
    return found


def line(model: str, backend: str, found: Answer) -> str:
    """One row of the table; a wrong result is said so."""
    if "failed" in found:
        return f"{model:20} {backend:15} failed: {found['failed']}"
    wrong = "" if found["error"] < TOLERANCE else "  WRONG"
    return (
        f"{model:20} {backend:15} {found['median_ms']:9.3f} {found['min_ms']:9.3f} {found['n']:6d}"
        f" {found['first_s']:9.1f} {found['error']:9.1e}{wrong}"
    )


@click.command()
@click.option("--models", default=MODELS, show_default=True, help="torchvision's, and those of benchmarks.models.")
@click.option("--backends", default=",".join(BACKENDS), show_default=True)
@click.option("--size", default=224, show_default=True, help="Of images.")
@click.option("--seconds", default=2.0, show_default=True, help="Timed, of each backend and model.")
@click.option("--threads", default=2, show_default=True)
@click.option("--tune", "tune_s", default=30.0, show_default=True, help="tune_seconds of rammer.")
@click.option("--priority", default=0, show_default=True, help="Real-time priority of calls, but not of compilation.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the results.")
def main(
    models: str,
    backends: str,
    size: int,
    seconds: float,
    threads: int,
    tune_s: float,
    priority: int,
    output: Path | None,
) -> None:
    """Measure, and print a table of milliseconds."""
    if output:
        files.check_new(output)
    heads = ("model", "backend", "median", "min", "n", "first, s", "error")
    click.echo("{:20} {:15} {:>9} {:>9} {:>6} {:>9} {:>9}".format(*heads))
    options = {"size": size, "seconds": seconds, "threads": threads, "tune_seconds": tune_s, "priority": priority}

    def entry(model: str) -> dict[str, Any]:
        return compare(model, backends.split(","), size, seconds, threads, tune_s, priority)

    by_model(models.split(","), entry, line, options, output)


if __name__ == "__main__":
    main()
