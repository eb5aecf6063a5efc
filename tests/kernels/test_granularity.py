"""Finer tilings than the spec asks for: more rTasks, and register blocks that touch no more than is wanted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_harness import SLOW_SPEC, operation
from simt_harness import GPU

from rammer.errors import LoweringError
from rammer.ir.analysis.dependency import Elements, read_elements, written_elements
from rammer.ir.kernel import RKernel, Tuning
from rammer.ir.operator import Operation
from rammer.ir.tensor import TensorType
from rammer.ir.verify.kernel import prove
from rammer.kernels import candidates

SPEC = replace(SLOW_SPEC, lanes=4, registers=16)
EVERY = 1 << 20  # rTasks: as many as there can be


def f32(*shape: int) -> TensorType:
    return TensorType(shape)


CASES = {
    "matmul": operation("matmul", f32(48, 640), f32(640, 96), static=("b",)),
    "conv": operation(
        "conv", f32(1, 128, 14, 14), f32(64, 128, 3, 3), static=("w",), strides=(1, 1), pads=(1, 1, 1, 1)
    ),
}


def most_bytes(kernel: RKernel) -> int:
    """Of float32 that an rTask reads and writes, at most."""
    operation = kernel.operation
    found: list[Elements] = [read_elements(kernel, n) for n in range(len(operation.inputs))]
    found += [written_elements(kernel, n) for n in range(len(operation.outputs))]
    sizes = [[int(np.diff(e.sets[which]).sum()) for which in e.chosen] for e in found]
    return 4 * max(map(sum, zip(*sizes, strict=True)))


@pytest.mark.parametrize("op", CASES.values(), ids=CASES)
def test_register_blocks_touch_no_more_than_is_wanted(op: Operation) -> None:
    usual = most_bytes(candidates(op, SPEC, Tuning(EVERY))[0])
    for nbytes in (usual * 3 // 4, usual // 2):
        kernel = candidates(op, SPEC, Tuning(EVERY, nbytes))[0]
        assert most_bytes(kernel) <= nbytes < usual
        assert not any(finding.broken for finding in prove(kernel))


@pytest.mark.parametrize("op", CASES.values(), ids=CASES)
def test_as_many_rtasks_as_are_wanted(op: Operation) -> None:
    counts = [candidates(op, SPEC, Tuning(rtasks))[0].num_rtasks for rtasks in (2, 8, 32)]
    assert all(want <= count <= 2 * want for want, count in zip((2, 8, 32), counts, strict=True)), counts
    assert candidates(op, SPEC)[0].num_rtasks == candidates(op, SPEC, Tuning(SPEC.num_veus))[0].num_rtasks


def test_no_block_is_smaller_than_the_smallest() -> None:
    """One byte is too little for anything: then it is as small as it gets."""
    op = CASES["matmul"]
    assert most_bytes(candidates(op, SPEC, Tuning(EVERY, 1))[0]) == 4 * (640 + 640 * 4 + 4)


def test_blocks_of_threads_refuse_it() -> None:
    with pytest.raises(
        LoweringError, match=r"matmul: SIMT has no Tuning\(tasks=7, most_bytes=0, every_axis=False, small=False, .*\)"
    ):
        candidates(CASES["matmul"], GPU, Tuning(7))
