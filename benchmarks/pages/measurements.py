"""Write docs/measurements.md, which shows the newest result of each claim, from the files in docs/measured/.

A file holds one topic: `title`, `group`, and `records`, each with the fields of `FIELDS`. A record that has a `result`
supports its claim; the newest one of each claim is shown. Records without a result are tables and notes of earlier
runs. To add a number, put a record into its topic's file and run `python -m benchmarks.pages.measurements`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pages.markdown import formatted

DOCS = Path(__file__).parents[2] / "docs"
FIELDS = ("claim", "result", "command", "commit", "machine", "date", "n", "rows", "text")
GROUPS = (
    "Speed against other runtimes",
    "Estimates",
    "Compilation",
    "Policies and plans",
    "Kernels and memory on a CPU",
    "Low precision",
    "Calls, sessions and loops",
    "PyTorch",
    "GPUs",
    "IPU, emulated",
    "Correctness and size",
)
HEAD = """\
# Measurements

This page shows the newest result of each claim.
`python -m benchmarks.pages.measurements` writes it from the records in `docs/measured/`, one file a topic.
A record has its claim, command, commit, machine, date and number of runs (`n`), and the rows of its table.
Earlier records stay in the files.
Their `text` is the note taken at the time; their other fields were read from it, so the text decides.
The machines are shared virtual machines: compare ratios, not times.
Numbers marked "estimated" come from the cost model; nothing ran.
"""


@dataclass(frozen=True)
class Topic:
    """The records of one file, in its order."""

    name: str
    title: str
    group: str
    records: tuple[dict[str, Any], ...]
    raw: tuple[str, ...] = ()

    def newest(self) -> list[dict[str, Any]]:
        """Return the newest record of each claim with a result, the last one of a day, in order of first appearance."""
        claims: dict[str, dict[str, Any]] = {}
        for record in self.records:
            if record["result"]:
                kept = claims.get(record["claim"])
                claims[record["claim"]] = kept if kept and kept["date"] > record["date"] else record
        return list(claims.values())


def topics(folder: Path = DOCS / "measured") -> list[Topic]:
    """Load all topics, sorted by group and title."""
    found = []
    for path in folder.glob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        found.append(Topic(path.stem, data["title"], data["group"], tuple(data["records"]), tuple(data.get("raw", ()))))
    return sorted(found, key=lambda topic: (GROUPS.index(topic.group), topic.title))


def page(found: list[Topic]) -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for group in GROUPS:
        parts.append(f"\n## {group}\n")
        parts += [_section(topic) for topic in found if topic.group == group]
    return formatted("".join(parts))


def _section(topic: Topic) -> str:
    newest = topic.newest()
    lines = ["", f"### {topic.title}", "", "| claim | newest result | n | machine | commit | date | command |"]
    lines.append("|---|---|---|---|---|---|---|")
    for record in newest:
        commands = "; ".join(_code(line) for line in record["command"].splitlines())
        cells = (record["claim"], f"**{record['result']}**", record["n"], record["machine"], record["commit"])
        lines.append(f"| {' | '.join(map(_cell, cells))} | {record['date']} | {commands} |")
    tables = sum(bool(record["rows"]) for record in topic.records)
    files = [f"{topic.name}.json", *topic.raw]
    lines += ["", f"{tables} tables: {', '.join(f'[{file}](measured/{file})' for file in files)}.", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(command: str) -> str:
    """Set a command as code; prose that says why there is none stays prose."""
    return _cell(command if command.startswith("not kept") else f"`{command}`")


def main() -> None:
    (DOCS / "measurements.md").write_text(page(topics()), encoding="utf-8")


if __name__ == "__main__":
    main()
