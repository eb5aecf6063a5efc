"""Draw a schedule as a Gantt chart of characters."""

from __future__ import annotations

import shutil
from math import ceil

from rammer.errors import duration
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask
from rammer.scheduler.timeline import Timeline
from rammer_viz.shared import LEGEND, Groups, bars, facts, title

BARRIER, LAUNCH = "·", "▸"


def text_gantt(timeline: Timeline, plan: ExecutionPlan, *, width: int | None = None, lanes: int = 32) -> str:
    """Draw a Gantt chart of characters: a row per vEU. Each cell shows what takes most of its time.

    `width` is the terminal's by default; at most `lanes` rows are shown.
    """
    width = max(width or shutil.get_terminal_size((100, 24)).columns, 40)
    total_us = timeline.total_us
    shown = min(plan.spec.num_veus, lanes)
    margin = len(f"vEU {max(shown - 1, 0)} ")
    columns = width - margin - len("| 100%") - 1
    head = "\n".join([title(plan), *facts(timeline, plan)])
    if not total_us:
        return f"{head}\n(nothing to run)\n"
    groups = Groups(timeline, plan)
    weights: list[list[dict[str, float]]] = [[{} for _ in range(columns)] for _ in range(shown)]

    def paint(veu: int, start_us: float, end_us: float, sign: str) -> None:
        first, last = start_us / total_us * columns, end_us / total_us * columns
        for cell in range(int(first), min(ceil(last), columns)):
            part = min(last, cell + 1) - max(first, cell)
            weights[veu][cell][sign] = weights[veu][cell].get(sign, 0.0) + part

    for times in timeline.programs:
        for veu in range(shown):
            paint(veu, times.launch_at_us, times.begin_us, LAUNCH)
    for bar in bars(timeline, plan):
        if bar.veu < shown:
            sign = BARRIER
            if isinstance(bar.slot, RTask):
                sign = groups.letter(groups.of_plan[0][bar.slot.uid.operator_id])
            paint(bar.veu, bar.start_us, bar.end_us, sign)
    lines = [head]
    for veu in range(shown):
        cells = "".join(
            max(c.items(), key=lambda item: item[1])[0] if sum(c.values()) >= 0.5 else " " for c in weights[veu]
        )
        lines.append(f"{f'vEU {veu}':<{margin}}|{cells}| {timeline.veu_utilisation[veu]:>4.0%}")
    if shown < plan.spec.num_veus:
        lines.append(f"… and {plan.spec.num_veus - shown} more vEUs")
    lines.append(" " * margin + "0" + duration(total_us).rjust(columns + 1))
    used = {sign for row in weights for cell in row for sign in cell}
    lines += [f"  {groups.letter(g)} {label}" for g, label in enumerate(groups.labels[:LEGEND])]
    if len(groups.labels) > LEGEND:
        lines.append(f"  … and {len(groups.labels) - LEGEND} more")
    if BARRIER in used:
        lines.append(f"  {BARRIER} waiting at a barrier")
    if LAUNCH in used:
        lines.append(f"  {LAUNCH} launching an rProgram")
    return "\n".join(line.rstrip() for line in lines) + "\n"
