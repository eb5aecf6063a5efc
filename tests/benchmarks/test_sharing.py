"""The benchmark of programs that share cores: one real run end to end, and its arithmetic on made-up samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.micro.sharing import main, summary


def test_summaries_are_relative_to_one_program_alone() -> None:
    rounds = [[[10.0, 20.0, 30.0], [20.0]], [[20.0, 20.0], [20.0, 40.0]]]
    found = summary(rounds, [[[10.0, 10.0, 12.0]], [[10.0, 9.0]]])
    assert (found["min_us"], found["median_us"], found["n"]) == (10.0, 20.0, 8)
    assert found["ratio"] == pytest.approx(20 / 9.75) and found["rate"] == 8 / 5
    assert found["share"] == pytest.approx(3 / 4)


def test_programs_are_called_in_turn_and_at_once(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    arguments = "--programs 1,2 --rounds 2 --seconds 0.01 --peers rammer --json"
    done = CliRunner().invoke(main, [*arguments.split(), str(file)], catch_exceptions=False)
    assert done.exit_code == 0 and "at once 2" in done.output
    ways = json.loads(file.read_text())["peers"]["rammer"]
    assert list(ways) == ["in turn 1", "in turn 2", "at once 2"]
    assert all(way["n"] >= 2 and way["min_us"] > 0 and 0 <= way["share"] <= 1 for way in ways.values())
