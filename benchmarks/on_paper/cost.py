"""Compare estimates of whole programs with measured times: `python -m benchmarks.on_paper.cost --suite all`.

A shared machine has fast and slow minutes. So calibration, measured rTasks and runs of the program take turns, until
the two lowest estimates agree and the two fastest runs agree. These are compared. A reference loop runs before and
after each turn; a turn in which its speed changed does not count.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import numpy as np
from rich.table import Table

import rammer
from benchmarks.compare.report import wide_console
from benchmarks.compare.run import chosen, commit, machine
from benchmarks.micro.limits import reference_us
from benchmarks.models import catalog
from benchmarks.models.store import BuiltModel
from rammer import files
from rammer.scheduler.timeline import simulate
from rammer.vdevice.base import TimedExecutable
from rammer.vdevice.cpu.device import CpuVDevice

STEADY = 0.03  # by which the two lowest of several times may differ, and the reference loop's before and after a turn
LEAST_RUNS = 5


@dataclass(frozen=True)
class Row:
    """One model: microseconds of the program on its vEUs, estimated and measured, and of a call; by turn.

    `single_us`: what one time per rKernel gives, wherever operands are. `reference`: the reference loop after each turn
    over before.
    """

    model: str
    estimated_us: list[float]
    single_us: list[float]
    measured_us: list[float]
    call_us: list[float]
    moved: dict[str, int]  # bytes by memory level, estimated
    reference: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The lowest estimate over the fastest run: what disturbs only makes slower."""
        return self.least(self.estimated_us) / self.least(self.measured_us)

    @property
    def single(self) -> float:
        """The same of `single_us`."""
        return self.least(self.single_us) / self.least(self.measured_us)

    @property
    def is_steady(self) -> bool:
        """Whether the two lowest of each agree, of turns that count."""
        return all(
            len(times) > 1 and sorted(times)[1] <= (1 + STEADY) * min(times)
            for times in map(self._counting, (self.estimated_us, self.measured_us))
        )

    @property
    def disturbed(self) -> int:
        """Turns around which the reference loop changed."""
        return sum(abs(change - 1) > STEADY for change in self.reference)

    def least(self, times: list[float]) -> float:
        """The lowest time of the turns that count; of all, if none does."""
        return min(self._counting(times) or times)

    def _counting(self, times: list[float]) -> list[float]:
        return [t for t, change in zip(times, self.reference, strict=True) if abs(change - 1) <= STEADY]


def measure(name: str, seconds: float, most_turns: int, policy: str) -> Row:
    """Compile with times of rTasks measured anew, and run; in turns."""
    built = catalog.named(name).built
    threads = CpuVDevice().spec.num_veus
    row = Row(name, [], [], [], [], {})
    with _own_cache() as folder:
        for _ in range(most_turns):
            for file in folder.glob("profiles.sqlite*"):
                file.unlink()  # the times, and not the machine code
            CpuVDevice().calibrate()  # in the same minutes as all else
            before = reference_us(threads)
            _turn(row, built, seconds, policy)
            row.reference.append(reference_us(threads) / before)
            if row.is_steady:
                break
    return row


def _turn(row: Row, built: BuiltModel, seconds: float, policy: str) -> None:
    with rammer.compile(str(built.path), "cpu", policy=policy) as program:
        executable, report = program.executable, program.report()
        assert isinstance(executable, TimedExecutable)
        single_us = simulate(program.plan, program.plan.rtask_us.__getitem__).total_us
        totals: list[float] = []
        calls: list[float] = []
        stop = time.perf_counter() + seconds
        while len(totals) < LEAST_RUNS or time.perf_counter() < stop:
            totals.append(executable.run_timed(built.inputs)[1].total_us)
            start = time.perf_counter()
            program.run(built.inputs)
            calls.append((time.perf_counter() - start) * 1e6)
    row.estimated_us.append(report.estimated_us)
    row.single_us.append(single_us)
    row.measured_us.append(min(totals))
    row.call_us.append(min(calls))
    row.moved.update(report.moved)


@contextmanager
def _own_cache() -> Iterator[Path]:
    """A cache in which nothing of other minutes is known."""
    before = os.environ.get("RAMMER_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RAMMER_CACHE_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["RAMMER_CACHE_DIR"]
            else:
                os.environ["RAMMER_CACHE_DIR"] = before


@click.command()
@click.option("--models", default="", help="Comma-separated; NAME:4 for batch 4; of every suite.")
@click.option("--suite", type=click.Choice(["paper", "today", "light", "all"]), default="all", show_default=True)
@click.option("--policy", default="auto", show_default=True)
@click.option("--seconds", default=1.0, show_default=True, help="Of running, per model and turn.")
@click.option("--turns", default=6, show_default=True, help="At most, until times agree.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the rows to a file.")
def main(models: str, suite: str, policy: str, seconds: float, turns: int, output: Path | None) -> None:
    """Print estimate over measured of every model, and how far estimates are off."""
    suites = {"paper": catalog.paper_names(), "today": catalog.today_names(), "light": catalog.light_names()}
    every = [name for names in suites.values() for name in names]
    names = chosen(models, every, "model") or suites.get(suite, every)
    if output:
        files.check_new(output)
    rows: list[Row] = []
    for name in names:
        rows.append(measure(name, seconds, turns, policy))
        _say(rows[-1])
        if output:
            content = {"commit": commit(), "machine": machine(), "rows": [asdict(row) for row in rows]}
            files.write(output, json.dumps(content, indent=1))
    _print(rows)


def _say(row: Row) -> None:
    unsteady = "" if row.is_steady else "; they do not agree"
    times = f"{row.least(row.estimated_us):.1f} of {row.least(row.measured_us):.1f} µs"
    disturbed = f", {row.disturbed} of them disturbed" if row.disturbed else ""
    click.echo(f"{row.model}: {times}, {row.ratio:.3f} ({len(row.measured_us)} turns{disturbed}{unsteady})")


def _print(rows: list[Row]) -> None:
    console = wide_console()
    names = ("model", "estimated ms", "measured ms", "ratio", "one time", "call ms", "turns", "MiB moved, estimated")
    table = Table(*names, box=None)
    for row in rows:
        moved = ", ".join(f"{level} {nbytes / (1 << 20):.1f}" for level, nbytes in row.moved.items() if nbytes)
        estimated, measured, call = (
            f"{row.least(us) / 1e3:.3f}" for us in (row.estimated_us, row.measured_us, row.call_us)
        )
        ratios = f"{row.ratio:.3f}", f"{row.single:.3f}"
        differ = "" if row.is_steady else ", they differ"
        turns = f"{len(row.measured_us) - row.disturbed} of {len(row.measured_us)}{differ}"
        table.add_row(row.model, estimated, measured, *ratios, call, turns, moved)
    console.print(table)
    unsteady = sum(not row.is_steady for row in rows)
    console.print(f"{len(rows)} models, {unsteady} of them unsteady; |log ratio|:", highlight=False)
    for what, found in (("estimates", [r.ratio for r in rows]), ("by one time per rKernel", [r.single for r in rows])):
        off = np.abs(np.log(found))
        spread = f"median {np.median(off):.3f}, 90th percentile {np.percentile(off, 90):.3f}"
        console.print(f"  {what}: {spread}", highlight=False)


if __name__ == "__main__":
    main()
