"""A pass that adds prefetches to tile programs, where measurements have shown that a core's caches gain by them.

Where tiles of a register block walk past a panel of weights, each asks for a piece of the next panel, so that it lies
in the second cache when its turn comes, wherever it came from. Large weights that are read once are asked for some way
ahead. Where that costs nothing (`VDeviceSpec.reads_once`), it is as what caches may drop first: other data stay there,
also for the next run. Small inputs of sums are asked for
at once, and what is added to sums while they are computed. And the longest sums ask for what the table says that rTasks
after this one need.
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

LINE = LINE_BYTES // 4  # float32 of it
MIN_PANEL = 64  # lines: smaller ones come fast enough by themselves
# Of the nearest cache: panels that stay there with the next one while tiles walk past them, though caches may drop them
# first. With 48 KiB ResNet-50 took 0.965 of its time, 0.987 up to 16 KiB; BGE-small 1.09 beyond 288 KiB.
SHORT_PANEL = 1 / 2
MAX_LINES = 64  # asked for at once: caches queue about as many
STREAMED = 1 << 20  # float32: weights as large come from far away in every run
FAR = 1 << 18  # float32: parts of weights as large are asked for before they are transformed
AHEAD = 2048  # float32: the core by itself asks for less at once; on Zen 5 4096 was no faster, 512 slower by 2 %
SMALL = 1024  # float32: inputs up to this are asked for at once
ASKING_STEPS = 4  # of a sum for each line that is asked for ahead: in bursts, they would fill the core's queue of lines
LEAST_STEPS = 64  # of a sum that asks for what runs next: of 32 steps it took 1.2 times as long
LEAST_SHARED = 32  # steps of sums that ask for their own weights
MOST_AT_ONCE = 4  # lines that a step asks for: estimated; memory brings about two meanwhile, and the queue holds some
LEAST_SUMS = 8  # of its register block: with fewer, a step takes no longer than asking
UNIT_LINES = 8  # asked for ahead, for each block of terms on the matrix unit
UNIT_MAX_LINES = 32  # that each block of terms asks for
MAX_ROWS = 4  # sums for each vector of streamed weights: beyond, arithmetic takes longer than reading

Position: TypeAlias = tuple[int, ...]  # of a statement: its number in its body, after those of the statements around it


class Loop(NamedTuple):
    """A loop of a program, and where it stands."""

    at: Position
    loop: For


class Site(NamedTuple):
    """A statement of a program, where it stands, and the loops around it, outermost first."""

    at: Position
    stmt: Stmt
    around: tuple[Loop, ...]


class VectorLoad(NamedTuple):
    """What a vector loop loads, and loops around it, outermost first."""

    around: tuple[Loop, ...]
    buffer: str
    element: Index

    @property
    def register_loops(self) -> list[For]:
        """The loops of a register block that move the load."""
        names = variables(self.element)
        return [lp for _, lp in self.around if lp.kind in (Kind.UNROLLED, Kind.VECTOR) and lp.var in names]

    def span(self, loops: Sequence[For]) -> tuple[Index, Index]:
        """The first element, and the last, while some serial loops go on."""
        return _ends(self.element, [*loops, *self.register_loops])


class PanelLoad(NamedTuple):
    """A load of a panel of weights: the loop that walks past the panel, and loops inside of it that move the load."""

    walk: Loop
    inside: tuple[Loop, ...]
    element: Index

    @property
    def serial(self) -> tuple[Loop, ...]:
        return _serial(self.inside)

    @property
    def ends(self) -> tuple[Index, Index]:
        """The first element, and the last, for one iteration of all loops outside."""
        return _ends(self.element, [lp for _, lp in self.inside])


Hint: TypeAlias = tuple[Position, Body]  # prefetches, and the loop at whose beginning they stand


def prefetched(program: TileProgram, spec: VDeviceSpec) -> TileProgram:
    """The program with prefetches, for the cores of a CPU."""
    stepped = replace(program, body=rewrite_body(program.body, _with_steps))
    hints: dict[Position, Body] = {}
    for at, body in _Prefetcher(stepped, spec).hints():
        hints[at] = (*hints.get(at, ()), *body)
    return replace(stepped, body=_with_hints(stepped.body, hints))


def capacity(program: TileProgram) -> int:
    """Lines that an rTask can ask for ahead of the rTasks after it."""
    for site in _sites(program.body):
        if isinstance(site.stmt, Prefetch) and site.stmt.buffer == NEXT:
            env = {loop.var: (loop.start, loop.stop - 1) for _, loop in site.around}
            return -bounds(site.stmt.index, env)[0]
    return 0


def in_blocks(stmt: Apply) -> bool:
    """Whether it adds a block of terms at a time to sums in memory: a product whose operands lie in parts."""
    if not stmt.instruction.multiplies:
        return False
    _, (_, kind), _ = stmt.instruction.tensors
    return kind.layout is not None and kind.layout.encoding is not None


def steps(product: Apply) -> For:
    """The loop over blocks of terms that a product by an instruction goes through."""
    return For("rammer_block", 0, -(-product.extents[-1] // product.instruction.axes[-1][1]), Kind.SERIAL, ())


def register_block(body: Body) -> int:
    """Sums of a register block that a body goes on with, if it does nothing else; else 0."""
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
    """Vectors that one pass of a register block loads: those that several sums share count once."""
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
    """Whether some vectors begin in mid-vector."""
    return any(isinstance(s, For) and s.kind is Kind.VECTOR and s.start for s in statements(body))


class _Prefetcher:
    """What to prefetch in one program, by kinds."""

    def __init__(self, program: TileProgram, spec: VDeviceSpec) -> None:
        self.program, self.lanes, self.near_bytes = program, spec.lanes, spec.near_bytes
        self.reads_once = spec.reads_once
        inputs = program.arguments[program.num_outputs :]
        self.inputs = {b.name: b for b in inputs if b.scope is Scope.ARGUMENT and b.dtype.itemsize == 4}
        self.sites = list(_sites(program.body))
        self.serial = [Loop(s.at, s.stmt) for s in self.sites if isinstance(s.stmt, For) and s.stmt.kind is Kind.SERIAL]
        self.loads: dict[Position, list[VectorLoad]] = {}  # inside of a loop, with the loops that are inside of it, too
        for load in self._vector_loads(self.sites):
            for n, (at, _) in enumerate(load.around):
                self.loads.setdefault(at, []).append(load._replace(around=load.around[n + 1 :]))
        self.products = list(_products(self.sites))
        applied = [s.stmt for s in self.sites if isinstance(s.stmt, Apply)]
        self.encoders = {s.operands[0].buffer: s for s in applied if s.instruction.encodes}

    def hints(self) -> Iterator[Hint]:
        """All prefetches; of one loop those that stand first come first."""
        yield from ((loop.at, tuple(self._stream(loop))) for loop in self.serial)
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
        """Vectors that loops load from inputs, with all loops around each."""
        for _, stmt, around in sites:
            if isinstance(stmt, Store) and around and (lanes := around[-1].loop).kind is Kind.VECTOR:
                for load, _ in loads(stmt.value):
                    if load.tensor in self.inputs and not load.dynamic and load.index[0].coef(lanes.var) == 1:
                        yield VectorLoad(around, load.tensor, load.index[0])

    def _small_inputs(self, fetched: set[str]) -> Iterator[Prefetch]:
        """Inputs that another core may just have written: a sum would wait for each of their lines in turn."""
        for name, buffer in self.inputs.items():
            if buffer.size <= SMALL and name not in fetched:
                yield Prefetch(name, Index(), buffer.size)

    def _stream(self, loop: Loop) -> Iterator[Prefetch]:
        """What a loop reads soon, where it reads large weights once, one after the other."""
        sums = register_block(loop.loop.body) * self.lanes
        outer = [other.loop.var for other in self.serial if other.at == loop.at[: len(other.at)] and other != loop]
        for inside, buffer, index in self.loads.get(loop.at, ()) if sums else ():
            step = index.coef(loop.loop.var)
            block = _count(lp for _, lp in inside if lp.var in variables(index))
            large = self.inputs[buffer].size >= STREAMED
            once = variables(index).issuperset(outer)  # else they lie near when more rows pass by
            if large and once and step == block and step >= LINE and block <= sums <= MAX_ROWS * step:
                start = substitute(index, {lp.var: Index(lp.start) for _, lp in inside})
                yield Prefetch(buffer, start + AHEAD, step, 2, once=self.reads_once)

    def _next_panels(self, outer: Loop) -> Iterator[Hint]:
        """Pieces of the panel of weights that the next iteration of a loop reads, where loops inside walk past one."""
        found: dict[tuple[str, Position, Position], list[PanelLoad]] = {}  # by nests that walk past one
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
            if start not in others:  # else a nest before this one asks for the same
                others.append(start)
                yield from self._next_panel(buffer, start.coef(outer.loop.var), panel)

    def _next_panel(self, buffer: str, far: int, panel: Sequence[PanelLoad]) -> Iterator[Hint]:
        """Pieces of one, which begins `far` behind the one that some loads read."""
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
        once = self.reads_once and lines * LINE_BYTES <= SHORT_PANEL * self.near_bytes
        index, turn = start + low + far, _turn([lp for _, lp in turns])
        burst = Prefetch(buffer, index + turn * (each * LINE), each * LINE, 2, once=once)
        if hints := _step_by_step(paths, burst):
            yield from hints
        elif not any(_sums(lp.body) for load in panel for _, lp in load.serial):  # of strips, some would come late
            each = min(each, MAX_LINES)
            yield turns[-1].at, (replace(burst, index=index + turn * (each * LINE), size=each * LINE),)

    def _next_encoded_panel(self, product: Apply, blocks: Loop, outer: tuple[Loop, ...]) -> Iterator[Hint]:
        """While blocks of rows pass by a panel of weights, encoded or to be: pieces of the panel after it."""
        panel, (*_, (_, kind)) = product.operands[-1], product.instruction.types(product.sizes)
        if copy := self.encoders.get(panel.buffer):
            panel, (*_, (_, kind)) = copy.operands[-1], copy.instruction.types(copy.sizes)
        assert kind.layout is not None
        encoding = kind.layout.encoding
        parts, itemsize = (encoding.parts, encoding.dtype.itemsize) if encoding else (1, kind.dtype.itemsize)
        moving = [n for n, (_, lp) in enumerate(outer) if panel.at.coef(lp.var)]
        if panel.buffer not in self.inputs or not moving or moving[-1] == len(outer) - 1:
            return  # it was copied here just now; or each panel is used once, in the order in which they lie
        walk = outer[moving[-1]].loop.var
        turns = [lp for _, lp in (*outer[moving[-1] + 1 :], blocks)]
        line = LINE_BYTES // itemsize
        lines = -(-kind.size * parts // line // _count(turns))
        if lines <= UNIT_MAX_LINES:
            start = (panel.at + panel.at.coef(walk)) * parts
            yield blocks.at, (Prefetch(panel.buffer, start + _turn(turns) * (lines * line), lines * line, 2, encoding),)

    def _next_tasks(self) -> Iterator[Hint]:
        """What runs next, asked for by the longest sums: lines every few steps, and the last ones in the last block."""
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

    def _longest_sums(self, least: int) -> tuple[tuple[Loop, ...], Loop] | None:
        """The loop of sums, inside of others, that goes on for most steps, and all serial loops around it."""
        suited = [(outer, steps) for _, steps, outer in self.products] or self._long_sums(least)
        suited = [(outer, sums) for outer, sums in suited if outer]
        return max(suited, key=lambda found: _count(lp for _, lp in (*found[0], found[1])), default=None)

    def _next_parts(self, outer: tuple[Loop, ...], sums: Loop) -> Iterator[Hint]:
        """Parts of large weights that are read, and transformed, right before sums: these ask for the next part."""
        found: dict[str, list[VectorLoad]] = {}
        for load in self._vector_loads(self.sites):
            if self.inputs[load.buffer].size >= FAR:
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

    def _long_sums(self, least: int) -> list[tuple[tuple[Loop, ...], Loop]]:
        """Loops that go on with a register block's sums for long, each with all serial loops around it.

        Those that stream their weights from far memory have no time to ask for others, and one with pieces of vectors
        is not to be repeated.
        """
        found = []
        for at, stmt, around in self.sites:
            match stmt:
                case For(_, start, stop, Kind.SERIAL, inner) if register_block(inner) >= LEAST_SUMS:
                    plain = all(lp.kind in (Kind.SERIAL, Kind.TASK) for _, lp in around)
                    whole = stop - start >= least and (stop - start) % ASKING_STEPS == 0
                    if plain and whole and not has_pieces(inner) and not any(self._stream(Loop(at, stmt))):
                        found.append((_serial(around), Loop(at, stmt)))
        return found

    def _following(self, sums: tuple[Loop, ...], nest: Site) -> Iterator[tuple[list[VectorLoad], Hint]]:
        """While blocks of sums are computed: the lines that the nest after them loads, if they are few.

        It would wait for most of them in turn; many are left to the core, as they would push out the weights.
        """
        found: dict[tuple[str, Index], VectorLoad] = {}
        for load in self._vector_loads(_sites_in(nest)):
            index = substitute(load.element, {load.around[-1].loop.var: Index()})
            found.setdefault((load.buffer, index), VectorLoad(load.around[:-1], load.buffer, index))
        blocks = [lp for _, lp in sums]
        for path in dict.fromkeys(load.around for load in found.values()):
            loops, wanted = [lp for _, lp in path], [load for load in found.values() if load.around == path]
            turns = -(-_count(loops) // _count(blocks))
            few = _count(loops) * len(wanted) <= MAX_LINES
            if sums[-1].at in {steps.at for _, steps, _ in self.products}:
                few = turns * len(wanted) <= UNIT_MAX_LINES
            if not few or any(lp.start for lp in loops):
                continue
            number = _turn(blocks) * turns + var("rammer_turn")
            env = {lp.var: (lp.start, lp.stop - 1) for lp in blocks} | {"rammer_turn": (0, turns - 1)}
            digits = {lp.var: simplify(number // _count(loops[n + 1 :]) % lp.stop, env) for n, lp in enumerate(loops)}
            lines = tuple(Prefetch(buffer, substitute(index, digits)) for _, buffer, index in wanted)
            yield wanted, (sums[-1].at, (For("rammer_turn", 0, turns, Kind.UNROLLED, lines),))


def _ends(index: Index, loops: Sequence[For]) -> tuple[Index, Index]:
    """What an index is in the first iteration of some loops, and in the last."""
    first, last = ({lp.var: Index(lp.stop - 1 if end else lp.start) for lp in loops} for end in (False, True))
    return substitute(index, first), substitute(index, last)


def _next_part(
    loads: Sequence[VectorLoad], moving: Sequence[For], path: Sequence[For], blocks: Sequence[For]
) -> Prefetch:
    """A share, for one of the `blocks`, of what loads read along a `path` of loops in the next turn of those that move
    it; nothing if that lies too scattered. After the last turn comes the first one.
    """
    buffer, read = loads[0].buffer, sum(_count(load.register_loops) for load in loads)
    for n in range(len(path) + 1):  # the first n loops go from one piece of memory to the next
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
    """Where loops are in iteration `number` of all of them; after the last one they begin again."""
    return {lp.var: number // _count(loops[n + 1 :]) % (lp.stop - lp.start) + lp.start for n, lp in enumerate(loops)}


def _step_by_step(paths: Sequence[tuple[Loop, ...]], burst: Prefetch) -> list[Hint]:
    """The lines of a burst, a few in every few steps of register blocks' sums, if there are enough: those that follow
    one another, each the innermost loop of a path, share them.

    In a burst they fill the core's queue of lines, and what is summed waits.
    """
    sums = [path[-1].loop.body for path in paths]
    if not paths or any(register_block(body) < LEAST_SUMS or has_pieces(body) for body in sums):
        return []
    counts = [_count(lp for _, lp in path) for path in paths]
    at_once = -(-(burst.size // LINE) // sum(counts))
    if not at_once or sum(counts) < LEAST_SHARED or at_once > MOST_AT_ONCE:
        return []
    times = burst.size // LINE // at_once  # of a few lines that are left, none is asked for
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


def _common(paths: Sequence[tuple[Loop, ...]]) -> tuple[Loop, ...]:
    """The loops with which all paths begin."""
    same = takewhile(lambda loops: len({at for at, _ in loops}) == 1, zip(*paths, strict=False))
    return tuple(loops[0] for loops in same)


def _with_steps(stmt: Stmt) -> Stmt:
    """A product with a loop over its steps, in which something may be prefetched."""
    return replace(stmt, meanwhile=steps(stmt)) if isinstance(stmt, Apply) and in_blocks(stmt) else stmt


def _with_hints(body: Body, hints: Mapping[Position, Body], at: Position = ()) -> Body:
    """A body with prefetches at its beginning, and inside."""
    inner = (with_children(s, _with_hints(children(s), hints, (*at, n))) for n, s in enumerate(body))
    return (*hints.get(at, ()), *inner)


def _is_hint(stmt: Stmt) -> bool:
    """Whether a statement does nothing but prefetch."""
    return isinstance(stmt, Prefetch) or (isinstance(stmt, For | If) and all(map(_is_hint, children(stmt))))


def _sites(body: Body) -> Iterator[Site]:
    """All statements of a program."""
    for n, stmt in enumerate(body):
        yield from _sites_in(Site((n,), stmt, ()))


def _sites_in(site: Site) -> Iterator[Site]:
    """A statement, and all that are inside of it."""
    yield site
    around = (*site.around, Loop(site.at, site.stmt)) if isinstance(site.stmt, For) else site.around
    for n, stmt in enumerate(children(site.stmt)):
        yield from _sites_in(Site((*site.at, n), stmt, around))


def _products(sites: Iterable[Site]) -> Iterator[tuple[Apply, Loop, tuple[Loop, ...]]]:
    """Products on the matrix unit, each with the loop over its blocks of terms, and all serial loops around it."""
    for at, stmt, around in sites:
        if isinstance(stmt, Apply) and stmt.meanwhile:
            yield stmt, Loop((*at, 0), stmt.meanwhile), _serial(around)


def _followers(body: Body, at: Position) -> Iterator[tuple[tuple[Loop, ...], Site]]:
    """Serial loops around a block of sums, with each nest after them in the same body that sums nothing."""
    blocks: tuple[Loop, ...] = ()
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


def _block_path(at: Position, nest: For) -> tuple[Loop, ...]:
    """Serial loops from a nest's first down to the one that holds a register block; none if they do more than that."""
    path: list[Loop] = []
    body: Body = (nest,)
    while len(body) == 1 and isinstance(loop := body[0], For) and loop.kind is Kind.SERIAL:
        path.append(Loop(at, loop))
        at, body = (*at, 0), loop.body
        if any(isinstance(s, Alloc) for s in body):
            return tuple(path)
    return ()


def _sums(body: Body) -> bool:
    """Whether the body has accumulators."""
    return any(isinstance(s, Alloc) and s.buffer.scope is Scope.REGISTER for s in statements(body))


def _serial(loops: Iterable[Loop]) -> tuple[Loop, ...]:
    return tuple(loop for loop in loops if loop.loop.kind is Kind.SERIAL)


def _count(loops: Iterable[For]) -> int:
    """How often loops run, one inside of the other."""
    return prod(lp.stop - lp.start for lp in loops)


def _turn(loops: Sequence[For]) -> Index:
    """The number of an iteration of such loops."""
    return sum(((var(lp.var) - lp.start) * _count(loops[n + 1 :]) for n, lp in enumerate(loops)), Index())
