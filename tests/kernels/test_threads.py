"""Kernels of many threads, for every operator: each candidate against the expression's meaning, on host fibers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernel_harness import operation
from simt_harness import GPU, SMALL, build, check
from test_every_operator import CASES, t

from rammer.ir.expr import Load, Stage, TensorExpr
from rammer.ir.index import var
from rammer.ir.operator import Operation
from rammer.kernels import candidates

LARGE = [
    n
    for n in CASES
    if n.startswith(("conv", "matmul", "softmax", "layer_norm", "lstm", "gru", "reduce-all", "max_pool"))
]


TAKEN = {name: op for name, op in CASES.items() if op.kind != "scatter"}  # which backends of threads search instead


@pytest.fixture(scope="module")
def built():
    return build({name: (op, candidates(op, SMALL)) for name, op in TAKEN.items()})


def wide_cases() -> dict[str, Operation]:
    """Shapes with whole vectors, several chunks of terms, and tiles that hang over the edges."""
    conv = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    return {
        "matmul": operation("matmul", t(72, 96), t(96, 132), static=("b",)),
        "matmul-transposed": operation("matmul", t(96, 72), t(132, 96), trans_a=True, trans_b=True),
        "matmul-odd": operation("matmul", t(3, 67, 51), t(3, 51, 70)),
        "matmul-row": operation("matmul", t(1, 200), t(200, 50), static=("b",)),
        "conv": operation("conv", t(2, 16, 16, 16), t(40, 16, 3, 3), t(40), static=("w", "bias"), **conv),
        "conv-1x1": operation("conv", t(1, 72, 12, 16), t(36, 72, 1, 1), static=("w",)),
        "conv-grouped": operation("conv", t(1, 32, 9, 12), t(32, 8, 3, 3), static=("w",), group=4, **conv),
        "conv-strided": operation("conv", t(1, 8, 19, 22), t(20, 8, 3, 3), strides=(2, 2), pads=(1, 0, 1, 2)),
        "add": operation("add", t(12, 32, 44), t(32, 44)),
        "transpose": operation("transpose", t(24, 20, 36), perm=(2, 0, 1)),
        "transpose-matrix": operation("transpose", t(70, 45), perm=(1, 0)),
        "transpose-channels": operation("transpose", t(1, 40, 9, 17), perm=(0, 2, 3, 1)),
        "softmax": operation("softmax", t(9, 1000), axis=1),
        "lstm_cell": operation("lstm_cell", t(2, 4, 64), t(2, 64), t(2, 64), t(4, 64, 64), static=("r",)),
    }


WIDE = wide_cases()


@pytest.fixture(scope="module")
def built_wide():
    spec = replace(GPU, num_veus=5, max_threads=128)
    return build({name: (op, candidates(op, spec)) for name, op in WIDE.items()})


@pytest.fixture(scope="module")
def built_large():
    return build({name: (CASES[name], candidates(CASES[name], GPU)) for name in LARGE})


@pytest.mark.parametrize("name", TAKEN)
def test_candidates_compute_the_expression(built, name: str) -> None:
    check(built, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_candidates_of_a_large_device(built_large, name: str) -> None:
    check(built_large, name, boxes=False)


@pytest.mark.parametrize("name", WIDE)
def test_wide_candidates(built_wide, name: str) -> None:
    check(built_wide, name, boxes=False)


def test_every_candidate_says_how_often_it_syncs() -> None:
    kernels = candidates(CASES["softmax"], GPU)
    assert all(k.num_block_syncs for k in kernels) and all(k.num_threads % GPU.subgroup_size == 0 for k in kernels)


def test_packings_speak_of_the_operations_own_dimensions() -> None:
    """They were said for merged ones: of a tensor of three dimensions two were packed, and the rest was not there."""
    k, a, b = map(var, "kab")
    body = Load("x", (k,)) * Load("w", (k, a, b))
    stage = Stage("out", (("a", 20), ("b", 2)), body, (("k", 1000),))
    inputs, kind = (("x", t(1000)), ("w", t(1000, 20, 2))), t(20, 2)
    op = Operation("dot", (), TensorExpr("dot", inputs, (stage,), (("out", kind),)), (False, True))
    found = candidates(op, SMALL)
    assert any(kernel.packing for kernel in found)
    for kernel in found:
        assert all({d.dim for d in layout.digits} == {0, 1, 2} for _, layout in kernel.packing)
    check(build({"dot": (op, found)}), "dot")


def test_a_single_point_is_one_threads() -> None:
    """On a vEU whose threads do not run in waves; a loop over no axes was refused."""
    op = operation("add", t(), t())
    found = candidates(op, replace(SMALL, subgroup_size=1))
    assert [kernel.num_threads for kernel in found] == [1]
    check(build({"add": (op, found)}), "add")
