"""Draw a schedule: text Gantt, SVG, a self-contained HTML page, Chrome-trace JSON. Pure functions.

Names of operators and rKernels come from models, which are untrusted. They are escaped for each format, and stripped of
control characters.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from math import ceil
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.storage import arguments
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, Slot
from rammer.ir.tensor import TensorId
from rammer.ir.text import printable
from rammer.scheduler.timeline import Timeline
from rammer.vdevice.supersteps import Superstep

PALETTE = (
    "#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#ff9da6", "#9d755d",
    "#eeca3b", "#439894", "#d67195", "#79706e", "#83bcb6", "#88d27a", "#f2cf5b", "#bab0ac",
)  # fmt: skip
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_BARRIER, _LAUNCH, _OTHER = "·", "▸", "#"
_BY_NAME = 12  # up to this number, each operator has its own colour; beyond, each kind
_LEGEND = 24  # maximal entries of a legend
_STRIP, _STRIP_GAP = 18, 6  # pixels: height of a memory level's row, gap above the first
_LEVEL = 18  # characters of a memory level's name
_MARGIN = 124  # pixels left of a chart: the name of a memory level
_INK, _GREY, _PALE = "#1b1f24", "#57606a", "#f3f5f7"
_FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
_STRIP_STEPS = 400  # steps of time in the plot of a memory level's rate


class Bar(NamedTuple):
    """A slot with its times."""

    program: int
    veu: int
    order: int
    slot: Slot
    start_us: float
    end_us: float


class Traffic(NamedTuple):
    """Bytes that rTasks fetch from one memory level, and the rate in equal steps of the plan's time."""

    level: str
    nbytes: int
    gbps: NDArray[np.float64]


class Life(NamedTuple):
    """The live range of a tensor that owns memory, or of a piece of it, and its place in the arena."""

    owner: TensorId
    piece: int | None
    begin_us: float
    end_us: float
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Groups:
    """The groups of operators that share a colour and a letter, most used first."""

    of_operator: tuple[int, ...]
    labels: tuple[str, ...]

    def colour(self, group: int) -> str:
        return PALETTE[group % len(PALETTE)]

    def letter(self, group: int) -> str:
        return _LETTERS[group] if group < len(_LETTERS) else _OTHER


def text_gantt(timeline: Timeline, plan: ExecutionPlan, *, width: int | None = None, lanes: int = 32) -> str:
    """Draw a Gantt chart of characters: a row per vEU. Each cell shows what takes most of its time.

    `width` is the terminal's by default; at most `lanes` rows are shown.
    """
    width = max(width or shutil.get_terminal_size((100, 24)).columns, 40)
    total_us = timeline.total_us
    shown = min(plan.spec.num_veus, lanes)
    margin = len(f"vEU {max(shown - 1, 0)} ")
    columns = width - margin - len("| 100%") - 1
    head = "\n".join([_title(plan), *_facts(timeline, plan)])
    if not total_us:
        return f"{head}\n(nothing to run)\n"
    groups = _groups(timeline, plan)
    weights: list[list[dict[str, float]]] = [[{} for _ in range(columns)] for _ in range(shown)]

    def paint(veu: int, start_us: float, end_us: float, sign: str) -> None:
        first, last = start_us / total_us * columns, end_us / total_us * columns
        for cell in range(int(first), min(ceil(last), columns)):
            part = min(last, cell + 1) - max(first, cell)
            weights[veu][cell][sign] = weights[veu][cell].get(sign, 0.0) + part

    for times in timeline.programs:
        for veu in range(shown):
            paint(veu, times.launch_at_us, times.begin_us, _LAUNCH)
    for bar in _bars(timeline, plan):
        if bar.veu < shown:
            sign = _BARRIER
            if isinstance(bar.slot, RTask):
                sign = groups.letter(groups.of_operator[bar.slot.uid.operator_id])
            paint(bar.veu, bar.start_us, bar.end_us, sign)
    lines = [head]
    for veu in range(shown):
        cells = "".join(
            max(c.items(), key=lambda item: item[1])[0] if sum(c.values()) >= 0.5 else " " for c in weights[veu]
        )
        lines.append(f"{f'vEU {veu}':<{margin}}|{cells}| {timeline.veu_utilisation[veu]:>4.0%}")
    if shown < plan.spec.num_veus:
        lines.append(f"… and {plan.spec.num_veus - shown} more vEUs")
    lines.append(" " * margin + "0" + _time(total_us).rjust(columns + 1))
    used = {sign for row in weights for cell in row for sign in cell}
    lines += [f"  {groups.letter(g)} {label}" for g, label in enumerate(groups.labels[:_LEGEND])]
    if len(groups.labels) > _LEGEND:
        lines.append(f"  … and {len(groups.labels) - _LEGEND} more")
    if _BARRIER in used:
        lines.append(f"  {_BARRIER} waiting at a barrier")
    if _LAUNCH in used:
        lines.append(f"  {_LAUNCH} launching an rProgram")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def svg(timeline: Timeline, plan: ExecutionPlan, *, width: int = 1200) -> str:
    """Draw a Gantt chart for documents, with a row for each memory level if the timeline has its traffic.

    Neighbours that together are narrower than a pixel are drawn as one.
    """
    groups = _groups(timeline, plan)
    row = 30 if plan.spec.num_veus <= 16 else 14
    legend_rows = -(-min(len(groups.labels), _LEGEND) // 4)
    out = _Drawing(timeline, plan, [], width, body=row * plan.spec.num_veus, below=56 + 18 * legend_rows)
    for veu, used in enumerate(timeline.veu_utilisation):
        y = out.top + veu * row
        out.rect(out.left, y + 1, out.chart, row - 2, _PALE)
        out.beside(y + row / 2 + 4, f"vEU {veu}", f"{used:.0%}", size=12)
    for times in timeline.programs:
        x, wide = out.x(times.launch_at_us), out.x(times.begin_us) - out.x(times.launch_at_us)
        if wide > 0.2:
            title = f"launch {_time(times.begin_us - times.launch_at_us)}"
            out.rect(x, out.top, wide, out.end - out.top, _GREY, title, fill_opacity=0.25)
        if wide > 50:
            out.text(x + wide / 2, (out.top + out.end) / 2 + 4, "launch", text_anchor="middle")
    for bars in _runs(timeline, plan, 1 / out.scale if out.scale else 0.0):
        _draw_run(out, bars, plan, groups, row)
    for n, label in enumerate(groups.labels[:_LEGEND]):
        x, y = out.left + (n % 4) * (out.chart // 4), out.bottom + 40 + 18 * (n // 4)
        out.rect(x, y - 10, 11, 11, groups.colour(n), rx=2)
        out.text(x + 17, y, _short(label, out.chart // 30), fill=_INK)
    return str(out)


def _draw_run(out: _Drawing, bars: list[Bar], plan: ExecutionPlan, groups: _Groups, row: int) -> None:
    first = max(bars, key=lambda bar: bar.end_us - bar.start_us)  # the longest bar represents the run
    start_us, span_us = bars[0].start_us, bars[-1].end_us - bars[0].start_us
    x, y = out.x(start_us), out.top + first.veu * row
    wide = max(span_us * out.scale, 0.1)
    name = ""
    if isinstance(first.slot, RTask):
        number, rtask = first.slot.uid
        op = plan.graph.operators[number]
        name, colour, place, high = op.name, groups.colour(groups.of_operator[number]), y + 2, row - 4
        title = f"{op.name} · {op.kind}\n{plan.kernels[number].name}, rTask {rtask}"
    else:
        colour, place, high = "#8c959f", y + row // 2 - 2, 4
        title = "barrier: waits for " + ", ".join(f"{w.veu}:{w.order}" for w in first.slot.waits[:8])
    if len(bars) > 1:
        title += f" and {len(bars) - 1} more"
    title += f"\nat {_time(start_us)} for {_time(span_us)}"
    out.rect(x, place, wide - (0.6 if wide > 4 else 0), high, colour, title, rx=2 if wide > 6 else 0)
    room = int((wide - 8) / 6.6)
    if name and room >= 3 and row >= 24:
        out.text(x + 5, y + row / 2 + 4, _short(name, room), size=11, fill="#ffffff", pointer_events="none")


def memory_svg(timeline: Timeline, plan: ExecutionPlan, *, width: int = 1200, height: int = 420) -> str:
    """Draw the arena over time: each tensor, or piece of one, from its first access to its last, at its bytes.

    Memory levels have a row each below it, if the timeline has their traffic. The plan must have its memory.
    """
    assert plan.memory is not None
    arena = plan.memory.arena_bytes
    groups, up = _groups(timeline, plan), height / max(arena, 1)
    out = _Drawing(timeline, plan, [f"arena: {_mib(arena)}"], width, body=height, below=28)
    out.rect(out.left, out.top, out.chart, height, _PALE)
    for part in range(5):
        out.beside(out.end - height * part / 4 + 4, _mib(arena * part // 4))
    writer = {plan.graph.storage(t).root: n for n, op in enumerate(plan.graph.operators) for t in op.outputs}
    for life in _lives(timeline, plan):
        colour = groups.colour(groups.of_operator[writer[life.owner]]) if life.owner in writer else "#8c959f"
        title = f"{life.owner}{'' if life.piece is None else f', piece {life.piece}'}\n{life.nbytes} bytes"
        title += f"\nfrom {_time(life.begin_us)} to {_time(life.end_us)}"
        wide, high = max((life.end_us - life.begin_us) * out.scale, 0.3), max(life.nbytes * up, 0.3)
        y = out.end - (life.offset + life.nbytes) * up
        out.rect(
            out.x(life.begin_us), y, wide, high, colour, title, fill_opacity=0.8, stroke="#ffffff", stroke_width=0.3
        )
    return str(out)


class _Drawing:
    """An SVG over time: title and facts on top, an axis of time below, rows of memory levels between body and axis.

    `top`, `end` and `bottom` are the y of the body's begin and end, and of the axis. The library escapes all texts.
    """

    def __init__(
        self, timeline: Timeline, plan: ExecutionPlan, facts: Sequence[str], width: int, *, body: int, below: int
    ) -> None:
        facts = [*_facts(timeline, plan), *facts]
        strips = _traffic(timeline, plan, _STRIP_STEPS)
        self.left, self.chart = _MARGIN, max(width - _MARGIN - 80, 100)
        self.top = 42 + 16 * len(facts)
        self.end = self.top + body
        self.bottom = self.end + (_STRIP_GAP + _STRIP * len(strips) if strips else 0)
        self.scale = self.chart / timeline.total_us if timeline.total_us else 0.0
        height = self.bottom + below
        self._root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}"})
        self._root.attrib |= {"width": str(width), "height": str(height), "font-family": _FONT, "font-size": "12"}
        self.rect(0, 0, width, height, "#ffffff")
        self.text(self.left, 24, _title(plan), size=15, fill=_INK, font_weight=600)
        for n, fact in enumerate(facts):
            self.text(self.left, 42 + 16 * n, fact)
        for tick in _ticks(timeline.total_us, max(self.chart // 110, 2)):
            x = self.x(tick)
            self._add("line", x1=x, y1=self.top, x2=x, y2=self.bottom + 5, stroke="#d8dee4")
            self.text(x, self.bottom + 18, _time(tick), size=11, text_anchor="middle")
        for n, traffic in enumerate(strips):
            self._strip(traffic, self.end + _STRIP_GAP + _STRIP * n)

    def __str__(self) -> str:
        return ET.tostring(self._root, encoding="unicode") + "\n"

    def x(self, us: float) -> float:
        """Return where a time is."""
        return self.left + us * self.scale

    def rect(self, x: float, y: float, wide: float, high: float, fill: str, title: str = "", **more: object) -> None:
        """Add a rectangle; its title appears where the mouse is."""
        self._add("rect", title=title, x=x, y=y, width=wide, height=high, fill=fill, **more)

    def text(self, x: float, y: float, text: str, *, size: int = 12, fill: str = _GREY, **more: object) -> None:
        """Add a text that begins at x, on the line at y."""
        self._add("text", x=x, y=y, font_size=size, fill=fill, **more).text = printable(text)

    def beside(self, y: float, left: str, right: str = "", size: int = 11) -> None:
        """Add texts to the left and to the right of the chart."""
        self.text(self.left - 8, y, left, size=size, fill=_INK, text_anchor="end")
        if right:
            self.text(self.left + self.chart + 8, y, right, size=size)

    def _add(self, tag: str, *, title: object = "", **attributes: object) -> ET.Element:
        texts = {k.replace("_", "-"): f"{v:.2f}" if isinstance(v, float) else str(v) for k, v in attributes.items()}
        element = ET.SubElement(self._root, tag, texts)
        if title:
            ET.SubElement(element, "title").text = "\n".join(map(printable, str(title).split("\n")))
        return element

    def _strip(self, traffic: Traffic, y: int) -> None:
        """Draw the row of a memory level: its rate over time, scaled to the row's height."""
        most, high = float(traffic.gbps.max()), _STRIP - 4
        step, base = self.chart / len(traffic.gbps), y + 2 + high
        self.rect(self.left, y + 2, self.chart, high, _PALE)
        edges = (f"V{base - high * g / most:.1f}H{self.left + step * (n + 1):.1f}" for n, g in enumerate(traffic.gbps))
        name, peak = _short(traffic.level, _LEVEL), _gbps(most)
        title = f"{name}: {_mib(traffic.nbytes)}, at most {peak}, estimated"
        self._add("path", title=title, d=f"M{self.left} {base}{''.join(edges)}V{base}Z", fill=_GREY, fill_opacity=0.6)
        self.beside(y + 13, name, peak)


def _lives(timeline: Timeline, plan: ExecutionPlan) -> Iterator[Life]:
    """Yield the live ranges of what is in the arena: inputs from the start, outputs to the end."""
    graph, memory = plan.graph, plan.memory
    assert memory is not None
    times = [np.zeros((kernel.num_rtasks, 2)) for kernel in plan.kernels]
    for bar in _bars(timeline, plan):
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


def html(timeline: Timeline, plan: ExecutionPlan) -> str:
    """Draw one page without outside resources: zoom, pan, hover for names and times, click an operator to follow it."""
    groups = _groups(timeline, plan)
    lanes: list[list[list[float]]] = [[] for _ in range(plan.spec.num_veus)]  # rows: see timeline.html
    waits: list[list[list[int]]] = []
    before = [0] * plan.spec.num_veus  # by vEU: slots in earlier rPrograms
    for number, program in enumerate(plan.programs):
        for bar in _bars(timeline, plan, number):
            start, span = round(bar.start_us, 4), round(bar.end_us - bar.start_us, 4)
            if isinstance(bar.slot, RTask):
                lanes[bar.veu].append([bar.slot.uid.operator_id, bar.slot.uid.rtask_id, start, span])
            else:
                lanes[bar.veu].append([-1, len(waits), start, span])
                waits.append([[w.veu, before[w.veu] + w.order] for w in bar.slot.waits])
        before = [n + len(lane) for n, lane in zip(before, program.lanes, strict=True)]
    data = {
        "title": _title(plan),
        "facts": " · ".join(_facts(timeline, plan)),
        "total": timeline.total_us,
        "operators": [
            [printable(op.name), printable(op.kind), printable(k.name), k.num_rtasks, group]
            for op, k, group in zip(plan.graph.operators, plan.kernels, groups.of_operator, strict=True)
        ],
        "groups": [[label, groups.colour(n)] for n, label in enumerate(groups.labels)],
        "launches": [[round(p.launch_at_us, 4), round(p.begin_us, 4)] for p in timeline.programs],
        "use": list(timeline.veu_utilisation),
        "lanes": lanes,
        "traffic": [
            [_short(printable(t.level), _LEVEL), _gbps(float(t.gbps.max())), [float(f"{g:.4g}") for g in t.gbps]]
            for t in _traffic(timeline, plan, 4 * _STRIP_STEPS)
        ],
        "waits": waits,
        "notes": [printable(n) for n in plan.notes],
    }
    # "<" is escaped so that no name can end the script element.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
    page = files("rammer.viz").joinpath("timeline.html").read_text(encoding="utf-8")
    parts = {"__TITLE__": escape(_title(plan)), "__DATA__": text}
    return re.sub("|".join(parts), lambda found: parts[found[0]], page)  # one pass: a name may contain a placeholder


def chrome_trace(timeline: Timeline, plan: ExecutionPlan, *, flows: bool = False) -> str:
    """Return Trace Event JSON for Perfetto or chrome://tracing: one thread per vEU, one more for launches.

    `flows` adds an arrow from each awaited slot to its barrier.
    """
    host = plan.spec.num_veus
    events: list[dict[str, Any]] = [_meta("process_name", 0, name=printable(f"{plan.spec.name} ({plan.policy})"))]
    for veu in range(host):
        events += _thread(veu, f"vEU {veu}")
    events += _thread(host, "launch")
    for n, times in enumerate(timeline.programs):
        events.append(_slice(f"launch rProgram {n}", "launch", host, times.launch_at_us, times.begin_us, {}))
    ends = [[lane.end_us for lane in p.lanes] for p in timeline.programs]
    arrows = 0
    for bar in _bars(timeline, plan):
        if isinstance(bar.slot, RTask):
            number = bar.slot.uid.operator_id
            op, kernel = plan.graph.operators[number], plan.kernels[number]
            args = {
                "operator": number,
                "kind": printable(op.kind),
                "kernel": printable(kernel.name),
                "rtask": f"{bar.slot.uid.rtask_id} of {kernel.num_rtasks}",
            }
            events.append(_slice(printable(op.name), "rtask", bar.veu, bar.start_us, bar.end_us, args))
            continue
        targets = ", ".join(f"{w.veu}:{w.order}" for w in bar.slot.waits)
        events.append(_slice("barrier", "barrier", bar.veu, bar.start_us, bar.end_us, {"waits": targets}))
        for wait in bar.slot.waits if flows else ():
            arrow = {"cat": "wait", "name": "wait", "id": arrows, "pid": 0}
            done = ends[bar.program][wait.veu][wait.order]
            events.append({**arrow, "ph": "s", "tid": wait.veu, "ts": max(_ns(done) - 1, 0) / 1e3})
            events.append({**arrow, "ph": "f", "bp": "e", "tid": bar.veu, "ts": _ns(max(done, bar.start_us)) / 1e3})
            arrows += 1
    document = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"policy": plan.policy, "times": "us"}}
    return json.dumps(document, separators=(",", ":"))


def superstep_trace(steps: Iterable[Superstep], clock_hz: float) -> str:
    """Return Trace Event JSON of one run in estimated cycles: threads for exchange, synchronisation and computing."""
    phases = ("exchange", "sync", "compute")
    events: list[dict[str, Any]] = [_meta("process_name", 0, name="supersteps, estimated")]
    for thread, phase in enumerate(phases):
        events += _thread(thread, phase)
    now_us = 0.0
    for number, step in enumerate(steps):
        cycles = (step.exchange, step.sync, step.compute)
        args = {"superstep": number, "bytes": step.bytes, "vertices": step.vertices, "tiles": step.tiles}
        for thread, (phase, count) in enumerate(zip(phases, cycles, strict=True)):
            end_us = now_us + count / clock_hz * 1e6
            if count:
                events.append(_slice(printable(step.name), phase, thread, now_us, end_us, {**args, "cycles": count}))
            now_us = end_us
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, separators=(",", ":"))


def _bars(timeline: Timeline, plan: ExecutionPlan, only: int | None = None) -> Iterator[Bar]:
    """Yield every slot of the plan, or of one rProgram, lane by lane."""
    for number in range(len(plan.programs)) if only is None else (only,):
        for veu, (lane, at) in enumerate(
            zip(plan.programs[number].lanes, timeline.programs[number].lanes, strict=True)
        ):
            for order, (slot, start, end) in enumerate(zip(lane, at.start_us, at.end_us, strict=True)):
                yield Bar(number, veu, order, slot, start, end)


def _runs(timeline: Timeline, plan: ExecutionPlan, narrow_us: float) -> Iterator[list[Bar]]:
    """Yield bars, with neighbours that together are narrower than `narrow_us` as one run."""
    run: list[Bar] = []
    for bar in _bars(timeline, plan):
        if run and bar.veu == run[0].veu and bar.end_us - run[0].start_us < narrow_us:
            run.append(bar)
            continue
        if run:
            yield run
        run = [bar]
    if run:
        yield run


def _groups(timeline: Timeline, plan: ExecutionPlan) -> _Groups:
    operators = plan.graph.operators
    by_name = len(operators) <= _BY_NAME
    keys = [n if by_name else op.kind for n, op in enumerate(operators)]
    time_us: dict[int | str, float] = dict.fromkeys(keys, 0.0)
    for bar in _bars(timeline, plan):
        if isinstance(bar.slot, RTask):
            time_us[keys[bar.slot.uid.operator_id]] += bar.end_us - bar.start_us
    order = list(time_us) if by_name else sorted(time_us, key=lambda key: (-time_us[key], str(key)))
    place = {key: n for n, key in enumerate(order)}
    labels = []
    for key in order:
        if isinstance(key, int):
            op, kernel = operators[key], plan.kernels[key]
            labels.append(f"{printable(op.name)} ({op.kind}, {kernel.num_rtasks} × {printable(kernel.name)})")
        else:
            labels.append(f"{printable(key)} ({_time(time_us[key])} in {_number(keys.count(key), 'rOperator')})")
    return _Groups(tuple(place[key] for key in keys), tuple(labels))


def _traffic(timeline: Timeline, plan: ExecutionPlan, steps: int) -> list[Traffic]:
    """Return the traffic of each memory level. The bytes of an rTask are spread evenly over its time."""
    bars = [bar for bar in _bars(timeline, plan) if isinstance(bar.slot, RTask) and bar.slot.uid in timeline.fetched]
    if not bars or not timeline.total_us:
        return []
    edges = np.linspace(0.0, timeline.total_us, steps + 1)
    starts, ends = (np.array(times) for times in zip(*((b.start_us, b.end_us) for b in bars), strict=True))
    ends = np.maximum(ends, starts + 1e-6 * timeline.total_us)
    fetched = np.array([timeline.fetched[b.slot.uid] for b in bars if isinstance(b.slot, RTask)])
    found = []
    for (level, nbytes), own in zip(timeline.moved.items(), fetched.T, strict=True):
        rates = own / (ends - starts)
        passed = _grown(starts, rates, edges) - _grown(ends, rates, edges)
        if nbytes:
            found.append(Traffic(level, nbytes, np.maximum(np.diff(passed), 0.0) / np.diff(edges) / 1e3))
    return found


def _grown(at: NDArray[np.float64], rates: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, at each edge, the sum of amounts that began to grow at times `at`, with these rates."""
    order = np.argsort(at)
    sums = np.zeros((2, len(at) + 1))  # sums of rates, and of the lines' values at time 0
    np.cumsum(np.stack([rates, rates * at])[:, order], axis=1, out=sums[:, 1:])
    rate, begun = sums[:, np.searchsorted(at[order], edges)]
    return np.asarray(edges * rate - begun, np.float64)


def _title(plan: ExecutionPlan) -> str:
    return printable(f"{plan.graph.name or 'plan'} on {plan.spec.name}, policy {plan.policy}")


def _facts(timeline: Timeline, plan: ExecutionPlan) -> list[str]:
    """Return lines about the whole plan: time, use of vEUs, and, if known, where operands come from."""
    moved = (f"{_mib(nbytes)} from {level}" for level, nbytes in timeline.moved.items())
    return [
        f"{_time(timeline.total_us)} estimated · "
        f"{_number(plan.spec.num_veus, 'vEU')} {timeline.utilisation:.0%} used · "
        f"{timeline.overhead:.1%} overhead · {_number(len(plan.graph.operators), 'rOperator')} · "
        f"{_number(plan.num_rtasks, 'rTask')} · {_number(len(plan.programs), 'rProgram')}",
        *([f"operands, estimated: {', '.join(moved)}"] if timeline.moved else []),
    ]


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


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _time(us: float) -> str:
    if us >= 1e4:
        return f"{us / 1e3:.4g} ms"
    return f"{us:.4g} µs"


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"


def _gbps(rate: float) -> str:
    return f"{rate:.3g} GB/s" if rate >= 1 else f"{1e3 * rate:.3g} MB/s"


def _short(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…"


def _ns(us: float) -> int:
    return round(us * 1e3)


def _slice(
    name: str, category: str, thread: int, start_us: float, end_us: float, args: dict[str, Any]
) -> dict[str, Any]:
    """Return a complete event. Times are whole nanoseconds, so that rounding never makes neighbours overlap."""
    start, end = _ns(start_us), _ns(end_us)
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": 0,
        "tid": thread,
        "ts": start / 1e3,
        "dur": (end - start) / 1e3,
        "args": args,
    }


def _meta(what: str, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 0, "tid": thread, "args": args}


def _thread(thread: int, name: str) -> list[dict[str, Any]]:
    return [_meta("thread_name", thread, name=name), _meta("thread_sort_index", thread, sort_index=thread)]
