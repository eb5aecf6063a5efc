"""Outline loop nests that several cases of an rTask's number repeat with other offsets: print each as one function.

Known as: outlining, procedural abstraction. A task at an edge is a case of its own: it has special nests for the part
beyond the edge, and the common nest for the rest. Sharing that nest saves compile time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rammer.ir.index import Index, variables
from rammer.ir.tile import Alloc, Body, For, If, Kind, Stmt, TileProgram, statements
from rammer.vdevice.ctext.cfamily import CFamilyPrinter

FEWEST_LINES = 12  # of a nest that is worth a call
_HOLE = re.compile(r"@(\d+)@")  # a placeholder for a number that may differ between cases
_ADDED = re.compile(r" \+ @(\d+)@")


@dataclass(frozen=True, slots=True)
class NestFunction:
    """The lines of a function without its head, and the parameters that it has besides those of the kernel."""

    name: str
    lines: tuple[str, ...]
    parameters: tuple[str, ...]


class NestPrinter(CFamilyPrinter):
    """Prints a program with calls of the nests that `share` has outlined."""

    def __init__(self, program: TileProgram, lanes: int) -> None:
        super().__init__(program, lanes)
        tasks = [s for s in statements(program.body) if isinstance(s, For) and s.kind is Kind.TASK]
        self._digits = {loop.var: (0, loop.stop - 1) for loop in tasks}
        self._held: list[str] | None = None  # contents of the holes of the current template
        self._calls: dict[int, str] = {}  # by the id of the statement that a call replaces

    def share(self, prefix: str, handed: str) -> list[NestFunction]:
        """Return the nests that several cases share, with prefixed names.

        Each takes the `handed` arguments, then its numbers.
        """
        self.env |= self._digits
        groups: dict[tuple[str, ...], list[tuple[Stmt, list[str]]]] = {}
        found = list(_cases(self.program.body))
        for stmt in found if len(found) > 1 else ():
            lines, held = self._template(stmt)
            if len(lines) >= FEWEST_LINES:
                groups.setdefault(lines, []).append((stmt, held))
        nests: list[NestFunction] = []
        for lines, members in groups.items():
            arrays = [s.buffer.name for s in statements((members[0][0],)) if isinstance(s, Alloc)]
            if len(members) > 1 and (made := _common(lines, [held for _, held in members], arrays)):
                texts, rows = made
                numbers = tuple(f"long rammer_p{n}" for n in range(len(rows)))
                nest = NestFunction(f"{prefix}nest{len(nests)}", (*self.scratch(), *texts), numbers)
                nests.append(nest)
                for n, (stmt, _) in enumerate(members):
                    self._calls[id(stmt)] = f"{nest.name}({', '.join([handed, *(row[n] for row in rows)])});"
        return nests

    def _template(self, stmt: Stmt) -> tuple[tuple[str, ...], list[str]]:
        """Return a nest's lines with holes for values that are constant inside of it, and the holes' contents."""
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
        held, self._held = self._held, None  # indices of registers must be compile-time constants
        try:
            return super().vector_index(index)
        finally:
            self._held = held

    def number(self, number: int) -> str:
        """Return the text of a number that may differ between cases."""
        return str(number) if self._held is None else self._hole(str(number))

    def _hole(self, text: str) -> str:
        assert self._held is not None
        self._held.append(text)
        return f"@{len(self._held) - 1}@"


def _cases(body: Body, digits: frozenset[str] = frozenset(), decided: bool = False) -> Iterator[Stmt]:
    """Yield the nests under conditions on the rTask's digits alone, with the allocations of their registers."""
    for stmt in body:
        match stmt:
            case For(kind=Kind.TASK):
                yield from _cases(stmt.body, digits | {stmt.var}, decided)
            case If(where, then) if all(variables(r.index) <= digits for r in where):
                yield from _cases(then, digits, True)
            case For(kind=Kind.SERIAL) | Alloc() if decided:
                yield stmt
            case Alloc():
                return  # several nests share these registers


def _goes_around(loop: For) -> bool:
    """Return whether a serial loop holds two more levels of loops: compilers gain nothing from its constant bounds."""
    serial = [s for s in statements(loop.body) if isinstance(s, For) and s.kind is Kind.SERIAL]
    return loop.kind is Kind.SERIAL and any(isinstance(t, For) for s in serial for t in statements(s.body))


def _common(
    lines: tuple[str, ...], held: Sequence[list[str]], arrays: Sequence[str]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]] | None:
    """Return the lines with their holes filled, and for each parameter its value in each case.

    None if an index of a register would become a parameter.
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
