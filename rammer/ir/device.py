"""What the IR, the kernels and the scheduler may know about a device: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rammer.errors import DeviceError
from rammer.ir.instruction import Instruction


class SyncModel(Enum):
    """FINE: an rTask can wait for single rTasks of other vEUs. GLOBAL: only for all of them at once (BSP)."""

    FINE = "fine"
    GLOBAL = "global"


class Execution(Enum):
    """How the points of an rTask are computed at the same time, which decides the family of its kernels.

    SIMD: by one thread, in vectors of `lanes` elements, or one by one. SIMT: by a block of threads that share scratch
    and meet at block syncs; neighbours among them load neighbours in memory.
    """

    SIMD = "simd"
    SIMT = "simt"


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """One level of the memory hierarchy, nearest first in a spec.

    `owner` is "veu" (private) or "device" (shared); `read_gbps` is per owner, and what one vEU alone has of a shared
    level is `veu_gbps`, if that is less. `managed`: "cache" or "scratch". `usable`: the share of a cache that a plan
    can count on. `written_gbps`: what a vEU has of lines that another one has just written into this level of its own.
    """

    name: str
    nbytes: int
    owner: str = "device"
    read_gbps: float = 0.0
    managed: str = "cache"
    veu_gbps: float = 0.0
    usable: float = 1.0
    written_gbps: float = 0.0

    @property
    def usable_bytes(self) -> int:
        return int(self.nbytes * self.usable)


@dataclass(frozen=True, slots=True)
class Issue:
    """Vector instructions that a vEU begins in a cycle, cycles until a sum can be added to again (`latency`), and how
    many instructions it looks ahead for some that need not wait (`window`).

    Of SIMT an instruction is a wave's, loads and stores are transfers of its memory, and `latency` is that of loads
    from scratch. A wave stays on one of the `schedulers`; `banks`: words of 4 bytes that a transfer moves; `pending`:
    loads of arguments that a thread has under way.
    """

    arithmetic: float = 2.0
    loads: float = 2.0
    stores: float = 1.0
    latency: float = 4.0
    window: int = 256
    schedulers: int = 1
    banks: int = 32
    pending: int = 8


@dataclass(frozen=True, slots=True)
class VDeviceSpec:
    """A vDevice as data. Times are microseconds, `peak_gflops` is fp32 of one vEU.

    `massively_parallel`: one operator seldom keeps all vEUs busy, they are so many or have so many threads. Operators
    that run side by side are then worth more than larger ones: passes join none that would wait for each other.
    """

    name: str
    num_veus: int
    languages: tuple[str, ...] = ("numpy",)
    arch: str = ""
    massively_parallel: bool = False
    execution: Execution = Execution.SIMD
    lanes: int = 1  # fp32 elements of one vector register, or that a thread of SIMT loads at once; 1: no vectors
    registers: int = 16  # vector registers of a vEU (or of a thread)
    max_threads: int = 1  # of an rTask's block
    wave: int = 1  # threads that run in step
    scratch_bytes: int = 1 << 20  # local memory of a vEU that an rTask may use
    memory: tuple[MemoryLevel, ...] = ()
    sync: SyncModel = SyncModel.FINE
    peak_gflops: float = 1.0
    issue: Issue = Issue()
    launch_us: float = 0.0  # cost of one device invocation (an rProgram)
    barrier_us: float = 0.0  # cost of one barrier-rTask whose target is done
    sync_us: float = 0.0  # cost of one block sync, of SIMT
    load_us: float = 0.0  # until data from main memory are there, if threads of SIMT wait for them
    instructions: tuple[Instruction, ...] = ()  # beside those that every language has
    direct_bytes: int | None = None  # inputs and outputs from so many on stay where the caller has them; None: none
    updates: bool = True  # whether rTasks can store where data say: state is then changed in place
    precision: str = "fp32"  # that kernels may use: "tf32" and "bf16" round operands of products

    def __post_init__(self) -> None:
        if self.max_threads > 1 and self.execution is Execution.SIMD:
            raise DeviceError(
                f"vDevice {self.name!r} has blocks of {self.max_threads} threads, and one thread for an rTask (SIMD)",
                hint="say execution=Execution.SIMT, or leave max_threads out",
            )

    @property
    def own_cache(self) -> int:
        """Bytes of the farthest cache that a vEU has for itself; a usual size if the spec does not say."""
        return next((m.nbytes for m in reversed(self.memory) if m.owner == "veu"), 1 << 20)

    @property
    def precisions(self) -> tuple[str, ...]:
        """Those of products of float32 that it offers."""
        return tuple(dict.fromkeys(("fp32", *(i.precision for i in self.instructions))))

    @property
    def multipliers(self) -> list[Instruction]:
        """Instructions for products of the precision that kernels may use, the fastest first."""
        allowed = [i for i in self.instructions if i.multiplies and i.precision in ("fp32", self.precision)]
        return sorted(allowed, key=lambda i: -i.gain)

    @property
    def copies_later(self) -> Instruction | None:
        """What copies from memory to scratch while the thread goes on."""
        return next((i for i in self.instructions if i.copies and i.later), None)

    @property
    def folds(self) -> tuple[Instruction, ...]:
        """Instructions by which threads of a wave combine what they hold."""
        return tuple(i for i in self.instructions if i.folds)

    def level(self, name: str) -> MemoryLevel | None:
        return next((m for m in self.memory if m.name == name), None)
