"""What users are told: of closed programs, of more vEUs than CPUs, how far a compilation is, what is not installed."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest

import rammer
from rammer.demo import lstm_stack
from rammer.errors import InputError
from rammer.frontend.builder import GraphBuilder
from rammer.vdevice.cpu.host import host
from rammer.vdevice.cpu.runtime import _warn_of_few


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
    _warn_of_few.cache_clear()
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
import rammer.testing.fuzz.__main__, rammer.testing.onnx_suite
try:
    from rammer.testing import VDeviceConformance
except ImportError:
    print("only the kit does")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "only the kit does", done.stderr
