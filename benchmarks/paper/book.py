"""The book: one Markdown page and one SVG per figure, and an index, from results alone. Equal results, equal bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benchmarks.pages.markdown import formatted
from benchmarks.paper import chart, results
from benchmarks.paper.figure import Figure, Points
from rammer import files

COMMAND = "python -m benchmarks.paper --only"
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
"""


def pages(figures: Iterable[Figure]) -> dict[str, str]:
    """Every file of the book by its name, from the results in the folder."""
    found: dict[str, str] = {}
    rows: list[tuple[str, ...]] = []
    for figure in figures:
        points = results.of_figure(figure)
        drawn = figure.draw(points)
        if drawn.panels:
            found[f"{figure.name}.svg"] = chart.svg(drawn.panels)
        found[f"{figure.name}.md"] = _page(figure, points, drawn.tables, bool(drawn.panels))
        rows.append((f"[{figure.title}]({figure.name}.md)", figure.section, figure.caption, _state(figure, points)))
    found["index.md"] = _index(rows)
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
