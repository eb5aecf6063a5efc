"""Results on disk: one JSON file per figure, written after every job, so that an interrupted run goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.paper.figure import Point, Points, Source
from rammer import files

BOOK = Path(__file__).parents[2] / "docs" / "evaluation"


def load(name: str) -> dict[str, Point]:
    """The points of a figure that are made; none if there is no file."""
    path = _path(name)
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return {key: Point(**{**point, "source": Source(**point["source"])}) for key, point in found.items()}


def store(name: str, points: Points) -> None:
    """Replace the file of a figure. One point per line: small differences from commit to commit."""
    lines = [f"{json.dumps(key)}: {json.dumps(asdict(points[key]))}" for key in sorted(points)]
    path = _path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _path(name: str) -> Path:
    return BOOK / "results" / f"{name}.json"
