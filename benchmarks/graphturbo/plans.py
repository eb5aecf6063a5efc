"""Draw plans of the paper's networks for the STCP920's spec, from layer by layer to searched, and count moved bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.graphturbo.binding import bound
from benchmarks.graphturbo.device import NEAR_KIB, byte_ms, computing_ms, memories, times
from benchmarks.graphturbo.networks import NETWORKS
from benchmarks.graphturbo.scratchpad import Memories, Transfers
from benchmarks.graphturbo.search import ORDERS, Paper, by_rules, priced, searched
from benchmarks.graphturbo.simulated import SimulatedNetwork
from benchmarks.graphturbo.slices import Step, producers_of, slices
from benchmarks.graphturbo.transfers import (
    Costs,
    Rooms,
    Timeline,
    Transfer,
    held,
    least,
    moved_alike,
    play,
    transfers_of,
)
from benchmarks.graphturbo.transfers import searched as searched_timeline
from rammer.scheduler.graphturbo.split import group_of

BEST_BATCH = {  # Table 2: of a cluster, TVM's and GraphTurbo's
    "ResNet-50": (2, 16),
    "BERT-128": (4, 8),
    "BERT-256": (2, 4),
    "BERT-384 large": (1, 2),
    "BERT-512": (1, 2),
    "MobileNet-v2": (2, 32),
    "DenseNet-121": (4, 8),
}
SCOPES = {  # Table 3: GraphTurbo's tensors in DDR, LLB and L1; ours with so many KiB of a core
    "ResNet-50, sums apart": (16, 1280, (1, 11, 284)),
    "BERT-128": (8, 1280, (1, 0, 305)),
    "BERT-256": (4, 1024, (1, 110, 240)),
    "BERT-384 large": (2, 1280, (1, 75, 967)),
    "BERT-512": (2, 1280, (1, 76, 337)),
    "MobileNet-v2": (32, 1280, (0, 3, 608)),
    "DenseNet-121": (8, 1024, (0, 3, 389)),
}
BATCHES = (1, 2, 4, 8, 16, 32)
PART = 512 << 10  # bytes that are carried at once: weights need not come as a whole
LEVELS = ("main", "shared", "near")


WAYS = ("layers", "shared", "near", "rules", "search")


def ways(network: SimulatedNetwork, room: Memories, wanted: Sequence[str] = WAYS) -> dict[str, Paper]:
    """Plans of one network: whole layers with results in main memory (as TVM does), in shared memory, and in local
    memory; instances by the paper's rules; and instances by search."""
    groups = [group_of(network, n) for n in range(len(network.layers))]

    def whole(room: Memories) -> Paper:
        return priced(network, groups, [None] * len(groups), room, paper=True)

    makers: dict[str, Callable[[], Paper]] = {
        "layers": lambda: whole(room._replace(near=0, shared=0)),
        "shared": lambda: whole(room._replace(near=0)),
        "near": lambda: whole(room),
        "rules": lambda: by_rules(network, room),
        "search": lambda: searched(network, room),
    }
    return {way: makers[way]() for way in wanted}


def scopes(plan: Paper) -> tuple[int, ...]:
    """Return how many results, or pieces of them, are in main, shared and local memory."""
    count = Counter(plan.moved.levels.values())
    return tuple(count[level] for level in LEVELS)


def copies(network: SimulatedNetwork, plan: Paper) -> tuple[int, Mapping[str, int]]:
    """Return the concatenations, and copies by kind, that binding instances to cores adds (Algorithm 4)."""
    parts = slices(network, plan.groups, plan.splits)
    order = [parts[n] for n in ORDERS[plan.order](producers_of(parts))]
    bindings = bound(order, memories().cores)
    return bindings.concats, dict(sorted(Counter(move.kind for move in bindings.moves).items()))


def numbers(name: str, batch: int, kib: int = NEAR_KIB) -> dict[str, Any]:
    """Return what the book keeps of a network's plans: milliseconds, megabytes, memories of results, copies."""
    network, room = NETWORKS[name](batch), memories(kib)
    found = {}
    plans = ways(network, room)
    for way, plan in plans.items():
        took = times(network, plan.moved)
        found[way] = {
            "in_turn_ms": _digits(took.in_turn),
            "ahead_ms": _digits(took.ahead),
            "main_mb": _digits((plan.moved.main + plan.moved.weights) / 1e6),
            "shared_mb": _digits(plan.moved.shared / 1e6),
            "scopes": list(scopes(plan)),
        }
    concats, moves = copies(network, plans["rules"])
    return {
        "computing_ms": _digits(times(network, Transfers()).computing),
        "least_mb": _digits(network.least_bytes / 1e6),
        "concats": concats,
        "copies": sum(moves.values()),
        "ways": found,
    }


def stages(name: str, batch: int, kib: int = NEAR_KIB) -> dict[str, Any]:
    """Return for each group of the plan by rules: layers, instances, and milliseconds of computing and of moving.

    Milliseconds are those of this plan, and of a plan layer by layer.
    """
    network, room = NETWORKS[name](batch), memories(kib)
    found = ways(network, room, ("layers", "rules"))
    groups = found["rules"].groups
    moved = {way: _by_layer(network, plan) for way, plan in found.items()}
    each: dict[str, Any] = {
        "groups": [len(group.layers) for group in groups],
        "instances": [split.factor if split else 1 for split in found["rules"].splits],
        "computing_ms": [_digits(times(network, Transfers(), layers=group.layers).computing) for group in groups],
    }
    for way, by_layer in moved.items():
        sums = [sum((by_layer[n] for n in group.layers), np.zeros(3)) for group in groups]
        each[way] = [_digits(times(network, Transfers(*bytes_), layers=()).moving) for bytes_ in sums]
    return each


def _by_layer(network: SimulatedNetwork, plan: Paper) -> list[NDArray[np.float64]]:
    """Return the bytes of tensors and weights that each layer moves through shared and through main memory."""
    layer_of = [step.makes.piece[1] for step in steps_of(network, plan)]
    moved = [np.zeros(3) for _ in network.layers]
    for move in plan.moved.moves:
        column = 0 if move.memory == "shared" else 2 if move.kind == "weights" else 1
        moved[layer_of[move.step]][column] += move.nbytes
    return moved


def timeline(network: SimulatedNetwork, plan: Paper, room: Memories, ahead: int | None = None) -> Timeline:
    """Return the times of steps and transfers in milliseconds: the best found, or all transfers `ahead` steps early."""
    found, costs, lie = transfers_of_plan(network, plan), costs_of(network, plan), held_by(network, plan)
    if ahead is None:
        return searched_timeline(found, lie, room, costs)
    return play(found, moved_alike(found, Rooms(lie, room), ahead), costs)


def timeline_bound(network: SimulatedNetwork, plan: Paper) -> float:
    """Return a lower bound of all timelines, in milliseconds."""
    return least(transfers_of_plan(network, plan), costs_of(network, plan))


def costs_of(network: SimulatedNetwork, plan: Paper) -> Costs:
    """Return the milliseconds of steps, and of a byte."""
    return Costs([computing_ms(step.mflop) for step in steps_of(network, plan)], byte_ms())


def held_by(network: SimulatedNetwork, plan: Paper) -> dict[str, list[int]]:
    """Return the bytes that its steps need in each memory."""
    return held(steps_of(network, plan), plan.moved)


def transfers_of_plan(network: SimulatedNetwork, plan: Paper) -> list[Transfer]:
    """Return the moves of a plan, in parts."""
    return transfers_of(steps_of(network, plan), plan.moved, PART)


def steps_of(network: SimulatedNetwork, plan: Paper) -> list[Step]:
    """Return the steps of a plan, in order."""
    parts = slices(network, plan.groups, plan.splits)
    return [step for n in ORDERS[plan.order](producers_of(parts)) for step in parts[n].steps]


def _digits(value: float) -> float:
    return float(f"{value:.5g}")
