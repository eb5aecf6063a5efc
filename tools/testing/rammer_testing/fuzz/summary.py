"""Count verdicts by family and by cause, as Markdown tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rammer_testing.fuzz.trial import CRASHED, FAILURES, HUNG, ILL, INTERNAL, REFUSED, RIGHT, UNKNOWN, WRONG, Verdict

OUTCOMES = (RIGHT, ILL, REFUSED, UNKNOWN, WRONG, CRASHED, HUNG, INTERNAL)
CAUSE = 300  # characters of a cause's first text


@dataclass
class Summary:
    """Counts, and the first case of each cause."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # of (family, outcome)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)  # of (outcome, reason)
    first: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)  # its first case, and the text of that

    def add(self, name: str, verdict: Verdict) -> bool:
        """Count a verdict; return whether it is the first of its kind."""
        self.counts[name.partition(":")[0], verdict.outcome] += 1
        kind = (verdict.outcome, verdict.reason)
        if verdict.outcome != RIGHT:
            self.reasons[kind] += 1
        new = kind not in self.first
        if new:
            self.first[kind] = (name, _one_line(verdict.detail))
        return new

    @property
    def cases(self) -> int:
        return sum(self.counts.values())

    @property
    def failed(self) -> bool:
        return any(self.counts[key] for key in self.counts if key[1] in FAILURES)

    def __str__(self) -> str:
        """Return Markdown: one row per family, then one per cause, faults first."""
        families = list(dict.fromkeys(family for family, _ in self.counts))
        rows = [["family", "cases", *OUTCOMES]]
        for family in families:
            numbers = [self.counts[family, outcome] for outcome in OUTCOMES]
            rows.append([family, str(sum(numbers)), *map(str, numbers)])
        totals = [sum(self.counts[f, o] for f in families) for o in OUTCOMES]
        rows.append(["all", str(sum(totals)), *map(str, totals)])
        lines = _table(rows)
        if self.reasons:
            kinds = sorted(self.reasons, key=lambda kind: (-OUTCOMES.index(kind[0]), -self.reasons[kind]))
            rows = [["outcome", "cases", "first", "cause", "its first text"]]
            for kind in kinds:
                name, text = self.first[kind]
                rows.append([kind[0], str(self.reasons[kind]), *_cells(name, kind[1], text)])
            lines += ["", *_table(rows)]
        return "\n".join(lines)


def _one_line(text: str) -> str:
    """Return the line that names the fault: the last one of a traceback, else the first."""
    lines = text.strip().splitlines() or [""]
    return lines[-1 if lines[0].startswith("Traceback") else 0][:CAUSE]


def _cells(*texts: str) -> list[str]:
    """Return texts as cells of a table, with bars escaped."""
    return [text.replace("|", "\\|").replace("\n", " ") for text in texts]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as Markdown, the first one as heads, numbers right-aligned. Long texts at the end are not padded."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    widths[-1] = min(widths[-1], max(map(len, rows[0])))
    right = [all(row[n].isdigit() for row in rows[1:]) for n in range(len(widths))]
    columns = list(zip(widths, right, strict=True))
    rule = ["-" * (w - 1) + (":" if r else "-") for w, r in columns]
    return [
        f"| {' | '.join(c.rjust(w) if r else c.ljust(w) for c, (w, r) in zip(row, columns, strict=True))} |"
        for row in (rows[0], rule, *rows[1:])
    ]
