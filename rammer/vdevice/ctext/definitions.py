"""Select the C definitions that a text uses: compilers would parse a long prelude at each call.

Known as: dead code elimination, tree shaking.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_MACRO = re.compile(r"^#\s*define\s+(\w+)", re.M)
_PARAMETERS = re.compile(r"^#\s*define\s+\w+\(([^)]*)\)", re.M)
_UNDEFINED = re.compile(r"^#\s*undef\s+(\w+)", re.M)
# A macro makes names with ## from its parameters.
_FUNCTION = re.compile(r"\b(?:INLINE|static)\b(?:\s+__attribute__\(\(\w+\)\))?[^({;=]*?([\w#]+)\(")
_OBJECT = re.compile(r"\bstatic\b[^()]*?(\w+)(?:\[\w*\])*\s*=")
_TYPE = re.compile(r"\btypedef\b(?:[^;{]|\{[^}]*\})*?([\w#]+)(?:\[\w+\])*\s*(?:__attribute__[^;]*)?;")
_OPENED = {"#if": 1, "#ifdef": 1, "#ifndef": 1, "#endif": -1}


@dataclass(frozen=True)
class _Definition:
    """Lines that are kept or dropped together, the names that they define (or a pattern of names), and their words."""

    text: str
    names: frozenset[str]
    made: re.Pattern[str] | None
    words: frozenset[str]

    def is_used(self, words: set[str]) -> bool:
        if not self.names and not self.made:  # an include, or constants
            return True
        return not self.names.isdisjoint(words) or bool(self.made and any(map(self.made.fullmatch, words)))


class Definitions:
    """C text of definitions: macros, types, and functions and objects that begin with `INLINE` or `static`."""

    def __init__(self, text: str) -> None:
        self._all = [_definition(part) for part in _split(text)]

    def needed(self, text: str) -> str:
        """Return the definitions that a text uses, directly or indirectly, in their order."""
        words, kept = set(_WORD.findall(text)), set[int]()
        more = True
        while more:  # functions follow what they use, but macros may precede it
            more = False
            for n in reversed(range(len(self._all))):
                if n not in kept and self._all[n].is_used(words):
                    words |= self._all[n].words
                    kept.add(n)
                    more = True
        return "".join(self._all[n].text for n in sorted(kept))


def _definition(text: str) -> _Definition:
    plain = _COMMENT.sub("", text)
    found = {name for kind in (_MACRO, _FUNCTION, _OBJECT, _TYPE) for name in kind.findall(plain)}
    given = {name for names in _PARAMETERS.findall(plain) for name in _WORD.findall(names)}
    made = "|".join(
        "".join(r"\w+" if piece in given else piece for piece in name.split("##")) for name in found if "##" in name
    )
    names = frozenset(name for name in found.difference(_UNDEFINED.findall(plain)) if "##" not in name)
    return _Definition(text, names, re.compile(made) if made else None, frozenset(_WORD.findall(plain)))


def _split(text: str) -> Iterator[str]:
    """Yield parts of a text that end where brackets and conditions are closed and no macro is undefined later."""
    lines = text.splitlines(keepends=True)
    ends = [(n, name) for n, line in enumerate(lines) for name in _UNDEFINED.findall(line)]
    part: list[str] = []
    depth = until = 0
    for n, line in enumerate(lines):
        part.append(line)
        plain = _COMMENT.sub("", line)
        depth += sum(map(plain.count, "({")) - sum(map(plain.count, ")}"))
        depth += _OPENED.get(plain.split(maxsplit=1)[0], 0) if plain.strip() else 0
        for name in _MACRO.findall(plain):
            until = max(until, next((end for end, undefined in ends if end > n and undefined == name), 0))
        if not depth and n >= until and plain.strip() and plain.rstrip()[-1] not in "\\=,":
            yield "".join(part)
            part = []
    if part:
        yield "".join(part)
