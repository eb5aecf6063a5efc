"""Verdicts counted by family and by reason, as tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rammer.testing.fuzz.trial import CRASHED, HUNG, ILL, INTERNAL, REFUSED, RIGHT, UNKNOWN, WRONG, Verdict

OUTCOMES = (RIGHT, REFUSED, ILL, UNKNOWN, WRONG, CRASHED, HUNG, INTERNAL)


@dataclass
class Summary:
    """Counts, and the first case of each kind of fault."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # of (family, outcome)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)  # of (outcome, reason)
    first: dict[tuple[str, str], str] = field(default_factory=dict)  # the case that showed it

    def add(self, name: str, verdict: Verdict) -> bool:
        """Count a verdict; whether it is the first of its kind."""
        self.counts[name.partition(":")[0], verdict.outcome] += 1
        kind = (verdict.outcome, verdict.reason)
        if verdict.outcome != RIGHT:
            self.reasons[kind] += 1
        new = kind not in self.first
        self.first.setdefault(kind, name)
        return new

    @property
    def failed(self) -> bool:
        return any(self.counts[key] for key in self.counts if key[1] in (WRONG, CRASHED, HUNG, INTERNAL))

    def __str__(self) -> str:
        families = list(dict.fromkeys(family for family, _ in self.counts))
        rows = [["family", "cases", *OUTCOMES]]
        for family in families:
            numbers = [self.counts[family, outcome] for outcome in OUTCOMES]
            rows.append([family, str(sum(numbers)), *map(str, numbers)])
        totals = [sum(self.counts[f, o] for f in families) for o in OUTCOMES]
        rows.append(["all", str(sum(totals)), *map(str, totals)])
        lines = _aligned(rows)
        if self.reasons:
            lines.append("")
        for (outcome, reason), count in sorted(self.reasons.items(), key=lambda item: (item[0][0], -item[1])):
            lines.append(f"{count:6} {outcome}: {reason} (first: {self.first[outcome, reason]})")
        return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  ".join(c.ljust(w) if n == 0 else c.rjust(w) for n, (c, w) in enumerate(zip(r, widths, strict=True)))
        for r in rows
    ]
