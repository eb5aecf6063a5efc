"""Simulate the traffic of a sliced network between software-managed memories: local, shared, and main.

A result stays in local memory until its last reader is done. What does not fit is spilled to shared memory, else to
main memory. Weights come from main memory, and stay in shared memory while tensors leave space. Paper: GraphTurbo §4.3,
§4.4. Known as: scratchpad allocation with Belady eviction.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from benchmarks.graphturbo.simulated import SimulatedNetwork
from benchmarks.graphturbo.slices import Piece, Slice, SlicePart, Step

Victim: TypeAlias = Literal["life", "next use"]
Far: TypeAlias = Literal["shared", "main"]
SHARED_COST = 0.25  # if rates are unknown
NEVER = 1 << 60


class Memories(NamedTuple):
    """Capacity in bytes of the local memories of all cores together, and of the memory that they share.

    `shared_cost`: cost of a byte from shared memory relative to one from main memory.
    """

    cores: int
    near: int
    shared: int
    shared_cost: float = SHARED_COST


class Move(NamedTuple):
    """A transfer of bytes from or to a memory, at a step. `kept`: a loaded piece stays in local memory for later steps.

    A "spill" of a step's own result is written as it is computed; a spill of another piece makes space before the step.
    """

    step: int
    kind: Literal["load", "weights", "spill", "result"]
    memory: Far
    nbytes: int
    piece: Piece
    kept: bool = False


@dataclass(slots=True)
class Transfers:
    """Bytes moved from and to each memory, the peak of local memory, and where every result was placed.

    `held`: by step, bytes in local memory and bytes of tensors in shared memory.
    """

    shared: int = 0
    main: int = 0
    weights: int = 0
    peak: int = 0
    levels: dict[Piece, str] = field(default_factory=dict)
    spilled: int = 0
    moves: list[Move] = field(default_factory=list)
    held: list[tuple[int, int]] = field(default_factory=list)

    def cost(self, memories: Memories) -> float:
        """Return the bytes of main memory traffic, with shared memory's weighted by `shared_cost`."""
        return self.main + self.weights + self.shared * memories.shared_cost


def run(
    network: SimulatedNetwork,
    slices: Sequence[Slice],
    order: Iterable[int],
    memories: Memories,
    victim: Victim = "next use",
    *,
    keeps: bool = True,
) -> Transfers:
    """Run slices in an order and return what they move.

    `victim` selects what is spilled: the longest lifetime (§4.3), or the latest next use (Belady). `keeps`: a loaded
    piece that is read again stays in local memory if it fits.
    """
    machine = _Machine(network, [step for n in order for step in slices[n].steps], memories, victim, keeps)
    for at in range(len(machine.steps)):
        machine.step(at)
    return machine.moved


class _Machine:
    """State between two steps. `copied`: pieces that also exist in a farther memory, so evicting them moves nothing."""

    def __init__(
        self, network: SimulatedNetwork, steps: Sequence[Step], memories: Memories, victim: Victim, keeps: bool
    ) -> None:
        self.steps, self.moved = steps, Transfers()
        self._network, self._memories, self._victim, self._keeps = network, memories, victim, keeps
        self._uses: dict[Piece, list[int]] = defaultdict(list)  # steps that read a piece, descending
        self._born: dict[Piece, int] = {}
        self._size: dict[Piece, int] = {}
        for at, step in enumerate(steps):
            self._born[step.makes.piece], self._size[step.makes.piece] = at, step.makes.nbytes
            for part in step.reads:
                self._uses[part.piece].append(at)
        self._last = {piece: uses[-1] for piece, uses in self._uses.items()}
        for uses in self._uses.values():
            uses.reverse()
        self._near: dict[Piece, int] = {}
        self._near_bytes = 0
        self._shared: dict[Piece, int] = {}
        self._shared_bytes = 0
        self._copied: set[Piece] = set()
        self._weights: OrderedDict[int, int] = OrderedDict()
        self._at = 0
        self._weight_bytes = 0

    def step(self, at: int) -> None:
        step, now = self.steps[at], {part.piece for part in self.steps[at].reads}
        self._at = at
        for part in step.reads:
            self._uses[part.piece].pop()
            self._read(part, now, at)
        self._weigh(step.makes.piece)
        near = self._make(step, now, at)
        self.moved.peak = max(self.moved.peak, near)
        self.moved.held.append((near, self._shared_bytes))
        for piece in now:
            if self._last[piece] == at:
                self._drop(piece)

    def _move(
        self, kind: Literal["load", "spill", "result"], memory: Far, part: SlicePart, *, kept: bool = False
    ) -> None:
        if memory == "shared":
            self.moved.shared += part.nbytes
        else:
            self.moved.main += part.nbytes
        self.moved.moves.append(Move(self._at, kind, memory, part.nbytes, part.piece, kept))

    def _read(self, part: SlicePart, now: set[Piece], at: int) -> None:
        piece = part.piece
        if piece in self._near:
            return
        memory: Far = "shared" if piece in self._shared else "main"
        size = self._size.get(piece, part.nbytes)  # for a network's input, the bytes that are read
        again = self._keeps and self._last[piece] > at and size == part.nbytes
        kept = again and self._fits(size, now, self._next(piece))
        if kept:
            self._near[piece] = size
            self._near_bytes += size
            self._copied.add(piece)
        self._move("load", memory, part, kept=kept)

    def _weigh(self, piece: Piece) -> None:
        """Load a step's weights from main memory unless shared memory has them; evict the least recently used ones."""
        _, layer = piece
        if not (nbytes := self._network.layers[layer].weights):
            return
        if layer in self._weights:
            self._weights.move_to_end(layer)
        else:
            self.moved.weights += nbytes
            self.moved.moves.append(Move(self._at, "weights", "main", nbytes, piece))
            self._weights[layer] = nbytes
            self._weight_bytes += nbytes
        self._shed_weights()

    def _shed_weights(self) -> None:
        while self._weights and self._weight_bytes > self._memories.shared - self._shared_bytes:
            self._weight_bytes -= self._weights.popitem(last=False)[1]

    def _make(self, step: Step, now: set[Piece], at: int) -> int:
        """Place a step's result; return the bytes in local memory during the step."""
        piece, nbytes = step.makes
        if self._network.layers[piece[1]].is_result:
            self.moved.levels[piece] = "main"
            self._move("result", "main", step.makes)
            if piece not in self._last:
                return self._near_bytes
            self._copied.add(piece)
        over = step.takes_over
        reused = self._near[over] if over in self._near and self._last[over] == at else 0
        self._near_bytes -= reused
        if self._fits(nbytes, now, 0):
            self._near[piece] = nbytes
            self._near_bytes += nbytes
            self.moved.levels.setdefault(piece, "near")
        else:
            self._spill(piece, nbytes)
        near = self._near_bytes
        self._near_bytes += reused
        return near

    def _fits(self, nbytes: int, now: set[Piece], wanted: int) -> bool:
        """Make space for a piece that is next read at step `wanted`, never by evicting what is read earlier."""
        room = self._memories.near
        while self._near_bytes + nbytes > room:
            others = [p for p in self._near if p not in now and (not wanted or self._next(p) > wanted)]
            if not others or nbytes > room:
                return False
            out = max(others, key=self._life if self._victim == "life" else self._next)
            size = self._near.pop(out)
            self._near_bytes -= size
            if out not in self._copied:
                self._spill(out, size)
        return True

    def _life(self, piece: Piece) -> int:
        return self._last[piece] - self._born.get(piece, 0)

    def _next(self, piece: Piece) -> int:
        uses = self._uses[piece]
        return uses[-1] if uses else NEVER

    def _spill(self, piece: Piece, nbytes: int) -> None:
        self.moved.spilled += 1
        self._copied.add(piece)
        if self._shared_bytes + nbytes <= self._memories.shared:
            self._shared[piece] = nbytes
            self._shared_bytes += nbytes
            self._move("spill", "shared", SlicePart(piece, nbytes))
            self.moved.levels[piece] = "shared"
            self._shed_weights()
        else:
            self._move("spill", "main", SlicePart(piece, nbytes))
            self.moved.levels[piece] = "main"

    def _drop(self, piece: Piece) -> None:
        self._near_bytes -= self._near.pop(piece, 0)
        self._shared_bytes -= self._shared.pop(piece, 0)
