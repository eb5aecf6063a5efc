"""Write models of other exporters into docs/operators.md: `python -m benchmarks.pages.model_table f.json … -o FILE`.

The files are what `onnx_suite --models FOLDER --json FILE` and `benchmarks.families FOLDER --json FILE` write. Only the
section of models is replaced, and in it only the families that the files have.
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

from benchmarks.families.__main__ import UNMADE
from benchmarks.pages.markdown import formatted

TITLE = "## Models of other exporters"
OUTCOMES = ("right", "random", "wrong", "refused", "no reference", UNMADE)
TEXT = """
Models that other projects' exporters make, run by sessions on the CPU and compared with ONNX Runtime. Networks of
transformers that `rammer.from_torch` reads are compared with PyTorch. A float32 result is right if its error is at most
1e-4 of the largest magnitude; labels, strings and keys of maps must be equal; results of quantized models may differ by
a step. Deep networks with random weights amplify rounding. So a result is also right if ONNX Runtime without its
optimizer differs from ONNX Runtime by as much (quantized) or by half as much (float32): such models are listed. *No
reference* means that neither ONNX Runtime nor ONNX's evaluator runs the file. *Not exported* means that the exporter
itself fails. *Largest error* is the largest relative error of float32 models that are not quantized.

    python -m benchmarks.families FOLDER --json exporters.json
    python -m rammer.testing.onnx_suite --models FOLDER --json families.json
    python -m benchmarks.families.modules --json modules.json
    python -m benchmarks.pages.model_table exporters.json families.json modules.json -o docs/operators.md

"""


def section(results: Iterable[Mapping[str, Any]], commit: str = "", before: str = "") -> str:
    """Return the section for results of models; families that they lack are as in the section `before`."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    worst: dict[str, float] = defaultdict(float)
    lines: dict[str, list[str]] = defaultdict(list)  # what is not right, or by another bound, by family
    for result in results:
        family, outcome = result["family"], result["outcome"]
        table[family][outcome if outcome in OUTCOMES else "wrong"] += 1
        if outcome == "right" and result["errors"] and (error := result["errors"]["relative"]) <= 1e-4:
            worst[family] = max(worst[family], error)
        if outcome not in ("right", "random") or result["reason"]:
            name = Path(result["name"]).parent.name
            plain = result["reason"].partition(": ")[2].replace("<", "‹").replace("|", "¦") or result["reason"]
            lines[family].append(f"* {family}/{name}, {outcome}: {plain}\n")
    columns = ("models", *OUTCOMES, "largest error", "rammer at")
    head = f"| family | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}\n"
    rows = {
        name: f"| {name} | {row.total()} | {' | '.join(str(row[o] or '–') for o in OUTCOMES)} | "
        f"{f'{worst[name]:.0e}' if name in worst else '–'} "
        f"| {commit or '–'} |\n"
        for name, row in table.items()
    }
    kept = {match[1]: match[0] for match in re.finditer(r"^\| ([\w ]+?) \| \d.*\n", before, re.M)}
    for match in re.finditer(r"^\* ([\w ]+)/.*\n(?:  .*\n)*", before, re.M):
        if match[1] not in table:
            lines[match[1]].append(match[0])
    bad = "".join(line for name in sorted(lines) for line in sorted(lines[name]))
    return formatted(f"{TITLE}\n{TEXT}{head}{''.join(row for _, row in sorted((kept | rows).items()))}\n{bad}")


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
    given.output.write_text(
        with_section(page, section(results.values(), given.commit, section_of(page))), encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
