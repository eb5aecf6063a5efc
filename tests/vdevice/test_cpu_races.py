"""The C runtime under gcc's sanitizers: programs that share a pool, and pools that share their turns."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RUNTIME = HERE.parents[1] / "rammer" / "vdevice" / "cpu" / "runtime"


@pytest.mark.parametrize("sanitizer", [pytest.param("thread", marks=pytest.mark.slow), "address,undefined"])
def test_the_runtime_has_no_races_and_no_stray_accesses(sanitizer: str, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("no gcc")
    program = tmp_path / "races"
    flags = ["-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-fsanitize={sanitizer}", f"-I{RUNTIME}", "-lpthread"]
    argv = [gcc, str(HERE / "races.c"), "-o", str(program), *flags]
    built = subprocess.run(argv, capture_output=True, text=True)
    if "cannot find" in built.stderr:
        pytest.skip("gcc has no sanitizers")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
