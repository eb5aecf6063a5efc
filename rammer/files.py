"""Read and write files that users name: read only regular files, write atomically, and create temporary folders.

Known as: atomic replace.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

from rammer.errors import RammerError

Named: TypeAlias = "str | os.PathLike[str]"

_RANDOM = re.compile("[0-9a-f]{16}")  # the end of a temporary file's name


def open_plain(path: Named) -> BinaryIO:
    """Open a regular file for reading. Raises OSError, also for a pipe or a device, which might never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("this is no plain file")
    return os.fdopen(descriptor, "rb")


def first_bytes(path: Named, count: int) -> bytes:
    """Return the beginning of a file, which identifies its format; empty if it cannot be read."""
    try:
        with open_plain(path) as file:
            return file.read(count)
    except (OSError, ValueError):
        return b""


def check_new(
    path: Named, *, sources: Iterable[Named] = (), raises: type[RammerError] = RammerError
) -> tuple[Path, os.stat_result | None]:
    """Check that `path` can be written. Return the target file and what is there now; change nothing.

    As with cp, a symbolic link stays and its target is written. Raises `raises` for anything but a regular file, for
    one of the files that are being read (`sources`, whatever their names), and for a folder that is not writable.
    """
    name = os.fspath(path)
    try:
        target = Path(os.path.realpath(name))
        found = target.stat() if os.path.lexists(target) else None
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise raises(f"{name}: cannot be written: this is {_kind(found)}", hint="name a plain file or a new one")
        if found is not None and any(os.path.samestat(found, other) for other in _stats(sources)):
            raise raises(f"{name}: cannot be written: it is being read as the input", hint="name another file")
        if found is not None and not os.access(target, os.W_OK):
            raise raises(f"{name}: cannot be written: it is read-only", hint="chmod u+w, or name another file")
        if not target.parent.is_dir():
            raise raises(f"{name}: cannot be written: there is no folder {target.parent}", hint="make it first")
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise raises(f"{name}: cannot be written: no permission to write to the folder {target.parent}")
    except (OSError, ValueError) as error:  # circular links, or a name that is too long or has a NUL
        raise raises(f"{name[:200]!r}: cannot be written: {_reason(error)}") from error
    return target, found


@contextmanager
def new_file(
    path: Named,
    *,
    sources: Iterable[Named] = (),
    raises: type[RammerError] = RammerError,
    hint: str = "",
    durable: bool = True,
) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` when the block ends without an error, with its owner and permissions.

    `durable`: not even a power cut leaves half of it. Raises as `check_new` does, and if writing fails; then nothing
    has changed.
    """
    target, old = check_new(path, sources=sources, raises=raises)
    try:
        _remove_left(target)
        part, descriptor = _part(target)
        try:
            with os.fdopen(descriptor, "w+b") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(descriptor)
                if old is not None:
                    with suppress(PermissionError):  # only root may change the owner
                        os.fchown(descriptor, old.st_uid, old.st_gid)
                    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
                os.replace(part, target)  # while it is locked
        except BaseException:
            with suppress(OSError):  # report the first error
                os.unlink(part)
            raise
    except OSError as error:
        raise raises(f"{os.fspath(path)}: cannot be written: {_reason(error)}", hint=hint) from error


def _part(target: Path) -> tuple[Path, int]:
    """Create and lock a temporary file beside `target`; return it and its descriptor. The lock marks it as in use."""
    while True:
        part = target.with_name(f"{_stem(target)}{secrets.token_hex(8)}")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # without locks, temporary files of killed writers stay
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return part, descriptor
        os.close(descriptor)  # another process removed it before it was locked


def _remove_left(target: Path) -> None:
    """Remove temporary files of `target` that killed writers left; those in use are locked."""
    stem, names = _stem(target), list[str]()
    with suppress(OSError):  # the folder may be writable but not readable
        names = [name for name in os.listdir(target.parent) if name.startswith(stem)]
    for name in names:
        if not _RANDOM.fullmatch(name, len(stem)):
            continue
        with suppress(OSError):
            descriptor = os.open(target.with_name(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(target.with_name(name))
            finally:
                os.close(descriptor)


def _stem(target: Path) -> str:
    return f".{target.name[:100]}."


def write(
    path: Named, content: str | bytes, *, sources: Iterable[Named] = (), raises: type[RammerError] = RammerError
) -> None:
    """Write a whole file. Raises as `new_file` does."""
    with new_file(path, sources=sources, raises=raises) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def new_folder(
    folder: Path, content: Mapping[str, str | bytes], *, hint: str, raises: type[RammerError] = RammerError
) -> None:
    """Write a folder with files by their paths in it, whole or not at all. There may be an empty one.

    Raises `raises` for a folder that is not empty, with `hint`, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "is not empty" if folder.is_dir() else "is a file"
            raise raises(f"{folder}: cannot be written: it {what}", hint=hint)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}", dir=folder.parent) as beside:
            whole = Path(beside, "whole")
            for path, data in content.items():
                (whole / path).parent.mkdir(parents=True, exist_ok=True)
                (whole / path).write_bytes(data.encode() if isinstance(data, str) else data)
            whole.replace(folder)
    except OSError as error:
        raise raises(f"{folder}: cannot be written: {error.strerror}") from error


@contextmanager
def temporary_folder(purpose: str, raises: type[RammerError] = RammerError) -> Iterator[Path]:
    """Yield a private folder, deleted when the block ends. Raises `raises` for an OSError inside, as of a full disk."""
    try:
        with tempfile.TemporaryDirectory(prefix=f"rammer-{purpose}-") as folder:
            yield Path(folder)
    except OSError as error:
        where = tempfile.tempdir or os.environ.get("TMPDIR") or "the folder for temporary files"
        raise raises(
            f"cannot write temporary files ({purpose}) to {where}: {_reason(error)}",
            hint="free some space, raise ulimit -f, or set TMPDIR to another folder",
        ) from error


def _stats(paths: Iterable[Named]) -> Iterator[os.stat_result]:
    for path in paths:
        with suppress(OSError, ValueError):
            yield os.stat(path)


def _kind(info: os.stat_result) -> str:
    names = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "looped links"}
    return names.get(stat.S_IFMT(info.st_mode), "a device")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
