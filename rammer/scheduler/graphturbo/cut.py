"""Describe a network split into instances: its groups, the split of each, and the rKernels that suit them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rammer.cost.residency import levels
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.scheduler.graphturbo.in_parts import InParts
from rammer.scheduler.graphturbo.instances import Instance
from rammer.scheduler.graphturbo.network import Network, step_of
from rammer.scheduler.graphturbo.split import LayerGroup, Split, axes_of
from rammer.scheduler.policy import Problem
from rammer.scheduler.select import Option, PriceTable

# Fraction of a cache that an instance may fill: then three fifths of its first lines are still resident at its end, as
# caches evict at random (cost/residency.py). A quarter would need more instances than rKernels can be split into.
CACHED = 0.5


class Cut(NamedTuple):
    """A network in groups of operators, each split so that an instance fits into some memory.

    `bound`: each instance along the outermost axis (some images) runs on one vEU, neighbours on the same one. Then vEUs
    do not wait for each other's results.
    """

    what: str
    groups: Sequence[LayerGroup]
    splits: Sequence[Split | None]
    bound: bool = False

    def is_bound(self, group: int, num_veus: int) -> bool:
        """Return whether each instance of a group runs on one vEU."""
        split = self.splits[group]
        return bool(self.bound and split and split.parts.get(0, 1) >= num_veus)

    def veu_of(self, instance: Instance, num_veus: int) -> int | None:
        """Return the vEU of an instance, or None if its rTasks may run anywhere."""
        split = self.splits[instance.group]
        if split is None or not self.is_bound(instance.group, num_veus):
            return None
        outer = split.parts[0]
        return instance.part * outer // split.factor * num_veus // outer

    def in_parts(self, found: InParts) -> Cut | None:
        """Return the same cut for the graph in parts, or None.

        That requires instances that have a vEU each, and parts that lie inside of instances.
        """
        if not self.bound:
            return None
        group_of = {n: at for at, group in enumerate(self.groups) for n in group.layers}
        results = {group.result for group in self.groups}
        for parted in found.groups:
            if len({group_of[n] for n in parted.operators}) > 1 or not results.isdisjoint(parted.operators):
                return None
        place = {n: at for group in self.groups for at, n in enumerate(group.layers)}
        place |= {n: place[parted.operators[-1]] for parted in found.groups for n in parted.operators}

        def layers(group: LayerGroup) -> tuple[int, ...]:
            numbers = sorted((place[n], number) for n in group.layers for number in found.numbers[n])
            return tuple(number for _, number in numbers)

        groups = [replace(group, layers=layers(group)) for group in self.groups]
        return self._replace(what=f"{self.what}, {parts_note(found)}", groups=groups)


def parts_note(found: InParts) -> str:
    return f"groups in parts: {', '.join(str(len(parts)) for parts in found.parts)}"


def distinct(cuts: Iterable[Cut]) -> list[Cut]:
    found = {(tuple(g.layers for g in c.groups), tuple(c.splits), c.bound): c for c in reversed(list(cuts))}
    return list(reversed(found.values()))


def local_memories(spec: VDeviceSpec) -> dict[str, int]:
    """Return the memories closer than main memory, and the bytes of an instance that each holds, over all vEUs."""
    caches = [m for m, written in levels(spec) if not written and m.managed == "cache"]
    rooms = {m.name: int(CACHED * m.usable_bytes) * (spec.num_veus if m.owner == "veu" else 1) for m in caches[:-1]}
    return rooms or {"the vEUs' own memory": spec.l2.nbytes * spec.num_veus}


def fine_options(
    problem: Problem, prices: PriceTable, network: Network, groups: Sequence[LayerGroup], splits: Sequence[Split | None]
) -> tuple[dict[int, list[Option]], dict[int, int]]:
    """Return, per operator, the rKernels no coarser than its group's split, and the number of instances."""
    found: dict[int, list[Option]] = {}
    factors: dict[int, int] = {}
    for group, split in zip(groups, splits, strict=True):
        factor = split.factor if split else 1
        cuts = [(axes_of(network, group, axis), count) for axis, count in split.parts.items()] if split else []
        for n in group.layers:
            options = prices.fitting(problem.graph.operators[n].operation)
            for axes, parts in cuts:
                if (axis := axes.get(n)) is not None:
                    finest = min(step_of(o.kernel, axis) for o in options)
                    extent = network.layers[n].shape[axis]
                    options = [o for o in options if step_of(o.kernel, axis) <= max(finest, extent // parts)]
            found[n], factors[n] = options, factor
    return found, factors


def least(
    options: Mapping[int, Sequence[Option]], factors: Mapping[int, int], cut: Cut, spec: VDeviceSpec
) -> dict[int, RKernel]:
    """Return, per operator, the rKernel that takes the least time over all instances."""
    bound = {n for at, group in enumerate(cut.groups) if cut.is_bound(at, spec.num_veus) for n in group.layers}

    def us(n: int, option: Option) -> float:
        return option.work_us / spec.num_veus if n in bound else _instances_us(option, factors[n], spec)

    return {n: min(some, key=lambda o: (us(n, o), o.kernel.num_rtasks)).kernel for n, some in options.items()}


def _instances_us(option: Option, factor: int, spec: VDeviceSpec) -> float:
    """Return the µs of all instances, one after the other, if all vEUs share each of them."""
    rounds = -(-option.kernel.num_rtasks // (factor * spec.num_veus))
    return factor * rounds * (option.rtask_us + spec.barrier_us)
