"""Sums over neighbouring channels that lie in blocks: right at every edge, proven, and without a gathered number."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernel_harness import SLOW_SPEC, check, operation

from rammer.ir.operator import Operation
from rammer.ir.tensor import TensorType, channel_blocked
from rammer.ir.verify.kernel import prove
from rammer.kernels import candidates
from rammer.vdevice.cpu.codegen.emit import emit

SHAPES = {
    "odd": ((1, 20, 7, 11), 5),
    "one block": ((1, 16, 5, 5), 3),
    "a part of a block": ((3, 9, 7, 5), 5),
    "an even window": ((2, 40, 5, 29), 4),
    "wider than a block": ((1, 64, 3, 5), 21),
    "wider than all": ((1, 24, 3, 3), 60),
    "a line": ((3, 75, 29), 5),
    "a volume": ((1, 33, 3, 5, 2), 5),
}


def lrn(shape: tuple[int, ...], size: int, lanes: int, batch_first: bool = False) -> Operation:
    block = channel_blocked(len(shape), lanes, batch_first=batch_first)
    return operation("lrn", TensorType(shape, layout=block), size=size, alpha=0.3, out_layout=block)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(("shape", "size"), SHAPES.values(), ids=SHAPES)
def test_results(shape: tuple[int, ...], size: int, lanes: int, batch_first: bool) -> None:
    spec = replace(SLOW_SPEC, lanes=lanes)
    op = lrn(shape, size, lanes, batch_first)
    kernels = candidates(op, spec)
    assert all(k.name.startswith(f"lrn_c{lanes}") and k.scratch_bytes for k in kernels)
    for kernel in kernels:
        assert not any(finding.broken for finding in prove(kernel))
        assert "gather" not in emit(kernel, spec).text
    check(op, kernels, spec=spec)


def test_channels_that_fill_a_cache_are_copied_for_few_places() -> None:
    near = SLOW_SPEC.l1.nbytes
    for channels in (64, 1000, 4096):
        kernels = candidates(lrn((1, channels, 14, 14), 5, 16), SLOW_SPEC)
        assert all(k.scratch_bytes <= max(near // 2, 4 * 4 * (channels + 15)) for k in kernels)
