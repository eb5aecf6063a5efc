"""Compiled objects on disk, shared by processes: files by content hash, an SQLite index."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from rammer import files
from rammer.errors import ToolchainError

_SCHEMA = "CREATE TABLE IF NOT EXISTS kernels (key TEXT PRIMARY KEY, object TEXT NOT NULL) WITHOUT ROWID"


class ObjectStore:
    """Compiled kernels by key. A damaged entry counts as missing; nothing half-written is ever visible."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, keys: Iterable[str]) -> dict[str, str]:
        """Content hashes of the objects that hold these kernels; keys without a sound object are left out."""
        found = self._look_up(keys)
        sound = {name: self.read(name) is not None for name in set(found.values())}
        return {key: name for key, name in found.items() if sound[name]}

    def read(self, name: str) -> bytes | None:
        """An object's bytes, or None if it is missing or damaged."""
        try:
            data = self._path(name).read_bytes()
        except OSError:
            return None
        return data if hashlib.sha256(data).hexdigest() == name else None

    def add(self, keys: Sequence[str], data: bytes) -> str:
        """Keep an object that holds these kernels; returns its content hash."""
        name = hashlib.sha256(data).hexdigest()
        hint = "free some space, or set RAMMER_CACHE_DIR to another folder"
        with files.new_file(self._path(name), raises=ToolchainError, hint=hint, durable=False) as file:
            file.write(data)
        with self._index() as index:
            index.executemany("INSERT OR REPLACE INTO kernels VALUES (?, ?)", [(key, name) for key in keys])
        return name

    def made(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The object of this key; if there is none, it is made and kept."""
        found = self.find([key])
        data = self.read(found[key]) if found else None
        if data is None:
            data = make()
            self.add([key], data)
        return data

    def _look_up(self, keys: Iterable[str]) -> dict[str, str]:
        wanted = list(keys)
        found: dict[str, str] = {}
        with self._index() as index:
            for first in range(0, len(wanted), 500):  # SQLite's limit on variables
                part = wanted[first : first + 500]
                marks = ",".join("?" * len(part))
                query = f"SELECT key, object FROM kernels WHERE key IN ({marks})"
                found |= dict(index.execute(query, part).fetchall())
        return found

    def stats(self) -> tuple[int, int, int]:
        """Kernels, objects, and bytes of objects."""
        with self._index() as index:
            (kernels,) = index.execute("SELECT COUNT(*) FROM kernels").fetchone()
        sizes = [f.stat().st_size for f in self.root.glob("*.so")]
        return int(kernels), len(sizes), sum(sizes)

    def _path(self, name: str) -> Path:
        return self.root / f"{name}.so"

    @contextmanager
    def _index(self) -> Iterator[sqlite3.Connection]:
        """A transaction on the index. A damaged index is replaced: it holds nothing that cannot be made again."""
        path = self.root / "index.sqlite"
        try:
            connection = _open(path)
        except sqlite3.OperationalError as error:  # locked for long, or no permission
            raise _unusable(path, error) from error
        except sqlite3.DatabaseError:
            _remove(path)
            connection = _open(path)
        with closing(connection):
            try:
                with connection:
                    yield connection
            except sqlite3.OperationalError as error:
                raise _unusable(path, error) from error
            except sqlite3.DatabaseError as error:
                _remove(path)
                raise _unusable(path, error) from error


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30)
    try:
        connection.execute("PRAGMA synchronous=OFF")  # a power cut may damage the index: then it is made anew
        connection.execute(_SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(path.name + "-journal").unlink(missing_ok=True)  # it would be played back into a new index


def _unusable(path: Path, error: Exception) -> ToolchainError:
    return ToolchainError(
        f"the kernel cache's index {path} cannot be used: {error}",
        hint="`rammer cache --clear`, or set RAMMER_CACHE_DIR",
    )


def share(costs: Mapping[str, int], bins: int) -> list[list[str]]:
    """Distribute names over at most `bins` groups of about equal cost; names of one group keep their order."""
    groups: list[list[str]] = [[] for _ in range(max(1, min(bins, len(costs))))]
    loads = [0] * len(groups)
    for name in sorted(costs, key=lambda n: -costs[n]):
        least = loads.index(min(loads))
        groups[least].append(name)
        loads[least] += costs[name]
    order = {name: n for n, name in enumerate(costs)}
    return [sorted(group, key=order.__getitem__) for group in groups if group]
