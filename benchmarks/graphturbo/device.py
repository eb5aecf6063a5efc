"""The STCP920 of the paper as data, for simulation only: nothing of ours runs on it, some of its numbers are inferred.

Of it are said (§5): 4 clusters, 8 cores in each, 64 KB of near memory for a core, 8 MB that a cluster shares, 136 GB/s.
64 KB cannot be what the paper's scheduler counted with: its four stages of ResNet-50 need 640 KiB, and most of what
it reports is met at 1280 KiB. That is inferred, and so is the peak, of which nothing is published.
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
    """What a cluster's cores have near together, and share."""
    _, shared, main = spec.memory
    return Memories(spec.num_veus, spec.num_veus * near_kib << 10, shared.nbytes, main.read_gbps / shared.read_gbps)


class Times(NamedTuple):
    """Milliseconds of a run by the spec's rates: computing, moving, both in turn, and with loads ahead (§4.4)."""

    computing: float
    moving: float

    @property
    def in_turn(self) -> float:
        return self.computing + self.moving

    @property
    def ahead(self) -> float:
        """Weights come during the layer before: whichever takes longer is what it takes. No less than a bound."""
        return max(self.computing, self.moving)


def computing_ms(mflop: float, spec: VDeviceSpec = STCP920) -> float:
    """Milliseconds of work that keeps every core busy."""
    return mflop / (spec.num_veus * spec.peak_gflops)


def byte_ms(spec: VDeviceSpec = STCP920) -> dict[Far, float]:
    """Milliseconds that a byte takes from or to a memory that is not near."""
    _, shared, main = spec.memory
    return {"shared": 1e-6 / shared.read_gbps, "main": 1e-6 / main.read_gbps}


def times(
    network: SimulatedNetwork, moved: Transfers, spec: VDeviceSpec = STCP920, layers: Sequence[int] | None = None
) -> Times:
    """What a plan takes, or some layers of it, every core busy whenever it computes; work done twice is not counted."""
    work = sum(network.layers[n].mflop for n in (range(len(network.layers)) if layers is None else layers))
    byte = byte_ms(spec)
    moving = (moved.main + moved.weights) * byte["main"] + moved.shared * byte["shared"]
    return Times(computing_ms(work, spec), moving)
