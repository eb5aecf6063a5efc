"""The policy `list`, which comes as a plugin: the kit, its tables on paper, and what it refuses."""

from __future__ import annotations

import pytest
from jobs import DIAMOND, Job, lanes_of, make_problem, random_jobs, recurrent, table

from rammer.errors import ScheduleError
from rammer.ir.device import MemoryLevel, SyncModel, VDeviceSpec
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask
from rammer.plugins import PluginRegistry
from rammer.scheduler.timeline import simulate
from rammer.testing import PolicyConformance

REGISTRY = PluginRegistry()
TABLE = """\
0/0: stem.0>7 stem.2>9 wait(1:1)>9.25 left.0>12.25 right.2>13.25 wait(1:5)>14.5 join.1>16
0/1: stem.1>7 stem.3>9 wait(0:1)>9.25 left.1>12.25 right.0>13.25 right.1>14.25 wait(0:3)>14.5 join.0>16"""


class TestList(PolicyConformance):
    policy = "list"


def schedule(jobs: list[Job], num_veus: int, sync: SyncModel = SyncModel.FINE) -> ExecutionPlan:
    memory = (MemoryLevel("L2", 1 << 20, "veu", 200.0), MemoryLevel("DRAM", 1 << 34, "device", 0.0001))
    spec = VDeviceSpec("paper", num_veus, launch_us=5.0, barrier_us=0.25, memory=memory, sync=sync)
    return REGISTRY.policy("list").schedule(make_problem(jobs, spec))


def test_weight_tiles_stay_on_their_veu() -> None:
    plan = schedule(recurrent(12), 2)
    for layer, first in ((0, 1), (1, 2)):  # from the first step on that has the later steps' rKernel
        assert len({tuple(lanes_of(plan, f"c{s}.{layer}")) for s in range(first, 12)}) == 1
    assert any("static weights" in note for note in plan.notes)


def test_operands_keep_tiles_on_their_veu() -> None:
    chain = [Job("a", ((4, 3.0),)), Job("b", ((4, 1.0),), near=("a",)), Job("c", ((4, 2.0),), near=("b",))]
    plan = schedule(chain, 4)
    assert lanes_of(plan, "a") == lanes_of(plan, "b") == lanes_of(plan, "c")
    assert not any(isinstance(s, BarrierRTask) for p in plan.programs for lane in p.lanes for s in lane)


def test_golden_table() -> None:
    assert table(schedule(DIAMOND, 2)) == TABLE


@pytest.mark.parametrize(("num_ops", "num_rtasks"), [(1000, 2), (100, 32)])
def test_large_graphs(num_ops: int, num_rtasks: int) -> None:
    tiling = ((num_rtasks, 5.0), (num_rtasks // 2, 9.0))
    jobs = [Job(f"c{s}", tiling, (f"c{s - 1}",) if s else (), kind=f"k{bool(s)}") for s in range(num_ops)]
    assert simulate(schedule(jobs, 2)).utilisation > 0.49


def test_global_synchronisation_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"'list' needs rTask-level synchronisation.*\n.*use policy 'wavefront'"):
        schedule(random_jobs(0), 3, SyncModel.GLOBAL)
