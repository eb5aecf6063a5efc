"""Saved programs: round trip, and every way a file can be bad."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load as load_tensors

import rammer
import rammer_viz as viz
from rammer.errors import ArtifactError, InputError
from rammer.ir.tensor import DType
from rammer.ir.text import print_plan
from rammer.runtime import artifact
from rammer.vdevice.base import Image
from rammer.vdevice.image.memory import gather
from rammer_viz.demo import lstm_stack


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
    with rammer.load(saved) as loaded:
        np.testing.assert_array_equal(loaded(x), wanted)
        assert loaded.report().num_operators == program.report().num_operators
        with pytest.raises(ArtifactError, match=r"keeps an outline of its plan alone(.|\n)*outline\(\)"):
            _ = loaded.plan
        plan, timeline = loaded.outline()
        wanted_plan, wanted_timeline = program.outline()
        assert plan.programs == wanted_plan.programs
        assert timeline.total_us == pytest.approx(wanted_timeline.total_us) and timeline.moved == wanted_timeline.moved
        untraced = replace(wanted_timeline, fetched={})  # which bytes each rTask fetches is not kept
        assert viz.text_gantt(timeline, plan) == viz.text_gantt(untraced, wanted_plan)
        assert print_plan(plan) == print_plan(wanted_plan)


def test_same_model_same_file(saved: Path, tmp_path: Path) -> None:
    """Also from another process, with another cache in which other kernels were compiled before and together."""
    code = """
import sys, rammer
from rammer_viz.demo import lstm_stack
rammer.compile(lstm_stack(1, 2, 32), "cpu", device=2, tune_seconds=0).close()
with rammer.compile(lstm_stack(2, 5, 32), "cpu", device=2, tune_seconds=0) as program:
    program.save(sys.argv[1])
"""
    again = tmp_path / "again.rammer"
    flags = {"RAMMER_CACHE_DIR": str(tmp_path / "cache"), "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code, str(again)], env=os.environ | flags, check=True)
    with zipfile.ZipFile(saved) as a, zipfile.ZipFile(again) as b:
        assert a.namelist() == b.namelist()
        for name in a.namelist():
            assert a.read(name) == b.read(name), name
    assert saved.read_bytes() == again.read_bytes()


def test_a_loaded_program_saves_the_same_file(saved: Path, tmp_path: Path) -> None:
    with rammer.load(saved) as program:
        program.save(tmp_path / "copy.rammer")
    assert saved.read_bytes() == (tmp_path / "copy.rammer").read_bytes()


def test_members_lie_at_multiples_of_64_and_are_safetensors(saved: Path, tmp_path: Path) -> None:
    image, _ = artifact.load(saved)
    with zipfile.ZipFile(saved) as archive:
        assert archive.testzip() is None
        data = archive.read("weights.safetensors")
        plain = load_tensors(data)
        at = saved.read_bytes().index(data)
    assert at % 64 == 0
    assert plain.keys() == image.weights.keys()
    for name, array in image.weights.items():
        np.testing.assert_array_equal(array, plain[name])
        assert array.nbytes % 64 or array.ctypes.data % 64 == 0
        assert not array.flags.writeable  # mapped from the file


def test_weights_are_used_where_they_lie() -> None:
    block = np.arange(1024, dtype=np.float32)
    first = -block.ctypes.data % 64 // 4
    mapped, loose = block[first : first + 64], block[first + 65 : first + 97]
    placed = gather([mapped, loose])
    assert placed[0] is mapped
    assert placed[1].ctypes.data % 64 == 0
    np.testing.assert_array_equal(placed[1], loose)


@pytest.mark.parametrize("dtype", list(DType))
def test_every_type_of_weights(tmp_path: Path, dtype: DType) -> None:
    arrays = {
        "odd": np.arange(7).astype(dtype.numpy),
        "even": np.arange(128).reshape(2, 64).astype(dtype.numpy),
        "one": np.array(1).astype(dtype.numpy),
        "none": np.zeros((0, 3), dtype.numpy),
    }
    artifact.save(Image("x", "f", (), (), {"code": b"1"}, arrays), tmp_path / "p", {"a": 1})
    image, report = artifact.load(tmp_path / "p")
    assert report == {"a": 1}
    assert image.files == {"code": b"1"}
    for name, array in arrays.items():
        assert image.weights[name].dtype == array.dtype
        assert image.weights[name].shape == array.shape
        assert image.weights[name].tobytes() == array.tobytes()


def test_every_chunk_of_large_weights_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "CHUNK_BYTES", 1000)
    path = tmp_path / "p"
    weights = np.arange(3000, dtype=np.float32)
    artifact.save(Image("x", "f", (), (), {"code": b"1"}, {"w": weights}), path, {})
    good = path.read_bytes()
    first = good.index(weights.tobytes())
    for at in range(first, first + weights.nbytes, 997):
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with pytest.raises(ArtifactError, match=r"weights\.safetensors' does not have its hash"):
            artifact.load(path)
    path.write_bytes(good)
    np.testing.assert_array_equal(artifact.load(path)[0].weights["w"], weights)


def test_damage_anywhere_is_an_error_or_harmless(saved: Path, tmp_path: Path) -> None:
    """Flip a byte of the zip's own structures: they come first, last and between the members."""
    good = saved.read_bytes()
    wanted, _ = artifact.load(saved)
    bad = tmp_path / "bad"
    end = good.index(b"PK\1\2")
    places = [*range(0, 200, 3), *range(end, len(good), 7)]
    for at in places:
        bad.write_bytes(good[:at] + bytes([good[at] ^ 0x15]) + good[at + 1 :])
        try:
            image, _ = artifact.load(bad)
        except ArtifactError:
            continue
        assert image.files == wanted.files  # a date or a flag that means nothing to us
        assert all(np.array_equal(image.weights[n], a) for n, a in wanted.weights.items())


@pytest.mark.parametrize("keep", [0, 10, 1000, -1])
def test_truncated_file(saved: Path, tmp_path: Path, keep: int) -> None:
    bad = tmp_path / "cut.rammer"
    bad.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(ArtifactError):
        rammer.load(bad)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such file"):
        rammer.load(tmp_path / "absent.rammer")


def test_flipped_byte_in_any_member(saved: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    for name, data in members.items():
        if name != "manifest.json":
            changed = bytes([data[0] ^ 1]) + data[1:]
            bad = rewrite(saved, tmp_path / "bad.rammer", {name: changed})
            with pytest.raises(ArtifactError, match="hash"):
                rammer.load(bad)


def test_unknown_format_missing_and_extra_members(saved: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["rammer"] == rammer.__version__
    newer = json.dumps({**manifest, "format": 99, "rammer": "7.1.0"}).encode()
    with pytest.raises(ArtifactError, match=r"format 99, written by rammer 7\.1\.0; this is rammer .*, which reads"):
        rammer.load(rewrite(saved, tmp_path / "a.rammer", {"manifest.json": newer}))
    older = json.dumps(
        {n: v for n, v in {**manifest, "fingerprint": "cpu-abi1-x86-64"}.items() if n != "rammer"}
    ).encode()
    with pytest.raises(
        ArtifactError, match=r"'cpu-abi1-x86-64' by rammer before 0\.5; this is rammer (.|\n)*versioning\.md"
    ):
        rammer.load(rewrite(saved, tmp_path / "o.rammer", {"manifest.json": older}))
    with pytest.raises(ArtifactError, match="members differ"):
        rammer.load(rewrite(saved, tmp_path / "b.rammer", {"weights.safetensors": None}))
    with pytest.raises(ArtifactError, match="members differ"):
        rammer.load(rewrite(saved, tmp_path / "c.rammer", {}, {"../../escape": b"x"}))
    with pytest.raises(ArtifactError):
        rammer.load(rewrite(saved, tmp_path / "d.rammer", {"manifest.json": b"[" * 100_000}))


def test_unwritable_target_leaves_nothing(saved: Path, tmp_path: Path) -> None:
    with rammer.load(saved) as program, pytest.raises(ArtifactError, match="cannot be written"):
        program.save(tmp_path / "no" / "such" / "folder" / "p.rammer")
    assert not list(tmp_path.iterdir())


def test_closed_program_refuses_to_run(saved: Path) -> None:
    program = rammer.load(saved)
    program.close()
    program.close()
    with pytest.raises(InputError, match="closed"):
        program.run({"x": np.zeros((5, 1, 32), np.float32)})
