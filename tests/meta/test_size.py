"""Packages have caps of code lines, which only go down: a feature pays for its lines."""

from __future__ import annotations

import ast
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CAPS = {"rammer": 47_854, "rammer_viz": 1_208, "plugins/torch": 1_374, "plugins/dask": 74}  # lower them when code goes
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENDMARKER, tokenize.ENCODING),
}


def code_lines(path: Path) -> int:
    """Count the lines of a module with a token that is neither a comment nor part of a docstring."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(ast.Constant(str())) as text, *_]:
                    docs.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    with path.open("rb") as file:
        tokens = [t for t in tokenize.tokenize(file.readline) if t.type not in NO_CODE]
    return len({line for t in tokens for line in range(t.start[0], t.end[0] + 1)} - docs)


@pytest.mark.parametrize("package", CAPS)
def test_a_package_stays_below_its_cap(package: str) -> None:
    files = [path for path in (ROOT / package).rglob("*.py") if not path.is_symlink()]  # a link is the runtime's hook
    total, cap = sum(map(code_lines, files)), CAPS[package]
    assert total <= cap, f"{total:,} lines of code in {package}/, {total - cap} above the cap: take some out elsewhere"


def test_lines_are_counted_without_comments_and_docstrings(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Head.\n\nMore."""\n\n# why\nX = (\n    1,\n)\n\n\ndef f() -> int:\n    """Doc."""\n    return X[0]\n'
    )
    assert code_lines(module) == 5
