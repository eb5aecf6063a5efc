"""Print tile programs as C-like text: C with vector extensions. Backends override some methods."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isinf, isnan
from operator import le
from typing import assert_never

import numpy as np

from rammer.errors import LoweringError
from rammer.ir.expr import Call, Cast, Const, Dynamic, Iota, Load, Range, Scalar, Select
from rammer.ir.index import Index, bounds, var, variables
from rammer.ir.tensor import DType, aligned_bytes
from rammer.ir.tile import Alloc, Apply, Body, Buffer, For, If, Kind, Prefetch, Store, Sync, TileProgram, uses
from rammer.vdevice.ctext.minifloats import MINIFLOATS, wrapped
from rammer.vdevice.ctext.vectors import BITWISE, FLOAT32_MATH, INFIX, LOGIC, SINGLE, VectorLoops

COMPARE = {"equal": "==", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}
CTYPE = {
    DType.F16: "_Float16",
    DType.BF16: "bf16",
    DType.F32: "float",
    DType.F64: "double",
    **{dtype: f"{dtype.value}_t" for dtype in (DType.I8, DType.I16, DType.I32, DType.I64)},
    **{dtype: f"{dtype.value}_t" for dtype in (DType.U8, DType.U16, DType.U32, DType.U64)},
    **dict.fromkeys((DType.I2, DType.I4), "int8_t"),
    **dict.fromkeys((DType.BOOL, DType.U2, DType.U4, *MINIFLOATS), "uint8_t"),
    DType.C64: "uint64_t",  # of both parts
    DType.C128: "_Complex double",
}
SQUARES = {1: ("vb_", "uint8_t"), 2: ("vt_", "uint16_t"), 4: ("v", "float"), 8: ("vl_", "int64_t")}  # by bytes
INT_MATH = frozenset(
    {"max", "min", "abs", "sign", "mod", "fmod", "div", "pow", "shift_left", "shift_right", "dot_bytes", "join_bytes"}
)


class CFamilyPrinter(VectorLoops):
    """Prints one tile program. Make a new printer per program: it keeps the types and bounds of variables in scope."""

    restrict, loop_type = "restrict ", "long"
    align = "__attribute__((aligned(64)))"
    ctype: Mapping[DType, str] = CTYPE
    unrolled = frozenset({Kind.UNROLLED})  # kinds of loops that get an unroll pragma
    most_numbers: tuple[float, float] = (inf, inf)  # limits of scalar stores and of gathered numbers for that pragma

    def __init__(self, program: TileProgram, lanes: int) -> None:
        super().__init__(program, lanes)
        self.env: dict[str, tuple[int, int]] = {}
        self.first_lane = 0  # of the current vector loop: lanes before it keep their values

    def scratch(self) -> list[str]:
        """Print declarations of the scratch buffers, each aligned."""
        offset, lines = 0, []
        for b in self.program.scratch:
            kind = self.ctype[b.encoding.dtype if b.encoding else b.dtype]
            lines.append(f"  {kind} *{self.restrict}{b.name} = ({kind} *)(scratch + {offset});")
            offset += aligned_bytes(b.nbytes)
        return lines

    def end(self) -> list[str]:
        """Print the lines after the body."""
        return []

    def body(self, body: Body, depth: int) -> list[str]:
        """Print some statements."""
        pad, lines = "  " * depth, []
        for stmt in body:
            match stmt:
                case Alloc(buffer, inner):
                    self.declare(buffer, inner)
                    lines += [f"{pad}{{ {self.alloc(buffer)}", *self.body(inner, depth + 1), pad + "}"]
                case Sync():
                    lines.append(pad + self.sync(stmt.pending))
                case Apply():
                    lines += [pad + line for line in self.apply(stmt)]
                case Prefetch():
                    lines += [pad + line for line in self.prefetch(stmt)]
                case Store():
                    lines.append(pad + self.store(stmt, None))
                case If(where, then):
                    lines += [f"{pad}if ({self.conditions(where)}) {{", *self.body(then, depth + 1), pad + "}"]
                case For():
                    self.env[stmt.var] = (stmt.start, stmt.stop - 1)
                    lines += [pad + line for line in self.loop(stmt, depth)]
                case _:
                    assert_never(stmt)
        return lines

    def loop(self, loop: For, depth: int) -> list[str]:
        if loop.kind in (Kind.TASK, Kind.THREAD):
            number = "rtask" if loop.kind is Kind.TASK else "tid"
            number = f"{number} / {loop.stride}" if loop.stride > 1 else number
            digit = f" const {self.loop_type} {loop.var} = {number} % {loop.stop};" if uses(loop.body, loop.var) else ""
            return [f"{{{digit}", *self.body(loop.body, 1), "}"]
        if loop.kind is Kind.VECTOR and (moved := self.vector(loop)):
            stores = [s for s in moved.body if isinstance(s, Store)]
            if moved.stop - moved.start == 1 and any(s.buffer in self.folded for s in stores):  # others keep their sums
                return [self.store(s.at({moved.var: Index(moved.start)}), None) for s in stores]
            self.first_lane = moved.start
            lines = [self.store(s, moved.var, moved.stop) for s in stores]
            self.first_lane = 0
            return lines
        if fold := self.fold(loop):
            return [fold]
        if square := self.square(loop):
            return [square]
        lines = ["#pragma unroll"] if loop.kind in self.unrolled and self.is_unrollable(loop) else []
        lines.append(f"for ({self.counted(loop)}) {{")
        return [*lines, *("  " + line for line in self.head(loop)), *self.body(loop.body, 1), "}"]

    def is_unrollable(self, loop: For) -> bool:
        """Return whether unrolling a loop stays within `most_numbers`: more scalars take a compiler too long."""
        return all(map(le, self.numbers((loop,)), self.most_numbers))

    def counted(self, loop: For) -> str:
        """Print the head of a loop: start, condition and step."""
        v = loop.var
        return f"{self.loop_type} {v} = {loop.start}; {v} < {loop.stop}; {v}++"

    def head(self, loop: For) -> list[str]:
        """Print lines at the beginning of a loop's body."""
        return []

    # vectors

    def fold(self, loop: For) -> str | None:
        """Print the reduction of a vector's lanes into lane 0, if the loop is one, else return None."""
        if (found := self.folded_vector(loop)) is None:
            return None
        buffer, index, fn = found
        vector = f"{buffer}[{self.vector_index(index)}]"
        return f"{vector}[0] = {self.named(f'fold_{fn}', self.dtypes[buffer])}({vector});"

    def square(self, loop: For) -> str | None:
        """Print a transposed copy of a square, or of a part of one, if the loop is one, else return None."""
        match loop:
            case For(v, 0, rows, Kind.UNROLLED, (For(lane, 0, columns, Kind.VECTOR, (Store() as s,)),)):
                if not isinstance(s.value, Load) or s.value.dynamic or {s.buffer, s.value.tensor} & self.wide:
                    return None
                load = s.value.index[0]
                row, step = s.index.coef(v), load.coef(lane)
                target = s.index - var(v) * row - var(lane)
                source = load - var(v) - var(lane) * step
                names = variables(target) | variables(source)
                kind = self.dtypes[s.buffer]
                single = kind is self.dtypes[s.value.tensor] and kind.itemsize in SQUARES
                fits = max(rows, columns) <= self.lanes and min(rows, columns) > 1
                if single and fits and step not in (0, 1) and row and load.coef(v) == 1 and not names & {v, lane}:
                    out = self.place(s.buffer, self.index(target), (rows - 1) * row + columns)
                    into = self.place(s.value.tensor, self.index(source), (columns - 1) * step + rows)
                    prefix, element = SQUARES[kind.itemsize]
                    text = f"({element} *)&{out}, {row}, (const {element} *)&{into}, {step}, {rows}, {columns}"
                    return f"{prefix}transpose({text});"
        return None

    def vector_index(self, index: Index) -> str:
        return self.index(Index(index.const // self.lanes, tuple((a, c // self.lanes) for a, c in index.terms)))

    # statements

    def store(self, s: Store, lane: str | None, count: int = 0) -> str:
        """Print one assignment; with `lane`, of the first `count` lanes of a vector."""
        kind = self.dtypes[s.buffer]
        if s.dynamic:
            return self.store_moved(s, lane, count)
        if lane and kind in self.narrow:
            return self.store_narrow(s, lane, count)
        whole = count in (0, self.lanes)
        if lane and s.index.coef(lane) not in (0, 1):
            reach = ((count or self.lanes) - 1) * s.index.coef(lane) + 1
            place = self.place(s.buffer, self.index(s.index - var(lane) * s.index.coef(lane)), reach)
            vector = self.wide_text(s.value, lane, count, kind)
            return f"vscatter(&{place}, {s.index.coef(lane)}, {vector}, {count or self.lanes});"
        others = s.buffer in self.folded or _merges(s)  # lanes that must keep what they hold
        others = others or (s.buffer in self.pieced and not _adds_zeros(s, lane))
        if s.buffer in self.wide and lane and (self.first_lane or (not whole and others)):
            target, text = self.element(s.buffer, s.index, lane), self.wide_text(s.value, lane, count, kind)
            first = self.named("first", kind)
            text = text if whole else f"{first}({count}, {text}, {target})"
            return f"{target} = {f'{first}({self.first_lane}, {target}, {text})' if self.first_lane else text};"
        moves = lane and s.index.coef(lane) and s.buffer not in self.wide
        direct = kind.accumulator is kind and self.one_access(s.buffer, s.index - var(lane or ""))
        if lane and moves and not (whole and direct):
            name = self.named("store", kind)
            place = self.index(s.index - var(lane))
            vector = self.wide_text(s.value, lane, count, kind)
            return f"{name}(&{self.place(s.buffer, place, count or self.lanes)}, {vector}, {count or self.lanes});"
        target = self.element(s.buffer, s.index, lane)
        match s.value:
            case Call("add", (Load(s.buffer, (s.index,)), more)) if kind in (DType.F32, DType.F64):
                op, value = "+=", more
            case value:
                op = "="
        if lane:
            return f"{target} {op} {self.wide_text(value, lane, count, kind)};"
        if isinstance(value, Load) and not value.dynamic and self.dtypes[value.tensor] is kind is not kind.accumulator:
            return f"{target} = {self.element(value.tensor, value.index[0], None)};"  # without a conversion
        text, _ = self.scalar(value, None, 0, kind)
        return f"{target} {op} {self.convert(text, self.type_of(value) or kind, kind)};"

    def store_moved(self, s: Store, lane: str | None = None, count: int = 0) -> str:
        """Print a scatter of stored numbers to an index from data. An index out of bounds stores nothing."""
        if not isinstance(s.value, Load) or s.value.dynamic or self.dtypes[s.buffer] is not self.type_of(s.value):
            raise LoweringError(f"{self.program.name}: only what lies in memory is stored where data say")
        first, width = (var(lane), count or self.lanes) if lane else (Index(), 1)
        to = self.index(s.index - first) + self.moved(s.dynamic, "&bad")
        target = self.place(s.buffer, "to", width)
        value = self.place(s.value.tensor, self.index(s.value.index[0] - first), width)
        if s.combine:
            there = var("to") + first
            both = Call(s.combine, (Load(s.buffer, (there,)), s.value))
            copy = self.store(Store(s.buffer, there, both), lane, count).rstrip(";")
        else:
            copy = f"memcpy(&{target}, &{value}, {width} * sizeof({target}))" if lane else f"{target} = {value}"
        refused = "*status = bad" if all(d.strict for d in s.dynamic) else ""
        return f"{{ int bad = 0; const int64_t to = {to}; if (bad) {refused}; else {copy}; }}"

    def store_narrow(self, s: Store, lane: str, count: int) -> str:
        """Print a vector store of adjacent small integers or minifloats. Else as `store`."""
        target = self.dtypes[s.buffer]
        whole, vector = count in (0, self.lanes), self.narrow[target]
        if isinstance(s.value, Load):
            source = self.place(s.value.tensor, self.index(s.value.index[0] - var(lane)), count or self.lanes)
            text = f"VECTOR({vector}, {source})" if whole else f"{vector}_load(&{source}, {count})"
        else:
            value = s.value.arg if isinstance(s.value, Cast) and target is not DType.BOOL else s.value
            kind = self.type_of(value) or DType.I32
            integral = kind.is_float and target is not DType.BOOL and target not in MINIFLOATS
            text = (self.truncated if integral else self.wide_text)(value, lane, count, kind)
            if target is DType.BOOL:
                text = f"(1 & {text})"
            elif target in MINIFLOATS:
                text = f"vto_{target.value}({text})"
            text = wrapped(f"__builtin_convertvector({text}, {vector})", target)
        place = self.place(s.buffer, self.index(s.index - var(lane)), count or self.lanes)
        return f"VECTOR({vector}, {place}) = {text};" if whole else f"{vector}_store(&{place}, {text}, {count});"

    def truncated(self, value: Scalar, lane: str, count: int, kind: DType) -> str:
        """Print floats for all lanes, converted to int32."""
        return f"__builtin_convertvector({self.wide_text(value, lane, count, kind)}, {self.vectors[DType.I32]})"

    def wide_text(self, value: Scalar, lane: str, count: int, kind: DType) -> str:
        """Print a value for all lanes, in the vector type in which `kind` is computed."""
        kind = DType.F32 if kind in SINGLE else kind
        return self.spread(self.scalar(value, lane, count, kind), kind)

    def spread(self, text: tuple[str, bool], kind: DType) -> str:
        """Print a vector, broadcasting the text of a scalar."""
        return text[0] if text[1] else f"{self.named('splat', kind)}({text[0]})"

    def named(self, function: str, kind: DType) -> str:
        """Return the name of a vector function for elements of `kind`. Those of float32 have short names."""
        half = {DType.F16: "_h", DType.BF16: "_b"}.get(kind, "") if function in ("load", "store") else ""
        if kind in SINGLE:
            return function if function == "splat" or function.startswith("fold_") else f"v{function}{half}"
        return f"{self.vectors[kind]}_{function}"

    def element(self, buffer: str, index: Index, lane: str | None) -> str:
        """Print an assignable element, or a vector if the index moves with `lane`."""
        if buffer in self.wide:
            if lane and index.coef(lane):
                return f"{buffer}[{self.vector_index(index - var(lane))}]"
            return f"{buffer}[{self.vector_index(index - index.const % self.lanes)}][{index.const % self.lanes}]"
        if lane and index.coef(lane):
            return self.whole(buffer, self.place(buffer, self.index(index - var(lane)), self.lanes))
        return self.place(buffer, self.index(index), 1)

    def whole(self, buffer: str, place: str) -> str:
        """Print the vector that starts at an element."""
        kind = self.dtypes[buffer]
        short = {DType.F32: "V", DType.F16: "VH", DType.BF16: "VB"}.get(kind)
        return f"{short}({place})" if short else f"VECTOR({self.vectors[kind]}, {place})"

    def place(self, buffer: str, index: str, reach: int) -> str:
        """Print `buffer` at `index`. The access touches `reach` elements, backwards if it is negative."""
        return f"{buffer}[{index}]"

    def one_access(self, buffer: str, index: Index) -> bool:
        """Return whether a vector at `index` is one access, instead of one per element."""
        return True

    def apply(self, s: Apply) -> list[str]:
        """Print an instruction. Raises LoweringError if the language lacks it."""
        raise LoweringError(f"{self.program.name}: this language has no instruction {s.instruction.name}")

    def prefetch(self, s: Prefetch) -> list[str]:
        """Print a prefetch, or nothing if the language has none."""
        return []

    # scalars

    def scalar(self, value: Scalar, lane: str | None, count: int, like: DType) -> tuple[str, bool]:
        """Print a value; return also whether it is a vector.

        Literals have type `like`; half floats are computed in float32.
        """
        match value:
            case Const(v, dtype):
                return self.literal(v, dtype or like), False
            case Cast(Iota(index), DType.I32, False) | Iota(index) if lane and index.coef(lane):
                kind = self.vectors[DType.I32 if isinstance(value, Cast) else DType.I64]
                step = index.coef(lane)
                first = f"{kind}_splat({self.index(index - var(lane) * step)})"
                return f"({first} + {kind}_lanes(){f' * {step}' * (step != 1)})", True
            case Iota(index):
                return f"(int64_t)({self.index(index)})", False
            case Load(buffer, (index,), dynamic):
                return self.load(buffer, index, dynamic, lane, count)
            case Cast(arg, dtype, bits=True):
                text, _ = self.scalar(arg, None, 0, dtype)
                return self.same_bits(text, self.type_of(arg) or dtype, dtype), False
            case Cast(arg, dtype):
                source = self.type_of(arg) or dtype
                if lane and source in self.narrow and isinstance(arg, Load) and arg.index[0].coef(lane):
                    return self.load_narrow(arg.tensor, arg.index[0] - var(lane), count, dtype), True
                text, wide = self.scalar(arg, lane, count, source)
                if wide and source is DType.BOOL is not dtype:
                    zero, one = (self.spread((self.literal(n, dtype), False), dtype) for n in (0, 1))
                    return self.chosen(arg, text, one, zero, dtype), True
                if wide and dtype is DType.BOOL:
                    return text if source is dtype else f"({text} != 0)", True
                if wide:
                    return self.convert_wide(text, source, dtype), True
                return self.widen(self.convert(text, source, dtype), dtype), False
            case Select(where, then, other):
                (a, wide_a), (b, wide_b) = self.scalar(then, lane, count, like), self.scalar(other, lane, count, like)
                if wide_a or wide_b:
                    kind = self.type_of(value) or like
                    a, b = self.spread((a, wide_a), kind), self.spread((b, wide_b), kind)
                return f"({self.conditions(where)} ? {a} : {b})", wide_a or wide_b
            case Call():
                return self.call(value, lane, count, like)
        raise TypeError(value)

    def load(
        self, buffer: str, index: Index, dynamic: tuple[Dynamic, ...], lane: str | None, count: int
    ) -> tuple[str, bool]:
        kind = self.dtypes[buffer]
        if buffer in self.wide:
            return self.element(buffer, index, lane), bool(lane and index.coef(lane))
        if lane and kind is DType.BOOL and index.coef(lane):
            return f"({self.load_narrow(buffer, index - var(lane), count, DType.I32)} != 0)", True
        if lane and not dynamic and not self._access_ok(buffer, index, lane) and lane in variables(index):
            pick = self.picked(buffer, index, lane)
            assert pick is not None, index
            last = max(pick[1][: count or self.lanes])
            if self._whole(pick[0]) and self._filled(buffer):
                vector = self.whole(buffer, self.place(buffer, self.index(pick[0]), self.lanes))
            else:
                vector = f"vload(&{self.place(buffer, self.index(pick[0]), last + 1)}, {last + 1})"
            return f"__builtin_shufflevector({vector}, {vector}, {', '.join(map(str, pick[1]))})", True
        step = index.coef(lane) if lane else 0
        wide = step != 0
        text = self.index(index - var(lane) * step if wide and lane else index) + self.moved(dynamic)
        if wide and self.first_lane:
            text, count = self.index(index + (Index(self.first_lane) - var(lane or "")) * step), count - self.first_lane
            place = self.place(buffer, text, (count - 1) * step + (1 if step > 0 else -1))
            how, by = ("load", "") if step == 1 else ("gather", f"{step}, ")
            return f"v{how}_from(&{place}, {by}{self.first_lane}, {count})", True
        if step not in (0, 1):
            reach = ((count or self.lanes) - 1) * step + (1 if step > 0 else -1)
            return f"vgather(&{self.place(buffer, text, reach)}, {step}, {count or self.lanes})", True
        place = self.place(buffer, text, (count or self.lanes) if wide else 1)
        start = sum((var("at") * d.stride for d in dynamic), index - var(lane) if lane and wide else index)
        if wide and (count not in (0, self.lanes) or not self.one_access(buffer, start)):
            return f"{self.named('load', kind)}(&{place}, {count or self.lanes})", True
        return (self.whole(buffer, place) if wide else self.widen(place, kind)), wide

    def moved(self, dynamic: tuple[Dynamic, ...], status: str = "status") -> str:
        """Print the checked offsets that data add to an index."""
        texts = (self.scalar(d.value, None, 0, DType.I64)[0] for d in dynamic)
        return "".join(f" + {d.stride}*at({t}, {d.extent}, {status})" for d, t in zip(dynamic, texts, strict=True))

    def load_narrow(self, buffer: str, index: Index, count: int, dtype: DType) -> str:
        """Print a load of a vector of small numbers, converted to `dtype`."""
        source = self.dtypes[buffer]
        place, kind = self.place(buffer, self.index(index), count or self.lanes), self.narrow[source]
        some = f"{kind}_load(&{place}, {count})" if count not in (0, self.lanes) else f"VECTOR({kind}, {place})"
        if source in MINIFLOATS:
            codes = f"__builtin_convertvector({some}, {self.vectors[DType.I32]})"
            return self.convert_wide(f"vfrom_{source.value}({codes})", DType.F32, dtype)
        return self.rounded(f"__builtin_convertvector({wrapped(some, source)}, {self.vectors[dtype]})", dtype)

    def convert_wide(self, text: str, source: DType, target: DType) -> str:
        """Convert a vector of type `source` (half floats as float32, maybe unrounded) to type `target`."""
        if source is DType.F64 and target is DType.F16:  # by way of float32 it would be rounded twice
            return f"__builtin_convertvector(__builtin_convertvector({text}, vh), {self.vectors[target]})"
        if self.vectors[source] != self.vectors[target]:
            text = f"__builtin_convertvector({text}, {self.vectors[target]})"
        return self.rounded(text, target)

    def rounded(self, text: str, target: DType) -> str:
        """Round a vector of float32 to half floats, if `target` is such a type."""
        half = {DType.F16: "h", DType.BF16: "b"}.get(target)
        return f"vround_{half}({text})" if half else text

    def call(self, call: Call, lane: str | None, count: int, like: DType) -> tuple[str, bool]:
        fn, args = call.fn, call.args
        kind = next((k for a in args if (k := self.type_of(a)) is not None), like)
        if fn == "where":
            kind = self.type_of(call) or like
            cond, wide_c = self.scalar(args[0], lane, count, DType.BOOL)
            pairs = [self.scalar(a, lane, count, kind) for a in args[1:]]
            if not (wide_c or any(w for _, w in pairs)):
                return f"({cond} ? {pairs[0][0]} : {pairs[1][0]})", False
            a, b = (self.spread(p, kind) for p in pairs)
            return self.chosen(args[0], cond, a, b, kind) if wide_c else f"({cond} ? {a} : {b})", True
        texts = [self.scalar(a, lane, count, kind) for a in args]
        wide = any(w for _, w in texts)
        if fn in ("max", "min") and kind in SINGLE and any(isinstance(a, Const) and a.value == a.value for a in args):
            texts = texts if isinstance(args[1], Const) else texts[::-1]
            a, b = (self.spread(t, kind) if wide else t[0] for t in texts)
            return f"{'v' if wide else 's'}{fn}c({a}, {b})", wide
        plain = [t for t, _ in texts]
        if fn in ("real", "imag", "complex"):
            return f"c{2 * kind.part.bits}_{fn}({', '.join(plain)})", False
        if kind is DType.BOOL or fn in LOGIC or fn == "not":
            return self.logic(call, texts, wide), wide
        if kind.is_float:
            return self.float_call(fn, texts, wide, kind), wide
        if wide:
            return self.wide_int_call(fn, [self.spread(t, kind) for t in texts], kind), True
        return self.int_call(fn, plain, kind), False

    def float_call(self, fn: str, texts: list[tuple[str, bool]], wide: bool, kind: DType) -> str:
        plain = [t for t, _ in texts]
        if fn in INFIX:  # a scalar operand is broadcast by the language
            return f"({plain[0]} {INFIX[fn]} {plain[1]})"
        if fn == "neg":
            return f"(-{plain[0]})"
        spread = [self.spread(t, kind) if wide else t[0] for t in texts]
        if fn in COMPARE:
            return f"({spread[0]} {COMPARE[fn]} {spread[1]})"
        if fn not in FLOAT32_MATH and fn not in ("is_nan", "is_inf"):
            raise LoweringError(f"no C text for the function {fn!r} of {kind.value}")
        name = self.named(fn, kind) if wide else f"{'d' if kind is DType.F64 else 's'}{fn}"
        return f"{name}({', '.join(spread)})"

    def wide_int_call(self, fn: str, texts: list[str], kind: DType) -> str:
        """Print an integer function of vectors."""
        if operator := COMPARE.get(fn) or BITWISE.get(fn) or (INFIX.get(fn) if fn != "div" else None):
            return f"({texts[0]} {operator} {texts[1]})"
        if fn in ("is_nan", "is_inf"):
            return f"{self.masks(kind)}_splat(0)"
        if fn in ("neg", "bit_not"):
            return f"({'-' if fn == 'neg' else '~'}{texts[0]})"
        return f"{self.named(fn, kind)}({', '.join(texts)})"

    def chosen(self, condition: Scalar, mask: str, then: str, other: str, kind: DType) -> str:
        """Print a choice between vectors of `kind`, by the mask of a condition."""
        return f"{self.named('sel', kind)}({self.as_mask(condition, mask, self.masks(kind))}, {then}, {other})"

    def as_mask(self, condition: Scalar, mask: str, wanted: str) -> str:
        """Print a condition's mask in a vector type."""
        return mask if self.mask_of(condition) == wanted else f"__builtin_convertvector({mask}, {wanted})"

    def logic(self, call: Call, texts: list[tuple[str, bool]], wide: bool) -> str:
        fn, plain, own = call.fn, [t for t, _ in texts], self.mask_of(call)
        if wide:
            mask = "mask" if own == "vi" else "vl_mask"
            given = zip(call.args, texts, strict=True)
            masks = [self.as_mask(a, t, own) if w else f"{mask}({t})" for a, (t, w) in given]
            if fn == "not":
                return f"(~{masks[0]})"
            if fn in LOGIC:
                return f"({masks[0]} {LOGIC[fn]} {masks[1]})"
        truth = [f"({t} != 0)" for t in plain]
        if fn in ("not",):
            return f"(!{truth[0]})"
        operator = LOGIC.get(fn) or COMPARE.get(fn) or {"add": "|", "max": "|", "mul": "&", "min": "&"}.get(fn)
        if operator is None or wide:
            raise LoweringError(f"no C text for the function {fn!r} of bool")
        return f"({truth[0]} {operator} {truth[1]})"

    def int_call(self, fn: str, plain: list[str], kind: DType) -> str:
        """Print an integer function of scalars. Arithmetic wraps, as NumPy's does."""
        name = self.ctype[kind]
        if fn in COMPARE:
            return f"({plain[0]} {COMPARE[fn]} {plain[1]})"
        if fn in ("is_nan", "is_inf"):
            return "0"
        if fn in ("floor", "ceil", "round"):
            return plain[0]
        if fn in ("add", "sub", "mul"):
            return f"({name})((uint64_t){plain[0]} {INFIX[fn]} (uint64_t){plain[1]})"
        if fn == "neg":
            return f"({name})(0 - (uint64_t){plain[0]})"
        if fn in BITWISE:
            return f"({name})({plain[0]} {BITWISE[fn]} {plain[1]})"
        if fn == "bit_not":
            return f"({name})(~{plain[0]})"
        if fn not in INT_MATH:
            raise LoweringError(f"no C text for the function {fn!r} of {kind.value}")
        return f"({name}){'u' if kind is DType.U64 else 'i'}{fn}({', '.join(plain)})"

    def convert(self, text: str, source: DType, target: DType) -> str:
        """Convert a value of type `source` (half floats as float32) to an element of type `target`."""
        if source is target and target not in (DType.F16, DType.BF16):
            return text
        if source in MINIFLOATS:
            text, source = f"sfrom_{source.value}({text})", DType.F32
        text = wrapped(text, source, "(int8_t)")
        if target in MINIFLOATS:
            return f"(uint8_t)sto_{target.value}({text})"
        if target is DType.BF16:
            return f"to_bf16({text})"
        if target is DType.BOOL:
            return f"({text} != 0)"
        if target.is_float:
            return f"({self.ctype[target]})({text})"
        if target is DType.U64 and source.is_float:
            return f"to_uint64({text})"
        return wrapped(f"({self.ctype[target]})(int64_t)({text})", target, "(int8_t)")

    def same_bits(self, text: str, source: DType, target: DType) -> str:
        """Reinterpret the bits of a value of type `source` as a `target` of the same width."""
        made = {DType.F32: "sbits", DType.F64: "dbits", DType.F16: "hbits", DType.BF16: "to_bf16"}.get(source)
        read = {DType.F32: "sfloat", DType.F64: "dfloat", DType.F16: "hfloat", DType.BF16: "from_bf16"}.get(target)
        number = f"{made}({text})" if made else text
        if target in MINIFLOATS:  # whose elements are computed as bytes
            return f"(uint8_t)({number} & {(1 << target.bits) - 1})"
        return f"{read}({number})" if read else self.convert(number, DType.I64, target)

    def widen(self, text: str, kind: DType) -> str:
        """Convert an element of type `kind` to the type in which it is computed."""
        return f"(float){text}" if kind is DType.F16 else f"from_bf16({text})" if kind is DType.BF16 else text

    def literal(self, v: float | int | bool, kind: DType) -> str:
        if kind in MINIFLOATS:
            return str(int(np.asarray(v, kind.numpy).view(np.uint8)))
        if kind.is_complex:
            return f"c{kind.bits}_complex({self.literal(v, kind.part)}, 0)"
        if not kind.is_float:
            if v == np.iinfo(np.int64).min:
                return "INT64_MIN"
            return f"{int(v)}{'UL' if kind is DType.U64 else 'L' if kind is DType.I64 else ''}"
        value = (
            float(v)
            if kind is DType.F64
            else float(np.float32(min(max(v, -3.5e38), 3.5e38)))
            if abs(v) < np.inf
            else float(v)
        )
        if isnan(value):
            return "NAN"
        if isinf(value):
            return "-INFINITY" if value < 0 else "INFINITY"
        text = repr(value) if kind is DType.F64 else f"{value!r}f"
        return f"({text})" if value < 0 else text

    def conditions(self, where: tuple[Range, ...]) -> str:
        """Print 0 <= index - low < high - low, as one unsigned comparison each."""
        return " && ".join(f"(unsigned long)({self.index(r.index - r.low)}) < {r.high - r.low}" for r in where)

    def index(self, index: Index) -> str:
        parts = []
        for atom, c in index.terms:
            if isinstance(atom, str):
                text = atom
            else:
                arg, name = self.index(atom.arg), type(atom).__name__
                negative = bounds(atom.arg, self.env)[0] < 0
                text = (
                    f"floor_{name.lower()}({arg}, {atom.by})"
                    if negative
                    else f"(({arg}) {'/%'[name == 'Mod']} {atom.by})"
                )
            parts.append(text if c == 1 else f"{c}*{text}")
        if index.const or not parts:
            parts.append(str(index.const))
        return " + ".join(parts).replace("+ -", "- ")

    def alloc(self, buffer: Buffer) -> str:
        if buffer.name in self.wide:
            return f"{self.vectors[buffer.dtype]} {buffer.name}[{buffer.size // self.lanes}];"
        return f"{self.ctype[buffer.dtype]} {buffer.name}[{buffer.size}] {self.align};"

    def sync(self, pending: int | None) -> str:
        return ""  # one thread per vEU


def _adds_zeros(s: Store, lane: str | None) -> bool:
    """Return whether the store starts a sum, or adds zero in lanes that are not loaded."""
    match s.value:
        case Call("add", (Load(s.buffer, (s.index,)), Call("mul", args))):
            pass
        case Call("add", (Load(s.buffer, (s.index,)), more)):
            args = (more,)
        case value:
            return isinstance(value, Const)
    loaded = [a.then if isinstance(a, Select) and a.other == Const(0, None) else a for a in args]
    return any(isinstance(a, Load) and a.tensor != s.buffer and lane in variables(a.index[0]) for a in loaded)


def _merges(s: Store) -> bool:
    """Return whether the store updates an element by a function whose neutral element is not zero: max, min, mul."""
    return isinstance(s.value, Call) and s.value.fn != "add" and Load(s.buffer, (s.index,)) in s.value.args
