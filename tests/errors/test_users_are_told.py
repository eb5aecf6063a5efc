"""What users are told: of closed programs, of more vEUs than CPUs, how far a compilation is, what is not installed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import numpy as np
import pytest

import rammer
from rammer import testing
from rammer.__main__ import main as rammer_command
from rammer.errors import InputError, RammerError
from rammer.frontend.builder import GraphBuilder
from rammer.testing import tools
from rammer.vdevice.cpu.host import host
from rammer.vdevice.cpu.runtime.executable import _warn_oversubscribed
from rammer_viz.demo import lstm_stack


def add_one() -> rammer.Graph:
    builder = GraphBuilder("relu")
    builder.output(builder.add("relu", builder.input("x", (75,))), "y")
    return builder.build()


@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_every_use_of_a_closed_program(target: str) -> None:
    program = rammer.compile(add_one(), target, tune_seconds=0)
    x = np.zeros(75, np.float32)
    bound = program.bind({"x": x})
    bound()
    stream = program.stream()
    program.close()
    for use in (bound, lambda: program.run({"x": x}), lambda: stream.run(None, {"x": x})):
        with pytest.raises(InputError, match="the program is closed"):
            use()


def test_more_veus_than_cpus_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    _warn_oversubscribed.cache_clear()
    cpus = len(host().cpus)
    for num_veus, said in ((1, 0), (cpus + 62, 1)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "rammer"):
            rammer.compile(add_one(), "cpu", device=num_veus, tune_seconds=0).close()
        found = [record.getMessage() for record in caplog.records]
        assert len(found) == said
        assert all(text.startswith(f"{cpus + 62} vEUs share the {cpus} CPU") for text in found)


def test_progress_never_passes_its_end(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of what was begun before anything was asked for."""
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path))
    seen: list[tuple[str, int, int]] = []
    model = lstm_stack(1, 2, 16)
    rammer.compile(model, "cpu", device=1, tune_seconds=0.1, progress=lambda *now: seen.append(now)).close()
    assert any(what == "compile" and done for what, done, _ in seen)
    assert all(done <= total for _, done, total in seen)


def test_commands_of_the_testing_package_need_no_pytest() -> None:
    script = """
import sys
sys.modules["pytest"] = None  # as if it were not installed
import rammer_testing.fuzz.__main__, rammer_testing.onnx_suite
try:
    from rammer.testing import VDeviceConformance
except ImportError:
    print("only the kit does")
"""
    done = python("-c", script)
    assert done.stdout.strip() == "only the kit does", done.stderr


@pytest.mark.parametrize("tool", ["fuzz", "mutate", "onnx_suite"])
def test_tools_are_a_package_of_their_own(tool: str) -> None:
    """Their commands start them where it is installed, and say how to install it elsewhere."""
    found = python("-m", f"rammer.testing.{tool}", "--help")
    assert found.returncode == 0 and f"usage: python -m rammer.testing.{tool} " in found.stdout, found.stderr
    script = (
        "import sys; from importlib import util; known = util.find_spec;"
        "util.find_spec = lambda name: None if name == 'rammer_testing' else known(name);"
        f"from rammer.testing.tools import run; run({tool!r})"
    )
    missing = python("-c", script)
    assert missing.returncode == 2 and missing.stderr.startswith("error: rammer-testing is not installed"), missing


def test_new_plugin_is_in_that_package() -> None:
    script = "import sys; sys.modules['rammer_testing'] = None; sys.argv = ['rammer', 'new-plugin', 'toy', '--policy'];"
    missing = python("-c", f"{script} from rammer.__main__ import main; main()")
    assert missing.returncode == 1 and "rammer-testing is not installed" in missing.stderr
    assert "hint: pip install rammer-testing" in missing.stderr


def test_windows_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    vars(rammer).pop("Session", None)
    with pytest.raises(RammerError, match=r"needs a POSIX system(.|\n)*WSL"):
        _ = rammer.Session
    assert rammer_command() == 1 and "WSL" in capsys.readouterr().err


def test_the_kit_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r"rammer-testing is not installed\n  hint: pip install rammer-testing, or \./tools/testing"
    ):
        _ = testing.PolicyConformance


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Another interpreter that finds what this one does."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
