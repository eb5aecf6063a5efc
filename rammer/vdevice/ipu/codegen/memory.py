"""Count every tile's memory, and refuse plans that do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rammer.errors import DeviceError
from rammer.vdevice.ipu.codegen.program import PoplarProgram
from rammer.vdevice.ipu.spec import MODELS, IpuModel

Bytes = NDArray[np.int64]
SPARE = 1.25  # tiles never fill evenly


@dataclass(frozen=True)
class TileMemory:
    """Bytes by tile. `activations` and `buffers` are those of the step with the largest sum."""

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
        """Format the fullest tiles as text."""
        lines = ["tile  weights     code    state  activations  exchange  reserve    total"]
        for t in np.argsort(-self.total, kind="stable")[:rows]:
            lines.append(
                f"{t:4}  {self.weights[t]:7}  {self.code[t]:7}  {self.state[t]:7}  {self.activations[t]:11}  "
                f"{self.buffers[t]:8}  {self.reserve:7}  {self.total[t]:7}"
            )
        return "\n".join(lines)


def tile_memory(placed: PoplarProgram) -> TileMemory:
    """Count weights, code, vertex state, live variables and exchange buffers of every tile."""
    tiles = placed.arch.tiles
    fixed = {name: np.zeros(tiles, np.int64) for name in ("weights", "code", "state")}
    first, last, when = _lives(placed)
    end = int(last.max(initial=0)) + 2
    live = np.zeros((end, tiles), np.int64)
    buffers = np.zeros((end, tiles), np.int64)
    present: set[tuple[int, str]] = set()
    scratch: dict[tuple[int, int], int] = {}
    for group in placed.groups:
        table = group.table
        for rtask, (tile, step) in enumerate(zip(group.tiles.tolist(), group.sets.tolist(), strict=True)):
            if table.chosen[rtask] < 0:
                continue
            codelet = table.classes[table.chosen[rtask]]
            fixed["state"][tile] += codelet.state_bytes + 4 * codelet.has_status
            if (tile, codelet.name) not in present:
                present.add((tile, codelet.name))
                fixed["code"][tile] += codelet.code_bytes
            for f in codelet.scratch:
                scratch[tile, step] = scratch.get((tile, step), 0) + -(-f.size * f.dtype.itemsize // 8) * 8
            for position, pattern in enumerate(table.patterns[rtask]):
                variable, base = group.arguments[position]
                home = placed.variables[variable].home
                low, high = base + pattern.start, base + pattern.start + pattern.size
                remote = pattern.num_pieces > 1 or (
                    position >= table.num_outputs
                    and (pattern.start < 0 or high > len(home) or bool((home[low:high] != tile).any()))
                )
                if remote:
                    nbytes = -(-pattern.size * placed.variables[variable].itemsize // 8) * 8
                    buffers[when[step], tile] += nbytes
    fixed["state"] += _worst(scratch, tiles)
    for v, owner in enumerate(placed.variables):
        here = np.bincount(owner.home, minlength=tiles) * owner.itemsize
        if owner.value is not None:
            fixed["weights"] += here
        elif last[v] >= first[v]:
            live[first[v]] += here
            live[last[v] + 1] -= here
    live = live.cumsum(axis=0)
    worst = (live + buffers).argmax(axis=0)
    every, model = np.arange(tiles), placed.arch.model
    return TileMemory(
        **fixed,
        activations=live[worst, every],
        buffers=buffers[worst, every],
        limit=model.tile_bytes,
        reserve=model.reserve,
    )


def _lives(placed: PoplarProgram) -> tuple[Bytes, Bytes, dict[int, int]]:
    """Return first and last use of every variable, and the time of every compute set; inputs arrive at time 0."""
    touched: list[dict[int, None]] = [{} for _ in range(placed.num_sets)]
    for group in placed.groups:
        for step in np.unique(group.sets).tolist():
            touched[step].update((variable, None) for variable, _ in group.arguments)
    first = np.full(len(placed.variables), np.iinfo(np.int64).max)
    last = np.full(len(placed.variables), -1)
    when: dict[int, int] = {}
    now = 0

    def use(variables: Iterable[int]) -> None:
        for v in variables:
            first[v], last[v] = min(first[v], now), now

    graph = placed.plan.graph
    use(placed.ports[t][0] for t in graph.inputs)
    for now, number in enumerate(placed.steps, 1):
        when[number] = now
        use(touched[number])
    now += 1
    use(placed.ports[t][0] for t in graph.outputs)
    return first, last, when


def _worst(scratch: dict[tuple[int, int], int], tiles: int) -> Bytes:
    """Return, by tile, the scratch of the compute set that needs the most."""
    found = np.zeros(tiles, np.int64)
    for (tile, _), nbytes in scratch.items():
        found[tile] = max(found[tile], nbytes)
    return found


def fits(placed: PoplarProgram) -> bool:
    """Return whether every tile can hold its data and code."""
    memory = tile_memory(placed)
    return bool((memory.total <= memory.limit).all())


def check_memory(placed: PoplarProgram) -> TileMemory:
    """Return the memory of all tiles. Raises DeviceError with a table of the fullest ones if one is too full."""
    memory = tile_memory(placed)
    over = int((memory.total > memory.limit).sum())
    if not over:
        return memory
    need, room = int(memory.total.sum()), memory.limit * placed.arch.tiles
    offers = " or ".join(f"arch={a.name!r}" for a in _larger(placed.arch, int((memory.total - memory.reserve).sum())))
    if need > room:
        advice = f"all tiles together lack {need - room} bytes: use fewer layers or a smaller batch"
        advice += f"; {offers} would hold as much" if offers else ""
    else:
        advice = "all tiles together have room: another policy or smaller tilings would balance them"
        advice += f", {offers} would ease it" if offers else ""
    raise DeviceError(
        f"{placed.arch.name}: {over} of {placed.arch.tiles} tiles need more than their {memory.limit} bytes\n"
        + memory.table(),
        hint=advice,
    )


def _larger(arch: IpuModel, nbytes: int) -> Iterator[IpuModel]:
    """Yield each model with the tiles that hold these bytes and a margin, if it has them and they are more than now."""
    have = arch.tiles * (arch.model.tile_bytes - arch.model.reserve)
    for model in MODELS.values():
        of_tile = model.tile_bytes - model.reserve
        tiles = -(-int(max(nbytes, have) * SPARE) // of_tile)
        if tiles <= model.tiles:
            yield IpuModel(model, tiles, arch.veus_per_tile)
