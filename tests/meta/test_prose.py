"""The language of documentation: no banned phrase, one sentence a line, at most 120 columns."""

from __future__ import annotations

from pathlib import Path

import prose
import pytest

from benchmarks.pages import markdown

MARKDOWN = [*prose.pages(), prose.ROOT / "CHANGELOG.md", *sorted((prose.ROOT / "docs/evaluation").glob("*.md"))]


def name(path: Path) -> str:
    return path.relative_to(prose.ROOT).as_posix()


@pytest.mark.parametrize("page", prose.pages(), ids=name)
def test_pages_have_no_banned_phrase(page: Path) -> None:
    for line, phrase in prose.found(page.read_text(encoding="utf-8")):
        pytest.fail(f"{name(page)}:{line}: {phrase!r}; see tests/meta/prose.py for what to write instead")


@pytest.mark.parametrize("folder", prose.CLEAN)
def test_clean_docstrings_stay_clean(folder: str) -> None:
    path = prose.ROOT / folder
    modules = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    assert modules
    for module in modules:
        for begin, text in prose.docstrings(module):
            for line, phrase in prose.found(text):
                pytest.fail(f"{name(module)}:{begin + line - 1}: {phrase!r}")


@pytest.mark.parametrize("page", MARKDOWN, ids=name)
def test_one_sentence_a_line(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == markdown.formatted(text), f"run python -m benchmarks.pages.markdown {name(page)}"
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        is_code ^= line.startswith("```")
        is_free = is_code or line.startswith(("|", "    ", "#", ">")) or "](" in line
        assert is_free or len(line) <= markdown.WIDTH, f"{name(page)}:{number}"


def test_phrases_are_found_outside_of_code() -> None:
    text = "Nobody\nturned `near` off.\nIt is no tensor, and there is no other: [a](apart.md).\n```\nwhoever\n```\n"
    assert sorted(prose.found(text)) == [(1, "Nobody"), (2, "turned"), (3, "is no")]
    assert not [*prose.found("It is turned off. APART is a name; there are no others, and fewer are better.")]


def test_formatting_keeps_words_and_breaks_sentences() -> None:
    text = (
        "# A heading. With two\n\nOne (e.g. this). Two `a. B`. [A link. B](x.md) is three.\n"
        "\n* an item. More\n  of it\n* next\n\n    code. Is kept\n\n| a table. Too |\n|---|\n" + "long " * 40 + "\n"
    )
    lines = markdown.formatted(text).splitlines()
    assert lines[:5] == ["# A heading. With two", "", "One (e.g. this).", "Two `a. B`.", "[A link. B](x.md) is three."]
    assert lines[6:9] == ["* an item.", "  More of it", "* next"]
    assert "    code. Is kept" in lines and "| a table. Too |" in lines
    assert max(map(len, lines)) <= markdown.WIDTH
    assert "".join(text.split()) == "".join("".join(lines).split())
    assert markdown.formatted("\n".join(lines)) == "\n".join(lines)
