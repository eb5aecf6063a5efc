"""What the cost model believes of whole programs against what they take: `python -m benchmarks.cost --suite all`.

rTasks are measured anew for every model, in the same minutes as the program: a shared machine has fast and slow ones.
A reference loop runs before and after; where it changed, the model is measured again.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from rich.table import Table

import rammer
from benchmarks import catalog
from benchmarks.limits import measure as machine_limits
from benchmarks.report import wide_console
from benchmarks.run import chosen, commit, machine
from rammer import files
from rammer.vdevice.base import TimedExecutable

STEADY = 0.03  # change of the reference loop up to which a measurement counts
ATTEMPTS = 3


@dataclass(frozen=True)
class Row:
    """One model: microseconds of the program on its vEUs, estimated and measured (minimum), and of a call."""

    model: str
    estimated_us: float
    measured_us: float
    call_us: float
    runs: int
    reference: float  # how much the reference loop changed meanwhile
    moved: dict[str, int]  # bytes by memory level, estimated

    @property
    def ratio(self) -> float:
        return self.estimated_us / self.measured_us

    @property
    def is_steady(self) -> bool:
        return self.reference <= STEADY


def measure(name: str, seconds: float, policy: str) -> Row:
    """Compile with times of rTasks measured now, and run. The steadiest of a few attempts."""
    bare, _, batch = name.partition(":")
    built = catalog.prepare(bare, int(batch or 1), "full").built
    rows: list[Row] = []
    while not rows or (not rows[-1].is_steady and len(rows) < ATTEMPTS):
        with _fresh_times():
            before = _reference_gflops()
            with rammer.compile(str(built.path), "cpu", policy=policy) as program:
                executable, report = program.executable, program.report()
                assert isinstance(executable, TimedExecutable)
                totals, calls = [], []
                stop = time.perf_counter() + seconds
                while len(totals) < 5 or time.perf_counter() < stop:
                    totals.append(executable.run_timed(built.inputs)[1].total_us)
                    start = time.perf_counter()
                    program.run(built.inputs)
                    calls.append((time.perf_counter() - start) * 1e6)
            change = abs(_reference_gflops() / before - 1)
        rows.append(Row(name, report.estimated_us, min(totals), min(calls), len(totals), change, dict(report.moved)))
    return min(rows, key=lambda row: row.reference)


@contextmanager
def _fresh_times() -> Iterator[None]:
    """A cache of its own, so that nothing of other minutes is known."""
    before = os.environ.get("RAMMER_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RAMMER_CACHE_DIR"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["RAMMER_CACHE_DIR"]
            else:
                os.environ["RAMMER_CACHE_DIR"] = before


def _reference_gflops() -> float:
    """The rate of multiply-adds on all cores."""
    return machine_limits(os.cpu_count() or 1).gflops


@click.command()
@click.option("--models", default="", help="Comma-separated; NAME:4 for batch 4, light_NAME for the onnx package's.")
@click.option("--suite", type=click.Choice(["paper", "light", "all"]), default="all", show_default=True)
@click.option("--policy", default="wavefront", show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="Of running, per model.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the rows to a file.")
def main(models: str, suite: str, policy: str, seconds: float, output: Path | None) -> None:
    """Print estimate over measured of every model, and how far estimates are off."""
    suites = {"paper": catalog.paper_names(), "light": catalog.light_names()}
    names = chosen(models, [*suites["paper"], *suites["light"]], "model")
    names = names or suites.get(suite) or [*suites["paper"], *suites["light"]]
    if output:
        files.check_new(output)
    rows: list[Row] = []
    for name in names:
        rows.append(measure(name, seconds, policy))
        _say(rows[-1])
        if output:
            content = {"commit": commit(), "machine": machine(), "rows": [asdict(row) for row in rows]}
            files.write(output, json.dumps(content, indent=1))
    _print(rows)


def _say(row: Row) -> None:
    unsteady = "" if row.is_steady else f"; the reference loop changed by {row.reference:.0%}"
    click.echo(f"{row.model}: {row.estimated_us:.1f} of {row.measured_us:.1f} µs, {row.ratio:.3f}{unsteady}")


def _print(rows: list[Row]) -> None:
    console = wide_console()
    table = Table("model", "estimated ms", "measured ms", "ratio", "call ms", "runs", "MiB moved (estimated)", box=None)
    for row in rows:
        moved = ", ".join(f"{level} {nbytes / (1 << 20):.1f}" for level, nbytes in row.moved.items() if nbytes)
        times = (f"{us / 1e3:.3f}" for us in (row.estimated_us, row.measured_us))
        table.add_row(row.model, *times, f"{row.ratio:.3f}", f"{row.call_us / 1e3:.3f}", str(row.runs), moved)
    console.print(table)
    off = np.abs(np.log([row.ratio for row in rows]))
    console.print(
        f"{len(rows)} models, {sum(not row.is_steady for row in rows)} of them in unsteady minutes: "
        f"|log ratio| median {np.median(off):.3f}, 90th percentile {np.percentile(off, 90):.3f}",
        highlight=False,
    )


if __name__ == "__main__":
    main()
