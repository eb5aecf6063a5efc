"""Generate candidates for vDevices whose vEUs have many threads: any expression, a thread block per task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from math import prod

from rammer.cost.estimate import estimated_us
from rammer.errors import LoweringError
from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Stage
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.software_pipeline import pipelined
from rammer.ir.tensor import Layout
from rammer.ir.tile import Kind, TileProgram
from rammer.kernels.problem import KernelProblem
from rammer.kernels.sched import Sched
from rammer.kernels.schedule import Loop, Schedule, group
from rammer.kernels.threads import cell as threads_cell
from rammer.kernels.threads import group as threads_group
from rammer.kernels.threads import moves as threads_moves
from rammer.kernels.threads import product as threads_product
from rammer.kernels.threads import tensor as threads_tensor
from rammer.kernels.threads.product import STAGED, Staging, most_threads, padded, powers, sides
from rammer.kernels.threads.terms import SHORT, lanes_along, largest, packed_terms, term_lanes
from rammer.kernels.tiling import cut, output_order

MAX_CANDIDATES = 6
MOST_PRODUCTS = 4
MOST_TENSOR = 3
MOST_GROUP = 2  # besides the others: their tiles are large, and finer ones must stay
MOST_CELLS = 5
MOST_PER_IMAGE = 4
PLANES = (8, 16, 32, 64)  # channels of an image, for one rTask
FINE = (1 << 10, 1 << 14, 1 << 40)  # numbers of tasks to try where scratch is short
PIPELINE_DEPTH = 3  # buffers of the software pipeline: one is used, the others are being fetched
ROUNDS = (8, 4, 2, 1)  # tasks per vEU that are tried
LONG = 4 * SHORT  # terms that are work for a thread of its own
KEPT = 4  # results of a reduction that one thread holds at once


def candidates(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """Return one to eight rKernels of `operation`, the best guess first. Raises LoweringError if none fits."""
    problem = KernelProblem.of(operation, spec)
    found = products(operation, spec)
    if not found:
        unmerged, most = KernelProblem.of(operation, spec, flat=False), most_threads(spec)
        found = ranked(unmerged, threads_cell.schedules(unmerged, most))[:MOST_CELLS]
        found = found or fitting(unmerged, threads_moves.schedules(unmerged, most))
        found = found or fitting(unmerged, threads_cell.sums(unmerged, most))
    if len(found) < MOST_PRODUCTS:
        found += fitting(problem, schedules(problem))
    if not found:
        found = fitting(problem, schedules(problem, FINE))
    if not found and problem.keep:  # recompute what does not fit into scratch
        problem = KernelProblem.of(operation, spec, keep=frozenset())
        found = fitting(problem, schedules(problem, FINE))
    if not found:
        raise LoweringError(
            f"{operation.kind}: no tiling fits {spec.scratch_bytes} bytes of scratch",
            hint="give the vDevice more scratch, or split the operator",
        )
    return found[: MAX_CANDIDATES + sum(map(threads_group.in_groups, found))]


def products(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """Return kernels with tiles in registers, the best guess first; none if the operation is not a product worth it."""
    problem = padded(KernelProblem.of(operation, spec, flat=False))
    p = sides(problem)
    if p is None:
        return []
    staging = Staging(problem, p)
    found: list[RKernel] = []
    if unit := threads_tensor.instruction_for(staging):
        chosen = threads_tensor.tiles(staging, unit)
        found += ranked(problem, (threads_tensor.schedule(staging, tile) for tile in chosen))[:MOST_TENSOR]
    if matrices := threads_group.product(problem):
        groups = threads_group.tiles(matrices)
        found += ranked(problem, (threads_group.schedule(matrices, tile) for tile in groups))[:MOST_GROUP]
    tiles = threads_product.tiles(staging)
    shorter = (threads_product.shorter(staging, t, PIPELINE_DEPTH) for t in tiles) if problem.spec.copies_later else ()
    plain = map(partial(threads_product.schedule, staging), (*tiles, *(t for t in shorter if t is not None)))
    return by_price([*found, *ranked(problem, plain)[:MOST_PRODUCTS]], problem.spec)


def per_image_kernels(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """Return kernels that keep all data of some channels of an image on one vEU, like the rTasks of a reader.

    Tiles of a product stay inside of one image. Other operators are cut by powers of two of their second axis.
    """
    problem = padded(KernelProblem.of(operation, spec, flat=False))
    if (p := sides(problem)) is not None:
        if (inside := threads_product.per_image_sides(p)) is None:
            return []
        staging = Staging(problem, inside)
        tiles = threads_product.tiles(staging)
        return ranked(problem, map(partial(threads_product.schedule, staging), tiles))[:MOST_PER_IMAGE]
    problem = KernelProblem.of(operation, spec)
    extents, axes = dict(problem.root.axes), output_order(problem)
    if len(axes) < 3 or not prod(extents.values()):
        return []
    images, channels = extents[axes[0]], extents[axes[1]]
    steps = [step for step in PLANES if step < channels]
    found = (schedules(problem, (images * -(-channels // step),), {axes[1]: step}) for step in steps)
    return fitting(problem, chain.from_iterable(found))


def ranked(problem: KernelProblem, schedules: Iterable[Schedule]) -> list[RKernel]:
    """Return the kernels of schedules, and their software pipelines, by price."""
    spec = problem.spec
    kernels = fitting(problem, schedules)
    if spec.copies_later is not None:
        piped = (k for kernel in kernels if (k := in_pipeline(kernel, PIPELINE_DEPTH)) is not None)
        kernels += [k for k in piped if k.scratch_bytes <= spec.scratch_bytes * STAGED]
    return by_price(kernels, spec)


def by_price(kernels: Iterable[RKernel], spec: VDeviceSpec) -> list[RKernel]:
    """Sort kernels by their estimate on all vEUs, with the most efficient one second: vEUs may be busy anyway."""
    us = {kernel: estimated_us(kernel, spec) for kernel in kernels}
    found = sorted(us, key=lambda k: us[k] * -(-k.num_rtasks // spec.num_veus))
    efficient = sorted(found[1:], key=lambda k: us[k] * k.num_rtasks)[:1]
    return [*found[:1], *efficient, *(k for k in found[1:] if k not in efficient)]


def in_pipeline(kernel: RKernel, depth: int) -> RKernel | None:
    """Return the rKernel as a software pipeline: copies of later passes run ahead. None if its loops do not suit."""
    if not isinstance(kernel.body, TileProgram) or pipelined(kernel.body, depth) is None:
        return None
    text = f"{kernel.schedule}; {depth} places"
    return replace(kernel, name=kernel.name.replace("_x", f"_p{depth}_x", 1), schedule=text, pipeline_depth=depth)


def fitting(problem: KernelProblem, wanted: Iterable[Schedule]) -> list[RKernel]:
    """Return the kernels of distinct schedules whose scratch fits a vEU."""
    distinct: dict[object, Schedule] = {}
    for schedule in wanted:
        distinct.setdefault((schedule.loops, schedule.stages, schedule.packing), schedule)
    kernels = map(problem.kernel, distinct.values())
    return [k for k in kernels if k.scratch_bytes <= problem.spec.scratch_bytes]


def schedules(
    problem: KernelProblem, counts: Iterable[int] = (), coarse: Mapping[str, int] | None = None
) -> Iterator[Schedule]:
    """Yield schedules whose tasks cut the output's outer axes. Inside, threads count through all points of a stage.

    `coarse`: an axis' steps are multiples of these.
    """
    root = problem.root
    extents = dict(root.axes)
    if not prod(extents.values()):
        yield Schedule(f"{problem.operation.kind}_empty", tuple(Loop(a) for a in (*extents, *dict(root.reduce))))
        return
    most = most_threads(problem.spec)
    grains = [(a, extents[a], problem.grain(a, (coarse or {}).get(a, 1), exact=True)) for a in output_order(problem)]
    for want in counts or task_counts(problem, most):
        s = Sched(problem).nest(cut(grains, want))
        steps = s.steps
        threads = max(threads_for(problem, stage, steps, most) for stage in problem.stages.values())
        packing: dict[str, Layout] = {}
        nests = {s.name: stage_loops(problem, s, steps, threads, packing) for s in problem.stages.values()}
        yield (
            s.place(problem.placed, nests)
            .nest(nests[root.name])
            .pack(packing.items())
            .on_threads(threads)
            .build(f"x{threads}")
        )


def task_counts(problem: KernelProblem, threads: int) -> list[int]:
    """Return numbers of tasks to aim for: enough to fill all vEUs' threads if there is work, then coarser and finer."""
    veus = problem.spec.num_veus
    items = max(prod(e for _, e in s.axes) * -(-prod(e for _, e in s.reduce) // LONG) for s in problem.stages.values())
    full = max(min(-(-items // threads), ROUNDS[0] * veus), 1)
    if full > veus:
        return [full, *(n * veus for n in ROUNDS[1:] if n * veus < full)]
    more, fewer = (min(n * full, veus) for n in ROUNDS[1:]), (max(full // n, 1) for n in (2, ROUNDS[0]))
    return sorted({*more, *fewer}, reverse=True)


def points_of(stage: Stage, steps: Mapping[str, int]) -> int:
    """Return about how many points of a stage a task computes. Axes that the tasks cut are cut here, too."""
    return prod(min(e, steps.get(a, e)) for a, e in stage.axes)


def threads_for(problem: KernelProblem, stage: Stage, steps: Mapping[str, int], most: int) -> int:
    """Return how many threads a stage can keep busy: whole subgroups, a power of two of them."""
    depth = prod(e for _, e in stage.reduce)
    items = points_of(stage, steps) * (depth if depth >= SHORT else 1)
    least = min(subgroup_size_of(problem), most)
    if not stage.reduce and items >= (wide := vector_lanes(problem, stage)) * least:
        items = -(-items // wide)
    return least * min(1 << (-(-items // least) - 1).bit_length(), most // least)


def subgroup_size_of(problem: KernelProblem) -> int:
    """Return the number of threads of a subgroup. Tasks have whole ones; neighbours in one read adjacent memory."""
    return max(problem.spec.subgroup_size, 1)


def stage_loops(
    problem: KernelProblem, stage: Stage, steps: Mapping[str, int], threads: int, packing: dict[str, Layout]
) -> tuple[Loop, ...]:
    """Return loops that spread threads over the points, and over a reduction's terms if there are not enough points.

    Adds to `packing` the layout of a static operand whose terms would be strided for such threads.
    """
    every = group([a for a, _ in stage.axes])
    points = points_of(stage, steps)
    if not stage.reduce:
        wide = vector_lanes(problem, stage)
        if wide > 1 and points >= wide * subgroup_size_of(problem):
            return (Loop(every, wide * threads), Loop(every, wide, Kind.THREAD), Loop(every, 1, Kind.VECTOR))
        return (Loop(every, threads), Loop(every, 1, Kind.THREAD))
    reduce = [a for a, _ in stage.reduce]
    along = contiguous(problem, stage)
    if along not in reduce and sharing_threads(problem, stage, points, threads, False) > 1:
        along = packed_terms(problem, stage, packing) or along
    inner = reduce if along not in reduce else [*(a for a in reduce if a != along), along]
    wide = term_lanes(problem, stage, packing) if along in reduce else 1
    sharing = sharing_threads(problem, stage, points, threads, along in reduce, wide)
    rows = threads // sharing
    kept = min(-(-points // rows), KEPT)
    outer, held = (Loop(every, kept * rows),), (Loop(every, rows, Kind.UNROLLED),)
    mine = Loop(every, 1, Kind.THREAD)
    if sharing == 1:
        return (*outer, mine, *(Loop(a) for a in inner), *held)
    terms = group(inner) if wide == 1 else inner[0]
    lanes = Loop(terms, wide, Kind.THREAD)
    pair = (mine, lanes) if along in reduce else (lanes, mine)
    vector = (Loop(terms, 1, Kind.VECTOR),) if wide > 1 else ()
    return (*outer, *pair, Loop(terms, wide * sharing), *held, *vector)


def vector_lanes(problem: KernelProblem, stage: Stage) -> int:
    """Return how many neighbours one thread computes at once: a vector if all operands are contiguous, or one."""
    return lanes_along(problem, stage, *next(((a, e) for a, e in reversed(stage.axes) if e > 1), ("", 0)))


def sharing_threads(
    problem: KernelProblem, stage: Stage, points: int, threads: int, coalesced: bool, wide: int = 1
) -> int:
    """Return how many threads share one reduction: a power of two; 1 if there are enough points, coalesced in memory.

    Each of them takes `wide` neighbouring terms at once.
    """
    depth = prod(e for _, e in stage.reduce) // wide
    if depth < SHORT:
        return 1
    most = min(powers(depth)[-1], threads & -threads)
    idle = threads >> max(points - 1, 0).bit_length()
    wave = min(max(subgroup_size_of(problem) // wide, 1), threads)
    return min(powers(max(idle, wave if coalesced and depth >= wave else 1))[-1], most)


def contiguous(problem: KernelProblem, stage: Stage) -> str | None:
    """Return the axis along which the largest operand is contiguous in memory, or None."""
    load = largest(problem, stage)
    if load is None:
        return None
    for axis, extent in (*reversed(stage.axes), *reversed(stage.reduce)):
        if extent > 1 and problem.lane_stride(load.tensor, load.index, axis, stage) == 1:
            return axis
    return None
