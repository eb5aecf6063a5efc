"""The time model of rTasks with many threads orders tilings as GPUs do."""

from __future__ import annotations

from itertools import pairwise

from rammer.cost.issue import warm_us
from rammer.cost.work import SECTOR, SINGLY, STAGED, WRITTEN, Work, work
from rammer.ir.device import Execution, MemoryLevel, VDeviceSpec
from rammer.ir.expr import Const, Load, Range, Scalar, Select
from rammer.ir.index import var
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, Encoding, TensorType
from rammer.ir.tile import Body, Buffer, For, Kind, Scope, Store, Sync, TileProgram
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


def test_tasks_finer_than_a_row_take_as_long_each() -> None:
    """Each computes the sum of its row again."""
    found = sorted(times("softmax", (128, 1000), axis=1).items(), key=lambda item: item[0].num_rtasks)
    assert len(found) > 1 and found[0][0].num_rtasks == 128
    assert all(a <= b <= 1.2 * a for (_, a), (_, b) in pairwise(found))


def test_what_shares_issue_slots_adds_up() -> None:
    """A product's rTask takes at least as long as multiply-adds, loads and stores one after another."""
    for kernel in times("matmul", (512, 512), (512, 512)):
        assert isinstance(kernel.program, TileProgram)
        found, waves = work(kernel.program, SPEC), -(-kernel.num_threads // SPEC.subgroup_size)

        def slots(part: Work) -> float:
            own, issue = part.issued, SPEC.issue
            made = (own.arithmetic + own.made / SPEC.width) / issue.arithmetic
            return part.trips * (
                made + own.loads / issue.loads + own.stores / issue.stores + sum(map(slots, part.loops))
            )

        assert warm_us(found, SPEC, kernel.num_threads) >= waves * slots(found) * SPEC.cycle_us


def padded(later: bool = False, guarded: bool = True) -> TileProgram:
    """Each of 64 threads copies eight elements to scratch, each behind a condition of its own if `guarded`."""
    place = var("n") * 64 + var("t")
    value: Scalar = Load("x", (place,))
    value = Select((Range(var("n"), 0, 7),), value, Const(0.0)) if guarded else value
    copy = Store("s", place, value, later=later)
    copies = For("n", 0, 8, Kind.SERIAL, (For("t", 0, 64, Kind.THREAD, (copy,)),))
    arguments = Buffer("y", 512, Scope.ARGUMENT), Buffer("x", 512, Scope.ARGUMENT)
    return TileProgram("padded", arguments, 1, (copies, Sync()), (), 64, (Buffer("s", 512, Scope.LOCAL),))


def test_loads_with_conditions_wait_one_after_another() -> None:
    """In machine code such a load is followed by its store; other copies, and asynchronous ones, are in flight."""
    waits = [work(padded(**how), SPEC).load_rounds for how in ({}, {"guarded": False}, {"later": True})]
    assert waits == [8 / SINGLY, 1.0, 0.0]


def stored(rows: int, wide: int, encoding: Encoding | None = None) -> float:
    """Slots in which a subgroup stores `wide` elements a thread: in rows of memory, or encoded in scratch."""
    row, column = var("r"), var("c") * wide + var("n")
    size, scope = 512 * rows, Scope.LOCAL if encoding else Scope.ARGUMENT
    target = Buffer("s" if encoding else "y", size, scope, encoding=encoding)
    body: Body = (Store(target.name, row * 512 + column, Load("x", (row * 512 + column,))),)
    for name, extent, kind in (("n", wide, Kind.VECTOR), ("c", 32 // rows, Kind.THREAD), ("r", rows, Kind.THREAD)):
        body = (For(name, 0, extent, kind, body),)
    arguments = Buffer("y", size, Scope.ARGUMENT), Buffer("x", size, Scope.ARGUMENT)
    return work(TileProgram("stored", arguments, 1, body, (), 32, (target,) if encoding else ()), SPEC).issued.stores


def test_results_in_sectors_and_encoded_operands_take_longer() -> None:
    """A line of which a subgroup stores a sector counts as several, and so do transfers of encoded operands."""
    assert stored(2, 4) == WRITTEN * 4  # two rows, two lines of each
    assert stored(8, 2) == WRITTEN * 8 * SECTOR  # as tensor cores leave them
    assert stored(1, 4, Encoding(DType.BF16, 2, 8)) == STAGED * 4
