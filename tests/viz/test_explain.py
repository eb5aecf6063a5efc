"""What an explanation says holds of the plan: by simulation, and by plans whose bound is known."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from jobs import Job, make_problem, random_jobs

import rammer
import rammer_viz as viz
from rammer.cost.parts import Parts
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.plan import ExecutionPlan, Price
from rammer.ir.program import RTask, TaskUid
from rammer.scheduler.critical import critical_path
from rammer.scheduler.plugin import rammer_policies
from rammer.scheduler.timeline import simulate, timed
from rammer_viz.demo import lstm_stack
from rammer_viz.shared import bars

CHAIN = [Job(f"c{n}", ((2, 4.0),), (f"c{n - 1}",) if n else ()) for n in range(4)]


def planned(jobs: list[Job], policy: str, **spec: object) -> ExecutionPlan:
    device = VDeviceSpec("paper", 3, **{"launch_us": 5.0, "barrier_us": 0.25, **spec})  # type: ignore[arg-type]
    return rammer_policies()[policy]().schedule(make_problem(jobs, device))


def times(plan: ExecutionPlan) -> dict[TaskUid, float]:
    return {b.slot.uid: b.end_us - b.start_us for b in bars(simulate(plan), plan) if isinstance(b.slot, RTask)}


PLANS = [(seed, policy) for seed in range(4) for policy in ("wavefront", "round_robin", "sequential")]


@pytest.mark.parametrize(("seed", "policy"), PLANS)
def test_the_critical_path_decides_the_time(seed: int, policy: str) -> None:
    """It has no gaps; rTasks beside it may take no time at all, and those on it no longer."""
    plan = planned(random_jobs(seed, 30), policy, passed_us=0.05)
    timeline, took = simulate(plan), times(plan)
    path = critical_path(plan, timeline)
    assert path[0].begin_us == 0.0 and path[-1].end_us == timeline.total_us
    assert all(one.end_us == pytest.approx(other.begin_us) for one, other in pairwise(path))
    on_it = {step.task for step in path if step.task}
    bare = timed(plan, lambda task, _: took[task] if task in on_it else 0.0)
    assert bare.total_us == pytest.approx(timeline.total_us)
    for task in on_it:
        longer = timed(plan, lambda one, _, task=task: took[one] + (one == task))  # type: ignore[misc]
        assert longer.total_us >= timeline.total_us + 1 - 1e-9


@pytest.mark.parametrize(("seed", "policy"), PLANS)
def test_parts_and_savings_are_those_of_the_simulation(seed: int, policy: str) -> None:
    plan = planned(random_jobs(seed, 30), policy)
    timeline, took = simulate(plan), times(plan)
    found, costs = viz.explain(timeline, plan), Parts(plan.spec, [])
    assert sum(found.parts.values()) == pytest.approx(timeline.total_us)
    assert sum(found.room.values()) == pytest.approx(timeline.total_us * 3)
    assert all(us <= timeline.total_us + 1e-9 for us in found.ideals.values())
    assert found.hand_overs == sum(step.task is None and step.order >= 0 for step in found.path)
    assert found.payers and [p.saved_us for p in found.payers] == sorted(
        (p.saved_us for p in found.payers), reverse=True
    )
    for payer in found.payers:
        numbers = {n for n, op in enumerate(plan.graph.operators) if op.name in payer.names}
        ideals = {n: costs.ideal_us(plan.kernels[n]) for n in numbers}
        faster = {task: min(us, ideals.get(task.operator_id, us)) for task, us in took.items()}
        ideal = timed(plan, lambda task, _, faster=faster: faster[task])  # type: ignore[misc]
        assert payer.saved_us == pytest.approx(max(timeline.total_us - ideal.total_us, 0.0))
        assert sum(payer.parts.values()) == pytest.approx(payer.rtask_us)


def test_the_bound_is_what_was_made_expensive() -> None:
    def bound(plan: ExecutionPlan) -> str:
        return viz.explain(simulate(plan), plan).bound

    assert bound(planned(CHAIN, "round_robin", barrier_us=50.0)) == "hand-overs between vEUs"
    assert bound(planned(CHAIN, "sequential", launch_us=50.0)) == "launches"
    assert bound(planned(CHAIN, "wavefront", launch_us=0.0)) == "other instructions"
    levels = (MemoryLevel("L2", 1 << 10, "veu", 100.0), MemoryLevel("DRAM", 1 << 34, read_gbps=0.01))
    plan = rammer_policies()["wavefront"]().schedule(
        make_problem(CHAIN, VDeviceSpec("caches", 2, memory=levels), size=1 << 16)
    )
    plan = replace(plan, prices=dict.fromkeys(plan.kernels, Price(1.0)))
    assert bound(plan) == "operands from DRAM"


@pytest.fixture(scope="module")
def program() -> rammer.Program:
    return rammer.compile(lstm_stack(1, 5, 96), "cpu", device=2, tune_seconds=0, policy="wavefront")


def test_a_program_explains_its_selection(program: rammer.Program, tmp_path: Path) -> None:
    found = program.explain()
    assert found.total_us == program.report().estimated_us
    for payer in found.payers:
        (chosen,) = [offer for offer in payer.offers if offer.rkernel == payer.rkernel]
        assert chosen.rtask_us == pytest.approx(payer.rtask_us, rel=0.01) and chosen.num_rtasks == payer.num_rtasks
        assert chosen.work_us == pytest.approx(chosen.rtask_us * chosen.num_rtasks)
        assert {role for offer in payer.offers for role in offer.roles} >= {"fastest alone", "least work"}
        assert payer.rkernel in str(found) and f"was selected: {payer.reason}" in str(found)
    assert json.loads(json.dumps(found.to_json()))["bound"] == found.bound
    program.save(tmp_path / "p.rammer")
    with rammer.load(tmp_path / "p.rammer") as loaded:
        again = loaded.explain()
    assert again.total_us == pytest.approx(found.total_us) and again.hand_overs == found.hand_overs
    assert not again.payers and "explain the model for what would pay" in str(again)


def test_other_policies_are_estimated_as_if_they_were_asked_for(program: rammer.Program) -> None:
    how = rammer.CompileOptions(target="cpu", device=2, tune_seconds=0, policy="wavefront")
    with rammer.Compilation.of(lstm_stack(1, 5, 96), how) as compilation:
        found = compilation.estimates(["sequential", "graphturbo", "no_such"])
    for policy in ("sequential", "graphturbo"):
        with rammer.Compilation.of(lstm_stack(1, 5, 96), how.but(policy=policy)) as other:
            assert found[policy] == pytest.approx(other.proven.timeline.total_us)
    assert "no_such" in str(found["no_such"])


def test_names_from_models_are_escaped(program: rammer.Program) -> None:
    hostile = "<script>alert(1)</script>\x1b[31m"
    plan, timeline = program.outline()
    operators = tuple(replace(op, name=hostile) for op in plan.graph.operators)
    found = viz.explain(timeline, replace(plan, graph=replace(plan.graph, operators=operators)), {hostile: hostile})
    assert "<script>" not in found._repr_html_() and "&lt;script&gt;" in found._repr_html_()
    assert "\x1b" not in str(found) + found._repr_html_()


def test_measured_times_are_a_timeline_of_the_same_slots(program: rammer.Program) -> None:
    plan, _ = program.outline()
    measured = program.measured_timeline(seconds=0.01)
    assert [[len(lane.start_us) for lane in p.lanes] for p in measured.programs] == [
        [*map(len, p.lanes)] for p in plan.programs
    ]
    assert measured.total_us > 0 and all(0 < used <= 1 for used in measured.veu_utilisation)
    found = viz.explain(simulate(plan), plan, measured_us=measured.total_us)
    assert "measured" in str(found)


def test_notebooks_show_programs_reports_and_graphs(program: rammer.Program, tmp_path: Path) -> None:
    program.save(tmp_path / "p.rammer")
    with rammer.load(tmp_path / "p.rammer") as loaded:
        texts = [program._repr_html_(), loaded._repr_html_(), program.report()._repr_html_()]
    for text in (*texts, program.plan.graph._repr_html_()):
        ET.fromstring(f"<div>{text}</div>")  # well-formed
        assert "lstm" in text
    assert all("<svg" in text and "µs estimated" in text for text in texts[:2])
    graph = rammer.Graph("<b>", ("<i>",), (), (), {"<i>": rammer.TensorType((2, 3))}, {}, program.plan.graph.interner)
    assert "&lt;i&gt;" in graph._repr_html_() and "<i>" not in graph._repr_html_()


def test_an_empty_plan_is_explained() -> None:
    plan = planned([], "wavefront")
    found = viz.explain(simulate(plan), plan)
    assert found.total_us == 0.0 and found.payers == () and "Bound by" in str(found) and "<h3>" in found._repr_html_()
