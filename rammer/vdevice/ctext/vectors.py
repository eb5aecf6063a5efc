"""Decide which loops over lanes become vector operations, and of which types; `cfamily` prints them.

Known as: vectorization (legality).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import repeat
from typing import assert_never

from rammer.ir.expr import COMPARISONS, Call, Cast, Const, Iota, Load, Scalar, Select, indices_of, loads, result_dtype
from rammer.ir.index import Index, simplify, substitute, var, variables
from rammer.ir.tensor import SMALL, DType
from rammer.ir.tile import (
    Alloc,
    Apply,
    Body,
    Buffer,
    For,
    If,
    Kind,
    Prefetch,
    Scope,
    Stmt,
    Store,
    Sync,
    TileProgram,
    folded,
)
from rammer.vdevice.ctext.minifloats import MINIFLOATS

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
LOGIC = {"and": "&", "or": "|", "xor": "^"}
BITWISE = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}
FLOAT32_MATH = frozenset(
    {
        *("max", "min", "abs", "sign", "floor", "ceil", "round", "sqrt", "exp", "log", "tanh", "sigmoid", "erf"),
        *("sin", "cos", "asin", "acos", "atan", "pow", "fmod"),
    }
)
SINGLE = frozenset({DType.F32, DType.F16, DType.BF16})  # computed in float32
VECTOR = {**dict.fromkeys(SINGLE, "vf"), DType.F64: "vd", DType.I32: "vi", DType.I64: "vl"}  # vector types
# Vectors that are converted when they are loaded.
NARROW = {DType.I8: "vc", DType.U8: "vb", DType.I16: "vs", DType.U16: "vt", DType.BOOL: "vb"}
NARROW |= dict.fromkeys((DType.I2, DType.I4), "vc") | dict.fromkeys((DType.U2, DType.U4, *MINIFLOATS), "vb")
VECTOR_INT_MATH = frozenset(
    {
        *("add", "sub", "mul", "div", "mod", "fmod", "neg", "max", "min", "abs", "sign", "dot_bytes"),
        *("shift_left", "shift_right", "bit_not", *BITWISE),
    }
)
LOW_BITS = frozenset({"add", "sub", "mul", "neg", "bit_not", *BITWISE})  # low bits of results follow from low bits


class VectorLoops:
    """Decides for one tile program, in the order of printing, because it keeps the types of variables in scope."""

    # Whether vectors may be converted to small numbers when they are stored, and truth values to masks and back.
    narrow_stores = False
    pieces = False  # whether some lanes of a vector register may be computed alone, without going through memory
    vectors: Mapping[DType, str] = VECTOR  # vector types by the elements' stored type
    narrow: Mapping[DType, str] = NARROW

    def __init__(self, program: TileProgram, lanes: int) -> None:
        self.program, self.lanes = program, lanes
        self.dtypes = {b.name: b.dtype for b in (*program.arguments, *program.scratch)}
        self.wide: set[str] = set()  # register buffers kept as arrays of vectors
        self.folded: set[str] = set()  # those whose lanes are reduced in the end
        self.pieced: set[str] = set()  # those of which some lanes are computed alone
        self._known: dict[int, tuple[For, tuple[int, int]]] = {}  # memo of `numbers`, by a loop's id
        self._lanes_ok: dict[tuple[int, str], tuple[Scalar, bool]] = {}  # memo of `_lane_ok`, by a value's id
        self._declared: dict[tuple[str, DType, int], tuple[Body, list[bool]]] = {}  # memo of `declare`, by a body's id

    def vector(self, loop: For) -> For | None:
        """Return the loop over lanes 0 … n-1 if it can be a vector operation, else None.

        Each access must have one stride in the lane, and each function a vector form. Lanes m … n-1 of a register keep
        their positions.
        """
        lane, body = loop.var, loop.body
        if loop.start and any(self._registers(body)):
            if not self._piece_ok(body, lane):
                return None
        elif loop.start:  # a piece that starts in mid-vector
            shift = {lane: var(lane) + loop.start}
            moved = []
            for s in body:
                if not isinstance(s, Store) or s.dynamic:
                    return None
                moved.append(s.at(shift))
            loop = For(lane, 0, loop.stop - loop.start, loop.kind, tuple(moved))
        if loop.stop > self.lanes:
            return None
        if self.narrow_stores:
            loop = replace(loop, body=tuple(map(self._widened, loop.body)))
        for s in loop.body:
            if isinstance(s, Store) and (self._narrow_ok(s, lane) if not s.dynamic else self._row_ok(s, lane)):
                continue
            if (
                not isinstance(s, Store)
                or s.dynamic
                or not s.index.coef(lane)
                or self.dtypes[s.buffer] not in self.vectors
            ):
                return None
            if not self._access_ok(s.buffer, s.index, lane):
                return None
            if (key := (id(s.value), lane)) not in self._lanes_ok:
                self._lanes_ok[key] = s.value, self._lane_ok(s.value, lane)
            if not self._lanes_ok[key][1]:
                return None
        return loop

    def _registers(self, body: Body) -> Iterator[str]:
        arguments = {b.name for b in (*self.program.arguments, *self.program.scratch)}
        for s in body:
            if isinstance(s, Store):
                yield from ({s.buffer, *(ld.tensor for ld, _ in loads(s.value))} - arguments)

    def _piece_ok(self, body: Body, lane: str) -> bool:
        """Return whether some lanes of a vector register can be computed alone, from themselves and float32 memory."""
        registers = set(self._registers(body))
        if not self.pieces or len(registers) != 1 or not registers <= self.wide:
            return False
        return all(
            isinstance(s, Store)
            and s.buffer in registers
            and all(self.dtypes[b] is DType.F32 and self._access_ok(b, ix, lane) for b, ix in _accesses(s))
            for s in body
        )

    def _access_ok(self, buffer: str, index: Index, lane: str) -> bool:
        stride = 0
        for atom, coef in index.terms:
            if atom == lane:
                stride = coef
            elif not isinstance(atom, str) and lane in variables(atom.arg):
                return False
        if stride == 0:
            return True
        if stride != 1:  # gathers and scatters of single elements
            return self.dtypes[buffer] is DType.F32
        return self.dtypes[buffer] in self.vectors

    def picked(self, buffer: str, index: Index, lane: str) -> tuple[Index, tuple[int, ...]] | None:
        """Return the start of a vector and the element that each lane reads, for x[5*i + 4*(lane // 4)].

        None unless all lanes read from one vector, in the same way everywhere.
        """
        fixed = Index(index.const % self.lanes, tuple(t for t in index.terms if lane in variables(Index(0, (t,)))))
        base = index - fixed
        if self.dtypes[buffer] is not DType.F32 or variables(fixed) != {lane}:
            return None
        chosen = tuple(simplify(substitute(fixed, {lane: Index(n)}), {}).const for n in range(self.lanes))
        first = 0 if self._whole(base) and self._filled(buffer) else min(chosen)  # what is loaded must be there
        moved = tuple(n - first for n in chosen)
        return (base + first, moved) if all(0 <= n < self.lanes for n in moved) else None

    def _filled(self, buffer: str) -> bool:
        """Return whether a buffer consists of whole vectors."""
        return next((b.size for b in self.program.arguments if b.name == buffer), 1) % self.lanes == 0

    def _row_ok(self, s: Store, lane: str) -> bool:
        """Return whether a vector can be stored where data say: its lanes have one place, and it is a copy or added."""
        match s.value:
            case Load(_, (index,), ()) if self.narrow_stores:
                placed = not any(depends(d.value, lane) for d in s.dynamic)
                if s.combine:
                    placed &= self.dtypes[s.buffer] in (DType.F32, DType.I32)
                return placed and _runs(s.index, lane) and _runs(index, lane)
        return False

    def _widened(self, s: Stmt) -> Stmt:
        """Return a store of small integers with its functions computed in int32, if that gives the same."""
        if isinstance(s, Store) and self.dtypes[s.buffer] in SMALL and isinstance(s.value, Call):
            value = self._in_int32(s.value, wraps=True)
            return s if value is None else replace(s, value=Cast(value, self.dtypes[s.buffer]))
        return s

    def _in_int32(self, value: Scalar, *, wraps: bool) -> Scalar | None:
        """Return a function of small integers in int32; None if its value differs, or with `wraps` its low bits."""
        match value:
            case Load(buffer) if self.dtypes[buffer] in SMALL:
                return Cast(value, DType.I32)
            case Const(number, None | DType.I8 | DType.U8 | DType.I16 | DType.U16):
                return Const(number, DType.I32)
            case Call(fn, args):
                same = fn in ("max", "min", "mod", "fmod", "shift_right", *BITWISE)
                if same or (wraps and (fn in LOW_BITS or fn in ("shift_left", "abs", "div"))):
                    parts = [p for a in args if (p := self._in_int32(a, wraps=wraps and fn in LOW_BITS)) is not None]
                    return Call(fn, tuple(parts)) if len(parts) == len(args) else None
        return None

    def _narrow_ok(self, s: Store, lane: str) -> bool:
        """Return whether a vector of small numbers can be stored: a copy, or converted int32, float32 or masks."""
        kind = self.dtypes[s.buffer]
        if not self.narrow_stores or kind not in self.narrow or not _runs(s.index, lane):
            return False
        if any(self.dtypes[b] in self.narrow for b in self._registers((s,))):
            return False  # computed as scalars
        match s.value:
            case Load(buffer, (index,), ()):
                return self.dtypes[buffer] is kind and _runs(index, lane)
            case value if kind is DType.BOOL:
                return self.type_of(value) is kind and depends(value, lane) and self._lane_ok(value, lane)
            case Cast(arg, dtype) if dtype is kind and depends(arg, lane):
                source = self.type_of(arg)
                # floats that int32 does not hold are multiples of 256
                fits = dtype.bits <= 8 or arg.clipped(DType.I32)
                held = source is DType.I32 or (source is DType.F32 and fits)
                held = source in SINGLE if kind in MINIFLOATS else held
                return held and self._lane_ok(arg, lane)
        return False

    def _lane_ok(self, value: Scalar, lane: str) -> bool:
        """Return whether the value can be printed for all lanes at once, as vectors and masks."""
        if not depends(value, lane):
            return self.type_of(value) in (*self.vectors, DType.BOOL, None)
        match value:
            case Iota(index) | Cast(Iota(index), DType.I32, False):
                return self.narrow_stores and lane not in variables(index - var(lane) * index.coef(lane))
            case Load(buffer, (index,), ()) if self.dtypes[buffer] is DType.BOOL:
                return self.narrow_stores and _runs(index, lane)
            case Load(buffer, (index,), dynamic):
                fits = self._access_ok(buffer, index, lane) or self.picked(buffer, index, lane) is not None
                return fits and not any(depends(d.value, lane) for d in dynamic)
            case Cast(bits=True):
                return False
            case Cast(Load(buffer, (index,), ()), dtype) if self.dtypes[buffer] in self.narrow:
                known = dtype in self.vectors and (dtype.is_float or self.dtypes[buffer] not in MINIFLOATS)
                return known and _runs(index, lane)
            case Cast(arg, dtype):
                source = self.type_of(arg)
                truth = {DType.BOOL} if self.narrow_stores else set()
                known = source in {*self.vectors, *truth} and dtype in {*self.vectors, *truth}
                truncated = source is not None and source.is_float and not (dtype.is_float or dtype in truth)
                held = not truncated or (source is DType.F32 and dtype is DType.I32 and arg.clipped(dtype))
                return known and held and self._lane_ok(arg, lane)
            case Call(fn, args):
                kinds = {k for a in args if (k := self.type_of(a)) not in (DType.BOOL, None)}
                if not kinds <= self.vectors.keys() or len({self.vectors[k] for k in kinds}) > 1:
                    return False
                known = fn in LOGIC or fn in ("where", "not")
                if kinds:
                    floating = any(k.is_float for k in kinds)
                    math = {*INFIX, "neg", *FLOAT32_MATH} if floating else VECTOR_INT_MATH
                    known = known or fn in COMPARISONS or fn in math
                chosen = fn != "where" or self.type_of(value) in self.vectors
                return known and chosen and all(self._lane_ok(a, lane) for a in args)
            case Select(where, then, other):
                uniform = not any(lane in variables(r.index) for r in where)
                chosen = self.type_of(value) in self.vectors
                return uniform and chosen and self._lane_ok(then, lane) and self._lane_ok(other, lane)
        return False

    def mask_of(self, value: Scalar) -> str:
        """Return the vector type of a condition's mask: as wide as what it compares first, or as int32."""
        return self.masks(self._compared(value) or DType.F32)

    def _compared(self, value: Scalar) -> DType | None:
        """Return the type of what a condition compares first; None if it compares nothing."""
        match value:
            case Cast(arg, DType.BOOL) if self.type_of(arg) is not DType.BOOL:
                return self.type_of(arg)
            case Call(fn, args) if fn in COMPARISONS:
                return next((DType.F32 if k in SINGLE else k for a in args if (k := self.type_of(a)) is not None), None)
            case Call(_, args):
                return next((m for a in args if (m := self._compared(a)) is not None), None)
            case Select(_, then, other):
                return self._compared(then) or self._compared(other)
        return None

    def declare(self, buffer: Buffer, body: Body) -> None:
        """Decide whether a register buffer can be an array of vectors: gcc keeps only those in registers."""
        self._typed(buffer)
        key, decided = (buffer.name, buffer.dtype, id(body)), (self.wide, self.folded, self.pieced)
        if key in self._declared:  # a nest may be printed twice, and outer loops are counted first
            for names, member in zip(decided, self._declared[key][1], strict=True):
                (names.add if member else names.discard)(buffer.name)
            return
        for names in decided:
            names.discard(buffer.name)
        computed = buffer.dtype in self.vectors and buffer.dtype.accumulator is buffer.dtype
        if buffer.scope is Scope.REGISTER and computed and buffer.size % self.lanes == 0:
            self.wide.add(buffer.name)
            if not self._only_vectors(buffer.name, body):
                self.wide.discard(buffer.name)
                self.folded.discard(buffer.name)
        self._declared[key] = body, [buffer.name in names for names in decided]

    def _typed(self, buffer: Buffer) -> None:
        if self.dtypes.get(buffer.name) is not buffer.dtype:
            self.dtypes[buffer.name] = buffer.dtype
            self._lanes_ok.clear()

    def _only_vectors(self, name: str, body: Body) -> bool:
        """Return whether each access to the buffer is a whole vector, or a lane known at compile time."""
        for stmt in body:
            match stmt:
                case For() if self.folded_vector(stmt):
                    self.folded.add(name)
                case For(kind=Kind.VECTOR) if moved := self.vector(stmt):
                    for s in moved.body:
                        assert isinstance(s, Store)
                        if moved.start and s.buffer == name:
                            self.pieced.add(name)
                        for buffer, index in _accesses(s):
                            if buffer == name and index.coef(moved.var) not in (0, 1):
                                return False
                            if buffer == name and not self._whole(index - var(moved.var) * index.coef(moved.var)):
                                return False
                case For() | Alloc():
                    if isinstance(stmt, Alloc):
                        self._typed(stmt.buffer)
                    if not self._only_vectors(name, stmt.body):
                        return False
                case If(_, then):
                    if not self._only_vectors(name, then):
                        return False
                case Apply(_, operands) if any(o.buffer == name for o in operands):
                    return False
                case Store():
                    for buffer, index in _accesses(stmt):
                        if buffer == name and not self._whole(index - index.const):
                            return False
                case Sync() | Apply() | Prefetch():
                    pass
                case _:
                    assert_never(stmt)
        return True

    def _whole(self, index: Index) -> bool:
        return index.const % self.lanes == 0 and all(c % self.lanes == 0 for _, c in index.terms)

    def masks(self, kind: DType) -> str:
        """Return the vector type of conditions that select between elements of type `kind`."""
        return "vl" if kind.accumulator.itemsize == 8 else "vi"

    def folded_vector(self, loop: For) -> tuple[str, Index, str] | None:
        """Return the buffer, index and function of a loop that reduces a vector's lanes into lane 0."""
        found = folded(loop, self.lanes)
        return found if found and found[0] in self.wide else None

    def numbers(self, body: Body) -> tuple[int, int]:
        """Return how many scalar stores unrolling makes of a body, and how many numbers it gathers into vectors."""
        stored = gathered = 0
        for s in body:
            match s:
                case For(kind=Kind.VECTOR) if moved := self.vector(s):
                    gathered += (moved.stop - moved.start) * sum(map(_gathers, moved.body, repeat(moved.var)))
                case For(_, start, stop, kind, inner):
                    times = stop - start if kind in (Kind.UNROLLED, Kind.VECTOR) else 1
                    if id(s) not in self._known:  # each outer loop needs it again
                        self._known[id(s)] = s, self.numbers(inner)
                    inside = self._known[id(s)][1]
                    stored, gathered = stored + times * inside[0], gathered + times * inside[1]
                case Alloc(_, inner) | If(_, inner):
                    if isinstance(s, Alloc):
                        self.declare(s.buffer, inner)
                    inside = self.numbers(inner)
                    stored, gathered = stored + inside[0], gathered + inside[1]
                case Store():
                    stored += 1
                case Sync() | Apply() | Prefetch():
                    pass
                case _:
                    assert_never(s)
        return stored, gathered

    def type_of(self, value: Scalar) -> DType | None:
        return result_dtype(value, self.dtypes)


def depends(value: Scalar, lane: str) -> bool:
    """Return whether the value differs from lane to lane."""
    return any(lane in variables(index) for index in indices_of(value))


def _runs(index: Index, lane: str) -> bool:
    """Return whether lanes are contiguous."""
    return index.coef(lane) == 1 and lane not in variables(index - var(lane))


def _gathers(s: Stmt, lane: str) -> int:
    """Return the number of vectors that a store gathers with a stride."""
    assert isinstance(s, Store)
    return sum(ld.index[0].coef(lane) not in (0, 1) for ld, _ in loads(s.value))


def _accesses(s: Store) -> list[tuple[str, Index]]:
    return [(s.buffer, s.index), *((ld.tensor, ld.index[0]) for ld, _ in loads(s.value))]
