"""Draw docs/speed.svg, the chart of the home page, from docs/measured: `python -m benchmarks.pages.speed`.

Every model of the newest record has a dot, the slowest ones too.
"""

from __future__ import annotations

import json
from math import log10
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs/measured/todays-models.json"
WIDE, HIGH, LEFT, TOP, FOOT = 900, 330, 60, 70, 40
NAMED = 9  # dots with names: the first, the last, and some between


def newest() -> dict[str, Any]:
    """Return the newest record with a row for each model."""
    records = [record for record in json.loads(RECORDS.read_text(encoding="utf-8"))["records"] if record["rows"]]
    return dict(max(enumerate(records), key=lambda pair: (pair[1]["date"], pair[0]))[1])


def svg(record: dict[str, Any]) -> str:
    """Draw the models in order of their ratio, on a logarithmic axis of ratios."""
    rows = sorted(record["rows"], key=lambda row: float(row["by medians"]))
    most = max(float(row["by medians"]) for row in rows)
    step = (WIDE - LEFT - 30) / len(rows)

    def y(ratio: float) -> float:
        return TOP + (HIGH - TOP - FOOT) * (1 - log10(ratio / 0.9) / log10(most * 1.15 / 0.9))

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" '
        'font-family="Helvetica,Arial,sans-serif" font-size="12" fill="#1b1f24">',
        f'<rect width="{WIDE}" height="{HIGH}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="600">Median time of the faster one of ONNX Runtime and '
        "OpenVINO, over rammer's</text>",
        f'<text x="{LEFT}" y="42" fill="#57606a">{len(rows)} models at batch 1, {escape(record["machine"])}, '
        f"{record['date']}: higher is better for rammer</text>",
    ]
    for ratio in (1, 2, 3, 5, 10):
        lines.append(
            f'<path d="M{LEFT} {y(ratio):.1f}H{WIDE - 20}" stroke="{"#1b1f24" if ratio == 1 else "#d8dee4"}"/>'
            f'<text x="{LEFT - 8}" y="{y(ratio) + 4:.1f}" text-anchor="end">{ratio}×</text>'
        )
    named = {round(n * (len(rows) - 1) / (NAMED - 1)) for n in range(NAMED)}
    for n, row in enumerate(rows):
        name, ratio = row["model"].removeprefix("today_"), float(row["by medians"])
        x = LEFT + step * (n + 0.5)
        title = f"{name}: {ratio:g}× of {row['best peer']}, {row['rammer ms']} ms"
        lines.append(
            f'<circle cx="{x:.1f}" cy="{y(ratio):.1f}" r="4" fill="#4c78a8"><title>{escape(title)}</title></circle>'
        )
        if n in named:
            anchor = "end" if n > len(rows) * 0.8 else "middle" if n else "start"
            lines.append(
                f'<text x="{x - 8 * (anchor == "end"):.1f}" y="{y(ratio) - 10 + 14 * (anchor == "end"):.1f}" '
                f'text-anchor="{anchor}" font-size="11" fill="#57606a">{escape(name)}</text>'
            )
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    (ROOT / "docs/speed.svg").write_text(svg(newest()), encoding="utf-8")
