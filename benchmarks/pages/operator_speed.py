"""Show how fast operators are in docs/operators.md: `python -m benchmarks.pages.operator_speed f.json -o FILE`.

The file is what `benchmarks.operators.run --json` writes. A column of the table of operators and a section are written
or replaced; all else stays.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.operators.case import SIZES
from benchmarks.operators.run import best
from benchmarks.pages.markdown import formatted

Results: TypeAlias = "Iterable[Mapping[str, Any]]"

COLUMN = f"speed: {' / '.join(SIZES)}"
TITLE = "## Speed of operators"
TEXT = """
Speed is the least time of ONNX Runtime's and OpenVINO's calls over that of `program.run`, measured in turns on the CPU
({machine}{commit}): the geometric mean of an operator's forms and element types, by size. A step has hundreds of
elements, a layer 10^4 to 10^5, a map 10^6 to 10^7, and odd sizes are those of no vector. The machine had other work.

    python -m benchmarks.operators.run --size {sizes} --json operators.json
    python -m benchmarks.pages.operator_speed operators.json -o docs/operators.md

"""


def mean(results: Results) -> str:
    """Return the geometric mean of the ratios."""
    ratios = [r["ratio"] for r in results if "ratio" in r]
    return f"{statistics.geometric_mean(ratios):.2g}" if ratios else "–"


def cells(results: Results) -> dict[str, str]:
    """Return the cell of each operator."""
    found: dict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for r in results:
        found[r["op"]][r["size"]].append(r)
    return {op: " / ".join(mean(sizes[size]) for size in SIZES) for op, sizes in found.items()}


def with_column(page: str, by_op: Mapping[str, str]) -> str:
    """Return a page whose table of operators has this second column."""
    lines = page.split("\n")
    start = next(n for n, line in enumerate(lines) if line.startswith("| operator |"))
    known = "| speed: " in lines[start]
    for n in range(start, len(lines)):
        if not lines[n].startswith("|"):
            break
        head, rest = re.split(r"(?<=.)\|", lines[n].removeprefix("|"), maxsplit=1)
        rest = rest.partition("|")[2] if known else rest
        cell = {start: f" {COLUMN} ", start + 1: "---"}.get(n, f" {by_op.get(head.strip(), '–')} ")
        lines[n] = f"|{head}|{cell}|{rest}"
    return "\n".join(lines)


def section(content: Mapping[str, Any]) -> str:
    """Return the section: means by size, operators that the table lacks, and what is slower than the best peer."""
    results = content["results"]
    commit = f", rammer at {content['commit']['id'][:8]}" if content["commit"]["id"] else ""
    text = TEXT.format(machine=content["machine"]["cpu"], commit=commit, sizes=",".join(SIZES))
    sizes = [
        f"| {size} | {len(of)} | {mean(of)} | {sum(r['ratio'] < 1 for r in of)} "
        f"| {statistics.median(r['ways'][best(r)]['min_us'] / r['floor_us'] for r in of):.1f} |\n"
        for size in SIZES
        if (of := [r for r in results if r["size"] == size and "ratio" in r])
    ]
    contrib = cells(r for r in results if r["domain"])
    more = "".join(f"* `{op}` (com.microsoft): {cell}\n" for op, cell in sorted(contrib.items()))
    slow = sorted((r for r in results if r.get("ratio", 1) < 1), key=lambda r: (r["case"], r["dtype"]))
    rows = [
        f"| {r['case']} | {r['dtype']} | {r['size']} | {r['ratio']:.2f} | {r['ratio_bound']:.2f} "
        f"| {r['ways']['run']['min_us']:.1f} | {r['ways'][best(r)]['min_us'] / r['floor_us']:.1f} |\n"
        for r in slow
    ]
    return (
        f"{TITLE}\n{text}"
        "| size | forms | speed | below 1 | median of a bound call over its floor |\n|---|---|---|---|---|\n"
        f"{''.join(sizes)}\n{more}\nBelow 1, with that of a bound call, microseconds and times the floor:\n\n"
        f"| form | type | size | speed | bound | us | x floor |\n|---|---|---|---|---|---|---|\n{''.join(rows)}"
    )


def with_speed(page: str, content: Mapping[str, Any]) -> str:
    """Return a page with the column and the section, which comes before the one about what does not pass."""
    page = re.sub(rf"^{TITLE}\n.*?(?=^## |\Z)", "", page, flags=re.M | re.S)
    before, title, after = with_column(page, cells(content["results"])).partition("## What does not pass")
    return f"{before}{formatted(section(content)).rstrip()}\n\n{title}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages.operator_speed", description=__doc__)
    parser.add_argument("results", type=Path, help="a file that benchmarks.operators.run --json has written")
    parser.add_argument("-o", "--output", required=True, type=Path)
    given = parser.parse_args(arguments)
    content = json.loads(given.results.read_text(encoding="utf-8"))
    page = given.output.read_text(encoding="utf-8")
    given.output.write_text(with_speed(page, content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
