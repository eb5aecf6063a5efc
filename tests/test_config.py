"""Environment flags."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import get_args

import pytest

import rammer
from rammer import config
from rammer.errors import RammerError
from rammer.frontend.builder import GraphBuilder
from rammer.vdevice.cpu.host import choose_arch, host
from rammer.vdevice.cuda.spec import _instructions as cuda_instructions


def test_flags_are_read_at_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAMMER_POLICY", raising=False)
    assert config.get("RAMMER_POLICY") == "auto"
    with config.override(RAMMER_POLICY="sequential"):
        assert config.get("RAMMER_POLICY") == "sequential"
        with config.override(RAMMER_POLICY=None):
            assert config.get("RAMMER_POLICY") == "auto"
    assert config.get("RAMMER_POLICY") == "auto"


def test_an_empty_variable_counts_as_unset() -> None:
    with config.override(RAMMER_VDEVICE=""):
        assert config.get("RAMMER_VDEVICE") == "cpu"


def test_numbers_are_checked() -> None:
    with config.override(RAMMER_NUM_VEUS="4", RAMMER_SPIN_MS="0.5"):
        assert config.integer("RAMMER_NUM_VEUS") == 4
        assert config.number("RAMMER_SPIN_MS") == 0.5
    for bad in ("four", "0", "-1", "4.5"):
        with config.override(RAMMER_NUM_VEUS=bad), pytest.raises(RammerError, match="RAMMER_NUM_VEUS") as caught:
            config.integer("RAMMER_NUM_VEUS")
        assert "vEUs" in caught.value.hint
    for bad in ("soon", "-1", "inf", "nan"):
        with config.override(RAMMER_SPIN_MS=bad), pytest.raises(RammerError, match="RAMMER_SPIN_MS"):
            config.number("RAMMER_SPIN_MS")

    for bad in ("abc", "-3"):
        with config.override(RAMMER_TUNE_SECONDS=bad), pytest.raises(RammerError, match=f"RAMMER_TUNE_SECONDS='{bad}'"):
            config.number("RAMMER_TUNE_SECONDS")
    assert config.number("RAMMER_TUNE_SECONDS", given=0.5) == 0.5
    for given in (-3, float("nan"), float("inf"), "soon"):
        with pytest.raises(RammerError, match=r"tune_seconds=.*: it should be a number from 0 to"):
            rammer.compile(GraphBuilder("empty").build(), tune_seconds=given)  # type: ignore[arg-type]


BOOLEANS = [name for name, flag in config.FLAGS.items() if flag.kind == "boolean"]


@pytest.mark.parametrize("name", BOOLEANS)
def test_switches_take_the_usual_words_and_no_others(name: str) -> None:
    for text in ("1", "on", "Yes", "TRUE", " true "):
        with config.override(**{name: text}):
            assert config.boolean(name) is True
    for text in ("0", "off", "No", "FALSE"):
        with config.override(**{name: text}):
            assert config.boolean(name) is False
    for text in ("2", "maybe", "none", "-1", " "):
        with (
            config.override(**{name: text}),
            pytest.raises(RammerError, match=f"{name}='{text}': it "),
        ):
            config.boolean(name)
    with config.override(**{name: None}):
        assert config.boolean(name) in (True, False) or config.FLAGS[name].default == ""


def test_every_flag_is_read_as_what_it_is() -> None:
    """Nobody compares texts of flags, or converts them: that is for `config` to do, once."""
    read, root = set(), Path(rammer.__file__).parent
    for file in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            place = f"{file.name}:{getattr(node, 'lineno', 0)}"
            match node:
                case ast.Call(ast.Attribute(ast.Name("config"), reader), [ast.Constant(str(name)), *_]):
                    kind = config.FLAGS[name].kind
                    assert reader == ("get" if kind == "text" else kind), f"{place} reads {name} by config.{reader}"
                    read.add(name)
                case ast.Call(ast.Name("int" | "float" | "bool"), [ast.Call(ast.Attribute(ast.Name("config"), "get"))]):
                    pytest.fail(f"{place} converts the text of a flag")
                case ast.Compare(ast.Call(ast.Attribute(ast.Name("config"), "get")), _, [ast.Constant(), *_]):
                    pytest.fail(f"{place} compares the text of a flag")
    assert len(read) > 20
    assert {flag.kind for flag in config.FLAGS.values()} == {*get_args(config.Kind)}


@pytest.mark.parametrize("text", ["off", "false", "0"])
def test_the_matrix_unit_is_left_alone_everywhere_by_the_same_words(text: str) -> None:
    with config.override(RAMMER_MATRIX_UNIT=text):
        assert not any(i.precision == "fp32" and i.split_dtype for i in cuda_instructions("sm_90"))
        assert not choose_arch(None, host()).instructions


def test_names_are_split() -> None:
    with config.override(RAMMER_TEST_VDEVICES="cpu, toy,,"):
        assert config.names("RAMMER_TEST_VDEVICES") == ("cpu", "toy")


def test_the_old_name_of_a_flag_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMMER_CUDA_GRAPH", "1")
    with pytest.raises(RammerError, match="RAMMER_CUDA_GRAPH is called RAMMER_GPU_GRAPH now") as caught:
        config.get("RAMMER_POLICY")
    assert "RAMMER_GPU_GRAPH=1" in caught.value.hint


def test_an_unknown_variable_is_warned_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_warned", set())
    monkeypatch.setenv("RAMMER_POLICI", "x")
    with pytest.warns(UserWarning, match="RAMMER_POLICI; did you mean 'RAMMER_POLICY'"):
        config.get("RAMMER_CC")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.get("RAMMER_CC")


def test_override_takes_known_flags_only() -> None:
    with pytest.raises(RammerError, match="RAMMER_CCC"), config.override(RAMMER_CCC="x"):
        pass


BREAK = {
    "a file for a home": lambda home: (home / ".cache").write_text(""),
    "others may write": lambda home: (
        (home / ".cache" / "rammer").mkdir(parents=True),
        (home / ".cache" / "rammer").chmod(0o777),
    ),
    "others may write inside": lambda home: (
        (home / ".cache" / "rammer" / "objects").mkdir(parents=True),
        (home / ".cache" / "rammer").chmod(0o700),
        (home / ".cache" / "rammer" / "objects").chmod(0o770),
    ),
}


@pytest.mark.skipif(sys.platform == "darwin", reason="the platform's folder is another one there")
class TestDefaultCache:
    """Where the platform's folder cannot be used, work goes on in a temporary one, and one line says so."""

    SCRIPT = """
import os, warnings
from rammer import config
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    first, second = config.cache_dir(), config.cache_dir()
assert first == second and first.stat().st_mode & 0o777 == 0o700
(first / "file").write_text("")
if os.fork() == 0:
    raise SystemExit  # the end of a child must not take the folder away
os.wait()
print(first, first.exists(), len(said), said[0].message if said else "", config.describe_cache(), sep="\\n")
"""

    def run(self, tmp_path: Path, **changes: str) -> list[str]:
        environment = {n: v for n, v in os.environ.items() if n not in ("RAMMER_CACHE_DIR", "XDG_CACHE_HOME", "HOME")}
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", self.SCRIPT]
        done = subprocess.run(command, env=environment | changes, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    @pytest.mark.parametrize("how", BREAK)
    def test_a_temporary_cache(self, tmp_path: Path, how: str) -> None:
        home, temporary = tmp_path / "home", tmp_path / "tmp"
        home.mkdir()
        temporary.mkdir()
        BREAK[how](home)
        folder, exists, warned, message, described = self.run(tmp_path, HOME=str(home), TMPDIR=str(temporary))
        assert Path(folder).parent == temporary and exists == "True" and warned == "1"
        assert (
            "a temporary cache is used" in message and str(home) in message and described.startswith(f"{folder} (temp")
        )
        assert not list(temporary.iterdir()), "it is removed at exit"

    def test_without_a_home(self, tmp_path: Path) -> None:
        """As users without an entry in passwd have none; HOME=~ is what expansion then leaves."""
        folder, _, warned, message, _ = self.run(tmp_path, HOME="~", TMPDIR=str(tmp_path))
        assert Path(folder).parent == tmp_path and warned == "1" and "no home folder" in message

    def test_a_sound_home_is_used(self, tmp_path: Path) -> None:
        folder, _, warned, _, described = self.run(tmp_path, HOME=str(tmp_path))
        assert folder == str(tmp_path / ".cache" / "rammer") and warned == "0" and "platform's" in described

    def test_no_room_at_all_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAMMER_CACHE_DIR", "")
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
        monkeypatch.setattr(config, "_stand_ins", {})
        monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
        with pytest.raises(RammerError, match="not even a temporary one"):
            config.cache_dir()
