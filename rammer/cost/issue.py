"""Microseconds of counted work on a vEU: what it issues, against what its caches are filled with, or it waits for."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

from rammer.cost.work import Issued, Work, work
from rammer.ir.device import Execution, MemoryLevel, VDeviceSpec
from rammer.ir.tile import TileProgram

LOOP_CYCLES = 0.25  # of a pass of a loop: its counter and jump mostly fit beside what it issues


def cycles(work: Work, spec: VDeviceSpec, waves: int = 1) -> float:
    """Cycles with all operands in the nearest cache; of SIMT those of all waves together."""
    own = work.own
    long = work.trips * (own.arithmetic + own.loads + own.stores) > spec.issue.window  # else sums beside it go on
    inside = sum(cycles(w, spec, waves) for w in work.inside)
    return work.trips * (pass_cycles(own, spec, work.sums and long, waves=waves) + inside)


def pass_cycles(own: Issued, spec: VDeviceSpec, sums: bool, streamed: float = 0.0, waves: int = 1) -> float:
    """Cycles of one pass of a loop, which waits for the pass before if it `sums`, loops inside apart.

    `streamed`: bytes that come from the farthest own cache meanwhile. Of SIMT all waves pass: each on its scheduler, in
    turn with others there, and it waits for what it loads by itself.
    """
    issue = spec.issue
    arithmetic = own.arithmetic + own.made / _width(spec)
    busy = max(arithmetic / issue.arithmetic, own.loads / issue.loads, own.stores / issue.stores)
    if spec.execution is Execution.SIMT:
        alone = min(waves, issue.schedulers) * busy + (issue.latency if own.loads or sums else 0.0)
        return LOOP_CYCLES + max(waves * busy, alone)
    caches = _own_caches(spec)
    if streamed and caches and caches[-1].read_gbps:
        busy = max(busy, streamed / (caches[-1].read_gbps * 1e3) / cycle_us(spec))
    return LOOP_CYCLES + (max(busy, issue.latency) if sums else busy)


def filled_bytes(work: Work, nbytes: float) -> float:
    """Bytes that come into a cache of some bytes: what stays from pass to pass of a loop comes once."""
    if not work.inside or sum(work.once.values()) <= nbytes:
        return sum(work.whole.values())
    return work.trips * sum(filled_bytes(w, nbytes) for w in work.inside)


def near_us(work: Work, spec: VDeviceSpec, threads: int = 1) -> float:
    """Microseconds of an rTask with all operands in the farthest cache of its own."""
    if spec.execution is Execution.SIMT:
        waves = -(-threads // spec.wave)
        rounds = work.rounds + ceil(work.far / spec.issue.pending)
        return cycles(work, spec, waves) * cycle_us(spec) + work.syncs * spec.sync_us + rounds * spec.load_us
    filling_us = 0.0
    for near, far in pairwise(_own_caches(spec)):
        filling_us += filled_bytes(work, near.usable_bytes) / (far.read_gbps * 1e3) if far.read_gbps else 0.0
    return max(cycles(work, spec) * cycle_us(spec), filling_us)


def alone_us(program: TileProgram, spec: VDeviceSpec) -> float:
    """Microseconds of all rTasks of one thread on vEUs that do nothing else."""
    return near_us(work(program, spec), spec) * -(-program.num_rtasks // spec.num_veus)


def cycle_us(spec: VDeviceSpec) -> float:
    """Microseconds of a cycle, in which a vEU at its peak begins as many multiply-adds as it can."""
    return 2 * _width(spec) * spec.issue.arithmetic / (max(spec.peak_gflops, 1e-9) * 1e3)


def _width(spec: VDeviceSpec) -> int:
    """Multiply-adds of an instruction."""
    return spec.wave if spec.execution is Execution.SIMT else spec.lanes


def _own_caches(spec: VDeviceSpec) -> list[MemoryLevel]:
    return [m for m in spec.memory if m.owner == "veu" and m.managed == "cache"]
