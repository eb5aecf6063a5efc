"""Numbers below the normal ones: zero on all vEUs while a program runs, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

import rammer
from rammer import config
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.ir.program import RTask
from rammer.ir.tensor import DType

SIZE = 1 << 16
SMALL = np.float32(1e-40)


def halved(dtype: DType) -> Graph:
    builder = GraphBuilder()
    x = builder.input("x", (2, SIZE), dtype)
    half = builder.constant(np.full((1,), 0.5, dtype.numpy))
    builder.output(builder.add("mul", x, half), "y")
    return builder.build()


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_subnormal_operands_and_results(dtype: DType, keeps: bool) -> None:
    tiny = np.finfo(dtype.numpy).smallest_normal
    x = np.full((2, SIZE), tiny, dtype.numpy)
    x[:, 1::2] = tiny / 4
    x[:, 2::4] = 1
    with (
        config.override(RAMMER_SUBNORMALS=str(int(keeps))),
        rammer.compile(halved(dtype), "cpu", device=2, tune_seconds=0) as program,
    ):
        assert all(any(isinstance(slot, RTask) for slot in lane) for lane in program.plan.programs[0])
        y = program.run({"x": x})["y"]
        wanted = x / 2
        if not keeps:
            wanted[wanted < tiny] = 0
        np.testing.assert_array_equal(y, wanted)
        assert SMALL * np.float32(1) == SMALL  # the calling thread has its own ways back


def test_what_only_moves_numbers_keeps_them() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (64, 48))
    builder.output(builder.add("transpose", x, perm=(1, 0)), "y")
    values = np.full((64, 48), SMALL)
    with rammer.compile(builder.build(), "cpu", tune_seconds=0) as program:
        np.testing.assert_array_equal(program.run({"x": values})["y"], values.T)
