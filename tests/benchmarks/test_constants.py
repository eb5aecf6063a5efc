"""The generators with other numbers: everywhere, and for a while."""

from __future__ import annotations

from math import inf

import pytest

from benchmarks.on_paper.constants import changed, constants, times
from rammer.ir.operator import Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import TensorType
from rammer.kernels.threads import candidates as threads
from rammer.kernels.threads import product as threads_product
from rammer.vdevice.cpu.device import CpuVDevice


def test_numbers_are_told_by_the_module_that_has_them() -> None:
    found = constants()
    assert found["threads.product.STAGED"] == threads_product.STAGED and "threads.candidates.STAGED" not in found
    assert found["kernels.MAX_CANDIDATES"] and found["threads.candidates.MAX_CANDIDATES"]


def test_a_number_is_another_one_wherever_it_was_imported_until_the_end() -> None:
    before = threads.STAGED
    with pytest.raises(RuntimeError), changed("threads.product.STAGED", 0.25):
        assert threads.STAGED == threads_product.STAGED == 0.25
        raise RuntimeError
    assert threads.STAGED == threads_product.STAGED == before


def test_a_value_that_makes_no_sense_ends_nothing() -> None:
    product = Operations(OPS).define("matmul", (TensorType((64, 96)), TensorType((96, 80))), attributes())
    spec = CpuVDevice().spec
    assert 0 < times([product], spec)[product] < inf
    with changed("vectors.contraction.MAX_VECTORS", 0):
        assert times([product], spec)[product] > 0
