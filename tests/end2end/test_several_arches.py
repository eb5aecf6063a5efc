"""Programs for several machines in one file: each takes the best that it runs."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import rammer
from rammer.cli.commands import main
from rammer.errors import ArtifactError, UnsuitableError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.vdevice.cpu.host import ARCHES, host
from rammer.vdevice.cpu.runtime import runner as cpu_runner
from rammer_viz.demo import lstm_stack

ARCH_NAMES = [a.name for a in ARCHES.values() if a.machine == host().machine]
HERE = [name for name in ARCH_NAMES if host().runs(ARCHES[name])]


def net(width: int = 75) -> Graph:
    builder = GraphBuilder()
    x = builder.input("x", (3, 40))
    w = builder.constant(np.random.default_rng(0).standard_normal((40, width)).astype(np.float32))
    builder.output(builder.add("matmul", x, w), "y")
    return builder.build()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file with a program for every arch of this machine's kind, the best first."""
    path = tmp_path_factory.mktemp("together") / "all.rammer"
    rammer.save_together([rammer.compile(net(), "cpu", arch=name, tune_seconds=0) for name in ARCH_NAMES], path)
    return path


def wanted(x: np.ndarray) -> np.ndarray:
    with rammer.compile(net(), "cpu", tune_seconds=0) as program:
        return program.run({"x": x})["y"]


def test_the_first_that_runs_is_taken(together: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32)
    for name in HERE:
        fewer = replace(host(), features=ARCHES[name].features)
        monkeypatch.setattr(cpu_runner, "host", lambda found=fewer: found)
        runs = next(a for a in ARCH_NAMES if fewer.runs(ARCHES[a]))
        with rammer.load(together) as program:
            assert program.report().arch == runs
            np.testing.assert_allclose(program.run({"x": x})["y"], wanted(x), rtol=1e-4, atol=1e-4)


def test_where_none_runs_all_reasons_are_told(together: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(host(), machine="sparc")
    monkeypatch.setattr(cpu_runner, "host", lambda: other)
    with pytest.raises(UnsuitableError, match=f"none of its {len(ARCH_NAMES)} programs runs here: .*sparc"):
        rammer.load(together)


def test_damage_is_no_reason_to_take_another_one(together: Path, tmp_path: Path) -> None:
    data = bytearray(together.read_bytes())
    with zipfile.ZipFile(together) as archive:
        first = archive.getinfo("programs/0")
    at = data.index(b"weights.safetensors", first.header_offset) + 2000
    data[at] ^= 1
    damaged = tmp_path / "damaged.rammer"
    damaged.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"hash|readable|plain bytes"):
        rammer.load(damaged)
    short = tmp_path / "short.rammer"
    for part in range(1, 20):  # the programs before the cut are whole
        short.write_bytes(together.read_bytes()[: len(data) * part // 20])
        with pytest.raises(ArtifactError, match="not a readable program"):
            rammer.load(short)


def test_only_programs_of_one_model_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.rammer"
    with rammer.compile(net(), "cpu", tune_seconds=0) as one, rammer.compile(net(76), "cpu", tune_seconds=0) as other:
        with pytest.raises(ArtifactError, match="different inputs"):
            rammer.save_together([one, other], path)
        with pytest.raises(ArtifactError, match="0 programs"):
            rammer.save_together([], path)
    assert not path.exists()


def test_the_command_puts_the_best_first(tmp_path: Path) -> None:
    model, path = tmp_path / "lstm.onnx", tmp_path / "lstm.rammer"
    onnx.save(lstm_stack(1, 4, 16), model)
    if len(names := HERE[:2]) < 2:
        pytest.skip(f"this machine runs code for {HERE[0]} alone")
    done = CliRunner().invoke(main, ["compile", str(model), "-o", str(path), "--arch", ",".join(reversed(names))])
    assert done.exit_code == 0, done.output
    with zipfile.ZipFile(path) as archive:
        assert [n for n in archive.namelist() if n.startswith("programs/")] == [
            f"programs/{n}" for n in range(len(names))
        ]
    with rammer.load(path) as program:
        assert program.report().arch == names[0]
