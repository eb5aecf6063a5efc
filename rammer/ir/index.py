"""Define index expressions: integer-affine in named variables, plus floor-division and modulo by constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, TypeAlias

Bounds = Mapping[str, tuple[int, int]]  # variable -> smallest and largest value, both inclusive


@dataclass(frozen=True, slots=True)
class Div:  # the atom arg // by
    arg: Index
    by: int


@dataclass(frozen=True, slots=True)
class Mod:  # the atom arg % by
    arg: Index
    by: int


Atom: TypeAlias = "str | Div | Mod"


@dataclass(frozen=True, slots=True)
class Index:
    """An index const + sum(coefficient * atom). Terms are sorted, so equal expressions compare equal."""

    const: int = 0
    terms: tuple[tuple[Atom, int], ...] = ()

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.const + other, self.terms)
        if not self.terms or not other.terms:
            return Index(self.const + other.const, self.terms or other.terms)
        total = dict(self.terms)
        for atom, coef in other.terms:
            total[atom] = total.get(atom, 0) + coef
        terms = [term for term in total.items() if term[1]]
        if len(terms) > 1:
            try:
                terms.sort()  # plain variables: atoms differ, so coefficients are never compared
            except TypeError:
                terms.sort(key=_order)
        return Index(self.const + other.const, tuple(terms))

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1

    def __mul__(self, factor: int) -> Index:
        return Index(self.const * factor, tuple([(a, c * factor) for a, c in self.terms]) if factor else ())

    def __floordiv__(self, by: int) -> Index:
        if by == 1 or not self.terms:
            return self if by == 1 else Index(self.const // by)
        return Index(0, ((Div(self, by), 1),))

    def __mod__(self, by: int) -> Index:
        return Index(self.const % by) if not self.terms or by == 1 else Index(0, ((Mod(self, by), 1),))

    def __str__(self) -> str:
        parts = [
            ("" if c == 1 else f"{c}*")
            + (a if isinstance(a, str) else f"({a.arg}){'//' if isinstance(a, Div) else '%'}{a.by}")
            for a, c in self.terms
        ]
        return " + ".join([*parts, str(self.const)] if self.const or not parts else parts)

    def coef(self, name: str) -> int:
        for atom, coef in self.terms:
            if atom == name:
                return coef
        return 0


def _order(term: tuple[Atom, int]) -> str:
    return term[0] if isinstance(term[0], str) else str(Index(0, ((term[0], 1),)))


def var(name: str) -> Index:
    return Index(0, ((name, 1),))


def variables(index: Index) -> set[str]:
    names: set[str] = set()
    for atom, _ in index.terms:
        if isinstance(atom, str):
            names.add(atom)
        else:
            names |= variables(atom.arg)
    return names


def bounds(index: Index, env: Bounds) -> tuple[int, int]:
    """Return the smallest and the largest value by interval arithmetic; exact for affine indices over a box."""
    low = high = index.const
    for atom, coef in index.terms:
        if isinstance(atom, str):
            a, b = env[atom]
        else:
            a, b = bounds(atom.arg, env)
            if isinstance(atom, Div):
                a, b = a // atom.by, b // atom.by
            else:
                a, b = (a % atom.by, b % atom.by) if a // atom.by == b // atom.by else (0, atom.by - 1)
        low += min(coef * a, coef * b)
        high += max(coef * a, coef * b)
    return low, high


def substitute(index: Index, values: Mapping[str, Index]) -> Index:
    result = Index(index.const)
    for atom, coef in index.terms:
        if isinstance(atom, str):
            result += values.get(atom, Index(0, ((atom, 1),))) * coef
        else:
            arg = substitute(atom.arg, values)
            result += (arg // atom.by if isinstance(atom, Div) else arg % atom.by) * coef
    return result


def simplify(index: Index, env: Bounds) -> Index:
    """Remove divisions and modulos that the bounds of the variables decide: (64a + b) // 64 = a if 0 <= b < 64."""
    if all(isinstance(atom, str) for atom, _ in index.terms):
        return index
    result = Index(index.const)
    for atom, coef in index.terms:
        result += (Index(0, ((atom, 1),)) if isinstance(atom, str) else _simplify_atom(atom, env)) * coef
    return result


def _simplify_atom(atom: Div | Mod, env: Bounds) -> Index:
    arg, by = simplify(atom.arg, env), atom.by
    if isinstance(atom, Div) and not arg.const and len(arg.terms) == 1:
        inner, c = arg.terms[0]
        if isinstance(inner, Div) and c == 1:  # x // a // b = x // ab
            return _simplify_atom(Div(inner.arg, inner.by * by), env)
    whole, rest = _split(arg, by)
    low, high = bounds(rest, env)
    if low // by == high // by:  # the remainder stays inside one period
        quotient = low // by
        return whole + quotient if isinstance(atom, Div) else rest - quotient * by
    for g in sorted({gcd(c, by) for _, c in rest.terms}, reverse=True):  # (16a + b) // 64 = a // 4 if 0 <= b < 16
        coarse, fine = _split(rest, g)
        low, high = bounds(fine, env)
        if 1 < g < by and low >= 0 and high < g:
            return whole + coarse // (by // g) if isinstance(atom, Div) else (coarse % (by // g)) * g + fine
    return whole + rest // by if isinstance(atom, Div) else rest % by


def _split(index: Index, by: int) -> tuple[Index, Index]:
    """Return (first, second) with index = by * first + second; second keeps the terms that `by` does not divide."""
    first = Index(index.const // by, tuple((a, c // by) for a, c in index.terms if c % by == 0))
    return first, Index(index.const % by, tuple((a, c) for a, c in index.terms if c % by))


def evaluate(index: Index, values: Mapping[str, Any]) -> Any:
    """Return the value of the index; variables may be integers or NumPy arrays."""
    result: Any = index.const
    for atom, coef in index.terms:
        if isinstance(atom, str):
            value = values[atom]
        else:
            value = evaluate(atom.arg, values)
            value = value // atom.by if isinstance(atom, Div) else value % atom.by
        result = result + value * coef
    return result
