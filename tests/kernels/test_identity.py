"""What tells rKernels of an operation apart, wherever some are left out because they are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cpus import CPUS, MadeUp
from kernel_harness import operation

from rammer.ir.tensor import Digit, Layout, TensorType
from rammer.kernels import candidates


@pytest.mark.parametrize("cpu", CPUS[:3], ids=str)
def test_rkernels_that_differ_have_identities_that_differ(cpu: MadeUp) -> None:
    """By packing, by the form that was lowered, and without a schedule by the body."""
    kinds = TensorType((3, 40, 29, 30)), TensorType((128, 40, 1, 1))
    kernels = candidates(operation("conv", *kinds, static=("w",)), cpu.spec)
    assert len({k.identity for k in kernels}) == len({str(k.body) for k in kernels}) == len(kernels) > 1
    kernel, other, *_ = kernels
    panels = [(("w", Layout((Digit(0, n), Digit(1), Digit(0, 1, n)))),) for n in (16, 32)]
    changed = [replace(kernel, packing=packing) for packing in panels]
    changed += [replace(kernel, form=kernel.operation.expr), *(replace(k, schedule="") for k in (kernel, other))]
    assert len({k.identity for k in (kernel, *changed)}) == 6
