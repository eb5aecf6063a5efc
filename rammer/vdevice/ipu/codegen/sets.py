"""Split rPrograms into compute sets at global barriers and at dependences between rTasks. Paper: §4.2.2.

Known as: bulk-synchronous supersteps, level scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rammer.ir.analysis.dependency import Dependencies
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask
from rammer.ir.tensor import Numbers
from rammer.vdevice.ipu.codegen.access import working_sets
from rammer.vdevice.ipu.spec import IpuModel

ROUND = 0.4  # share of a tile's bytes that the rTasks of one set may touch, if the plan fits


@dataclass(frozen=True)
class ComputeSets:
    """Where rTasks run: by operator, an array with each rTask's vEU, and one with its compute set."""

    veus: tuple[Numbers, ...]
    sets: tuple[Numbers, ...]
    count: int


def compute_sets(plan: ExecutionPlan, arch: IpuModel, share: float = ROUND) -> ComputeSets:
    """Assign each rTask a level: 1 + the highest level that it depends on in its part; one compute set per level.

    Parts end at global barriers and at ends of rPrograms. Inside a part, a lane's order is kept only where data depends
    on it: independent rTasks of a vEU share its tile's workers. If they hold more than `share` of the tile's bytes,
    they run in several rounds.
    """
    counts = [k.num_rtasks for k in plan.kernels]
    veus = [np.zeros(n, np.int64) for n in counts]
    parts = [np.zeros(n, np.int64) for n in counts]
    first = 0
    for program in plan.programs:
        most = 0
        for veu, lane in enumerate(program.lanes):
            part = 0
            for slot in lane:
                if isinstance(slot, RTask):
                    n, rtask = slot.uid
                    veus[n][rtask], parts[n][rtask] = veu, first + part
                else:
                    part += 1
            most = max(most, part)
        first += most + 1
    levels = [np.zeros(n, np.int64) for n in counts]
    dependencies = Dependencies(plan.graph, plan.kernels)
    for n in range(len(counts)):
        for producer, pairs in dependencies.edges(n):
            reader, writer = pairs[:, 0], pairs[:, 1]
            same = parts[n][reader] == parts[producer][writer]
            if same.any():
                np.maximum.at(levels[n], reader[same], levels[producer][writer[same]] + 1)
    depth = max((int(lv.max(initial=0)) for lv in levels), default=0) + 1
    keys = [p * depth + lv for p, lv in zip(parts, levels, strict=True)]
    rounds = _rounds(plan, keys, veus, arch.tiles, arch.model.tile_bytes * share)
    most = max((int(r.max(initial=0)) for r in rounds), default=0) + 1
    keys = [k * most + r for k, r in zip(keys, rounds, strict=True)]
    distinct = np.unique(np.concatenate(keys)) if keys else np.zeros(0, np.int64)
    return ComputeSets(tuple(veus), tuple(np.searchsorted(distinct, k) for k in keys), len(distinct))


def _rounds(plan: ExecutionPlan, keys: list[Numbers], veus: list[Numbers], tiles: int, room: float) -> list[Numbers]:
    """Return the round of each rTask within its level and tile; a round holds at most `room` bytes there."""
    used: dict[tuple[int, int], tuple[int, int]] = {}  # (level, tile) -> (round, its bytes)
    found = []
    for kernel, key, veu in zip(plan.kernels, keys, veus, strict=True):
        mine = np.zeros(len(key), np.int64)
        sizes = working_sets(kernel).tolist()
        for rtask, where in enumerate(zip(key.tolist(), (veu % tiles).tolist(), strict=True)):
            now, nbytes = used.get(where, (0, 0))
            if nbytes and nbytes + sizes[rtask] > room:
                now, nbytes = now + 1, 0
            used[where] = now, nbytes + sizes[rtask]
            mine[rtask] = now
        found.append(mine)
    return found
