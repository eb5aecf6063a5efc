"""Offer the user's imported kernels as candidates, in the language of the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from rammer.hookspecs import hookimpl
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation


@hookimpl
def rammer_rkernels(operation: Operation, spec: VDeviceSpec) -> Iterator[RKernel]:
    """Yield verified kernels of the store, in CUDA C++ or in HIP."""
    for language in ("cuda", "hip"):
        if language in spec.languages:
            from rammer_legacy_kernels.store import imported

            yield from imported(operation, spec, language)
            return
