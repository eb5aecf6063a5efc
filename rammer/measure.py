"""Timing programs side by side, and the tables that show it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Column, Table

from rammer.ir.tensor import Array, DType
from rammer.program import Program
from rammer.report import OperatorRow
from rammer.vdevice.base import Port, TimedExecutable


@dataclass(frozen=True)
class Samples:
    """Seconds of single runs."""

    seconds: list[float]

    @property
    def median_ms(self) -> float:
        return float(np.median(self.seconds)) * 1e3

    @property
    def min_ms(self) -> float:
        return min(self.seconds) * 1e3

    def summary(self) -> dict[str, Any]:
        return {"min_ms": self.min_ms, "median_ms": self.median_ms, "n": len(self.seconds)}


def random_inputs(ports: Sequence[Port], seed: int) -> dict[str, Array]:
    """Seeded values: standard normal floats, small non-negative integers, random booleans."""
    random = np.random.default_rng(seed)

    def draw(port: Port) -> Array:
        shape, dtype = port.type.shape, port.type.dtype
        if dtype.is_float:
            return np.asarray(random.standard_normal(shape)).astype(dtype.numpy)
        return np.asarray(random.integers(0, 2, shape)).astype(DType(dtype).numpy)

    return {port.name: draw(port) for port in ports}


def interleaved(programs: Mapping[str, Program], seconds: float) -> dict[str, Samples]:
    """Run the programs in turn on the same inputs until the time is over; a warm-up round comes first."""
    inputs = {name: random_inputs(p.inputs, 0) for name, p in programs.items()}
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for name, program in programs.items():
        program.run(inputs[name])
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or any(len(s) < 3 for s in samples.values()):
        for name, program in programs.items():
            for _ in range(4):  # a few runs in a row: the first finds cold caches
                start = time.perf_counter()
                program.run(inputs[name])
                samples[name].append(time.perf_counter() - start)
    return {name: Samples(s) for name, s in samples.items()}


def profile(programs: Mapping[str, Program], seconds: float) -> None:
    """Let the programs' reports say where their time goes, where the vDevice can tell."""
    for program in programs.values():
        if isinstance(program.executable, TimedExecutable):
            program.profile(random_inputs(program.inputs, 0), seconds=seconds / len(programs))


def policy_table(programs: Mapping[str, Program], samples: Mapping[str, Samples]) -> Table:
    """Policies side by side; ratios are to the first one."""
    table = Table(
        Column("policy", no_wrap=True),
        "rPrograms",
        "rTasks",
        "barriers",
        "estimate ms",
        "min ms",
        "median ms",
        "n",
        "outside rTasks",
        "speed-up",
    )
    first = next(iter(samples.values()))
    for name, program in programs.items():
        report, mine = program.report(), samples[name]
        table.add_row(
            name,
            str(report.num_rprograms),
            str(report.num_rtasks),
            str(report.num_barriers),
            f"{report.estimated_us / 1e3:.3f}",
            f"{mine.min_ms:.3f}",
            f"{mine.median_ms:.3f}",
            str(len(mine.seconds)),
            f"{report.usage.overhead:.1%}" if report.usage else "-",
            f"{first.median_ms / mine.median_ms:.2f}×",
        )
    return table


def operator_table(program: Program, rows: int) -> Table:
    """The operators that cost most: measured in runs where the vDevice can tell, or as the scheduler believed."""
    report = program.report()
    believed = [o.rtask_us * o.num_rtasks for o in report.operators]
    spent = report.usage.operator_us if report.usage else believed
    total = sum(spent) or 1.0
    grouped: dict[tuple[str, str], list[OperatorRow]] = {}
    cost: dict[tuple[str, str], float] = {}
    for o, us in zip(report.operators, spent, strict=True):
        grouped.setdefault((o.kind, o.rkernel), []).append(o)
        cost[o.kind, o.rkernel] = cost.get((o.kind, o.rkernel), 0.0) + us
    table = Table(
        Column("operator", no_wrap=True),
        Column("rKernel", overflow="fold"),
        "count",
        "rTasks each",
        "µs per rTask",
        "GFLOP/s",
        "of all work",
        title="measured" if report.usage else "estimated",
    )
    for key in sorted(grouped, key=lambda k: -cost[k])[:rows]:
        kind, rkernel = key
        found = grouped[key]
        table.add_row(
            escape(kind),
            escape(rkernel),
            str(len(found)),
            str(found[0].num_rtasks),
            f"{cost[key] / sum(o.num_rtasks for o in found):.2f}",
            f"{sum(o.mflop for o in found) * 1e3 / cost[key]:.0f}" if cost[key] else "-",
            f"{cost[key] / total:.1%}",
        )
    return table
