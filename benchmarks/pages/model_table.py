"""Write models of other exporters into docs/operators.md: `python -m benchmarks.pages.model_table f.json … -o FILE`.

The files are what `onnx_suite --models FOLDER --json FILE` writes. Only the section of models is replaced.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages.markdown import formatted

TITLE = "## Models of other exporters"
OUTCOMES = ("right", "random", "wrong", "refused", "no reference")
TEXT = """
Models that other projects' exporters make, run by sessions on the CPU and compared with ONNX Runtime{commit}. A float32
result is right if its error is at most 1e-4 of the largest magnitude; labels, strings and keys of maps must be equal;
results of quantized models may differ by a step. *No reference* means that neither ONNX Runtime nor ONNX's evaluator
runs the file. The last column is the largest relative error of float32 models that are not quantized.

    python -m benchmarks.families FOLDER
    python -m rammer.testing.onnx_suite --models FOLDER --json families.json
    python -m benchmarks.pages.model_table families.json -o docs/operators.md

"""


def section(results: Iterable[Mapping[str, Any]], commit: str = "") -> str:
    """Return the section for results of models."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    worst: dict[str, float] = defaultdict(float)
    refused = []
    for result in results:
        family, outcome = result["family"], result["outcome"]
        table[family][outcome if outcome in OUTCOMES else "wrong"] += 1
        error = (result["errors"] or {}).get("relative", 0.0)
        if outcome == "right" and error <= 1e-4:
            worst[family] = max(worst[family], error)
        if outcome not in ("right", "random"):
            name = Path(result["name"]).parent.name
            plain = result["reason"].partition(": ")[2].replace("<", "‹").replace("|", "¦") or result["reason"]
            refused.append(f"* {family}/{name}, {outcome}: {plain}\n")
    head = f"| family | models | {' | '.join(OUTCOMES)} | largest error |\n|{'---|' * (len(OUTCOMES) + 3)}\n"
    rows = [
        f"| {name} | {row.total()} | {' | '.join(str(row[o] or '–') for o in OUTCOMES)} | {worst[name]:.0e} |\n"
        for name, row in sorted(table.items())
    ]
    text = TEXT.format(commit=f", rammer at {commit}" if commit else "")
    return formatted(f"{TITLE}\n{text}{head}{''.join(rows)}\n{''.join(sorted(refused))}")


def section_of(page: str) -> str:
    """Return the section of models in a page; empty if it has none."""
    found = re.search(rf"^{re.escape(TITLE)}\n.*?(?=^## |\Z)", page, re.M | re.S)
    return found[0] if found else ""


def with_section(page: str, text: str) -> str:
    """Return a page with this section of models, before the section about unsupported operators."""
    bare = page.replace(section_of(page), "")
    before, title, after = bare.partition("## Unsupported operators")
    return f"{before}{text.rstrip()}\n\n{title}{after}" if text else page


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages.model_table", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="files that onnx_suite --models --json has written")
    parser.add_argument("-o", "--output", required=True, type=Path)
    parser.add_argument("--commit", default="", help="of rammer that was run, to be named on the page")
    given = parser.parse_args(arguments)
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in given.results]
    results = {result["name"]: result for run in runs for result in run["results"]}
    page = given.output.read_text(encoding="utf-8")
    given.output.write_text(with_section(page, section(results.values(), given.commit)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
