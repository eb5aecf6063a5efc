"""Where operands are while rTasks run: against caches of single pieces, and by hand."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from math import exp

import numpy as np
import pytest
from jobs import Job, make_problem
from numpy.typing import NDArray

from rammer.cost.estimate import fetching
from rammer.cost.pieces import LEAST_BYTES, Address, Region, Touch, touches, touches_alone
from rammer.cost.residency import MOST_TURNS, Residency, levels
from rammer.cost.statics import statics_us, streamed_bytes
from rammer.frontend.builder import GraphBuilder
from rammer.ir.analysis.dependency import read_elements, written_elements
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.operator import Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, TensorType
from rammer.kernels import candidates
from rammer.passes import optimize

PIECE = 64
OWN, SHARED = 6, 20  # pieces


def spec_of(num_veus: int) -> VDeviceSpec:
    memory = (
        MemoryLevel("L1", PIECE, "veu", 500.0),
        MemoryLevel("L2", 2 * OWN * PIECE, "veu", 100.0, usable=0.5, written_gbps=5.0),
        MemoryLevel("LDS", 1 << 20, "veu", 900.0, "scratch"),
        MemoryLevel("L3", SHARED * PIECE, "device", 50.0),
        MemoryLevel("DRAM", 1 << 30, "device", 10.0),
    )
    return VDeviceSpec("made up", num_veus, memory=memory)


def touch(reads: list[int], writes: list[int]) -> Touch:
    pieces = np.array([*reads, *writes])
    return Touch(pieces, np.full(len(pieces), float(PIECE)), np.array(writes, np.int64))


def whole(pieces: int) -> NDArray[np.int64]:
    return np.full(pieces, PIECE)


def test_levels_are_the_last_own_cache_that_of_others_and_what_is_shared() -> None:
    found = [(level.name, written) for level, written in levels(spec_of(2))]
    assert found == [("L2", False), ("L2", True), ("L3", False), ("DRAM", False)]


@pytest.mark.parametrize("turns", [MOST_TURNS, 0.4])
@pytest.mark.parametrize("seed", range(5))
def test_single_pieces_are_expected_to_be_where_they_are(
    seed: int, turns: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, piece by piece: exp(-bytes that found no room since / size) is left of what was in a cache."""
    monkeypatch.setattr("rammer.cost.residency.MOST_TURNS", turns)
    rng = random.Random(seed)
    caches = Residency(spec_of(3), whole(40))
    own, shared, writer = [Single(OWN) for _ in range(3)], Single(SHARED), {}
    for _ in range(300):
        veu = rng.randrange(3)
        if rng.random() < 0.03:
            caches.flush_private(veu)
            own[veu] = Single(OWN)
        chosen = rng.sample(range(40), rng.randrange(1, 5))
        cut = rng.randrange(len(chosen) + 1)
        want = np.zeros((2, 4))  # of what is read, and of what is written
        lefts = []
        missed = own[veu].take([(piece, 1.0) for piece in chosen])
        for n, (piece, left) in enumerate(zip(chosen, missed, strict=True)):
            want[int(n >= cut), 0] += 1 - left
            if (other := writer.get(piece, veu)) != veu:
                there = left * own[other].share(piece)
                want[int(n >= cut), 1] += there
                left -= there
            lefts.append((piece, left))
        for piece in chosen[cut:]:
            for other in {0, 1, 2} - {veu}:
                own[other].drop(piece)
            writer[piece] = veu
        for n, ((_, left), far) in enumerate(zip(lefts, shared.take(lefts), strict=True)):
            want[int(n >= cut), 2:] += left - far, far
        got = caches.fetch(veu, touch(chosen[:cut], chosen[cut:]))
        assert got == pytest.approx(PIECE * want, abs=1e-6)
        assert want.sum(axis=1) == pytest.approx([cut, len(chosen) - cut])


class Single:
    """A cache of some pieces, one after the other: a share of each is there."""

    def __init__(self, size: int) -> None:
        self.size, self.shares = size, dict[int, float]()
        self.held = 0.0  # what there is no room for pushes out a part of everything

    def share(self, piece: int) -> float:
        return self.shares.get(piece, 0.0)

    def take(self, wanted: list[tuple[int, float]]) -> list[float]:
        """What is not there of a part of each piece; it comes in."""
        missed = [part * (1 - self.share(piece)) for piece, part in wanted]
        before = {piece: self.share(piece) for piece, _ in wanted}
        for (piece, _), came in zip(wanted, missed, strict=True):
            pushed = max(came - (self.size - self.held), 0.0)
            self.shares = {p: s * exp(-pushed / self.size) for p, s in self.shares.items()}
            self.shares[piece] = before[piece] + came
            self.held = min(self.held + came, self.size)
        return missed

    def drop(self, piece: int) -> None:
        self.held = max(self.held - self.shares.pop(piece, 0.0), 0.0)


@pytest.mark.parametrize(("pieces", "least", "most"), [(3, 0.0, 0.0), (6, 0.0, 0.0), (9, 0.3, 0.7), (30, 0.95, 1.0)])
def test_loops_lose_more_the_larger_they_are(pieces: int, least: float, most: float) -> None:
    """Of pieces read over and over: what fits stays, of one and a half caches some is lost, of five nearly all."""
    caches = Residency(spec_of(1), whole(pieces))
    for _ in range(50):
        near = sum(caches.fetch(0, touch([p], []))[0, 0] for p in range(pieces))
    assert least <= 1 - near / (PIECE * pieces) <= most


@pytest.mark.parametrize("tenths", [0, 5, 10, 11, 15, 20, pytest.param(40, marks=pytest.mark.slow)])
def test_what_a_loop_keeps_is_known_without_going_round(tenths: int) -> None:
    """`MemoryLevel.kept` against a loop over many small pieces, followed until nothing changes."""
    pieces = 1000 * tenths // 10
    memory = (MemoryLevel("L2", 1000 * PIECE, "veu", 100.0), MemoryLevel("DRAM", 1 << 30, "device", 10.0))
    caches = Residency(VDeviceSpec("made up", 1, memory=memory), whole(pieces))
    for _ in range(60):
        near = sum(caches.fetch(0, touch([p], []))[0, 0] for p in range(pieces))
    assert memory[0].kept(PIECE * pieces) == pytest.approx(near / (PIECE * pieces) if pieces else 1.0, abs=0.01)
    assert replace(memory[0], nbytes=0).kept(PIECE * (pieces + 1)) == 0.0


@pytest.mark.parametrize(("resident", "streamed"), [(0, 0), (400, 300), (400, 400), (799, 2), (900, 0)])
def test_bytes_stay_if_the_price_finds_all_of_them_again(resident: int, streamed: int) -> None:
    """`holds` against a loop that uses the resident pieces once a turn, while others stream."""
    level = MemoryLevel("L2", 1000 * PIECE, "veu", 100.0, usable=0.8)
    spec = VDeviceSpec("made up", 1, memory=(level, MemoryLevel("DRAM", 1 << 30, "device", 10.0)))
    pieces = resident + streamed
    caches = Residency(spec, whole(pieces))
    for _ in range(3):
        near = sum(caches.fetch(0, touch([p], []))[0, 0] for p in range(pieces))
    assert spec.holds(level, resident * PIECE, streamed * PIECE) == (near == PIECE * pieces)
    assert spec.holds(level, resident * PIECE, streamed * PIECE) == (level.kept(PIECE * pieces) == 1.0)


def test_what_is_a_thousand_times_a_cache_leaves_its_end_there() -> None:
    memory = (MemoryLevel("L2", PIECE, "veu", 100.0), MemoryLevel("DRAM", 1 << 30, "device", 10.0))
    caches = Residency(VDeviceSpec("made up", 1, memory=memory), whole(2000))
    far = caches.fetch(0, touch([*range(2000)], []))
    assert far[0].tolist() == [0.0, 0.0, 2000 * PIECE]
    near = [caches.fetch(0, touch([piece], []))[0, 0] / PIECE for piece in (1999, 0)]
    assert near == pytest.approx([1.0, 0.0])


def test_what_another_veu_wrote_comes_from_there_once() -> None:
    large = replace(spec_of(2), memory=tuple(replace(m, nbytes=1 << 40) for m in spec_of(2).memory))
    caches = Residency(large, whole(10))
    for veu, reads, writes, want in (
        (0, [], [1, 2], [0, 0, 0, 2]),
        (1, [1, 2], [], [0, 2, 0, 0]),
        (1, [1, 2], [], [2, 0, 0, 0]),
        (0, [], [1], [1, 0, 0, 0]),
        (1, [1, 2], [], [1, 1, 0, 0]),
    ):
        moved = caches.fetch(veu, touch(reads, writes)).sum(axis=0).tolist()
        assert moved == pytest.approx([PIECE * n for n in want], abs=1e-3)


def test_parts_of_a_piece_come_one_by_one() -> None:
    """A column of a matrix is near again once the whole matrix was read, and not because its neighbour was."""
    large = replace(spec_of(1), memory=tuple(replace(m, nbytes=1 << 40) for m in spec_of(1).memory))
    caches = Residency(large, whole(1))
    quarter = Touch(np.array([0]), np.array([PIECE / 4]), np.zeros(0, np.int64))
    near = [caches.fetch(0, quarter)[0, 0] / (PIECE // 4) for _ in range(12)]
    assert near[0] == 0.0 and near[1] == pytest.approx(0.25) and near[-1] > 0.9
    assert sorted(near) == near


def test_a_group_shares_a_cache_and_its_rate() -> None:
    """Of four vEUs each two have an L3: what the one half has read is far from the other."""
    l3 = MemoryLevel("L3", 1 << 20, "group", 40.0, group=2)
    spec = VDeviceSpec("two groups", 4, memory=(l3, MemoryLevel("DRAM", 1 << 30, "device", 10.0)))
    caches = Residency(spec, whole(2))
    assert [caches.fetch(veu, touch([0], []))[0].tolist() for veu in (0, 1, 2, 3)] == [
        [0, PIECE],
        [PIECE, 0],
        [0, PIECE],
        [PIECE, 0],
    ]
    assert [spec.byte_us(l3, veus) for veus in (1, 2, 4)] == [
        1e-3 / 20
    ] * 3  # of no rate for one alone its share counts


def test_without_caches_everything_is_in_main_memory() -> None:
    spec = VDeviceSpec("plain", 2, memory=(MemoryLevel("DRAM", 1 << 30, "device", 10.0),))
    assert Residency(spec, whole(4)).fetch(1, touch([0, 1], [2])).tolist() == [[2 * PIECE], [PIECE]]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("apart", [False, True], ids=["together", "in pieces"])
def test_pieces_count_every_byte_once(axis: int, apart: bool) -> None:
    """Against byte by byte; where tensors begin anywhere, the same for all rTasks or not."""
    op = Operations(OPS).define("concat", (TensorType((75, 29)), TensorType((75, 29))), attributes(axis=axis))
    kernel, *_ = candidates(op, replace(spec_of(2), languages=("c",), lanes=8, registers=16, clock_ghz=2.0))
    region, rtasks = Region(1 << 21, 7), range(kernel.num_rtasks)
    bases = [[1000, *(3000 + 64 * n for n in rtasks[1:])] if apart else 1000, 100_004, 300_000]
    in_use = np.zeros(region.end, np.int64)
    found = touches(kernel, [Address(region, base) for base in bases], in_use)
    elements = [read_elements(kernel, 0), read_elements(kernel, 1), written_elements(kernel, 0)]
    assert kernel.num_rtasks > 1
    of_all: list[dict[int, Counter[int]]] = [{}, {}, {}]  # of each operand, the bytes of each place of it
    for rtask, touched in enumerate(found):
        want: list[Counter[int]] = []
        for base, used, places in zip(bases, elements, of_all, strict=True):
            begin = base[rtask] if isinstance(base, list) else base
            bytes_of = [byte for low, high in (used[rtask] * 4 + begin).tolist() for byte in range(low, high)]
            want.append(Counter(7 + byte // region.size for byte in bytes_of))
            places.setdefault(begin, Counter()).update(dict.fromkeys(bytes_of, 1))
        assert touched.pieces.tolist() == [piece for one in want for piece in sorted(one)]
        assert touched.nbytes.tolist() == [one[piece] for one in want for piece in sorted(one)]
        assert touched.written.tolist() == sorted(want[2])
    together: Counter[int] = Counter()
    for places in of_all:
        largest: Counter[int] = Counter()
        for read in places.values():
            largest |= Counter(7 + byte // region.size for byte in read)
        together += largest
    assert dict(enumerate(in_use.tolist())) == {n: together[n] for n in range(region.end)}
    assert Region(0, 3).end == 3 and Region(LEAST_BYTES + 1, 3).end == 5


def test_rtasks_of_a_kernel_touch_all_its_operands() -> None:
    problem = make_problem([Job("a", ((2, 4.0),))], spec_of(2))
    (operation,) = {op.operation for op in problem.graph.operators}
    kernel = problem.candidates[operation][0]
    touched, in_use = touches_alone(kernel)
    written = np.concatenate([t.written for t in touched])
    assert len(touched) == kernel.num_rtasks and written.max() < len(in_use)
    sizes = sum(t.nbytes for t in (*kernel.input_types(), *operation.outputs))
    assert sum(t.nbytes.sum() for t in touched) >= sizes == in_use.sum()


@pytest.mark.parametrize("rows", [1, 3, 128])
def test_of_a_table_as_much_is_touched_as_is_read(rows: int) -> None:
    """Whichever rows these are: an equal part of each piece, and not the whole table."""
    types = TensorType((1000, 48)), TensorType((rows,), DType.I64)
    op = Operations(OPS).define("gather", types, attributes(axis=0))
    kernel, *_ = candidates(op, replace(spec_of(2), languages=("c",), lanes=8, registers=16, clock_ghz=2.0))
    touched, in_use = touches_alone(kernel)
    wanted = rows * (48 * 4 + 8 + 48 * 4)
    pieces = -(-1000 * 48 * 4 // LEAST_BYTES)
    assert wanted <= in_use.sum() <= wanted + pieces
    assert wanted <= sum(t.nbytes.sum() for t in touched) <= wanted + len(touched) * (pieces + rows * 8)


def test_a_table_costs_the_rows_that_are_looked_up() -> None:
    """Ten times the rows of a table cost nothing: neither where it is fetched, nor as bytes that evict others."""
    memory = MemoryLevel("L2", 1 << 20, "veu", 100.0), MemoryLevel("DRAM", 1 << 40, "device", 10.0)
    spec = replace(spec_of(2), memory=memory, languages=("c",), lanes=8, registers=16, clock_ghz=2.0)
    found = []
    for height in (100_000, 1_000_000):
        b = GraphBuilder()
        table = b.constant(np.zeros((height, 48), np.float32))
        rows = b.add("gather", table, b.input("rows", (31,), DType.I64), axis=0)
        b.output(rows, "out")
        graph = optimize(b.build(), spec)
        kernel, *_ = candidates(graph.operators[0].operation, spec)
        found.append((streamed_bytes(graph), statics_us(kernel, spec, 1 << 30), fetching(kernel, spec)[1]))
    (nbytes, colder_us, fetched_us), higher = found
    assert (nbytes, colder_us, fetched_us) == higher and nbytes == 2 * 31 * 48 * 4
    assert 0 < colder_us * kernel.num_rtasks <= 31 * 48 * 4 * spec.byte_us(memory[-1], 2)
    assert fetched_us < 2.0
