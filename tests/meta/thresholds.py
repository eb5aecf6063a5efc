"""Find the numbers of a module that choose: its named constants, and literals in bodies that are thresholds or factors.

A literal counts where its value may decide, unless it is trivial:

* every float but 0, 1, and powers of 1000, which convert units;
* an integer beyond 2 that is compared (not for equality), an operand of arithmetic, an argument of min, max or range, a
  branch of a conditional expression, an element of a tuple, list or set, a default, or a bound beyond 3 of a slice
  (those up to 3 take fields);
* 2 as the divisor of a true division: a half of a memory is a threshold.

Not counted: numbers up to 8 beside `len(…)`, ranks, bits and bytes per element, which say how something is built;
decorators (sizes of caches of results); texts; and powers of two from 2^31 on, which say how wide an integer is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

NAME = re.compile(r"_?[A-Z][A-Z0-9_]+$")
UNITS = frozenset(1000.0**n for n in (-3, -2, -1, 1, 2, 3))
BUILT = re.compile(r"\b(len|rank|ndim|\w*bits|\w*BITS|BYTES?|itemsize|per|shape|axes|perm|index)\b")
ARITHMETIC = ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow | ast.LShift | ast.RShift
CALLS = ("min", "max", "range")


def names(source: str) -> set[str]:
    """Return the names of constants, of the module and of its classes, whose values hold numbers."""
    tree = ast.parse(source)
    found = set()
    for body in (node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef)):
        for stmt in body:
            match stmt:
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                    pairs = [(name, value)]
                case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
                    pairs = [
                        (t.id, value) for t, value in zip(targets, values, strict=False) if isinstance(t, ast.Name)
                    ]
                case _:
                    continue
            found |= {name for name, value in pairs if NAME.match(name) and _holds_a_number(value)}
    return found


def literals(source: str) -> list[tuple[int, float]]:
    """Return lines and values of the literals that choose."""
    tree = ast.parse(source)
    named = {id(value) for value in _named_values(tree)}
    found = dict[int, tuple[int, float]]()
    for node in _below(tree, named):
        for number in _places(node):
            value = _number(number)
            if value is not None and id(number) not in named and not _trivial(node, number, value):
                found[id(number)] = number.lineno, value
    return sorted(found.values())


def _named_values(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                if NAME.match(name):
                    yield value
            case ast.Assign([ast.Tuple(targets)], value):
                if all(isinstance(t, ast.Name) and NAME.match(t.id) for t in targets):
                    yield value


def _below(node: ast.AST, skipped: set[int]) -> Iterator[ast.AST]:
    """Yield the nodes of bodies; not decorators, texts, values of named constants, and what `in` looks through."""
    yield node
    if isinstance(node, ast.Compare) and all(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
        skipped = skipped | {id(other) for other in node.comparators}
    for name, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else [field]:
            inside = isinstance(child, ast.AST) and id(child) not in skipped and name != "decorator_list"
            if inside and not isinstance(child, ast.JoinedStr):
                yield from _below(child, skipped)


def _places(node: ast.AST) -> list[ast.expr]:
    """Return the operands of a node whose value may decide."""
    match node:
        case ast.Compare(left, ops, others) if not all(
            isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.Is) for op in ops
        ):
            return [left, *others]
        case ast.BinOp(left, op, right) if isinstance(op, ARITHMETIC):
            return [left, right]
        case ast.Call(ast.Name(name), args) if name in CALLS:
            return args
        case ast.IfExp(_, then, other):
            return [then, other]
        case ast.Tuple(elements) | ast.List(elements) | ast.Set(elements):
            return [] if any(_number(element) == 0 for element in elements) else elements  # a shape of nothing
        case ast.Slice():
            return [bound for bound in (node.lower, node.upper, node.step) if bound is not None]
        case ast.arguments():
            return [*node.defaults, *(d for d in node.kw_defaults if d is not None)]
        case ast.AnnAssign(_, _, ast.expr() as value):
            return [value]
        case ast.Constant(float()):
            return [node]
    return []


def _number(node: ast.expr) -> float | None:
    match node:
        case ast.Constant(value) if type(value) in (int, float):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(value)) if type(value) in (int, float):
            return -value
    return None


def _trivial(node: ast.AST, number: ast.expr, value: float) -> bool:
    if type(value) is float:
        return abs(value) in (0.0, 1.0) or value in UNITS
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.LShift | ast.RShift)
        and node.right is number
        and value > 30
    ):
        return True
    if isinstance(node, ast.Slice):
        return abs(value) <= 3
    others = " ".join(ast.unparse(other) for other in _places(node) if other is not number)
    if abs(value) <= 8 and BUILT.search(others):
        return True
    half = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and node.right is number
    return abs(value) < 2 or (abs(value) == 2 and not half)


def _holds_a_number(value: ast.expr) -> bool:
    """Check whether a value is made of numbers; in a call, as of a type, only of such that are not trivial."""
    called = any(isinstance(node, ast.Call) for node in ast.walk(value))
    numbers = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)]
    return any(type(n) in (int, float) and not (called and n in (0, 1, 2)) for n in numbers)
