"""Draw a schedule, or what lies in memory meanwhile, as SVG for documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as ET

import numpy as np

from rammer.errors import duration, size
from rammer.ir.analysis.storage import arguments
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask
from rammer.ir.tensor import TensorId
from rammer.ir.text import printable
from rammer.scheduler.timeline import Timeline
from rammer_viz.shared import (
    LEGEND,
    LEVEL,
    STRIP_STEPS,
    Bar,
    Groups,
    Traffic,
    bars,
    data_rate,
    facts,
    names,
    short,
    title,
    traffic,
)

STRIP, STRIP_GAP = 18, 6  # pixels: height of a memory level's row, gap above the first
MARGIN = 124  # pixels left of a chart: the name of a memory level
LINE, KEY, MOST_COLUMNS = 18, 26, 4  # of the legend: pixels of a line, and of a colour with its gaps
CHARACTER = 6.6  # pixels of a character of 12 pixels, on average
INK, GREY, PALE = "#1b1f24", "#57606a", "#f3f5f7"
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"


class Life(NamedTuple):
    """The live range of a tensor that owns memory, or of a piece of it, and its place in the arena."""

    owner: TensorId
    piece: int | None
    begin_us: float
    end_us: float
    offset: int
    nbytes: int


def svg(timeline: Timeline, plan: ExecutionPlan, *, width: int = 1200) -> str:
    """Draw a Gantt chart for documents, with a row for each memory level if the timeline has its traffic.

    Neighbours that together are narrower than a pixel are drawn as one.
    """
    groups = Groups(timeline, plan)
    row = 30 if plan.spec.num_veus <= 16 else 14
    labels = groups.labels[:LEGEND]
    widest = KEY + CHARACTER * max(map(len, labels), default=0)
    columns = max(min(int((width - MARGIN) // widest), MOST_COLUMNS), 1)
    body, below = row * plan.spec.num_veus, 56 + LINE * -(-len(labels) // columns)
    out = _Drawing(timeline, plan, [], width, body=body, below=below)
    for veu, used in enumerate(timeline.veu_utilisation):
        y = out.top + veu * row
        out.rect(out.left, y + 1, out.chart, row - 2, PALE)
        out.beside(y + row / 2 + 4, f"vEU {veu}", f"{used:.0%}", size=12)
    for times in timeline.programs:
        x, wide = out.x(times.launch_at_us), out.x(times.begin_us) - out.x(times.launch_at_us)
        if wide > 0.2:
            launch = f"launch {duration(times.begin_us - times.launch_at_us)}"
            out.rect(x, out.top, wide, out.end - out.top, GREY, launch, fill_opacity=0.25)
        if wide > 50:
            out.text(x + wide / 2, (out.top + out.end) / 2 + 4, "launch", text_anchor="middle")
    called = names(plan)
    for run in _runs(timeline, plan, 1 / out.scale if out.scale else 0.0):
        _draw_run(out, run, plan, groups, called, row)
    room = (width - MARGIN) // columns
    for n, label in enumerate(labels):
        x, y = out.left + (n % columns) * room, out.bottom + 40 + LINE * (n // columns)
        out.rect(x, y - 10, 11, 11, groups.colour(n), rx=2)
        out.text(x + 17, y, short(label, int((room - KEY) / CHARACTER)), fill=INK)
    return str(out)


def _draw_run(
    out: _Drawing, run: list[Bar], plan: ExecutionPlan, groups: Groups, called: Sequence[str], row: int
) -> None:
    first = max(run, key=lambda bar: bar.end_us - bar.start_us)  # the longest bar represents the run
    start_us, span_us = run[0].start_us, run[-1].end_us - run[0].start_us
    x, y = out.x(start_us), out.top + first.veu * row
    wide = max(span_us * out.scale, 0.1)
    name = ""
    if isinstance(first.slot, RTask):
        operator, rtask = first.slot.uid
        name, colour, place, high = called[operator], groups.colour(groups.of_plan[0][operator]), y + 2, row - 4
        text = f"{name} · {plan.graph.operators[operator].kind}\n{plan.kernels[operator].name}, rTask {rtask}"
    else:
        colour, place, high = "#8c959f", y + row // 2 - 2, 4
        text = "barrier: waits for " + ", ".join(f"{w.veu}:{w.order}" for w in first.slot.waits[:8])
    if len(run) > 1:
        text += f" and {len(run) - 1} more"
    text += f"\nat {duration(start_us)} for {duration(span_us)}"
    out.rect(x, place, wide - (0.6 if wide > 4 else 0), high, colour, text, rx=2 if wide > 6 else 0)
    room = int((wide - 8) / CHARACTER)
    if name and room >= 3 and row >= 24:
        out.text(x + 5, y + row / 2 + 4, short(name, room), size=11, fill="#ffffff", pointer_events="none")


def memory_svg(timeline: Timeline, plan: ExecutionPlan, *, width: int = 1200, height: int = 420) -> str:
    """Draw the arena over time: each tensor, or piece of one, from its first access to its last, at its bytes.

    Memory levels have a row each below it, if the timeline has their traffic. The plan must have its memory.
    """
    assert plan.memory is not None
    arena = plan.memory.arena_bytes
    groups, up = Groups(timeline, plan), height / max(arena, 1)
    out = _Drawing(timeline, plan, [f"arena: {size(arena)}"], width, body=height, below=28)
    out.rect(out.left, out.top, out.chart, height, PALE)
    for part in range(5):
        out.beside(out.end - height * part / 4 + 4, size(arena * part / 4, arena))
    writer = {plan.graph.storage(t).root: n for n, op in enumerate(plan.graph.operators) for t in op.outputs}
    for life in _lives(timeline, plan):
        colour = groups.colour(groups.of_plan[0][writer[life.owner]]) if life.owner in writer else "#8c959f"
        name = f"{life.owner}{'' if life.piece is None else f', piece {life.piece}'}"
        text = f"{name}\n{life.nbytes} bytes\nfrom {duration(life.begin_us)} to {duration(life.end_us)}"
        wide, high = max((life.end_us - life.begin_us) * out.scale, 0.3), max(life.nbytes * up, 0.3)
        y = out.end - (life.offset + life.nbytes) * up
        x, room = out.x(life.begin_us), int((wide - 8) / CHARACTER)
        out.rect(x, y, wide, high, colour, text, fill_opacity=0.8, stroke="#ffffff", stroke_width=0.3)
        if room >= 3 and high >= LINE:
            out.text(x + 4, y + high / 2 + 4, short(name, room), size=11, fill=INK, pointer_events="none")
    return str(out)


class _Drawing:
    """An SVG over time: title and facts on top, an axis of time below, rows of memory levels between body and axis.

    `top`, `end` and `bottom` are the y of the body's begin and end, and of the axis. The library escapes all texts.
    """

    def __init__(
        self, timeline: Timeline, plan: ExecutionPlan, more: Sequence[str], width: int, *, body: int, below: int
    ) -> None:
        lines = [*facts(timeline, plan), *more]
        strips = traffic(timeline, plan, STRIP_STEPS)
        self.left, self.chart = MARGIN, max(width - MARGIN - 80, 100)
        self.top = 42 + 16 * len(lines)
        self.end = self.top + body
        self.bottom = self.end + (STRIP_GAP + STRIP * len(strips) if strips else 0)
        self.scale = self.chart / timeline.total_us if timeline.total_us else 0.0
        height = self.bottom + below
        self._root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}"})
        self._root.attrib |= {"width": str(width), "height": str(height), "font-family": FONT, "font-size": "12"}
        self.rect(0, 0, width, height, "#ffffff")
        self.text(self.left, 24, title(plan), size=15, fill=INK, font_weight=600)
        for n, fact in enumerate(lines):
            self.text(self.left, 42 + 16 * n, fact)
        for tick in _ticks(timeline.total_us, max(self.chart // 110, 2)):
            x = self.x(tick)
            self._add("line", x1=x, y1=self.top, x2=x, y2=self.bottom + 5, stroke="#d8dee4")
            self.text(x, self.bottom + 18, duration(tick, timeline.total_us), size=11, text_anchor="middle")
        for n, strip in enumerate(strips):
            self._strip(strip, self.end + STRIP_GAP + STRIP * n)

    def __str__(self) -> str:
        return ET.tostring(self._root, encoding="unicode") + "\n"

    def x(self, us: float) -> float:
        """Return where a time is."""
        return self.left + us * self.scale

    def rect(self, x: float, y: float, wide: float, high: float, fill: str, title: str = "", **more: object) -> None:
        """Add a rectangle; its title appears where the mouse is."""
        self._add("rect", title=title, x=x, y=y, width=wide, height=high, fill=fill, **more)

    def text(self, x: float, y: float, text: str, *, size: int = 12, fill: str = GREY, **more: object) -> None:
        """Add a text that begins at x, on the line at y."""
        self._add("text", x=x, y=y, font_size=size, fill=fill, **more).text = printable(text)

    def beside(self, y: float, left: str, right: str = "", size: int = 11) -> None:
        """Add texts to the left and to the right of the chart."""
        self.text(self.left - 8, y, left, size=size, fill=INK, text_anchor="end")
        if right:
            self.text(self.left + self.chart + 8, y, right, size=size)

    def _add(self, tag: str, *, title: object = "", **attributes: object) -> ET.Element:
        texts = {k.replace("_", "-"): f"{v:.2f}" if isinstance(v, float) else str(v) for k, v in attributes.items()}
        element = ET.SubElement(self._root, tag, texts)
        if title:
            ET.SubElement(element, "title").text = "\n".join(map(printable, str(title).split("\n")))
        return element

    def _strip(self, level: Traffic, y: int) -> None:
        """Draw the row of a memory level: its rate over time, scaled to the row's height."""
        most, high = float(level.gbps.max()), STRIP - 4
        step, base = self.chart / len(level.gbps), y + 2 + high
        self.rect(self.left, y + 2, self.chart, high, PALE)
        edges = (f"V{base - high * g / most:.1f}H{self.left + step * (n + 1):.1f}" for n, g in enumerate(level.gbps))
        name, peak = short(level.level, LEVEL), data_rate(most)
        title = f"{name}: {size(level.nbytes)}, at most {peak}, estimated"
        self._add("path", title=title, d=f"M{self.left} {base}{''.join(edges)}V{base}Z", fill=GREY, fill_opacity=0.6)
        self.beside(y + 13, name, peak)


def _lives(timeline: Timeline, plan: ExecutionPlan) -> Iterator[Life]:
    """Yield the live ranges of what is in the arena: inputs from the start, outputs to the end."""
    graph, memory = plan.graph, plan.memory
    assert memory is not None
    times = [np.zeros((kernel.num_rtasks, 2)) for kernel in plan.kernels]
    for bar in bars(timeline, plan):
        if isinstance(bar.slot, RTask):
            times[bar.slot.uid.operator_id][bar.slot.uid.rtask_id] = bar.start_us, bar.end_us
    places = {root: pieces.firsts for root, pieces in memory.pieces.items()} | dict.fromkeys(memory.offsets, (0,))
    begin = {root: np.full(len(firsts), np.inf) for root, firsts in places.items()}
    end = {root: np.full(len(firsts), -np.inf) for root, firsts in places.items()}
    for n in range(len(graph.operators)):
        for _, root, touched in arguments(graph, plan.kernels, n):
            if root in memory.in_scratch:
                continue
            some = touched[:, 1] > touched[:, 0]
            piece = np.searchsorted(places[root], touched[some, 0], "right") - 1
            np.minimum.at(begin[root], piece, times[n][some, 0])
            np.maximum.at(end[root], piece, times[n][some, 1])
    for root in (graph.storage(t).root for t in graph.inputs if graph.storage(t).root in places):
        begin[root][:], end[root][:] = 0.0, np.maximum(end[root], 0.0)
    for root in (graph.storage(t).root for t in graph.outputs if graph.storage(t).root in places):
        begin[root][:], end[root][:] = np.minimum(begin[root], timeline.total_us), timeline.total_us
    for root, firsts in places.items():
        kind = graph.types[root]
        sizes = np.diff([n * kind.element_bytes for n in firsts] + [kind.nbytes]).tolist()
        offsets = memory.pieces[root].offsets if root in memory.pieces else (memory.offsets[root],)
        for k, (offset, nbytes) in enumerate(zip(offsets, sizes, strict=True)):
            if begin[root][k] <= end[root][k]:
                piece = None if root in memory.offsets else k
                yield Life(root, piece, float(begin[root][k]), float(end[root][k]), offset, nbytes)


def _runs(timeline: Timeline, plan: ExecutionPlan, narrow_us: float) -> Iterator[list[Bar]]:
    """Yield bars, with neighbours that together are narrower than `narrow_us` as one run."""
    run: list[Bar] = []
    for bar in bars(timeline, plan):
        if run and bar.veu == run[0].veu and bar.end_us - run[0].start_us < narrow_us:
            run.append(bar)
            continue
        if run:
            yield run
        run = [bar]
    if run:
        yield run


def _ticks(total_us: float, most: int) -> Iterator[float]:
    """Yield round times from 0 to the end, in at most `most` steps."""
    if total_us <= 0:
        return
    step = 10.0 ** len(str(int(total_us)))
    while True:
        for part in (2.0, 2.5, 2.0):  # 1, 5, 2, 1, …
            if total_us / (step / part) > most:
                for n in range(int(total_us / step) + 1):
                    yield n * step
                return
            step /= part
