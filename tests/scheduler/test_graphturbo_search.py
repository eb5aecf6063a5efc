"""GraphTurbo on paper: slices and what they read, memories that programs fill, the search for cuts."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from benchmarks.graphturbo.binding import bound, plain_binding, redistributed
from benchmarks.graphturbo.device import memories as memories_of
from benchmarks.graphturbo.networks import CASES, NETWORKS, Net, densenet121, mobilenet_v2, resnet50
from benchmarks.graphturbo.scratchpad import Memories, run
from benchmarks.graphturbo.search import by_rules, searched
from benchmarks.graphturbo.simulated import BoxRead, SimulatedNetwork
from benchmarks.graphturbo.slices import needed, producers_of, slices
from rammer.ir.analysis.parts import Box
from rammer.scheduler.graphturbo.grouping import grouped
from rammer.scheduler.graphturbo.instances import depth_first
from rammer.scheduler.graphturbo.network import Axes
from rammer.scheduler.graphturbo.split import Split, Splitter, group_of

KIB = 1 << 10
POINTS: Axes = (0, 1, 2, 3)


# ---- slices


@pytest.mark.parametrize("network", [resnet50(4), densenet121(2), mobilenet_v2(4)], ids=["resnet", "dense", "mobile"])
@pytest.mark.parametrize("grid", [False, True])
def test_pieces_of_producers_cover_exactly_what_is_read(network: SimulatedNetwork, grid: bool) -> None:
    """Also of rows, with halos; a slice computes of a layer what it needs, and all of them the whole result."""
    splitter = Splitter(network, 8, 500 * KIB, grid=grid)
    groups = grouped(network, splitter)
    splits = [s if (s := splitter.best(g)) else Split(1, 7, 2) for g in groups]
    found = slices(network, groups, splits)
    made = {step.makes.piece: step.makes.nbytes for one in found for step in one.steps}
    for one in found:
        wanted = needed(network, one.group, one.box)
        for step in one.steps:
            n = step.makes.piece[1]
            assert step.makes.nbytes == network.nbytes_of(n, wanted[n])
            layer = network.layers[n]
            read = defaultdict(int)
            for (_, source), nbytes in step.reads:
                read[source] += nbytes
            due = defaultdict(int)
            for r in layer.reads:
                part = r.box(wanted[n], layer.shape, network.shape(r.source))
                due[r.source] += network.nbytes_of(r.source, part)
            assert {k: v for k, v in due.items() if v} == {k: v for k, v in read.items() if v}
            assert all(piece in made for piece, _ in step.reads if piece[1] >= 0)
    for group in groups:
        mine = [one for one in found if one.group is group]
        assert sum(made[one.name, group.result] for one in mine) == network.layers[group.result].nbytes
        assert len({one.box for one in mine}) == len(mine)


def test_an_order_is_possible() -> None:
    network = resnet50(8)
    splitter = Splitter(network, 8, 8 * 700 * KIB)
    groups = grouped(network, splitter)
    found = slices(network, groups, [splitter.best(g) for g in groups])
    producers = producers_of(found)
    order = depth_first(producers)
    place = {name: at for at, name in enumerate(order)}
    assert sorted(order) == list(range(len(found)))
    assert all(place[p] < place[n] for n, some in enumerate(producers) for p in some)


# ---- memories


def diamond(width: int) -> tuple[SimulatedNetwork, Memories]:
    """A tensor that is read at once and again at the end, beside one that is read soon."""
    net = Net(1, 1, 1, width)
    a = net.points(~0, over=False)
    b = net.points(a, over=False)
    c = net.points(b, over=False)
    d = net.points(c, b, over=False)
    net.points(d, a, over=False)
    return net.network(), Memories(1, 3 * 2 * width, 1 << 20)


def ran(network: SimulatedNetwork, memories: Memories, **options: object):  # type: ignore[no-untyped-def]
    groups = [group_of(network, n) for n in range(len(network.layers))]
    found = slices(network, groups, [None] * len(groups))
    return run(network, found, range(len(found)), memories, **options)  # type: ignore[arg-type]


def test_who_is_spilled() -> None:
    """Four tensors want to live, three fit. The longest life is a's, and the farthest next use: by both rules it is
    written to the shared memory, and read from there once."""
    network, memories = diamond(64)
    for victim in ("life", "next use"):
        moved = ran(network, memories, victim=victim)
        assert moved.spilled == 1 and moved.shared == 2 * 128 and moved.peak <= memories.near
        assert [level for (_, n), level in moved.levels.items() if n == 0] == ["shared"]
        assert moved.main == 2 * 128  # the input and the result
    nowhere = ran(network, memories._replace(shared=0))
    assert nowhere.main == 4 * 128 and nowhere.shared == 0
    assert ran(network, memories._replace(near=4 * 128)).spilled == 0


def test_longest_life_and_next_use_differ() -> None:
    """A tensor that lives long but is read next stays under Belady's rule, and not under the paper's."""
    net = Net(1, 1, 1, 64)
    a = net.points(~0, over=False)
    b = net.points(~0, over=False)
    c = net.points(b, over=False)
    d = net.points(c, a, over=False)
    e = net.points(d, a, over=False)
    f = net.points(e, c, over=False)
    net.points(f, b, over=False)
    network = net.network()
    memories = Memories(1, 4 * 128, 1 << 20)
    life, belady = (ran(network, memories, victim=v, keeps=False).shared for v in ("life", "next use"))
    assert belady <= life


@pytest.mark.parametrize(
    ("name", "batch", "kib"), [("ResNet-50", 8, 640), ("BERT-128", 2, 256), ("DenseNet-121", 2, 300)]
)
def test_what_is_moved_by_definition(name: str, batch: int, kib: int) -> None:
    """Never more near than there is room for; never less moved than weights, inputs and results."""
    network, memories = NETWORKS[name](batch), memories_of(kib)
    plan = by_rules(network, memories)
    assert plan.moved.peak <= memories.near
    assert plan.moved.main + plan.moved.weights >= network.least_bytes
    moves = [(move.kind == "weights", move.memory, move.nbytes) for move in plan.moved.moves]
    assert sum(nbytes for weights, memory, nbytes in moves if memory == "main" and not weights) == plan.moved.main
    assert sum(nbytes for weights, _, nbytes in moves if weights) == plan.moved.weights
    assert sum(nbytes for _, memory, nbytes in moves if memory == "shared") == plan.moved.shared


# ---- search

AT_THE_BOUND = {0, 1, 2, 3, 6, 7, 8}  # of the cases: weights once, and the network's inputs and results


@pytest.mark.parametrize("case", range(len(CASES)))
def test_search_moves_no_more_than_the_rules(case: int) -> None:
    name, batch, kib = CASES[case]
    network, memories = NETWORKS[name](batch), memories_of(kib)
    rules, search = by_rules(network, memories), searched(network, memories)
    assert search.cost <= rules.cost
    assert search.moved.main + search.moved.weights <= rules.moved.main + rules.moved.weights
    if case in AT_THE_BOUND:
        assert search.moved.main + search.moved.weights <= network.least_bytes * (1 + 1e-6)
    assert sorted(n for g in search.groups for n in g.layers) == list(range(len(network.layers)))


# ---- bindings


def test_plain_bindings_of_figure_9() -> None:
    assert plain_binding((2, 28, 28), 8)[:2] == (2, 4)
    assert plain_binding((4, 28, 28), 8)[:2] == (4, 2)
    assert plain_binding((2, 28, 28, 512), 8) == (2, 4, 1, 1)
    assert plain_binding((4, 28, 28, 512), 8) == (4, 2, 1, 1)
    assert redistributed((2, 4, 1, 1), (4, 2, 1, 1)) == (2, 2, 1, 1)
    assert plain_binding((7, 7, 64), 8) == (1, 1, 8)


def images_of_two() -> tuple[SimulatedNetwork, list[Split | None]]:
    """Figure 9: slices of two images each, joined to one of four."""
    net = Net(4, 28, 28, 512)
    net.points(net.points(~0, over=False), over=False)
    return net.network(), [Split(1, 2, 0), Split(1, 1, 0)]


def test_figure_9() -> None:
    """Four images bound [4, 2] want two of them bound [2]; plain bindings of these use all eight cores, so they take
    those, and what they make goes through the shared memory."""
    network, splits = images_of_two()
    found = slices(network, [group_of(network, n) for n in (0, 1)], splits)
    result = bound(found, 8)
    first, second, whole = (one.name for one in found)
    assert result.bindings == {whole: (4, 2, 1, 1), first: (2, 4, 1, 1), second: (2, 4, 1, 1)}
    assert result.concats == 1
    assert {(m.kind, m.producer) for m in result.moves} == {("copy", first), ("copy", second)}


@pytest.mark.parametrize("batch", [2, 8])
def test_bindings_are_possible(batch: int) -> None:
    """Parts are equal, no more than cores, and who reads near data has them as it wants."""
    network = resnet50(batch)
    plan = by_rules(network, Memories(8, 8 * 700 * KIB, 8 << 20))
    found = slices(network, plan.groups, plan.splits)
    result = bound(found, 8)
    for one in found:
        counts = result.bindings[one.name]
        assert int(np.prod(counts)) <= 8
        assert all((high - low) % count == 0 for (low, high), count in zip(one.box, counts, strict=True))
    assert all(not result.near[m.producer] for m in result.moves if m.kind == "copy")


def test_reads_in_proportion() -> None:
    """Without windows, a part of the one axis reads the same part of the other, rounded outwards."""
    read = BoxRead(0, (0, None))
    boxes: list[Box] = [((low, low + 3), (0, 5)) for low in (0, 3, 6)]
    assert [read.box(box, (9, 5), (6, 4)) for box in boxes] == [((k, k + 2), (0, 4)) for k in (0, 2, 4)]
