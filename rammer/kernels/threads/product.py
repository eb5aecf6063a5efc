"""Schedule sums of products on many threads: output tiles in registers, operands staged in scratch. Known as:

SIMT GEMM. A task computes a tile of `slow` x `fast` points. Each thread holds neighbours along `slow`, and equally
spaced points along `fast`, the side that is contiguous in memory. Convolutions work the same way: padding is a stage of
its own, so that the staged box of x holds zeros beyond the edge of x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product as combinations
from itertools import takewhile
from math import ceil, prod
from typing import NamedTuple, TypeAlias

from rammer.cost.estimate import byte_us
from rammer.cost.issue import warm_us
from rammer.cost.work import BANK_BYTES, DIVISION, SINGLY, WRITTEN, Issued, Work
from rammer.ir.analysis.simplify import scalar_conditions
from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Call, Cast, Const, Load, Range, Scalar, Select, Stage, loads
from rammer.ir.index import bounds, var, variables
from rammer.ir.instruction import Instruction
from rammer.ir.tensor import Digit, DType, Layout
from rammer.ir.tile import Kind
from rammer.kernels.lower.reduce import WAYS
from rammer.kernels.problem import KernelProblem
from rammer.kernels.product import axes_of, shared
from rammer.kernels.sched import Sched, copy_axes
from rammer.kernels.schedule import Loop, Schedule, group
from rammer.kernels.threads.terms import powers, stage_loops

MIN_POINTS = (4, 8)  # slow and fast points of the smallest tile
MIN_TERMS = 8
MAX_UNROLLED = 256  # products of a thread in one piece of code
USUAL = 32, 8  # terms of a chunk, and of one thread, with which tiles are first compared
MOST_PADDING = 1.2  # of the terms of a sum
UNROLLS = (8, 4, 2)  # terms of a chunk that are unrolled together, if they fit MAX_UNROLLED
EQUAL_PARTS = 8  # into which an axis is cut, besides powers of two
RUN, RUN_WEIGHT = 8, 0.25  # points along memory below which a tile counts less, and the power of their share
MOST_POINTS = 16  # points of a thread along a side
STAGED = 0.6  # of scratch: the rest holds resident weights
REFINED = 5  # numbers of tasks whose tiles are compared with variants
ALIKE = 1.02  # times the best: of such chunks the shortest is taken


@dataclass(frozen=True)
class Sides:
    """The output axes of a product by the operand that they move. `limits`: tiles of an axis must divide its limit."""

    stage: Stage
    slow: tuple[str, ...]
    fast: tuple[str, ...]
    batch: tuple[str, ...]
    a: Load  # moves with slow
    b: Load  # moves with fast
    limits: dict[str, int]


def padded(problem: KernelProblem) -> KernelProblem:
    """Return the problem with the padding of operands in stages of their own, which cover only what is read."""
    keep = set(problem.keep)
    stages: list[Stage] = []
    for stage in problem.expr.stages:
        if stage.reduce and isinstance(stage.body, Call) and stage.body.fn == "mul":
            args = []
            for n, arg in enumerate(stage.body.args):
                arg, made = _unpadded(problem, arg, stage, f"{stage.name}_p{n}")
                args.append(arg)
                if made is not None:
                    stages.append(made)
                    keep.add(made.name)
            stage = replace(stage, body=Call("mul", tuple(args)))
        stages.append(stage)
    return replace(problem, expr=replace(problem.expr, stages=tuple(stages)), keep=frozenset(keep))


def _unpadded(problem: KernelProblem, value: Scalar, reader: Stage, name: str) -> tuple[Scalar, Stage | None]:
    match value:
        case Cast(arg):
            arg, made = _unpadded(problem, arg, reader, name)
            return replace(value, arg=arg), made
        case Select(where, Load(tensor, index, ()), Const(0)):
            pass
        case _:
            return value, None
    kind = problem.expr.type_of(tensor)
    env = {a: (0, e - 1) for a, e in (*reader.axes, *reader.reduce)}
    spans = [bounds(ix, env) for ix in index]
    at = {ix: d for d, ix in enumerate(index)}
    if any(r.index not in at or (r.low, r.high) != (0, kind.shape[at[r.index]]) for r in where):
        return value, None
    axes = tuple((f"p{d}", high - low + 1) for d, (low, high) in enumerate(spans))
    place = tuple(var(a) + low for (a, _), (low, _) in zip(axes, spans, strict=True))
    guards = tuple(Range(place[at[r.index]], r.low, r.high) for r in where)
    made = Stage(name, axes, Select(guards, Load(tensor, place), Const(0.0)), dtype=kind.dtype)
    return Load(name, tuple(ix - low for ix, (low, _) in zip(index, spans, strict=True))), made


def sides(problem: KernelProblem) -> Sides | None:
    """Return the root as a product that is worth tiling, or None."""
    stage = problem.root
    if stage.combine != "sum" or not stage.reduce or not stage.dtype.is_float or list(scalar_conditions(stage.body)):
        return None
    if not (isinstance(stage.body, Call) and stage.body.fn == "mul"):
        return None
    first, second = (_only_load(arg) for arg in stage.body.args)
    if first is None or second is None or first.tensor == second.tensor:
        return None
    others = [s for s in problem.placed if s.name not in (first.tensor, second.tensor)]  # of rows of an operand
    if any(s.reduce for s in problem.placed if s not in others):
        return None
    if any(prod(s.shape) * MIN_TERMS > problem.expr.type_of(first.tensor).size for s in others):
        return None
    read = [ld.tensor for s in problem.placed for ld, _ in loads(s.body)]
    read += [ld.tensor for ld, _ in loads(stage.epilogue)] if stage.epilogue is not None else []
    if first.tensor in read or second.tensor in read:
        return None
    extents = dict(stage.axes)
    last = next((a for a, e in reversed(stage.axes) if e > 1), "")
    limits: dict[str, int] = {}
    moves: dict[bool, list[str]] = {False: [], True: []}  # axes, by whether they move the second operand
    for axis, extent in ((a, e) for a, e in stage.axes if e > 1):
        ins = [axis in axes_of(ld) for ld in (first, second)]
        if all(ins):
            runs = [shared(stage, ld, axis) for ld in (first, second)]  # of a group of a convolution, perhaps
            side = next((n for n, run in enumerate(runs) if MIN_POINTS[0] <= run < extent), None)
            if side is not None:
                limits[axis], ins[side] = runs[side], False
        if ins[0] != ins[1]:
            moves[ins[1]].append(axis)
    slow, fast = map(tuple, moves.values())
    if last in slow:
        first, second, slow, fast = second, first, fast, slow
    if last not in fast:
        return None
    sizes = [prod(limits.get(a, extents[a]) for a in axes) for axes in (slow, fast)]
    if sizes[0] < MIN_POINTS[0] or sizes[1] < MIN_POINTS[1] or prod(e for _, e in stage.reduce) < MIN_TERMS:
        return None
    batch = tuple(a for a in extents if a not in slow and a not in fast)
    return Sides(stage, slow, fast, batch, first, second, limits)


def per_image_sides(p: Sides) -> Sides | None:
    """Return the sides with tiles that span no axis outside of those that `slow` moves along.

    A task's results then lie together in memory, beside other results of the same images. None if tiles span none
    anyway.
    """
    outer = [a for a, _ in takewhile(lambda axis: axis[0] not in p.slow, p.stage.axes) if a in p.fast]
    if not any(extent > 1 for a, extent in p.stage.axes if a in outer) or len(outer) == len(p.fast):
        return None
    return replace(p, fast=tuple(a for a in p.fast if a not in outer), batch=(*p.batch, *outer))


def _only_load(value: Scalar) -> Load | None:
    found = [ld for ld, _ in loads(value)]
    return found[0] if len(found) == 1 and not found[0].dynamic else None


Pair: TypeAlias = tuple[int, int]  # along slow and fast


@dataclass(frozen=True)
class ThreadTile:
    """The steps of tasks per axis, the terms staged at a time, and the number of tasks. `us`: estimate of one task.

    Without `unit`, `groups` counts threads along slow and fast, and `blocks` the points of each. With `unit`, `groups`
    counts the groups of threads that execute it, and `blocks` the blocks of each.
    """

    steps: dict[str, int]
    chunk: int
    tasks: int
    us: float
    blocks: Pair
    groups: Pair
    split: int = 1  # threads that share each sum
    unit: Instruction | None = None

    def alone_us(self, spec: VDeviceSpec) -> float:
        """Return the microseconds of the operation alone on all vEUs."""
        return -(-self.tasks // spec.num_veus) * self.us

    @property
    def instruction(self) -> Instruction:
        """The instruction of a tile that has one."""
        assert self.unit is not None
        return self.unit

    @property
    def sizes(self) -> Pair:
        """Points along slow and fast."""
        down, along, _ = (extent for _, extent in self.unit.axes) if self.unit else (1, 1, 1)
        return down * self.groups[0] * self.blocks[0], along * self.groups[1] * self.blocks[1]

    @property
    def threads(self) -> int:
        """Number of threads of a task."""
        return prod(self.groups) * self.split * (self.unit.threads if self.unit else 1)


class Staged(NamedTuple):
    """An operand that is staged, its dimensions in the order of memory and of scratch.

    `packed`: it gets this order at compile time. For float32 in memory, the same dimension is innermost in both
    (`straight`), or different ones are (`transposed`).
    """

    load: Load
    names: list[str]
    order: tuple[int, ...]
    packed: bool
    straight: bool
    transposed: bool
    moves: tuple[tuple[str, ...], ...]  # the axes that move through each dimension in scratch
    along: int  # the dimension in scratch that lies along memory
    itemsize: int


class Staging:
    """What the tasks of a product copy into scratch, and its cost. It does not depend on the product instructions."""

    def __init__(self, problem: KernelProblem, p: Sides) -> None:
        self.problem, self.p, self.extents = problem, p, dict(p.stage.axes)
        self.deep, self.terms = max(p.stage.reduce, key=lambda axis: axis[1])
        self.window = [a for a, _ in p.stage.reduce if a != self.deep]
        self.passes = prod(e for a, e in p.stage.reduce if a != self.deep)  # per term of the deepest axis
        self.copies = [self._copied(*side) for side in ((p.a, p.slow), (p.b, p.fast))]
        nbytes = sum(t.nbytes for _, t in (*problem.expr.inputs, *problem.expr.outputs))
        self._byte_us, _ = byte_us(nbytes, problem.spec)
        self.room = int(problem.spec.scratch_bytes * STAGED)
        self._boxes: dict[object, tuple[int, ...]] = {}
        self._steps: dict[tuple[tuple[str, ...], int], dict[str, int]] = {}

    def steps(self, slow: int, fast: int) -> dict[str, int]:
        """Return the steps of tasks of at most `slow` x `fast` points."""
        for side in ((self.p.slow, slow), (self.p.fast, fast)):
            if side not in self._steps:
                self._steps[side] = box(self.p, *side)
        return {**self._steps[self.p.slow, slow], **self._steps[self.p.fast, fast], **dict.fromkeys(self.p.batch, 1)}

    def begun(self, tile: ThreadTile) -> Sched:
        """Return a schedule with nothing but the tasks of a tile, and what they compute before its sums."""
        axes, steps = (*self.p.batch, *self.p.slow, *self.p.fast), tile.steps
        return before(Sched(self.problem).nest(Loop(a, steps[a], Kind.TASK) for a in axes), self.p, tile)

    def tasks(self, steps: Mapping[str, int]) -> int:
        """Return the number of tasks of such steps."""
        return prod(-(-self.extents[a] // s) for a, s in steps.items())

    def box(self, staged: Staged, steps: Mapping[str, int], chunk: int) -> tuple[int, ...]:
        """Return the extents, in scratch order, of the part of an operand that a chunk of the sum needs."""
        sizes = {**dict(self.p.stage.reduce), **steps, self.deep: chunk}
        key = staged.load.tensor, *(sizes[a] for names in staged.moves for a in names)
        if key not in self._boxes:
            env = {a: (0, n - 1) for a, n in sizes.items()}
            spans = [bounds(staged.load.index[d], env) for d in staged.order]
            self._boxes[key] = tuple(high - low + 1 for low, high in spans)
        return self._boxes[key]

    def rows(self, staged: Staged, steps: Mapping[str, int], chunk: int) -> tuple[int, ...]:
        """Return the extents of the box that lie inside of the terms."""
        terms = max(n for n, names in enumerate(staged.moves) if self.deep in names)
        return self.box(staged, steps, chunk)[terms + 1 :]

    def pads(self) -> list[int]:
        """Return unused elements after each scratch row, which avoid bank conflicts in transposing an operand."""
        return [self.problem.spec.lanes if staged.transposed else 0 for staged in self.copies]

    def nbytes(self, steps: Mapping[str, int], chunk: int) -> int:
        """Return the bytes of scratch for a chunk, without padding of its rows."""
        return sum(prod(self.box(s, steps, chunk)) * s.itemsize for s in self.copies)

    def us(
        self,
        steps: Mapping[str, int],
        chunk: int,
        threads: int,
        product: Work,
        after: Issued,
        added: float,
        syncs: int = 0,
    ) -> float:
        """Return the microseconds of a task: chunk by chunk, both operands are copied and `product` is computed.

        `added`: loads of a thread between its stores.
        """
        spec, chunks = self.problem.spec, -(-self.terms // chunk)
        copies, pending, singly, moved = Issued(), 0.0, 0.0, 0
        for staged in self.copies:
            extents = self.box(staged, steps, chunk)
            size, joined = prod(extents), self.joined(staged, steps)
            run = self.run(staged, extents, threads) or extents[staged.along]
            each = -(-extents[staged.along] // run) * -(-(size // extents[staged.along] * run) // threads)
            count = each / joined
            words = each * max(spec.subgroup_size / spec.issue.banks, 1.0)
            copies += Issued(DIVISION * len(staged.order) * count, stores=words)
            if staged.load.tensor in self.problem.stages:  # padding: each copy has a condition of its own
                singly += count
            else:
                pending += each * staged.itemsize / BANK_BYTES
            moved += chunks * size * staged.itemsize
        rounds = chunks * (ceil(pending / spec.issue.pending) + singly / SINGLY) + added / SINGLY
        loop = Work(chunks, copies, (product,), True, {}, {})
        whole = Work(1, after, (loop,), False, {}, {}, 2 * chunks + syncs, rounds)
        return max(warm_us(whole, spec, threads), moved * self._byte_us)

    def added(self, rows: int, columns: int) -> float:
        """Return the loads of a thread that stores so many points, for what is added to them."""
        stage, p = self.p.stage, self.p
        found = loads(stage.epilogue) if stage.epilogue is not None else ()
        sides = ((p.slow, rows), (p.fast, columns))
        args = {ld for ld, _ in found if ld.tensor != stage.name}
        return float(sum(prod(n for axes, n in sides if axes_of(ld) & {*axes}) for ld in args))

    def run(self, staged: Staged, extents: tuple[int, ...], threads: int) -> int:
        """Return how many memory neighbours threads copy together from each row of a transposed operand; or 0."""
        run = 2 * self.problem.spec.lanes
        while run * prod(extents) < threads * extents[staged.along] and run < extents[staged.along]:
            run *= 2
        return run if staged.transposed else 0

    def joined(self, staged: Staged, steps: Mapping[str, int]) -> int:
        """Return how many neighbours a thread copies at once: a vector if contiguous in memory and scratch, or one."""
        lanes = self.problem.spec.lanes
        if not staged.straight or len(staged.moves[-1]) != 1:
            return 1
        (axis,) = staged.moves[-1]
        whole = steps.get(axis, 1) % lanes == 0 and self.extents.get(axis, 1) % lanes == 0
        return lanes if whole and staged.load.index[staged.order[-1]] == var(axis) else 1

    def _copied(self, load: Load, axes: tuple[str, ...]) -> Staged:
        problem, order = self.problem, scratch_order(load, axes)
        names = copy_axes(problem, load.tensor)
        free = load.tensor in problem.static and problem.expr.type_of(load.tensor).layout is None
        packed = free and order != tuple(range(len(order)))
        names = [names[d] for d in order] if packed else names
        dtype = problem.expr.type_of(load.tensor).dtype
        words = load.tensor not in problem.stages and dtype is DType.F32
        along = next(n for n, d in enumerate(order) if names[-1].endswith(str(d)))
        same = along == len(order) - 1
        moves = tuple(tuple(sorted(variables(load.index[d]))) for d in order)
        return Staged(load, names, order, packed, words and same, words and not same, moves, along, dtype.itemsize)


def before(s: Sched, p: Sides, tile: ThreadTile) -> Sched:
    """Compute stages that are not operands, such as moments of rows, inside the innermost loop so far: the tasks'."""
    for stage in s.problem.placed:
        if stage.name not in (p.a.tensor, p.b.tensor):
            s = s.compute_at(stage.name, stage_loops(s.problem, stage, tile.steps, tile.threads, {}))
    return s


def tiles(staging: Staging) -> list[ThreadTile]:
    """Return tiles for different numbers of tasks: those done soonest by estimate, and the most efficient one."""
    usual: dict[int, list[int]] = {}

    def way(points: Pair, threads: Pair, split: int) -> Iterator[ThreadTile | None]:
        steps = staging.steps(points[0] * threads[0], points[1] * threads[1])
        if split not in usual:
            least, every = max(USUAL[0] // staging.passes, USUAL[1] * split), chunks(staging, split)
            usual[split] = [c for c in reversed(every) if c < 2 * least] or every[:1]
        return (_fitted(staging, steps, points, split, chunk) for chunk in usual[split])

    ways = (way(*divided) for divided in _divided(staging))
    return compared(ways, partial(chunked, staging), staging.problem.spec, efficient=True)


def chunked(staging: Staging, tile: ThreadTile) -> Iterator[ThreadTile | None]:
    """Yield the tile with chunks of all lengths, ascending; None for those that do not fit."""
    for chunk in chunks(staging, tile.split):
        yield _fitted(staging, tile.steps, tile.blocks, tile.split, chunk)


def compared(
    ways: Iterable[Iterable[ThreadTile | None]],
    again: Callable[[ThreadTile], Iterable[ThreadTile | None]],
    spec: VDeviceSpec,
    *,
    efficient: bool = False,
) -> list[ThreadTile]:
    """Return for each number of tasks the best tile that fits; those done soonest first.

    Each way counts with its first tile that fits. The REFINED best ones are compared with their variants: `again`.
    `efficient`: add the tile that occupies all vEUs least.
    """
    found: dict[int, ThreadTile] = {}
    for way in ways:
        tile = next((tile for tile in way if tile is not None), None)
        if tile is not None and (tile.tasks not in found or tile.us < found[tile.tasks].us):
            found[tile.tasks] = tile
    ranked = sorted(found.values(), key=lambda t: t.alone_us(spec))[:REFINED]
    if efficient and found:
        ranked.append(min(found.values(), key=lambda t: t.us * t.tasks))
    refined = (soonest(again(tile)) for tile in {id(tile): tile for tile in ranked}.values())
    return [tile for tile in refined if tile is not None]


def _divided(staging: Staging) -> Iterator[tuple[Pair, Pair, int]]:
    """Yield points per thread, threads along both sides, and threads per sum: powers of two that fit the vEU."""
    spec, p = staging.problem.spec, staging.p
    most = [prod(staging.extents[a] for a in axes) for axes in (p.slow, p.fast)]
    threads = most_threads(spec)
    for split in powers(min(spec.max_threads, staging.terms // 2)):
        for down in powers(spec.max_threads // split):
            along = threads // (split * down)  # beyond the extent, tiles shrink to fewer threads
            if not along:
                continue
            for rows, columns in combinations(powers(MOST_POINTS), repeat=2):
                held = rows * columns + rows + columns
                if held <= spec.registers * spec.lanes and rows * down < 2 * most[0] and columns * along < 2 * most[1]:
                    yield (rows, columns), (down, along), split


def most_threads(spec: VDeviceSpec) -> int:
    """Return the largest number of threads of a task: whole subgroups, a power of two of them."""
    wave = min(spec.subgroup_size, spec.max_threads)
    return wave * powers(spec.max_threads // wave)[-1]


def _fitted(staging: Staging, steps: dict[str, int], points: Pair, split: int, chunk: int) -> ThreadTile | None:
    """Return the tile of such steps in whole subgroups; None if it does not fit the vEU."""
    spec, p = staging.problem.spec, staging.p
    held = [prod(steps[a] for a in axes) for axes in (p.slow, p.fast)]
    points = (min(points[0], held[0]), min(points[1], held[1]))
    down, along = (-(-h // n) for h, n in zip(held, points, strict=True))
    while down * along * split % spec.subgroup_size and down * (along + 1) * split <= spec.max_threads:
        along += 1
    threads = down * along * split
    if threads > spec.max_threads or threads % min(spec.subgroup_size, spec.max_threads):
        return None
    tree = threads * prod(points) * staging.p.stage.dtype.itemsize if split > 1 else 0
    if staging.nbytes(steps, chunk) + tree > staging.room:
        return None
    product = _product(staging, steps, points, along, down, split, chunk)
    sums = float(prod(points))
    shared, syncs = Issued(), 0
    left = split
    while left > 1:  # the tree of `lower/reduce.py`
        ways = min(left, WAYS)
        shared, syncs, left = shared + Issued(sums * ways, sums * ways, sums), syncs + 1, left // ways
    after, added = Issued(stores=WRITTEN * sums) + shared, staging.added(*points)
    us = staging.us(steps, chunk, threads, product, after, added, syncs)
    return ThreadTile(steps, chunk, staging.tasks(steps), us, points, (down, along), split)


def _product(staging: Staging, steps: dict[str, int], at: Pair, along: int, down: int, split: int, chunk: int) -> Work:
    """Return the work of a chunk's products: what a subgroup issues, and its transfers from scratch."""
    spec, (rows, columns) = staging.problem.spec, at
    across = min(spec.subgroup_size, along)
    beside = min(max(spec.subgroup_size // across, 1), down)
    terms = max(spec.subgroup_size // (across * beside), 1)  # terms that a subgroup handles at once
    joined, banks = min(rows, spec.lanes), spec.issue.banks
    run = neighbours(staging, steps, columns, along)
    loads = rows / joined * max(joined * beside * terms / banks, 1.0)
    loads += columns / run * max(run * across * terms / banks, 1.0)
    own, count = chunk // split, rows * columns
    together = unrolled(own, count, bool(staging.window))
    return Work(own // together * staging.passes, Issued(together * count, together * loads), (), True, {}, {})


def neighbours(staging: Staging, steps: Mapping[str, int], columns: int, along: int) -> int:
    """Return how many of a thread's points along memory are adjacent: a vector of scratch, or 1.

    A vector pays only if `along` threads fill all banks with one number each. With fewer, vectors take more transfers.
    """
    b, lanes = staging.copies[1], staging.problem.spec.lanes
    last = next(a for a, e in reversed(staging.p.stage.axes) if e > 1)
    straight = b.moves[-1] == (last,) == staging.p.fast[-1:] and b.load.index[b.order[-1]] == var(last)
    whole = steps[last] % lanes == 0 and staging.extents[last] % lanes == 0
    full = along % staging.problem.spec.issue.banks == 0
    return min(columns & -columns, lanes) if straight and whole and full else 1


def unrolled(terms: int, points: int, window: bool) -> int:
    """Return the terms of a chunk to unroll, so that loads of one hide behind products of another."""
    return next((n for n in UNROLLS if terms % n == 0 and n * points <= MAX_UNROLLED and not window), 1)


def chunks(staging: Staging, split: int) -> list[int]:
    """Return numbers of terms to stage at a time, ascending: equal parts of the sum, or slightly padded ones."""
    sizes = [-(-staging.terms // pieces) for pieces in powers(staging.terms // split)]
    found = {-(-size // (split * n)) * split * n for size in sizes for n in (1, UNROLLS[0])}
    padded = {chunk: -(-staging.terms // chunk) * chunk for chunk in found}
    return sorted(chunk for chunk in found if padded[chunk] <= MOST_PADDING * min(padded.values()))


def shorter(staging: Staging, tile: ThreadTile, ways: Iterable[ThreadTile | None], depth: int) -> list[ThreadTile]:
    """Return that of a tile's `ways` with the longest chunk of which `depth` exist and fit scratch.

    Empty if the tile's own chunk does, or none.
    """

    def fits(way: ThreadTile) -> bool:
        return depth * way.chunk <= staging.terms and depth * staging.nbytes(way.steps, way.chunk) <= staging.room

    return [] if fits(tile) else [way for way in ways if way is not None and fits(way)][-1:]


def soonest(ways: Iterable[ThreadTile | None]) -> ThreadTile | None:
    """Return the fastest tile of those that fit; of those hardly slower, the one with the shortest chunk."""
    fitting = [way for way in ways if way is not None]
    best = min((way.us for way in fitting), default=0.0)
    return min((way for way in fitting if way.us <= ALIKE * best), key=lambda way: way.chunk, default=None)


def box(p: Sides, axes: tuple[str, ...], size: int) -> dict[str, int]:
    """Return steps of at most `size` points together that waste little at the edges and are long along memory."""
    extents = dict(p.stage.axes)
    options = []
    for a in axes:
        limit = p.limits.get(a, extents[a])
        sizes = {min(1 << n, limit) for n in range(size.bit_length())}
        sizes |= {-(-limit // n) for n in range(1, EQUAL_PARTS + 1)}
        options.append([s for s in sorted(sizes, reverse=True) if s <= size and (a not in p.limits or limit % s == 0)])
    best: tuple[float, tuple[int, ...]] = (-1.0, ())
    for steps in combinations(*options):
        if prod(steps) > size:
            continue
        count = prod(-(-extents[a] // s) for a, s in zip(axes, steps, strict=True))
        used = prod(extents[a] for a in axes) / (count * size)
        score = used * min(steps[-1] / min(RUN, extents[axes[-1]]), 1.0) ** RUN_WEIGHT + 1e-3 * sum(steps) / size
        best = max(best, (score, steps))
    return dict(zip(axes, best[1], strict=True))


def schedule(staging: Staging, tile: ThreadTile) -> Schedule:
    """Return the loops of a tile."""
    p, chunk, deep = staging.p, tile.chunk, staging.deep
    slow, fast = group(p.slow), group(p.fast)
    (rows, columns), (down, along), threads = tile.blocks, tile.groups, tile.threads
    split = deep if tile.split > 1 else None
    terms = chunk // tile.split
    together = unrolled(terms, rows * columns, bool(staging.window))
    run = neighbours(staging, tile.steps, columns, along)
    s = staging.begun(tile).split(slow, down * rows).split(fast, along * columns)
    s = s.bind(split, terms).bind(slow, rows).bind(fast if along > 1 else None, run).split(deep, chunk)
    s = copies(s, staging, tile, staging.pads()).split(deep, together)
    s = s.unroll(deep if together > 1 else None).reorder(*staging.window).unroll(slow)
    s = s.unroll(fast if columns > run else None, size=run * along)
    s = s.split(fast if run > 1 else None, 1, Kind.VECTOR if run == staging.problem.spec.lanes else Kind.UNROLLED)
    return s.on_threads(threads).build(f"{down * rows}x{along * columns}_k{chunk}_s{tile.split}_x{threads}")


def copies(s: Sched, staging: Staging, tile: ThreadTile, pads: Sequence[int]) -> Sched:
    """Pack constants, and copy both factors inside the innermost loop so far, with `pads` elements after their rows.

    Copies use vectors where possible. If neighbours in memory are not neighbours in scratch, threads copy short runs
    that are contiguous in either.
    """
    lanes, threads = staging.problem.spec.lanes, tile.threads
    for staged, pad in zip(staging.copies, pads, strict=True):
        tensor, every, nest = staged.load.tensor, group(staged.names), Sched(staging.problem)
        if staged.packed:
            s = s.pack([(tensor, Layout(tuple(map(Digit, staged.order))))])
        if run := staging.run(staged, staging.box(staged, tile.steps, tile.chunk), threads):
            nest = nest.split(staged.names[-1], run)
        elif staging.joined(staged, tile.steps) > 1:
            nest = nest.split(every, lanes * threads).bind(every, lanes).vectorize(every)
        if not nest.loops or run:
            nest = nest.split(every, threads).bind(every)
        s = s.compute_at(tensor, nest, order=staged.order, pad=pad)
    return s


def scratch_order(load: Load, axes: tuple[str, ...]) -> tuple[int, ...]:
    """Return the order of the staged box's dimensions: those that move with the tile are innermost."""
    moves = [bool(variables(ix) & set(axes)) for ix in load.index]
    return tuple(sorted(range(len(moves)), key=lambda d: (moves[d], d)))
