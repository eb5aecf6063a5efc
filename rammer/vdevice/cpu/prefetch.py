"""A pass that adds prefetches to tile programs, where measurements have shown that a core's caches gain by them.

Where tiles of a register block walk past a panel of weights, each asks for a piece of the next panel, so that it lies
in the second cache when its turn comes, wherever it came from. Large weights that are read once are asked for some way
ahead, as what caches may drop first: other data stay there, also for the next run. Small inputs of sums are asked for
at once, and what is added to sums while they are computed. And the longest sums ask for what the table says that rTasks
after this one need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import NamedTuple, TypeAlias

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

LINE_BYTES = 64  # of a cache line
LINE = LINE_BYTES // 4  # float32 of it
MIN_PANEL = 64  # lines: smaller ones come fast enough by themselves
# Of the nearest cache: panels that stay there with the next one while tiles walk past them, though caches may drop them
# first. With 48 KiB ResNet-50 took 0.965 of its time, 0.987 up to 16 KiB; BGE-small 1.09 beyond 288 KiB.
SHORT_PANEL = 1 / 2
MAX_LINES = 64  # asked for at once: caches queue about as many
STREAMED = 1 << 20  # float32: weights as large come from far away in every run
AHEAD = 2048  # float32: the core by itself asks for less at once; on Zen 5 4096 was no faster, 512 slower by 2 %
SMALL = 1024  # float32: inputs up to this are asked for at once
ASKING_STEPS = 4  # of a sum for each line that is asked for ahead: in bursts, they would fill the core's queue of lines
LEAST_STEPS = 64  # of a sum that asks
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


Hint: TypeAlias = tuple[Position, Body]  # prefetches, and the loop at whose beginning they stand


def prefetched(program: TileProgram, lanes: int, near_bytes: int) -> TileProgram:
    """The program with prefetches, for a core of so many lanes a vector and so many bytes of nearest cache."""
    stepped = replace(program, body=rewrite_body(program.body, _with_steps))
    hints: dict[Position, Body] = {}
    for at, body in _Prefetcher(stepped, lanes, near_bytes).hints():
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

    def __init__(self, program: TileProgram, lanes: int, near_bytes: int) -> None:
        self.program, self.lanes, self.near_bytes = program, lanes, near_bytes
        inputs = program.arguments[program.num_outputs :]
        self.inputs = {b.name: b for b in inputs if b.scope is Scope.ARGUMENT and b.dtype.itemsize == 4}
        self.sites = list(_sites(program.body))
        self.serial = [Loop(s.at, s.stmt) for s in self.sites if isinstance(s.stmt, For) and s.stmt.kind is Kind.SERIAL]
        self.loads: dict[Position, list[VectorLoad]] = {}  # inside of a loop, with the loops that are inside of it, too
        for load in self._vector_loads(self.sites):
            for n, (at, _) in enumerate(load.around):
                self.loads.setdefault(at, []).append(load._replace(around=load.around[n + 1 :]))
        self.products = list(_products(self.sites))

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
                yield Prefetch(buffer, start + AHEAD, step, once=True)

    def _next_panels(self, outer: Loop) -> Iterator[Hint]:
        """Pieces of the panel of weights that the next iteration of a loop reads, where loops inside walk past one."""
        seen: set[tuple[str, Position]] = set()
        for path, buffer, index in self.loads.get(outer.at, ()):
            if not (far := index.coef(outer.loop.var)) > 0:
                continue
            moving = [n for n, (_, lp) in enumerate(path) if lp.var in variables(index)]
            still = [n for n, (_, lp) in enumerate(path) if n not in moving and lp.kind is Kind.SERIAL]
            if not still or not moving or moving[0] < still[0] or (buffer, path[still[0]].at) in seen:
                continue
            walk, inside = path[still[0]], [path[n] for n in moving]
            if any(not isinstance(atom, str) for atom, _ in index.terms):
                continue
            first = substitute(index, {lp.var: Index(lp.start) for _, lp in inside})
            last = substitute(index, {lp.var: Index(lp.stop - 1) for _, lp in inside})
            size = (last - first).const + 1
            lines = size // LINE
            if size > 4 * _count(lp for _, lp in inside) or lines < MIN_PANEL or (last - first).terms:
                continue
            seen.add((buffer, walk.at))
            serial = [lp for lp in inside if lp.loop.kind is Kind.SERIAL]
            turns = [walk, *serial[:-1]][:2]  # not the innermost loop
            each = -(-lines // _count(lp for _, lp in turns))
            start, turn = first + far, _turn([lp for _, lp in turns])
            burst = Prefetch(
                buffer,
                start + turn * (each * LINE),
                each * LINE,
                2,
                once=lines * LINE_BYTES <= SHORT_PANEL * self.near_bytes,
            )
            if hint := _step_by_step(serial, burst):
                yield hint
            elif not any(_sums(lp.body) for _, lp in serial):  # of a strip of panels, some would come late
                each = min(each, MAX_LINES)
                yield turns[-1].at, (replace(burst, index=start + turn * (each * LINE), size=each * LINE),)

    def _next_encoded_panel(self, product: Apply, blocks: Loop, outer: tuple[Loop, ...]) -> Iterator[Hint]:
        """While blocks of rows pass by a panel of encoded weights: pieces of the panel after it."""
        panel, (*_, (_, kind)) = product.operands[-1], product.instruction.types(product.sizes)
        assert kind.layout is not None and kind.layout.encoding is not None
        encoding = kind.layout.encoding
        moving = [n for n, (_, lp) in enumerate(outer) if panel.at.coef(lp.var)]
        if panel.buffer not in self.inputs or not moving or moving[-1] == len(outer) - 1:
            return  # it was copied here just now; or each panel is used once, in the order in which they lie
        walk = outer[moving[-1]].loop.var
        turns = [lp for _, lp in (*outer[moving[-1] + 1 :], blocks)]
        line = LINE_BYTES // encoding.dtype.itemsize
        lines = -(-kind.size * encoding.parts // line // _count(turns))
        if lines <= UNIT_MAX_LINES:
            start = (panel.at + panel.at.coef(walk)) * encoding.parts
            yield blocks.at, (Prefetch(panel.buffer, start + _turn(turns) * (lines * line), lines * line, 2, encoding),)

    def _next_tasks(self) -> Iterator[Hint]:
        """What runs next, asked for by the longest sums: lines every few steps, and the last ones in the last block."""
        suited = [(outer, steps) for _, steps, outer in self.products] or self._long_sums()
        suited = [(outer, sums) for outer, sums in suited if outer]
        if not suited:
            return
        outer, sums = max(suited, key=lambda found: _count(lp for _, lp in (*found[0], found[1])))
        step, blocks = _turn([sums.loop]), [lp for _, lp in outer]
        if self.products:
            pace = _count([sums.loop]) * UNIT_LINES
            turn = (_turn(blocks) - _count(blocks)) * pace
            yield sums.at, (Prefetch(NEXT, turn + step * UNIT_LINES, UNIT_LINES, 2),)
        else:
            turn = (_turn(blocks) - _count(blocks)) * (_count([sums.loop]) // ASKING_STEPS)
            line = Prefetch(NEXT, turn + step // ASKING_STEPS, 1, 2)
            yield sums.at, (If((Range(step % ASKING_STEPS, 0, 1),), (line,)),)

    def _long_sums(self) -> list[tuple[tuple[Loop, ...], Loop]]:
        """Loops that go on with a register block's sums for long, each with all serial loops around it.

        Those that stream their weights from far memory have no time to ask for others, and one with pieces of vectors
        is not to be repeated.
        """
        found = []
        for at, stmt, around in self.sites:
            match stmt:
                case For(_, start, stop, Kind.SERIAL, inner) if register_block(inner) >= LEAST_SUMS:
                    plain = all(lp.kind in (Kind.SERIAL, Kind.TASK) for _, lp in around)
                    whole = stop - start >= LEAST_STEPS and (stop - start) % ASKING_STEPS == 0
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


def _step_by_step(loops: Sequence[Loop], burst: Prefetch) -> Hint | None:
    """The lines of a burst, a few in every few steps of a register block's sums, if there are enough.

    In a burst they fill the core's queue of lines, and what is summed waits.
    """
    lines = burst.size // LINE
    if not loops or register_block(loops[-1].loop.body) < LEAST_SUMS or has_pieces(loops[-1].loop.body):
        return None
    at, sums = loops[-1]
    count = _count([sums])
    at_once = -(-lines // count)
    if count < LEAST_STEPS or at_once > MOST_AT_ONCE:
        return None
    times = lines // at_once  # of a few lines that are left, none is asked for
    every = 1 << ((count // times).bit_length() - 1)
    step = _turn([sums])
    due = [Range(step, 0, times * every)] if times * every < count else []
    due += [Range(step % every, 0, 1)] if every > 1 else []
    line = replace(burst, index=burst.index + step // every * (at_once * LINE), size=at_once * LINE)
    return at, ((If(tuple(due), (line,)) if due else line),)


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
