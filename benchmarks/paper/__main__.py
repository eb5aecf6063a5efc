"""The paper's evaluation: `python -m benchmarks.paper --all`, `--only figure17`, `--list`."""

from __future__ import annotations

import datetime
import time

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.paper import book, results
from benchmarks.paper.figure import Job, Point
from benchmarks.paper.figures import FIGURES
from benchmarks.report import wide_console
from benchmarks.run import chosen, commit
from rammer.errors import RammerError

BOOK = "docs/evaluation"  # what is written there does not change what wrote it


@click.command()
@click.option("--all", "every", is_flag=True, help="All figures.")
@click.option("--only", default="", help="Comma-separated names of figures.")
@click.option("--list", "list_only", is_flag=True, help="Print the figures and what is made of them, and stop.")
@click.option("--render", is_flag=True, help="Write the book from the results that are there, and make nothing.")
@click.option("--measure", is_flag=True, help="Also what must be measured: on a machine that does nothing else.")
@click.option("--parts", default="", help="Only jobs whose name contains this.")
@click.option("--minutes", type=float, help="Begin no further part after so long; the same command goes on.")
@click.option("--again", is_flag=True, help="Make what is there already once more.")
def main(
    every: bool,
    only: str,
    list_only: bool,
    render: bool,
    measure: bool,
    parts: str,
    minutes: float | None,
    again: bool,
) -> None:
    """Make figures of the paper's evaluation, keep their results, and write the book."""
    console = wide_console()
    if list_only:
        for figure in FIGURES.values():
            jobs = {job.key for job in figure.jobs()}
            made = len(jobs & results.load(figure.name).keys())
            console.print(f"{figure.name:10} {made:3} of {len(jobs):3} parts  {figure.caption}", highlight=False)
        return
    names = list(FIGURES) if every else chosen(only, list(FIGURES), "figure")
    if not names and not render:
        raise click.UsageError("name figures with --only, or take --all (--list prints them)")
    failed, head = 0, _head()  # of when this process began: files may change meanwhile
    end = time.monotonic() + 60 * minutes if minutes else float("inf")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name in [] if render else names:
            figure, known = FIGURES[name], results.load(name)
            wanted = [job for job in figure.jobs() if (again or job.key not in known) and parts in job.key]
            left = [job for job in wanted if measure or not job.measures]
            if len(left) < len(wanted):
                progress.console.print(f"{name}: {len(wanted) - len(left)} parts are to be measured: --measure")
            bar = progress.add_task(name, total=len(left))
            for job in left:
                if time.monotonic() > end:
                    break
                progress.update(bar, description=f"{name}: {job.key}")
                try:
                    known[job.key] = _made(job, head)
                    results.store(name, known)
                except RammerError as error:  # the others go on; the book says that this one is missing
                    failed += 1
                    progress.console.print(f"{name}: {job.key}: {error}", style="yellow", markup=False)
                progress.advance(bar)
    book.write(FIGURES.values())
    console.print(f"written to {results.BOOK}", highlight=False)
    if failed:
        raise click.ClickException(f"{failed} parts failed")


def _head() -> str:
    head = commit(besides=BOOK)
    return head["id"][:7] + ("+" if head["dirty"] else "")


def _made(job: Job, head: str) -> Point:
    source, values = job.make()
    return Point(source, f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}", head, values)


if __name__ == "__main__":
    main()
