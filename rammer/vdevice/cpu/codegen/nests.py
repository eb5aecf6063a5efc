"""Loop nests that several cases of an rTask's number repeat, but for where they begin: printed as one function.

A task at an edge is a case of its own, with nests for what hangs over the edge; for the rest it has the nest that all
others have. Compilers take their time for each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rammer.ir.index import Index, variables
from rammer.ir.tile import Alloc, Body, For, If, Kind, Stmt, TileProgram, statements
from rammer.vdevice.ctext.cfamily import CFamilyPrinter

FEWEST_LINES = 12  # of a nest that is worth a call
_HOLE = re.compile(r"@(\d+)@")  # stands for a number that the cases of a nest may have in common, or not
_ADDED = re.compile(r" \+ @(\d+)@")


@dataclass(frozen=True, slots=True)
class Nest:
    """The lines of a function but for its head, and the parameters that it has besides those of the kernel."""

    name: str
    lines: tuple[str, ...]
    parameters: tuple[str, ...]


class NestPrinter(CFamilyPrinter):
    """Prints what is left of a program, with calls of the nests that `share` has found."""

    def __init__(self, program: TileProgram, lanes: int) -> None:
        super().__init__(program, lanes)
        tasks = [s for s in statements(program.body) if isinstance(s, For) and s.kind is Kind.TASK]
        self._digits = {loop.var: (0, loop.stop - 1) for loop in tasks}
        self._held: list[str] | None = None  # by the holes of the template that is printed
        self._calls: dict[int, str] = {}  # by the id of the statement they stand for

    def share(self, prefix: str, handed: str) -> list[Nest]:
        """The nests that several cases have, with prefixed names; each is `handed` arguments, and then its numbers."""
        self.env |= self._digits
        groups: dict[tuple[str, ...], list[tuple[Stmt, list[str]]]] = {}
        found = list(_cases(self.program.body))
        for stmt in found if len(found) > 1 else ():
            lines, held = self._template(stmt)
            if len(lines) >= FEWEST_LINES:
                groups.setdefault(lines, []).append((stmt, held))
        nests: list[Nest] = []
        for lines, members in groups.items():
            if len(members) > 1 and (made := _common(lines, [held for _, held in members], _arrays(members[0][0]))):
                texts, rows = made
                numbers = tuple(f"long rammer_p{n}" for n in range(len(rows)))
                nest = Nest(f"{prefix}nest{len(nests)}", (*self.scratch(), *texts), numbers)
                nests.append(nest)
                for n, (stmt, _) in enumerate(members):
                    self._calls[id(stmt)] = f"{nest.name}({', '.join([handed, *(row[n] for row in rows)])});"
        return nests

    def _template(self, stmt: Stmt) -> tuple[tuple[str, ...], list[str]]:
        """The lines of a nest, with holes for what does not move inside of it, and what these hold."""
        held = self._held = []
        try:
            return tuple(self.body((stmt,), 1)), held
        finally:
            self._held = None

    def body(self, body: Body, depth: int) -> list[str]:
        lines = []
        for stmt in body:
            call = self._calls.get(id(stmt)) if self._held is None else None
            lines += ["  " * depth + call] if call else super().body((stmt,), depth)
        return lines

    def counted(self, loop: For) -> str:
        if self._held is None or not _goes_around(loop):
            return super().counted(loop)
        start, stop = self.number(loop.start), self.number(loop.stop)
        return f"{self.loop_type} {loop.var} = {start}; {loop.var} < {stop}; {loop.var}++"

    def index(self, index: Index) -> str:
        if self._held is None:
            return super().index(index)
        still = tuple(term for term in index.terms if variables(Index(0, (term,))) <= self._digits.keys())
        moving = Index(0, tuple(term for term in index.terms if term not in still))
        held, self._held = self._held, None
        text = super().index(Index(index.const, still))
        self._held = held
        return f"{super().index(moving)} + {self._hole(text)}" if moving.terms else self._hole(text)

    def vector_index(self, index: Index) -> str:
        held, self._held = self._held, None  # places in registers are no numbers of a running program
        try:
            return super().vector_index(index)
        finally:
            self._held = held

    def number(self, number: int) -> str:
        """A number in which cases may differ."""
        return str(number) if self._held is None else self._hole(str(number))

    def _hole(self, text: str) -> str:
        assert self._held is not None
        self._held.append(text)
        return f"@{len(self._held) - 1}@"


def _cases(body: Body, digits: frozenset[str] = frozenset(), decided: bool = False) -> Iterator[Stmt]:
    """The nests that stand under conditions on the digits of the rTask's number alone, and hold their registers."""
    for stmt in body:
        match stmt:
            case For(kind=Kind.TASK):
                yield from _cases(stmt.body, digits | {stmt.var}, decided)
            case If(where, then) if all(variables(r.index) <= digits for r in where):
                yield from _cases(then, digits, True)
            case For(kind=Kind.SERIAL) | Alloc() if decided:
                yield stmt
            case Alloc():
                return  # of registers that several nests share


def _goes_around(loop: For) -> bool:
    """Whether a loop goes around loops around others: of its steps compilers make nothing."""
    serial = [s for s in statements(loop.body) if isinstance(s, For) and s.kind is Kind.SERIAL]
    return loop.kind is Kind.SERIAL and any(isinstance(t, For) for s in serial for t in statements(s.body))


def _arrays(stmt: Stmt) -> list[str]:
    """The registers of a nest."""
    return [s.buffer.name for s in statements((stmt,)) if isinstance(s, Alloc)]


def _common(
    lines: tuple[str, ...], held: Sequence[list[str]], arrays: Sequence[str]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]] | None:
    """The lines with their holes filled, and the numbers to give, for each of the cases.

    None where a place in registers would be such a number.
    """
    rows: dict[tuple[str, ...], str] = {}
    texts: dict[str, str] = {}
    for n, row in enumerate(zip(*held, strict=True)):
        same = len(set(row)) == 1 and row[0].removeprefix("-").isdigit()
        texts[str(n)] = row[0] if same else rows.setdefault(row, f"rammer_p{len(rows)}")
    if arrays:
        place = re.compile(rf"\b(?:{'|'.join(map(re.escape, arrays))})\[([^\]]*)\]")
        holes = {n for line in lines for at in place.findall(line) for n in _HOLE.findall(at)}
        if any(texts[n].startswith("rammer_p") for n in holes):
            return None
    return tuple(_filled(line, texts) for line in lines), list(rows)


def _filled(line: str, texts: Mapping[str, str]) -> str:
    def added(text: str) -> str:
        return "" if text == "0" else f" - {text[1:]}" if text.startswith("-") else f" + {text}"

    return _HOLE.sub(lambda m: texts[m[1]], _ADDED.sub(lambda m: added(texts[m[1]]), line))
