"""Describe a device to the IR, the kernels and the scheduler, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import exp, inf

from rammer.errors import DeviceError
from rammer.ir.instruction import Instruction
from rammer.moved import renamed

NUMERICS = ("fast", "strict")
ROUNDS = 16  # of Newton's method, from below: exact to the last digit where a loop is a hundredth more than fits


class SyncModel(Enum):
    """How vEUs wait. FINE: for single rTasks of other vEUs. GLOBAL: only for all vEUs at once (BSP)."""

    FINE = "fine"
    GLOBAL = "global"


class Execution(Enum):
    """How the points of an rTask run in parallel, which decides the family of its kernels.

    SIMD: one thread, in vectors of `lanes` elements, or one by one. SIMT: a block of threads that share scratch and
    meet at block syncs; adjacent threads load adjacent elements.
    """

    SIMD = "simd"
    SIMT = "simt"


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """One level of the memory hierarchy. A spec lists the level closest to a vEU first.

    `owner`: "veu" (private), "group" (one for each `group` vEUs) or "device" (shared by all). Rates are an owner's.
    `veu_gbps`: what one vEU alone reads of a shared level, if that is less. `write_gbps`: rate of stores, with all
    traffic that they cause; 0: as for reads. `latency_us`: until a line of `line_bytes` arrives, where SIMT threads
    wait for it. `managed`: "cache" or "scratch". `usable`: share of a cache that a plan can count on. `written_gbps`:
    rate at which a vEU gets lines that another one has just written, into this level of its own. `handover_us`: of a
    hand-over between two vEUs of a group, by a message into the reader's part of this level; 0: none.
    """

    name: str
    nbytes: int
    owner: str = "device"
    read_gbps: float = 0.0
    managed: str = "cache"
    veu_gbps: float = 0.0
    usable: float = 1.0
    written_gbps: float = 0.0
    write_gbps: float = 0.0
    latency_us: float = 0.0
    line_bytes: int = 64
    group: int = 0
    handover_us: float = 0.0

    @property
    def usable_bytes(self) -> int:
        return int(self.nbytes * self.usable)

    def kept(self, touched: float) -> float:
        """Return the part of `touched` bytes that this level still holds when a loop comes to them again.

        1 if all bytes fit. Else it is the stable root r of this equation, random replacement in a loop over all of them
        (`cost/residency.py` follows the same law from rTask to rTask):

            r = exp(-(1 - r) * touched / usable bytes)

        Only bytes that were missing evict others.
        """
        if touched <= self.usable_bytes:
            return 1.0
        if not self.usable_bytes:
            return 0.0
        turns, share = touched / self.usable_bytes, 0.0
        for _ in range(ROUNDS):
            left = exp((share - 1.0) * turns)
            share += (left - share) / (1.0 - turns * left)
        return share

    def busy_us(self, stores: bool = False) -> float:
        """Return the µs for which a byte read (or stored) occupies one instance of this level; 0 if unknown."""
        gbps = (stores and self.read_gbps and self.write_gbps) or self.read_gbps
        return 1e-3 / gbps if gbps else 0.0

    def sharing(self, veus: int) -> int:
        """Return how many of `veus` vEUs share one instance."""
        return {"veu": 1, "group": min(self.group or veus, veus)}.get(self.owner, veus)


@dataclass(frozen=True, slots=True)
class Issue:
    """Instruction throughput of a vEU.

    `arithmetic`, `loads`, `stores`: vector instructions that begin per cycle. `latency`: cycles until a sum can be
    added to again. `window`: how many instructions it looks ahead for ready ones.

    On SIMT an instruction is a subgroup's, loads and stores are transfers of the vEU's memory, and `latency` is that of
    loads from scratch. `banks`: words of 4 bytes that a transfer moves. `pending`: words of arguments that a thread has
    in flight.
    """

    arithmetic: float = 2.0
    loads: float = 2.0
    stores: float = 1.0
    latency: float = 4.0
    window: int = 256
    banks: int = 32
    pending: int = 32


@renamed(
    wave="subgroup_size", succession="in_place", direct="no_winograd", doubles="has_float64", reads_once="non_temporal"
)
@dataclass(frozen=True, slots=True)
class VDeviceSpec:
    """A vDevice as data. Times are in microseconds."""

    name: str
    num_veus: int
    languages: tuple[str, ...] = ("numpy",)
    arch: str = ""
    execution: Execution = Execution.SIMD
    lanes: int = 1  # fp32 elements of one vector register, or of one load of a SIMT thread; 1: no vectors
    masks: bool = False  # whether part of a vector is loaded and stored as fast as a whole one
    registers: int = 16  # vector registers of a vEU (or of a thread)
    max_threads: int = 1  # of an rTask's block
    subgroup_size: int = 1  # threads of a subgroup, which run in step
    scratch_bytes: int = 1 << 20  # local memory of a vEU that an rTask may use
    memory: tuple[MemoryLevel, ...] = ()
    sync: SyncModel = SyncModel.FINE
    clock_ghz: float = 1.0
    issue: Issue = Issue()
    run_us: float = 0.0  # cost of a run, besides its launches
    launch_us: float = 0.0  # cost of one device invocation (an rProgram)
    calls: bool = False  # vEU 0 is the calling thread: an rProgram on it alone costs no launch
    barrier_us: float = 0.0  # from the end of the last slot that a barrier-rTask waits for, to its own end
    passed_us: float = inf  # cost of a barrier-rTask whose slots have completed before, if that is less
    sync_us: float = 0.0  # cost of one block sync, of SIMT
    start_us: float = 0.0  # time of an rTask that does nothing, of SIMT
    instructions: tuple[Instruction, ...] = ()  # in addition to those that every language has
    direct_bytes: int | None = None  # ports of at least so many bytes stay in the caller's memory; None: none
    in_place: bool = False  # whether a result may reuse the memory of an operand in place, element by element
    resident: str = ""  # level (scratch of a vEU) in which results may stay between its rTasks; "": none
    uncached: bool = False  # what vEUs hand over lies in memory that no cache holds back, so a release only waits
    kept_reads: int = 0  # operators that must read a part of a constant on a vEU for it to stay there; 0: none stays
    non_temporal: bool = False  # prefetching lines as read once (caches evict them first) costs no time
    has_float64: bool = True  # whether float64 is computed as such, else as float32
    has_int64: bool = True  # whether int64 is computed as such, else as int32
    updates: bool = True  # whether rTasks can store where data say: state is then changed in place
    precision: str = "fp32"  # that kernels may use: "tf32" and "bf16" round operands of products
    numerics: str = "fast"  # "strict": only kernels that are `RKernel.faithful`
    no_winograd: bool = False  # exclude kernels whose sums come from sums that cancel, as in Winograd's form

    def __post_init__(self) -> None:
        if self.max_threads > 1 and self.execution is Execution.SIMD:
            raise DeviceError(
                f"vDevice {self.name!r} has blocks of {self.max_threads} threads, and one thread for an rTask (SIMD)",
                hint="say execution=Execution.SIMT, or leave max_threads out",
            )

    @property
    def cycle_us(self) -> float:
        return 1e-3 / self.clock_ghz

    @property
    def width(self) -> int:
        """Multiply-adds of one vector instruction: of a vector's lanes, or of a subgroup's threads."""
        return self.subgroup_size if self.execution is Execution.SIMT else self.lanes

    @property
    def peak_gflops(self) -> float:
        """Peak fp32 GFLOP/s of one vEU; a multiply-add counts as two."""
        return 2 * self.width * self.issue.arithmetic * self.clock_ghz

    def launched_us(self, others: bool) -> float:
        """Return the cost of launching an rProgram in µs; `others`: vEUs other than vEU 0 have slots in it."""
        return self.launch_us if others or not self.calls else 0.0

    @property
    def least_barrier_us(self) -> float:
        """Cost of a barrier-rTask that need not wait."""
        return min(self.passed_us, self.barrier_us)

    @property
    def cluster(self) -> MemoryLevel | None:
        """The level in which the vEUs of a group hand over by messages, or None."""
        return next((m for m in self.memory if m.handover_us), None)

    def handover_us(self, a: int, b: int) -> float:
        """Return the cost of a hand-over from vEU `a` to vEU `b`: less inside a group of vEUs than between groups."""
        cluster = self.cluster
        return cluster.handover_us if cluster and a // cluster.group == b // cluster.group else self.barrier_us

    @property
    def load_us(self) -> float:
        """Latency of a load from beyond the vEU as a SIMT thread sees it, in µs.

        0 for SIMD: a lone core computes meanwhile.
        """
        shared = (m.latency_us for m in self.memory if m.owner != "veu" and m.managed == "cache")
        return next(shared, 0.0) if self.execution is Execution.SIMT else 0.0

    def byte_us(self, level: MemoryLevel, veus: int, stores: bool = False) -> float:
        """Return the µs per byte that one of `veus` vEUs reads from a level or stores to it; 0 if unknown."""
        share, least = (level.read_gbps / level.sharing(n) for n in (veus, self.num_veus))
        gbps = min(share, level.veu_gbps or least)
        if stores and level.write_gbps and level.read_gbps:
            gbps *= level.write_gbps / level.read_gbps
        return 1e-3 / gbps if gbps else 0.0

    @property
    def line_bytes(self) -> int:
        """Bytes of a line of the first cache level."""
        return next((m.line_bytes for m in self.memory if m.managed == "cache"), 64)

    @property
    def private(self) -> bool:
        """Return whether vEUs have only private scratch: no cache, and no memory that others could read."""
        return any(m.owner == "veu" for m in self.memory) and all(m.managed == "scratch" for m in self.memory)

    @property
    def is_core(self) -> bool:
        """Check whether a vEU is one thread behind caches, as a CPU's core is: operands stream through its registers.

        It then pays to unpack weights in registers, and to run several stages of an operator in one long rTask.
        """
        return self.execution is Execution.SIMD and not self.private

    @property
    def keeps_weights(self) -> bool:
        """Check whether weights stay in a vEU's own memory from one reader to the next.

        Reading them again then costs less than waiting for other vEUs. So passes do not merge operators that would wait
        for each other, as the steps of a recurrent network's layers do.
        """
        return self.private or self.kept_reads > 0

    @property
    def l1(self) -> MemoryLevel:
        """The first private level of memory (L1 of a CPU); scratch if the spec has none."""
        return next((m for m in self.memory if m.owner == "veu"), MemoryLevel("scratch", self.scratch_bytes, "veu"))

    @property
    def l2(self) -> MemoryLevel:
        """The last private level of memory (L2 of a CPU); scratch if the spec has none."""
        return next((m for m in reversed(self.memory) if m.owner == "veu"), self.l1)

    def room(self, level: MemoryLevel, streamed: float = 0.0) -> float:
        """Return how many bytes stay in a level while `streamed` other bytes pass between two uses of them."""
        return max(level.usable_bytes - streamed, 0.0)

    def holds(self, level: MemoryLevel, resident: float, streamed: float) -> bool:
        """Check whether `resident` bytes stay in a level while `streamed` other bytes pass between two uses of them.

        True if the price finds all of them there again: `level.kept(resident + streamed)` is 1.
        Example: a panel of weights stays in L1 for all rows if the panel and the rows of one register block fit it.
        """
        return resident <= self.room(level, streamed)

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions for products of float32 that the device offers."""
        return tuple(dict.fromkeys(("fp32", *(i.precision for i in self.instructions))))

    @property
    def multipliers(self) -> list[Instruction]:
        """Instructions for products that `precision` and `numerics` allow, the fastest first."""
        allowed = [i for i in self.instructions if i.multiplies and i.precision in ("fp32", self.precision)]
        return sorted([i for i in allowed if self.numerics != "strict" or not i.splits], key=lambda i: -i.gain)

    @property
    def copies_later(self) -> Instruction | None:
        """Instruction that copies from memory to scratch asynchronously, or None."""
        return next((i for i in self.instructions if i.copies and i.later), None)

    @property
    def folds(self) -> tuple[Instruction, ...]:
        """Instructions by which threads of a subgroup combine what they hold."""
        return tuple(i for i in self.instructions if i.folds)

    def level(self, name: str) -> MemoryLevel | None:
        return next((m for m in self.memory if m.name == name), None)
