"""Attention in one rKernel of many threads: right at odd sizes, proven, copied in panels; a changed number is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attentions import Attention, drawn
from passes.pass_models import Net
from rammer_testing.mutate.tiles import mutants
from simt_harness import GPU, SMALL, build, check
from stages import operations

from rammer.ir.device import VDeviceSpec
from rammer.ir.operator import Operation
from rammer.ir.tile import TileProgram
from rammer.ir.verify.kernel import proven
from rammer.kernels import candidates

SPECS = {"gpu": replace(GPU, num_veus=7), "small": SMALL}
PANELS = replace(GPU, num_veus=3, max_threads=128, scratch_bytes=36 << 10)  # matrices do not fit


def operation(attention: Attention, spec: VDeviceSpec = GPU) -> Operation:
    (op,) = (op for op in operations(attention.graph(), spec) if op.kind != "softmax" and "softmax" in op.kind)
    return op


def shared(heads: int, groups: int, rows: int, length: int) -> Operation:
    """Attention whose heads share keys and values in groups, with a mask."""
    b = Net(3)

    def matrix(name: str) -> str:
        x = b.add("transpose", b.input(name, (1, length, groups, 32)), perm=(0, 2, 1, 3))
        x = b.add(
            "expand",
            b.add("reshape", x, shape=(1, groups, 1, length, 32)),
            shape=(1, groups, heads // groups, length, 32),
        )
        return b.add("reshape", x, shape=(1, heads, length, 32))

    q = b.add("transpose", b.input("q", (1, rows, heads, 32)), perm=(0, 2, 1, 3))
    scores = b.add("matmul", q, b.add("transpose", matrix("k"), perm=(0, 1, 3, 2)))
    weights = b.add("softmax", b.add("add", scores, b.input("mask", (1, 1, rows, length))), axis=-1)
    b.output(b.add("transpose", b.add("matmul", weights, matrix("v")), perm=(0, 2, 1, 3)), "y")
    (op,) = operations(b.build(), GPU)
    return op


def cases() -> dict[str, tuple[Operation, VDeviceSpec]]:
    found = {
        "heads of 128": (operation(Attention(1, 2, 9, 40, 128, 128)), GPU),
        "panels": (operation(Attention(1, 2, 37, 61, 64, 64, mask="all"), PANELS), PANELS),
        "heads that share matrices": (shared(8, 2, 12, 24), GPU),
        "three heads that share one": (shared(9, 3, 20, 33), GPU),
        "keys as they lie": (operation(Attention(2, 1, 12, 33, 16, 20, cut=False)), GPU),
    }
    for seed in range(12):
        for name, spec in SPECS.items():
            if fused := [op for op in operations(drawn(seed).graph(), spec) if "+softmax" in op.kind]:
                found[f"{name} {seed}"] = fused[0], spec
    return found


CASES = cases()


@pytest.fixture(scope="module")
def built():
    return build({name: (op, candidates(op, spec)) for name, (op, spec) in CASES.items()})


@pytest.mark.parametrize("name", CASES)
def test_attention_is_right(built, name: str) -> None:
    """Each rTask of each candidate, after as many syncs as it says, with NaN in scratch before."""
    check(built, name, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_attention_is_proven(name: str) -> None:
    op, spec = CASES[name]
    for kernel in candidates(op, spec):
        assert not proven(kernel)[1], f"{kernel.name}: {proven(kernel)[1][0]}"
        assert kernel.fits(spec)


def test_both_matrices_are_copied_in_panels() -> None:
    op, spec = CASES["panels"]
    first = candidates(op, spec)[0]
    assert isinstance(first.body, TileProgram)
    sizes = {b.name: b.size for b in first.body.scratch}
    assert all(sizes[f"{name}_s"] < 61 * 64 for name in ("x1", "x2")), sizes


def test_many_heads_fill_all_veus() -> None:
    """A task holds some rows of one head; the least time on all vEUs wins."""
    large = replace(GPU, scratch_bytes=200 << 10)
    best = candidates(operation(Attention(4, 3, 197, 197, 64, 64), large), large)[0]
    assert 100 <= best.num_rtasks <= 132


def test_a_changed_number_is_found() -> None:
    kernel = candidates(operation(Attention(1, 2, 26, 37, 16, 16, mask="all")), GPU)[0]
    changed = list(mutants(kernel, 60, seed=1))
    found = sum(bool(proven(mutant)[1]) for _, mutant in changed)
    assert found >= 0.9 * len(changed)
