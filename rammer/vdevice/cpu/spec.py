"""Describe a CPU as data for kernels and policies: vEUs, vector width, caches, rates."""

from __future__ import annotations

import os

from rammer.ir.device import Issue, MemoryLevel, VDeviceSpec
from rammer.vdevice.cpu.host import ARCHES, Arch, Host
from rammer.vdevice.cpu.tune.calibrate import Calibration

DIRECT_BYTES = 8 << 10  # size of an input or output from which passing its address is faster than copying it
L2_SHARE = 0.8  # of the private cache that a plan's data may use: code, stacks and tables take the rest
ONCE = 0.8  # use non-temporal prefetches if their rate is this much of normal reads': Zen 5 has 1.1, Intel 0.4
L3_SHARE = 0.5  # of the shared cache that a plan may use if unmeasured: other processes use it, too


def default_rates(here: Host, lanes: int) -> Calibration:
    """Estimate the rates of uncalibrated cores from clock and vector width."""
    line = here.ghz * lanes * 4  # bytes of one vector per cycle
    return Calibration(
        cores=here.num_cores,
        gflops=round(here.ghz * lanes * 4, 1),  # two units for multiply-adds
        own_gbps=round(line, 1),
        shared_gbps=round(10 * here.ghz, 1),
        shared_all_gbps=round(10 * here.ghz * here.num_cores, 1),
        memory_gbps=12.0,
        memory_all_gbps=40.0,
        memory_once_gbps=12.0 if here.name.startswith("AMD") else 4.0,  # as Zen 5, and as Emerald Rapids
        shared_share=L3_SHARE,
        written_gbps=round(4 * here.ghz, 1),
        handover_us=0.25,  # measured: another core sees a counter, and the first line written: 0.05-0.4 µs
        ghz=here.ghz,
        own_write_gbps=round(line / 2, 1),  # a stored line is also written back: twice the traffic
        shared_all_write_gbps=round(5 * here.ghz * here.num_cores, 1),
        memory_all_write_gbps=20.0,
    )


def make_spec(arch: Arch, num_veus: int, here: Host, measured: Calibration | None = None) -> VDeviceSpec:
    """Return the spec for kernels and policies, with the machine's `measured` rates if present."""
    l1, l2, l3 = here.caches
    found = measured or default_rates(here, arch.lanes)
    widest = max((a.lanes for a in ARCHES.values() if here.runs(a)), default=arch.lanes)  # calibration used these
    gflops = found.gflops * min(arch.lanes / widest, 1.0) if measured else found.gflops
    begun = gflops / (2 * arch.lanes * found.ghz)  # multiply-adds per cycle; two issue with two loads and a store
    vector_gbps = 4 * arch.lanes * begun * found.ghz
    group = here.l3_cores if here.l3_cores < here.num_cores else 0  # cores that share an L3; 0: all
    # Simulating more cores than the machine has, assume an L3 slice for each; groups just become more numerous.
    slices = group / here.num_cores if group else max(1.0, num_veus / found.cores)
    return VDeviceSpec(
        name="cpu",
        num_veus=num_veus,
        languages=("c",),
        arch=arch.name,
        lanes=arch.lanes,
        masks=arch.lanes == 16,  # AVX-512's
        registers=arch.registers,
        instructions=arch.instructions,
        scratch_bytes=max(l2 // 2, 64 << 10),
        memory=(
            MemoryLevel("L1", l1, "veu", round(vector_gbps, 1), write_gbps=round(vector_gbps / 2, 1)),
            MemoryLevel(
                "L2",
                l2,
                "veu",
                found.own_gbps,
                usable=L2_SHARE,
                written_gbps=found.written_gbps,
                write_gbps=found.own_write_gbps,
            ),
            MemoryLevel(
                "L3",
                l3,
                "group" if group else "device",
                found.shared_all_gbps * slices,
                veu_gbps=found.shared_gbps,
                usable=found.shared_share,
                write_gbps=found.shared_all_write_gbps * slices,
                group=group,
            ),
            MemoryLevel(
                "DRAM",
                os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                "device",
                found.memory_all_gbps,
                veu_gbps=found.memory_gbps,
                write_gbps=found.memory_all_write_gbps,
            ),
        ),
        clock_ghz=found.ghz,
        issue=Issue(begun, begun, begun / 2),
        launch_us=2 * found.handover_us,  # spinning threads see the call, then the caller sees their end
        calls=True,
        barrier_us=found.handover_us,
        direct_bytes=DIRECT_BYTES,
        in_place=True,
        non_temporal=found.memory_once_gbps >= ONCE * found.memory_gbps,
    )
