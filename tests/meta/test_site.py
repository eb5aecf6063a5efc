"""The site: every page is in it, every public name is in the reference, the tutorial shows what examples/ run."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rammer_testing.new_plugin import contents

import rammer
from rammer.compiler.options import Keywords

ROOT = Path(__file__).parents[2]
STRICT = ("-W", "error::DeprecationWarning:__main__")  # pages and examples use no old names
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [p for p in sorted(ROOT.rglob("*.md")) if not p.relative_to(ROOT).parts[0].startswith((".", "build"))]


def test_every_page_is_in_the_site() -> None:
    named = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    pages = [p.name for p in (ROOT / "docs").glob("*.md")] + [
        f"start/{p.name}" for p in (ROOT / "docs/start").glob("*.md")
    ]
    indexes = ["evaluation/index.md", "decisions/index.md"]  # which lead to the other pages of their folders
    assert sorted(named) == sorted([*pages, *indexes])
    for index in indexes:
        folder = (ROOT / "docs" / index).parent
        linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / index).read_text()))
        assert linked >= {p.name for p in folder.glob("*.md")} - {"index.md"}, index


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every link to a file, and every anchor of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for link in re.findall(r"(?<!\\)\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} → {link}"
        if anchor:
            headings = re.findall("^#+ (.*)", file.read_text(), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}
            assert anchor in anchors, f"{page.name} → {link}"


def test_the_reference_has_every_public_name() -> None:
    for page, module in (("docs/api.md", rammer), ("docs/plugin-api.md", rammer.plugin)):
        named = re.findall(rf"^::: {re.escape(module.__name__)}\.(\w+)$", (ROOT / page).read_text(), re.M)
        assert sorted(named) == sorted(module.__all__)
        for name in named:
            assert getattr(module, name).__doc__ or name == "Progress", f"{name} has no docstring"


def documented(what: Any) -> list[str]:
    """Return the names in the tables of parameters of a docstring."""
    head = r"^(?:Args|Attributes|Other Parameters):\n((?:    .*\n|\n)+)"
    tables = re.findall(head, f"{inspect.getdoc(what)}\n", re.M)
    return [name for table in tables for name in re.findall(r"^    (\w+)(?: \([^)]*\))?: ", table, re.M)]


TABLES = ("compile", "load", "from_onnx", "from_torch", "from_tensorflow", "save_together", "Session", "CompileOptions")


@pytest.mark.parametrize("name", TABLES)
def test_every_parameter_is_in_the_table(name: str) -> None:
    what = getattr(rammer, name)
    parameters = [*inspect.signature(what).parameters]
    if name == "compile":
        parameters = [*parameters[:-1], *Keywords.__annotations__]
    assert sorted(documented(what)) == sorted(parameters)


@pytest.mark.parametrize("name", ["run", "bind", "profile", "save", "export"])
def test_every_parameter_of_a_programs_methods_is_in_the_table(name: str) -> None:
    what = getattr(rammer.Program, name)
    assert documented(what) == [*inspect.signature(what).parameters][1:]


def test_the_tutorial_shows_the_examples() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), re.S)
    assert sorted(blocks) == sorted(example.read_text() for example in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.stem)
def test_examples_run(example: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAMMER_TUNE_SECONDS": "0"}
    done = subprocess.run([sys.executable, *STRICT, example], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_the_notebook_runs(tmp_path: Path) -> None:
    """Its cells in order, and what they show is HTML."""
    cells = json.loads((ROOT / "examples/schedule.ipynb").read_text(encoding="utf-8"))["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    script = [*codes[:-1], "shown = [program, program.explain(), Frame(), program.plan.graph]"]
    script += ["assert all(one._repr_html_().startswith('<') for one in shown)", codes[-1]]
    (tmp_path / "cells.py").write_text("\n".join(script))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAMMER_TUNE_SECONDS": "0"}
    done = subprocess.run(
        [sys.executable, *STRICT, tmp_path / "cells.py"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert not any(cell.get("outputs") for cell in cells), "saved without outputs"


@pytest.mark.slow
def test_a_users_script_is_checked_strictly(tmp_path: Path) -> None:
    """The examples and new plugins, by a user's mypy, which knows nothing of rammer's configuration."""
    pytest.importorskip("mypy", reason="needs the dev extra")
    options = ["--strict", "--config-file=", f"--cache-dir={tmp_path}"]
    made = contents("toy", "device") | contents("plain_c", "c-device") | contents("longest_first", "policy")
    made |= contents("my_kernels", "kernels")
    for file, text in made.items():
        (tmp_path / file).write_text(text)
    scripts = [*map(str, EXAMPLES), *(file for file in made if file.endswith(".py"))]
    command = [sys.executable, "-m", "mypy", *options, *scripts]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_site_builds(tmp_path: Path) -> None:
    """Warnings are errors, and the table of `compile` has the types of its keywords."""
    for package in ("mkdocstrings", "material"):
        pytest.importorskip(package, reason="needs the dev extra")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "ERROR" not in done.stderr, done.stderr  # --quiet would hide what --strict counts
    assert "independent stream" in (tmp_path / "api/index.html").read_text()


def messages() -> Iterator[re.Pattern[str]]:
    """What rammer's texts can say: those with enough words, as patterns that take anything where values are."""
    for path in (ROOT / "rammer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value if isinstance(part, ast.Constant) else None for part in parts]
            if sum(len(text) for text in texts if isinstance(text, str)) >= 8:
                yield re.compile("".join(".+" if t is None else re.escape(str(t)) for t in texts), re.S)


def test_troubleshooting_shows_messages_that_there_are() -> None:
    rows = [row.split(" | ")[0] for row in (ROOT / "docs/troubleshooting.md").read_text().splitlines()]
    shown = [text for row in rows if row.startswith("| `") for text in re.findall(r"`([^`]+)`", row)]
    known = [*messages()]
    assert len(shown) >= 12
    for text in shown:
        sample = text.replace("…", "x")
        assert any(pattern.fullmatch(sample) or pattern.search(sample) for pattern in known), text


def test_llms_txt_lists_every_page() -> None:
    """In the form of llmstxt.org: a title, a summary, and sections of links with a line each."""
    text = (ROOT / "docs/llms.txt").read_text(encoding="utf-8")
    assert re.match(r"# rammer\n\n> .+\n", text)
    linked = re.findall(r"^- \[[^\]]+\]\(([\w/.-]+)\): \S.*$", text, re.M)
    named = {page for page in re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()) if page != "index.md"}
    assert sorted(linked) == sorted(named)


def test_the_chart_of_the_home_page_is_of_the_newest_record() -> None:
    """With every model, and the command that is in the record."""
    from benchmarks.pages import speed

    picture = (ROOT / "docs/speed.svg").read_text(encoding="utf-8")
    assert picture == speed.svg(speed.newest())
    assert picture.count("<circle") == len(speed.newest()["rows"]) >= 50


def test_the_gallery_has_six_networks() -> None:
    from benchmarks.pages import gallery

    page = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    assert len(gallery.NETWORKS) == 6
    for shown in gallery.NETWORKS:
        assert shown.title in page and shown.text.splitlines()[0] in page
        timeline = (ROOT / f"docs/gallery/{shown.model}.html").read_text(encoding="utf-8")
        assert "Bound by " in timeline and shown.title in timeline and len(timeline) < 300_000
        assert (ROOT / f"docs/gallery/{shown.model}.svg").read_text(encoding="utf-8").startswith("<svg")
