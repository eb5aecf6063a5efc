"""Results on disk: a JSON file per figure, or for some, written after every job: an interrupted run goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.paper.figure import Figure, Point, Points, Source
from rammer import files

BOOK = Path(__file__).parents[2] / "docs" / "evaluation"


def load(figure: Figure) -> dict[str, Point]:
    """All points in a figure's file, of others that share it, too; none if there is no file."""
    path = _path(figure)
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return {key: Point(**{**point, "source": Source(**point["source"])}) for key, point in found.items()}


def of_figure(figure: Figure) -> dict[str, Point]:
    """The points of a figure that are made, in the order of its jobs."""
    points = load(figure)
    return {job.key: points[job.key] for job in figure.jobs() if job.key in points}


def store(figure: Figure, points: Points) -> None:
    """Replace a figure's file. One point per line: small differences from commit to commit."""
    lines = [f"{json.dumps(key)}: {json.dumps(asdict(points[key]))}" for key in sorted(points)]
    path = _path(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _path(figure: Figure) -> Path:
    return BOOK / "results" / f"{figure.results or figure.name}.json"
