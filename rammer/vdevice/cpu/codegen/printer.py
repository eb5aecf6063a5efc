"""Print C for CPUs: prefetches, blocks of sums on a matrix unit, unrolled loops around register blocks, and tickets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import replace

from rammer.errors import LoweringError
from rammer.ir.expr import COMPARISONS, Call, Cast, Const, Load, Scalar, Select, inside, nodes
from rammer.ir.index import Index, bounds, substitute, var, variables
from rammer.ir.instruction import place
from rammer.ir.tensor import SMALL, DType, Encoding, TensorType
from rammer.ir.tile import (
    NEXT,
    Apply,
    Body,
    Buffer,
    For,
    If,
    Kind,
    Prefetch,
    Stmt,
    Store,
    TileProgram,
    children,
    statements,
    uses,
)
from rammer.vdevice.cpu.codegen.nests import NestFunction, NestPrinter
from rammer.vdevice.cpu.codegen.prefetch import has_pieces, in_blocks, loaded, register_block, steps
from rammer.vdevice.cpu.codegen.rolled import rolled
from rammer.vdevice.cpu.codegen.tickets import tickets
from rammer.vdevice.cpu.runtime.table import LINE_BYTES
from rammer.vdevice.ctext.vectors import BITWISE, LOGIC, depends

MAX_STEPS = 32  # stores of an unrolled body: twice as many gained nothing, and took clang a fifth longer
# Vectors that an unrolled body loads. With more, a core's prefetcher sees too many streams: a cell that loads 16 in a
# step took 2.1 or 4.0 us unrolled, depending on its code's alignment, and 2.1 as a loop.
MAX_LOADED = 16
SELDOM = 32  # a loop stays rolled if another one of the kernel computes this many times its sums
MAX_NUMBERS = 64  # scalar stores of an unrolled loop: hundreds of them took clang minutes
TICKETS = "rammer_tickets"  # of the rTask: the next one of this vEU
TAKE = f"{TICKETS}->mine = rammer_take({TICKETS})"
MANY_GATHERED = 128  # scalars gathered into vectors by an unrolled loop: clang searches for patterns among them all
BYTES = frozenset({DType.BOOL, DType.I8, DType.U8})
BYTE_MATH = frozenset({*LOGIC, *BITWISE, *COMPARISONS, "not", "bit_not", "max", "min", "add", "sub", "where"})
MOST_NODES = 500  # of a value that is printed as it is: the functions of larger ones took clang minutes to inline
LEAST_NODES = 6  # of a part of such a value that gets a name
MAX_GATHERED = 3072  # by all loops of a kernel that may be unrolled further: 7900 took clang 15 s


class CpuPrinter(NestPrinter):
    """Prints one tile program for a core with caches.

    Its own names begin with `rammer_`, so that they do not shadow names of plugins' operands.
    """

    pieces = narrow_stores = True

    def __init__(self, program: TileProgram, lanes: int) -> None:
        super().__init__(program, lanes)
        self.loops: list[NestFunction] = []  # loops that are outlined into functions
        self._handed: tuple[str, str] | None = None  # prefix of the functions' names, and their common arguments
        self._scopes: dict[str, tuple[Buffer, Body]] = {}  # register buffers, with the bodies of their scopes
        many = self.numbers(program.body)[1] > MAX_GATHERED
        self.most_numbers = MAX_NUMBERS, MANY_GATHERED if many else MAX_GATHERED
        self._on_unit = any(isinstance(s, Apply) and in_blocks(s) for s in statements(program.body))
        self._sums = _sums(program.body, 1)
        self._many = max(self._sums.values(), default=0)
        self.written = {b.name for b in program.arguments[: program.num_outputs]}
        self._asking = ""  # the variable of the loop that prefetches for later rTasks
        self._tickets, self.tickets = tickets(program)
        self._names: dict[Scalar, tuple[str, bool, str | None]] | None = None  # of repeated parts of a large value

    def declare(self, buffer: Buffer, body: Body) -> None:
        super().declare(buffer, body)
        self._scopes[buffer.name] = buffer, body

    def _outlined(self, loop: For) -> list[str]:
        """Return a call of an unrolled loop of long functions, outlined into a function; [] if it stays inline."""
        names = {b.name for b in (*self.program.arguments, *self.program.scratch)}
        found = rolled(loop, names, self._scopes, self.lanes)
        if found is None or self._handed is None or self._held is not None:
            return []
        loops = [s for s in statements((loop,)) if isinstance(s, For)]
        self.env |= {s.var: (s.start, s.stop - 1) for s in loops}
        if any(map(self.square, loops)):
            return []
        for copy in found.copies:
            self.declare(copy, found.body)
        if not all(copy.name in self.wide for copy in found.copies):
            return []
        lines = (*super().scratch(), *self.body(found.body, 1))
        inside = {s.var for s in loops}
        numbers = [v for v in self.env if v not in inside and uses(found.body, v)]
        vectors = [f"const {self.vectors[copy.dtype]} *restrict {copy.name}" for copy in found.copies]
        prefix, handed = self._handed
        nest = NestFunction(f"{prefix}loop{len(self.loops)}", lines, (*vectors, *(f"long {n}" for n in numbers)))
        self.loops.append(nest)
        called = ", ".join([handed, *(copy.name for copy in found.copies), *numbers])
        copies = [self.alloc(copy) for copy in found.copies]
        return ["{", *("  " + line for line in copies), *self.body(found.copying, 1), f"  {nest.name}({called});", "}"]

    def share(self, prefix: str, handed: str) -> list[NestFunction]:
        self._handed = prefix, handed
        return [] if self._on_unit else super().share(prefix, handed)  # tile registers belong to this function

    def scratch(self) -> list[str]:
        return [*super().scratch(), *(["  rammer_unit_begin();"] if self._on_unit else [])]

    def end(self) -> list[str]:
        return ["  rammer_unit_end();"] if self._on_unit else []

    def store(self, s: Store, lane: str | None, count: int = 0) -> str:
        match s.value:
            case Call("add", (Load(s.buffer, (s.index,)) as held, Call("dot_bytes", (a, b)))) if lane:
                if s.buffer in self.wide and count in (0, self.lanes):
                    sums, *pair = (self.wide_text(x, lane, count, DType.I32) for x in (held, a, b))
                    return f"{sums} = vadd_dot_bytes({sums}, {', '.join(pair)});"
        self._names = {} if _size(s.value, {}) > MOST_NODES else None
        return super().store(s, lane, count)

    def square(self, loop: For) -> str | None:
        """Print a transposed square: one that is copied, or one that is computed by columns and stored by rows."""
        if (copied := super().square(loop)) or not self.is_unrollable(loop):
            return copied
        match loop:
            case For(_, _, _, Kind.UNROLLED, (For(u, _, _, Kind.UNROLLED, body) as beside,)) if len(body) == 1:
                self.env[u] = (beside.start, beside.stop - 1)
                transposed = self.square(replace(loop, body=body))
                return transposed and f'_Pragma("unroll") for ({self.counted(beside)}) {transposed}'
            case For(v, 0, columns, Kind.UNROLLED, (For(lane, 0, rows, Kind.VECTOR, (Store() as s,)) as column,)):
                row = s.index.coef(lane)
                single = self.dtypes[s.buffer] is DType.F32 and s.buffer not in self.wide and not s.dynamic
                fits = max(rows, columns) <= self.lanes and min(rows, columns) > 1
                if single and fits and row not in (0, 1) and s.index.coef(v) == 1 and self.vector(column):
                    target = s.index - var(v) - var(lane) * row
                    self.env[lane] = (0, rows - 1)
                    text = self.wide_text(s.value, lane, rows, DType.F32)
                    out = self.place(s.buffer, self.index(target), (rows - 1) * row + columns)
                    return (
                        f'{{ vf rammer_square[{columns}]; _Pragma("unroll") for ({self.counted(loop)}) '
                        f"rammer_square[{v}] = {text}; "
                        f"vturned(&{out}, {row}, (float *)rammer_square, {rows}, {columns}); }}"
                    )
        return None

    def scalar(self, value: Scalar, lane: str | None, count: int, like: DType) -> tuple[str, bool]:
        if lane and (found := _low_bits(value)):
            number, mask, zero = found
            if self.type_of(number) is DType.I32 and depends(number, lane):
                bits = self.wide_text(number, lane, count, DType.I32)
                return f"vlow_bits({bits}, {mask}, {self.literal(zero, DType.F32)})", True
        if isinstance(value, Cast) and (clip := _clip(value.arg, value.dtype)) and self.type_of(clip[0]) is DType.F32:
            return f"sclipped({self.scalar(clip[0], None, 0, DType.F32)[0]}, {clip[1]})", False
        if (first := self._four_bytes(value, lane)) is not None:
            return f"four_bytes(&{self.place(first.tensor, self.index(first.index[0]), 4)})", False
        if self._names is not None and isinstance(value, Call):
            return self._with_names(value, lane, count, like, self._names)
        return super().scalar(value, lane, count, like)

    def truncated(self, value: Scalar, lane: str, count: int, kind: DType) -> str:
        if found := _clip(value, DType.I16) or _clip(value, DType.U16):
            return f"vclipped({self.wide_text(found[0], lane, count, kind)}, {found[1]})"
        if not value.clipped(DType.I32):
            return f"vtruncated({self.wide_text(value, lane, count, kind)})"
        return super().truncated(value, lane, count, kind)

    def _with_names(
        self, value: Call, lane: str | None, count: int, like: DType, names: dict[Scalar, tuple[str, bool, str | None]]
    ) -> tuple[str, bool]:
        """Print a value with its repeated parts computed first, once. Known as: common subexpression elimination."""
        if (found := names.get(value)) and found[2] == lane:
            return found[:2]
        part = _repeated(value, names)
        if part is None:
            return super().scalar(value, lane, count, like)
        text, wide = self.scalar(part, lane, count, self.type_of(part) or like)
        name = f"rammer_value{len(names)}"
        names[part] = name, wide, lane
        rest, rest_wide = self.scalar(value, lane, count, like)
        del names[part]
        return f"({{ const __auto_type {name} = {text}; {rest}; }})", rest_wide

    def _four_bytes(self, value: Scalar, lane: str | None) -> Load | None:
        """Return the first of four bytes that are adjacent in memory and joined to a word."""
        match value:
            case Call("join_bytes", (Cast(Load(buffer, (start,), ()) as first), *_) as parts):
                neighbours = [Load(buffer, (start + n,)) for n in range(len(parts))]
                same = [p.arg for p in parts if isinstance(p, Cast)] == neighbours and not depends(first, lane or "")
                kept = buffer not in self.wide and self.dtypes[buffer] in (DType.I8, DType.U8)
                return first if same and kept else None
        return None

    def apply(self, s: Apply) -> list[str]:
        if s.instruction.copies:
            return self._copied(s)
        return self._multiplied(s) if in_blocks(s) else self._summed(s)

    def _copied(self, s: Apply) -> list[str]:
        """Print a copy of rows that an instruction encodes, as many as there are."""
        to, source = s.operands
        rows, depth = s.extents
        steps = "".join(f"{n}, " for n in source.steps[:2])
        count = str(rows)
        for r in source.where:
            first = substitute(r.index, {s.instruction.axes[0][0]: Index()})
            count = f"imin({count}, {r.high} - ({self.index(first)}))"
        start = f"&{source.buffer}[{self.index(source.at)}]"
        return [f"rammer_{s.instruction.name}({to.buffer}, {start}, {steps}{count}, {depth});"]

    def _summed(self, s: Apply) -> list[str]:
        """Print a block of sums by a C text that loops over all terms itself, given their number of steps."""
        steps = -(-s.extents[-1] // s.instruction.axes[-1][1])
        operands = ", ".join(f"&{o.buffer}[{self.index(o.at)}]" for o in s.operands)
        return [f"rammer_{s.instruction.name}({operands}, {steps});"]

    def _multiplied(self, s: Apply) -> list[str]:
        """Print a block of sums: an instruction repeated along its terms."""
        loop, (sums, a, b), name = s.meanwhile or steps(s), s.operands, s.instruction.name
        beginning = dict.fromkeys(s.sizes, 0) | dict(s.instruction.axes[-1:])  # start of the second block of terms
        _, *kinds = s.instruction.types(s.sizes)
        places = []
        for operand, (tensor, kind) in zip((a, b), kinds, strict=True):
            block = place(kind.layout, kind.shape, [Index(beginning[x]) for x in s.instruction.axes_of(tensor)])
            places.append(self.index((operand.at + var(loop.var) * block.const) * _encoding(kind).parts))
        form = "x".join(str(s.instruction.extent(axis)) for axis in ("row", "column"))
        operands = f"&{a.buffer}[{places[0]}], (const bf16 *){b.buffer} + {places[1]}"
        self.env[loop.var] = (loop.start, loop.stop - 1)
        begin = "resume" if s.instruction.accumulates else "begin"
        to = f"&{sums.buffer}[{self.index(sums.at)}]" if s.instruction.accumulates else sums.buffer
        return [
            "{",
            f"  rammer_{begin}_{form}(rammer_sums, {to});",
            f"  for (long {loop.var} = 0; {loop.var} < {loop.stop}; {loop.var}++) {{",
            *self.body(loop.body, 2),
            f"    rammer_add_{name}(rammer_sums, {operands}, {loop.stop});",
            "  }",
            f"  rammer_end_{form}(rammer_sums, {to});",
            "}",
        ]

    def body(self, body: Body, depth: int) -> list[str]:
        lines = []
        for stmt in body:
            text = super().body((stmt,), depth)
            called = id(stmt) in self._calls and self._held is None  # a call: its nest takes the tickets
            lines += self._ticketed(stmt, text, depth) if id(stmt) in self._tickets and not called else text
        return lines

    def _ticketed(self, stmt: Stmt, lines: list[str], depth: int) -> list[str]:
        """Print a statement for the holder of its ticket, or a loop over tickets; then advance past its tickets."""
        given, pad = self._tickets[id(stmt)], "  " * depth
        if not (isinstance(stmt, For) and stmt.kind is Kind.SERIAL):
            head = f"if ({TICKETS}->mine == {TICKETS}->first) {{"
            return [pad + head, *("  " + t for t in lines), f"{pad}  {TAKE};", pad + "}", f"{pad}{TICKETS}->first++;"]
        count = self.number(given.count)
        if given.iterations > 1:
            head = f"for (long rammer_part; (rammer_part = {TICKETS}->mine - {TICKETS}->first) < {count}; {TAKE}) {{"
            lines = [pad + head, *("  " + line for line in lines), pad + "}"]
        return [*lines, f"{pad}{TICKETS}->first += {count};"]

    def counted(self, loop: For) -> str:
        given = self._tickets.get(id(loop))
        if given is None or loop.kind is not Kind.SERIAL:
            return super().counted(loop)
        v, stop, times = loop.var, self.number(loop.stop), given.iterations
        start = f" + {self.number(loop.start)}" if loop.start or self._held is not None else ""
        if times == 1:
            return f"long {v}; ({v} = {TICKETS}->mine - {TICKETS}->first{start}) < {stop}; {TAKE}"
        return f"long {v} = {times} * rammer_part{start}; {v} < imin({stop}, {times} * (rammer_part + 1){start}); {v}++"

    def loop(self, loop: For, depth: int) -> list[str]:
        if loop.kind is Kind.UNROLLED and (lines := self._outlined(loop) or self._bytes(loop)):
            return lines
        if loop.kind is not Kind.SERIAL:
            return super().loop(loop, depth)
        lines = super().loop(loop, depth)
        times = 1 if id(loop) in self._tickets else self._unrolling(loop)
        seldom = times > 1 and SELDOM * self._sums.get(id(loop), self._many) < self._many
        times = 1 if seldom else times
        return [f"#pragma unroll {times}", *lines] if times > 1 or seldom or self._asks(loop) else lines

    def _bytes(self, loop: For) -> list[str]:
        """Print vectors of bytes that follow from bytes: computed, then stored, so that clang makes one vector of all.

        Return no lines for other loops.
        """
        match loop:
            case For(v, 0, many, Kind.UNROLLED, (For(lane, 0, self.lanes, Kind.VECTOR, (Store() as s,)) as inner,)):
                first, kind, size = s.index - var(v) * self.lanes - var(lane), self.dtypes[s.buffer], many * self.lanes
                plain = not (s.dynamic or s.combine or s.buffer in self.wide or {v, lane} & variables(first))
                parts = [part for part in nodes(s.value) if not isinstance(part, Const)]
                if plain and kind in BYTES and len(parts) > 1 and all(map(self._of_bytes, parts)):
                    self.env |= {v: (0, many - 1), lane: (0, self.lanes - 1)}
                    text = self.convert(self.scalar(s.value, None, 0, kind)[0], self.type_of(s.value) or kind, kind)
                    return [
                        f"{{ {self.ctype[kind]} rammer_bytes[{size}];",
                        f'  _Pragma("unroll") for ({self.counted(loop)}) for ({self.counted(inner)})',
                        f"    rammer_bytes[{self.lanes} * {v} + {lane}] = {text};",
                        f"  memcpy(&{self.place(s.buffer, self.index(first), size)}, rammer_bytes, {size}); }}",
                    ]
        return []

    def _of_bytes(self, part: Scalar) -> bool:
        known = part.fn in BYTE_MATH if isinstance(part, Call) else isinstance(part, Load) and not part.dynamic
        return known and self.type_of(part) in BYTES

    def head(self, loop: For) -> list[str]:
        return [line for inside in _loops_inside(loop.body) for line in self._asks(inside)]

    def _unrolling(self, loop: For) -> int:
        """Return the unroll factor of a loop around a register block: loop overhead takes issue slots, too.

        Loops with partial vectors stay rolled: they run rarely, and compile as slowly as many whole ones. So do guarded
        copies at edges; `loop` keeps those rolled that compute less than 1/SELDOM of the sums.
        """
        stores, (_, gathered) = register_block(loop.body), self.numbers(loop.body)
        count = loop.stop - loop.start
        if stores < 4 or has_pieces(loop.body):
            return 1
        most = min((MAX_STEPS // 2 if self.pieced else MAX_STEPS) // stores, MAX_LOADED // max(loaded(loop.body), 1))
        return next((n for n in (4, 2) if count % n == 0 and n <= most and n * gathered <= MANY_GATHERED), 1)

    def prefetch(self, s: Prefetch) -> list[str]:
        """Print requests for lines. A long run into L1, outside of loops, becomes a loop that is unrolled by four."""
        index, step = s.index, 1
        if s.buffer == NEXT:
            if not self._asking:
                raise LoweringError(f"{self.program.name}: {NEXT} is prefetched outside of serial loops")
            index = _split_by(index, self._asking)[1]
            place = "rammer_from + rammer_step * ({})"
        elif s.encoding:
            step = LINE_BYTES // s.encoding.dtype.itemsize
            place = f"(const {self.ctype[s.encoding.dtype]} *){s.buffer} + {{}}"
        else:
            step = LINE_BYTES // self.dtypes[s.buffer].itemsize
            place = f"&{s.buffer}[{{}}]"
        at = self.index(index)
        if s.size > 1:
            at = f"{at} + rammer_n" if index != Index() else "rammer_n"
        ask = f"__builtin_prefetch({place.format(at)}, {s.buffer in self.written:d}, {0 if s.once else 4 - s.level});"
        if s.size == 1:
            return [ask]
        unroll = "#pragma unroll" if s.level > 1 or s.once else "#pragma unroll 4"
        return [unroll, f"for (long rammer_n = 0; rammer_n < {s.size}; rammer_n += {step}) {ask}"]

    def _asks(self, loop: For) -> list[str]:
        """Print where a loop finds the lines that it prefetches for later rTasks; [] if it does not.

        A block of lines is requested completely or not at all. Steps have no branch: an empty block requests the table
        again.
        """
        inner = (s for stmt in loop.body for s in (children(stmt) if isinstance(stmt, If) else (stmt,)))
        asked = next((s for s in inner if isinstance(s, Prefetch) and s.buffer == NEXT), None)
        if asked is None:
            return []
        self._asking, self.env[loop.var] = loop.var, (loop.start, loop.stop - 1)
        block, line = _split_by(asked.index, loop.var)
        pace = bounds(line, self.env)[1] + asked.size
        turn = self.index(Index(block.const // pace, tuple((atom, c // pace) for atom, c in block.terms)))
        return [
            f"const long rammer_asked = ({NEXT}->lines + {pace - 1}) / {pace} * {pace} + {pace} * ({turn});",
            f"const char *rammer_from = rammer_asked < 0 ? (const char *){NEXT} : "
            f"{NEXT}->from + {LINE_BYTES} * rammer_asked;",
            f"const long rammer_step = rammer_asked < 0 ? 0 : {LINE_BYTES};",
        ]


def _size(value: Scalar, known: dict[int, int]) -> int:
    """Return the number of nodes of a value as a tree. `known` has those of its parts by id."""
    if id(value) not in known:
        known[id(value)] = 1 + sum(_size(part, known) for part in inside(value))
    return known[id(value)]


def _repeated(value: Scalar, but: Container[Scalar]) -> Scalar | None:
    """Return the largest part that a value computes twice, in any case; None if there is none."""
    counts: Counter[Scalar] = Counter()
    left = list(inside(value))
    while left:
        part = left.pop()
        if part in but or isinstance(part, Select | Load) or (isinstance(part, Cast) and part.bits):
            continue  # it has a name; or its parts are not computed in any case, or not for all lanes
        if isinstance(part, Call):
            counts[part] += 1
        left += inside(part)
    known: dict[int, int] = {}
    sizes = {part: _size(part, known) for part, count in counts.items() if count > 1}
    found = max(sizes, key=lambda part: sizes[part], default=None)
    return found if found is not None and sizes[found] >= LEAST_NODES else None


def _sums(body: Body, times: int) -> dict[int, int]:
    """Return the sums that an rTask computes in each loop (by id) around a register block, if all conditions hold."""
    found: dict[int, int] = {}
    for s in body:
        if isinstance(s, For) and s.kind is Kind.SERIAL and (block := register_block(s.body)):
            found[id(s)] = max(found.get(id(s), 0), times * (s.stop - s.start) * block)
        elif isinstance(s, For):
            inner = _sums(s.body, times if s.kind is Kind.TASK else times * (s.stop - s.start))
            found |= {n: max(count, found.get(n, 0)) for n, count in inner.items()}
        else:
            found |= {n: max(count, found.get(n, 0)) for n, count in _sums(children(s), times).items()}
    return found


def _loops_inside(body: Body) -> Iterator[For]:
    """Yield the outermost loops of a body."""
    for s in body:
        if isinstance(s, For):
            yield s
        else:
            yield from _loops_inside(children(s))


def _low_bits(value: Scalar) -> tuple[Scalar, int, float] | None:
    """Match `float32(number & mask) - zero`. Returns the number, the mask of up to four low bits, and zero."""
    match value:
        case Call("sub", (Cast() as bits, Const(zero))):
            pass
        case bits:
            zero = 0.0
    match bits:
        case Cast(Call("bit_and", (number, Const(mask))), DType.F32, bits=False) if mask in (1, 3, 7, 15):
            return number, int(mask), float(zero)
    return None


def _clip(value: Scalar, dtype: DType) -> tuple[Scalar, str] | None:
    """Match a number that is clipped to a small type of integers. Returns the number, and bounds as text."""
    match value:
        case Call("min", (Call("max", (x, Const(low))), Const(high))) if dtype in SMALL and value.clipped(dtype):
            return x, f"{int(low)}, {int(high)}"
    return None


def _split_by(index: Index, name: str) -> tuple[Index, Index]:
    """Split an index into the terms without a variable and those with it."""
    moving = tuple(term for term in index.terms if name in variables(Index(0, (term,))))
    return index - Index(0, moving), Index(0, moving)


def _encoding(kind: TensorType) -> Encoding:
    assert kind.layout is not None and kind.layout.encoding is not None
    return kind.layout.encoding
