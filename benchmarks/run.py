"""Measure rammer against its peers: `python -m benchmarks.run --models lstm_tc_lstm,alexnet --seconds 5`.

One process per peer; all peers of a model are alive at once and are visited in turns, a few runs each, so that a
change of the machine's clock or load meets all of them alike.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import light
from benchmarks.floors import Floor, Work, count, floor
from benchmarks.limits import Limits, measure
from benchmarks.peers import PEERS, Task, limit_threads
from benchmarks.report import OWN, geometric_mean_speed, limits_table, results_table, summarize, wide_console
from benchmarks.store import BuiltModel, Scale
from benchmarks.worker import Visit, Worker
from rammer.errors import RammerError, did_you_mean

RESULTS = Path(__file__).parent / "results"
LIGHT = "light_"  # prefix of the onnx package's models
VISITS = 12  # rounds, whatever the total
ANSWER_S = 120.0


def prepare(name: str, batch: int, scale: Scale) -> tuple[BuiltModel, Work, tuple[Any, ...]]:
    """The built model, its work and its recurrences. Raises RammerError for an unknown name."""
    if name.startswith(LIGHT):
        built = light.build(name.removeprefix(LIGHT))
        return built, count(built.path), ()
    from benchmarks.models import build, find  # torch takes seconds to import

    built = build(name, batch, scale)
    return built, count(built.path), find(name).recurrences(scale)


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure; `runs` and `seconds` bound the timed runs per peer and model."""

    batch: int
    scale: Scale
    threads: int
    runs: int
    seconds: float
    load_timeout_s: float


def compare_peers(
    built: BuiltModel, source: str, peers: list[str], options: Options, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Per peer: samples and what was observed beside them, or the reason of its failure."""
    results: dict[str, dict[str, Any]] = {}
    workers: dict[str, Worker] = {}
    bar = progress.add_task("loading", total=len(peers) + VISITS)
    try:
        for peer in peers:  # one after the other, so that load times are not disturbed
            progress.update(bar, description=f"{built.path.stem}: loading {peer}")
            task = Task(peer, str(built.path), source, options.scale, options.threads)
            workers[peer] = Worker(task)
            _observe(results, workers, peer, lambda w: w.loaded(options.load_timeout_s))
            progress.advance(bar)
        samples: dict[str, list[float]] = {peer: [] for peer in workers}
        visit = Visit(max(1, -(-options.runs // VISITS)), options.seconds / VISITS)
        for number in range(VISITS):
            progress.update(bar, description=f"{built.path.stem}: round {number + 1} of {VISITS}")
            order = list(workers)
            for peer in order[number % max(1, len(order)) :] + order[: number % max(1, len(order))]:
                _observe(results, workers, peer, lambda w, p=peer: samples[p].extend(w.visit(visit, ANSWER_S)))
            progress.advance(bar)
        for peer in list(workers):
            results[peer].update(summarize(samples[peer]))
            _observe(results, workers, peer, lambda w: w.finish(ANSWER_S))
    finally:
        for worker in workers.values():
            worker.stop()
        progress.remove_task(bar)
    return results


def _observe(results: dict[str, dict[str, Any]], workers: dict[str, Worker], peer: str, ask: Any) -> None:
    """Add an answer to the peer's result; a failure becomes its result and ends its worker."""
    try:
        results.setdefault(peer, {}).update(ask(workers[peer]) or {})
    except RammerError as failure:
        results[peer] = {"failed": failure.what}
        workers.pop(peer).stop()


def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def commit() -> dict[str, Any]:
    """The checkout's commit and whether files differ from it."""

    def git(*words: str) -> str:
        result = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        return result.stdout.strip()

    return {"id": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}


def describe(batch: int, work: Work, least: Floor, peers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One model's entry of the result file."""
    return {"batch": batch, "work": asdict(work), "floor": {**asdict(least), "ms": least.ms}, "peers": peers}


def chosen(text: str, known: list[str], what: str) -> list[str]:
    """Names of a comma-separated list. Raises a usage error for an unknown one."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"no {what} named {name!r}; {did_you_mean(name, known) or ', '.join(known)}")
    return names


def _known_models() -> list[str]:
    from benchmarks.models import CATALOG

    return [*CATALOG, *(LIGHT + name for name in light.NAMES)]


@click.command()
@click.option("--models", default="", help="Comma-separated; all of the paper's when empty; light_NAME for the others.")
@click.option("--peers", default="", help=f"Comma-separated, of {', '.join(PEERS)}.")
@click.option("--runs", default=1000, show_default=True, help="Timed runs per peer and model at most.")
@click.option("--seconds", default=5.0, show_default=True, help="Timed seconds per peer and model at most.")
@click.option("--batch", default=1, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--scale", type=click.Choice(["full", "small"]), default="full", show_default=True)
@click.option("--load-timeout", "load_timeout_s", default=240.0, show_default=True, help="Seconds to load and compile.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Result file instead of benchmarks/results/.")
def main(models: str, peers: str, output: Path | None, **values: Any) -> None:
    """Measure, write a JSON file and print a table."""
    options = Options(**values)
    known = _known_models()
    names = chosen(models, known, "model") or [name for name in known if not name.startswith(LIGHT)]
    selected = chosen(peers, list(PEERS), "peer") or [name for name, peer in PEERS.items() if peer.by_default]
    limit_threads(options.threads)
    console = wide_console()
    now = datetime.datetime.now(datetime.UTC)
    head = commit()
    output = output or RESULTS / f"{now:%Y%m%d-%H%M%S}-{head['id'][:8]}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    measured: list[tuple[str, int, Work, tuple[Any, ...], dict[str, dict[str, Any]]]] = []
    limits: Limits = measure(options.threads)
    with Progress(*columns, console=console, transient=True) as progress:
        for name in names:
            built, work, recurrences = prepare(name, options.batch, options.scale)
            source = "" if name.startswith(LIGHT) else name
            results = compare_peers(built, source, selected, options, progress)
            measured.append((name, options.batch if source else 1, work, recurrences, results))
            limits = limits.best(measure(options.threads))
            entries = {
                name: describe(size, work, floor(work, limits, chains, size), results)
                for name, size, work, chains, results in measured
            }
            content = {
                "date": now.isoformat(),
                "commit": head,
                "machine": machine(),
                "versions": {peer: PEERS[peer].version() for peer in selected},
                "options": asdict(options),
                "seed": light.SEED,
                "limits": limits.as_json(),
                "models": entries,
            }
            output.write_text(json.dumps(content, indent=1))  # after every model, so that an interrupted run keeps them
    console.print(limits_table(limits), results_table(entries))
    for peer in selected:
        if peer.startswith(OWN) and (speed := geometric_mean_speed(entries, peer)):
            console.print(f"{peer}: {speed:.2f} x the best peer of each model (geometric mean)")
    console.print(f"written to {output}", highlight=False)


if __name__ == "__main__":
    main()
