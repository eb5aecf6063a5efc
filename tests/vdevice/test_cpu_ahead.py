"""Asking ahead: which rTasks ask for what, and images that say so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from cpus import ARCHS

import rammer
from rammer.errors import ArtifactError
from rammer.ir.analysis.dependency import reads
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, TaskUid
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.vdevice.cpu import host as cpu_host
from rammer.vdevice.cpu.codegen.task_prefetch import SMALLEST, TaskPrefetch, task_prefetches
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.runtime.table import LINE_BYTES, TABLE, Table
from rammer_viz.demo import lstm_stack

NEAR = 128 << 10  # bytes of a vEU's own cache: half a matrix of 128 x 512 float32


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cpu_host, "_caches", lambda: (32 << 10, NEAR, 8 << 20))
    yield


def compiled(arch: str, *shape: int) -> rammer.Program:
    """Chosen by estimates, which are the same on every machine of an arch."""
    return rammer.compile(lstm_stack(*shape), "cpu", arch=f"{arch}@here", device=2, tune_seconds=0)


@pytest.fixture(params=ARCHS)
def plan(small_cache: None, request: pytest.FixtureRequest) -> ExecutionPlan:
    with compiled(request.param, 3, 12, 128) as program:
        return program.plan


def tasks(plan: ExecutionPlan) -> list[list[TaskUid]]:
    return [[slot.uid for slot in lane if isinstance(slot, RTask)] for p in plan.programs for lane in p.lanes]


def everyone(plan: ExecutionPlan) -> dict[RKernel, int]:
    return dict.fromkeys(plan.kernels, 1 << 20)


class TestPlans:
    def test_what_is_asked_for_is_read_soon_by_the_same_veu(self, plan: ExecutionPlan) -> None:
        found = task_prefetches(plan, everyone(plan))
        assert found
        for lane in tasks(plan):
            for order, task in enumerate(lane):
                if (ahead := found.get(task)) is None:
                    continue
                assert ahead.lines * LINE_BYTES <= NEAR // 2 + LINE_BYTES
                assert any(reads_it(plan, reader, ahead) for reader in lane[order + 1 :])

    def test_weights_that_stay_are_not_asked_for(self, plan: ExecutionPlan) -> None:
        """Every step of a layer reads its recurrent weights; only the first one finds them far away."""
        everything = replace(
            plan,
            spec=replace(
                plan.spec, memory=tuple(replace(m, nbytes=1 << 30) if m.owner == "veu" else m for m in plan.spec.memory)
            ),
        )
        found = task_prefetches(everything, everyone(plan))
        parts = [(plan.graph.operators[a.operator].inputs[a.position], a.first) for a in found.values()]
        for lane in tasks(plan):
            mine = [part for task, part in zip(found, parts, strict=True) if task in set(lane)]
            assert len(mine) == len(set(mine))

    def test_capacity_bounds_requests(self, plan: ExecutionPlan) -> None:
        assert task_prefetches(plan, dict.fromkeys(plan.kernels, 0)) == {}
        few = task_prefetches(plan, dict.fromkeys(plan.kernels, 7))
        assert few and all(a.lines <= 7 for a in few.values())

    def test_the_last_one_asks_for_what_is_needed_first(self, plan: ExecutionPlan) -> None:
        found = task_prefetches(plan, dict.fromkeys(plan.kernels, 7))
        for lane in tasks(plan):
            by_reader: dict[tuple[int, int], list[int]] = {}
            for task in lane:
                if ahead := found.get(task):
                    by_reader.setdefault((ahead.operator, ahead.position), []).append(ahead.first)
            for firsts in by_reader.values():
                assert firsts == sorted(firsts, reverse=True)

    def test_small_weights_are_left_out(self, small_cache: None) -> None:
        with compiled(ARCHS[0], 2, 6, 16) as program:
            assert SMALLEST > 4 * 16 * 16 * 4
            assert task_prefetches(program.plan, everyone(program.plan)) == {}


def reads_it(plan: ExecutionPlan, task: TaskUid, ahead: TaskPrefetch) -> bool:
    if task.operator_id != ahead.operator:
        return False
    elements = reads(plan.kernels[task.operator_id], ahead.position, task.rtask_id) * 4
    return bool(np.any((elements[:, 0] <= ahead.first) & (ahead.first < elements[:, 1])))


class TestImages:
    @pytest.mark.parametrize("arch", ARCHS)
    def test_results_are_the_same(self, small_cache: None, arch: str) -> None:
        graph = rammer.from_onnx(lstm_stack(3, 12, 128))
        x = {"x": np.random.default_rng(0).standard_normal((12, 1, 128)).astype(np.float32)}
        with compiled(arch, 3, 12, 128) as program:
            table = Table.from_bytes(CpuVDevice(arch=f"{arch}@here", device=2).build(program.plan).files[TABLE])
            assert len(table.aheads) > 1 and table.slots[:, 4].any()
            np.testing.assert_allclose(program.run(x)["y"], evaluate_graph(graph, x)["y"], rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ((0, 0, 1 << 40), "asked for ahead"),
            ((0, 1 << 40, 0), "asked for ahead"),
            ((10**6, 0, 0), "damaged"),
            ((0, -1, 0), "damaged"),
        ],
    )
    def test_requests_outside_of_memory_are_refused(
        self, plan: ExecutionPlan, row: tuple[int, int, int], message: str
    ) -> None:
        image = CpuVDevice(arch=plan.spec.arch, device=2).build(plan)
        table = Table.from_bytes(image.files[TABLE])
        table = replace(
            table,
            aheads=np.array([(-1, 0, 0), row], np.int64),
            slots=np.minimum(table.slots, [9**9, 9**9, 9**9, 1, 1, 9**9]).astype(np.int32),
        )
        with pytest.raises(ArtifactError, match=message):
            CpuVDevice(device=2).load(replace(image, files={**image.files, TABLE: table.to_bytes()}))
