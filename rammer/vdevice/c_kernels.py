"""Offer the built-in rKernels to every vDevice that compiles C, CUDA C++ or HIP, of any backend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from rammer.hookspecs import hookimpl

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.kernel import RKernel
    from rammer.ir.operator import Operation

GPUS = ("cuda", "hip")


@hookimpl
def rammer_rkernels(operation: Operation, spec: VDeviceSpec, finer: tuple[int, ...]) -> Iterable[RKernel]:
    """Return the built-in candidates of an operation, and finer ones for `finer` multiples of the vEUs.

    On a GPU, one set of finer ones serves all multiples.
    """
    if not {"c", *GPUS}.intersection(spec.languages):
        return []
    from rammer.kernels import candidates
    from rammer.kernels.problem import Tuning

    found = {kernel.identity: kernel for kernel in candidates(operation, spec)}
    more = [Tuning(small=True), *(Tuning(times * spec.num_veus, every_axis=True, small=True) for times in finer)]
    if "c" not in spec.languages:
        more = [Tuning(every_axis=True)]
    for tuning in more if finer else ():
        for kernel in candidates(operation, spec, tuning):
            found.setdefault(kernel.identity, replace(kernel, finer=True))
    return list(found.values())
