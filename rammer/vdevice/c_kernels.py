"""Offer the built-in rKernels to every vDevice that compiles C, of any backend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from rammer.hookspecs import hookimpl

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.kernel import RKernel
    from rammer.ir.operator import Operation


@hookimpl
def rammer_rkernels(operation: Operation, spec: VDeviceSpec, finer: tuple[int, ...]) -> Iterable[RKernel]:
    """Return the built-in candidates of an operation, and finer ones for `finer` multiples of the vEUs."""
    if "c" not in spec.languages:
        return []
    from rammer.kernels import candidates
    from rammer.kernels.problem import Tuning

    found = {kernel.identity: kernel for kernel in candidates(operation, spec)}
    asked = [Tuning(times * spec.num_veus, every_axis=True, small=True) for times in finer]
    for tuning in (Tuning(small=True), *asked) if finer else ():
        for kernel in candidates(operation, spec, tuning):
            found.setdefault(kernel.identity, replace(kernel, finer=True))
    return list(found.values())
