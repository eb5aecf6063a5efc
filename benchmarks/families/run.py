"""Measure a folder of models against ONNX Runtime, and OpenVINO where it is installed, in turns in one process.

python -m benchmarks.families.run FOLDER --prepare
python -m benchmarks.families.run FOLDER --json families.json

The folder is one that `benchmarks.families` wrote. Programs are compiled first and saved beside the models, so that the
measured process only loads them, as a user's would. What the file has already is kept. `x floor` is the time over that
of the multiply-adds as written, at the measured rate of this machine, or of reading the weights once.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import onnx
from onnx import numpy_helper

import rammer
from benchmarks.compare.run import commit, machine
from benchmarks.micro.limits import Limits, measure
from benchmarks.on_paper.floors import count, floor
from benchmarks.operators.run import Way, add_peers, add_ratios, in_turns, least_of_both
from rammer.errors import RammerError
from rammer.ir.tensor import Array

SAVED = "model.rammer"


def prepared(model: Path, threads: int) -> str:
    """Compile and save a model's program, unless it is there. Return why it was refused, or an empty string."""
    saved = model.with_name(SAVED)
    if not saved.exists():
        try:
            with rammer.compile(model, "cpu", device=threads, tune_seconds=0) as program:
                program.save(saved)
        except RammerError as failure:
            return failure.what
    return ""


def inputs_of(model: Path) -> dict[str, Array]:
    """Return the arrays that the model was exported with."""
    tensors = [onnx.load_tensor(path) for path in sorted(model.parent.glob("test_data_set_0/input_*.pb"))]
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}


def measured(model: Path, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Return times by way to call, and the largest error relative to the first peer's largest result."""
    found: dict[str, Any] = {"family": model.parents[1].name, "name": model.parent.name, "failed": {}}
    if refused := prepared(model, threads):
        found["failed"]["rammer"] = refused
        return found
    inputs, proto = inputs_of(model), onnx.load(model)
    with closing(rammer.load(model.with_name(SAVED), device=threads)) as program:
        bound = program.bind(inputs)
        ways: dict[str, Way] = {"run": lambda: [*program.run(inputs).values()], "bound": bound}
        results = ways["run"]()
        add_peers(found, ways, results, proto, inputs, threads)
        found["ways"] = in_turns(ways, rounds, seconds)
    return found


def line(found: dict[str, Any]) -> str:
    """Return a row of the table: milliseconds."""
    name = f"{found['family']}/{found['name']}"
    if "ways" not in found:
        return f"| {name} | refused: {found['failed']['rammer']} |"
    ms = [f"{t['min_us'] / 1e3:.2f} ({t['median_us'] / 1e3:.2f}, {t['n']})" for t in found["ways"].values()]
    above = found["ways"]["bound"]["min_us"] / 1e3 / found.get("floor_ms", math.nan)
    ratio, error = found.get("ratio", math.nan), found.get("error", math.nan)
    return f"| {name} | {' | '.join(ms)} | {ratio:.2f} | {above:.2f} | {error:.0e} |"


def add_floor(found: dict[str, Any], model: Path, limits: Limits) -> None:
    """Add the least milliseconds of a model on this machine, or why ONNX cannot infer the shapes of its products."""
    try:
        found["floor_ms"] = floor(count(model), limits).ms
    except Exception as error:  # its evaluator raises anything
        found["failed"]["floor"] = f"{type(error).__name__}: {error}"


def chosen(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the models whose FAMILY/NAME has this regular expression in it."""
    for model in sorted(folder.glob("*/*/model.onnx")):
        if re.search(pattern, f"{model.parents[1].name}/{model.parent.name}"):
            yield model


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--models", default="", help="A regular expression that FAMILY/NAME has in it.")
@click.option("--prepare", is_flag=True, help="Only compile and save.")
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=6, show_default=True)
@click.option("--seconds", default=0.6, show_default=True, help="Of timed calls, for each way to call.")
@click.option("--below", default=0.0, help="Again what the file has below this ratio; the least of both counts.")
@click.option("--limit", default=600.0, show_default=True, help="Seconds after which no further model begins.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Result file.")
def main(
    folder: Path,
    models: str,
    prepare: bool,
    threads: int,
    rounds: int,
    seconds: float,
    below: float,
    limit: float,
    path: Path | None,
) -> None:
    """Print minima (and medians, and numbers of calls) in milliseconds, and ratios."""
    if prepare:
        for model in chosen(folder, models):
            begin = time.perf_counter()
            print(model.parent, prepared(model, threads) or f"{time.perf_counter() - begin:.1f} s", flush=True)
        return
    end, limits = time.monotonic() + limit, measure(threads)
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {"results": []}
    known = {(r["family"], r["name"]): r for r in kept["results"]}
    for model in chosen(folder, models):
        key = model.parents[1].name, model.parent.name
        if time.monotonic() > end or (key in known and not known[key].get("ratio", below) < below):
            continue
        found = least_of_both(measured(model, threads, rounds, seconds), known.get(key, {}))
        if "ways" in found:
            add_ratios(found)
            add_floor(found, model, limits)
        print(line(found), flush=True)
        known[key] = found
        if path:
            content = {"machine": machine(), "commit": commit(), "results": [*known.values()]}
            path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    for family in sorted({family for family, _ in known}):
        ratios = [r["ratio"] for (f, _), r in known.items() if f == family and "ratio" in r]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            print(f"{family}: {len(ratios)} models, geometric mean {mean:.2f}, {sum(r < 1 for r in ratios)} below 1")


if __name__ == "__main__":
    main()
