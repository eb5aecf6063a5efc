"""Run a page as a reader would: `python tests/meta/blocks.py PAGE [--parse]`, in a folder with the models of pages.

Blocks of Python run in order, in one fresh namespace. Lines of shells that call rammer run too, between them; of other
programs, modules that `python -m` names must exist. A comment before a block, `<!-- not run: REASON -->`, keeps it from
running: its Python is compiled then, and its commands are parsed; `--parse` does no more with any block.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import click

BLOCK = re.compile(r"(?:<!-- not run: (?P<why>[^>]+) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
SHELLS = ("sh", "console")
ELSEWHERE = {  # programs whose commands are not run here
    *(
        "pip",
        "python3",
        "cd",
        "cmake",
        "ctest",
        "pytest",
        "mkdocs",
        "eval",
        "emcmake",
        "chrt",
        "source",
        "git",
        "ruff",
        "mypy",
    ),
    *(
        "benchmarks/gpu/h200.sh",
        "node",
        "cc",
        "c++",
        "rustc",
        "dotnet",
        "cargo",
        "adb",
        "west",
        "wasmtime",
        ".venv/bin/python",
    ),
}


PARSED = (["demo"], ["doctor", "--calibrate"])  # CI runs the first; the second changes the caches of all tests
SHORTER = {"bench": ["--seconds", "0.1"]}


class Block(NamedTuple):
    """A block of a page. `why` it is not run, or ""."""

    line: int
    language: str
    text: str
    why: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        yield Block(text[: found.start("text")].count("\n"), found["language"], found["text"], found["why"] or "")


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell block, without prompts, comments, variables and redirections."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        for part in re.split(r"\s(?:&&|\|)\s", line.removeprefix("$ ")):
            words = [word for word in shlex.split(part, comments=True) if not re.match(r"[A-Z_]+=", word)]
            if words:
                yield words[: words.index(">")] if ">" in words else words


def run_command(words: list[str], *, parse_only: bool) -> None:
    """Run a command of rammer, or check what can be checked of another one."""
    program, *arguments = [word.removeprefix(".venv/bin/") for word in words]
    if program == "python" and arguments[:1] == ["-m"]:
        assert find_spec(arguments[1]), f"there is no module {arguments[1]}"
    elif program == "rammer":
        from click.testing import CliRunner

        from rammer.cli.commands import main

        if parse_only or arguments in PARSED:
            command = main
            while arguments and hasattr(command, "commands") and arguments[0] in command.commands:
                command, *arguments = command.commands[arguments[0]], *arguments[1:]  # type: ignore[assignment]
            try:
                command.make_context("rammer", list(arguments))
            except click.BadParameter as error:
                assert "does not exist" in str(error)  # a file of the reader's
            return
        done = CliRunner().invoke(main, [*arguments, *SHORTER.get(arguments[0], [])])
        assert done.exit_code == 0, f"{shlex.join(words)}\n{done.output}"
    else:
        assert program in ELSEWHERE or program == "python", f"who runs {shlex.join(words)}?"


def run_page(page: Path, *, parse_only: bool = False) -> None:
    """Run all blocks of a page, or parse them. Raises what the first one raises that fails, with its place."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        place = f"{page.name}:{block.line}"
        try:
            if block.language == "python":
                code = compile("\n" * block.line + block.text, str(page), "exec")
                if not block.why and not parse_only:
                    exec(code, namespace)
            elif block.language in SHELLS:
                for words in commands(block.text):
                    run_command(words, parse_only=parse_only or bool(block.why))
        except (Exception, SystemExit) as error:
            error.add_note(f"in the block at {place}")
            raise


if __name__ == "__main__":
    run_page(Path(sys.argv[1]), parse_only="--parse" in sys.argv)
