"""Kernels of many threads, for every operator: each candidate against the expression's meaning, on host fibers."""

from __future__ import annotations

import pytest
from simt_harness import GPU, SMALL, build, check
from test_every_operator import CASES

from rammer.kernels import candidates

LARGE = [
    n
    for n in CASES
    if n.startswith(("conv", "matmul", "softmax", "layer_norm", "lstm", "gru", "reduce-all", "max_pool"))
]


@pytest.fixture(scope="module")
def built():
    return build({name: (op, candidates(op, SMALL)) for name, op in CASES.items()})


@pytest.fixture(scope="module")
def built_large():
    return build({name: (CASES[name], candidates(CASES[name], GPU)) for name in LARGE})


@pytest.mark.parametrize("name", CASES)
def test_candidates_compute_the_expression(built, name: str) -> None:
    check(built, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_candidates_of_a_large_device(built_large, name: str) -> None:
    check(built_large, name, boxes=False)


def test_every_candidate_says_how_often_it_syncs() -> None:
    kernels = candidates(CASES["softmax"], GPU)
    assert all(k.num_block_syncs for k in kernels) and all(k.num_threads % GPU.wave == 0 for k in kernels)
