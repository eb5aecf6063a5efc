"""Place every element on a tile: that of the rTask that writes it, or else that of its only reader."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.dependency import written_elements
from rammer.ir.analysis.storage import constant_key, memory_owners
from rammer.ir.plan import ExecutionPlan, MemoryPlan
from rammer.ir.tensor import Array, DType, Layout, TensorId, pack
from rammer.vdevice.image.placement import ArenaPlacement, constant_value
from rammer.vdevice.ipu.codegen.access import accesses, working_sets
from rammer.vdevice.ipu.codegen.narrow import on_tile, to_tile
from rammer.vdevice.ipu.codegen.program import Homes, OperatorVertices, PoplarProgram, Variable, vertex_table
from rammer.vdevice.ipu.codegen.sets import ROUND, ComputeSets, compute_sets
from rammer.vdevice.ipu.spec import IpuModel

GRAIN = 32  # elements of a piece where a tensor is spread over tiles


def place(plan: ExecutionPlan, arch: IpuModel, *, level: bool = False, share: float = ROUND) -> PoplarProgram:
    """Give every rTask and every element a tile. Raises LoweringError, DeviceError.

    `level`: fill the emptiest tiles with weights that have no tile yet. That fits more than an even spread, and sends
    from fewer tiles. `share`: the part of a tile's bytes that the rTasks of one compute set may hold.
    """
    graph, sets = plan.graph, compute_sets(plan, arch, share)
    finder = _Finder(plan)
    arguments = [tuple(finder.operands(n).places[0]) for n in range(len(graph.operators))]
    ports = {t: finder.find(t, None) for t in (*graph.inputs, *graph.outputs)}
    sizes = finder.sizes()
    homes = [np.full(n, -1, np.int32) for _, _, n in sizes]
    tiles = [v % arch.tiles for v in sets.veus]
    for n, kernel in enumerate(plan.kernels):
        for position in range(len(kernel.operation.outputs)):
            variable, base = arguments[n][position]
            elements, home = written_elements(kernel, position), homes[variable][base:]
            for rtask, tile in enumerate(tiles[n].tolist()):
                for low, high in elements[rtask].tolist():
                    home[low:high] = tile
    produced = [h.copy() for h in homes]
    _place_read(plan, arguments, tiles, homes, _room(plan, sets, tiles, arch))
    cursor = 0
    variables = []
    load = np.zeros(arch.tiles, np.int64)
    for (name, dtype, _), home in zip(sizes, homes, strict=True):
        if name in finder.values:
            load += np.bincount(home[home >= 0], minlength=arch.tiles) * dtype.itemsize
    for (name, dtype, _), home, made in zip(sizes, homes, produced, strict=True):
        if level and name in finder.values:
            _fill(home, load, dtype.itemsize)
        cursor = spread(home, arch.tiles, cursor)
        variables.append(Variable(name, dtype, len(home), home, finder.values.get(name), made))
    groups = tuple(
        OperatorVertices(op.kind, vertex_table(kernel), arguments[n], sets.sets[n], tiles[n])
        for n, (op, kernel) in enumerate(zip(graph.operators, plan.kernels, strict=True))
    )
    return PoplarProgram(plan, arch, tuple(variables), groups, sets.count, tuple(range(sets.count)), ports)


def _place_read(
    plan: ExecutionPlan,
    arguments: list[tuple[tuple[int, int], ...]],
    tiles: list[NDArray[np.int64]],
    homes: list[Homes],
    room: NDArray[np.int64],
) -> None:
    """Place elements that no rTask writes with their only reader while its tile has space; leave the others at -1."""
    many = {v: np.zeros(len(h), bool) for v, h in enumerate(homes) if (h < 0).any()}
    written = {v: homes[v] >= 0 for v in many}
    seen = set()
    for n, kernel in enumerate(plan.kernels):
        num_outputs = len(kernel.operation.outputs)
        table, kinds = accesses(kernel), kernel.input_types()
        for position, (variable, base) in enumerate(arguments[n][num_outputs:], num_outputs):
            key = (kernel, position, variable, base, tiles[n].tobytes())
            if variable not in many or key in seen:
                continue
            seen.add(key)
            home, shared = homes[variable], many[variable]
            kind = kinds[position - num_outputs]
            size, itemsize = prod(kind.physical_shape), kind.dtype.itemsize
            for rtask, tile in enumerate(tiles[n].tolist()):
                for low, high in table.patterns[rtask][position].pieces(size):
                    part = slice(base + low, base + high)
                    shared[part] |= (home[part] >= 0) & (home[part] != tile)
                    free = home[part] < 0
                    nbytes = int(free.sum()) * itemsize
                    if nbytes <= room[tile]:
                        home[part][free] = tile
                        room[tile] -= nbytes
    for v, shared in many.items():
        homes[v][shared & ~written[v]] = -1


def _room(plan: ExecutionPlan, sets: ComputeSets, tiles: list[NDArray[np.int64]], arch: IpuModel) -> NDArray[np.int64]:
    """Return the bytes of every tile beside its largest set of rTasks; a quarter is kept for spread elements."""
    worst = np.zeros((sets.count, arch.tiles), np.int64)
    for kernel, step, tile in zip(plan.kernels, sets.sets, tiles, strict=True):
        np.add.at(worst, (step, tile), working_sets(kernel))
    left = arch.model.tile_bytes - 2 * arch.model.reserve - worst.max(axis=0, initial=0)  # code and state need some
    room: NDArray[np.int64] = np.maximum(left, 0) * 3 // 4
    return room


def spread(home: Homes, tiles: int, cursor: int) -> int:
    """Distribute elements without a tile over all tiles in pieces, round robin; return the next tile."""
    free = np.flatnonzero(home < 0)
    if free.size:
        piece = max(GRAIN, -(-free.size // tiles))
        home[free] = (cursor + np.arange(free.size) // piece) % tiles
        cursor = (cursor + -(-free.size // piece)) % tiles
    return cursor


def _fill(home: Homes, load: NDArray[np.int64], itemsize: int) -> None:
    """Place elements without a tile on the tiles with the least bytes, in whole pieces, and add them to `load`."""
    free = np.flatnonzero(home < 0)
    piece = GRAIN * itemsize
    low, high = 0, int(load.max(initial=0)) + free.size * itemsize + piece
    while high - low > piece:  # bisect for the lowest level at which all fits
        middle = (low + high) // 2
        room = int((np.maximum(middle - load, 0) // piece).sum()) * GRAIN
        low, high = (low, middle) if room >= free.size else (middle, high)
    pieces = np.maximum(high - load, 0) // piece
    tiles = np.repeat(np.arange(len(load), dtype=np.int32), pieces * GRAIN)[: free.size]
    home[free] = tiles
    load += np.bincount(tiles, minlength=len(load)) * itemsize


class _Finder(ArenaPlacement):
    """Numbers of variables by tensor. A constant has one variable for each layout in which it is read."""

    def __init__(self, plan: ExecutionPlan) -> None:
        super().__init__(plan, MemoryPlan({}, 0))  # elements lie on tiles, not in an arena
        self._numbers |= {(t, None): n for n, t in enumerate(memory_owners(plan.graph))}
        self._owners = len(self._numbers)
        self.values: dict[str, Array] = {}

    def find(self, tensor: TensorId, layout: Layout | None) -> tuple[int, int]:
        """Return (variable, first element)."""
        root, offset = self._graph.storage(tensor)
        if root not in self._graph.constants:
            return self._numbers[root, None], offset
        key, offset = constant_key(self._graph, tensor, layout)
        return self._numbers.setdefault(key, len(self._numbers)), offset

    def sizes(self) -> list[tuple[str, DType, int]]:
        """Return name, type and elements of every variable; keep the values of constants."""
        found = []
        for (tensor, layout), n in self._numbers.items():
            kind = self._graph.types[tensor]
            name = f"{'t' if n < self._owners else 'w'}{n}"
            count = prod(kind.physical_shape)
            if n >= self._owners:
                value = constant_value(self._graph, tensor)
                flat = (pack(value, layout) if layout else value).reshape(-1)
                self.values[name] = to_tile(flat, kind.dtype, f"constant {tensor!r}")
                count = flat.size
            found.append((name, on_tile(kind.dtype), count))
        return found
