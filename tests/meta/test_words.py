"""Names have words that an engineer of the field would guess."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import prose
import pytest

ROOT = prose.ROOT


def modules(folder: str) -> dict[str, ast.Module]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    return {p.relative_to(ROOT).as_posix(): ast.parse(p.read_text(encoding="utf-8")) for p in paths}


def names(tree: ast.AST, is_local: bool = False) -> Iterator[tuple[int, str]]:
    """Yield line and name of each function, class, parameter, attribute and variable that is not a function's own."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.Name(ctx=ast.Store()) if not is_local:
                yield node.lineno, node.id
        yield from names(node, not isinstance(node, ast.ClassDef) and (is_local or is_function(node)))


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def words(name: str) -> list[str]:
    """Split snake_case and CamelCase."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


@pytest.mark.parametrize("folder", ["rammer", "rammer_viz", "tools", "plugins"])
def test_names_have_no_banned_word(folder: str) -> None:
    for path, tree in modules(folder).items():
        for line, name in [(1, Path(path).stem), *names(tree)]:
            for word in set(words(name)) & prose.BANNED_IN_NAMES.keys():
                pytest.fail(f"{path}:{line}: {name!r} has {word!r}; better: {prose.BANNED_IN_NAMES[word]}")


def test_names_of_all_kinds_are_found() -> None:
    text = "class A:\n    b = 1\n    def c(self, d):\n        self.e = f = lambda g: g\n        class H: i = 2\nJ = 3\n"
    assert {name for _, name in names(ast.parse(text))} == {"A", "b", "c", "self", "d", "e", "g", "H", "i", "J"}
    assert words("_NearBytes") == words("near_bytes") == ["near", "bytes"] == words("NEAR_BYTES")
