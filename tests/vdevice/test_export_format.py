"""docs/export-format.md specifies exported projects: for CPUs, WebAssembly, bare metal, GPUs, and several models."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from exports import compiled, detector
from test_gpu_export import ARCHS, for_gpu, small_gpus

import rammer
from rammer.frontend.builder import GraphBuilder
from rammer.vdevice.cpu.host import host

PAGE = (Path(__file__).parents[2] / "docs/export-format.md").read_text(encoding="utf-8")
HERE = "x86-64" if host().machine == "x86_64" else "aarch64-neon"
KINDS = {  # what the third column of the table of files may say
    "cpu": {"all", "CPU"},
    "wasm": {"all", "CPU"},
    "bare": {"all", "CPU"},
    "parts": {"all", "CPU"},
    "cuda": {"all", "GPU", "CUDA"},
    "rocm": {"all", "GPU", "ROCm"},
}


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the first table behind a text of the page."""
    table = re.search(r"(?:^\|.*\n)+", PAGE[PAGE.index(heading) :], re.M)
    assert table
    return [re.split(r" +\| +", line.strip("| ")) for line in table[0].splitlines()[2:]]


def export(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> Path:
    if kind in ARCHS:
        small_gpus(patch)
        program = for_gpu(kind)
    elif kind == "parts":
        b = GraphBuilder()
        b.output(b.add("relu", b.input("p", (3, 5))), "z")
        models, links = {"vad": detector(), "turn": b.build()}, {"turn.p": "vad.y"}
        how = {"state": {"vad.h_out": "vad.h"}, "together": [("vad",)], "arch": HERE}
        program = rammer.compile(models, device=1, links=links, tune_seconds=0, **how)  # type: ignore[arg-type]
    else:
        arch = {"cpu": HERE, "wasm": "wasm32-simd128", "bare": "cortex-m4f"}[kind]
        program = compiled(arch=arch, device=1, tune_seconds=0)
    program.export(folder, name="voice")
    program.close()
    return folder


@pytest.fixture(scope="module", params=KINDS)
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    with pytest.MonkeyPatch.context() as patch:
        return request.param, export(request.param, tmp_path_factory.mktemp("format") / "project", patch)


def patterns(models: list[str]) -> dict[re.Pattern[str], tuple[bool, str]]:
    """Return the files of the page as patterns: whether they are hashed, and in which projects they are."""
    words = {"NAME": "voice", "MODEL": f"(?:{'|'.join(models)})", r"(?<=_)[NM](?=\\|_)": r"\d+"}
    found = {}
    for file, hashed, where, _ in rows("## Files"):
        pattern = re.escape(file.strip("`"))
        for word, value in words.items():
            pattern = re.sub(word, value.replace("\\", "\\\\"), pattern)
        found[re.compile(pattern)] = hashed == "yes", where
    return found


def test_every_file_is_on_the_page_and_every_row_is_written(project: tuple[str, Path]) -> None:
    kind, folder = project
    manifest = json.loads((folder / "manifest.json").read_text())
    models = ["voice", *manifest["parts"]]
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    digest = hashlib.sha256()
    wanted = {pattern for pattern, (_, where) in patterns(models).items() if where in KINDS[kind]}
    for file in files:
        (match,) = [p for p in patterns(models) if p.fullmatch(file)]
        assert match in wanted, f"{file} is in a project for {kind}"
        if patterns(models)[match][0] and file != "weights.bin":
            digest.update((folder / file).read_bytes())
    assert not [p.pattern for p in wanted if not any(map(p.fullmatch, files))]
    digest.update((folder / "weights.bin").read_bytes())
    assert manifest["sha256"] == digest.hexdigest()
    assert [*manifest] == [key.strip("`") for key, _ in rows("## manifest.json")] and manifest["format"] == 1
    assert len(models) == 1 + (kind == "parts")
    for part in (manifest, *manifest["parts"].values()):
        assert {*part["inputs"][0]} == {"name", "type", "shape"} and len(part["state"]) == 1


def test_weights_and_check_are_laid_out_as_on_the_page(project: tuple[str, Path]) -> None:
    folder = project[1]
    weights = (folder / "weights.bin").read_bytes()
    assert weights[:128] == f"rammer weights 1 {hashlib.sha256(weights[128:]).hexdigest()}".ljust(127).encode() + b"\n"
    plan = (folder / "src/voice_plan_0.c").read_text()
    (listed,) = re.findall(r"constants\[\] = \{([\d,\s]*)\}", plan)
    offsets = [int(word) for word in listed.split(",")]
    assert offsets and all(at % 128 == 0 and 128 <= at < len(weights) for at in offsets)
    main = (folder / "main.c").read_text()
    starts = [int(n) for part in re.findall(r"put_at\[.*?\] = \{([\d, ]*)\}", main) for n in part.split(",")]
    check = (folder / "check.bin").read_bytes()
    assert starts[-1] == len(check) and not any(at % 128 for at in starts)
    last = starts[-2]  # of the last output: y of the model, or z of the second one
    y = np.frombuffer(check, np.float32, 15, last).reshape(3, 5)
    assert np.isfinite(y).all() and np.allclose(y.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("struct", ["rammer_model", "rammer_plan", "rammer_gpu_plan", "rammer_driver"])
def test_every_field_is_on_the_page(project: tuple[str, Path], struct: str) -> None:
    header = re.sub(r"/\*.*?\*/", "", (project[1] / "src/model.h").read_text(), flags=re.S)
    body = re.search(rf"struct \{{([^}}]*)\}} {struct};|struct {struct} \{{([^}}]*)\}};", header)
    assert body
    declared = re.sub(r"\)?\[\d+\]", "", body[1] or body[2])
    fields = [name for line in declared.split(";") for name in re.findall(r"(\w+)\s*(?:,|$)", line.strip())]
    assert fields == [name for names, _ in rows(f"A `{struct}` ") for name in names.replace("`", "").split()]
