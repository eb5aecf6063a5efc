"""The account of every tile's memory, and the refusal of what does not fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rammer.errors import DeviceError
from rammer.vdevice.ipu.access import accesses
from rammer.vdevice.ipu.placement import Placement

Bytes = NDArray[np.int64]


@dataclass(frozen=True)
class TileMemory:
    """Bytes by tile. `activations` and `buffers` are those of the worst moment."""

    weights: Bytes
    code: Bytes
    state: Bytes
    activations: Bytes
    buffers: Bytes
    limit: int
    reserve: int

    @property
    def total(self) -> Bytes:
        return self.weights + self.code + self.state + self.activations + self.buffers + self.reserve

    def table(self, rows: int = 5) -> str:
        """The fullest tiles, for people."""
        lines = ["tile  weights     code    state  activations  exchange  reserve    total"]
        for t in np.argsort(-self.total, kind="stable")[:rows]:
            lines.append(
                f"{t:4}  {self.weights[t]:7}  {self.code[t]:7}  {self.state[t]:7}  {self.activations[t]:11}  "
                f"{self.buffers[t]:8}  {self.reserve:7}  {self.total[t]:7}"
            )
        return "\n".join(lines)


def tile_memory(placed: Placement) -> TileMemory:
    """Count weights, code, vertex state, live variables and exchange buffers of every tile."""
    tiles, count = placed.arch.tiles, placed.sets.count
    fixed = {name: np.zeros(tiles, np.int64) for name in ("weights", "code", "state")}
    live = np.zeros((count + 3, tiles), np.int64)  # row 0: inputs arrive; row s + 1: set s; then outputs leave
    buffers = np.zeros((count + 3, tiles), np.int64)
    first = np.full(len(placed.variables), count + 2)
    last = np.full(len(placed.variables), -1)
    present: set[tuple[int, str]] = set()
    scratch: dict[tuple[int, int], int] = {}
    for n, kernel in enumerate(placed.plan.kernels):
        table, where, when = accesses(kernel), placed.tiles(n).tolist(), placed.sets.sets[n].tolist()
        for variable, _ in placed.arguments[n]:
            if when:
                first[variable] = min(first[variable], min(when) + 1)
                last[variable] = max(last[variable], max(when) + 1)
        num_outputs = len(kernel.operation.outputs)
        for rtask, (tile, step) in enumerate(zip(where, when, strict=True)):
            if table.chosen[rtask] < 0:
                continue
            codelet = placed.classes[n][table.chosen[rtask]]
            fixed["state"][tile] += codelet.state_bytes + 4 * codelet.has_status
            if (tile, codelet.name) not in present:
                present.add((tile, codelet.name))
                fixed["code"][tile] += codelet.code_bytes
            for f in codelet.scratch:
                scratch[tile, step] = scratch.get((tile, step), 0) + -(-f.size * f.dtype.itemsize // 8) * 8
            for position, pattern in enumerate(table.patterns[rtask]):
                variable, base = placed.arguments[n][position]
                home = placed.variables[variable].home
                low, high = base + pattern.start, base + pattern.start + pattern.size
                remote = pattern.num_pieces > 1 or (
                    position >= num_outputs
                    and (pattern.start < 0 or high > len(home) or bool((home[low:high] != tile).any()))
                )
                if remote:
                    buffers[step + 1, tile] += -(-pattern.size * placed.variables[variable].itemsize // 8) * 8
    fixed["state"] += _worst(scratch, tiles)
    inputs, outputs = placed.plan.graph.inputs, placed.plan.graph.outputs
    for tensor in inputs:
        first[placed.ports[tensor][0]] = 0
        last[placed.ports[tensor][0]] = max(last[placed.ports[tensor][0]], 0)
    for tensor in outputs:
        last[placed.ports[tensor][0]] = count + 1
    for v, owner in enumerate(placed.variables):
        nbytes = np.bincount(owner.home, minlength=tiles) * owner.itemsize
        if owner.value is not None:
            fixed["weights"] += nbytes
        elif last[v] >= first[v]:
            live[first[v]] += nbytes
            live[last[v] + 1] -= nbytes
    live = live.cumsum(axis=0)
    worst = (live + buffers).argmax(axis=0)
    here = np.arange(tiles)
    model = placed.arch.model
    return TileMemory(
        **fixed,
        activations=live[worst, here],
        buffers=buffers[worst, here],
        limit=model.tile_bytes,
        reserve=model.reserve,
    )


def _worst(scratch: dict[tuple[int, int], int], tiles: int) -> Bytes:
    """Scratch of the set that needs most of it, by tile."""
    found = np.zeros(tiles, np.int64)
    for (tile, _), nbytes in scratch.items():
        found[tile] = max(found[tile], nbytes)
    return found


def check_memory(placed: Placement) -> TileMemory:
    """The account. Raises DeviceError with a table of the fullest tiles if one of them is too full."""
    memory = tile_memory(placed)
    over = int((memory.total > memory.limit).sum())
    if not over:
        return memory
    need, room = int(memory.total.sum()), memory.limit * placed.arch.tiles
    if need > room:
        advice = (
            f"all tiles together lack {need - room} bytes: use fewer layers, a smaller batch, or a larger arch (gc200)"
        )
    else:
        advice = "the whole model would fit: more tiles (arch), another policy, or smaller tilings would balance it"
    raise DeviceError(
        f"{placed.arch.name}: {over} of {placed.arch.tiles} tiles need more than their {memory.limit} bytes\n"
        + memory.table(),
        hint=advice,
    )
