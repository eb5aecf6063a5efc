"""Products of matrices that are both made at run time: panels that are copied, and reductions cut outside of all."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from cpus import CPUS, MadeUp
from kernel_harness import SPEC, check, operation

from rammer.cost.estimate import counted_us
from rammer.frontend.builder import GraphBuilder
from rammer.ir.device import MemoryLevel
from rammer.ir.tensor import TensorType, channel_blocked
from rammer.ir.tile import Kind, TileProgram
from rammer.kernels import candidates
from rammer.kernels.problem import KernelProblem
from rammer.kernels.schedule import Schedule
from rammer.kernels.vectors.contraction import schedules
from rammer.passes import optimize
from rammer.vdevice.cpu.codegen.emit import emit

SMALL = replace(SPEC, memory=(MemoryLevel("L1", 32 << 10, "veu", 500.0), MemoryLevel("L2", 64 << 10, "veu", 250.0)))


def product(m: int, k: int, n: int, static: bool = False) -> list[Schedule]:
    op = operation("matmul", TensorType((m, k)), TensorType((k, n)), static=("b",) if static else ())
    return list(schedules(KernelProblem.of(op, SMALL)))


def outside(schedule: Schedule) -> bool:
    """Whether pieces of the reduction come outside of the panels of a task."""
    serial = [loop.axis for loop in schedule.loops if loop.kind is Kind.SERIAL]
    return serial.index("k") < serial.index("j")


def test_panels_with_rows_far_apart_are_copied() -> None:
    """Where enough rows use them. What is packed, or has its rows side by side, is not copied."""
    assert all(s.stages for s in product(500, 33, 1100))
    for apart in (product(500, 33, 130), product(20, 33, 1100), product(500, 33, 1100, static=True)):
        assert not any(s.stages for s in apart)


def test_deep_reductions_are_cut_outside() -> None:
    """So that the left matrix passes once; a few rows of it would not stay near."""
    assert all(map(outside, product(200, 4000, 96)))
    assert not any(map(outside, (*product(200, 130, 96), *product(200, 4000, 96, static=True))))


@pytest.mark.parametrize("shape", [(131, 33, 1100), (131, 600, 1100), (200, 4000, 96)])
def test_results(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    plain = operation("matmul", TensorType((m, k)), TensorType((k, n)))
    check(plain, candidates(plain, SMALL))


@pytest.mark.parametrize("root", [False, True])
def test_distances_take_the_blocks_of_products(root: bool) -> None:
    builder = GraphBuilder()
    a, b = builder.input("a", (75, 1, 33)), builder.input("b", (40, 33))
    away = builder.add("sub", a, b)
    found = builder.add("reduce", builder.add("mul", away, away), fn="sum", axes=(2,), keepdims=False)
    builder.output(builder.add("sqrt", found) if root else found, "y")
    (op,) = optimize(builder.build(), SPEC).operators
    matched = KernelProblem.of(op.operation, SPEC).matched
    assert matched.output is not None and not matched.products  # no matrix unit multiplies differences
    check(op.operation, candidates(op.operation, SPEC))


@pytest.mark.parametrize("channels", [96, 104])
def test_lanes_pick_channels_of_their_group(channels: int) -> None:
    """Also where the last vector is not whole: the others are vectors all the same."""
    block = channel_blocked(4, 16)
    x = TensorType((1, channels, 5, 7), layout=block)
    weights = TensorType((channels, 8, 3, 3))
    op = operation("conv", x, weights, static=("w",), out_layout=block, pads=(1,) * 4, group=channels // 8)
    kernels = candidates(op, SPEC)
    check(op, kernels)
    text = emit(kernels[0], SPEC).text
    assert "__builtin_shufflevector" in text
    assert "float out_acc[" not in text and "vf out_acc[" in text


def test_a_single_number_at_the_end_of_rows_is_a_vector_too() -> None:
    """49 places are three vectors and one lane of a fourth, which is loaded, summed and stored as that."""
    op = operation("conv", TensorType((1, 24, 7, 7)), TensorType((16, 12, 1, 1)), static=("w",), group=2)
    kernels = candidates(op, SPEC)
    check(op, kernels)
    texts = [text for kernel in kernels if "vload(" in (text := emit(kernel, SPEC).text)]
    assert texts
    for text in texts:
        assert re.search(r"out_acc\[.*\] \+= \(vload\(&x\[.*\], 1\) \* ", text)
        assert not re.search(r"out_acc\[.*\]\[", text)  # a lane by itself


def test_a_single_number_joins_sums_along_rows_by_itself() -> None:
    """The other lanes of the register hold sums of their own: they are not computed again, and chosen."""
    op = operation("softmax", TensorType((9, 33)), axis=1)
    kernels = candidates(op, SPEC)
    check(op, kernels)
    for kernel in kernels:
        text = emit(kernel, SPEC).text
        assert re.search(r"acc\[0\]\[0\] \+= e\[", text) and "vfirst(" not in text


@pytest.mark.parametrize("cpu", CPUS[:3], ids=str)
@pytest.mark.parametrize("kind", ["matmul", "conv"])
def test_drafts_count_about_as_what_they_become(kind: str, cpu: MadeUp) -> None:
    if kind == "conv":
        op = operation("conv", TensorType((3, 40, 29, 30)), TensorType((128, 40, 1, 1)), static=("w",))
    else:
        op = operation("matmul", TensorType((200, 320)), TensorType((320, 640)), static=("b",))
    problem = KernelProblem.of(op, cpu.spec)
    made = [s for s in schedules(problem) if problem.own_packing(s) is not None]
    assert made
    for schedule in made:
        program = problem.kernel(schedule).body
        assert isinstance(program, TileProgram)
        full_us = counted_us(program, cpu.spec, 0) * -(-program.num_rtasks // cpu.num_veus)
        assert 0.99 * full_us <= problem.unshared_us(schedule, cpu.num_veus) <= 1.6 * full_us, schedule.name
