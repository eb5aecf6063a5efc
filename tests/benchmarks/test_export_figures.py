"""figures.c measures an exported project; runs take no memory from the system."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest
from exports import build, compiled, gcc

from benchmarks.export.figures import DRIVER, Driver


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc and /proc")
def test_runs_take_no_memory_and_a_program_little_of_its_own(tmp_path: Path) -> None:
    compiled().export(tmp_path / "project", name="detector")
    flags = ("-DMODEL=detector_model", "-DRAMMER_WEIGHTS_FILE")
    made = build(tmp_path / "project", tmp_path / "figures", "-lm", flags=flags, main=DRIVER, compiler=gcc())
    weights = tmp_path / "project" / "weights.bin"
    with closing(Driver(made, weights)) as driver:
        added, named = driver.ask("memory")
        assert driver.ask("allocations", 100) == [0]
        assert driver.ask("open", 3)[0] > 0 and driver.ask("run", 3)[0] > 0
        assert driver.ask("allocations", 3) == [0]
    assert 0 < added <= weights.stat().st_size + named + 200_000
    with closing(Driver(made, tmp_path / "nothing")) as driver, pytest.raises(RuntimeError, match="ended"):
        driver.ask("memory")
