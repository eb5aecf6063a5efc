"""Progress is drawn on a terminal and in a notebook, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from rammer import config
from rammer.compiler import progress

COMPILE = """
import onnx.parser, rammer
from rammer.compiler import progress
progress.BEGIN_S = progress.EVERY_S = 0.0
head, body = '<ir_version: 10, opset_import: ["" : 20]>', 'm (float[3, 29] x) => (float[3, 29] y) { y = Relu(x) }'
rammer.compile(onnx.parser.parse_model(head + body), "cpu", tune_seconds=0).close()
"""


def on_a_terminal(tmp_path: Path, **flags: str) -> str:
    """Return what a compilation with an empty cache writes to a terminal on stderr."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"RAMMER_CACHE_DIR": str(tmp_path), **flags}
    done = subprocess.run([sys.executable, "-c", COMPILE], stderr=theirs, stdout=subprocess.PIPE, env=environment)
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 1 << 16):
            text += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert done.returncode == 0 and done.stdout == b""
    return text.decode()


def test_a_terminal_shows_a_bar_that_reaches_its_end_and_goes(tmp_path: Path) -> None:
    text = on_a_terminal(tmp_path)
    pictures = text.split("\r\x1b[K")
    bars = [p.split() for p in pictures if "/" in p]
    ends = {what: (counts, bar) for what, bar, counts, *_ in bars}  # the last of each phase
    assert "compile" in ends and all(len(set(c.split("/"))) == 1 and "░" not in bar for c, bar in ends.values())
    assert pictures[-1] == ""


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    assert on_a_terminal(tmp_path, RAMMER_PROGRESS="0") == ""


def test_pipes_stay_empty(tmp_path: Path) -> None:
    environment = os.environ | {"RAMMER_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, env=environment, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_notebook_shows_it_in_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def display(data: dict[str, str], **_: Any) -> Any:
        shown.append(data["text/plain"])
        return SimpleNamespace(update=display)

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))  # type: ignore[arg-type]
    monkeypatch.setattr(progress, "BEGIN_S", 0.0)
    with progress.progress_bar() as show:
        show("compile", 1, 4)
        show("compile", 4, 4)
    assert shown[-1] == "" and "4/4" in shown[-2]
    before = len(shown)
    with config.override(RAMMER_PROGRESS="0"), progress.progress_bar() as show:
        show("compile", 4, 4)

    def beside() -> None:
        with progress.progress_bar() as show:
            show("compile", 4, 4)

    thread = Thread(target=beside)
    thread.start()
    thread.join()
    assert len(shown) == before
