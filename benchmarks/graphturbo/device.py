"""Describe the paper's STCP920 as data, for simulation only. rammer does not run on it, and some numbers are inferred.

The paper says (§5): 4 clusters of 8 cores, 64 KB of local memory for each core, 8 MB that a cluster shares, 136 GB/s.
The paper's scheduler cannot have counted with 64 KB: its four stages of ResNet-50 need 640 KiB, and 1280 KiB reproduce
most of what it reports. So we infer 1280 KiB. The peak is inferred, too; it was not published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.graphturbo.scratchpad import Far, Memories, Transfers
from benchmarks.graphturbo.simulated import SimulatedNetwork
from rammer.ir.device import Issue, MemoryLevel, VDeviceSpec

CLUSTERS = 4
NEAR_KIB = 1280  # of a core: inferred
STCP920 = VDeviceSpec(
    "stcp920",
    num_veus=8,
    arch="one of four clusters, simulated",
    scratch_bytes=NEAR_KIB << 10,
    clock_ghz=1.0,  # assumed, as is the rate of multiply-adds, of numbers of two bytes: 4 Tflop/s of a core
    issue=Issue(arithmetic=2000.0),
    memory=(
        MemoryLevel("LB", NEAR_KIB << 10, "veu", managed="scratch"),
        MemoryLevel("LLB", 8 << 20, managed="scratch", read_gbps=272.0),  # eight times the share of DDR: assumed
        MemoryLevel("DDR", 16 << 30, read_gbps=136.0 / CLUSTERS),
    ),
)


def memories(near_kib: int = NEAR_KIB, spec: VDeviceSpec = STCP920) -> Memories:
    """Return the bytes of all local memories of a cluster, and of its shared memory."""
    _, shared, main = spec.memory
    return Memories(spec.num_veus, spec.num_veus * near_kib << 10, shared.nbytes, main.read_gbps / shared.read_gbps)


class Times(NamedTuple):
    """Milliseconds of a run by the spec's rates: computing, moving, both in turn, and with prefetch (§4.4)."""

    computing: float
    moving: float

    @property
    def in_turn(self) -> float:
        return self.computing + self.moving

    @property
    def ahead(self) -> float:
        """Prefetch weights during the layer before: the longer of both counts. This is a lower bound."""
        return max(self.computing, self.moving)


def computing_ms(mflop: float, spec: VDeviceSpec = STCP920) -> float:
    """Return the milliseconds of work that keeps every core busy."""
    return mflop / (spec.num_veus * spec.peak_gflops)


def byte_ms(spec: VDeviceSpec = STCP920) -> dict[Far, float]:
    """Return the milliseconds for a byte from or to a shared or main memory."""
    _, shared, main = spec.memory
    return {"shared": 1e-6 / shared.read_gbps, "main": 1e-6 / main.read_gbps}


def times(
    network: SimulatedNetwork, moved: Transfers, spec: VDeviceSpec = STCP920, layers: Sequence[int] | None = None
) -> Times:
    """Return the times of a plan, or of some of its layers. All cores compute at once; repeated work is not counted."""
    work = sum(network.layers[n].mflop for n in (range(len(network.layers)) if layers is None else layers))
    byte = byte_ms(spec)
    moving = (moved.main + moved.weights) * byte["main"] + moved.shared * byte["shared"]
    return Times(computing_ms(work, spec), moving)
