"""Print tables of the times of programs."""

from __future__ import annotations

from collections.abc import Mapping
from math import log

from rich.markup import escape
from rich.table import Column, Table

from rammer.errors import duration
from rammer.runtime.measure import Samples
from rammer.runtime.program import Program
from rammer.runtime.report import OperatorRow

NOISE = "spread: the distance of the quartiles; (noise): by these samples, the medians do not differ"


def policy_table(
    programs: Mapping[str, Program], samples: Mapping[str, Samples], same: Mapping[str, str] | None = None
) -> Table:
    """Return a table of policies, and of other systems, side by side; ratios are to the first one.

    `same`: by policy, the first one whose plan is equal.
    """
    columns = ("rPrograms", "rTasks", "barriers", "estimate", "min", "median", "spread", "n", "outside rTasks")
    names = [*programs, *(name for name in samples if name not in programs)]
    first = samples[names[0]]
    most_us = 1e3 * max(found.median_ms for found in samples.values())
    table = Table(Column("policy", no_wrap=True), *columns, f"to {names[0]}", caption=NOISE)
    for name in names:
        mine, report = samples[name], programs[name].report() if name in programs else None
        counts = ["-"] * 4
        if report:
            counts = [*map(str, (report.num_rprograms, report.num_rtasks, report.num_barriers))]
            counts.append(duration(report.estimated_us, most_us))
        ratio = first.median_ms / mine.median_ms
        equal = abs(log(ratio)) <= first.noise + mine.noise
        if (other := (same or {}).get(name, name)) != name:
            table.add_row(escape(name), *counts, *["-"] * 5, f"the plan of {escape(other)}")
            continue
        table.add_row(
            escape(name),
            *counts,
            duration(1e3 * mine.min_ms, most_us),
            duration(1e3 * mine.median_ms, most_us),
            f"{mine.spread:.0%}",
            str(len(mine.seconds)),
            f"{report.usage.overhead:.1%}" if report and report.usage else "-",
            "1×" if mine is first else f"{ratio:.2f}×{' (noise)' if equal else ''}",
        )
    return table


def operator_table(program: Program, rows: int) -> Table:
    """Return a table of the most expensive operators: measured times if the vDevice has them, else estimates."""
    report = program.report()
    estimated = [o.rtask_us * o.num_rtasks for o in report.operators]
    spent = report.usage.operator_us if report.usage else estimated
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
