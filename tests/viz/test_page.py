"""The timeline in a real browser: zoom, search, keyboard, dark, narrow, many lanes, two times, two policies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, Browser, Page, browsing
from jobs import Job, make_problem, random_jobs

import rammer_viz as viz
from rammer.ir.device import VDeviceSpec
from rammer.ir.plan import ExecutionPlan
from rammer.scheduler.plugin import rammer_policies
from rammer.scheduler.timeline import Timeline, recorded, simulate
from rammer_viz.shared import bars

Open = Callable[..., Page]


def drawn(jobs: list[Job], num_veus: int = 3, policy: str = "wavefront") -> tuple[Timeline, ExecutionPlan]:
    spec = VDeviceSpec("paper", num_veus, launch_us=5.0, barrier_us=0.25)
    plan = rammer_policies()[policy]().schedule(make_problem(jobs, spec))
    return simulate(plan), plan


def slower(timeline: Timeline, plan: ExecutionPlan, factor: float) -> Timeline:
    """As if it had been measured."""
    programs = [[np.stack([lane.start_us, lane.end_us], 1) * factor for lane in p.lanes] for p in timeline.programs]
    operators = [
        [np.array([s.uid.operator_id if hasattr(s, "uid") else -1 for s in lane]) for lane in p.lanes]
        for p in plan.programs
    ]
    return recorded(programs, operators)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("needs Chromium")
    with browsing(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Open:
    """Open a page of these texts in a window of some size."""

    def open_page(text: str, **window: Any) -> Page:
        (tmp_path / "plan.html").write_text(text)
        return Page(browser, tmp_path / "plan.html", **window)

    return open_page


JOBS = random_jobs(5, 40)


def test_wheel_keys_and_buttons_zoom(opened: Open) -> None:
    page = opened(viz.html(*drawn(JOBS)))
    whole = page.value("to - from")
    page.mouse("mouseWheel", 600, 150, deltaX=0, deltaY=-400)
    assert page.value("to - from") < whole / 1.5
    page.key("0")
    assert page.value("[from, to - from]") == [0, whole]
    page.key("+")
    assert page.value("to - from") == pytest.approx(whole / 2)
    middle = page.value("(from + to) / 2")
    page.key("ArrowRight")
    assert page.value("(from + to) / 2") == pytest.approx(middle + whole / 10)
    page.value("document.getElementById('all').click()")
    page.rest()
    assert page.value("to - from") == whole


def test_search_jumps_from_hit_to_hit(opened: Open) -> None:
    timeline, plan = drawn(JOBS)
    page = opened(viz.html(timeline, plan))
    name = "1"  # a part of several names
    page.key("/")
    page.write(name)
    count = sum(name in op.name or name in op.kind for op in plan.graph.operators)
    found = page.value("document.getElementById('found').textContent")
    assert count >= 4 and found == f"{count} of {len(plan.graph.operators)} operators"
    starts = []
    for _ in range(count):
        page.key("Enter")
        lane = "chosen.view.lanes[chosen.veu]"
        slot = page.value(f"['operator', 'start', 'span'].map(what => {lane}[what][chosen.index])")
        op = plan.graph.operators[slot[0]]
        assert page.value("to - from") <= max(9 * slot[2], timeline.total_us / 1e4) < timeline.total_us  # zoomed in
        assert name in op.name or name in op.kind
        assert page.value("from") <= slot[1] < page.value("to") < timeline.total_us + 1e-9
        assert op.name in page.value("document.getElementById('tip').innerText")
        starts.append(slot[1])
    assert starts == sorted(starts)
    page.key("Enter", shift=True)
    page.key("Escape")
    assert page.value("[matches, chosen, document.getElementById('find').value]") == [None, None, ""]


def test_tooltips_show_shapes_bytes_and_times(opened: Open) -> None:
    timeline, plan = drawn(JOBS)
    page = opened(viz.html(timeline, plan, others={"measured": (slower(timeline, plan, 1.5), plan)}))
    bar = max((b for b in bars(timeline, plan) if hasattr(b.slot, "uid")), key=lambda b: b.end_us - b.start_us)
    place = f"rows.find(row => row.view === views[0] && row.veu === {bar.veu})"
    x, y = page.value(
        f"(box => [box.left + left + {(bar.start_us + bar.end_us) / 2} / total * (box.width - left - right),"
        f" box.top + {place}.y + {place}.height / 2])(canvas.getBoundingClientRect())"
    )
    page.mouse("mouseMoved", x, y)
    text = page.value("document.getElementById('tip').innerText")
    op = plan.graph.operators[bar.slot.uid.operator_id]  # type: ignore[union-attr]
    for part in (op.name, op.kind, str(op.operation.outputs[0]), "writes", "GFLOP/s", "measured: ", "(1.50×)"):
        assert part in text
    page.click(x, y)
    assert page.value("pinned") == op.name


def test_every_slot_has_its_colour_in_the_picture(opened: Open) -> None:
    """Compared by structure: at sampled times of each lane, the pixel is the colour of the operator that runs there."""
    timeline, plan = drawn(JOBS)
    for dark in (False, True):
        page = opened(viz.html(timeline, plan), dark=dark)
        page.key("c")  # the path would cover bars
        seen = page.value(
            """(() => {
              const pen = canvas.getContext("2d"), found = [], scale = (canvas.width - left - right) / total;
              for (const { view, veu, y, height } of rows) { const lane = view.lanes[veu];
                for (let n = 0; n < lane.count; n++) if (lane.operator[n] >= 0 && lane.span[n] * scale > 4) {
                  const at = pen.getImageData(left + (lane.start[n] + 0.5 * lane.span[n]) * scale, y + 5, 1, 1).data;
                  const colour = "#" + [...at.slice(0, 3)].map(c => c.toString(16).padStart(2, "0")).join("");
                  found.push([colour, data.groups[view.plan.operators[lane.operator[n]][2]][1]]);
                } }
              return [found, getComputedStyle(document.body).backgroundColor];
            })()"""
        )
        assert len(seen[0]) > 50 and all(one == other for one, other in seen[0])
        assert sum(map(int, seen[1][4:-1].split(","))) < 100 or not dark


def test_the_critical_path_is_drawn_and_can_be_hidden(opened: Open) -> None:
    page = opened(viz.html(*drawn(JOBS)))
    red = """(() => { const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let count = 0;
      for (let n = 0; n < data.length; n += 4)
        count += data[n] === 0xc4 && data[n + 1] === 0x16 && data[n + 2] === 0x2a;
      return count; })()"""
    assert page.value(red) > 200
    page.key("c")
    assert page.value(red) == 0
    assert page.value("document.getElementById('path').getAttribute('aria-pressed')") == "false"


@pytest.mark.parametrize("beside", ["measured", "sequential"])
def test_two_times_or_two_policies_are_drawn_together(opened: Open, beside: str) -> None:
    timeline, plan = drawn(JOBS)
    other = (slower(timeline, plan, 2.0), plan) if beside == "measured" else drawn(JOBS, policy="sequential")
    page = opened(viz.html(timeline, plan, others={beside: other}))
    assert page.value("rows.length") == 6 and page.value("total") == pytest.approx(
        max(timeline.total_us, other[0].total_us)
    )
    order = page.value("rows.map(row => row.veu)")
    assert order == ([0, 0, 1, 1, 2, 2] if beside == "measured" else [0, 1, 2, 0, 1, 2])
    buttons = page.value("[...document.querySelectorAll('#views button')].map(b => b.textContent)")
    assert buttons[1:] == [beside, "both"]
    page.value("document.querySelectorAll('#views button')[1].click()")
    page.rest()
    assert page.value("rows.length") == 3 and page.value("rows[0].view.name") == beside


@pytest.mark.parametrize("beside", [False, True])
def test_a_narrow_page_does_not_scroll_sideways(opened: Open, beside: bool) -> None:
    timeline, plan = drawn(JOBS)
    others = {"measured": (slower(timeline, plan, 1.2), plan)} if beside else {}
    why = viz.explain(timeline, plan)._repr_html_()
    page = opened(viz.html(timeline, plan, others=others, why=why), width=390, height=800)
    assert page.value("document.documentElement.scrollWidth") <= 390
    inside = "[...document.querySelectorAll('button, input, h1')].every(e => e.getBoundingClientRect().right <= 390)"
    assert page.value(inside)
    assert page.value("left + right < canvas.clientWidth / 2")


@pytest.mark.parametrize("num_veus", [2, 132, 1472])
def test_labels_of_lanes_do_not_overlap(opened: Open, num_veus: int) -> None:
    wide = [Job("a", ((num_veus, 3.0),)), Job("b", ((num_veus, 2.0),), ("a",))]
    page = opened(viz.html(*drawn(wide, num_veus)))
    places = page.value(
        """(() => { const places = [], fill = CanvasRenderingContext2D.prototype.fillText;
          CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
            if (/^vEU/.test(text)) places.push(y);
            fill.call(this, text, x, y);
          };
          drawLanes(); CanvasRenderingContext2D.prototype.fillText = fill; return places; })()"""
    )
    assert len(places) >= min(num_veus, 60)
    assert all(b - a >= 12 for a, b in itertools.pairwise(places))


def test_steps_of_a_loop_have_names_of_their_own(opened: Open) -> None:
    timeline, plan = drawn([Job(f"c{n}", ((2, 1.0),), (f"c{n - 1}",) if n else (), kind="cell") for n in range(30)])
    operators = tuple(replace(op, name="lstm") for op in plan.graph.operators)
    page = opened(viz.html(timeline, replace(plan, graph=replace(plan.graph, operators=operators))))
    assert page.value("new Set(plans[0].operators.map(op => op[0])).size") >= 29
    page.key("/")
    page.write("lstm #7")
    page.key("Enter")
    assert "lstm #7" in page.value("document.getElementById('tip').innerText")


def test_sizes_are_bounded() -> None:
    small = viz.html(*drawn(JOBS))
    assert len(small.encode()) < 100_000
    chain = [
        Job(f"layer{n}/cell", ((10, 1.0),), (f"layer{n - 1}/cell",) if n else (), kind="cell") for n in range(3000)
    ]
    timeline, plan = drawn(chain, 10, "round_robin")
    assert plan.num_rtasks == 30_000
    page = viz.html(timeline, plan, others={"measured": (slower(timeline, plan, 1.1), plan)})
    assert len(page.encode()) < 3_000_000
