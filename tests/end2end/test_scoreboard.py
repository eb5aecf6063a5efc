"""The files for ONNX's backend scoreboard: its test file runs, and the container's names are those of the packages."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rammer import about

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "integrations/scoreboard"
WRONG = """
from rammer_testing.onnx_backend import is_compatible, supports_device
from rammer_testing import onnx_backend


def run_model(model, inputs, device="CPU", **kwargs):
    return tuple(y + 1 for y in onnx_backend.run_model(model, inputs, device, **kwargs))


class Rep:
    def __init__(self, model, device):
        self.given = model, device

    def run(self, inputs):
        return run_model(self.given[0], inputs, self.given[1])


def prepare(model, device="CPU", **kwargs):
    return Rep(model, device)
"""
NODES = ("OnnxBackendNodeModelTest::test_relu_cpu", "OnnxBackendNodeModelTest::test_add_cpu")
TEXTS = "OnnxBackendSimpleModelTest::test_strnorm_model_nostopwords_nochangecase_cpu"


def cases(*names: str, module: str = "rammer_testing.onnx_backend", folder: Path = FOLDER) -> dict[str, int]:
    """Run cases of the test file in another process; return how many passed, failed and were skipped."""
    file = FOLDER / "test_backend.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"{file}::{name}" for name in names] or [str(file), "-k", "not _cuda"]
    environment = os.environ | {"ONNX_BACKEND": module, "RAMMER_TUNE_SECONDS": "0", "PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    assert "error" not in last, done.stdout + done.stderr
    return {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|skipped)", last)}


def test_cases_pass_and_unsupported_models_are_skipped() -> None:
    assert cases(*NODES, TEXTS) == {"passed": 2, "skipped": 1}


@pytest.mark.slow
def test_a_wrong_backend_fails(tmp_path: Path) -> None:
    (tmp_path / "wrong_backend.py").write_text(WRONG)
    assert cases(*NODES, module="wrong_backend", folder=tmp_path) == {"failed": 2}


@pytest.mark.slow
def test_the_whole_scoreboard() -> None:
    """Node cases with unsupported operators fail there, as they do for all backends; whole models are skipped."""
    listed = (ROOT / "tests/frontend/backend_failures.txt").read_text(encoding="utf-8").splitlines()[1:]
    found = cases()
    others = found["failed"] + found["skipped"]
    assert others <= len(listed) + 1  # BackendTest cannot compare test_loop16_seq_none's lists


def test_the_container_installs_what_there_is() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    (backend,) = re.findall(r'ONNX_BACKEND="([\w.]+)"', text)
    module = importlib.import_module(backend)
    assert all(callable(getattr(module, name)) for name in ("prepare", "run_model", "supports_device", "is_compatible"))
    places = re.findall(r"^\| `(\S+)` \| `(\S+)` \|$", (FOLDER / "README.md").read_text(encoding="utf-8"), re.M)
    assert dict(places) == {"Dockerfile": "runtimes/rammer/stable/Dockerfile"}
    (entry,) = json.loads((FOLDER / "config.json").read_text(encoding="utf-8")).values()
    assert entry["dockerfile_link"] == "runtimes/rammer/stable/Dockerfile"
    assert set(entry["core_packages"]) == {about.COMPILER, about.RUNTIME, "onnx"}
    job = (FOLDER / "job.yml").read_text(encoding="utf-8")
    assert entry["dockerfile_link"] in job and entry["results_dir"].removeprefix("./") in job
