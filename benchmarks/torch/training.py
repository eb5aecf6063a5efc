"""Time training by PyTorch, Inductor and rammer: `python -m benchmarks.torch.training --models lstm_tc:256,mlp:64`.

Each has a process of its own, with the same module, batch and optimizer (SGD with momentum), and they take their steps
in turns. Losses and what was learned are compared with eager PyTorch's after the same number of steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from benchmarks.compare.apart import Answer, Apart, urgent
from benchmarks.compare.collect import by_model
from rammer import files
from rammer.errors import RammerError

BACKENDS = ("eager", "inductor", "rammer")
MODELS = "lstm_tc:256,lstm_tc:16,mlp:64,cnn:16"
THREADS, TUNE_S = 2, 10.0
COMPILE_S = 900.0
TOLERANCE = 1e-4  # of parameters and losses, over the largest


def stepper(
    name: str, batch: int, scale: str, backend: str, threads: int, tune_s: float, priority: int
) -> Callable[[str], Answer]:
    """Answers "step" or "timed step" with its seconds and loss, and "learned" with some of what it has learned."""
    import torch

    from benchmarks.torch.modules import compiled, training

    torch.set_num_threads(threads)
    task = training(name, batch, "small" if scale == "small" else "full")
    optimizer = torch.optim.SGD(task.module.parameters(), lr=0.05, momentum=0.9)
    run = compiled(task.module, backend, {"device": threads, "tune_seconds": tune_s})

    def answer(message: str) -> Answer:
        if message == "learned":
            return {"learned": {n: p.detach().flatten()[:: 1 + p.numel() // 256].tolist() for n, p in
                                task.module.named_parameters()}}  # fmt: skip
        with urgent(priority if message == "timed step" else 0):
            start = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            loss = task.loss(run(task.inputs), task.target)
            between = time.perf_counter()
            loss.backward()
            end = time.perf_counter()
            optimizer.step()
            whole = time.perf_counter() - start
        return {"s": whole, "forward_s": between - start, "backward_s": end - between, "loss": loss.item()}

    return answer


def compare(
    model: str,
    backends: Sequence[str],
    scale: str,
    steps: int,
    threads: int = THREADS,
    tune_s: float = TUNE_S,
    priority: int = 0,
) -> dict[str, Answer]:
    """By backend: milliseconds of a step, seconds of the first one, and how far from eager PyTorch it has come."""
    name, _, batch = model.partition(":")
    found: dict[str, Answer] = {}
    made = {b: Apart(stepper, name, int(batch or 1), scale, b, threads, tune_s, priority) for b in backends}
    try:
        samples: dict[str, list[Answer]] = {b: [] for b in backends}
        for number in range(1 + steps):
            turn = number % len(backends)
            for backend in (*backends[turn:], *backends[:turn]):
                if backend in found:
                    continue
                try:
                    samples[backend].append(made[backend].ask("timed step" if number else "step", COMPILE_S))
                except RammerError as failure:
                    found[backend] = {"failed": failure.what}
        learned = {b: made[b].ask("learned", COMPILE_S)["learned"] for b in backends if b not in found}
        for backend, every in learned.items():
            first, *rest = samples[backend]
            times = {f"{part}ms": [1e3 * s[f"{part}s"] for s in rest] for part in ("", "forward_", "backward_")}
            found[backend] = {
                "first_s": first["s"],
                "n": len(rest),
                **{f"median_{part}": median(ms) for part, ms in times.items()},
                "min_ms": min(times["ms"]),
                "samples_ms": times["ms"],
                "losses": [s["loss"] for s in samples[backend]],
            }
            if "eager" in learned:
                found[backend]["error"] = apart(every, learned["eager"])
                found[backend]["loss_error"] = apart(
                    {"": found[backend]["losses"]}, {"": [s["loss"] for s in samples["eager"]]}
                )
    finally:
        for process in made.values():
            process.__exit__(None, None, None)
    return found


def apart(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> float:
    """The largest difference over the largest number, of the worst tensor; NaN if there is one."""
    worst = [
        np.abs(np.subtract(ours[name], wanted)).max() / (np.abs(wanted).max() or 1.0) for name, wanted in theirs.items()
    ]
    return float(np.max(worst))


def line(model: str, backend: str, found: Answer) -> str:
    """One row of the table; a wrong result is said so."""
    if "failed" in found:
        return f"{model:14} {backend:10} failed: {found['failed']}"
    error = max(found.get("error", 0.0), found.get("loss_error", 0.0))
    wrong = "" if error < TOLERANCE else "  WRONG"
    return (
        f"{model:14} {backend:10} {found['median_ms']:10.1f} {found['min_ms']:10.1f} {found['median_forward_ms']:10.1f}"
        f" {found['median_backward_ms']:10.1f} {found['n']:4d} {found['first_s']:9.1f} {error:9.1e}{wrong}"
    )


@click.command()
@click.option("--models", default=MODELS, show_default=True, help="NAME:BATCH of lstm_tc, mlp and cnn.")
@click.option("--backends", default=",".join(BACKENDS), show_default=True, help="And rammer-sequential.")
@click.option("--steps", default=9, show_default=True, help="Timed steps of each, after the first.")
@click.option("--threads", default=THREADS, show_default=True)
@click.option("--scale", type=click.Choice(["full", "small"]), default="full", show_default=True)
@click.option("--tune", "tune_s", default=TUNE_S, show_default=True, help="tune_seconds of rammer, for each graph.")
@click.option("--priority", default=0, show_default=True, help="Real-time priority of timed steps alone.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write all samples.")
def main(
    models: str,
    backends: str,
    steps: int,
    threads: int,
    scale: str,
    tune_s: float,
    priority: int,
    output: Path | None,
) -> None:
    """Measure, and print a table of milliseconds."""
    if output:
        files.check_new(output)
    heads = ("model", "backend", "median", "min", "forward", "backward", "n", "first, s", "error")
    click.echo("{:14} {:10} {:>10} {:>10} {:>10} {:>10} {:>4} {:>9} {:>9}".format(*heads))
    options = {"steps": steps, "threads": threads, "scale": scale, "tune_seconds": tune_s, "priority": priority}

    def entry(model: str) -> dict[str, Any]:
        return compare(model, backends.split(","), scale, steps, threads, tune_s, priority)

    by_model(models.split(","), entry, line, options, output)


if __name__ == "__main__":
    main()
