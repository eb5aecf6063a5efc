"""Phrases that documentation does not use, and words that names do not have, with what to write instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

# A home-made word hides an idea that has a name in the field. Keys are regular expressions without regard to case.
BANNED = {
    r"\b(nobody|somebody|whoever)\b": "unknown, unused; name who acts",
    r"(?<!there )\b(is|are|was|were) no\b(?! longer)": "is not a",
    r"\bputs? out\b": "evict",
    r"\bin the place of\b": "instead of; in place",
    r"\bwhat stands\b": "name it",
    r"\bturned\b(?! (on|off)\b)": "transposed",
    r"\bapart\b": "separate, strided, split",
    r"\bnear\b": "resident, local, private; close to",
    r"\bfrom far\b|\bfar (memory|weights)\b": "from DRAM, cold",
    r"\bbeliev(e|es|ed|ing)\b": "estimate, assume",
    r"\btold\b|\btells? apart\b": "signalled; says; distinguish",
    r"\bsettle[sd]?\b": "decide, resolve, flush",
    r"\bfew\b": "a small number of, some; name the number",
    r"\bas(k|ks|ked) for (it|them|lines|the next)\b": "prefetch, request",
    r"\bon paper\b": "estimated, simulated",
    r"\bas ever\b": "as before",
    r"\btried out\b": "tested",
    r"\btakes? (its|the) place of\b": "replace, reuse the memory of",
    r"\bwhat it needs of\b": "the ... that it needs",
}
# Words that no name of a function, class, parameter, attribute, constant or module has. Here a word is a part of a name
# between underscores or capitals.
BANNED_IN_NAMES = {
    "near": "l1, resident, in_scratch, local, adjacent",
    "far": "cold, streamed, outer, pending",
    "apart": "separate, independent, disjoint, strided, split, per_image",
    "turned": "transposed",
    "told": "signalled_by, declared",
    "untold": "ignore",
    "settle": "flush, check, record",
    "settled": "proven, accepted",
    "believed": "estimate",
    "few": "name the limit, or what is done with so many",
}
# Code, names of modules, targets of links, and a quoted report.
SPANS = re.compile(r"```.*?```|`[^`\n]*`|-m [\w.]+|\]\([^)]*\)", re.S)

# Pages that generators write from code, whose prose is in benchmarks/paper.
GENERATED = ("docs/evaluation", "docs/measurements.md")
# Folders and files whose docstrings are clean. Add one when it is; take none away.
CLEAN = ("rammer", "rammer_viz", "tools", "plugins", "benchmarks")


def found(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the phrase of each banned phrase outside of code."""
    plain = SPANS.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for pattern in BANNED:
        for match in re.finditer(pattern, plain, re.I):
            if not match[0].isupper():  # a constant's name
                yield plain.count("\n", 0, match.start()) + 1, match[0]


def pages() -> list[Path]:
    """Return the Markdown files that are written by hand, without the log of changes."""
    names = (p.relative_to(ROOT).as_posix() for p in sorted(ROOT.rglob("*.md")))
    return [ROOT / name for name in names if not name.startswith((*GENERATED, "CHANGELOG", ".", "build/"))]


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each docstring of a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(ast.Constant(str(text)) as value), *_]:
                    yield value.lineno, text
