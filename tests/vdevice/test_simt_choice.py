"""SelectRKernels has a choice on GPUs: tilings into few large rTasks and into many small ones (paper: §5.2.4)."""

from __future__ import annotations

import pytest
from simt_plans import spec
from test_simt_residency import CONV, recurrent, static

from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.kernels import candidates
from rammer.scheduler.profiler import EstimatingProfiler

DEVICE = spec(132)


def cell() -> Operation:
    plan = recurrent("wavefront", 1, 4, 256, 2).plan
    return next(op.operation for op in plan.graph.operators if op.kind.startswith("gate_matmul+add"))


CASES = {
    "matmul": static("matmul", ((16, 1024), (1024, 1024)), {}),
    "conv": static("conv", ((1, 64, 28, 28), (64, 64, 3, 3)), CONV),
    "cell": cell(),
}


@pytest.mark.parametrize("name", CASES)
def test_tilings_of_different_sizes(name: str) -> None:
    kernels = candidates(CASES[name], DEVICE)
    counts = {k.num_rtasks for k in kernels}
    assert len(counts) >= 2 and max(counts) >= 2 * min(counts), sorted(counts)
    assert all(k.num_threads <= DEVICE.max_threads and k.scratch_bytes <= DEVICE.scratch_bytes for k in kernels)


@pytest.mark.parametrize("name", ["matmul", "cell"])
def test_the_fastest_alone_is_not_the_most_efficient(name: str) -> None:
    """By estimate: the more rTasks, the sooner all are done on an empty device, and the more vEU time they take."""
    profiler = EstimatingProfiler(DEVICE)

    def alone_us(kernel: RKernel) -> float:
        return profiler.rtask_us(kernel) * -(-kernel.num_rtasks // DEVICE.num_veus)

    kernels = candidates(CASES[name], DEVICE)
    fastest = min(kernels, key=alone_us)
    efficient = min(kernels, key=lambda k: profiler.rtask_us(k) * k.num_rtasks)
    assert fastest.num_rtasks > efficient.num_rtasks
    assert profiler.rtask_us(efficient) * efficient.num_rtasks < profiler.rtask_us(fastest) * fastest.num_rtasks
