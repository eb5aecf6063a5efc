"""Convert counted work into microseconds on a vEU.

On SIMD devices that is the larger one of issuing, filling its caches and waiting. On SIMT devices it is their sum: with
two subgroups on a scheduler, often both wait.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil

from rammer.cost.work import Issued, Work
from rammer.ir.device import Execution, MemoryLevel, VDeviceSpec

LOOP = 0.5  # slots of the counter and jump of a pass: mostly they are issued in parallel with its body


def cycles(work: Work, spec: VDeviceSpec, waves: int = 1) -> float:
    """Return the cycles with all operands in the nearest cache; on SIMT devices of all subgroups together."""
    own = work.issued
    long = work.trips * (own.arithmetic + own.loads + own.stores) > spec.issue.window  # else other sums overlap
    inside = sum(cycles(w, spec, waves) for w in work.loops)
    return work.trips * (pass_cycles(own, spec, work.sums and long, waves=waves) + inside)


def pass_cycles(own: Issued, spec: VDeviceSpec, sums: bool, streamed: float = 0.0, waves: int = 1) -> float:
    """Return the cycles of one pass of a loop without the loops inside of it.

    It waits for the pass before if it `sums`. `streamed`: bytes that come from the last private cache meanwhile. On
    SIMT devices all subgroups (`waves`) pass: they share the rates, and wait once for loads from scratch or for a sum.
    """
    issue = spec.issue
    arithmetic, loop = own.arithmetic + own.made / spec.width, LOOP / issue.arithmetic
    each = arithmetic / issue.arithmetic, own.loads / issue.loads, own.stores / issue.stores
    if spec.execution is Execution.SIMT:
        return loop + waves * sum(each) + (issue.latency if own.loads or own.stores or sums else 0.0)
    busy = max(each)
    if streamed and (caches := _own_caches(spec)):
        busy = max(busy, streamed * spec.byte_us(caches[-1], 1) / spec.cycle_us)
    return loop + (max(busy, issue.latency) if sums else busy)


def filled(work: Work, spec: VDeviceSpec, level: MemoryLevel) -> tuple[float, float]:
    """Return the bytes fetched into a private cache, and how many of them are stored to.

    Data that stay in the cache from pass to pass of a loop are fetched once.
    """
    if not work.loops or spec.holds(level, sum(work.per_trip.values()), 0.0):
        return sum(work.total.values()), sum(size for name, size in work.total.items() if name in work.stored)
    each = [filled(w, spec, level) for w in work.loops]
    return work.trips * sum(every for every, _ in each), work.trips * sum(stored for _, stored in each)


def warm_us(work: Work, spec: VDeviceSpec, threads: int = 1, resident_words: float = 0.0) -> float:
    """Return the microseconds of an rTask with all operands in the last private cache.

    On SIMT devices, it waits for operands from the nearest shared memory. For `resident_words` of a thread, which lie
    in the vEU's own memory, it waits once.
    """
    if spec.execution is Execution.SIMT:
        waves = -(-threads // spec.subgroup_size)
        words = max(work.pending_words - resident_words, float(work.pending_words > 0))
        rounds = work.load_rounds + ceil(words / spec.issue.pending)
        issued_us = cycles(work, spec, waves) * spec.cycle_us
        return spec.start_us + issued_us + work.syncs * spec.sync_us + rounds * spec.load_us
    filling_us = 0.0
    for inner, outer in pairwise(_own_caches(spec)):
        every, stored = filled(work, spec, inner)
        filling_us += (every - stored) * spec.byte_us(outer, 1) + stored * spec.byte_us(outer, 1, stores=True)
    return max(cycles(work, spec) * spec.cycle_us, filling_us)


def _own_caches(spec: VDeviceSpec) -> list[MemoryLevel]:
    return [m for m in spec.memory if m.owner == "veu" and m.managed == "cache"]
