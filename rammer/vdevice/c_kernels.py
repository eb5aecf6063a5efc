"""Offer the built-in rKernels to every vDevice that compiles C, CUDA C++ or HIP, of any backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rammer.hookspecs import hookimpl

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.kernel import RKernel, Tuning
    from rammer.ir.operator import Operation

GPUS = ("cuda", "hip")


@hookimpl
def rammer_rkernels(operation: Operation, spec: VDeviceSpec, tuning: Tuning) -> Iterable[RKernel]:
    """Return the built-in candidates of an operation."""
    if not {"c", *GPUS}.intersection(spec.languages):
        return []
    from rammer.kernels import candidates

    return candidates(operation, spec, tuning)
