"""Hold the results of a benchmark run as data, and print their tables: `python -m benchmarks.compare.report FILE`."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.micro.limits import Limits

OWN = "rammer"  # peers of this name, or starting with it and a dash, are ours

Result = Mapping[str, Any]


def wide_console() -> Console:
    """Return a console that keeps tables whole if the output is a file or a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=170)


def summarize(samples_ms: list[float]) -> dict[str, Any]:
    """Return minimum, median, mean, standard deviation and number of samples."""
    return {
        "min_ms": min(samples_ms),
        "median_ms": statistics.median(samples_ms),
        "mean_ms": statistics.fmean(samples_ms),
        "stdev_ms": statistics.stdev(samples_ms) if len(samples_ms) > 1 else 0.0,
        "n": len(samples_ms),
        "samples_ms": [round(sample, 4) for sample in samples_ms],
    }


def best_peer(peers: Mapping[str, Result]) -> str | None:
    """Return the peer with the smallest minimum, without rammer itself."""
    others = {name: p["min_ms"] for name, p in peers.items() if "min_ms" in p and not is_own(name)}
    return min(others, key=lambda name: others[name]) if others else None


def is_own(peer: str) -> bool:
    return peer == OWN or peer.startswith(f"{OWN}-")


def limits_table(limits: Limits) -> Table:
    """The machine's limits."""
    table = Table("limit", f"{limits.threads} threads", box=None)
    table.add_row("float32 FMA", f"{limits.gflops:.0f} GFLOP/s")
    for level in limits.levels:
        table.add_row(f"read {level.name}", f"{level.read_gbps:.0f} GB/s")
    return table


def results_table(models: Mapping[str, Result]) -> Table:
    """One row per model and peer; `speed` is the best peer's minimum over this one's."""
    columns = (
        "model",
        "peer",
        "min ms",
        "median ms",
        "n",
        "error",
        "load s",
        "peak MB",
        "model MB",
        "x floor",
        "speed",
    )
    table = Table(box=None)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < 2 else "right", no_wrap=i != 1)
    for name, model in models.items():
        floor_ms, peers = model["floor"]["ms"], model["peers"]
        best = best_peer(peers)
        label = f"{name} (floor {floor_ms:.2f})"
        for peer, result in peers.items():
            if "failed" in result:
                table.add_row(label, f"{peer}: {result['failed']}", *[""] * (len(columns) - 2), style="yellow")
            else:
                form = f" ({result['form']})" if "form" in result else ""
                table.add_row(
                    label,
                    peer + form,
                    f"{result['min_ms']:.2f}",
                    f"{result['median_ms']:.2f}",
                    f"{result['n']}",
                    f"{result['error']:.0e}",
                    f"{result['load_s']:.1f}",
                    f"{result['peak_mb']:.0f}",
                    f"{result['model_mb']:.0f}",
                    f"{result['min_ms'] / floor_ms:.2f}",
                    f"{peers[best]['min_ms'] / result['min_ms']:.2f}" if best else "",
                    style="bold" if is_own(peer) else "",
                )
            label = ""
    return table


def summary_table(models: Mapping[str, Result]) -> Table:
    """Return one row per model: rammer against its best peer, by minimum and by median, with the costs of compiling.

    `overhead` is the share of the vEUs' time outside of rTasks, `no rTask` the share of the run in which no vEU is in
    one. Memory is what loading and running adds to the process, for rammer and for ONNX Runtime, next to the size of
    the weights.
    """
    columns = ("model", "ms", "best peer", "ms", "by min", "by median", "x floor", "overhead", "no rTask")
    table = Table(box=None)
    for i, column in enumerate((*columns, "MB", "weights", "onnxrt", "compile s", "again s", "start s")):
        table.add_column(column, justify="left" if i in (0, 2) else "right")
    for name, model in models.items():
        peers, own = model["peers"], model["peers"].get(OWN, {})
        best = best_peer(peers)
        if best is None or "min_ms" not in own:
            table.add_row(name, own.get("failed", ""), style="yellow")
            continue
        other, compiled, usage = peers[best], own.get("compile", {}), own.get("usage", {})
        table.add_row(
            name,
            f"{own['min_ms']:.2f}",
            best,
            f"{other['min_ms']:.2f}",
            f"{other['min_ms'] / own['min_ms']:.2f}",
            f"{other['median_ms'] / own['median_ms']:.2f}",
            f"{own['min_ms'] / model['floor']['ms']:.2f}",
            f"{usage['overhead']:.1%}" if usage else "",
            f"{usage['scheduling']:.1%}" if usage else "",
            f"{own['model_mb']:.0f}",
            f"{model['work']['weight_bytes'] / 2**20:.0f}",
            f"{peers['onnxruntime']['model_mb']:.0f}" if "model_mb" in peers.get("onnxruntime", {}) else "",
            f"{compiled['s']:.1f}{'' if compiled['cold'] else ' (warm)'}" if compiled else "",
            f"{compiled['again_s']:.1f}" if "again_s" in compiled else "",
            f"{own['load_s']:.2f}",
        )
    return table


def print_results(console: Console, content: Result) -> None:
    """The tables of a result file and the geometric means."""
    models = content["models"]
    console.print(limits_table(Limits.from_json(content["limits"])), results_table(models), summary_table(models))
    for peer in (OWN, f"{OWN}-sequential"):
        if speed := geometric_mean_speed(models, peer):
            console.print(f"{peer}: {speed:.2f} x the best peer of each model (geometric mean over {len(models)})")


def geometric_mean_speed(models: Mapping[str, Result], peer: str) -> float | None:
    """Return the geometric mean over models of the best other peer's minimum divided by `peer`'s."""
    ratios = []
    for model in models.values():
        best = best_peer(model["peers"])
        own = model["peers"].get(peer, {})
        if best and "min_ms" in own:
            ratios.append(model["peers"][best]["min_ms"] / own["min_ms"])
    return statistics.geometric_mean(ratios) if ratios else None


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
def main(file: Path) -> None:
    """Print the tables of a result FILE."""
    print_results(wide_console(), json.loads(file.read_text()))


if __name__ == "__main__":
    main()
