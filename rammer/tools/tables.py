"""Print tables of the times of programs."""

from __future__ import annotations

from collections.abc import Mapping

from rich.markup import escape
from rich.table import Column, Table

from rammer.runtime.measure import Samples
from rammer.runtime.program import Program
from rammer.runtime.report import OperatorRow


def policy_table(programs: Mapping[str, Program], samples: Mapping[str, Samples]) -> Table:
    """Return a table of policies side by side; ratios are to the first one."""
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
