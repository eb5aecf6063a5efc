"""The site: every page is in it, every public name is in the reference, the tutorial shows what examples/ run."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rammer_testing.new_plugin import contents

import rammer
from rammer.compiler.options import Keywords

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [p for p in sorted(ROOT.rglob("*.md")) if not p.relative_to(ROOT).parts[0].startswith((".", "build"))]


def test_every_page_is_in_the_site() -> None:
    named = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    pages = [p.name for p in (ROOT / "docs").glob("*.md")]
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
    """Return the names in the table of parameters of a docstring."""
    table = re.search(r"^(?:Args|Attributes):\n((?:    .*\n|\n)+)", f"{inspect.getdoc(what)}\n", re.M)
    return re.findall(r"^    (\w+): ", table[1], re.M) if table else []


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
    texts = [example.read_text() for example in EXAMPLES]
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), re.S)
    assert len(blocks) == len(EXAMPLES) + 1
    for block in blocks:
        assert any(block in text for text in texts), f"not in examples/:\n{block}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.stem)
def test_examples_run(example: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAMMER_TUNE_SECONDS": "0"}
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


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
    """Warnings are errors."""
    pytest.importorskip("mkdocstrings", reason="needs the dev extra")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "ERROR" not in done.stderr, done.stderr
    assert "independent stream" in (tmp_path / "api/index.html").read_text()
