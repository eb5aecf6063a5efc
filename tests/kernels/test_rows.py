"""Windows along rows of any length: parts of vectors, borders and every second number, by masks and without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cpus import runnable
from kernel_harness import SPEC, check_compiled, compile_all, operation

from rammer.ir.operator import Operation
from rammer.ir.tensor import TensorType
from rammer.kernels import candidates
from rammer.kernels.lanes import lane_axis
from rammer.kernels.problem import KernelProblem

SPECS = {
    "masks": replace(SPEC, masks=True),
    "AVX2": replace(SPEC, arch=runnable("x86-64-avx2"), lanes=8, registers=16),
}


def depthwise(width: int, stride: int, window: int = 3, pad: int = 1) -> Operation:
    kinds = TensorType((2, 5, 7, width)), TensorType((5, 1, 3, window)), TensorType((5,))
    attrs = {"strides": (1, stride), "pads": (1, pad, 1, max(pad - 1, 0) if width % 2 else pad), "group": 5}
    return operation("conv", *kinds, static=("w", "bias"), **attrs)


def cases() -> dict[str, Operation]:
    found = {f"{width}/{stride}": depthwise(width, stride) for stride in (1, 2, 3) for width in (*range(3, 36), 64, 75)}
    found |= {
        f"window 5, {width}/{stride}": depthwise(width, stride, 5, 2) for stride in (1, 2) for width in (9, 29, 33)
    }
    attrs = {"kernel": (3, 3), "strides": (2, 2), "pads": (0, 0, 1, 1)}
    found |= {
        f"pool, {width}": operation("max_pool", TensorType((1, 3, 9, width)), **attrs) for width in (14, 28, 31, 35)
    }
    return found


CASES = cases()


@pytest.fixture(scope="module", params=SPECS)
def built(request: pytest.FixtureRequest):
    spec = SPECS[request.param]
    return compile_all({name: (op, candidates(op, spec)) for name, op in CASES.items()}, spec)


@pytest.mark.parametrize("name", CASES)
def test_rows_of_any_length(built, name: str) -> None:
    check_compiled(built, name)


@pytest.mark.parametrize(("stride", "axis"), [(1, "w"), (2, "w"), (3, "o")])
def test_vectors_go_along_rows_where_masks_take_every_second_number(stride: int, axis: str) -> None:
    op = operation(
        "conv",
        TensorType((1, 48, 28, 28)),
        TensorType((48, 1, 3, 3)),
        static=("w",),
        strides=(1, stride),
        pads=(1,) * 4,
        group=48,
    )
    problem = KernelProblem.of(op, SPECS["masks"])
    assert lane_axis(problem, problem.root) == axis
    without = KernelProblem.of(op, SPEC)
    assert lane_axis(without, without.root) == ("w" if stride == 1 else "o")
