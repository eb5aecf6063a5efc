"""Compare two result files: `python -m benchmarks.compare.diff base.json new.json`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from benchmarks.compare.report import wide_console

NOISE = 0.03  # a smaller change says nothing on a shared machine


def changes(base: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """(model, peer, base result, new result) of what both files measured."""
    for name, model in new["models"].items():
        before = base["models"].get(name)
        if before is None or before["batch"] != model["batch"]:
            continue
        for peer, result in model["peers"].items():
            earlier = before["peers"].get(peer, {})
            if "min_ms" in result and "min_ms" in earlier:
                yield name, peer, earlier, result


@click.command()
@click.argument("base", type=click.Path(exists=True, path_type=Path))
@click.argument("new", type=click.Path(exists=True, path_type=Path))
def main(base: Path, new: Path) -> None:
    """Print minima and medians of BASE and NEW side by side; a ratio above 1 means that NEW is faster."""
    console = wide_console()
    rows = list(changes(json.loads(base.read_text()), json.loads(new.read_text())))
    if not rows:
        raise click.ClickException(f"{base} and {new} have no model and peer in common at the same batch")
    table = Table("model", "peer", "min ms", "new min", "ratio", "median ms", "new median", "ratio", "", box=None)
    ratios: dict[str, list[float]] = {}
    for name, peer, earlier, result in rows:
        by_min = earlier["min_ms"] / result["min_ms"]
        by_median = earlier["median_ms"] / result["median_ms"]
        ratios.setdefault(peer, []).append(by_min)
        verdict = ""
        if min(by_min, by_median) > 1 + NOISE:
            verdict = "faster"
        elif max(by_min, by_median) < 1 - NOISE:
            verdict = "slower"
        figures = (earlier["min_ms"], result["min_ms"], by_min, earlier["median_ms"], result["median_ms"], by_median)
        table.add_row(name, peer, *(f"{figure:.2f}" for figure in figures), verdict)
    console.print(table)
    for peer, values in ratios.items():
        console.print(
            f"{peer}: {statistics.geometric_mean(values):.3f} x over {len(values)} models (geometric mean of minima)"
        )


if __name__ == "__main__":
    main()
