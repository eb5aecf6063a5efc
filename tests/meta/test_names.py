"""One word, one meaning: classes have names of their own."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_class_name_twice() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.glob("rammer*/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(ROOT).as_posix())
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_each_logger_has_the_name_of_its_module() -> None:
    """So that `logging.getLogger("rammer.compiler")` filters what that folder says. The root has the handler."""
    found = set()
    for path in sorted((ROOT / "rammer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("logging.getLogger", "getLogger"):
                found.add((path.name, ast.unparse(node)))
    assert {call for _, call in found} == {"logging.getLogger(__name__)", "logging.getLogger('rammer')"}
    assert [name for name, call in found if "__name__" not in call] == ["log.py"]
