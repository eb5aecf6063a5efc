"""Measure what checks cost: `python -m benchmarks.micro.checks [--models NAME,…] [--runs 5]`.

Each model is compiled with an empty cache, and once more with the cache that it left. Shares are of the whole
compilation, by the clock: `verify` (plan), `image` (R301 …) and `run` (R212).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.models.catalog import named

CHECKS = ("verify", "image", "run")
USUAL = (
    "lstm_tc_lstm,seq2seq_lstm,resnext29_grouped,today_vad,today_keyword,today_gru4rec,today_mobilenet_v2,"
    "today_resnet18,today_minilm_32,today_vit_tiny,today_swin_tiny,light_squeezenet"
)


def compiled(model: Path, cache: str) -> dict[str, Any]:
    """Seconds of a compilation in a process of its own, by phase."""
    command = [sys.executable, "-m", "benchmarks.compare.compile", str(model), os.devnull, "--no-save"]
    environment = {**os.environ, "RAMMER_CACHE_DIR": cache}
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@click.command()
@click.option("--models", default=USUAL, show_default=True)
@click.option("--runs", default=5, show_default=True)
def main(models: str, runs: int) -> None:
    """Print seconds of compilations, cold, and the share of each check in them; medians."""
    print("| model | cold s | warm s |" + "".join(f" {c} % |" for c in CHECKS) + " run warm s |")
    print("|---|---|---|" + "---|" * len(CHECKS) + "---|")
    shares: dict[str, list[float]] = {check: [] for check in CHECKS}
    for name in models.split(","):
        path = named(name).built.path
        cold, warm = [], []
        for _ in range(runs):
            with tempfile.TemporaryDirectory(prefix="rammer-checks-") as cache:
                cold.append(compiled(path, cache))
                warm.append(compiled(path, cache))
        found = {c: 100 * median(r["phases_s"].get(c, 0.0) / r["s"] for r in cold) for c in CHECKS}
        for check, share in found.items():
            shares[check].append(share)
        row = [f"{median(r['s'] for r in kind):.2f}" for kind in (cold, warm)]
        row += [f"{share:.1f}" for share in found.values()]
        row.append(f"{median(r['phases_s'].get('run', 0.0) for r in warm):.3f}")
        print(f"| {name} | {' | '.join(row)} |", flush=True)
    print("| median | | |" + "".join(f" {median(found):.1f} |" for found in shares.values()) + " |")


if __name__ == "__main__":
    main()
