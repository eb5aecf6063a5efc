"""The execution plan: what the scheduler decided, complete enough to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.program import RProgram
from rammer.ir.tensor import TensorId


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Byte offsets of every memory owner that is no constant, in one arena.

    Offsets are multiples of `alignment`. Constants have memory of their own.
    """

    offsets: Mapping[TensorId, int]
    arena_bytes: int
    alignment: int = 64

    def __repr__(self) -> str:
        return f"<MemoryPlan: {len(self.offsets)} tensors in {self.arena_bytes} bytes>"


class Price(NamedTuple):
    """Of one rTask of an rKernel: microseconds with its operands near, and what it stalls for those that are not.

    Stalls are in units of what the spec's rates say: less where lines are on their way while the kernel computes.
    """

    near_us: float
    shared_stall: float = 1.0  # for what is in other caches than the vEU's own
    memory_stall: float = 1.0  # for what is in main memory


@dataclass(frozen=True)
class ExecutionPlan:
    """rPrograms that run one after another, the rKernel of each operator, and where tensors lie. Paper: §3."""

    graph: Graph
    spec: VDeviceSpec
    kernels: tuple[RKernel, ...]  # by operator number
    programs: tuple[RProgram, ...]
    policy: str = ""
    memory: MemoryPlan | None = None
    rtask_us: Mapping[RKernel, float] = field(default_factory=dict)  # what the policy believed
    prices: Mapping[RKernel, Price] = field(default_factory=dict)  # where operands lie considered
    notes: tuple[str, ...] = ()  # why kernels and merges were chosen

    @property
    def num_rtasks(self) -> int:
        return sum(k.num_rtasks for k in self.kernels)

    def __repr__(self) -> str:
        parts = f"{self.num_rtasks} rTasks in {len(self.programs)} rPrograms"
        return f"<ExecutionPlan of {self.graph!r} by {self.policy!r}: {parts}>"
