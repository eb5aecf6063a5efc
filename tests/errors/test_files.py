"""Files that users name: what is written takes the place of a plain file, whole or not at all, and of nothing else."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rammer import files
from rammer.errors import ArtifactError, RammerError


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")]


def test_a_new_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("x")
    files.write(tmp_path / "new", "text")
    assert (tmp_path / "new").read_text() == "text"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_replaced_file_keeps_its_permissions_and_its_readers_the_old_text(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    path.chmod(0o640)
    with path.open() as reader:
        files.write(path, b"new")
        assert reader.read() == "old"
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_read_only_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    writable = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: p != path and writable(p, mode))  # root may write to any file
    with pytest.raises(RammerError, match="it is read-only"):
        files.write(path, "new")
    assert path.read_text() == "old"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_root_leaves_a_replaced_file_to_its_owner(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    os.chown(tmp_path / "f", 12345, 12346)
    files.write(tmp_path / "f", "new")
    found = (tmp_path / "f").stat()
    assert (found.st_uid, found.st_gid) == (12345, 12346) and (tmp_path / "f").read_text() == "new"


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_target_is_written(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    if exists:
        target.write_text("old")
    link.symlink_to(Path("folder", "target"))
    files.write(link, "new")
    assert link.is_symlink() and target.read_text() == "new" and not target.is_symlink()


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # names of sockets are short


def a_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("make", "text"),
    [(os.mkfifo, "this is a pipe"), (os.mkdir, "this is a folder"), (a_socket, "this is a socket"), (a_loop, "links")],
)
def test_what_is_no_plain_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "there"
    make(path)
    kind = path.lstat().st_mode
    with pytest.raises(ArtifactError, match=text):
        files.write(path, "new", raises=ArtifactError)
    assert path.lstat().st_mode == kind and not leftovers(tmp_path)


def test_a_device_stays() -> None:
    with pytest.raises(RammerError, match=r"/dev/null: cannot be written: this is a device"):
        files.write("/dev/null", "new")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("how", ["name", "hard link", "symbolic link"])
def test_a_source_is_not_overwritten_by_any_of_its_names(tmp_path: Path, how: str) -> None:
    source, name = tmp_path / "m.onnx", tmp_path / "out"
    source.write_text("model")
    if how == "hard link":
        name.hardlink_to(source)
    elif how == "symbolic link":
        name.symlink_to(source)
    else:
        name = source
    with pytest.raises(RammerError, match="it is being read as the input"):
        files.write(name, "new", sources=[tmp_path / "absent", source])
    assert source.read_text() == "model"


@pytest.mark.parametrize("name", ["no/such/folder/f", "f" * 300, "zero\0"])
def test_a_name_that_cannot_be_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(RammerError, match="cannot be written"):
        files.write(tmp_path / name, "new")


def test_a_block_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    for error in (OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), ZeroDivisionError()):
        with (
            pytest.raises((RammerError, KeyboardInterrupt, ZeroDivisionError)) as caught,
            files.new_file(tmp_path / "f"),
        ):
            raise error
        assert isinstance(caught.value, RammerError) == isinstance(error, OSError)
    assert (tmp_path / "f").read_text() == "old" and not leftovers(tmp_path)


KILLED = """
import os, signal, sys
from rammer import files
with files.new_file(sys.argv[1]) as file:
    file.write(b"half of it")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path: Path) -> None:
    """And nothing else: not of writers that live, not of other files."""
    target = tmp_path / "program"
    target.write_text("old")
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", KILLED, str(target)]).returncode == -signal.SIGKILL
    others = [".program.0123", ".program.x123456789abcdef", ".program2.0123456789abcdef"]
    for name in others:
        (tmp_path / name).write_text("mine")
    assert target.read_text() == "old" and len(leftovers(tmp_path)) == 1 + len(others)
    with files.new_file(target) as file:
        file.write(b"living")
        files.write(target, "new")
        file.write(b", too")
    assert target.read_text() == "living, too" and sorted(leftovers(tmp_path)) == sorted(others)


def test_a_temporary_folder_goes_and_names_what_failed() -> None:
    with files.temporary_folder("test") as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()
    with pytest.raises(ArtifactError, match="No space left") as caught, files.temporary_folder("test", ArtifactError):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "TMPDIR" in caught.value.hint


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it must not wait for a writer
    for name in ("pipe", "absent", ""):
        assert files.first_bytes(tmp_path / name, 4) == b""
    (tmp_path / "plain").write_bytes(b"12345")
    assert files.first_bytes(tmp_path / "plain", 4) == b"1234"
