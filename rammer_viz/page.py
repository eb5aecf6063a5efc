"""Draw one HTML page without outside resources: timelines of one plan or of two, with a text that explains them.

Times are whole nanoseconds, and slots are columns of numbers: a plan of 30,000 rTasks takes less than 3 MB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, TypeAlias

from rammer.errors import size
from rammer.ir.kernel import RKernel
from rammer.ir.operator import flops
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask
from rammer.ir.text import printable
from rammer.scheduler.critical import critical_path
from rammer.scheduler.timeline import Timeline
from rammer_viz.shared import (
    ESTIMATED,
    LEVEL,
    MEASURED,
    STRIP_STEPS,
    Groups,
    data_rate,
    facts,
    names,
    ns,
    short,
    title,
    traffic,
)

Drawn: TypeAlias = tuple[Timeline, ExecutionPlan]


def html(timeline: Timeline, plan: ExecutionPlan, *, others: Mapping[str, Drawn] | None = None, why: str = "") -> str:
    """Draw one page: zoom, pan, search, hover for names and times, click an operator to follow it, the critical path.

    `others` are drawn beside the plan: its measured times as "measured", or other policies' plans by name. `why` is
    HTML below the chart.
    """
    others = others or {}
    drawn = {ESTIMATED if MEASURED in others else plan.policy: (timeline, plan), **others}
    plans = list({id(its): its for _, its in drawn.values()}.values())
    numbers = {id(its): n for n, its in enumerate(plans)}
    groups, kernels = Groups(timeline, plan, *plans[1:]), dict[RKernel, int]()
    fetched = _fetched(timeline, plan)
    data = {
        "title": title(plan),
        "groups": [[label, groups.colour(n)] for n, label in enumerate(groups.labels)],
        "plans": [_plan(its, own, kernels) for its, own in zip(plans, groups.of_plan, strict=True)],
        "kernels": [_kernel(kernel, fetched.get(kernel, "")) for kernel in kernels],
        "views": [_view(name, *pair, numbers[id(pair[1])]) for name, pair in drawn.items()],
        "notes": [printable(note) for note in plan.notes],
    }
    # "<" is escaped so that no name can end the script element.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
    page = files("rammer_viz").joinpath("timeline.html").read_text(encoding="utf-8")
    parts = {"__TITLE__": escape(title(plan)), "__DATA__": text, "__WHY__": why}
    return re.sub("|".join(parts), lambda found: parts[found[0]], page)  # one pass: a name may contain a placeholder


def _plan(plan: ExecutionPlan, groups: Sequence[int], kernels: dict[RKernel, int]) -> list[Any]:
    """Return operators, lanes and waits of a plan, as timeline.html describes them. Numbers its kernels."""
    operators = [
        [name, kernels.setdefault(kernel, len(kernels)), group]
        for name, kernel, group in zip(names(plan), plan.kernels, groups, strict=True)
    ]
    lanes: list[list[list[int]]] = [[[], []] for _ in range(plan.spec.num_veus)]
    waits: list[list[int]] = []
    for program, before in zip(plan.programs, _before(plan), strict=True):
        for (numbers, rtasks), lane in zip(lanes, program.lanes, strict=True):
            for slot in lane:
                if isinstance(slot, RTask):
                    numbers.append(slot.uid.operator_id)
                    rtasks.append(slot.uid.rtask_id)
                    continue
                here = len(numbers)
                numbers.append(-1)
                rtasks.append(len(waits))
                waits.append([n for w in slot.waits for n in (w.veu, before[w.veu] + w.order - here)])
    return [operators, lanes, waits]


def _before(plan: ExecutionPlan) -> list[list[int]]:
    """Return, for each rProgram, the slots of each vEU in earlier ones."""
    found = [[0] * plan.spec.num_veus]
    for program in plan.programs[:-1]:
        found.append([n + len(lane) for n, lane in zip(found[-1], program.lanes, strict=True)])
    return found[: len(plan.programs)]


def _kernel(kernel: RKernel, fetched: str) -> list[Any]:
    """Return what a tooltip says about operators of a kernel, besides their names and times."""
    read, written = kernel.operation.inputs, kernel.operation.outputs
    return [
        printable(kernel.operation.kind),
        printable(kernel.name),
        kernel.num_rtasks,
        " → ".join(" · ".join(map(str, types)) for types in (read, written) if types),
        sum(t.nbytes for t in read),
        sum(t.nbytes for t in written),
        flops(kernel.operation.expr),
        fetched,
    ]


def _fetched(timeline: Timeline, plan: ExecutionPlan) -> dict[RKernel, str]:
    """Return where the operands of each kernel's rTasks come from on average, if that is followed."""
    found: dict[RKernel, list[Any]] = {}
    for task, nbytes in timeline.fetched.items():
        found.setdefault(plan.kernels[task.operator_id], []).append(nbytes)
    texts = {}
    for kernel, each in found.items():
        mean = zip(timeline.moved, (sum(each) / len(each)).tolist(), strict=True)
        texts[kernel] = "an rTask fetches " + ", ".join(f"{size(n)} from {level}" for level, n in mean if round(n))
    return texts


def _view(name: str, timeline: Timeline, plan: ExecutionPlan, number: int) -> dict[str, Any]:
    """Return the times of a plan, as timeline.html describes them."""
    lanes: list[list[list[int]]] = [[[], []] for _ in range(plan.spec.num_veus)]
    now = [0] * plan.spec.num_veus
    for program in timeline.programs:
        for veu, lane in enumerate(program.lanes):
            gaps, spans = lanes[veu]
            for start_us, end_us in zip(lane.start_us, lane.end_us, strict=True):
                start = max(ns(start_us), now[veu])
                gaps.append(start - now[veu])
                now[veu] = max(ns(end_us), start)
                spans.append(now[veu] - start)
    before = _before(plan)
    steps = [step for step in critical_path(plan, timeline) if step.task]
    how = MEASURED if name == MEASURED else ESTIMATED
    return {
        "name": printable(name),
        "plan": number,
        "facts": " · ".join(facts(timeline, plan, how)),
        "total": timeline.total_us,
        "launches": [[round(p.launch_at_us, 3), round(p.begin_us, 3)] for p in timeline.programs],
        "use": [round(used, 3) for used in timeline.veu_utilisation],
        "lanes": lanes,
        "path": [n for step in steps for n in (step.veu, before[step.program][step.veu] + step.order)],
        "traffic": [
            [short(printable(t.level), LEVEL), data_rate(float(t.gbps.max())), [float(f"{g:.4g}") for g in t.gbps]]
            for t in traffic(timeline, plan, STRIP_STEPS)
        ],
    }
