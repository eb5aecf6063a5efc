"""Hold what all pictures of a schedule share: bars, colours, names, traffic of memory levels, and numbers as text.

Names of operators and rKernels come from models, which are untrusted. They are stripped of control characters here, and
escaped by each format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rammer.errors import counted, duration, size
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, Slot
from rammer.ir.text import printable
from rammer.scheduler.timeline import Timeline

PALETTE = (
    "#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#ff9da6", "#9d755d",
    "#eeca3b", "#439894", "#d67195", "#79706e", "#83bcb6", "#88d27a", "#f2cf5b", "#bab0ac",
)  # fmt: skip
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
OTHER = "#"
ESTIMATED, MEASURED = "estimated", "measured"  # how times were found
BY_NAME = 12  # up to this number, each operator has its own colour; beyond, each kind
LEGEND = 24  # maximal entries of a legend
LEVEL = 18  # characters of a memory level's name
STRIP_STEPS = 400  # steps of time in the plot of a memory level's rate


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


class Groups:
    """The groups of operators that share a colour and a letter, those with most time first.

    Plans that are drawn together share their groups; times in labels are the first plan's. `of_plan` has the group of
    each operator of each plan.
    """

    def __init__(self, timeline: Timeline, plan: ExecutionPlan, *others: ExecutionPlan) -> None:
        plans = (plan, *others)
        by_name = max(len(its.graph.operators) for its in plans) <= BY_NAME
        keys = [
            [(name if by_name else "", op.kind) for name, op in zip(names(its), its.graph.operators, strict=True)]
            for its in plans
        ]
        time_us = {key: 0.0 for own in keys for key in own}
        for bar in bars(timeline, plan):
            if isinstance(bar.slot, RTask):
                time_us[keys[0][bar.slot.uid.operator_id]] += bar.end_us - bar.start_us
        order = list(time_us) if by_name else sorted(time_us, key=lambda key: (-time_us[key], key))
        place = {key: n for n, key in enumerate(order)}
        self.of_plan = [[place[key] for key in own] for own in keys]
        kernels: dict[tuple[str, str], RKernel] = {}
        for own, its in zip(keys, plans, strict=True):
            kernels = dict(zip(own, its.kernels, strict=True)) | kernels
        count = Counter(keys[0])
        self.labels = [
            f"{name} ({printable(kind)}, {kernels[name, kind].num_rtasks} × {printable(kernels[name, kind].name)})"
            if by_name
            else f"{printable(kind)} ({duration(time_us[name, kind])} in {counted(count[name, kind], 'rOperator')})"
            for name, kind in order
        ]

    def colour(self, group: int) -> str:
        return PALETTE[group % len(PALETTE)]

    def letter(self, group: int) -> str:
        return LETTERS[group] if group < len(LETTERS) else OTHER


def names(plan: ExecutionPlan) -> list[str]:
    """Return the names of operators. Those of equal kind and name, as the steps of a loop, are numbered."""
    keys = [(op.name, op.kind) for op in plan.graph.operators]
    count, seen, found = Counter(keys), Counter[tuple[str, str]](), list[str]()
    for key in keys:
        seen[key] += 1
        found.append(printable(key[0]) + (f" #{seen[key]}" if count[key] > 1 else ""))
    return found


def bars(timeline: Timeline, plan: ExecutionPlan) -> Iterator[Bar]:
    """Yield every slot of the plan, lane by lane."""
    for n, (program, times) in enumerate(zip(plan.programs, timeline.programs, strict=True)):
        for veu, (lane, at) in enumerate(zip(program.lanes, times.lanes, strict=True)):
            for order, (slot, start, end) in enumerate(zip(lane, at.start_us, at.end_us, strict=True)):
                yield Bar(n, veu, order, slot, start, end)


def traffic(timeline: Timeline, plan: ExecutionPlan, steps: int) -> list[Traffic]:
    """Return the traffic of each memory level. The bytes of an rTask are spread evenly over its time."""
    tasks = [bar for bar in bars(timeline, plan) if isinstance(bar.slot, RTask) and bar.slot.uid in timeline.fetched]
    if not tasks or not timeline.total_us:
        return []
    edges = np.linspace(0.0, timeline.total_us, steps + 1)
    starts, ends = (np.array(times) for times in zip(*((b.start_us, b.end_us) for b in tasks), strict=True))
    ends = np.maximum(ends, starts + 1e-6 * timeline.total_us)
    fetched = np.array([timeline.fetched[b.slot.uid] for b in tasks if isinstance(b.slot, RTask)])
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


def title(plan: ExecutionPlan) -> str:
    """Return what a picture shows, as one line."""
    return printable(f"{plan.graph.name or 'plan'} on {plan.spec.name}, policy {plan.policy}")


def facts(timeline: Timeline, plan: ExecutionPlan, how: str = ESTIMATED) -> list[str]:
    """Return lines about the whole plan: time, use of vEUs, and, if known, where operands come from."""
    overhead = f"{timeline.overhead:.1%} overhead · " if how == ESTIMATED else ""
    moved = (f"{size(nbytes)} from {level}" for level, nbytes in timeline.moved.items() if nbytes)
    return [
        f"{duration(timeline.total_us)} {how} · "
        f"{counted(plan.spec.num_veus, 'vEU')} {timeline.utilisation:.0%} used · "
        f"{overhead}{counted(len(plan.graph.operators), 'rOperator')} · "
        f"{counted(plan.num_rtasks, 'rTask')} · {counted(len(plan.programs), 'rProgram')}",
        *([f"operands, estimated: {', '.join(moved)}"] if timeline.moved else []),
    ]


def data_rate(gbps: float) -> str:
    """Return a rate of a memory level, as text."""
    return f"{gbps:.3g} GB/s" if gbps >= 1 else f"{1e3 * gbps:.3g} MB/s"


def short(text: str, room: int) -> str:
    """Return a text of at most `room` characters."""
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…"


def ns(us: float) -> int:
    """Return whole nanoseconds."""
    return round(us * 1e3)
