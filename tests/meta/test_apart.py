"""What is kept apart: running from compiling, and the core from the environment and from its user's terminal."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rammer
from rammer_viz.demo import lstm_stack

ROOT = Path(rammer.__file__).parent
CORE = ("ir", "passes", "kernels", "cost", "scheduler")
RUNTIME = (
    "runtime.artifact",
    "runtime.call",
    "runtime.outline",
    "runtime.program",
    "runtime.report",
    "runtime",
    "runtime.load",
    "runtime.state",
    "runtime.usage",
)
COMPILING = ("passes", "kernels", "frontend", "scheduler", "cost", "compiler")
LISTED = f"sorted(m for m in sys.modules if m.startswith(tuple('rammer.' + n for n in {COMPILING!r})))"


def answer(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", f"import sys\n{code}"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("module", RUNTIME)
def test_what_runs_programs_imports_nothing_that_compiles(module: str) -> None:
    assert answer(f"import rammer.{module}\nprint({LISTED})") == "[]"


def test_a_run_imports_nothing_that_compiles(tmp_path: Path) -> None:
    """From `import rammer` to outputs: also state, binding, saving again, and the report."""
    with rammer.compile(lstm_stack(1, 3, 32), "cpu", device=2, tune_seconds=0) as program:
        program.save(tmp_path / "saved")
    code = f"""
import numpy as np, rammer
with rammer.load({str(tmp_path / "saved")!r}) as program:
    inputs = {{p.name: np.ones(p.shape, p.dtype.numpy) for p in program.inputs}}
    outputs = program.run(inputs)
    program.bind(inputs)()
    program.save({str(tmp_path / "again")!r})
    text = str(program.report())
assert all(np.isfinite(value).all() for value in outputs.values()) and "rOperators" in text
print({LISTED})
"""
    assert answer(code) == "[]"
    assert (tmp_path / "saved").read_bytes() == (tmp_path / "again").read_bytes()


def test_a_loaded_program_can_be_drawn_all_the_same(tmp_path: Path) -> None:
    with rammer.compile(lstm_stack(1, 3, 32), "cpu", device=2, tune_seconds=0) as program:
        program.save(tmp_path / "saved")
        wanted = program.outline()[1].total_us
    with rammer.load(tmp_path / "saved") as program:
        plan, timeline = program.outline()
    assert timeline.total_us == pytest.approx(wanted) and plan.policy == program.report().policy


def test_every_public_name_is_there_before_it_is_imported() -> None:
    shown = "{*rammer.__all__, 'plugin', 'errors', '__version__'} <= {*dir(rammer)}"
    assert answer(f"import rammer, rammer.plugin\nprint({shown}, {LISTED})") == "True []"
    assert dir(rammer.plugin) == rammer.plugin.__all__ and all(hasattr(rammer.plugin, n) for n in rammer.plugin.__all__)
    for name in rammer.__all__:
        assert name == "hookimpl" or getattr(rammer, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'complie'"):
        _ = rammer.complie  # type: ignore[attr-defined]


def talks(source: str) -> list[str]:
    """What of a module reads the environment or reaches a terminal: it should get options, and be told whom to tell."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                found += [a.name for a in names if a.name in ("warnings", "logging", "rammer.config", "rammer.log")]
            case ast.ImportFrom("warnings" | "logging" | "rammer.config" | "rammer.log" as module, _):
                found.append(str(module))
            case ast.ImportFrom("rammer", names):
                found += [a.name for a in names if a.name in ("config", "log")]
            case ast.ImportFrom("os", names):
                found += [a.name for a in names if a.name in ("environ", "getenv", "environb")]
            case ast.ImportFrom("sys", names):
                found += [a.name for a in names if a.name in ("stderr", "stdout")]
            case ast.Attribute(ast.Name("os"), "environ" | "getenv" | "environb" as name):
                found.append(name)
            case ast.Attribute(ast.Name("sys"), "stderr" | "stdout" | "__stderr__" | "__stdout__" as name):
                found.append(name)
            case ast.Call(ast.Name("print" | "input" as name)):
                found.append(name)
    return found


@pytest.mark.parametrize(
    "planted",
    [
        "import os\nx = os.environ['A']",
        "import os\nx = os.getenv('A')",
        "from os import environ",
        "from rammer import config",
        "from rammer.config import integer",
        "def f():\n    print('x')",
        "import sys\nsys.stderr.write('x')",
        "import warnings",
        "from logging import getLogger",
    ],
)
def test_talk_is_found(planted: str) -> None:
    assert talks(planted) and not talks("from os import path\nimport sys\nblueprint = sys.maxsize")


def test_the_core_reads_no_environment_and_prints_nothing() -> None:
    for folder in CORE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            found = talks(path.read_text(encoding="utf-8"))
            assert not found, f"{path.relative_to(ROOT)}: {found}"
