"""Choose tilings for tiles: built-in candidates whose rTasks fit a tile's memory with all that they touch."""

from __future__ import annotations

from rammer.errors import LoweringError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel, Tuning
from rammer.ir.operator import Operation
from rammer.kernels import candidates
from rammer.vdevice.ipu.codegen.access import working_sets

# (rTasks to aim for in multiples of the vEUs, share of a tile for one rTask): use the first with a candidate
# that fits. Weights of other operators are on the tile too.
TRIES = ((1, 0.4), (4, 0.4), (16, 0.4), (2, 0.4), (3, 0.4), (6, 0.4), (16, 0.7), (64, 0.7))
# The same for policies that trade time for memory: all candidates that fit.
TRADE_OFFS = ((1, 0.7), (2, 0.5), (2, 0.3), (3, 0.3), (4, 0.2), (6, 0.2), (16, 0.1), (64, 0.05))
ROOMY = 0.05  # of a tile: below this, smaller candidates are not worthwhile
MOST_HELD = 0.7  # of all tiles, by all rTasks of an operator: a superstep begins when each of them has its operands


def kernels(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """Return candidates of which all rTasks fit together; if halos prevent that, those of which one rTask fits.

    If none fits, return the smallest, which the check of tile memory will refuse.
    """
    smallest: tuple[int, RKernel] | None = None
    crowded: list[RKernel] = []
    for times, part in TRIES:
        room, held = int(_tile_bytes(spec) * part), MOST_HELD * _tile_bytes(spec) * spec.num_veus
        fitting: list[RKernel] = []
        alone: list[RKernel] = []
        for kernel in candidates(operation, spec, Tuning(times * spec.num_veus, room, small=True)):
            try:
                sets = working_sets(kernel)
            except LoweringError:
                continue
            nbytes = int(sets.max(initial=0))
            if nbytes <= room:
                (fitting if sets.sum() <= held else alone).append(kernel)
            if smallest is None or nbytes < smallest[0]:
                smallest = nbytes, kernel
        if fitting:
            return fitting
        crowded = crowded or alone
    return crowded or ([smallest[1]] if smallest else [])


def trade_offs(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """Return candidates of larger and of smaller rTasks, each within its share of a tile, down to `ROOMY`."""
    found: dict[object, RKernel] = {}
    least = _tile_bytes(spec)
    for times, part in TRADE_OFFS:
        if least <= ROOMY * _tile_bytes(spec):
            break
        room = int(_tile_bytes(spec) * part)
        for kernel in candidates(operation, spec, Tuning(times * spec.num_veus, room, small=True)):
            try:
                nbytes = int(working_sets(kernel).max(initial=0))
            except LoweringError:
                continue
            if nbytes <= room:
                found.setdefault(kernel.identity, kernel)
                least = min(least, nbytes)
    return list(found.values())


def _tile_bytes(spec: VDeviceSpec) -> int:
    tile = spec.level("tile")
    return tile.nbytes if tile is not None else spec.scratch_bytes
