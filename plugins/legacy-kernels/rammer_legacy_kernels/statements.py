"""Parse the statements of a kernel's body, and check that all threads of a block run the same block syncs.

Known as: barrier divergence analysis. A sync whose conditions depend only on constants and the block's index runs
equally often in every thread, so executing every block once counts it for all inputs. Other syncs are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rammer_legacy_kernels.tokens import Token, closing, refusal, split, word_set

SYNC = "__syncthreads"
MAX_DEPTH = 64  # of nested statements
TYPES = word_set(
    "void bool char short int long float double unsigned signed auto int8_t uint8_t int16_t uint16_t int32_t uint32_t "
    "int64_t uint64_t size_t uint"
)
QUALIFIERS = word_set("const constexpr static inline extern mutable")
ASSIGN = word_set("= += -= *= /= %= &= |= ^= <<= >>=")
_STEPS = ("++", "--")
_LOOPS = ("for", "while", "do")


@dataclass(slots=True)
class Statement:
    """A statement. `kind`: simple, block, sync, or the keyword. `tokens`: a simple statement's, or the condition's.

    A `for` keeps its init and step separately.
    """

    kind: str
    line: int
    tokens: Sequence[Token] = ()
    children: Sequence[Statement] = ()
    init: Sequence[Token] = ()
    step: Sequence[Token] = ()


class _Parser:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    def all(self, depth: int = 0) -> list[Statement]:
        found = []
        while self.at < len(self.tokens):
            found.append(self.statement(depth))
        return found

    def statement(self, depth: int) -> Statement:
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if token is None:
            raise refusal(self.tokens[-1].line, self.tokens[-1].text, "a statement is missing behind it")
        if depth > MAX_DEPTH:
            raise refusal(token.line, token.text, f"statements are nested deeper than {MAX_DEPTH}")
        match token.text:
            case "{":
                end = closing(self.tokens, self.at)
                inner = _Parser(self.tokens[self.at + 1 : end]).all(depth + 1)
                self.at = end + 1
                return Statement("block", token.line, (), inner)
            case "if" | "while" | "switch" | "for":
                return self.controlled(token, depth)
            case "do":
                self.at += 1
                body = self.statement(depth + 1)
                self.expect("while")
                condition = self.condition()
                self.expect(";")
                return Statement("do", token.line, condition, [body])
            case "else":
                raise refusal(token.line, token.text, "no if before it")
            case "case" | "default":
                return self.upto(":", "label")
        return self.upto(";", "simple")

    def controlled(self, token: Token, depth: int) -> Statement:
        self.at += 1
        condition = self.condition()
        init: Sequence[Token] = ()
        step: Sequence[Token] = ()
        if token.text == "for":
            parts = split(condition, ";")
            if len(parts) != 3:
                raise refusal(token.line, token.text, "a loop is for (init; condition; step)")
            init, condition, step = parts
        children = [self.statement(depth + 1)]
        if token.text == "if" and self.at < len(self.tokens) and self.tokens[self.at].text == "else":
            self.at += 1
            children.append(self.statement(depth + 1))
        return Statement(token.text, token.line, condition, children, init, step)

    def condition(self) -> Sequence[Token]:
        if self.at >= len(self.tokens) or self.tokens[self.at].text != "(":
            before = self.tokens[self.at - 1]
            raise refusal(before.line, before.text, "no ( behind it")
        end = closing(self.tokens, self.at)
        inside = self.tokens[self.at + 1 : end]
        self.at = end + 1
        return inside

    def expect(self, text: str) -> None:
        if self.at >= len(self.tokens) or self.tokens[self.at].text != text:
            before = self.tokens[self.at - 1]
            raise refusal(before.line, before.text, f"no {text!r} behind it")
        self.at += 1

    def upto(self, mark: str, kind: str) -> Statement:
        start = self.at
        while self.at < len(self.tokens) and self.tokens[self.at].text != mark:
            if self.tokens[self.at].text in ("(", "[", "{"):
                self.at = closing(self.tokens, self.at)
            self.at += 1
        first = self.tokens[start]
        self.expect(mark)
        tokens = self.tokens[start : self.at - 1]
        if kind == "simple" and tokens and tokens[0].text in ("return", "break", "continue"):
            return Statement(tokens[0].text, first.line, tokens[1:])
        if [t.text for t in tokens] == [SYNC, "(", ")"]:
            return Statement("sync", first.line)
        for t in tokens:
            if t.text == SYNC or t.text in ("return", "break", "continue", "else", "if", *_LOOPS):
                raise refusal(t.line, t.text, "it must be a statement of its own")
        return Statement(kind, first.line, tokens)


def parse(tokens: Sequence[Token]) -> list[Statement]:
    """Return the statements of a body, without its braces. Raises LoweringError with the line."""
    return _Parser(tokens).all()


def walk(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Yield every statement, outer ones first, in the order of the text."""
    for s in statements:
        yield s
        yield from walk(s.children)


def has_sync(statement: Statement) -> bool:
    return any(s.kind == "sync" for s in walk([statement]))


def fixed_syncs(statements: Iterable[Statement]) -> int | None:
    """Return the number of block syncs if none is in a loop or branch; else None, as only execution can count them."""
    total = 0
    for s in statements:
        if s.kind == "block":
            inner = fixed_syncs(s.children)
            if inner is None:
                return None
            total += inner
        elif s.kind == "sync":
            total += 1
        elif has_sync(s):
            return None
    return total


def check_syncs(statements: Sequence[Statement], varying: set[str], arrays: set[str], writers: set[str]) -> None:
    """Refuse syncs that some threads may miss, or whose number depends on data. Raises LoweringError.

    `varying`: names that differ between threads or hold data: tensors, shared arrays, threadIdx. `arrays`: names that
    are subscripted. `writers`: functions that may write through a pointer.
    """
    _check_leaving(statements)
    known = _Varying(set(varying), arrays, writers)
    size = -1
    while size != len(known.names):
        size = len(known.names)
        known.spread(statements, False)
    _check_conditions(statements, known)


def _check_leaving(statements: Sequence[Statement]) -> None:
    """Refuse a `return` before a block sync, in the text or in the next round of a loop."""
    order = list(walk(statements))
    last = max((n for n, s in enumerate(order) if s.kind == "sync"), default=-1)
    looped = {id(r) for s in order if s.kind in _LOOPS and has_sync(s) for r in walk([s]) if r.kind == "return"}
    for n, s in enumerate(order):
        if s.kind == "return" and (n < last or id(s) in looped):
            raise refusal(s.line, "return", "threads that leave would miss a block sync: use if instead")


def _check_conditions(statements: Iterable[Statement], known: _Varying) -> None:
    for s in statements:
        if s.kind in ("if", "switch", *_LOOPS) and has_sync(s):
            line = next(t.line for t in walk([s]) if t.kind == "sync")
            why = f"it depends on the thread or on data whether the {s.kind!r} of line {s.line} lets a thread meet it"
            if s.kind == "switch":
                raise refusal(line, SYNC, "no block sync inside of a switch")
            if known.varies(s.tokens) or (s.kind in _LOOPS and known.leaves_early(s)):
                raise refusal(line, SYNC, why)
        _check_conditions(s.children, known)


class _Varying:
    """Names whose values may differ between threads, or depend on data. The set only grows."""

    def __init__(self, names: set[str], arrays: set[str], writers: set[str]) -> None:
        self.names, self.arrays, self.writers = names, arrays, writers

    def varies(self, tokens: Sequence[Token]) -> bool:
        return not self.names.isdisjoint(free_names(tokens))

    def leaves_early(self, loop: Statement) -> bool:
        """Return whether some thread may end a round of the loop before others do."""
        return self._leaves(loop.children, False)

    def _leaves(self, statements: Iterable[Statement], varying: bool) -> bool:
        for s in statements:
            if s.kind in ("break", "continue", "return") and varying:
                return True
            if s.kind in _LOOPS:
                inner = [r for r in walk(s.children) if r.kind == "return"]
                if inner and (varying or self.varies(s.tokens) or self._leaves(s.children, varying)):
                    return True
            elif self._leaves(s.children, varying or self.varies(s.tokens)):
                return True
        return False

    def spread(self, statements: Iterable[Statement], varying: bool) -> None:
        """Mark names that are assigned from varying values, or under a varying condition."""
        for s in statements:
            inner = varying
            if s.kind in ("if", "switch", *_LOOPS):
                inner = varying or self.varies(s.tokens) or (s.kind in _LOOPS and self.leaves_early(s))
            for part, under in ((s.init, varying), (s.tokens, inner), (s.step, inner)):
                if part:
                    self._assign(part, under)
            self.spread(s.children, inner)

    def _assign(self, tokens: Sequence[Token], varying: bool) -> None:
        pointed = any(t.text == "auto" for t in tokens)
        for n, token in enumerate(tokens):
            before = tokens[n - 1] if n else None
            if token.text == "&" and (before is None or (before.kind == "mark" and before.text not in (")", "]"))):
                self.names |= {t.text for t in tokens[n + 1 : n + 3] if t.kind == "name"}  # other code may write it
            elif before is not None and before.text in TYPES and token.text == "&":
                self.names |= _names(tokens)  # a reference: an alias
            pointed |= before is not None and before.text in TYPES and token.text == "*"
            pointed |= token.text in self.writers
        if pointed:  # an alias of an array
            self.names |= _names(tokens) & self.arrays
        if not (varying or self.varies(tokens)):
            return
        for n, token in enumerate(tokens):
            if token.text in ASSIGN or token.text in _STEPS:
                self.names |= _before(tokens, n)
            if token.text in _STEPS:
                self.names |= _names(tokens[n + 1 : n + 3])


def free_names(tokens: Sequence[Token]) -> set[str]:
    """Return names that are not members: not the x of blockIdx.x."""
    members = {id(t) for before, t in pairwise(tokens) if before.text in (".", "->")}
    return {t.text for t in tokens if t.kind == "name" and id(t) not in members}


def _names(tokens: Sequence[Token]) -> set[str]:
    return free_names(tokens) - TYPES - QUALIFIERS


def _before(tokens: Sequence[Token], at: int) -> set[str]:
    """Return the base of an expression that ends before `at`: a of a[i].x; all names if it is in parentheses."""
    at -= 1
    while at >= 0 and (tokens[at].text in ("]", ")") or (at >= 2 and tokens[at - 1].text in (".", "->"))):
        if tokens[at].text not in ("]", ")"):
            at -= 2
            continue
        end, depth = at, 0
        while at >= 0:
            depth += (tokens[at].text in ("]", ")")) - (tokens[at].text in ("[", "("))
            at -= 1
            if depth == 0:
                break
        if tokens[end].text == ")":
            return _names(tokens[max(at, 0) : end])
    return {tokens[at].text} if at >= 0 and tokens[at].kind == "name" else set()
