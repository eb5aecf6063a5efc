"""Saved programs: round trip, and every way a file can be bad."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import rammer
from rammer.demo import lstm_stack
from rammer.errors import ArtifactError, InputError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "lstm.rammer"
    with rammer.compile(lstm_stack(2, 5, 32), "cpu", device=2, tune_seconds=0) as program:
        program.save(path)
    return path


def rewrite(path: Path, out: Path, change: dict[str, bytes | None], extra: dict[str, bytes] | None = None) -> Path:
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(out, "w") as target:
        for info in source.infolist():
            data = change.get(info.filename, source.read(info))
            if data is not None:
                target.writestr(info.filename, data)
        for name, data in (extra or {}).items():
            target.writestr(name, data)
    return out


def test_round_trip_without_compiler(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).standard_normal((5, 1, 32)).astype(np.float32)
    with rammer.compile(lstm_stack(2, 5, 32), "cpu", device=2, tune_seconds=0) as program:
        wanted = program(x)
    monkeypatch.setenv("RAMMER_CC", "/no/such/compiler")
    with rammer.load_program(saved) as loaded:
        np.testing.assert_array_equal(loaded(x), wanted)
        assert loaded.report().num_operators == program.report().num_operators
        with pytest.raises(ArtifactError, match="keeps no plan"):
            _ = loaded.plan


def test_same_model_same_file(saved: Path, tmp_path: Path) -> None:
    with rammer.compile(lstm_stack(2, 5, 32), "cpu", device=2, tune_seconds=0) as program:
        program.save(tmp_path / "again.rammer")
    with zipfile.ZipFile(saved) as a, zipfile.ZipFile(tmp_path / "again.rammer") as b:
        assert a.namelist() == b.namelist()
        for name in a.namelist():
            if name != "manifest.json":  # it has the time each phase took
                assert a.read(name) == b.read(name), name


@pytest.mark.parametrize("keep", [0, 10, 1000, -1])
def test_truncated_file(saved: Path, tmp_path: Path, keep: int) -> None:
    bad = tmp_path / "cut.rammer"
    bad.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(ArtifactError):
        rammer.load_program(bad)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such file"):
        rammer.load_program(tmp_path / "absent.rammer")


def test_flipped_byte_in_any_member(saved: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    for name, data in members.items():
        if name != "manifest.json":
            changed = bytes([data[0] ^ 1]) + data[1:]
            bad = rewrite(saved, tmp_path / "bad.rammer", {name: changed})
            with pytest.raises(ArtifactError, match="hash"):
                rammer.load_program(bad)


def test_unknown_format_missing_and_extra_members(saved: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    newer = json.dumps({**manifest, "format": 99}).encode()
    with pytest.raises(ArtifactError, match="format 99"):
        rammer.load_program(rewrite(saved, tmp_path / "a.rammer", {"manifest.json": newer}))
    with pytest.raises(ArtifactError, match="members differ"):
        rammer.load_program(rewrite(saved, tmp_path / "b.rammer", {"weights.safetensors": None}))
    with pytest.raises(ArtifactError, match="members differ"):
        rammer.load_program(rewrite(saved, tmp_path / "c.rammer", {}, {"../../escape": b"x"}))
    with pytest.raises(ArtifactError):
        rammer.load_program(rewrite(saved, tmp_path / "d.rammer", {"manifest.json": b"[" * 100_000}))


def test_unwritable_target_leaves_nothing(saved: Path, tmp_path: Path) -> None:
    with rammer.load_program(saved) as program, pytest.raises(ArtifactError, match="cannot be written"):
        program.save(tmp_path / "no" / "such" / "folder" / "p.rammer")
    assert not list(tmp_path.iterdir())


def test_closed_program_refuses_to_run(saved: Path) -> None:
    program = rammer.load_program(saved)
    program.close()
    program.close()
    with pytest.raises(InputError, match="closed"):
        program.run({"x": np.zeros((5, 1, 32), np.float32)})
