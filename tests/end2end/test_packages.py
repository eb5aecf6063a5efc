"""The packages as users get them: built in a clean folder, and installed in a new environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

import rammer
from rammer.about import COMPILER, RUNTIME, TESTING, VERSION
from rammer_viz.demo import lstm_stack

ROOT = Path(__file__).parents[2]
PROJECTS = {RUNTIME: "wheels/runtime", COMPILER: "."}
BESIDE = {
    **{f"rammer-{name}": f"plugins/{name}" for name in ("torch", "dask", "legacy-kernels", "list-policy")},
    TESTING: "tools/testing",
}
MOST_BYTES = 5_000_000  # of an environment with the runtime, without NumPy and pip

pytestmark = pytest.mark.slow


def call(*command: str | Path, cwd: Path) -> str:
    """Run a command without this checkout on Python's path, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build from a copy of the checkout. Wheels come from the source distributions, as `python -m build` does it."""
    pytest.importorskip("build", reason="needs the release extra")
    checkout, found = tmp_path_factory.mktemp("clean") / "checkout", tmp_path_factory.mktemp("dist")
    left = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "tests", "docs", "benchmarks")
    shutil.copytree(ROOT, checkout, ignore=left, symlinks=True)
    for place in (*PROJECTS.values(), *BESIDE.values()):
        call(sys.executable, "-m", "build", "--outdir", found, checkout / place, cwd=found)
    for project, place in PROJECTS.items():  # and straight from the checkout: pip does that
        call(sys.executable, "-m", "build", "--wheel", "--outdir", found / "direct", checkout / place, cwd=found)
        name = f"{project.replace('-', '_')}-{VERSION}-py3-none-any.whl"
        assert content(found / name) == content(found / "direct" / name)
    yield found


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("project", [*PROJECTS, *BESIDE])
def test_wheels_are_complete(built: Path, project: str) -> None:
    stem = f"{project.replace('-', '_')}-{VERSION}"
    files, info = content(built / f"{stem}-py3-none-any.whl"), f"{stem}.dist-info"
    metadata = Parser().parsestr(files[f"{info}/METADATA"].decode())
    assert (metadata["Name"], metadata["Version"], metadata["License-File"]) == (project, VERSION, "LICENSE")
    assert files[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert len(metadata.get_all("Project-URL", [])) >= 5 and metadata["Description-Content-Type"] == "text/markdown"
    assert "](docs/" not in metadata.get_payload() and "](../" not in metadata.get_payload()
    bill = json.loads(files[f"{info}/sboms/{project}.cdx.json"])
    needed = {text.partition(";")[0] for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text}
    listed = {c["properties"][0]["value"] for c in bill["components"]}
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == project
    assert {text.replace(" ", "") for text in needed} == listed
    with tarfile.open(built / f"{stem}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "rammer/about.py", "PKG-INFO"} <= names
    typed = [file.removesuffix("/py.typed") for file in files if file.endswith("/py.typed")]
    own = {RUNTIME: ["rammer"], COMPILER: ["rammer_viz"]}.get(project, [project.replace("-", "_")])
    assert typed == own  # one package, one marker
    base = {RUNTIME: set(), COMPILER: {f"{RUNTIME}=={VERSION}"}}.get(project, {f"{COMPILER}=={VERSION}"})
    assert {text for text in needed if text.startswith("rammer")} == base


def test_no_file_is_in_both(built: Path) -> None:
    one, two = ({*content(built / f"{p.replace('-', '_')}-{VERSION}-py3-none-any.whl")} for p in PROJECTS)
    assert not one & two


def test_descriptions_are_clean(built: Path) -> None:
    pytest.importorskip("twine", reason="needs the release extra")
    call(sys.executable, "-m", "twine", "check", "--strict", *built.glob("*.whl"), *built.glob("*.tar.gz"), cwd=built)


def test_installed_packages_run_and_compile(built: Path, tmp_path: Path) -> None:
    """The runtime alone; then with the compiler; and again without it."""
    with rammer.compile(lstm_stack(1, 3, 16), "cpu", device=1, tune_seconds=0) as program:
        program.save(tmp_path / "saved.rammer")
    call(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python, command = tmp_path / "venv/bin/python", tmp_path / "venv/bin/rammer"
    runtime, compiler = (built / f"{p.replace('-', '_')}-{VERSION}-py3-none-any.whl" for p in PROJECTS)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    before = size(site)
    call(python, "-m", "pip", "install", "--quiet", runtime, cwd=tmp_path)
    numpy = sum(size(folder) for folder in site.glob("numpy*"))
    assert size(site) - before - numpy <= MOST_BYTES
    *wanted, took = call(command, "run", "saved.rammer", cwd=tmp_path).splitlines()
    assert wanted[0].startswith("output") and "took" in took and VERSION in call(command, "--version", cwd=tmp_path)
    call(python, "-m", "pip", "install", "--quiet", compiler, "--find-links", built, cwd=tmp_path)
    call(python, "-m", "pip", "check", cwd=tmp_path)
    script = (
        "import rammer; from rammer_viz.demo import lstm_stack;"
        "p = rammer.compile(lstm_stack(1, 3, 16), threads=1, tune_seconds=0); p.save('again.rammer')"
    )
    call(python, "-c", script, cwd=tmp_path)
    assert "auto" in call(command, "doctor", cwd=tmp_path)
    call(python, "-m", "pip", "uninstall", "--yes", "--quiet", COMPILER, cwd=tmp_path)
    assert call(command, "run", "saved.rammer", cwd=tmp_path).splitlines()[:-1] == wanted
    call(command, "run", "again.rammer", cwd=tmp_path)
    assert not (site / "rammer/compiler").exists()


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
