"""Make the paper's evaluation: `python -m benchmarks.paper --all`, `--only figure17`, `--list`."""

from __future__ import annotations

from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.compare.report import wide_console
from benchmarks.compare.run import chosen
from benchmarks.paper import book, results
from benchmarks.paper.figures import FIGURES
from benchmarks.paper.runner import Options, Runner
from rammer.errors import RammerError


@click.command()
@click.option("--all", "every", is_flag=True, help="All figures.")
@click.option("--only", default="", help="Comma-separated names of figures.")
@click.option("--list", "list_only", is_flag=True, help="Print the figures and what is made of them, and stop.")
@click.option("--render", is_flag=True, help="Write the book from the results that are there, and make nothing.")
@click.option("--measure", is_flag=True, help="Also what must be measured: on a machine that does nothing else.")
@click.option("--parts", default="", help="Only jobs whose name contains this.")
@click.option("--minutes", type=float, help="Begin no further part after so long; the same command goes on.")
@click.option("--workers", default=0, help="Processes for what is not measured (rammer[distributed]).")
@click.option("--scheduler", help="A Dask scheduler whose workers do that: tcp://host:8786.")
@click.option("--again", is_flag=True, help="Make what is there already once more.")
@click.option("--since", default="", help="Also once more what was made without this commit; the same command goes on.")
def main(every: bool, only: str, list_only: bool, render: bool, minutes: float | None, **options: Any) -> None:
    """Make figures of the paper's evaluation, keep their results, and write the book."""
    console = wide_console()
    if list_only:
        for figure in FIGURES.values():
            made, jobs = results.of_figure(figure), sum(1 for job in figure.jobs())
            by = ", ".join(sorted({f"{point.source.kind} by {point.commit}" for point in made.values()}))
            console.print(f"{figure.name:18} {len(made):3} of {jobs:3} parts  {by}", highlight=False)
        return
    names = list(FIGURES) if every else chosen(only, list(FIGURES), "figure")
    if not names and not render:
        raise click.UsageError("name figures with --only, or take --all (--list prints them)")
    failed = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bars = {name: progress.add_task(name, total=None) for name in names}

        def tick(figure: str, job: str, done: int, total: int) -> None:
            progress.update(bars[figure], description=f"{figure}: {job}", completed=done, total=total)

        def say(line: str) -> None:
            progress.console.print(line, style="yellow", markup=False)

        if not render:
            runner = Runner(Options(minutes=minutes or float("inf"), **options), say, tick)
            try:
                for name in names:
                    runner.make(FIGURES[name])
            except RammerError as error:  # not a part's own: no scheduler, no such commit
                raise click.ClickException(str(error)) from error
            failed = runner.failed
    book.write(FIGURES.values())
    console.print(f"written to {results.BOOK}", highlight=False)
    if failed:
        raise click.ClickException(f"{failed} parts failed")


if __name__ == "__main__":
    main()
