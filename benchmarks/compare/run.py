"""Measure rammer against its peers: `python -m benchmarks.compare.run --models lstm_tc_lstm,resnext29:4 --seconds 5`.

One process per peer. All peers of a model are alive at once and run in turns, some runs each, so that a change of the
machine's clock or load affects all of them.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.compare import forms
from benchmarks.compare.peers import PEERS, Task, limit_threads
from benchmarks.compare.report import OWN, is_own, print_results, summarize, wide_console
from benchmarks.compare.worker import Overdue, Visit, Worker
from benchmarks.micro.limits import Limits, measure
from benchmarks.models import catalog, light
from benchmarks.models.store import Scale
from benchmarks.on_paper.floors import Recurrence, Work, floor
from rammer import files
from rammer.errors import RammerError, did_you_mean

RESULTS = Path(__file__).parents[1] / "results"
VISITS = 12  # rounds, whatever the total
TRIAL = 2  # rounds after which a peer that is HOPELESS times slower than the best one is not visited any more
HOPELESS = 4.0
ANSWER_S = 120.0
DEFAULT_PEERS = ("rammer", "rammer-sequential", "onnxruntime", "openvino", "torch", "torch-compile", "jax", "iree")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a measurement. `runs` and `seconds` bound timed runs per peer and model, `priority` is for these."""

    scale: Scale
    threads: int
    runs: int
    seconds: float
    load_timeout_s: float
    cold: bool
    again: bool
    priority: int = 0


class Comparison:
    """All peers of one model, alive at once; `results` has what they answered, or the reason of their failure."""

    def __init__(self, entry: catalog.Entry, options: Options, say: Callable[[str], None]) -> None:
        self.results: dict[str, dict[str, Any]] = {}
        self._entry, self._options, self._say = entry, options, say
        self._workers: dict[str, Worker] = {}
        self._samples: dict[str, list[float]] = {}

    def load(self, peers: list[str]) -> None:
        """One after the other, so that load times are not disturbed."""
        path, options = str(self._entry.built.path), self._options
        for peer in peers:
            self._say(f"loading {peer}")
            cold = options.cold and peer == OWN
            task = Task(peer, path, self._entry.module, options.scale, options.threads, cold=cold)
            try:
                task = forms.choose(task, options.load_timeout_s, self._say, options.again, options.priority)
            except RammerError as failure:
                self.results[peer] = {"failed": failure.what}
                continue
            self._workers[peer] = Worker(task)
            self._observe(peer, lambda worker: worker.loaded(options.load_timeout_s))
            if self.results[peer].get("timeout"):
                forms.remember_timeout(task, options.load_timeout_s)

    def visit(self, number: int) -> None:
        """One round, in rotating order."""
        options = self._options
        visit = Visit(max(1, -(-options.runs // VISITS)), options.seconds / VISITS, options.priority)
        hopeful = self._hopeful() if number >= TRIAL else list(self._workers)
        self._say(f"round {number + 1} of {VISITS}, {len(hopeful)} peers")
        turn = number % max(1, len(hopeful))
        for peer in hopeful[turn:] + hopeful[:turn]:
            samples = self._samples.setdefault(peer, [])
            self._observe(peer, lambda worker, samples=samples: samples.extend(worker.visit(visit, ANSWER_S)))

    def finish(self) -> None:
        """Add the summaries and what peers tell at their end."""
        for peer in list(self._workers):
            self._say(f"asking {peer}")
            self.results[peer].update(summarize(self._samples[peer]))
            self._observe(peer, lambda worker: worker.finish(ANSWER_S))

    def stop(self) -> None:
        """End all processes."""
        for worker in self._workers.values():
            worker.stop()

    def _hopeful(self) -> list[str]:
        """Ours, and the peers that may be the best one."""
        least = {peer: min(self._samples[peer]) for peer in self._workers}
        best = min((ms for peer, ms in least.items() if not is_own(peer)), default=0.0)
        return [peer for peer, ms in least.items() if is_own(peer) or ms <= HOPELESS * best]

    def _observe(self, peer: str, ask: Callable[..., Any]) -> None:
        """Add an answer to the peer's result; a failure becomes its result and ends its worker."""
        try:
            self.results.setdefault(peer, {}).update(ask(self._workers[peer]) or {})
        except RammerError as failure:
            self.results[peer] = {"failed": failure.what, "timeout": isinstance(failure, Overdue)}
            self._workers.pop(peer).stop()


def compare_peers(
    entry: catalog.Entry, peers: list[str], options: Options, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Measure the peers of a model. Return for each its samples and observations, or the reason of its failure."""
    comparison = Comparison(entry, options, say)
    try:
        comparison.load(peers)
        for number in range(VISITS):
            comparison.visit(number)
        comparison.finish()
    finally:
        comparison.stop()
    return comparison.results


def measure_model(
    name: str, peers: list[str], options: Options, say: Callable[[str], None]
) -> tuple[dict[str, Any], Limits]:
    """The entry of the result file for NAME or NAME:BATCH, and the machine's limits right after."""
    say("building")
    entry = catalog.named(name, options.scale)
    results = compare_peers(entry, peers, options, say)
    limits = measure(options.threads)
    return {
        "batch": entry.batch,
        "work": asdict(entry.work),
        "recurrences": [asdict(chain) for chain in entry.recurrences],
        "limits_after": limits.as_json(),
        "load_average": os.getloadavg(),
        "peers": results,
    }, limits


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


def commit(besides: str = "") -> dict[str, Any]:
    """The checkout's commit and whether files differ from it, those of one folder left out."""
    where = ("--", ":/", f":!/{besides}") if besides else ()
    changed = _git("status", "--porcelain", "--untracked-files=no", *where).stdout.strip()
    return {"id": _git("rev-parse", "HEAD").stdout.strip(), "dirty": bool(changed)}


def has_commit(commit: str, earlier: str) -> bool:
    """Whether the history of a commit has an earlier one, or is it; False for one that is not known here.

    Raises RammerError if `earlier` is not known.
    """
    if _git("rev-parse", "--verify", "--quiet", f"{earlier}^{{commit}}").returncode:
        raise RammerError(f"no commit {earlier!r} in this checkout", hint="git log --oneline")
    return _git("merge-base", "--is-ancestor", earlier, commit).returncode == 0


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)


def with_floor(entry: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """One model's entry of the result file, with its floor under `limits`."""
    chains = tuple(Recurrence(**chain) for chain in entry["recurrences"])
    least = floor(Work(**entry["work"]), limits, chains, entry["batch"])
    return {**entry, "floor": {**asdict(least), "ms": least.ms}}


def chosen(text: str, known: list[str], what: str) -> list[str]:
    """Names of a comma-separated list. Raises a usage error for an unknown one."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if (bare := name.partition(":")[0]) not in known:
            raise click.BadParameter(f"no {what} named {name!r}; {did_you_mean(bare, known) or ', '.join(known)}")
    return names


def suite(name: str) -> list[str]:
    """Models by purpose: the paper's, its batch sizes, today's, the light ones of the onnx package, or all."""
    suites = {
        "paper": catalog.paper_names(),
        "batch": [f"{model}:{batch}" for batch in (4, 16) for model in catalog.BATCHED],
        "today": catalog.today_names(),
        "light": [catalog.LIGHT + model for model in light.LARGEST],
    }
    return suites[name] if name in suites else [model for models in suites.values() for model in models]


@click.command()
@click.option("--models", default="", help="Comma-separated; NAME:4 for batch 4; of every suite.")
@click.option("--suite", "suite_name", type=click.Choice(["paper", "batch", "today", "light", "all"]), default="paper")
@click.option("--peers", default=",".join(DEFAULT_PEERS), show_default=True, help=f"Of {', '.join(PEERS)}.")
@click.option("--runs", default=1000, show_default=True, help="Timed runs per peer and model at most.")
@click.option("--seconds", default=3.0, show_default=True, help="Timed seconds per peer and model at most.")
@click.option("--threads", default=2, show_default=True)
@click.option("--scale", type=click.Choice(["full", "small"]), default="full", show_default=True)
@click.option("--load-timeout", "load_timeout_s", default=240.0, show_default=True, help="Seconds to load and compile.")
@click.option("--cold", is_flag=True, help="rammer compiles with an empty cache, and again with a full one.")
@click.option(
    "--again", is_flag=True, help="Forget which form of a peer is fastest, and which one did not load in time."
)
@click.option("--priority", default=0, show_default=True, help="Real-time priority of timed runs, but not of loading.")
@click.option("--resume", is_flag=True, help="Keep what the result file has already of models with all these peers.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Result file instead of benchmarks/results/.")
def main(models: str, suite_name: str, peers: str, resume: bool, output: Path | None, **values: Any) -> None:
    """Measure, write a JSON file and print tables."""
    options = Options(**values)
    names = chosen(models, catalog.names(), "model") or suite(suite_name)
    selected = chosen(peers, list(PEERS), "peer")
    limit_threads(options.threads)
    console = wide_console()
    now, head = datetime.datetime.now(datetime.UTC), commit()
    output = output or RESULTS / f"{now:%Y%m%d-%H%M%S}-{head['id'][:8]}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    files.check_new(output)  # before hours of measuring
    earlier = json.loads(output.read_text()) if resume and output.exists() else None
    entries: dict[str, dict[str, Any]] = earlier["models"] if earlier else {}
    limits: Limits = measure(options.threads)
    if earlier:
        limits = limits.best(Limits.from_json(earlier["limits"]))
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(names))
        for name in names:
            if not set(selected) <= set(entries.get(name, {}).get("peers", ())):

                def say(what: str, name: str = name) -> None:
                    progress.update(bar, description=f"{name}: {what}")

                entries[name], near = measure_model(name, selected, options, say)
                entries[name]["commit"], limits = head, limits.best(near)
            entries = {key: with_floor(entry, limits) for key, entry in entries.items()}
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
            files.write(output, json.dumps(content, indent=1))  # after every model: an interrupted run keeps them
            progress.advance(bar)
    print_results(console, content)
    console.print(f"written to {output}", highlight=False)


if __name__ == "__main__":
    main()
