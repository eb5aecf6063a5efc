"""C for CPUs: register blocks unrolled along the sum, weights fetched before they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TypeAlias

from rammer.ir.expr import Call, Load, loads
from rammer.ir.index import Index, substitute, var, variables
from rammer.ir.instruction import place
from rammer.ir.tensor import Encoding, TensorType
from rammer.ir.tile import (
    Alloc,
    Apply,
    Body,
    For,
    If,
    Kind,
    Scope,
    Store,
    TileProgram,
    statements,
)
from rammer.vdevice.cfamily import CFamilyPrinter

LINE_BYTES = 64  # of a cache line
LINE = LINE_BYTES // 4  # float32 of it
MIN_PANEL = 64  # lines: smaller ones come fast enough by themselves
MAX_FETCHED = 64  # lines asked for at once: caches queue about as many
MAX_STEPS = 64  # stores of an unrolled body
MAX_NUMBERS = 64  # stores of single numbers of an unrolled loop: hundreds of them took clang minutes
FEW_GATHERED = 128  # numbers gathered into vectors by an unrolled loop: clang looks for blocks among them all
MAX_GATHERED = 3072  # by all loops of a kernel that may be unrolled further: 7900 took clang 15 s
STREAMED = 1 << 20  # float32: weights as large come from far away in every run
AHEAD = 512  # float32: the core by itself asks for less at once: 17 instead of 21 GB/s from far memory
SMALL = 1024  # float32: inputs up to this are asked for at once
ASKING_STEPS = 4  # of a sum for each line that is asked for ahead: in bursts, they would fill the core's queue of lines
LEAST_STEPS = 64  # of a sum that asks
LEAST_SUMS = 8  # of its register block: with fewer, a step takes no longer than asking
UNIT_LINES = 8  # asked for ahead, for each block of terms on the matrix unit
UNIT_FETCHED = 32  # lines at most, that each block of terms asks for
MAX_ROWS = 4  # sums for each vector of streamed weights: beyond, arithmetic takes longer than reading


class CpuPrinter(CFamilyPrinter):
    """Prints one tile program for a core with caches.

    Where tiles of a register block walk past a panel of weights, each asks for a piece of the next panel, so that it
    lies in the second cache when its turn comes, wherever it came from. And the first sums of a kernel ask for what the
    table says that rTasks after this one need.
    """

    pieces = narrow_stores = True

    def __init__(self, program: TileProgram, lanes: int) -> None:
        super().__init__(program, lanes)
        many = self.numbers(program.body)[1] > MAX_GATHERED
        self.most_numbers = MAX_NUMBERS, FEW_GATHERED if many else MAX_GATHERED
        self._inputs = {b.name: b for b in program.arguments[program.num_outputs :] if b.scope is Scope.ARGUMENT}
        self._fetches: dict[int, list[str]] = {}  # id of a loop -> lines at its beginning
        self._loads: dict[int, list[_VectorLoad]] = {}  # id of a loop -> what vector loops inside it load
        for path, buffer, index in _vector_loads(program.body, ()):
            if buffer in self._inputs and self._inputs[buffer].dtype.itemsize == 4:
                for n, outer in enumerate(path):
                    self._loads.setdefault(id(outer), []).append((path[n + 1 :], buffer, index))
        unit_loops = list(_unit_loops(program.body, ()))
        self._unit_loops = {id(product): loop for product, loop, _ in unit_loops}
        self.capacity = 0  # lines that an rTask can ask for ahead of their use
        self._asker: For | None = None  # the loop that does
        for product, loop, around in unit_loops:
            self._fetch_panel(product, loop, around)
        self._ask_ahead([(around, loop) for _, loop, around in unit_loops] or self._sums_that_ask(program.body))
        self._fetched: set[str] = set()  # inputs asked for while others are summed
        for sums, nest in _followers(program.body, self._unit_loops) if lanes == LINE else ():
            self._fetch_for(sums, nest)

    def scratch(self) -> list[str]:
        """Declarations; and where something is summed, requests for small inputs, which another core may have written.

        A sum would wait for each of their lines in turn.
        """
        lines = super().scratch()
        if self._unit_loops:
            lines.append("  rammer_unit_begin();")
        for name, buffer in self._inputs.items() if _sums(self.program.body) else ():
            if buffer.size <= SMALL and self.dtypes[name].itemsize == 4 and name not in self._fetched:
                lines += [
                    "  #pragma unroll 4",
                    f"  for (long rammer_n = 0; rammer_n < {buffer.size}; rammer_n += {LINE}) "
                    f"__builtin_prefetch(&{name}[rammer_n], 0, 3);",
                ]
        return lines

    def end(self) -> list[str]:
        return ["  rammer_unit_end();"] if self._unit_loops else []

    def apply(self, s: Apply) -> list[str]:
        if s.instruction.copies:
            return self._copied(s)
        return self._multiplied(s) if _encoded(s) else self._summed(s)

    def _copied(self, s: Apply) -> list[str]:
        """Rows that an instruction encodes, up to the last one that there is."""
        to, source = s.operands
        (rows, depth), (step, following, _) = s.extents, source.steps
        count = str(rows)
        for r in source.where:
            first = substitute(r.index, {s.instruction.axes[0][0]: Index()})
            count = f"imin({count}, {r.high} - ({self.index(first)}))"
        start = f"&{source.buffer}[{self.index(source.at)}]"
        return [f"rammer_{s.instruction.name}({to.buffer}, {start}, {step}, {following}, {count}, {depth});"]

    def _summed(self, s: Apply) -> list[str]:
        """A block of sums by a text that goes through all of its terms: their number, in steps of its own."""
        steps = -(-s.extents[-1] // s.instruction.axes[-1][1])
        operands = ", ".join(f"&{o.buffer}[{self.index(o.at)}]" for o in s.operands)
        return [f"rammer_{s.instruction.name}({operands}, {steps});"]

    def _multiplied(self, s: Apply) -> list[str]:
        """A block of sums: an instruction repeated along its terms."""
        loop, (sums, a, b), name = self._unit_loops[id(s)], s.operands, s.instruction.name
        beginning = dict.fromkeys(s.sizes, 0) | dict(s.instruction.axes[-1:])  # of the second block of terms
        _, *kinds = s.instruction.types(s.sizes)
        places = []
        for operand, (tensor, kind) in zip((a, b), kinds, strict=True):
            block = place(kind.layout, kind.shape, [Index(beginning[x]) for x in s.instruction.axes_of(tensor)])
            places.append(self.index((operand.at + var(loop.var) * block.const) * _encoding(kind).parts))
        form = "x".join(str(s.instruction.extent(axis)) for axis in ("row", "column"))
        operands = f"&{a.buffer}[{places[0]}], (const bf16 *){b.buffer} + {places[1]}"
        return [
            f"rammer_clear({sums.buffer});",
            f"for (long {loop.var} = 0; {loop.var} < {loop.stop}; {loop.var}++) {{",
            *self._fetches.pop(id(loop), []),
            f"  rammer_add_{name}({sums.buffer}, {operands}, {loop.stop});",
            "}",
            f"rammer_store_{form}({sums.buffer});",
        ]

    def loop(self, loop: For, depth: int) -> list[str]:
        if loop.kind is Kind.SERIAL:
            for inner, lines in self._next_panels(loop):
                self._fetches.setdefault(id(inner), []).extend(lines)
        lines = super().loop(loop, depth)
        if loop.kind is not Kind.SERIAL or not lines[0].startswith("for "):
            return lines
        if fetches := self._fetches.pop(id(loop), []):
            lines[1:1] = fetches
        lines[1:1] = self._stream(loop)
        times = ASKING_STEPS if loop is self._asker else self._unrolling(loop)
        return [f"#pragma unroll {times}", *lines] if times > 1 else lines

    def _unrolling(self, loop: For) -> int:
        """How often a loop around a register block is repeated: the steps of a loop take issue slots too.

        Pieces of vectors are seldom met, and each takes clang as long as many whole ones.
        """
        stores, (_, gathered) = _block(loop.body), self.numbers(loop.body)
        count = loop.stop - loop.start
        if stores < 4 or any(isinstance(s, For) and s.kind is Kind.VECTOR and s.start for s in statements(loop.body)):
            return 1
        most = MAX_STEPS // 4 if self.pieced else MAX_STEPS
        return next((n for n in (4, 2) if count % n == 0 and n * stores <= most and n * gathered <= FEW_GATHERED), 1)

    def _sums_that_ask(self, body: Body) -> list[_Sums]:
        """Long sums of register blocks. Those that stream their weights from far memory have no time for it."""
        return [(outer, loop) for outer, loop in _long_sums(body, ()) if not any(self._stream(loop))]

    def _ask_ahead(self, suited: Sequence[_Sums]) -> None:
        """Have the longest sums ask for `rammer_next`: some lines every few steps, the last lines in the last block.

        Operands of plugins have names of their own, which must not be shadowed: hence the prefix.
        """
        suited = [(outer, loop) for outer, loop in suited if outer]
        if not suited:
            return

        def steps(outer: tuple[For, ...], *loop: For) -> int:
            return prod(lp.stop - lp.start for lp in (*outer, *loop))

        outer, summing = max(suited, key=lambda found: steps(found[0], found[1]))
        on_unit = summing in self._unit_loops.values()
        pace = steps((), summing) * UNIT_LINES if on_unit else steps((), summing) // ASKING_STEPS
        self._asker, self.capacity = summing, steps(outer) * pace
        turn = sum(((var(lp.var) - lp.start) * steps(outer[n + 1 :]) for n, lp in enumerate(outer)), Index())
        self._fetches.setdefault(id(outer[-1]), []).extend(
            [
                f"  const long rammer_asked = (rammer_next->lines + {pace - 1}) / {pace} * {pace} + "
                f"{pace} * ({self.index(turn - steps(outer))});",
                "  const char *rammer_from = rammer_asked < 0 ? (const char *)rammer_next : "
                f"rammer_next->from + {LINE_BYTES} * rammer_asked;",
                f"  const long rammer_step = rammer_asked < 0 ? 0 : {LINE_BYTES};",
            ]
        )
        step = self.index(var(summing.var) - summing.start)
        asks = [
            f"  if (({step}) % {ASKING_STEPS} == 0) "
            f"__builtin_prefetch(rammer_from + rammer_step * (({step}) / {ASKING_STEPS}), 0, 2);"
        ]
        if on_unit:
            asks = [
                "  #pragma unroll",
                f"  for (long rammer_n = 0; rammer_n < {UNIT_LINES}; rammer_n++) "
                f"__builtin_prefetch(rammer_from + rammer_step * ({UNIT_LINES} * ({step}) + rammer_n), 0, 2);",
            ]
        self._fetches.setdefault(id(summing), []).extend(asks)

    def _fetch_for(self, sums: tuple[For, ...], nest: For) -> None:
        """While blocks of sums are computed, ask for the lines that the nest after them loads, if they are few.

        It would wait for most of them in turn; many are left to the core, as they would push out the weights.
        """
        found: dict[tuple[str, Index], tuple[For, ...]] = {}
        for path, buffer, index in _vector_loads((nest,), ()):
            if buffer in self._inputs and self._inputs[buffer].dtype.itemsize == 4:
                found.setdefault((buffer, substitute(index, {path[-1].var: Index()})), path[:-1])
        blocks = [lp.stop - lp.start for lp in sums]
        block = sum(((var(lp.var) - lp.start) * prod(blocks[n + 1 :]) for n, lp in enumerate(sums)), Index())
        for path in dict.fromkeys(found.values()):
            steps = [lp.stop - lp.start for lp in path]
            wanted = [key for key, where in found.items() if where == path]
            share = -(-prod(steps) // prod(blocks))
            few = prod(steps) * len(wanted) <= MAX_FETCHED
            if sums[-1] in self._unit_loops.values():
                few = share * len(wanted) <= UNIT_FETCHED
            if not few or any(lp.start for lp in path):
                continue
            lines = ["  #pragma unroll", f"  for (long rammer_turn = 0; rammer_turn < {share}; rammer_turn++) {{"]
            lines.append(f"    const long rammer_n = {share} * ({self.index(block)}) + rammer_turn;")
            for n, lp in enumerate(path):
                lines.append(f"    const long {lp.var} = rammer_n / {prod(steps[n + 1 :])} % {steps[n]};")
            lines += [f"    __builtin_prefetch(&{buffer}[{self.index(index)}], 0, 3);" for buffer, index in wanted]
            self._fetches.setdefault(id(sums[-1]), []).extend([*lines, "  }"])
            self._fetched |= {buffer for buffer, _ in wanted}

    def _fetch_panel(self, product: Apply, blocks: For, outer: tuple[For, ...]) -> None:
        """While blocks of rows pass by a panel of encoded weights, ask for the panel after it."""
        panel, (*_, (_, kind)) = product.operands[-1], product.instruction.types(product.sizes)
        encoding = _encoding(kind)
        moving = [n for n, lp in enumerate(outer) if panel.at.coef(lp.var)]
        if not moving or moving[-1] == len(outer) - 1:
            return  # each panel is used once, in the order in which they lie
        walk, still = outer[moving[-1]].var, (*outer[moving[-1] + 1 :], blocks)
        turns = [lp.stop - lp.start for lp in still]
        line = LINE_BYTES // encoding.dtype.itemsize
        share = -(-kind.size * encoding.parts // line // prod(turns))
        if share > UNIT_FETCHED:
            return
        turn = sum(((var(lp.var) - lp.start) * prod(turns[n + 1 :]) for n, lp in enumerate(still)), Index())
        at = (panel.at + panel.at.coef(walk)) * encoding.parts + turn * (share * line)
        self._fetches.setdefault(id(blocks), []).extend(
            [
                "  #pragma unroll",
                f"  for (long rammer_n = 0; rammer_n < {share * line}; rammer_n += {line}) "
                f"__builtin_prefetch((const bf16 *){panel.buffer} + {self.index(at)} + rammer_n, 0, 2);",
            ]
        )

    def _next_panels(self, outer: For) -> Iterator[tuple[For, list[str]]]:
        """Loops inside `outer` that walk past a panel of weights, with the lines that fetch the panel after it."""
        seen: set[tuple[str, int]] = set()
        for path, buffer, index in self._loads.get(id(outer), ()):
            if not (far := index.coef(outer.var)) > 0:
                continue
            moving = [n for n, loop in enumerate(path) if loop.var in variables(index)]
            still = [n for n, lp in enumerate(path) if n not in moving and lp.kind is Kind.SERIAL]
            if not still or not moving or any(n < still[0] for n in moving) or (buffer, id(path[still[0]])) in seen:
                continue
            walk, inside = path[still[0]], [path[n] for n in moving]
            if any(not isinstance(atom, str) for atom, _ in index.terms):
                continue
            if any(loop.kind is Kind.SERIAL and _sums(loop.body) for loop in inside):
                continue  # a strip of panels, each used once for each turn of `walk`: it lies in the second cache
            first = substitute(index, {lp.var: Index(lp.start) for lp in inside})
            last = substitute(index, {lp.var: Index(lp.stop - 1) for lp in inside})
            size = (last - first).const + 1
            lines = size // LINE
            if size > 4 * prod(lp.stop - lp.start for lp in inside) or lines < MIN_PANEL or (last - first).terms:
                continue
            seen.add((buffer, id(walk)))
            spread = [walk, *[lp for lp in inside if lp.kind is Kind.SERIAL][:-1]][:2]  # not in the innermost loop
            counts = [lp.stop - lp.start for lp in spread]
            share = min(-(-lines // prod(counts)), MAX_FETCHED)
            steps = [share * LINE * prod(counts[n + 1 :]) for n in range(len(spread))]
            turns = sum(((var(lp.var) - lp.start) * s for lp, s in zip(spread, steps, strict=True)), Index())
            at = self.index(first + far + turns)
            yield (
                spread[-1],
                [
                    "  #pragma unroll",
                    f"  for (long rammer_n = 0; rammer_n < {share * LINE}; rammer_n += {LINE}) "
                    f"__builtin_prefetch(&{buffer}[{at} + rammer_n], 0, 2);",
                ],
            )

    def _stream(self, loop: For) -> Iterator[str]:
        """Lines that ask for what the loop reads soon, where it reads large weights once, one after the other."""
        for path, buffer, index in self._loads.get(id(loop), ()):
            step = index.coef(loop.var)
            block = prod(lp.stop - lp.start for lp in path if lp.var in variables(index))
            large = self._inputs[buffer].size >= STREAMED
            if large and step == block and step >= LINE and block <= _block(loop.body) * self.lanes <= MAX_ROWS * step:
                start = substitute(index, {lp.var: Index(lp.start) for lp in path})
                yield "  #pragma unroll"
                yield (
                    f"  for (long rammer_n = 0; rammer_n < {step}; rammer_n += {LINE}) "
                    f"__builtin_prefetch(&{buffer}[{self.index(start + AHEAD)} + rammer_n], 0, 2);"
                )


_Sums: TypeAlias = "tuple[tuple[For, ...], For]"  # a loop that goes on with sums, after all serial loops around it
_VectorLoad: TypeAlias = "tuple[tuple[For, ...], str, Index]"


def _followers(body: Body, unit_loops: Mapping[int, For]) -> Iterator[tuple[tuple[For, ...], For]]:
    """Serial loops around a block of sums, with each nest after them in the same body that sums nothing."""
    blocks: tuple[For, ...] = ()
    for s in body:
        match s:
            case For() if _sums((s,)):
                blocks = _block_path(s)
                yield from _followers(s.body, unit_loops)
            case For() if products := list(_unit_loops((s,), ())):
                product, _, path = products[0]
                blocks = (*path, unit_loops[id(product)])
                yield from _followers(s.body, unit_loops)
            case For() if blocks:
                yield blocks, s
            case Alloc(_, inner) | If(_, inner):
                yield from _followers(inner, unit_loops)


def _long_sums(body: Body, outer: tuple[For, ...]) -> Iterator[tuple[tuple[For, ...], For]]:
    """Loops that go on with a register block's sums for long, each with all serial loops around it."""
    for s in body:
        match s:
            case For(_, start, stop, Kind.SERIAL, inner) if _block(inner) >= LEAST_SUMS:
                if stop - start >= LEAST_STEPS and (stop - start) % ASKING_STEPS == 0:
                    yield outer, s
            case For(_, _, _, Kind.SERIAL, inner):
                yield from _long_sums(inner, (*outer, s))
            case For(_, _, _, Kind.TASK, inner) | Alloc(_, inner) | If(_, inner):
                yield from _long_sums(inner, outer)


def _unit_loops(body: Body, outer: tuple[For, ...]) -> Iterator[tuple[Apply, For, tuple[For, ...]]]:
    """Products on the matrix unit, each with the loop over its blocks of terms, and all serial loops around it."""
    for s in body:
        match s:
            case Apply() if s.instruction.multiplies and _encoded(s):
                yield s, For("rammer_block", 0, s.extents[-1] // s.instruction.axes[-1][1], Kind.SERIAL, (s,)), outer
            case For(_, _, _, Kind.SERIAL, inner):
                yield from _unit_loops(inner, (*outer, s))
            case For(_, _, _, _, inner) | Alloc(_, inner) | If(_, inner):
                yield from _unit_loops(inner, outer)


def _encoded(product: Apply) -> bool:
    """Whether operands lie in parts, of which a matrix unit adds a block at a time to sums in memory."""
    _, (_, kind), _ = product.instruction.tensors
    return kind.layout is not None and kind.layout.encoding is not None


def _encoding(kind: TensorType) -> Encoding:
    assert kind.layout is not None and kind.layout.encoding is not None
    return kind.layout.encoding


def _block_path(nest: For) -> tuple[For, ...]:
    """Serial loops from a nest's first down to the one that holds a register block; none if they do more than that."""
    path: list[For] = []
    body: Body = (nest,)
    while len(body) == 1 and isinstance(loop := body[0], For) and loop.kind is Kind.SERIAL:
        path.append(loop)
        body = loop.body
        if any(isinstance(s, Alloc) for s in body):
            return tuple(path)
    return ()


def _sums(body: Body) -> bool:
    """Whether the body has accumulators."""
    return any(isinstance(s, Alloc) and s.buffer.scope is Scope.REGISTER for s in statements(body))


def _vector_loads(body: Body, path: tuple[For, ...]) -> Iterator[_VectorLoad]:
    """What vector loops load, with all loops around each load, outermost first."""
    for s in body:
        match s:
            case For():
                yield from _vector_loads(s.body, (*path, s))
            case Alloc(_, inner) | If(_, inner):
                yield from _vector_loads(inner, path)
            case Store(_, _, value) if path and path[-1].kind is Kind.VECTOR:
                for load, _ in loads(value):
                    if not load.dynamic and load.index[0].coef(path[-1].var) == 1:
                        yield path, load.tensor, load.index[0]


def _block(body: Body) -> int:
    """Sums of a register block that a body goes on with, if it does nothing else; else 0."""
    total = 0
    for s in body:
        match s:
            case For(_, start, stop, Kind.UNROLLED, inner) if inside := _block(inner):
                total += (stop - start) * inside
            case For(_, _, _, Kind.VECTOR, (Store(b, ix, Call(_, (Load(c, (iy,)), *_))),)) if (b, ix) == (c, iy):
                total += 1
            case _:
                return 0
    return total
