"""CPU suites in an aarch64 Python, by qemu-user: kernels, runtime and programs are NEON's, as on an Arm machine.

`python -m rammer_testing.aarch64 .aarch64` makes that Python. One small model runs there in the default suite, too:
test_cpu_export_targets.py.
"""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from rammer_testing import aarch64

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".aarch64"
# They compile for this machine, or for others, by tools that an emulated Python does not have.
ELSEWHERE = ("test_cpu_aarch64", "test_cpu_export_targets", "test_cpu_export_examples", "test_cpu_export_sanitized")
FOLDERS = {"tests/vdevice": "test_cpu_*.py", "tests/kernels": "test_*.py", "tests/conformance": "test_builtin.py"}
PROGRAMS = ("artifact", "bound", "direct", "element_types", "in_place", "loops", "session", "several_models")
SUITES = [
    *(str(path.relative_to(ROOT)) for folder, names in FOLDERS.items() for path in (ROOT / folder).glob(names)),
    *(f"tests/end2end/test_{name}.py" for name in PROGRAMS),
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() in ("aarch64", "arm64"), reason="the suites themselves run here"),
    pytest.mark.skipif(
        not (PYTHON / "bin/python").exists(), reason="no aarch64 Python: python -m rammer_testing.aarch64 .aarch64"
    ),
]


@pytest.mark.parametrize("suite", [suite for suite in sorted(SUITES) if Path(suite).stem not in ELSEWHERE])
def test_a_suite_passes_there(suite: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert aarch64.pytest(PYTHON, ["-q", f"--basetemp={tmp_path}", suite]) == pytest.ExitCode.OK
