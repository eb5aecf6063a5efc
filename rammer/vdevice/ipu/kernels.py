"""Tilings for tiles: built-in candidates whose rTasks, with all they touch, fit into a tile's memory."""

from __future__ import annotations

from dataclasses import replace

from rammer.errors import LoweringError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.kernels import candidates
from rammer.vdevice.ipu.access import accesses

FINER = (1, 4, 16, 64)  # tasks to aim for, in multiples of the vEUs


def kernels(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """Candidates that fit; if none does the smallest one, which the account of memory will refuse."""
    smallest: tuple[int, RKernel] | None = None
    for finer in FINER:
        fitting = []
        for kernel in candidates(operation, replace(spec, num_veus=spec.num_veus * finer)):
            try:
                nbytes = working_set(kernel)
            except LoweringError:
                continue
            if nbytes <= _room(spec):
                fitting.append(kernel)
            if smallest is None or nbytes < smallest[0]:
                smallest = nbytes, kernel
        if fitting:
            return fitting
    return [smallest[1]] if smallest else []


def _room(spec: VDeviceSpec) -> int:
    """What one rTask may take: half of its share of a tile, as weights of others live there too."""
    tile = spec.level("tile")
    return tile.nbytes // 2 if tile is not None else spec.scratch_bytes


def working_set(kernel: RKernel) -> int:
    """Bytes of all that the largest rTask touches, scratch included. Raises LoweringError."""
    sizes = [t.dtype.itemsize for t in (*kernel.operation.outputs, *kernel.operation.inputs)]
    rows = dict.fromkeys(accesses(kernel).patterns)
    largest = max((sum(p.size * s for p, s in zip(row, sizes, strict=True)) for row in rows), default=0)
    return largest + kernel.scratch_bytes
