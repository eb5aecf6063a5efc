"""The benchmark of quantised networks: one real run of the smallest."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from benchmarks.quantized.run import main


def test_programs_are_called_in_turn(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    arguments = ["--networks", "mlp_1", "--turns", "2", "--device", "1", "--clock", "cpu", "--json"]
    done = CliRunner().invoke(main, [*arguments, str(file)], catch_exceptions=False)
    assert done.exit_code == 0
    found = json.loads(file.read_text())["networks"]["mlp_1"]
    assert {"rammer fp32", "rammer int8"} <= set(found)
    assert all(len(row["us"]) == 2 and min(row["us"]) > 0 for row in found.values())
