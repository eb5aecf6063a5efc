"""Register the interpreter and its NumPy kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rammer.hookspecs import hookimpl
from rammer.vdevice.base import VDeviceEntry, later

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.kernel import RKernel
    from rammer.ir.operator import Operation


@hookimpl
def rammer_vdevices() -> Iterable[VDeviceEntry]:
    """Return the interpreter's entry."""
    summary = "reference semantics in NumPy; slow"
    return [VDeviceEntry("interpreter", later("rammer.vdevice.interpreter", "InterpreterVDevice"), summary=summary)]


@hookimpl
def rammer_rkernels(operation: Operation, spec: VDeviceSpec) -> Sequence[RKernel]:
    """Return NumPy kernels for every vDevice that takes them."""
    if "numpy" not in spec.languages:
        return []
    from rammer.vdevice.interpreter import numpy_kernels

    return numpy_kernels(operation, spec)
