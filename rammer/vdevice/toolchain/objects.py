"""Store compiled objects on disk for all processes: files by content hash, an SQLite index.

Known as: content-addressed cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rammer import files
from rammer.errors import ToolchainError
from rammer.vdevice.sealed import SealedFile, SqlTable

_KERNELS = SqlTable("kernels", ("key TEXT", "object TEXT"), 1)


class ObjectStore:
    """Compiled kernels by key. A damaged entry counts as missing. Writes are atomic."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._index = SealedFile(root / "index.sqlite", (_KERNELS,))

    def find(self, keys: Iterable[str]) -> dict[str, str]:
        """Return content hashes of the objects that hold these kernels.

        Keys without an undamaged object are left out.
        """
        wanted = list(keys)
        found: dict[str, str] = dict(self._index.read(lambda all: all.select(_KERNELS, (), wanted), self._unusable))
        sound = {name: self.read(name) is not None for name in set(found.values())}
        return {key: name for key, name in found.items() if sound[name]}

    def read(self, name: str) -> bytes | None:
        """Return an object's bytes, or None if it is missing or damaged."""
        try:
            data = self._path(name).read_bytes()
        except OSError:
            return None
        return data if hashlib.sha256(data).hexdigest() == name else None

    def add(self, keys: Sequence[str], data: bytes) -> str:
        """Store an object that holds these kernels. Returns its content hash."""
        name = hashlib.sha256(data).hexdigest()
        hint = "free some space, or set RAMMER_CACHE_DIR to another folder"
        with files.new_file(self._path(name), raises=ToolchainError, hint=hint, durable=False) as file:
            file.write(data)
        self._index.write(lambda all: all.insert(_KERNELS, [(key, name) for key in keys]), self._unusable)
        return name

    def made(self, key: str, make: Callable[[], bytes]) -> bytes:
        """Return the object of this key; make and store it if missing."""
        found = self.find([key])
        data = self.read(found[key]) if found else None
        if data is None:
            data = make()
            self.add([key], data)
        return data

    def stats(self) -> tuple[int, int, int]:
        """Return the numbers of kernels and objects, and the bytes of objects."""
        kernels = self._index.read(lambda all: all.select(_KERNELS), self._unusable)
        sizes = [f.stat().st_size for f in self.root.glob("*.so")]
        return len(kernels), len(sizes), sum(sizes)

    def _path(self, name: str) -> Path:
        return self.root / f"{name}.so"

    def _unusable(self, error: Exception) -> NoReturn:
        raise ToolchainError(
            f"the kernel cache's index {self._index.path} cannot be used: {error}",
            hint="`rammer cache --clear`, or set RAMMER_CACHE_DIR",
        ) from error


def share(costs: Mapping[str, int], bins: int) -> list[list[str]]:
    """Distribute names over at most `bins` groups of about equal cost, each in the original order.

    Known as: list scheduling, longest processing time first.
    """
    groups: list[list[str]] = [[] for _ in range(max(1, min(bins, len(costs))))]
    loads = [0] * len(groups)
    for name in sorted(costs, key=lambda n: -costs[n]):
        least = loads.index(min(loads))
        groups[least].append(name)
        loads[least] += costs[name]
    order = {name: n for n, name in enumerate(costs)}
    return [sorted(group, key=order.__getitem__) for group in groups if group]
