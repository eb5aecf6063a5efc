"""Pictures of a schedule: well-formed, complete, and safe with hostile names."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations, pairwise
from typing import Any

import pytest
from jobs import Job, make_problem, random_jobs
from rammer_testing.generate import random_graph, random_plan

import rammer_viz as viz
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.plan import ExecutionPlan, Price
from rammer.ir.program import RTask
from rammer.planner.memory import plan_memory
from rammer.scheduler.plugin import rammer_policies
from rammer.scheduler.timeline import Timeline, simulate
from rammer_viz.shared import bars, names

HOSTILE = "</script><script>alert(1)</script>\x1b[31m\u202e&\"'<b>\x00\n"
DIAMOND = [
    Job("stem", ((4, 2.0),)),
    Job("left", ((2, 3.0),), ("stem",)),
    Job("right", ((3, 1.0),), near=("stem",)),
    Job("join", ((2, 1.5),), ("left", "right")),
]
SVG = "{http://www.w3.org/2000/svg}"


def drawn(jobs: list[Job], num_veus: int = 2, policy: str = "wavefront") -> tuple[Timeline, ExecutionPlan]:
    spec = VDeviceSpec("paper", num_veus, launch_us=5.0, barrier_us=0.25)
    plan = rammer_policies()[policy]().schedule(make_problem(jobs, spec))
    return simulate(plan), plan


def renamed(plan: ExecutionPlan, name: str) -> ExecutionPlan:
    """The plan with every operator and kernel called `name`."""
    operators = tuple(replace(op, name=name) for op in plan.graph.operators)
    kernels = {k: replace(k, name=name) for k in plan.kernels}
    graph = replace(plan.graph, name=name, operators=operators)
    return replace(plan, graph=graph, kernels=tuple(kernels[k] for k in plan.kernels), notes=(name,))


def slots(plan: ExecutionPlan) -> int:
    return sum(len(lane) for program in plan.programs for lane in program.lanes)


GANTT = """\
jobs on paper, policy wavefront
16 µs estimated · 2 vEUs 62% used · 34.4% overhead · 4 rOperators · 11 rTasks · 1 rProgram
vEU 0 |▸▸▸▸▸▸▸▸▸▸▸▸▸▸▸AAAAAAAAAAA·BBBBBBBBBCCCCCC·DDDD|  66%
vEU 1 |▸▸▸▸▸▸▸▸▸▸▸▸▸▸▸AAAAAAAAAAA·BBBBBBBBBCCC·DDDD   |  59%
      0                                           16 µs
  A stem (stem, 4 × x4)
  B left (left, 2 × x2)
  C right (right, 3 × x3)
  D join (join, 2 × x2)
  · waiting at a barrier
  ▸ launching an rProgram
"""


def test_text_gantt() -> None:
    assert viz.text_gantt(*drawn(DIAMOND), width=60) == GANTT


@pytest.mark.parametrize("width", [40, 80, 200])
def test_text_gantt_keeps_to_its_width(width: int) -> None:
    text = viz.text_gantt(*drawn(random_jobs(3, 60), 40), width=width, lanes=8)
    rows = [line for line in text.splitlines() if line.startswith("vEU")]
    assert len(rows) == 8 and all(len(row) <= width for row in rows)
    assert "… and 32 more vEUs" in text


def test_where_operands_come_from_is_told_where_it_was_followed() -> None:
    timeline, plan = drawn(DIAMOND)
    for picture in (viz.text_gantt, viz.svg, viz.html):
        assert "operands, estimated" not in picture(timeline, plan)
    followed = replace(timeline, moved={"L2": 3 << 20, "DRAM": 1 << 19})
    for picture in (viz.text_gantt(followed, plan), viz.svg(followed, plan), viz.html(followed, plan)):
        assert "operands, estimated: 3.0 MiB from L2, 512.0 KiB from DRAM" in picture


def test_svg_has_a_bar_for_every_slot() -> None:
    timeline, plan = drawn(DIAMOND)
    root = ET.fromstring(viz.svg(timeline, plan))
    titles = [t.text or "" for t in root.iter(f"{SVG}title")]
    assert len(titles) == slots(plan) + len(plan.programs)  # and one per launch
    assert sum("left · left\nx2, rTask " in t for t in titles) == 2
    assert sum(t.startswith("barrier: waits for ") for t in titles) == 4
    text = "".join(root.itertext())
    assert "vEU 1" in text and "16 µs" in text and "stem (stem, 4 × x4)" in text


def followed() -> tuple[Timeline, ExecutionPlan]:
    """On a machine of caches, by prices: sources, then what reads them on the other vEU."""
    levels = (MemoryLevel("L2", 1 << 20, "veu", 100.0, written_gbps=8.0), MemoryLevel("<L3>", 1 << 24, read_gbps=30.0))
    spec = VDeviceSpec("caches", 2, memory=(*levels, MemoryLevel("DRAM", 1 << 34, read_gbps=12.0)), barrier_us=0.5)
    plan = rammer_policies()["wavefront"]().schedule(make_problem(DIAMOND, spec))
    plan = replace(plan, prices=dict.fromkeys(plan.kernels, Price(1.0)))
    return simulate(plan), plan


def strip_heights(root: ET.Element) -> dict[str, list[float]]:
    """By memory level: how high its row is drawn in each step of time, in pixels."""
    found = {}
    for path in root.iter(f"{SVG}path"):
        base = float(path.attrib["d"].split()[1].split("V")[0])
        title = path.find(f"{SVG}title")
        assert title is not None and title.text
        tops = [float(y) for y in re.findall(r"V([\d.]+)H", path.attrib["d"])]
        found[title.text.split(":")[0]] = [base - y for y in tops]
    return found


def test_memory_levels_have_a_row_each_that_holds_what_was_moved() -> None:
    """The area of a row is the bytes from its level; what an rTask fetches lies between its start and its end."""
    timeline, plan = followed()
    fetched = dict(zip(timeline.moved, sum(timeline.fetched.values()), strict=True))
    assert timeline.moved == {level: round(nbytes) for level, nbytes in fetched.items()}
    wanted = {level: nbytes for level, nbytes in fetched.items() if round(nbytes)}
    assert len(wanted) >= 2
    picture = viz.svg(timeline, plan)
    heights = strip_heights(ET.fromstring(picture))
    data = json.loads(Page(viz.html(timeline, plan)).scripts[0])
    shown = data["views"][0]["traffic"]
    assert list(heights) == list(wanted) == [level for level, _, _ in shown]
    for level, most, rates in shown:
        step_us = timeline.total_us / len(rates)
        assert sum(rates) * step_us * 1e3 == pytest.approx(wanted[level], rel=1e-3)
        number, unit = most.split()
        assert float(number) * {"GB/s": 1.0, "MB/s": 1e-3}[unit] == pytest.approx(max(rates), rel=1e-2)
        drawn_part = sum(heights[level]) / max(heights[level]) / len(heights[level])
        assert drawn_part == pytest.approx(sum(rates) / max(rates) / len(rates), rel=0.1)
        for n, rate in enumerate(rates):
            begin, end = n * step_us, (n + 1) * step_us
            running = [b for b in bars(timeline, plan) if b.start_us < end and b.end_us > begin]
            assert rate < 1e-3 or any(isinstance(b.slot, RTask) for b in running)


def test_rows_of_a_picture_do_not_overlap() -> None:
    """Texts of one column are at least a line apart, and inside of the picture."""
    timeline, plan = followed()
    root = ET.fromstring(viz.svg(timeline, plan))
    columns: dict[float, list[float]] = {}
    for text in root.iter(f"{SVG}text"):
        columns.setdefault(float(text.attrib["x"]), []).append(float(text.attrib["y"]))
        size = float(text.attrib.get("font-size", 12))
        wide = 0.62 * size * len(text.text or "")
        anchor = {"end": 1.0, "middle": 0.5}.get(text.attrib.get("text-anchor", ""), 0.0)
        assert float(text.attrib["x"]) - anchor * wide >= 0, text.text
        assert float(text.attrib["x"]) + (1 - anchor) * wide <= float(root.attrib["width"]) or anchor == 0.5, text.text
    assert all(b - a >= 14 for ys in columns.values() for a, b in pairwise(sorted(ys)))
    assert max(max(ys) for ys in columns.values()) <= float(root.attrib["height"])


def rectangles(picture: str) -> list[tuple[str, float, float, float, float]]:
    """Title, and left, top, right and bottom of what has one."""
    found = []
    for rect in ET.fromstring(picture).iter(f"{SVG}rect"):
        if (title := rect.find(f"{SVG}title")) is not None:
            x, y, wide, high = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
            found.append((title.text or "", x, y, x + wide, y + high))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_what_lies_in_memory_never_overlaps(seed: int) -> None:
    """Neither tensors nor pieces of them: bytes are taken again when nobody needs what was there."""
    plan = random_plan(random_graph(seed, 8), seed, num_veus=2)
    plan = replace(plan, memory=plan_memory(plan, least_piece=1))
    assert plan.memory is not None
    timeline = simulate(plan, lambda kernel: 1.0)
    picture = viz.memory_svg(timeline, plan, width=100_000, height=100_000)
    found = rectangles(picture)
    pieces = sum(len(p.firsts) for p in plan.memory.pieces.values())
    assert 0 < len(found) <= len(plan.memory.offsets) + pieces
    for (name, *one), (other_name, *other) in combinations(found, 2):
        apart = one[2] <= other[0] + 1 or other[2] <= one[0] + 1 or one[3] <= other[1] + 1 or other[3] <= one[1] + 1
        assert apart, (name, other_name)
    hostile = renamed(plan, HOSTILE)
    assert "<script>" not in viz.memory_svg(timeline, hostile)


def test_where_nothing_is_followed_no_row_is_drawn() -> None:
    timeline, plan = drawn(DIAMOND)
    assert "<path" not in viz.svg(timeline, plan)
    assert json.loads(Page(viz.html(timeline, plan)).scripts[0])["views"][0]["traffic"] == []


def test_svg_of_a_long_plan_joins_what_cannot_be_seen() -> None:
    chain = [Job(f"c{n}", ((2, 1.0),), (f"c{n - 1}",) if n else (), kind=f"k{bool(n)}") for n in range(2000)]
    timeline, plan = drawn(chain)
    text = viz.svg(timeline, plan, width=600)
    assert slots(plan) > 7000 and text.count("<rect") < 3 * 2 * 600


class Page(HTMLParser):
    """Collects the tags of a page, its script texts, and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.scripts: list[str] = []
        self.title = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "data", "action")]

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts.append(data)
        elif self.lasttag == "title" and not self.title:
            self.title = data


def test_html_is_self_contained_and_complete() -> None:
    timeline, plan = drawn(random_jobs(5, 40), 3)
    text = viz.html(timeline, plan)
    page = Page(text)
    assert page.addresses == [] and not re.search(r"https?://|@import|url\(", text)
    data = json.loads(page.scripts[0])
    lanes = rows(data)
    assert [len(lane) for lane in lanes] == [sum(len(p[v]) for p in plan.programs) for v in range(3)]
    assert [op[0] for op in data["plans"][0][0]] == [op.name for op in plan.graph.operators]
    for lane in lanes:
        for first, second in pairwise(lane):
            assert first[2] + first[3] <= second[2]
    for bar in bars(timeline, plan):
        operator, number, start, span = lanes[bar.veu][bar.order]
        assert start == pytest.approx(bar.start_us * 1e3, abs=1) and span == pytest.approx(
            (bar.end_us - bar.start_us) * 1e3, abs=1
        )
        assert not isinstance(bar.slot, RTask) or (operator, number) == bar.slot.uid


def rows(data: dict[str, Any], view: int = 0) -> list[list[tuple[int, int, int, int]]]:
    """By lane, for each slot: operator, rTask (or number of the barrier), start and duration in ns."""
    shown = data["views"][view]
    found = []
    for (operators, numbers), (gaps, spans) in zip(data["plans"][shown["plan"]][1], shown["lanes"], strict=True):
        now, lane = 0, []
        for operator, number, gap, span in zip(operators, numbers, gaps, spans, strict=True):
            lane.append((operator, number, now + gap, span))
            now += gap + span
        found.append(lane)
    return found


def test_html_barriers_point_at_the_slots_they_wait_for() -> None:
    """Also in later rPrograms, whose lanes go on where those of the first ended."""
    chain = [Job(f"c{n}", ((2, 1.0),), (f"c{n - 1}",) if n else ()) for n in range(3)]
    timeline, plan = drawn(chain, policy="round_robin")
    twice = replace(plan, programs=plan.programs * 2)
    data = json.loads(Page(viz.html(simulate(twice), twice)).scripts[0])
    seen, lanes = 0, rows(data)
    for lane in lanes:
        for here, (operator, number, start, span) in enumerate(lane):
            waits = data["plans"][0][2][number] if operator < 0 else []
            for veu, after in zip(waits[::2], waits[1::2], strict=True):
                target = lanes[veu][here + after]
                assert target[0] >= 0 and target[2] + target[3] <= start + span
                assert start - (target[2] + target[3]) < 2000  # in the same rProgram
                seen += 1
    assert seen == 8 and timeline.total_us > 0


def test_chrome_trace_slices_never_overlap() -> None:
    timeline, plan = drawn(random_jobs(11, 40), 3, "stationary")
    events = json.loads(viz.chrome_trace(timeline, plan))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == slots(plan) + len(plan.programs)
    for thread in {e["tid"] for e in slices}:
        own = sorted((e for e in slices if e["tid"] == thread), key=lambda e: (e["ts"], e["dur"]))
        for first, second in pairwise(own):
            assert round(1e3 * first["ts"]) + round(1e3 * first["dur"]) <= round(1e3 * second["ts"])
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads == {0: "vEU 0", 1: "vEU 1", 2: "vEU 2", 3: "launch"}
    assert {e["cat"] for e in slices} == {"rtask", "barrier", "launch"}


def test_steps_of_a_loop_have_names_of_their_own_in_every_picture() -> None:
    timeline, plan = drawn([Job(f"c{n}", ((2, 9.0),), (f"c{n - 1}",) if n else (), kind="cell") for n in range(5)])
    plan = replace(plan, graph=replace(plan.graph, operators=tuple(replace(o, name="l") for o in plan.graph.operators)))
    wanted = set(names(plan))
    assert len(wanted) == 5
    events = json.loads(viz.chrome_trace(timeline, plan))["traceEvents"]
    assert {e["name"] for e in events if e.get("cat") == "rtask"} == wanted
    assert {text for text in texts(viz.svg(timeline, plan)) if re.fullmatch(r"l( #\d)?", text)} == wanted
    assert all(f"{name} (cell" in viz.text_gantt(timeline, plan, width=100) for name in wanted)
    (shown,) = json.loads(Page(viz.html(timeline, plan)).scripts[0])["plans"]
    assert {operator[0] for operator in shown[0]} == wanted


def test_hostile_names_are_harmless() -> None:
    timeline, plan = drawn(DIAMOND)
    plan = renamed(plan, HOSTILE)
    gantt = viz.text_gantt(timeline, plan, width=80)
    assert all(c.isprintable() or c == "\n" for c in gantt)
    picture = viz.svg(timeline, plan)
    assert not any(e.tag in (f"{SVG}script", f"{SVG}b") for e in ET.fromstring(picture).iter())
    text = viz.html(timeline, plan)
    page = Page(text)
    assert page.tags.count("script") == 2 and page.tags.count("b") == 0 and len(page.scripts) == 2
    assert json.loads(page.scripts[0])["plans"][0][0][0][0].startswith("</script><script>alert(1)")
    assert "\x1b" not in text and "\u202e" not in text and "\x00" not in text
    events = json.loads(viz.chrome_trace(timeline, plan))["traceEvents"]
    assert not any(not c.isprintable() for e in events for c in e["name"])


@pytest.mark.parametrize("name", ["__DATA__", "__TITLE__", "\\u003c", "$&", ""])
def test_names_that_look_like_the_template(name: str) -> None:
    timeline, plan = drawn(DIAMOND)
    page = Page(viz.html(timeline, renamed(plan, name)))
    assert {op[0] for op in json.loads(page.scripts[0])["plans"][0][0]} == {name}
    assert page.title == f"{name or 'plan'} on paper, policy wavefront"


def test_an_empty_plan() -> None:
    timeline, plan = drawn([])
    assert "(nothing to run)" in viz.text_gantt(timeline, plan, width=60)
    ET.fromstring(viz.svg(timeline, plan))
    assert rows(json.loads(Page(viz.html(timeline, plan)).scripts[0])) == [[], []]
    assert json.loads(viz.chrome_trace(timeline, plan))["traceEvents"]


def texts(picture: str) -> list[str]:
    return ["".join(text.itertext()) for text in ET.fromstring(picture).iter(f"{SVG}text")]


@pytest.mark.parametrize("width", [700, 1200])
def test_legends_are_whole(width: int) -> None:
    """Their labels are not cut while a line has room for them."""
    jobs = [
        Job(f"model/encoder/layers.{n}/attention/projection", ((2, 3.0),), kind=f"matmul+add_{n}") for n in range(9)
    ]
    timeline, plan = drawn(jobs)
    shown = texts(viz.svg(timeline, plan, width=width))
    for name, kernel in zip(names(plan), plan.kernels, strict=True):
        kind = kernel.operation.kind
        assert f"{name} ({kind}, {kernel.num_rtasks} × {kernel.name})" in shown


@pytest.mark.parametrize("us", [0.4, 900.0, 9_000.0, 30_000.0])
def test_an_axis_has_one_unit(us: float) -> None:
    timeline, plan = drawn([Job("a", ((2, us),)), Job("b", ((2, us),), ("a",))])
    ticks = [text for text in texts(viz.svg(timeline, plan)) if re.fullmatch(r"[\d.e-]+ (µs|ms)", text)]
    assert len(ticks) >= 4 and len({text.split()[1] for text in ticks}) == 1


def test_a_map_of_memory_names_what_lies_there() -> None:
    plan = random_plan(random_graph(1, 8), 1, num_veus=2)
    plan = replace(plan, memory=plan_memory(plan))
    assert plan.memory is not None
    picture = viz.memory_svg(simulate(plan, lambda kernel: 1.0), plan, width=5000, height=5000)
    shown, large = texts(picture), [r for r in rectangles(picture) if r[3] - r[1] > 100 and r[4] - r[2] > 20]
    assert len(large) >= 4 and all(title.split("\n")[0] in shown for title, *_ in large)
    units = {text.split()[1] for text in shown if re.fullmatch(r"[\d.]+ (B|KiB|MiB)", text)}
    assert len(units) == 1
