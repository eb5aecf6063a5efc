"""The time model of rTasks with many threads orders tilings as GPUs do."""

from __future__ import annotations

from itertools import pairwise

from rammer.ir.device import Execution, MemoryLevel, VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import TensorType
from rammer.kernels import candidates
from rammer.scheduler.profiler import EstimatingProfiler

SPEC = VDeviceSpec(
    "gpu",
    num_veus=128,
    languages=("cuda",),
    execution=Execution.SIMT,
    lanes=4,
    max_threads=256,
    subgroup_size=32,
    scratch_bytes=100 << 10,
    memory=(MemoryLevel("L2", 50 << 20, "device", 5000.0, latency_us=0.3),),
    clock_ghz=3.9,
    sync_us=0.02,
)


def times(kind: str, *shapes: tuple[int, ...], **attrs: int) -> dict[RKernel, float]:
    operation = Operations(OPS).define(kind, tuple(TensorType(s) for s in shapes), attributes(**attrs))
    profiler = EstimatingProfiler(SPEC)
    return {k: profiler.rtask_us(k) for k in candidates(operation, SPEC)}


def test_large_tiles_are_efficient_and_small_ones_fast() -> None:
    """The choice of the paper's Figure 8: 1,024 rTasks at 4.28 µs against 16 at 7.46 µs."""
    found = times("matmul", (512, 512), (512, 512))
    fewest = min(found, key=lambda k: k.num_rtasks)
    fastest = min(found, key=lambda k: found[k] * -(-k.num_rtasks // SPEC.num_veus))
    assert fewest.num_rtasks < SPEC.num_veus <= fastest.num_rtasks
    assert found[fewest] * fewest.num_rtasks == min(us * k.num_rtasks for k, us in found.items())


def test_times_are_above_the_peak_and_below_a_loop() -> None:
    for kernel, us in times("matmul", (512, 512), (512, 512)).items():
        peak = 2 * 512**3 / kernel.num_rtasks / (SPEC.peak_gflops * 1e3)
        assert peak < us < 60 * peak, kernel.name


def test_finer_tasks_of_a_row_wise_operation_take_less_time_each() -> None:
    found = sorted(times("softmax", (128, 1000), axis=1).items(), key=lambda item: item[0].num_rtasks)
    assert len(found) > 1 and all(a >= b for (_, a), (_, b) in pairwise(found))
