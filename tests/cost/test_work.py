"""Work counted from tile programs, against what the operation has to do."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from cpus import CPUS

from rammer.cost.issue import cycles, filled, warm_us
from rammer.cost.work import Issued, Work, work
from rammer.ir.analysis.dependency import read_elements, written_elements
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import TensorType
from rammer.ir.tile import Apply, For, Kind, TileProgram, contains, folded, statements
from rammer.kernels import candidates

SPEC = VDeviceSpec(
    "cpu",
    num_veus=2,
    languages=("c",),
    lanes=8,
    registers=16,
    clock_ghz=2.0,
    memory=(
        MemoryLevel("L1", 32 << 10, "veu", 128.0),
        MemoryLevel("L2", 1 << 20, "veu", 64.0),
        MemoryLevel("DRAM", 1 << 34, "device", 20.0),
    ),
)
MATMULS = [(75, 129, 48), (3, 640, 512), (64, 64, 64), (1, 256, 1024)]


def matmul(m: int, k: int, n: int) -> list[RKernel]:
    operation = Operations(OPS).define("matmul", (TensorType((m, k)), TensorType((k, n))), attributes())
    return candidates(operation, SPEC)


def issued(found: Work) -> Issued:
    """All that a loop issues in all its passes."""
    total = found.issued
    for inner in found.loops:
        total += issued(inner)
    return Issued(found.trips * total.arithmetic, found.trips * total.loads, found.trips * total.stores)


@pytest.mark.parametrize(("m", "k", "n"), MATMULS)
def test_a_product_takes_its_multiply_adds(m: int, k: int, n: int) -> None:
    for kernel in matmul(m, k, n):
        assert isinstance(kernel.body, TileProgram)
        points = prod(high - low for low, high in kernel.box(0).values())
        vectors = issued(work(kernel.body, SPEC)).arithmetic * SPEC.lanes / (points * k)
        assert 1.0 <= vectors < 1.35, kernel.name  # blocks at the edge overhang


@pytest.mark.parametrize(("m", "k", "n"), MATMULS)
def test_operands_in_registers_are_loaded_once_for_a_block(m: int, k: int, n: int) -> None:
    """A block of r rows and v vectors loads r + v times for r · v multiply-adds."""
    for kernel in matmul(m, k, n):
        assert isinstance(kernel.body, TileProgram)
        found = issued(work(kernel.body, SPEC))
        rows, _, panel = kernel.name.partition("_")[2].partition("_")[0].partition("x")
        block, vectors = int(rows), int(panel) // SPEC.lanes
        expected = (block + vectors) / (block * vectors)
        assert found.loads / found.arithmetic == pytest.approx(expected, rel=0.25), kernel.name


@pytest.mark.parametrize(("m", "k", "n"), MATMULS)
def test_what_is_touched_is_what_dependencies_say(m: int, k: int, n: int) -> None:
    for kernel in matmul(m, k, n):
        assert isinstance(kernel.body, TileProgram)
        whole = work(kernel.body, SPEC).total
        touched = [written_elements(kernel, 0)[0], read_elements(kernel, 0)[0], read_elements(kernel, 1)[0]]
        for buffer, elements in zip(kernel.body.arguments, touched, strict=True):
            exact = int((elements[:, 1] - elements[:, 0]).sum()) * 4
            assert exact <= whole[buffer.name] <= 1.2 * exact + 64, (kernel.name, buffer.name)


def test_smaller_caches_are_filled_more_often() -> None:
    for kernel in matmul(75, 129, 48):
        assert isinstance(kernel.body, TileProgram)
        found = work(kernel.body, SPEC)
        levels = (MemoryLevel("L1", nbytes, "veu") for nbytes in (1 << 8, 1 << 12, 1 << 15, 1 << 20))
        by_size = [filled(found, SPEC, level)[0] for level in levels]
        assert by_size == sorted(by_size, reverse=True) and by_size[-1] == sum(found.total.values()) < by_size[0]


def test_a_single_sum_waits_for_itself() -> None:
    nothing: dict[str, float] = {}
    one = Issued(arithmetic=1.0, loads=1.0)
    assert cycles(Work(200, one, (), True, nothing, nothing), SPEC) == pytest.approx(200 * 4.25)
    assert cycles(Work(9, one, (), True, nothing, nothing), SPEC) == pytest.approx(9 * 0.75)  # the next sum begins
    many = Issued(arithmetic=12.0, loads=4.0)
    assert cycles(Work(200, many, (), True, nothing, nothing), SPEC) == pytest.approx(200 * 6.25)


def test_microseconds_follow_the_clock_and_the_caches() -> None:
    for nbytes, us in ((6400.0, 625 / 2000), (64000.0, 1.0)):  # at 2 GHz, and at 64 GB/s
        loop = Work(100, Issued(arithmetic=12.0), (), True, {"x": 8.0}, {"x": nbytes})
        assert warm_us(loop, SPEC) == pytest.approx(us)


def test_an_instruction_touches_whole_blocks() -> None:
    """Operands of a matrix unit are streamed, too: all weights of a task, and its sums."""
    spec = replace(CPUS[2].spec, num_veus=1)
    operation = Operations(OPS).define("matmul", (TensorType((200, 320)), TensorType((320, 640))), attributes())
    operation = Operations(OPS).retype(operation, operation.inputs, operation.outputs, (False, True))
    kernels = [
        k for k in candidates(operation, spec) if isinstance(k.body, TileProgram) and contains(k.body.body, Apply)
    ]
    assert kernels
    for kernel in kernels:
        assert isinstance(kernel.body, TileProgram)
        whole, weights = work(kernel.body, spec).total, kernel.body.arguments[2]
        assert whole[weights.name] >= 0.99 * weights.nbytes / kernel.num_rtasks, kernel.name


@pytest.mark.parametrize(("fn", "slots"), [("sum", 1), ("max", 3)])
def test_lanes_are_folded_by_halves(fn: str, slots: int) -> None:
    """As the text does: three steps for eight lanes, each a shuffle and what combines; not seven of single numbers."""
    operation = Operations(OPS).define("reduce", (TensorType((1, 64)),), attributes(fn=fn, axes=(1,), keepdims=False))
    for kernel in candidates(operation, SPEC):
        assert isinstance(kernel.body, TileProgram)
        loops = [s for s in statements(kernel.body.body) if isinstance(s, For)]
        unrolled = sum(lp.kind is Kind.UNROLLED and lp.start == 1 and not folded(lp, 8) for lp in loops)
        combined = 8 + (3 if unrolled else 0)  # vectors, and those of unrolled sums
        found = issued(work(kernel.body, SPEC)).arithmetic
        assert any(folded(lp, 8) for lp in loops) and found == combined * slots + 3 * (slots + 1), kernel.name
