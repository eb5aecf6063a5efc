"""Draw a schedule: text Gantt, SVG, a self-contained HTML page, Chrome-trace JSON. Pure functions.

Names of operators and rKernels come from models, which are untrusted. They are escaped for each format, and stripped of
control characters.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from math import ceil
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

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
    head = _headline(timeline, plan)
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
    end = _time(total_us)
    lines.append(" " * margin + "0" + end.rjust(columns + 1))
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
    facts = _facts(timeline, plan)
    strips = _traffic(timeline, plan, _STRIP_STEPS)
    left, right = (124, 80) if strips else (64, 56)
    top, row = 42 + 16 * len(facts), 30 if plan.spec.num_veus <= 16 else 14
    chart = max(width - left - right, 100)
    lanes = top + row * plan.spec.num_veus  # y of the end of the vEUs' rows
    bottom = lanes + (_STRIP_GAP + _STRIP * len(strips) if strips else 0)
    legend_rows = -(-min(len(groups.labels), _LEGEND) // 4)
    height = bottom + 44 + 18 * legend_rows + 12
    scale = chart / timeline.total_us if timeline.total_us else 0.0
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="24" font-size="15" font-weight="600" fill="#1b1f24">{_xml(_title(plan))}</text>',
        *(f'<text x="{left}" y="{42 + 16 * n}" fill="#57606a">{_xml(fact)}</text>' for n, fact in enumerate(facts)),
    ]
    for tick in _ticks(timeline.total_us, max(chart // 110, 2)):
        x = left + tick * scale
        out.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom + 5}" stroke="#d8dee4"/>')
        out.append(
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" font-size="11" fill="#57606a">'
            f"{_xml(_time(tick))}</text>"
        )
    for veu in range(plan.spec.num_veus):
        y = top + veu * row
        out.append(f'<rect x="{left}" y="{y + 1}" width="{chart}" height="{row - 2}" fill="#f3f5f7"/>')
        out.append(
            f'<text x="{left - 8}" y="{y + row / 2 + 4:.0f}" text-anchor="end" fill="#1b1f24">vEU {veu}</text>'
            f'<text x="{left + chart + 8}" y="{y + row / 2 + 4:.0f}" fill="#57606a">'
            f"{timeline.veu_utilisation[veu]:.0%}</text>"
        )
    for times in timeline.programs:
        x, wide = left + times.launch_at_us * scale, (times.begin_us - times.launch_at_us) * scale
        if wide > 0.2:
            out.append(
                f'<rect x="{x:.2f}" y="{top}" width="{wide:.2f}" height="{lanes - top}" fill="#57606a" '
                f'fill-opacity="0.25"><title>launch {_xml(_time(times.begin_us - times.launch_at_us))}</title></rect>'
            )
        if wide > 50:
            out.append(
                f'<text x="{x + wide / 2:.1f}" y="{(top + lanes) / 2 + 4:.0f}" text-anchor="middle" '
                'fill="#57606a">launch</text>'
            )
    for bars in _runs(timeline, plan, 1 / scale if scale else 0.0):
        out.append(_svg_run(bars, plan, groups, left, top, row, scale))
    for n, traffic in enumerate(strips):
        out.append(_svg_strip(traffic, left, lanes + _STRIP_GAP + _STRIP * n, chart))
    for n, label in enumerate(groups.labels[:_LEGEND]):
        x, y = left + (n % 4) * (chart / 4), bottom + 40 + 18 * (n // 4)
        out.append(f'<rect x="{x:.0f}" y="{y - 10}" width="11" height="11" rx="2" fill="{groups.colour(n)}"/>')
        out.append(f'<text x="{x + 17:.0f}" y="{y}" fill="#1b1f24">{_xml(_short(label, chart // 30))}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def _svg_run(bars: list[Bar], plan: ExecutionPlan, groups: _Groups, left: int, top: int, row: int, scale: float) -> str:
    first = max(bars, key=lambda bar: bar.end_us - bar.start_us)  # the longest bar represents the run
    start_us, span_us = bars[0].start_us, bars[-1].end_us - bars[0].start_us
    x, y = left + start_us * scale, top + first.veu * row
    wide = max(span_us * scale, 0.1)
    if isinstance(first.slot, RTask):
        op = plan.graph.operators[first.slot.uid.operator_id]
        colour = groups.colour(groups.of_operator[first.slot.uid.operator_id])
        place, high = y + 2, row - 4
        title = (
            f"{op.name} · {op.kind}\n{plan.kernels[first.slot.uid.operator_id].name}, rTask {first.slot.uid.rtask_id}"
        )
    else:
        colour, place, high = "#8c959f", y + row // 2 - 2, 4
        title = "barrier: waits for " + ", ".join(f"{w.veu}:{w.order}" for w in first.slot.waits[:8])
    if len(bars) > 1:
        title += f" and {len(bars) - 1} more"
    title += f"\nat {_time(start_us)} for {_time(span_us)}"
    gap = 0.6 if wide > 4 else 0.0
    text = (
        f'<g><rect x="{x:.2f}" y="{place}" width="{wide - gap:.2f}" height="{high}" rx="{2 if wide > 6 else 0}" '
        f'fill="{colour}"><title>{_xml(title)}</title></rect>'
    )
    room = int((wide - 8) / 6.6)
    if isinstance(first.slot, RTask) and room >= 3 and row >= 24:
        name = _short(plan.graph.operators[first.slot.uid.operator_id].name, room)
        text += (
            f'<text x="{x + 5:.1f}" y="{y + row / 2 + 4:.0f}" font-size="11" fill="#ffffff" '
            f'pointer-events="none">{_xml(name)}</text>'
        )
    return text + "</g>"


def _svg_strip(traffic: Traffic, left: int, y: int, chart: int) -> str:
    """Draw the row of a memory level: its rate over time, scaled to the row's height."""
    most, high = float(traffic.gbps.max()), _STRIP - 4
    step, base = chart / len(traffic.gbps), y + 2 + high
    edges = " ".join(f"V{base - high * g / most:.1f}H{left + step * (n + 1):.1f}" for n, g in enumerate(traffic.gbps))
    name, peak = _xml(_short(traffic.level, _LEVEL)), _gbps(most)
    return (
        f'<rect x="{left}" y="{y + 2}" width="{chart}" height="{high}" fill="#f3f5f7"/>'
        f'<path d="M{left} {base}{edges}V{base}Z" fill="#57606a" fill-opacity="0.6">'
        f"<title>{name}: {_mib(traffic.nbytes)}, at most {peak}, estimated</title></path>"
        f'<text x="{left - 8}" y="{y + 13}" text-anchor="end" font-size="11" fill="#1b1f24">{name}</text>'
        f'<text x="{left + chart + 8}" y="{y + 13}" font-size="11" fill="#57606a">{peak}</text>'
    )


def memory_svg(timeline: Timeline, plan: ExecutionPlan, *, width: int = 1200, height: int = 420) -> str:
    """Draw the arena over time: each tensor, or piece of one, from its first access to its last, at its bytes.

    Memory levels have a row each below it, if the timeline has their traffic. The plan must have its memory.
    """
    assert plan.memory is not None
    groups, facts = _groups(timeline, plan), [*_facts(timeline, plan), f"arena: {_mib(plan.memory.arena_bytes)}"]
    strips = _traffic(timeline, plan, _STRIP_STEPS)
    left, top = 124, 42 + 16 * len(facts)
    chart, bottom = max(width - left - 80, 100), top + height
    end = bottom + (_STRIP_GAP + _STRIP * len(strips) if strips else 0)
    across = chart / timeline.total_us if timeline.total_us else 0.0
    up = height / max(plan.memory.arena_bytes, 1)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{end + 28}" viewBox="0 0 {width} {end + 28}"'
        ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{end + 28}" fill="#ffffff"/>',
        f'<text x="{left}" y="24" font-size="15" font-weight="600" fill="#1b1f24">{_xml(_title(plan))}</text>',
        *(f'<text x="{left}" y="{42 + 16 * n}" fill="#57606a">{_xml(fact)}</text>' for n, fact in enumerate(facts)),
        f'<rect x="{left}" y="{top}" width="{chart}" height="{height}" fill="#f3f5f7"/>',
    ]
    for part in range(5):
        y = bottom - height * part / 4
        size = _mib(plan.memory.arena_bytes * part // 4)
        out.append(
            f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end" font-size="11" fill="#57606a">{size}</text>'
        )
    for tick in _ticks(timeline.total_us, max(chart // 110, 2)):
        x = left + tick * across
        out.append(
            f'<text x="{x:.1f}" y="{end + 18}" text-anchor="middle" font-size="11" fill="#57606a">{_time(tick)}</text>'
        )
    writer = {plan.graph.storage(t).root: n for n, op in enumerate(plan.graph.operators) for t in op.outputs}
    for life in _lives(timeline, plan):
        colour = groups.colour(groups.of_operator[writer[life.owner]]) if life.owner in writer else "#8c959f"
        title = f"{life.owner}{'' if life.piece is None else f', piece {life.piece}'}\n{life.nbytes} bytes"
        out.append(
            f'<rect x="{left + life.begin_us * across:.2f}" y="{bottom - (life.offset + life.nbytes) * up:.2f}" '
            f'width="{max((life.end_us - life.begin_us) * across, 0.3):.2f}" height="{max(life.nbytes * up, 0.3):.2f}" '
            f'fill="{colour}" fill-opacity="0.8" stroke="#ffffff" stroke-width="0.3">'
            f"<title>{_xml(title)}\nfrom {_time(life.begin_us)} to {_time(life.end_us)}</title></rect>"
        )
    for n, traffic in enumerate(strips):
        out.append(_svg_strip(traffic, left, bottom + _STRIP_GAP + _STRIP * n, chart))
    return "\n".join([*out, "</svg>"]) + "\n"


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
            if root in memory.near:
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
    parts = {"__TITLE__": _xml(_title(plan)), "__DATA__": text}
    return re.sub("|".join(parts), lambda found: parts[found[0]], page)  # one pass: a name may contain a placeholder


def chrome_trace(timeline: Timeline, plan: ExecutionPlan, *, flows: bool = False) -> str:
    """Return Trace Event JSON for Perfetto or chrome://tracing: one thread per vEU, one more for launches.

    `flows` adds an arrow from each awaited slot to its barrier.
    """
    host = plan.spec.num_veus
    events: list[dict[str, Any]] = [_meta("process_name", 0, f"{plan.spec.name} ({plan.policy})")]
    for veu in range(host):
        events += [_meta("thread_name", veu, f"vEU {veu}"), _sort(veu)]
    events += [_meta("thread_name", host, "launch"), _sort(host)]
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
    events: list[dict[str, Any]] = [_meta("process_name", 0, "supersteps, estimated")]
    for thread, phase in enumerate(phases):
        events += [_meta("thread_name", thread, phase), _sort(thread)]
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


def _headline(timeline: Timeline, plan: ExecutionPlan) -> str:
    return "\n".join([_title(plan), *_facts(timeline, plan)])


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


def _xml(text: str) -> str:
    return escape("\n".join(map(printable, text.split("\n"))), {'"': "&quot;"})


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


def _meta(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 0, "tid": thread, "args": {"name": printable(name)}}


def _sort(thread: int) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": thread, "args": {"sort_index": thread}}
