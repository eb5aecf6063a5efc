"""Hold the execution plan: what the scheduler decided, complete enough to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rammer.errors import counted
from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.program import RProgram
from rammer.ir.tensor import ALIGNMENT, TensorId


@dataclass(frozen=True, slots=True)
class Pieces:
    """A memory owner in pieces: its physical elements from firsts[k] up to firsts[k + 1] lie at byte offsets[k].

    Pieces of one owner may share bytes, as buffers of a ring do: each holds another part of the tensor at its time.
    Pieces in scratch name their vEUs, and count from the begin of that scratch.
    """

    firsts: tuple[int, ...]  # ascending, from 0
    offsets: tuple[int, ...]
    veus: tuple[int, ...] = ()  # whose scratch holds them


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Places, in bytes, of all memory owners: in one arena, whole or in pieces; or in scratch (`in_scratch`).

    Results that are `messages` also have a place in the scratch of each vEU of their writers' group, at this byte.
    An owner in scratch is accessed only by the vEUs whose scratch it is. Offsets are multiples of `alignment`; for a
    piece, this holds for the owner's element 0 as if it were contiguous with the piece. Constants have memory of their
    own.
    """

    offsets: Mapping[TensorId, int]
    arena_bytes: int
    alignment: int = ALIGNMENT
    pieces: Mapping[TensorId, Pieces] = field(default_factory=dict)
    in_scratch: Mapping[TensorId, Pieces] = field(default_factory=dict)
    messages: Mapping[TensorId, int] = field(default_factory=dict)

    def bases(self, owner: TensorId, itemsize: int, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the byte at which an owner's element 0 would be, if the owner were contiguous around each element.

        It may be negative: an rTask whose elements lie in one piece gets it as an address, and never accesses it. In
        scratch, it counts from the begin of scratch.
        """
        if (pieces := self.in_scratch.get(owner) or self.pieces.get(owner)) is None:
            return np.full(len(elements), self.offsets[owner], np.int64)
        firsts = np.array(pieces.firsts, np.int64)
        begins: NDArray[np.int64] = np.array(pieces.offsets, np.int64) - firsts * itemsize
        return begins[np.searchsorted(firsts, elements, "right") - 1]

    def __repr__(self) -> str:
        count = sum(len(p.firsts) for p in self.pieces.values())
        cut = f" and {count} pieces of {len(self.pieces)}" if count else ""
        resident = f", {len(self.in_scratch)} in scratch" if self.in_scratch else ""
        return f"<MemoryPlan: {len(self.offsets)} tensors{cut} in {self.arena_bytes} bytes{resident}>"


class States(NamedTuple):
    """Time of one rTask of an rKernel in µs, by where its operands are: private caches, shared caches, main memory."""

    warm_us: float
    shared_us: float
    cold_us: float


class Price(NamedTuple):
    """Time of one rTask of an rKernel in µs with warm operands, and its stalls for operands that are not.

    Stalls are factors of the time by the spec's rates: smaller where lines arrive while the kernel computes.
    """

    warm_us: float
    shared_stall: float = 1.0  # for operands in other caches than the vEU's own
    memory_stall: float = 1.0  # for operands in main memory


class Offer(NamedTuple):
    """A candidate with the prices by which policies choose, in µs: one rTask, alone on the device, and all rTasks.

    `roles` says in what it is the best of its operation's.
    """

    rkernel: str
    num_rtasks: int
    rtask_us: float
    alone_us: float
    work_us: float
    roles: tuple[str, ...]


@dataclass(frozen=True)
class ExecutionPlan:
    """rPrograms that run one after another, the rKernel of each operator, and places of tensors. Paper: §3."""

    graph: Graph
    spec: VDeviceSpec
    kernels: tuple[RKernel, ...]  # by operator number
    programs: tuple[RProgram, ...]
    policy: str = ""
    memory: MemoryPlan | None = None
    rtask_us: Mapping[RKernel, float] = field(default_factory=dict)  # estimates of the policy
    prices: Mapping[RKernel, Price] = field(default_factory=dict)  # by where operands lie
    notes: tuple[str, ...] = ()  # why kernels and merges were chosen
    offers: Mapping[Operation, tuple[Offer, ...]] = field(default_factory=dict, repr=False)  # for people

    @property
    def num_rtasks(self) -> int:
        return sum(k.num_rtasks for k in self.kernels)

    def __repr__(self) -> str:
        parts = f"{counted(self.num_rtasks, 'rTask')} in {counted(len(self.programs), 'rProgram')}"
        return f"<ExecutionPlan of {self.graph!r} by {self.policy!r}: {parts}>"
