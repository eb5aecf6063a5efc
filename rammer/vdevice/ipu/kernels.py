"""Tilings for tiles: built-in candidates whose rTasks, with all they touch, fit into a tile's memory."""

from __future__ import annotations

from dataclasses import replace

from rammer.errors import LoweringError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.kernels import candidates
from rammer.vdevice.ipu.access import working_sets

# (tasks to aim for in multiples of the vEUs, vector registers, the part of a tile that one rTask may take): the first
# with a candidate that fits. Weights of other operators live on the tile too; fewer registers make narrower panels.
TRIES = ((1, 16, 0.4), (4, 16, 0.4), (16, 16, 0.4), (4, 9, 0.4), (16, 9, 0.7), (64, 9, 0.7))


def kernels(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """Candidates that fit; if none does the smallest one, which the account of memory will refuse."""
    smallest: tuple[int, RKernel] | None = None
    for finer, registers, part in TRIES:
        fitting = []
        for kernel in candidates(operation, replace(spec, num_veus=spec.num_veus * finer, registers=registers)):
            try:
                nbytes = int(working_sets(kernel).max(initial=0))
            except LoweringError:
                continue
            if nbytes <= _tile_bytes(spec) * part:
                fitting.append(kernel)
            if smallest is None or nbytes < smallest[0]:
                smallest = nbytes, kernel
        if fitting:
            return fitting
    return [smallest[1]] if smallest else []


def _tile_bytes(spec: VDeviceSpec) -> int:
    tile = spec.level("tile")
    return tile.nbytes if tile is not None else spec.scratch_bytes
