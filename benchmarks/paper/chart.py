"""Charts as SVG text: bars in groups, curves, dots, rows. The same numbers give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, floor, log10
from xml.sax.saxutils import escape

from benchmarks.paper.figure import Panel
from rammer_viz.shared import PALETTE

WIDE, LEFT, RIGHT = 900, 70, 20  # pixels
LINE = 15  # of a legend
HIGH, TOP, TURNED, FOOT = 220, 46, 70, 34  # of a chart, above it, below it for names that are turned, or for numbers
ROW, TEXTS = 20, 150  # of rows: one's height, and the column of their numbers
SANS = 'font-family="Helvetica,Arial,sans-serif"'


def svg(panels: Sequence[Panel]) -> str:
    """All panels of a figure, one below the other."""
    heights = [*map(_height, panels)]
    whole = sum(heights) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {whole}" width="{WIDE}" height="{whole}" {SANS}>',
        f'<rect width="{WIDE}" height="{whole}" fill="#ffffff"/>',
    ]
    top = 0
    for panel, height in zip(panels, heights, strict=True):
        lines += [f'<g transform="translate(0 {top})">', *_panel(panel), "</g>"]
        top += height
    return "\n".join([*lines, "</svg>"]) + "\n"


def _height(panel: Panel) -> int:
    if panel.form == "rows":
        return TOP + ROW * len(panel.groups) + FOOT
    return TOP + _legend(panel)[1] + HIGH + (TURNED if any(_is_turned(g, panel) for g in panel.groups) else FOOT)


def number(value: float) -> str:
    """Three digits that count: 1234, 12.3, 0.0123."""
    if value == 0:
        return "0"
    digits = max(2 - floor(log10(abs(value))), 0)
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _panel(panel: Panel) -> Iterator[str]:
    yield _text(LEFT, 16, panel.title, size=13, weight="bold")
    places, below = _legend(panel)
    if panel.form == "rows":
        yield from _rows(panel)
        return
    for n, (name, x, y) in enumerate(places):
        yield f'<rect x="{x}" y="{y}" width="10" height="10" fill="{PALETTE[n % len(PALETTE)]}"/>'
        yield _text(x + 14, y + 9, name, size=11)
    if below:  # the chart begins below the legend's further lines
        yield f'<g transform="translate(0 {below})">'
    yield from _chart(panel)
    if below:
        yield "</g>"


def _legend(panel: Panel) -> tuple[list[tuple[str, int, int]], int]:
    """Return names with their places, and the height of all lines but the first."""
    places, x, y = [], LEFT, 26
    for name in panel.series or panel.curves:
        wide = 26 + int(6.2 * len(name))
        if x + wide > WIDE and x > LEFT:
            x, y = LEFT, y + LINE
        places.append((name, x, y))
        x += wide
    return places, y - 26


def _chart(panel: Panel) -> Iterator[str]:
    if panel.form == "bars":
        values = [v for row in panel.series.values() for v in row if v is not None]
    else:
        values = [y for curve in panel.curves.values() for _, y in curve]
    if not values:
        yield _text(LEFT, TOP + 20, "not made yet", size=11)
        return
    ticks, place = _scale(values, panel.log)
    for tick in ticks:
        y = _y(place(tick))
        yield f'<path d="M{LEFT} {y}H{WIDE - RIGHT}" stroke="#d0d7de" stroke-width="0.5"/>'
        yield _text(LEFT - 6, y + 4, number(tick), size=10, anchor="end")
    yield (
        f'<text transform="translate(16 {TOP + HIGH // 2}) rotate(-90)" text-anchor="middle" font-size="11" '
        f'fill="#1b1f24">{escape(panel.axis)}</text>'
    )
    yield from _bars(panel, place) if panel.form == "bars" else _curves(panel, place)
    yield f'<path d="M{LEFT} {TOP}V{TOP + HIGH}H{WIDE - RIGHT}" stroke="#57606a" fill="none"/>'


def _bars(panel: Panel, place: Callable[[float], float]) -> Iterator[str]:
    room = (WIDE - LEFT - RIGHT) / max(len(panel.groups), 1)
    wide = 0.84 * room / max(len(panel.series), 1)
    for g, group in enumerate(panel.groups):
        begin = LEFT + room * (g + 0.08)
        if g and panel.log:  # between groups of dots
            yield f'<path d="M{LEFT + room * g:.1f} {TOP}V{TOP + HIGH}" stroke="#d0d7de" stroke-width="0.5"/>'
        for s, row in enumerate(panel.series.values()):
            value, x = row[g], begin + s * wide
            if value is None:
                yield _text(x + wide / 2, TOP + HIGH - 3, "×", size=9, anchor="middle", colour="#8c959f")
                continue
            y = _y(place(value))
            colour = PALETTE[s % len(PALETTE)]
            title = f"<title>{escape(group)}: {number(value)}{escape(panel.unit)}</title>"
            if panel.log:  # a bar's length would depend on where the axis begins
                yield f'<circle cx="{x + wide / 2:.1f}" cy="{y}" r="4" fill="{colour}">{title}</circle>'
                y -= 3
            else:
                size = f'width="{wide - 0.5:.1f}" height="{TOP + HIGH - y:.1f}"'
                yield f'<rect x="{x:.1f}" y="{y}" {size} fill="{colour}">{title}</rect>'
            label = number(value) + panel.unit
            if wide >= 5 * len(label):
                yield _text(x + wide / 2, y - 3, label, size=9, anchor="middle")
            elif wide >= 8:
                where = f'transform="translate({x + wide / 2 + 3:.1f} {y - 3:.1f}) rotate(-90)"'
                yield f'<text {where} font-size="9" fill="#1b1f24">{escape(label)}</text>'
        if not _is_turned(group, panel):
            yield _text(begin + 0.42 * room, TOP + HIGH + 16, group, size=11, anchor="middle")
        else:
            where = f'transform="translate({begin + 0.42 * room:.1f} {TOP + HIGH + 12}) rotate(-25)"'
            yield f'<text {where} text-anchor="end" font-size="10" fill="#1b1f24">{escape(group)}</text>'


def _rows(panel: Panel) -> Iterator[str]:
    """Draw a row of marks for each group, joined in pairs: series are the paper's and ours, in turns."""
    left, right = max(LEFT + 150, 20 + int(5.8 * max(map(len, panel.groups)))), WIDE - TEXTS
    values = [v for row in panel.series.values() for v in row if v is not None]
    ticks, place = _decades(values) if panel.log else _scale(values, False)
    end = TOP + ROW * len(panel.groups)

    def at(value: float) -> float:
        return round(left + place(value) * (right - left), 1)

    def mark(s: int, x: float, y: float, title: str = "") -> str:
        size, colour = 4.5, PALETTE[0]
        inside = f'fill="{colour if s % 2 else "#ffffff"}" stroke="{colour}" stroke-width="1.5">{title}'
        if s < 2:
            return f'<circle cx="{x}" cy="{y}" r="{size}" {inside}</circle>'
        return f'<path d="M{x - size} {y}L{x} {y - size}L{x + size} {y}L{x} {y + size}Z" {inside}</path>'

    for s, name in enumerate(panel.series):
        yield mark(s, LEFT + 5 + 150 * s, 32)
        yield _text(LEFT + 14 + 150 * s, 36, name, size=11)
    for tick in ticks:
        yield f'<path d="M{at(tick)} {TOP}V{end}" stroke="#d0d7de" stroke-width="0.5"/>'
        yield _text(at(tick), end + 14, number(tick), size=10, anchor="middle")
    yield _text((left + right) / 2, end + 29, panel.axis, size=11, anchor="middle")
    rows = [*panel.series.values()]
    for g, group in enumerate(panel.groups):
        y, said = TOP + ROW * g + ROW // 2, []
        yield _text(left - 10, y + 4, group, size=11, anchor="end")
        for s in range(0, len(rows), 2):
            pair = [(n, value) for n in (s, s + 1) if (value := rows[n][g]) is not None]
            if len(pair) < 2:
                continue
            (_, theirs), (_, ours) = pair
            yield f'<path d="M{at(theirs)} {y}H{at(ours)}" stroke="#8c959f" stroke-width="1"/>'
            said.append(f"{number(theirs)} → {number(ours)}")
            for n, value in pair:
                yield mark(n, at(value), y, f"<title>{escape(group)}: {number(value)}{escape(panel.unit)}</title>")
        yield _text(right + 12, y + 4, "; ".join(said), size=10)


def _is_turned(group: str, panel: Panel) -> bool:
    return len(group) * 6.2 > (WIDE - LEFT - RIGHT) / len(panel.groups)


def _curves(panel: Panel, place: Callable[[float], float]) -> Iterator[str]:
    xs = [x for curve in panel.curves.values() for x, _ in curve]
    ticks, along = _scale(xs, False)
    for tick in ticks:
        yield _text(_x(along(tick)), TOP + HIGH + 14, number(tick), size=10, anchor="middle")
    yield _text(WIDE / 2, TOP + HIGH + 29, panel.across, size=11, anchor="middle")
    for n, curve in enumerate(panel.curves.values()):
        colour = PALETTE[n % len(PALETTE)]
        places = [(_x(along(x)), _y(place(y))) for x, y in curve]
        if panel.form == "dots":
            yield from (f'<circle cx="{x}" cy="{y}" r="2" fill="{colour}" fill-opacity="0.6"/>' for x, y in places)
        elif places:
            path = "L".join(f"{x} {y}" for x, y in places)
            yield f'<path d="M{path}" stroke="{colour}" stroke-width="1.8" fill="none"/>'


def _scale(values: Sequence[float], log: bool) -> tuple[list[float], Callable[[float], float]]:
    """Round numbers to mark, and where a value lies between 0 (below) and 1."""
    most = max(values)
    if log:
        low, high = floor(log10(0.7 * min(v for v in values if v > 0))), ceil(log10(most))
        return [10.0**n for n in range(low, high + 1)], lambda v: (log10(v) - low) / (high - low) if v > 0 else 0.0
    step = 10.0 ** floor(log10(most)) if most > 0 else 1.0
    step = next(step * part for part in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if most / (step * part) <= 6)
    count = max(ceil(most / step - 1e-9), 1)
    return [n * step for n in range(count + 1)], lambda v: v / (count * step)


def _decades(values: Sequence[float]) -> tuple[list[float], Callable[[float], float]]:
    """Scale by logarithms, as `_scale` does, with marks at 1, 2 and 5 of each decade."""
    first, last = floor(log10(min(values))), ceil(log10(max(values)))
    ticks = [part * 10.0**n for n in range(first, last + 1) for part in (1, 2, 5)]
    low = max(t for t in ticks if t <= min(values))
    high = min(t for t in ticks if t >= max(values) and t > low)
    span = log10(high / low)
    return [t for t in ticks if low <= t <= high], lambda v: log10(v / low) / span


def _x(part: float) -> float:
    return round(LEFT + part * (WIDE - LEFT - RIGHT), 1)


def _y(part: float) -> float:
    return round(TOP + HIGH * (1 - part), 1)


def _text(
    x: float, y: float, text: str, *, size: int, anchor: str = "start", weight: str = "", colour: str = "#1b1f24"
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} font-size="{size}"{bold} fill="{colour}">{escape(text)}</text>'
