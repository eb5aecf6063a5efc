"""Generate candidates for vDevices whose vEUs have many threads: any expression, a thread block per task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from math import prod

from rammer.cost.estimate import estimated_us
from rammer.errors import LoweringError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.software_pipeline import pipelined
from rammer.ir.tensor import Layout
from rammer.ir.tile import TileProgram
from rammer.kernels.problem import KernelProblem
from rammer.kernels.sched import Sched
from rammer.kernels.schedule import Loop, Schedule
from rammer.kernels.threads import cell as threads_cell
from rammer.kernels.threads import chain as threads_chain
from rammer.kernels.threads import group as threads_group
from rammer.kernels.threads import moves as threads_moves
from rammer.kernels.threads import product as threads_product
from rammer.kernels.threads import tensor as threads_tensor
from rammer.kernels.threads.product import STAGED, Staging, ThreadTile, most_threads, padded, shorter, sides
from rammer.kernels.threads.terms import ROUNDS, SHORT, stage_loops, threads_for
from rammer.kernels.tiling import cut, output_order
from rammer.kernels.vectors.chain import chained

MAX_CANDIDATES = 6
MOST_PRODUCTS = 4
MOST_TENSOR = 3
MOST_GROUP = 2  # besides the others: their tiles are large, and finer ones must stay
MOST_CELLS = 5
MOST_PER_IMAGE = 4
PLANES = (8, 16, 32, 64)  # channels of an image, for one rTask
FINE = (1 << 10, 1 << 14, 1 << 40)  # numbers of tasks to try where scratch is short
PIPELINE_DEPTH = 3  # buffers of the software pipeline: one is used, the others are being fetched
LONG = 4 * SHORT  # terms that are work for a thread of its own


def candidates(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """Return one to eight rKernels of `operation`, the best guess first. Raises LoweringError if none fits."""
    problem = KernelProblem.of(operation, spec)
    found = products(operation, spec)
    if not found:
        unmerged, most = KernelProblem.of(operation, spec, flat=False), most_threads(spec)
        if rows := chained(problem):
            found = ranked(rows.unmerged, threads_chain.schedules(rows.unmerged, most))[:MOST_PRODUCTS]
        most_cells = MOST_CELLS + (spec.cluster is not None)
        found = found or ranked(unmerged, threads_cell.schedules(unmerged, most))[:most_cells]
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
        chosen = with_pipelines(staging, threads_tensor.tiles(staging, unit), threads_tensor.chunked)
        found += ranked(problem, (threads_tensor.schedule(staging, tile) for tile in chosen))[:MOST_TENSOR]
    if matrices := threads_group.product(problem):
        groups = threads_group.tiles(matrices)
        found += ranked(problem, (threads_group.schedule(matrices, tile) for tile in groups))[:MOST_GROUP]
    tiles = with_pipelines(staging, threads_product.tiles(staging), threads_product.chunked)
    plain = ranked(problem, map(partial(threads_product.schedule, staging), tiles))
    return by_price([*found, *plain[:MOST_PRODUCTS]], problem.spec)


def with_pipelines(
    staging: Staging, tiles: list[ThreadTile], chunked: Callable[[Staging, ThreadTile], Iterable[ThreadTile | None]]
) -> list[ThreadTile]:
    """Return the tiles, and those with shorter chunks where scratch has no room for a software pipeline of theirs."""
    if staging.problem.spec.copies_later is None:
        return tiles
    return [*tiles, *(way for t in tiles for way in shorter(staging, t, chunked(staging, t), PIPELINE_DEPTH))]


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
