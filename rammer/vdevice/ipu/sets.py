"""rPrograms as compute sets: a global barrier or a dependence between rTasks starts another. Paper: §4.2.2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rammer.ir.dependency import Dependencies
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class ComputeSets:
    """Where rTasks run: by operator, an array per rTask of its vEU, and of its compute set."""

    veus: tuple[Numbers, ...]
    sets: tuple[Numbers, ...]
    count: int


def compute_sets(plan: ExecutionPlan) -> ComputeSets:
    """One set per level: level of an rTask = 1 + the highest level of what it needs, within its part of the plan.

    Parts are what lies between global barriers and ends of rPrograms. Inside one, the order of a lane is kept only as
    far as data asks for it: independent rTasks of a vEU share its tile's workers.
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
    distinct = np.unique(np.concatenate(keys)) if keys else np.zeros(0, np.int64)
    return ComputeSets(tuple(veus), tuple(np.searchsorted(distinct, k) for k in keys), len(distinct))
