"""Estimate the time of an rTask from the spec alone. Known as: a roofline model, analytical cost model.

The time is the larger one of the counted work and of the operands' bytes at the rate of the level that holds them. A
foreign kernel, whose loops are unknown, counts as its operation does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from rammer.cost.functions import slots_of, slots_of_term
from rammer.cost.issue import warm_us
from rammer.cost.work import BANK_BYTES, Work, work
from rammer.ir.device import Execution, MemoryLevel, VDeviceSpec
from rammer.ir.expr import Stage
from rammer.ir.kernel import RKernel
from rammer.ir.remembered import remembered
from rammer.ir.tile import TileProgram


@remembered(1 << 12)
def estimated_us(kernel: RKernel, spec: VDeviceSpec, resident: bool = False) -> float:
    """Return the microseconds of one rTask on one vEU. `resident`: its constants lie in the vEU's own memory.

    That counts on SIMT devices alone.
    """
    body = kernel.program
    read, stored = (sum(t.nbytes for t in some) for some in (kernel.input_types(), kernel.operation.outputs))
    if isinstance(body, TileProgram) and spec.execution is Execution.SIMT:
        inputs = body.arguments[body.num_outputs :]
        static = (b.name for b, kept in zip(inputs, kernel.operation.static, strict=True) if kept and resident)
        return counted_us(body, spec, read + stored, frozenset(static))
    _, fetching_us = fetching(kernel, spec)
    if isinstance(body, TileProgram):
        return max(counted_us(body, spec, read + stored), fetching_us)
    return max(arithmetic_us(kernel.operation.expr.stages, spec) * tile_share(kernel), fetching_us)


def fetching(kernel: RKernel, spec: VDeviceSpec) -> tuple[str, float]:
    """Return the level that holds an operation's operands, and the least µs in which an rTask's come from there.

    That is its tile, and its share of every input; of a table, its share of the rows that are looked up.
    """
    read, stored = (sum(t.nbytes for t in some) for some in (kernel.input_types(), kernel.operation.outputs))
    level = holding(read + stored, spec)
    read_us, store_us = _byte_us(level, spec)
    moving_us = sum(kernel.bytes_read()) * read_us + stored * store_us
    return level.name if level else "memory", moving_us * tile_share(kernel)


def counted_us(program: TileProgram, spec: VDeviceSpec, nbytes: int, resident: frozenset[str] = frozenset()) -> float:
    """Return the microseconds of one rTask of a program, or of a draft, by its counted work.

    On SIMT devices, arguments are fetched from the nearest level that holds the `nbytes` of all operands, except those
    that are `resident` in the vEU's own memory.
    """
    found = work(program, spec)
    if spec.execution is not Execution.SIMT:
        return warm_us(found, spec)
    arguments = {b.name: found.total.get(b.name, 0.0) for b in program.arguments}
    return block_us(found, spec, program.num_threads, arguments, nbytes, resident)


def block_us(
    found: Work,
    spec: VDeviceSpec,
    threads: int,
    arguments: Mapping[str, float],
    nbytes: int,
    resident: frozenset[str] = frozenset(),
) -> float:
    """Return the microseconds of counted work on a block of threads: at least the time for the bytes of its arguments.

    Arguments lie in the nearest shared level that holds the `nbytes` of all operands; `resident` ones do not count.
    """
    read_us, store_us = byte_us(nbytes, spec)
    own = sum(arguments[name] for name in resident) / BANK_BYTES / threads
    others = ((name, size) for name, size in arguments.items() if name not in resident)
    fetching_us = sum(size * (store_us if name in found.stored else read_us) for name, size in others)
    return max(warm_us(found, spec, threads, own), fetching_us)


def arithmetic_us(stages: Iterable[Stage], spec: VDeviceSpec) -> float:
    """Return the microseconds of the arithmetic of some stages on one vEU at its peak rate, whatever their tiling."""
    slots = 0.0
    for stage in stages:
        points = prod(extent for _, extent in stage.axes)
        slots += points * prod(extent for _, extent in stage.reduce) * slots_of_term(stage)
        slots += points * slots_of(stage.epilogue) if stage.epilogue is not None else 0.0
    return 2 * slots / (max(spec.peak_gflops, 1e-9) * 1e3)  # a multiply-add is two of its operations


def byte_us(nbytes: int, spec: VDeviceSpec) -> tuple[float, float]:
    """Return microseconds per byte read and per byte stored in the nearest level that holds `nbytes`, if all vEUs use
    it.
    """
    return _byte_us(holding(nbytes, spec), spec)


def _byte_us(level: MemoryLevel | None, spec: VDeviceSpec) -> tuple[float, float]:
    veus = max(spec.num_veus, 1)
    return (spec.byte_us(level, veus), spec.byte_us(level, veus, stores=True)) if level else (0.0, 0.0)


def holding(nbytes: int, spec: VDeviceSpec) -> MemoryLevel | None:
    """Return the nearest level that holds `nbytes` where all vEUs find them, else the last one."""
    veus, found = max(spec.num_veus, 1), None
    for level in spec.memory:
        if level.managed == "scratch" and not spec.private:
            continue  # operands lie where other vEUs find them
        found = level
        if level.nbytes * veus // level.sharing(veus) >= nbytes:
            break
    return found


def tile_share(kernel: RKernel) -> float:
    """Return the part of the points that one full rTask computes. Above 1/num_rtasks where tiles overhang."""
    extents = prod(extent for _, extent in kernel.operation.expr.root.axes)
    if not extents or not kernel.num_rtasks:
        return 0.0
    return prod(high - low for low, high in kernel.box(0).values()) / extents
