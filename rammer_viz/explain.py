"""Explain a plan: what bounds it, its critical path, an ideal beside it, and the operators that would pay most.

Prices and times are the compiler's own: of candidates, and of the simulated plan.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import Any, NamedTuple

from rammer.cost.estimate import arithmetic_us, holding
from rammer.cost.parts import ARITHMETIC, Parts
from rammer.errors import counted, duration
from rammer.ir.plan import ExecutionPlan, Offer
from rammer.ir.program import RTask, TaskUid
from rammer.ir.text import html_table, printable
from rammer.scheduler.critical import Step, critical_path
from rammer.scheduler.timeline import Timeline, timed
from rammer_viz.shared import bars, short

SLOW = "the device is faster than its description: `rammer doctor --calibrate` measures what it can do"
ABOVE = 1.01  # of the plan's time: an ideal above that contradicts it
HAND_OVERS, LAUNCHES = "hand-overs between vEUs", "launches"
PAYERS = 3  # operators that are explained
TRIED = 8  # operators whose ideal time is simulated: those with most time on the critical path
OFFERS = 6  # candidates that are shown
NUMBER = re.compile(r"[\d.]*(e-?\d+)? ?[µm×%]?s?$")  # a cell that is aligned to the right


@dataclass(frozen=True)
class Payer:
    """Operators with one rKernel, and what they cost: µs on the critical path, and µs that their ideal would save.

    `rtask_us` is the mean time of an rTask, `ideal_us` that at the peak rate with operands at their level's rate.
    """

    kind: str
    names: tuple[str, ...]
    rkernel: str
    num_rtasks: int
    path_us: float
    saved_us: float
    rtask_us: float
    ideal_us: float
    parts: Mapping[str, float]
    offers: tuple[Offer, ...]

    @property
    def reason(self) -> str:
        """Why this rKernel was selected, as far as prices of single operators say."""
        chosen = next((offer for offer in self.offers if offer.rkernel == self.rkernel), None)
        if chosen is None:
            return "a policy made it"
        if len(self.offers) == 1:
            return "it is the only one"
        if chosen.roles:
            return f"it is the {' and the '.join(chosen.roles)}"
        return "the plan as a whole takes less with it, though others are cheaper alone"


@dataclass(frozen=True)
class Explanation:
    """What bounds a plan, by its estimated timeline. Printed as text; notebooks show it as tables.

    `parts` splits the critical path, `room` the time of all vEUs, in µs. `ideals` are times that would be possible
    under fewer limits; the last one is the plan's. `policies` are estimates of other policies' plans, or
    why there is none.
    """

    title: str
    total_us: float
    num_veus: int
    parts: Mapping[str, float]
    room: Mapping[str, float]
    ideals: Mapping[str, float]
    along: tuple[tuple[str, int, int, float], ...]  # kind and rKernel, operators, rTasks and µs on the critical path
    hand_overs: int
    payers: tuple[Payer, ...]
    policies: Mapping[str, float | str] = field(default_factory=dict)
    measured_us: float = 0.0  # of a run, 0 if none was measured
    notes: tuple[str, ...] = ()
    path: tuple[Step, ...] = field(default=(), repr=False)

    @property
    def bound(self) -> str:
        """The largest part of the critical path."""
        return max(self.parts, key=self.parts.__getitem__, default="nothing")

    def to_json(self) -> dict[str, Any]:
        """Return the data without single steps of the path."""
        return {"bound": self.bound, **asdict(replace(self, path=()))}

    def __str__(self) -> str:
        return "\n".join(line for section in self._sections() for line in section.text())

    def _repr_html_(self) -> str:
        return "".join(section.html() for section in self._sections())

    def _sections(self) -> Iterator[_Section]:
        total, room_us = self.total_us or 1.0, sum(self.room.values()) or 1.0
        measured = f", {duration(self.measured_us)} measured" if self.measured_us else ""
        yield _Section(f"{self.title}: {duration(self.total_us)} estimated{measured}")
        where = ", ".join(f"{us / room_us:.0%} {what}" for what, us in self.room.items() if us)
        yield _Section(
            f"Bound by {self.bound}: {self.parts.get(self.bound, 0.0) / total:.0%} of the critical path",
            ("part of the critical path", "time", ""),
            [(what, duration(us), f"{us / total:.1%}") for what, us in _falling(self.parts)],
            f"the time of all {counted(self.num_veus, 'vEU')}: {where}" if where else "",
        )
        yield _Section(
            "The ideal beside it",
            ("if only this counted", "time", ""),
            [(what, duration(us), f"{us / total:.0%}") for what, us in self.ideals.items() if us],
            SLOW if max(self.ideals.values(), default=0.0) > total * ABOVE else "",
        )
        yield _Section(
            f"The critical path: {counted(self.hand_overs, 'hand-over')} between vEUs",
            ("rKernel", "operators", "rTasks", "time", ""),
            [
                (name, str(operators), str(rtasks), duration(us), f"{us / total:.1%}")
                for name, operators, rtasks, us in self.along
            ],
            "" if self.payers else "a saved program keeps no rKernels: explain the model for what would pay",
        )
        for place, payer in enumerate(self.payers, 1):
            yield _payer(place, payer, total)
        if self.policies:
            yield _Section(
                "What other policies would take",
                ("policy", "time", ""),
                [
                    (name, us, "") if isinstance(us, str) else (name, duration(us), f"{us / total:.2f}×")
                    for name, us in self.policies.items()
                ],
            )
        if self.notes:
            yield _Section("What the scheduler noted", below="\n".join(self.notes))


class _Section(NamedTuple):
    """A heading, a table whose last columns are numbers, and text below."""

    heading: str
    columns: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    below: str = ""

    def text(self) -> Iterator[str]:
        yield printable(self.heading)
        if self.rows:
            table = [self.columns, *(tuple(map(printable, row)) for row in self.rows)]
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            adjust = [str.rjust if all(map(NUMBER.match, c)) else str.ljust for c in zip(*table[1:], strict=True)]
            for row in table:
                cells = (put(cell, width) for put, cell, width in zip(adjust, row, widths, strict=True))
                yield "  ".join(["", *cells]).rstrip()
        yield from (f"  {printable(line)}" for line in self.below.splitlines())
        yield ""

    def html(self) -> str:
        parts = [f"<h3>{escape(printable(self.heading))}</h3>"]
        if self.rows:
            parts.append(html_table(self.rows, self.columns))
        parts += [f"<p>{escape(printable(line))}</p>" for line in self.below.splitlines()]
        return "".join(parts)


def explain(
    timeline: Timeline, plan: ExecutionPlan, policies: Mapping[str, float | str] | None = None, measured_us: float = 0.0
) -> Explanation:
    """Explain a plan by its timeline. `policies`: estimates of other policies' plans, or why there is none."""
    return _Analysis(timeline, plan).explanation(policies or {}, measured_us)


class _Analysis:
    """A plan with its critical path, the time of each rTask, and groups of operators with alike rKernels."""

    def __init__(self, timeline: Timeline, plan: ExecutionPlan) -> None:
        self.timeline, self.plan = timeline, plan
        self.path = critical_path(plan, timeline)
        self.took = {
            bar.slot.uid: bar.end_us - bar.start_us for bar in bars(timeline, plan) if isinstance(bar.slot, RTask)
        }
        self.groups = [f"{printable(k.operation.kind)} by {k.num_rtasks} × {printable(k.name)}" for k in plan.kernels]
        self._costs = Parts(plan.spec, [*timeline.moved] if timeline.fetched else [])

    def explanation(self, policies: Mapping[str, float | str], measured_us: float) -> Explanation:
        plan, timeline = self.plan, self.timeline
        parts, along = Counter[str](), dict[str, list[Step]]()
        for step in self.path:
            if step.task is None:
                parts[LAUNCHES if step.order < 0 else HAND_OVERS] += step.us  # type: ignore[assignment]
            else:
                along.setdefault(self.groups[step.task.operator_id], []).append(step)
                parts.update(self._split(step.task, step.us))
        on_path = sorted(along, key=lambda group: -sum(step.us for step in along[group]))
        if not any(op.operation.expr.stages for op in plan.graph.operators):  # the outline of a saved program
            on_path = []
        payers = (self._payer(group, sum(step.us for step in along[group])) for group in on_path[:TRIED])
        return Explanation(
            printable(f"{plan.graph.name or 'plan'} on {plan.spec.name} ({plan.spec.arch}), policy {plan.policy}"),
            timeline.total_us,
            plan.spec.num_veus,
            {what: us for what, us in parts.items() if us},
            self._room(),
            self._ideals(),
            tuple(
                (group, len({s.task.operator_id for s in steps if s.task}), len(steps), sum(s.us for s in steps))
                for group, steps in along.items()
            ),
            sum(step.task is None and step.order >= 0 for step in self.path),
            tuple(sorted(payers, key=lambda payer: -payer.saved_us)[:PAYERS]),
            policies,
            measured_us,
            plan.notes,
            tuple(self.path),
        )

    def _split(self, task: TaskUid, us: float) -> dict[str, float]:
        """Return what an rTask spends its time on."""
        kernel = self.plan.kernels[task.operator_id]
        return dict(self._costs.of(kernel, us, self.plan.prices.get(kernel), self.timeline.fetched.get(task)))

    def _room(self) -> dict[str, float]:
        """Return how the time of all vEUs is spent."""
        timeline, veus = self.timeline, self.plan.spec.num_veus
        found = {
            "in rTasks": sum(timeline.busy_us),
            "waiting at barriers": sum(timeline.barrier_us),
            "in launches": timeline.launch_us * veus,
        }
        return {**found, "idle": max(timeline.total_us * veus - sum(found.values()), 0.0)}

    def _ideals(self) -> dict[str, float]:
        """Return the least times under one limit after another, ending with the plan's own."""
        graph, spec, took = self.plan.graph, self.plan.spec, self.took
        arithmetic = sum(arithmetic_us((k.form or k.operation.expr).stages, spec) for k in self.plan.kernels)
        found = {ARITHMETIC: arithmetic / spec.num_veus}
        nbytes = sum(
            graph.types[t].nbytes for t in {*graph.constants, *graph.inputs, *graph.outputs} if t in graph.types
        )
        if level := holding(nbytes, spec):
            once_us = nbytes * spec.byte_us(level, spec.num_veus) / spec.num_veus
            found[f"weights, inputs and outputs once from {level.name}"] = once_us
        found["these rTasks, spread evenly over the vEUs"] = sum(self.timeline.busy_us) / spec.num_veus
        free = replace(self.plan, spec=replace(spec, barrier_us=0.0, passed_us=0.0, launch_us=0.0, run_us=0.0))
        found["this plan with free hand-overs and launches"] = timed(free, lambda task, _: took[task]).total_us
        return {**found, "this plan": self.timeline.total_us}

    def _payer(self, group: str, path_us: float) -> Payer:
        plan, took = self.plan, self.took
        numbers = [n for n, other in enumerate(self.groups) if other == group]
        tasks = [task for task in took if self.groups[task.operator_id] == group]
        ideals = {task: self._costs.ideal_us(plan.kernels[task.operator_id]) for task in tasks}
        ideal = timed(plan, lambda task, _: min(took[task], ideals.get(task, took[task])))
        parts = Counter[str]()
        for task in tasks:
            parts.update(self._split(task, took[task]))
        kernel = plan.kernels[numbers[0]]
        return Payer(
            kernel.operation.kind,
            tuple(plan.graph.operators[n].name for n in numbers),
            kernel.name,
            kernel.num_rtasks,
            path_us,
            max(self.timeline.total_us - ideal.total_us, 0.0),
            sum(took[task] for task in tasks) / len(tasks),
            sum(ideals.values()) / len(tasks),
            {what: us / len(tasks) for what, us in parts.items()},
            plan.offers.get(kernel.operation, ()),
        )


def _payer(place: int, payer: Payer, total_us: float) -> _Section:
    names = list(dict.fromkeys(payer.names))
    called = short(names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}", 60)
    shown = [o for n, o in enumerate(payer.offers) if n < OFFERS or o.rkernel == payer.rkernel]
    parts = ((us / payer.rtask_us, what) for what, us in _falling(payer.parts))
    spent = ", ".join(f"{part:.0%} {what}" for part, what in parts if part >= 0.005)
    more = f"\n… and {len(payer.offers) - len(shown)} more" if len(payer.offers) > len(shown) else ""
    return _Section(
        f"{place}. {payer.kind}, {counted(len(payer.names), 'operator')} ({called}): {duration(payer.path_us)} on the "
        f"critical path; its ideal would save {duration(payer.saved_us)} ({payer.saved_us / total_us:.0%})",
        ("rKernel", "rTasks", "each", "alone", "all its work", ""),
        [
            (
                f"{'→ ' if o.rkernel == payer.rkernel else '  '}{o.rkernel}",
                *(str(o.num_rtasks), *map(duration, (o.rtask_us, o.alone_us, o.work_us)), ", ".join(o.roles)),
            )
            for o in shown
        ],
        f"an rTask takes {duration(payer.rtask_us)}, its ideal is {duration(payer.ideal_us)}: {spent}\n"
        f"{payer.rkernel} was selected: {payer.reason}{more}",
    )


def _falling(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(parts.items(), key=lambda item: -item[1])
