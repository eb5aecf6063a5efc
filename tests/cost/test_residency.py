"""Where operands are while rTasks run: against caches of single pieces, and by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rammer.cost.pieces import LEAST_BYTES, Region, Touch, touches_alone
from rammer.cost.residency import Residency, levels
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.testing.problems import Job, make_problem

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
    return Touch(pieces, np.full(len(pieces), PIECE), np.array(writes, np.int64), PIECE * len(pieces))


def test_levels_are_the_last_own_cache_that_of_others_and_what_is_shared() -> None:
    found = [(level.name, written) for level, written in levels(spec_of(2))]
    assert found == [("L2", False), ("L2", True), ("L3", False), ("DRAM", False)]


@pytest.mark.parametrize("seed", range(5))
def test_queues_of_single_pieces_agree(seed: int) -> None:
    """The same by a list per cache: newest first, cut at its capacity, entries of written pieces removed elsewhere."""
    rng = random.Random(seed)
    caches = Residency(spec_of(3), 40)
    own: list[list[int]] = [[], [], []]
    shared: list[int] = []
    writer: dict[int, int] = {}
    for _ in range(300):
        veu = rng.randrange(3)
        chosen = rng.sample(range(40), rng.randrange(1, 5))
        cut = rng.randrange(len(chosen) + 1)
        reads, writes = chosen[:cut], chosen[cut:]
        want = [0, 0, 0, 0]
        came, farther = [], []
        for piece in chosen:
            if piece in own[veu][:OWN]:
                want[0] += PIECE
                continue
            came.append(piece)
            other = writer.get(piece, veu)
            if other != veu and piece in own[other][:OWN]:
                want[1] += PIECE
            elif piece in shared[:SHARED]:
                want[2] += PIECE
            else:
                want[3] += PIECE
                farther.append(piece)
        # an entry that a write removed still takes its room until others have pushed it out
        own[veu] = [*reversed(came), *(p if p not in came else -1 for p in own[veu])]
        shared = [*reversed(farther), *(p if p not in farther else -1 for p in shared)]
        for other in {0, 1, 2} - {veu}:
            own[other] = [p if p not in writes else -1 for p in own[other]]
        writer |= dict.fromkeys(writes, veu)
        assert caches.fetch(veu, touch(reads, writes)).tolist() == want


def test_what_another_veu_wrote_comes_from_there_once() -> None:
    caches = Residency(spec_of(2), 10)
    assert caches.fetch(0, touch([], [1, 2])).tolist() == [0, 0, 0, 2 * PIECE]
    assert caches.fetch(1, touch([1, 2], [])).tolist() == [0, 2 * PIECE, 0, 0]
    assert caches.fetch(1, touch([1, 2], [])).tolist() == [2 * PIECE, 0, 0, 0]
    assert caches.fetch(0, touch([], [1])).tolist() == [PIECE, 0, 0, 0]
    assert caches.fetch(1, touch([1, 2], [])).tolist() == [PIECE, PIECE, 0, 0]


def test_without_caches_everything_is_in_main_memory() -> None:
    spec = VDeviceSpec("plain", 2, memory=(MemoryLevel("DRAM", 1 << 30, "device", 10.0),))
    assert Residency(spec, 4).fetch(1, touch([0, 1], [2])).tolist() == [3 * PIECE]


def test_pieces_count_every_byte_once() -> None:
    region = Region(1 << 20, 7)
    elements = np.array([[0, 3], [60, 70], [1000, 1001]])
    pieces, nbytes = region.touched(elements, 4, 1000)
    assert nbytes.sum() == 14 * 4 and len(set(pieces.tolist())) == len(pieces)
    size = region.size
    want: dict[int, int] = {}
    for low, high in elements.tolist():
        for byte in range(1000 + 4 * low, 1000 + 4 * high):
            want[7 + byte // size] = want.get(7 + byte // size, 0) + 1
    assert dict(zip(pieces.tolist(), nbytes.tolist(), strict=True)) == want
    assert Region(0, 3).end == 3 and Region(LEAST_BYTES + 1, 3).end == 5


def test_rtasks_of_a_kernel_touch_all_its_operands() -> None:
    problem = make_problem([Job("a", ((2, 4.0),))], spec_of(2))
    (operation,) = {op.operation for op in problem.graph.operators}
    kernel = problem.candidates[operation][0]
    touched, count = touches_alone(kernel)
    written = np.concatenate([t.written for t in touched])
    assert len(touched) == kernel.num_rtasks and written.max() < count
    sizes = sum(t.nbytes for t in (*kernel.input_types(), *operation.outputs))
    assert sum(t.total_bytes for t in touched) >= sizes
