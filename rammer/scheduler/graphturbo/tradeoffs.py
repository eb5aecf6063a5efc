"""Trade time against memory, operator by operator, on devices with only private memory. Beyond the paper.

An rTask holds all that it touches, beside the weights and live results on its vEU. Larger rTasks receive fewer bytes,
and smaller ones need less memory. Each operator gets the fastest rKernel that fits beside everything that is live at
that time, as T10 (SOSP'24) reconciles operators' plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rammer.ir.analysis.dependency import read_elements, written_elements
from rammer.ir.analysis.storage import constant_key
from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.remembered import remembered
from rammer.ir.tensor import TensorId
from rammer.scheduler.draft import Draft
from rammer.scheduler.policies.locality import place_by_owner
from rammer.scheduler.policies.waves import build_plan
from rammer.scheduler.policy import Problem
from rammer.scheduler.select import Option, Options, PriceTable
from rammer.scheduler.timeline import simulate

CODE = 0.9  # fraction of the remaining bytes for rTasks; the rest is for code and uneven distribution


class Tiles(NamedTuple):
    """vEUs with nothing but private memory, of so many bytes each."""

    veus: int
    nbytes: int

    @staticmethod
    def of(spec: VDeviceSpec) -> Tiles | None:
        """Return the tiles of a device, or None if it has a shared memory or caches."""
        if not spec.private:
            return None
        return Tiles(spec.num_veus, next(m.usable_bytes for m in spec.memory if m.owner == "veu"))


def rooms(graph: Graph, kernels: Sequence[RKernel], tiles: Tiles) -> list[int]:
    """Return, per operator, the bytes of a vEU that are left for its rTasks.

    Weights are always there. A result is there from its first writer's wave to its last reader's, evenly distributed.
    """
    waves = graph.wavefronts()
    when = {n: wave for wave, numbers in enumerate(waves) for n in numbers}
    known = {}
    for op, kernel in zip(graph.operators, kernels, strict=True):
        packing = dict(kernel.packing)
        for tensor, (name, kind) in zip(op.inputs, op.operation.expr.inputs, strict=True):
            root = graph.storage(tensor).root
            if root in graph.constants:
                (key, layout), _ = constant_key(graph, tensor, packing.get(name, kind.layout))
                known[key, layout] = graph.types[key].filled_bytes
    live = [sum(known.values())] * len(waves)
    for owner, (first, last) in _lives(graph, when, len(waves)).items():
        for wave in range(first, last + 1):
            live[wave] += graph.types[owner].nbytes
    return [int((tiles.nbytes - live[when[n]] / tiles.veus) * CODE) for n in range(len(graph.operators))]


def _lives(graph: Graph, when: Mapping[int, int], num_waves: int) -> dict[TensorId, tuple[int, int]]:
    """Return the first and last wave of each owner of memory.

    Inputs live from the first wave, outputs to the last.
    """
    found = dict.fromkeys(graph.inputs, (0, -1))
    for n, op in enumerate(graph.operators):
        for tensor in (*op.outputs, *op.inputs):
            root = graph.storage(tensor).root
            first, last = found.get(root, (when[n], -1))
            found[root] = min(first, when[n]), max(last, when[n])
    found |= {t: (found[t][0], num_waves - 1) for t in graph.outputs if t in found}
    return {t: span for t, span in found.items() if t not in graph.constants}


@remembered(1 << 12)
def held_bytes(kernel: RKernel) -> int:
    """Return the largest memory of an rTask: all that it touches and its scratch, without weights that only it reads.

    Such weights lie on its vEU anyway.
    """
    kinds, outputs, static = kernel.argument_types(), len(kernel.operation.outputs), kernel.operation.static
    totals = np.full(kernel.num_rtasks, kernel.scratch_bytes)
    for n, kind in enumerate(kinds):
        elements = written_elements(kernel, n) if n < outputs else read_elements(kernel, n - outputs)
        sizes = np.array([int((s[:, 1] - s[:, 0]).sum()) for s in elements.sets])[list(elements.chosen)]
        if n < outputs or not static[n - outputs] or sizes.sum() > kind.span:
            totals += sizes * kind.element_bytes
    return int(totals.max(initial=0))


def reconciled(problem: Problem, prices: PriceTable, tiles: Tiles, known: ExecutionPlan, policy: str) -> ExecutionPlan:
    """Return a plan by waves in which each operator has the fastest rKernel that fits, or else the smallest.

    Returns the known plan if it is as fast, and either all of its rKernels fit or the device confirms that its program
    does.
    """
    graph = problem.graph
    room = rooms(graph, known.kernels, tiles)
    chosen = {n: _chosen(prices.fitting(op.operation), room[n]) for n, op in enumerate(graph.operators)}
    crowded = [n for n, kernel in enumerate(known.kernels) if _held(kernel) > room[n]]
    held: dict[int, Options] = {n: prices.options(graph.operators[n].operation).only(one) for n, one in chosen.items()}
    plan = place_by_owner(build_plan(Draft(problem, prices), policy, restricted=held))
    if simulate(known).total_us <= simulate(plan).total_us and (not crowded or problem.has_room(known)):
        return known
    tight = sum(1 for n, kernel in enumerate(plan.kernels) if _held(kernel) > room[n])
    note = f"rKernels without room: {tight}, and {len(crowded)} of those that are usually taken"
    return replace(plan, notes=(note, *plan.notes))


def _held(kernel: RKernel) -> int:
    """Return `held_bytes`; 0 for foreign text, whose accesses are unknown."""
    return 0 if isinstance(kernel.body, ForeignSource) else held_bytes(kernel)


def _chosen(options: Sequence[Option], room: int) -> Option:
    fitting = [o for o in options if _held(o.kernel) <= room]
    return min(fitting, key=lambda o: o.unshared_us) if fitting else min(options, key=lambda o: _held(o.kernel))
