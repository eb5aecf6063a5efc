"""Add prefetches to tile programs where measurements have shown a gain. Known as: software prefetching.

- While the tiles of a register block walk past a panel of weights, each prefetches a piece of the next panel into L2.
- Large weights that are read once are prefetched some distance ahead, and rows that several loops read by the last one.
  If that costs nothing (`VDeviceSpec.non_temporal`), the hint is non-temporal: caches may evict these lines first, so
  that other data stay, also for the next run.
- Lines that loops write contiguously to large outputs are prefetched for writing.
- Small inputs of sums are prefetched at once, and while sums are computed, the operands that are added to them.
- The longest sums prefetch the weights of later rTasks, as the table says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from math import gcd, prod
from typing import NamedTuple, TypeAlias

from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Call, Load, Range, loads
from rammer.ir.index import Index, bounds, simplify, substitute, var, variables
from rammer.ir.tile import (
    NEXT,
    Alloc,
    Apply,
    Body,
    For,
    If,
    Kind,
    Prefetch,
    Scope,
    Stmt,
    Store,
    TileProgram,
    children,
    rewrite_body,
    statements,
    with_children,
)
from rammer.vdevice.cpu.runtime.table import LINE_BYTES

LINE = LINE_BYTES // 4  # float32 per line
MIN_PANEL = 64  # lines: the hardware's prefetcher handles smaller panels
# Of L1: panels that stay there, together with the next one, while tiles walk past them, even if prefetched as
# non-temporal. With 48 KiB ResNet-50 took 0.965 of its time, 0.987 up to 16 KiB; BGE-small 1.09 beyond 288 KiB.
SHORT_PANEL = 1 / 2
MAX_LINES = 64  # per burst: caches queue about as many
STREAMED = 1 << 20  # float32: weights of this size are cold in each run
LARGE_PARTS = 1 << 18  # float32: parts of weights of this size are prefetched before they are transformed
AHEAD = 2048  # float32: farther than the core's own prefetcher; on Zen 5 4096 was as fast, 512 slower by 2 %
WRITE_AHEAD = 16  # lines: 32 and 64 were as fast on a Skylake, 8 too
SMALL = 1024  # float32: inputs up to this size are prefetched at once
ASKING_STEPS = 4  # of a sum per line prefetched for later rTasks: bursts would fill the core's fill buffers
LEAST_STEPS = 64  # of a sum that prefetches for later rTasks: one of 32 steps took 1.2 times as long
LEAST_SHARED = 32  # steps of sums that prefetch their own weights
MOST_AT_ONCE = 4  # lines per step: estimated; memory delivers about two meanwhile, and the fill buffers hold some
LEAST_SUMS = 8  # of a register block: with fewer, a step takes no longer than its prefetches
UNIT_LINES = 8  # prefetched for later rTasks, per block of terms on the matrix unit
UNIT_MAX_LINES = 32  # prefetched per block of terms on the matrix unit
MAX_ROWS = 4  # sums for each vector of streamed weights: with more, arithmetic takes longer than reading

Position: TypeAlias = tuple[int, ...]  # path to a statement: its number in each body, outermost first


class LoopSite(NamedTuple):
    """A loop of a program, with its position."""

    at: Position
    loop: For


class Site(NamedTuple):
    """A statement of a program, with its position and the loops around it, outermost first."""

    at: Position
    stmt: Stmt
    around: tuple[LoopSite, ...]


class VectorLoad(NamedTuple):
    """A load of a vector loop, with the loops around it, outermost first."""

    around: tuple[LoopSite, ...]
    buffer: str
    element: Index

    @property
    def register_loops(self) -> list[For]:
        """Loops of a register block that index the load."""
        names = variables(self.element)
        return [lp for _, lp in self.around if lp.kind in (Kind.UNROLLED, Kind.VECTOR) and lp.var in names]

    def span(self, loops: Sequence[For]) -> tuple[Index, Index]:
        """Return the first and last element that the load reads while these serial loops run."""
        return _ends(self.element, [*loops, *self.register_loops])


class PanelLoad(NamedTuple):
    """A load of a panel of weights: the loop that walks past the panel, and inner loops that index the load."""

    walk: LoopSite
    inside: tuple[LoopSite, ...]
    element: Index

    @property
    def serial(self) -> tuple[LoopSite, ...]:
        return _serial(self.inside)

    @property
    def ends(self) -> tuple[Index, Index]:
        """The first and last element, for one iteration of all outer loops."""
        return _ends(self.element, [lp for _, lp in self.inside])


Hint: TypeAlias = tuple[Position, Body]  # the loop at whose beginning prefetches go, and these


def prefetched(program: TileProgram, spec: VDeviceSpec) -> TileProgram:
    """Return the program with prefetches, for the cores of a CPU."""
    stepped = replace(program, body=rewrite_body(program.body, _with_steps))
    hints: dict[Position, Body] = {}
    for at, body in _Prefetcher(stepped, spec).hints():
        hints[at] = (*hints.get(at, ()), *body)
    return replace(stepped, body=_with_hints(stepped.body, hints))


def capacity(program: TileProgram) -> int:
    """Return the number of lines that an rTask can prefetch for later rTasks."""
    for site in _sites(program.body):
        if isinstance(site.stmt, Prefetch) and site.stmt.buffer == NEXT:
            env = {loop.var: (loop.start, loop.stop - 1) for _, loop in site.around}
            return -bounds(site.stmt.index, env)[0]
    return 0


def in_blocks(stmt: Apply) -> bool:
    """Return whether it adds blocks of terms to sums in memory: a product of encoded operands."""
    if not stmt.instruction.multiplies:
        return False
    _, (_, kind), _ = stmt.instruction.tensors
    return kind.layout is not None and kind.layout.encoding is not None


def steps(product: Apply) -> For:
    """Return the loop over blocks of terms of a product by an instruction."""
    return For("rammer_block", 0, -(-product.extents[-1] // product.instruction.axes[-1][1]), Kind.SERIAL, ())


def register_block(body: Body) -> int:
    """Return the number of sums that a body accumulates in registers, if it does nothing else; else 0."""
    total = 0
    for s in body:
        match s:
            case For(_, start, stop, Kind.UNROLLED, inner) if inside := register_block(inner):
                total += (stop - start) * inside
            case For(_, _, _, Kind.VECTOR, (Store(b, ix, Call(_, (Load(c, (iy,)), *_))),)) if (b, ix) == (c, iy):
                total += 1
            case _ if not _is_hint(s):
                return 0
    return total


def loaded(body: Body, around: tuple[For, ...] = ()) -> int:
    """Return the vectors that one pass of a register block loads. A vector that several sums share counts once."""
    total = 0
    for s in body:
        match s:
            case For(_, _, _, Kind.UNROLLED, inner):
                total += loaded(inner, (*around, s))
            case For(lane, _, _, Kind.VECTOR, (Store(b, _, value),)):
                vectors = {(ld.tensor, ld.index[0]) for ld, _ in loads(value) if ld.tensor != b}
                for _, index in vectors:
                    if lane in (names := variables(index)):
                        total += prod(u.stop - u.start for u in around if u.var in names)
    return total


def has_pieces(body: Body) -> bool:
    """Return whether some vectors begin at a lane other than 0."""
    return any(isinstance(s, For) and s.kind is Kind.VECTOR and s.start for s in statements(body))


class _Prefetcher:
    """Finds the prefetches of one program, by kinds."""

    def __init__(self, program: TileProgram, spec: VDeviceSpec) -> None:
        self.program, self.lanes, self.l1_bytes = program, spec.lanes, spec.l1.nbytes
        self.non_temporal = spec.non_temporal
        inputs = program.arguments[program.num_outputs :]
        self.inputs = {b.name: b for b in inputs if b.scope is Scope.ARGUMENT and b.dtype.itemsize == 4}
        self.outputs = {b.name: b for b in program.arguments[: program.num_outputs] if b.nbytes > spec.l2.nbytes}
        self.sites = list(_sites(program.body))
        self.serial = [LoopSite(at, s) for at, s, _ in self.sites if isinstance(s, For) and s.kind is Kind.SERIAL]
        self.loads: dict[Position, list[VectorLoad]] = {}  # by loop: loads inside, with the loops in between
        for load in self._vector_loads(self.sites):
            for n, (at, _) in enumerate(load.around):
                self.loads.setdefault(at, []).append(load._replace(around=load.around[n + 1 :]))
        read = [(load, lp) for lp in self.serial for load in self.loads.get(lp.at, ()) if not _serial(load.around)]
        self.readers = {name: [lp for load, lp in read if load.buffer == name] for name in self.inputs}
        self.products = list(_products(self.sites))
        applied = [s.stmt for s in self.sites if isinstance(s.stmt, Apply)]
        self.encoders = {s.operands[0].buffer: s for s in applied if s.instruction.encodes}

    def hints(self) -> Iterator[Hint]:
        """Yield all prefetches. Those of one loop come in the order in which they are placed."""
        yield from ((loop.at, tuple(dict.fromkeys(self._stream(loop)))) for loop in self.serial)
        yield from self._written()
        yield from chain.from_iterable(self._next_encoded_panel(*found) for found in self.products)
        yield from self._next_tasks()
        fetched: set[str] = set()
        for sums, nest in _followers(self.program.body, ()) if self.lanes == LINE else ():
            for loads_, hint in self._following(sums, nest):
                fetched |= {load.buffer for load in loads_}
                yield hint
        yield from chain.from_iterable(map(self._next_panels, self.serial))
        if longest := self._longest_sums(LEAST_SHARED):
            yield from self._next_parts(*longest)
        if _sums(self.program.body):
            yield (), tuple(self._small_inputs(fetched))

    def _vector_loads(self, sites: Iterable[Site]) -> Iterator[VectorLoad]:
        """Yield vector loads from inputs, each with all loops around it."""
        for _, stmt, around in sites:
            if isinstance(stmt, Store) and around and (lanes := around[-1].loop).kind is Kind.VECTOR:
                for load, _ in loads(stmt.value):
                    if load.tensor in self.inputs and not load.dynamic and load.index[0].coef(lanes.var) == 1:
                        yield VectorLoad(around, load.tensor, load.index[0])

    def _small_inputs(self, fetched: set[str]) -> Iterator[Prefetch]:
        """Yield prefetches of inputs that another core may just have written: sums would wait for each line in turn."""
        for name, buffer in self.inputs.items():
            if buffer.size <= SMALL and name not in fetched:
                yield Prefetch(name, Index(), buffer.size)

    def _stream(self, loop: LoopSite) -> Iterator[Prefetch]:
        """Yield prefetches, some distance ahead, for a loop that reads large inputs contiguously, last of all loops.

        Sums read weights once. Other loops read rows again, and the next ones are prefetched meanwhile.
        """
        sums = register_block(loop.loop.body) * self.lanes
        outer = [other for other in self.serial if other.at == loop.at[: len(other.at)] and other != loop]
        for inside, buffer, index in self.loads.get(loop.at, ()):
            step = index.coef(loop.loop.var)
            block = _count(lp for _, lp in inside if lp.var in variables(index))
            large = self.inputs[buffer].size >= STREAMED
            once = variables(index).issuperset(lp.var for _, lp in outer)  # else they are resident for later rows
            first, last = self.readers[buffer][0], self.readers[buffer][-1]
            again = register_block(first.loop.body) > 0 and not register_block(last.loop.body)
            suited = loop == last if again else block <= sums <= MAX_ROWS * step
            if large and once and step == block and step >= LINE and suited:
                start = substitute(index, {lp.var: Index(lp.start) for _, lp in inside})
                rows = [index.coef(lp.var) for at, lp in outer if again and at == first.at[: len(at)]]
                yield Prefetch(buffer, start + max([AHEAD, *rows[-1:]]), step, 2, once=self.non_temporal)

    def _written(self) -> Iterator[Hint]:
        """Yield prefetches of the lines that loops write next, contiguously, to outputs larger than the private cache.

        A store waits for its line otherwise: sums and copies of 8 MB took 1.1 to 1.6 times as long on a Skylake.
        """
        for _, stmt, around in self.sites:
            if isinstance(stmt, Store) and stmt.buffer in self.outputs and not stmt.dynamic and _serial(around):
                at, loop = _serial(around)[-1]
                inside = [lp for _, lp in around if lp.kind in (Kind.UNROLLED, Kind.VECTOR)]
                step, line = stmt.index.coef(loop.var), LINE_BYTES // self.outputs[stmt.buffer].dtype.itemsize
                if step == _count(inside) and step % line == 0:
                    start = substitute(stmt.index, {lp.var: Index(lp.start) for lp in inside})
                    yield at, (Prefetch(stmt.buffer, start + WRITE_AHEAD * line, step),)

    def _next_panels(self, outer: LoopSite) -> Iterator[Hint]:
        """Yield prefetches of the panel of weights for a loop's next iteration, if inner loops walk past this one's."""
        found: dict[tuple[str, Position, Position], list[PanelLoad]] = {}  # by nests that walk past the panel
        for path, buffer, index in self.loads.get(outer.at, ()):
            if not index.coef(outer.loop.var) > 0 or any(not isinstance(atom, str) for atom, _ in index.terms):
                continue
            moving = [n for n, (_, lp) in enumerate(path) if lp.var in variables(index)]
            still = [n for n, (_, lp) in enumerate(path) if n not in moving and lp.kind is Kind.SERIAL]
            if still and moving and moving[0] > still[0]:
                load = PanelLoad(path[still[0]], tuple(path[n] for n in moving), index)
                found.setdefault((buffer, load.walk.at, load.inside[0].at), []).append(load)
        asked: dict[tuple[str, Position], list[Index]] = {}
        for (buffer, walk, _), panel in found.items():
            start, _ = panel[0].ends
            others = asked.setdefault((buffer, walk), [])
            if start not in others:  # else an earlier nest prefetches the same
                others.append(start)
                yield from self._next_panel(buffer, start.coef(outer.loop.var), panel)

    def _next_panel(self, buffer: str, distance: int, panel: Sequence[PanelLoad]) -> Iterator[Hint]:
        """Yield prefetches of pieces of the panel that begins `distance` elements after the one of these loads."""
        ends = [load.ends for load in panel]
        start = ends[0][0]
        low = min((first - start).const for first, _ in ends)
        size = max((last - start).const for _, last in ends) + 1 - low
        lines, read = size // LINE, sum(_count(lp for _, lp in load.inside) for load in panel)
        if size > 4 * read or lines < MIN_PANEL or any((end - start).terms for pair in ends for end in pair):
            return
        sums = {load.serial[-1].at: load for load in panel if load.serial}
        parents = _common([load.serial[:-1] for load in sums.values()])
        paths = [load.serial[len(parents) :] for load in sums.values()]
        turns = [panel[0].walk, *parents]
        each = -(-lines // _count(lp for _, lp in turns))
        once = self.non_temporal and lines * LINE_BYTES <= SHORT_PANEL * self.l1_bytes
        index, turn = start + low + distance, _turn([lp for _, lp in turns])
        burst = Prefetch(buffer, index + turn * (each * LINE), each * LINE, 2, once=once)
        if hints := _step_by_step(paths, burst):
            yield from hints
        elif not any(_sums(lp.body) for load in panel for _, lp in load.serial):  # else some strips would be late
            each = min(each, MAX_LINES)
            yield turns[-1].at, (replace(burst, index=index + turn * (each * LINE), size=each * LINE),)

    def _next_encoded_panel(self, product: Apply, blocks: LoopSite, outer: tuple[LoopSite, ...]) -> Iterator[Hint]:
        """Yield prefetches of the next panel of weights, encoded or to be encoded, while rows use this one."""
        panel, (*_, (_, kind)) = product.operands[-1], product.instruction.types(product.sizes)
        if copy := self.encoders.get(panel.buffer):
            panel, (*_, (_, kind)) = copy.operands[-1], copy.instruction.types(copy.sizes)
        assert kind.layout is not None
        encoding = kind.layout.encoding
        parts, itemsize = (encoding.parts, encoding.dtype.itemsize) if encoding else (1, kind.dtype.itemsize)
        moving = [n for n, (_, lp) in enumerate(outer) if panel.at.coef(lp.var)]
        if panel.buffer not in self.inputs or not moving or moving[-1] == len(outer) - 1:
            return  # the panel was just copied here; or each panel is used once, in the order of memory
        walk = outer[moving[-1]].loop.var
        turns = [lp for _, lp in (*outer[moving[-1] + 1 :], blocks)]
        line = LINE_BYTES // itemsize
        lines = -(-kind.size * parts // line // _count(turns))
        if lines <= UNIT_MAX_LINES:
            start = (panel.at + panel.at.coef(walk)) * parts
            yield blocks.at, (Prefetch(panel.buffer, start + _turn(turns) * (lines * line), lines * line, 2, encoding),)

    def _next_tasks(self) -> Iterator[Hint]:
        """Yield prefetches for later rTasks, by the longest sums.

        They request a line every ASKING_STEPS steps, or UNIT_LINES per block on the matrix unit. The last lines are
        requested in the last block of sums.
        """
        if not (found := self._longest_sums(LEAST_STEPS)):
            return
        outer, sums = found
        step, blocks = _turn([sums.loop]), [lp for _, lp in outer]
        if self.products:
            pace = _count([sums.loop]) * UNIT_LINES
            turn = (_turn(blocks) - _count(blocks)) * pace
            yield sums.at, (Prefetch(NEXT, turn + step * UNIT_LINES, UNIT_LINES, 2),)
        else:
            turn = (_turn(blocks) - _count(blocks)) * (_count([sums.loop]) // ASKING_STEPS)
            line = Prefetch(NEXT, turn + step // ASKING_STEPS, 1, 2)
            yield sums.at, (If((Range(step % ASKING_STEPS, 0, 1),), (line,)),)

    def _longest_sums(self, least: int) -> tuple[tuple[LoopSite, ...], LoopSite] | None:
        """Return the loop of sums inside of others that runs the most steps, and all serial loops around it."""
        suited = [(outer, steps) for _, steps, outer in self.products] or self._long_sums(least)
        suited = [(outer, sums) for outer, sums in suited if outer]
        return max(suited, key=lambda found: _count(lp for _, lp in (*found[0], found[1])), default=None)

    def _next_parts(self, outer: tuple[LoopSite, ...], sums: LoopSite) -> Iterator[Hint]:
        """Yield prefetches, by sums, of the next part of large weights that are transformed right before them."""
        found: dict[str, list[VectorLoad]] = {}
        for load in self._vector_loads(self.sites):
            if self.inputs[load.buffer].size >= LARGE_PARTS:
                found.setdefault(load.buffer, []).append(load)
        for every in found.values():
            loads = list({load.element: load for load in every}.values())
            around = _common([*(_serial(load.around) for load in loads), outer])
            paths = {_serial(load.around)[len(around) :] for load in loads}
            moving = [lp for _, lp in around if all(load.element.coef(lp.var) for load in loads)]
            if not moving or moving[-1] != around[-1].loop or len(paths) > 1:
                continue
            path, blocks = ([lp for _, lp in loops] for loops in (*paths, outer[len(around) :]))
            if sums.loop not in path:
                yield from _step_by_step([(sums,)], _next_part(loads, moving, path, blocks))

    def _long_sums(self, least: int) -> list[tuple[tuple[LoopSite, ...], LoopSite]]:
        """Return loops that accumulate a register block for many steps, each with all serial loops around it.

        Loops that stream cold weights are excluded: they have no spare memory bandwidth. So are loops with partial
        vectors, which are not unrolled.
        """
        found = []
        for at, stmt, around in self.sites:
            match stmt:
                case For(_, start, stop, Kind.SERIAL, inner) if register_block(inner) >= LEAST_SUMS:
                    plain = all(lp.kind in (Kind.SERIAL, Kind.TASK) for _, lp in around)
                    whole = stop - start >= least and (stop - start) % ASKING_STEPS == 0
                    if plain and whole and not has_pieces(inner) and not any(self._stream(LoopSite(at, stmt))):
                        found.append((_serial(around), LoopSite(at, stmt)))
        return found

    def _following(self, sums: tuple[LoopSite, ...], nest: Site) -> Iterator[tuple[list[VectorLoad], Hint]]:
        """Yield prefetches, during blocks of sums, of at most MAX_LINES lines that the next nest loads.

        The nest would wait for most of them in turn. Larger sets are left to the core: they would evict the weights.
        """
        found: dict[tuple[str, Index], VectorLoad] = {}
        for load in self._vector_loads(_sites_in(nest)):
            index = substitute(load.element, {load.around[-1].loop.var: Index()})
            found.setdefault((load.buffer, index), VectorLoad(load.around[:-1], load.buffer, index))
        blocks = [lp for _, lp in sums]
        for path in dict.fromkeys(load.around for load in found.values()):
            loops, wanted = [lp for _, lp in path], [load for load in found.values() if load.around == path]
            turns = -(-_count(loops) // _count(blocks))
            fits = _count(loops) * len(wanted) <= MAX_LINES
            if sums[-1].at in {steps.at for _, steps, _ in self.products}:
                fits = turns * len(wanted) <= UNIT_MAX_LINES
            if not fits or any(lp.start for lp in loops):
                continue
            number = _turn(blocks) * turns + var("rammer_turn")
            env = {lp.var: (lp.start, lp.stop - 1) for lp in blocks} | {"rammer_turn": (0, turns - 1)}
            digits = {lp.var: simplify(number // _count(loops[n + 1 :]) % lp.stop, env) for n, lp in enumerate(loops)}
            lines = tuple(Prefetch(buffer, substitute(index, digits)) for _, buffer, index in wanted)
            yield wanted, (sums[-1].at, (For("rammer_turn", 0, turns, Kind.UNROLLED, lines),))


def _ends(index: Index, loops: Sequence[For]) -> tuple[Index, Index]:
    """Return an index's values in the first and in the last iteration of some loops."""
    first, last = ({lp.var: Index(lp.stop - 1 if end else lp.start) for lp in loops} for end in (False, True))
    return substitute(index, first), substitute(index, last)


def _next_part(
    loads: Sequence[VectorLoad], moving: Sequence[For], path: Sequence[For], blocks: Sequence[For]
) -> Prefetch:
    """Return the prefetch, by one of the `blocks`, of its share of the next part.

    The part is what the loads read along a `path` of loops in the next iteration of the `moving` loops; after the last
    iteration comes the first. Its size is 0 if the part is too sparse.
    """
    buffer, read = loads[0].buffer, sum(_count(load.register_loops) for load in loads)
    for n in range(len(path) + 1):  # the first n loops step between contiguous pieces
        spans = [load.span(path[n:]) for load in loads]
        begin, pieces = spans[0][0], _count(path[:n])
        if any((end - begin).terms for span in spans for end in span) or _count(blocks) % pieces:
            break
        low = min((first - begin).const for first, _ in spans)
        size = max((last - begin).const for _, last in spans) + 1 - low
        if size <= 2 * read * _count(path[n:]):
            share = _count(blocks) // pieces
            each = -(-size // (share * LINE)) * LINE
            env = {lp.var: (lp.start, lp.stop - 1) for lp in (*moving, *blocks)}
            places = _digits(_turn(moving) + 1, moving) | _digits(_turn(blocks) // share, path[:n])
            begin = substitute(begin, {name: simplify(place, env) for name, place in places.items()})
            return Prefetch(buffer, begin + low + simplify(_turn(blocks) % share, env) * each, each, 2)
    return Prefetch(buffer, Index(), 0)


def _digits(number: Index, loops: Sequence[For]) -> dict[str, Index]:
    """Return the loop variables in iteration `number` of all loops together, modulo their total."""
    return {lp.var: number // _count(loops[n + 1 :]) % (lp.stop - lp.start) + lp.start for n, lp in enumerate(loops)}


def _step_by_step(paths: Sequence[tuple[LoopSite, ...]], burst: Prefetch) -> list[Hint]:
    """Spread the lines of a burst evenly over the steps of register blocks' sums; [] if there are not enough steps.

    Each path's innermost loop accumulates sums; consecutive ones share the lines. As one burst they would fill the
    core's fill buffers and stall the sums.
    """
    sums = [path[-1].loop.body for path in paths]
    if not paths or any(register_block(body) < LEAST_SUMS or has_pieces(body) for body in sums):
        return []
    counts = [_count(lp for _, lp in path) for path in paths]
    at_once = -(-(burst.size // LINE) // sum(counts))
    if not at_once or sum(counts) < LEAST_SHARED or at_once > MOST_AT_ONCE:
        return []
    times = burst.size // LINE // at_once  # remaining lines are not prefetched
    every = gcd(1 << ((sum(counts) // times).bit_length() - 1), *counts[:-1])
    hints: list[Hint] = []
    for n, path in enumerate(paths):
        before, step = sum(counts[:n]) // every, _turn([lp for _, lp in path])
        left = (times - before) * every
        due = [Range(step, 0, left)] if left < counts[n] else []
        due += [Range(step % every, 0, 1)] if every > 1 else []
        line = replace(burst, index=burst.index + (step // every + before) * (at_once * LINE), size=at_once * LINE)
        if left > 0:
            hints.append((path[-1].at, (If(tuple(due), (line,)) if due else line,)))
    return hints


def _common(paths: Sequence[tuple[LoopSite, ...]]) -> tuple[LoopSite, ...]:
    """Return the loops with which all paths begin."""
    same = takewhile(lambda loops: len({at for at, _ in loops}) == 1, zip(*paths, strict=False))
    return tuple(loops[0] for loops in same)


def _with_steps(stmt: Stmt) -> Stmt:
    """Return a product with an explicit loop over its steps, which can hold prefetches."""
    return replace(stmt, meanwhile=steps(stmt)) if isinstance(stmt, Apply) and in_blocks(stmt) else stmt


def _with_hints(body: Body, hints: Mapping[Position, Body], at: Position = ()) -> Body:
    """Return a body with prefetches at its beginning and inside."""
    inner = (with_children(s, _with_hints(children(s), hints, (*at, n))) for n, s in enumerate(body))
    return (*hints.get(at, ()), *inner)


def _is_hint(stmt: Stmt) -> bool:
    """Return whether a statement only prefetches."""
    return isinstance(stmt, Prefetch) or (isinstance(stmt, For | If) and all(map(_is_hint, children(stmt))))


def _sites(body: Body) -> Iterator[Site]:
    """Yield all statements of a program."""
    for n, stmt in enumerate(body):
        yield from _sites_in(Site((n,), stmt, ()))


def _sites_in(site: Site) -> Iterator[Site]:
    """Yield a statement and all statements inside of it."""
    yield site
    around = (*site.around, LoopSite(site.at, site.stmt)) if isinstance(site.stmt, For) else site.around
    for n, stmt in enumerate(children(site.stmt)):
        yield from _sites_in(Site((*site.at, n), stmt, around))


def _products(sites: Iterable[Site]) -> Iterator[tuple[Apply, LoopSite, tuple[LoopSite, ...]]]:
    """Yield products on the matrix unit, each with the loop over its blocks of terms and all serial loops around it."""
    for at, stmt, around in sites:
        if isinstance(stmt, Apply) and stmt.meanwhile:
            yield stmt, LoopSite((*at, 0), stmt.meanwhile), _serial(around)


def _followers(body: Body, at: Position) -> Iterator[tuple[tuple[LoopSite, ...], Site]]:
    """Yield serial loops around a block of sums, with each later nest of the same body that has no sums."""
    blocks: tuple[LoopSite, ...] = ()
    for n, s in enumerate(body):
        here = (*at, n)
        match s:
            case For() if _sums((s,)):
                blocks = _block_path(here, s)
                yield from _followers(s.body, here)
            case For() if products := list(_products(_sites_in(Site(here, s, ())))):
                _, steps, path = products[0]
                blocks = (*path, steps)
                yield from _followers(s.body, here)
            case For() if blocks:
                yield blocks, Site(here, s, ())
            case Alloc() | If():
                yield from _followers(children(s), here)


def _block_path(at: Position, nest: For) -> tuple[LoopSite, ...]:
    """Return the serial loops from a nest down to a register block; () if they do more than that."""
    path: list[LoopSite] = []
    body: Body = (nest,)
    while len(body) == 1 and isinstance(loop := body[0], For) and loop.kind is Kind.SERIAL:
        path.append(LoopSite(at, loop))
        at, body = (*at, 0), loop.body
        if any(isinstance(s, Alloc) for s in body):
            return tuple(path)
    return ()


def _sums(body: Body) -> bool:
    """Return whether the body has accumulators."""
    return any(isinstance(s, Alloc) and s.buffer.scope is Scope.REGISTER for s in statements(body))


def _serial(loops: Iterable[LoopSite]) -> tuple[LoopSite, ...]:
    return tuple(loop for loop in loops if loop.loop.kind is Kind.SERIAL)


def _count(loops: Iterable[For]) -> int:
    """Return the number of iterations of nested loops."""
    return prod(lp.stop - lp.start for lp in loops)


def _turn(loops: Sequence[For]) -> Index:
    """Return the number of the current iteration of nested loops."""
    return sum(((var(lp.var) - lp.start) * _count(loops[n + 1 :]) for n, lp in enumerate(loops)), Index())
