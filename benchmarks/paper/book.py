"""The book: one Markdown page and one SVG per figure, and an index, from results alone. Equal results, equal bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from benchmarks.pages.markdown import formatted
from benchmarks.paper import chart, results
from benchmarks.paper.figure import Claim, Figure, Panel, Points
from rammer import files

COMMAND = "python -m benchmarks.paper --only"
KINDS = ("", "largest")  # of numbers in claims: a mean or a single one, and that after "up to"
WANTS = {  # of what is not made, by the device it is measured on
    "": "",
    "cpu": " on a machine that does nothing else (compilers take minutes for each model)",
    "cuda": " where there is an NVIDIA GPU; where the other parts were made, there is none",
}
HEAD = """\
# The papers' evaluation

Tables and figures of *Rammer* (OSDI'20) and *GraphTurbo* (OSDI'23), made again: `python -m benchmarks.paper --all`.
Each page states the source of its numbers: measured on a device, simulated on a spec, emulated, or counted.
A simulated time is the timeline of a plan, by times of rTasks that follow from the spec alone.
Nothing ran, and the time is an estimate.
If a page names several commits, its parts differ in age.
`python -m benchmarks.paper --render` writes this book from the JSON in `results/` alone, and a test compares them.

![The papers' numbers beside ours](index.svg)

"""


def pages(figures: Iterable[Figure]) -> dict[str, str]:
    """Every file of the book by its name, from the results in the folder."""
    found: dict[str, str] = {}
    rows: list[tuple[str, ...]] = []
    every: list[tuple[Claim, Points]] = []
    for figure in figures:
        points = results.of_figure(figure)
        drawn = figure.draw(points)
        panels = (*drawn.panels, *beside((claim, points) for claim in figure.claims))
        if panels:
            found[f"{figure.name}.svg"] = chart.svg(panels)
        found[f"{figure.name}.md"] = _page(figure, points, drawn.tables, bool(panels))
        rows.append((f"[{figure.title}]({figure.name}.md)", figure.section, figure.caption, _state(figure, points)))
        every += [(replace(claim, what=f"{figure.title}: {claim.what}"), points) for claim in figure.claims]
    found["index.md"] = _index(rows)
    found["index.svg"] = chart.svg([*beside(every)])
    return found


def write(figures: Iterable[Figure]) -> None:
    """Write the book beside its results."""
    results.BOOK.mkdir(parents=True, exist_ok=True)
    for name, text in pages(figures).items():
        files.write(results.BOOK / name, text)


def sources(points: Points) -> list[str]:
    """How the numbers of a figure came about, one line for each way: device or spec, dates, commits, n."""
    lines: dict[str, list[str]] = {}
    for key, point in points.items():
        lines.setdefault(str(point.source), []).append(key)
    found = []
    for text, keys in lines.items():
        dates = sorted({points[k].date for k in keys})
        commits = list(dict.fromkeys(points[k].commit for k in sorted(keys, key=lambda k: points[k].date)))
        when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        who = f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}"
        found.append(f"**{text}**, {when}, {who}, n = {sum(points[k].n for k in keys)}")
    return sorted(found)


def beside(claims: Iterable[tuple[Claim, Points]]) -> Iterator[Panel]:
    """Yield charts of the paper's numbers beside ours, one for each unit: means, and the largest ones of models."""
    rows: dict[str, dict[str, list[float | None]]] = {}
    for claim, points in claims:
        printed, found = numbers(claim.paper), numbers(claim.ours(points) or "")
        for unit in dict.fromkeys(unit for unit, _ in printed):
            both = [(printed.get((unit, kind)), found.get((unit, kind))) for kind in KINDS]
            pairs = [pair if None not in pair else (None, None) for pair in both]
            if any(pair != (None, None) for pair in pairs):
                rows.setdefault(unit, {})[claim.what] = [value for pair in pairs for value in pair]
    for unit, found_rows in rows.items():
        names = [f"{who}{kind and ', '}{kind}" for kind in KINDS for who in ("the paper", "here")]
        columns = dict(zip(names, zip(*found_rows.values(), strict=True), strict=True))
        shown = {name: column for name, column in columns.items() if any(v is not None for v in column)}
        title = f"The paper's numbers beside ours ({unit})"
        yield Panel(title, "", "rows", tuple(found_rows), shown, log=unit == "×", unit=unit)


def numbers(text: str) -> dict[tuple[str, str], float]:
    """Return the numbers of a claim by unit, and by whether they are a mean or the largest one. Ranges are none."""
    found: dict[tuple[str, str], float] = {}
    for most, value, unit in re.findall(r"(up to |to |)\b(\d+(?:\.\d+)?)(×|%| ms)", text):
        if most != "to " and f"{value}{unit} to " not in text:
            found.setdefault((unit.strip(), KINDS[bool(most)]), float(value))
    return found


def _state(figure: Figure, points: Points) -> str:
    jobs = {job.key for job in figure.jobs()}
    if not jobs:
        return "not made: see there"
    kinds = ", ".join(sorted({point.source.kind for point in points.values()}))
    made = len(jobs & points.keys())
    return (kinds if made == len(jobs) else f"{kinds} ({made} of {len(jobs)} parts)") if made else "not made yet"


def _page(figure: Figure, points: Points, tables: Mapping[str, list[tuple[str, ...]]], drawn: bool) -> str:
    lines = [f"# {figure.title}", "", f"> {figure.caption}", "", f"The paper, {figure.section}. {figure.how}", ""]
    if points and drawn:
        lines += [f"![{figure.title}]({figure.name}.svg)", ""]
    lines += [f"* {line}" for line in sources(points)] + [""] * bool(points)
    lines += _missing(figure, points)
    if figure.claims:
        lines += ["## The paper's numbers and ours", ""]
        lines += _table([("", "paper", "here"), *((c.what, c.paper, c.ours(points) or "–") for c in figure.claims)])
    if figure.differs:
        lines += ["## Why they differ", "", *(f"* {reason}" for reason in figure.differs), ""]
    if figure.absent:
        lines += ["## Not here, and why", "", *(f"* {what}: {why}" for what, why in figure.absent), ""]
    for title, rows in tables.items():
        lines += [f"## {title}", "", *_table(rows)]
    return formatted("\n".join(lines).rstrip() + "\n")


def _missing(figure: Figure, points: Points) -> list[str]:
    """What is not made, and what making it takes: a GPU, a machine that does nothing else, or only the command."""
    jobs: dict[str, list[str]] = {}
    for job in figure.jobs():
        if job.key not in points:
            jobs.setdefault(job.target, []).append(job.key)
    lines = []
    for target, keys in sorted(jobs.items()):
        few = ", ".join(keys[:6]) + (", …" if len(keys) > 6 else "")
        how = f"`{COMMAND} {figure.name}{' --measure' * bool(target)}`"
        why = WANTS.get(target, f"on a machine with a {target} device")
        lines += [f"**Not made yet** ({len(keys)} part{'s' * (len(keys) > 1)}: {few}): run {how}{why}.", ""]
    return lines


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    head, *rest = rows
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rest)] + [""]


def _index(rows: list[tuple[str, ...]]) -> str:
    return formatted("\n".join([HEAD, *_table([("", "paper", "what it shows", "made"), *rows])]).rstrip() + "\n")
