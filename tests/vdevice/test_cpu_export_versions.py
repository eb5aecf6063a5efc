"""Libraries of other versions of rammer.h: a later minor one runs old programs, another major one refuses them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from exports import build, compiled, include

from rammer.vdevice.toolchain import c_compiler


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("versions") / "project"
    compiled(arch=None).export(folder, name="detector")
    return folder


def later(project: Path, where: Path, *, major: int, minor: int) -> Path:
    """Return a copy of the project of another version, whose structs have more fields behind those of today."""
    copy = where / f"project-{major}.{minor}"
    shutil.copytree(project, copy)
    header = (copy / "include/rammer.h").read_text()
    header = re.sub(r"RAMMER_MAJOR \d+\n", f"RAMMER_MAJOR {major}\n", header)
    header = re.sub(r"RAMMER_MINOR \d+\n", f"RAMMER_MINOR {minor}\n", header)
    header = header.replace("} rammer_options;", "  double priority, more[9];\n} rammer_options;")
    (copy / "include/rammer.h").write_text(re.sub(r"(DEFAULTS \{.*)\}", r"\1, 0, {0}}", header))
    tables = (copy / "src/model.h").read_text()
    tables = tables.replace("} rammer_plan;", "  long long more[9];\n} rammer_plan;")
    (copy / "src/model.h").write_text(tables.replace("weights_header;", "weights_header;\n  long long more[9];"))
    return copy


def checked(project: Path, library: Path, where: Path) -> subprocess.CompletedProcess[str]:
    """Build a project's self-check against a library, and run it."""
    target = where / "check"
    sources = (str(project / "main.c"), str(project / "src/check.c"))
    how = ("-std=gnu11", *include(project), *sources, str(library), f"-Wl,-rpath,{library.parent}", "-lm")
    subprocess.run([*c_compiler().command, *how, "-o", str(target)], check=True, cwd=project)
    return subprocess.run([target], capture_output=True, text=True)


def shared(project: Path, where: Path) -> Path:
    """Build a project as a shared library."""
    return build(project, where / "libdetector.so", "-lm", "-lpthread", shared=True, flags=("-Wno-error",))


def test_an_old_program_runs_with_a_library_of_a_later_minor_version(project: Path, tmp_path: Path) -> None:
    library = shared(later(project, tmp_path, major=1, minor=7), tmp_path)
    done = checked(project, library, tmp_path)
    assert done.returncode == 0 and "1 of 1 outputs right" in done.stdout


def test_an_old_program_is_refused_by_a_library_of_another_major_version(project: Path, tmp_path: Path) -> None:
    library = shared(later(project, tmp_path, major=2, minor=0), tmp_path)
    done = checked(project, library, tmp_path)
    assert done.returncode == 2 and "the program was built for another version of rammer.h" in done.stdout


def test_a_new_program_is_refused_by_an_old_library(project: Path, tmp_path: Path) -> None:
    done = checked(later(project, tmp_path, major=1, minor=7), shared(project, tmp_path), tmp_path)
    assert done.returncode == 2 and "the program was built for another version of rammer.h" in done.stdout


@pytest.mark.parametrize(("major", "minor"), [(2, 0), (1, 7)])
def test_a_new_model_is_refused_by_an_old_runtime(project: Path, tmp_path: Path, major: int, minor: int) -> None:
    """As several models in one program do, which share the runtime of one of them."""
    mixed = tmp_path / "mixed"
    shutil.copytree(project, mixed)
    new = later(project, tmp_path, major=major, minor=minor)
    model = mixed / "src/detector.c"
    inlined = '#include "../new/rammer.h"\n#include "../new/model.h"\n'
    shutil.copytree(new / "include", mixed / "new")
    shutil.copy(new / "src/model.h", mixed / "new")
    model.write_text(re.sub(r'#include "detector.h"\n#include "model.h"\n', inlined, model.read_text()))
    done = checked(project, shared(mixed, tmp_path), tmp_path)
    assert done.returncode == 2 and "the model was exported for another version of rammer.h" in done.stdout


def test_a_model_of_version_1_0_runs_with_a_later_runtime(project: Path, tmp_path: Path) -> None:
    """Its plans name no engine."""
    old = tmp_path / "old"
    shutil.copytree(project, old)
    plan, model = old / "src/detector_plan_0.c", old / "src/detector.c"
    assert ", &rammer_cpu, 0}" in plan.read_text() and "{RAMMER_VERSION, " in model.read_text()
    plan.write_text(plan.read_text().replace(", &rammer_cpu, 0}", "}"))
    model.write_text(model.read_text().replace("{RAMMER_VERSION, ", "{1000, "))
    done = checked(old, shared(old, tmp_path), tmp_path)
    assert done.returncode == 0 and "1 of 1 outputs right" in done.stdout
