"""Read text that is part of emitted programs, and lies in a file of its own language."""

from __future__ import annotations

from importlib.resources import files

from rammer.errors import ToolchainError


def text_of(package: str, *path: str) -> str:
    """Return a file of one of rammer's packages. Raises ToolchainError."""
    try:
        return files(package).joinpath(*path).read_text(encoding="utf-8")
    except OSError as error:
        what = f"rammer's own file {'/'.join(path)} cannot be read: {error.strerror}"
        raise ToolchainError(what, hint="reinstall") from error
