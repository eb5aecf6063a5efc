"""Read and check a file with one `__global__` kernel: parameters, shared arrays, statements. Paper: §4.1.4."""

from __future__ import annotations

import ast
import hashlib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from rammer.errors import LoweringError
from rammer.ir.tensor import DType
from rammer_legacy_kernels.functions import CALLED, CASTS
from rammer_legacy_kernels.statements import (
    ASSIGN,
    QUALIFIERS,
    SYNC,
    TYPES,
    Statement,
    check_syncs,
    fixed_syncs,
    free_names,
    parse,
    walk,
)
from rammer_legacy_kernels.tokens import Token, check_words, closing, refusal, split, text_of, tokenize, word_set

HEADERS = word_set(
    "cuda.h cuda_runtime.h cuda_runtime_api.h device_launch_parameters.h math.h math_constants.h cmath stdint.h "
    "cstdint stddef.h cstddef"
)
CTYPES: Mapping[str, DType] = {
    "float": DType.F32,
    "double": DType.F64,
    "int": DType.I32,
    "int32_t": DType.I32,
    "long long": DType.I64,
    "int64_t": DType.I64,
    "short": DType.I16,
    "int16_t": DType.I16,
    "signed char": DType.I8,
    "char": DType.I8,
    "int8_t": DType.I8,
    "unsigned char": DType.U8,
    "uint8_t": DType.U8,
    "bool": DType.BOOL,
}
INDICES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_WIDTH = {**{t: d.itemsize for t, d in CTYPES.items()}, "unsigned": 4, "unsigned int": 4, "uint32_t": 4, "uint": 4}
_CONTROL = word_set("if for while do switch return else case default break continue")
_DROPPED = word_set("__device__ __host__ __forceinline__ __inline__ __noinline__ static inline constexpr")
_HIDDEN = _CONTROL | ASSIGN | word_set("__syncthreads __shared__ __global__ __device__ static { } ; ++ -- # ##")
MAX_SHARED = 1 << 20


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the kernel. `tensor`: a pointer to elements; otherwise a number by value. `ctype` omits const."""

    name: str
    ctype: str
    tensor: bool
    const: bool
    restrict: bool
    line: int


@dataclass(frozen=True, slots=True)
class SharedArray:
    """A shared array. `dims` is empty for a scalar; `dynamic` for `extern __shared__ T name[]`."""

    name: str
    ctype: str
    dims: tuple[int, ...]
    dynamic: bool

    @property
    def nbytes(self) -> int:
        return 0 if self.dynamic else _WIDTH[self.ctype] * prod(self.dims)


@dataclass(frozen=True, slots=True)
class Macro:
    name: str
    parameters: tuple[str, ...] | None
    body: tuple[Token, ...]


@dataclass(slots=True)
class Source:
    """A checked file. `helpers` are whole functions without their qualifiers, `body` the kernel's statements."""

    name: str = ""
    digest: str = ""  # of the text
    line: int = 0
    parameters: list[Parameter] = field(default_factory=list)
    macros: dict[str, Macro] = field(default_factory=dict)
    helpers: dict[str, list[Token]] = field(default_factory=dict)
    writers: set[str] = field(default_factory=set)  # helpers that may write through a pointer
    body: list[Token] = field(default_factory=list)  # shared arrays taken out
    shared: list[SharedArray] = field(default_factory=list)
    bounds: int = 0  # of __launch_bounds__
    statements: list[Statement] = field(default_factory=list)

    @property
    def has_syncs(self) -> bool:
        return any(s.kind == "sync" for s in walk(self.statements))

    @property
    def fixed_syncs(self) -> int | None:
        return fixed_syncs(self.statements)


def read_source(text: str) -> Source:
    """Read and check a file. Raises LoweringError with the line and the reason of a refusal."""
    source = Source(digest=hashlib.sha256(text.encode()).hexdigest())
    tokens = _directives(tokenize(text), source)
    _count_kernels(tokens)
    check_words(tokens)
    at = 0
    while at < len(tokens):
        at = _declaration(tokens, at, source)
    _take_shared(source)
    for macro in source.macros.values():
        _check_macro(macro)
    for helper in source.helpers.values():
        _check_calls(helper, source)
    for token in (t for h in source.helpers.values() for t in h):
        if token.text in INDICES or token.text in (SYNC, "__shared__"):
            raise refusal(token.line, token.text, "only the kernel itself may say it: give functions what they need")
    _check_calls(source.body, source)
    for n, token in enumerate(source.body):
        behind = [t.text for t in source.body[n + 1 : n + 3]]
        if token.text in INDICES and (behind[:1] != ["."] or behind[1:] not in (["x"], ["y"], ["z"])):
            raise refusal(token.line, token.text, "only its x, y and z are known")
        if token.text == "static":
            raise refusal(token.line, token.text, "an rTask remembers nothing")
    source.statements = parse(source.body)
    if source.has_syncs:
        check_syncs(source.statements, _varying(source), _arrays(source), source.writers)
    return source


def _directives(tokens: list[Token], source: Source) -> list[Token]:
    """Remove lines that begin with #: keep macros, drop known headers."""
    kept: list[Token] = []
    at, pragma = 0, ""
    while at < len(tokens):
        token = tokens[at]
        starts = not at or "\n" in token.space.replace("\\\n", "")
        if token.text != "#" or not starts:
            if token.text == "#":
                raise refusal(token.line, "#", "only lines may begin with it")
            kept.append(replace(token, space=token.space + pragma) if pragma else token)
            at, pragma = at + 1, ""
            continue
        end = at + 1
        while end < len(tokens) and "\n" not in tokens[end].space.replace("\\\n", ""):
            end += 1
        pragma = _directive(tokens[at:end], source) or pragma
        at = end
    return kept


def _directive(line: Sequence[Token], source: Source) -> str:
    """Record a directive; return the one that stays in the text: #pragma unroll, for the loop behind it."""
    words = [t.text for t in line]
    what = "#" + (words[1] if len(words) > 1 else "")
    if what == "#include":
        header = text_of(line[2:]).strip().strip('<>"')
        if header not in HEADERS:
            raise refusal(line[0].line, f"#include {header}", "there are no headers")
        return ""
    if what == "#pragma" and words[2:3] == ["once"]:
        return ""
    if what == "#pragma" and words[2:3] == ["unroll"]:
        times = [w for w in words[3:] if w.isdecimal()]
        return f"\n#pragma unroll {times[0] if times else ''}\n"
    if what != "#define" or len(line) < 3 or line[2].kind != "name":
        raise refusal(line[0].line, what, "#define of an expression is the only directive")
    name = line[2]
    check_words(line[2:])
    if name.text in source.macros or name.text in (TYPES | QUALIFIERS | _CONTROL) or name.text in INDICES:
        raise refusal(name.line, name.text, "it has a meaning already")
    parameters, body = None, list(line[3:])
    if body and body[0].text == "(" and not body[0].space:
        end = closing(body, 0)
        parameters = tuple(t.text for t in body[1:end] if t.text != ",")
        if any(not re.fullmatch(r"[A-Za-z]\w*", p) for p in parameters):
            raise refusal(name.line, name.text, "a macro's parameters are names")
        body = body[end + 1 :]
    source.macros[name.text] = Macro(name.text, parameters, tuple(body))
    return ""


def _check_macro(macro: Macro) -> None:
    """Check that a macro is an expression, so that it cannot hide a sync, a jump or an assignment."""
    for n, token in enumerate(macro.body):
        if token.text in ("(", "["):
            closing(macro.body, n)
        if token.text in _HIDDEN:
            raise refusal(token.line, token.text, "a macro may only be an expression")
    depth = 0
    for token in macro.body:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(token.text, 0)
        if depth < 0:
            raise refusal(token.line, token.text, "it closes nothing")


def _count_kernels(tokens: Sequence[Token]) -> None:
    found = sum(t.text == "__global__" for t in tokens)
    if found != 1:
        raise LoweringError(
            f"the file has {found} kernels", hint="one `__global__ void name(...)` with pointers, in each file"
        )


def _declaration(tokens: Sequence[Token], at: int, source: Source) -> int:
    """Read one declaration of the file; return where the next begins."""
    start = tokens[at]
    if start.text == "extern":
        if at + 1 < len(tokens) and tokens[at + 1].text == '"C"' and tokens[at + 2 : at + 3] != []:
            return at + 2 if tokens[at + 2].text != "{" else _refuse_block(tokens[at + 2])
        raise refusal(start.line, "extern", "a global of the device: an rTask has its tensors and its scratch only")
    if start.text == ";":
        return at + 1
    end = at
    while end < len(tokens) and tokens[end].text not in ("{", ";", "="):
        if tokens[end].text in ("(", "["):
            end = closing(tokens, end)
        end += 1
    if end == len(tokens):
        raise refusal(start.line, start.text, "it is never ended")
    head = tokens[at:end]
    words = {t.text for t in head}
    if tokens[end].text == "{" and any(t.text == "(" for t in head):
        close = closing(tokens, end)
        if "__global__" in words:
            _kernel(head, source)
            source.body = list(tokens[end + 1 : close])
        elif "__device__" in words:
            _helper(list(head), list(tokens[end : close + 1]), source)
        else:
            raise refusal(start.line, text_of(head).strip(), "a function of the host")
        return close + 1
    if tokens[end].text == "=" and words & {"const", "constexpr"} and not words & {"__device__", "*", "["}:
        stop = end
        while stop < len(tokens) and tokens[stop].text != ";":
            stop += 1
        _constant(head, tokens[end + 1 : stop], source)
        return stop + 1
    if any(t.text == "(" for t in head):
        raise refusal(start.line, text_of(head).strip(), "a function without a body")
    raise refusal(
        start.line, text_of(head).strip(), "a global of the device: an rTask has its tensors and its scratch only"
    )


def _refuse_block(token: Token) -> int:
    raise refusal(token.line, 'extern "C" {', "write it before the kernel itself")


def _constant(head: Sequence[Token], value: Sequence[Token], source: Source) -> None:
    """Convert `const float scale = 0.5f;` to a macro."""
    name, kind = head[-1], [t for t in head[:-1] if t.text not in QUALIFIERS]
    if name.kind != "name" or not value or any(t.text not in TYPES for t in kind) or name.text in source.macros:
        raise refusal(name.line, text_of(head).strip(), "a constant of a file is one number of a plain type")
    mark = [Token("mark", text, name.line) for text in "()"]
    cast = kind if len(kind) == 1 else []
    body = (mark[0], *(t.named(t.text) for t in cast), mark[0], *value, mark[1], mark[1])
    source.macros[name.text] = Macro(name.text, None, body)


def _kernel(head: list[Token] | Sequence[Token], source: Source) -> None:
    head = list(head)
    for n, token in enumerate(head):
        if token.text == "__launch_bounds__":
            end = closing(head, n + 1)
            number = split(head[n + 2 : end], ",")[0]
            source.bounds = _size(number, token.line, "__launch_bounds__", source)
            head = head[:n] + head[end + 1 :]
            break
    opening = next(n for n, t in enumerate(head) if t.text == "(")
    words = [t.text for t in head[:opening] if t.text not in ("__global__", "static", "inline", "extern")]
    if words[:1] != ["void"] or len(words) != 2 or closing(head, opening) != len(head) - 1:
        raise refusal(head[0].line, text_of(head[: opening + 1]).strip(), "a kernel is `__global__ void name(...)`")
    source.name, source.line = words[1], head[0].line
    parts = split(head[opening + 1 : -1], ",")
    if [t.text for part in parts for t in part] == ["void"]:
        parts = []
    source.parameters = [_parameter(part, head[opening].line, source) for part in parts]


def _parameter(tokens: Sequence[Token], line: int, source: Source) -> Parameter:
    words = [t.text for t in tokens]
    line = tokens[0].line if tokens else line
    shown = text_of(tokens).strip()
    plain = [source.macros[w].body[0].text if _is_type(w, source) else w for w in words]
    restrict = any(w in ("__restrict__", "__restrict") for w in plain)
    plain = [w for w in plain if w not in ("__restrict__", "__restrict")]
    stars = plain.count("*")
    if len(plain) < 2 or stars > 1 or plain[-1] in TYPES or not re.fullmatch(r"[A-Za-z_]\w*", plain[-1]):
        raise refusal(line, shown, "a parameter is a pointer to elements, or a number")
    before = plain[: plain.index("*")] if stars else plain[:-1]
    behind = plain[plain.index("*") + 1 : -1] if stars else []
    kind = " ".join(w for w in before if w not in ("const", "int") or (w == "int" and before.count("long") == 0))
    kind = {"size_t": "int64_t", "long long int": "long long"}.get(kind, kind)
    known = CTYPES if stars else {**CTYPES, "unsigned": 0, "unsigned int": 0, "uint32_t": 0, "uint64_t": 0, "uint": 0}
    if kind not in known or any(w != "const" for w in behind):
        raise refusal(line, shown, f"tensors have elements of {', '.join(CTYPES)}")
    return Parameter(plain[-1], kind, bool(stars), "const" in before, restrict, line)


def _is_type(word: str, source: Source) -> bool:
    """Return whether the word is a macro for a type: #define T float."""
    macro = source.macros.get(word)
    return macro is not None and macro.parameters is None and len(macro.body) == 1 and macro.body[0].text in TYPES


def _helper(head: list[Token], body: list[Token], source: Source) -> None:
    kept = [t for t in head if t.text not in _DROPPED]
    opening = next(n for n, t in enumerate(kept) if t.text == "(")
    name = kept[opening - 1]
    if opening < 2 or name.kind != "name" or name.text in source.helpers or name.text in CALLED:
        raise refusal(head[0].line, text_of(head).strip(), "a function has a type and a name of its own")
    returned = [t.text for t in kept[: opening - 1]]
    if any(t not in TYPES and t not in ("const", "*") and not _is_type(t, source) for t in returned):
        raise refusal(head[0].line, text_of(head).strip(), "functions are of plain types")
    if closing(kept, opening) != len(kept) - 1 or any(t.text in ("&", "=") for t in kept[opening:]):
        raise refusal(head[0].line, text_of(head).strip(), "parameters are values and pointers, none has a default")
    for part in split(kept[opening + 1 : -1], ","):
        words = [t.text for t in part]
        if "*" in words and "const" not in words[: words.index("*")]:
            source.writers.add(name.text)
    parse(body[1:-1])
    source.helpers[name.text] = [t for t in (*kept, *body) if t.text not in ("__restrict__", "__restrict")]


def _take_shared(source: Source) -> None:
    """Remove `__shared__` declarations from the body; keep its line numbers."""
    kept: list[Token] = []
    body, at = source.body, 0
    depth = 0
    while at < len(body):
        token = body[at]
        depth += {"{": 1, "}": -1}.get(token.text, 0)
        first = at
        if token.text == "extern" or (token.text == "__shared__" and depth >= 0):
            end = at
            while end < len(body) and body[end].text != ";":
                end += 1
            words = body[first:end]
            if end == len(body) or "__shared__" not in [t.text for t in words]:
                raise refusal(token.line, token.text, "a global of the device")
            if depth:
                raise refusal(
                    token.line, text_of(words).strip(), "shared arrays are declared at the kernel's own level"
                )
            source.shared += _shared(words, source)
            if end + 1 < len(body):
                lines = "\n" * sum(t.space.count("\n") for t in body[first : end + 1])
                body[end + 1] = replace(body[end + 1], space=lines + body[end + 1].space)
            at = end + 1
            continue
        kept.append(token)
        at += 1
    source.body = kept
    names = [s.name for s in source.shared]
    if len(set(names)) < len(names) or sum(s.dynamic for s in source.shared) > 1:
        raise refusal(source.line, source.name, "each shared array has a name of its own; one may be dynamic")
    if sum(s.nbytes for s in source.shared) > MAX_SHARED:
        raise refusal(source.line, source.name, f"more than {MAX_SHARED} bytes of shared arrays")


def _shared(words: Sequence[Token], source: Source) -> list[SharedArray]:
    line, shown = words[0].line, text_of(words).strip()
    dynamic = words[0].text == "extern"
    rest = [t for t in words if t.text not in ("extern", "__shared__")]
    for n, token in enumerate(rest):
        if token.text == "__align__":
            rest = rest[:n] + rest[closing(rest, n + 1) + 1 :]
            break
    kinds = 0
    while kinds < len(rest) and (rest[kinds].text in TYPES or _is_type(rest[kinds].text, source)):
        kinds += 1
    plain = [source.macros[t.text].body[0].text if t.text in source.macros else t.text for t in rest[:kinds]]
    kind = " ".join(plain)
    if kind not in _WIDTH:
        raise refusal(line, shown, f"shared arrays have elements of {', '.join(_WIDTH)}")
    found = []
    for part in split(rest[kinds:], ","):
        if not part or part[0].kind != "name":
            raise refusal(line, shown, "a shared array has a name")
        dims: list[int] = []
        at = 1
        while at < len(part):
            if part[at].text != "[":
                raise refusal(line, shown, "a shared array is not initialised where it is declared")
            end = closing(part, at)
            if dynamic and end == at + 1 and not dims and end + 1 == len(part):
                break
            dims.append(_size(part[at + 1 : end], line, shown, source))
            at = end + 1
        if dynamic == bool(dims) and dynamic:
            raise refusal(line, shown, "extern __shared__ has no size: the record gives it")
        found.append(SharedArray(part[0].text, kind, tuple(dims), dynamic))
    return found


_FOLD: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _size(tokens: Sequence[Token], line: int, shown: str, source: Source) -> int:
    """Return the value of a constant expression, such as an array's size. Raises LoweringError."""
    why = "the size is no number, and not made of numbers that the file names"
    words = _expanded(tokens, source, 0, line, shown)
    text = "".join("//" if w == "/" else re.sub(r"[uUlL]+$", "", w) if w[0].isdigit() else w for w in words)
    if not words or len(text) > 200 or not re.fullmatch(r"(?:\d+|0[xX][0-9a-fA-F]+|//|[-+*%()])+", text):
        raise refusal(line, shown, why)
    try:
        value = _folded(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, TypeError):
        raise refusal(line, shown, why) from None
    if not 0 < value <= MAX_SHARED:
        raise refusal(line, shown, f"its size is {value}")
    return value


def _folded(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _FOLD:
            return _FOLD[type(op)](_folded(left), _folded(right))
    raise ValueError("not a number")


def _expanded(tokens: Sequence[Token], source: Source, depth: int, line: int, shown: str) -> list[str]:
    """Return the words of an expression with macros expanded."""
    words: list[str] = []
    for token in tokens:
        macro = source.macros.get(token.text)
        if macro is None:
            words += [] if token.text in TYPES else [token.text]
        elif macro.parameters is not None or depth > 16 or len(words) > 200:
            raise refusal(line, shown, f"the macro {macro.name!r} is too much for a size")
        else:
            words += _expanded(macro.body, source, depth + 1, line, shown)
    return words


def _check_calls(tokens: Sequence[Token], source: Source) -> None:
    """Check that only known functions are called, and by name."""
    callable_ = CALLED | CASTS | TYPES | _CONTROL | source.helpers.keys() | source.macros.keys() | {SYNC}
    for n, token in enumerate(tokens[:-1]):
        if tokens[n + 1].text != "(":
            continue
        if token.kind == "name" and token.text not in callable_ and not _declares(tokens, n):
            raise refusal(token.line, token.text, "no function of this file, and none that every GPU has")
        if token.text in ("]", "}"):
            raise refusal(token.line, token.text + "(", "functions are called by name")
    for macro in source.macros.values():
        for token, behind in zip(macro.body, macro.body[1:], strict=False):
            if behind.text == "(" and token.kind == "name" and token.text not in callable_:
                raise refusal(token.line, token.text, "no function of this file, and none that every GPU has")


def _declares(tokens: Sequence[Token], n: int) -> bool:
    """Return whether the name is the function that is being defined here."""
    return n > 0 and n < 4 and tokens[n - 1].text in (*TYPES, "*") and tokens[0].text in (*TYPES, "const")


def _varying(source: Source) -> set[str]:
    """Return names that differ between threads, or hold data; macros that mention one are included."""
    names = {p.name for p in source.parameters if p.tensor} | {s.name for s in source.shared} | {"threadIdx"}
    size = -1
    while size != len(names):
        size = len(names)
        names |= {m.name for m in source.macros.values() if not names.isdisjoint(free_names(m.body))}
    return names


def _arrays(source: Source) -> set[str]:
    """Return names that are subscripted somewhere."""
    pairs = zip(source.body, source.body[1:], strict=False)
    return {a.text for a, b in pairs if a.kind == "name" and b.text == "["}
